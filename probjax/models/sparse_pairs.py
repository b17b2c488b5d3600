"""Sums over the edges of a sparse graph, at a cost of O(edges).

    sums_i = sum over the edges (i, j) of J_ij x_j

There are three forms, of which `layout` chooses one:

- In a lattice, the distances d = j - i of the edges have few values. With J_d[i] the
  coupling of the sites i and i + d, or zero if there is no such edge, sums_i is the sum
  over d of J_d[i] x[i + d] + J_d[i - d] x[i - d]: products of vectors, without gathers
  of states.
- In other sparse graphs, the terms of all edges are gathered, and summed by site.
- If a graph has many edges, a product with a matrix is faster.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from probjax.models.pairs import Edges, as_edges, pair_indices
from probjax.types import Array, Float, Scalar, SiteBlock

# Entries of a matrix that are multiplied in the time of one product at a distance, and
# in that of one gathered edge. Measured on two x86 cores, with lattices and random
# graphs of 100 to 10,000 sites.
ENTRIES_PER_PRODUCT = 32
ENTRIES_PER_EDGE = 512
# The program grows with the number of distances.
MOST_DISTANCES = 16


class Shifts(NamedTuple):
    """Edges of a graph, by the distances between their sites."""

    edges: Edges
    distances: tuple[int, ...]
    """Distances j - i of the edges."""
    indices: Int[np.ndarray, "distance site"]
    """Edge of the sites i and i + d, for each distance d and all i; beyond the last
    edge if there is none."""

    def sums(
        self, coupling: Float[Array, " pair"], x: Float[Array, " site"]
    ) -> Float[Array, " site"]:
        """Sum over the edges of each site of the coupling times the other site's x."""
        total = jnp.zeros_like(x)
        for distance, here in self._by_distance(coupling):
            total += here * _moved_down(x, distance)
            total += jnp.pad((here * x)[:-distance], (distance, 0))
        return total

    def total(
        self, coupling: Float[Array, " pair"], x: Float[Array, " site"]
    ) -> Scalar:
        """Sum over all edges of the coupling times x of both sites."""
        total = jnp.zeros((), x.dtype)
        for distance, here in self._by_distance(coupling):
            total += jnp.sum(here * x * _moved_down(x, distance))
        return total

    def _by_distance(self, coupling):
        # One gather, and products of one length, which share loops in gradients.
        at = jnp.asarray(coupling).at[self.indices]
        couplings = at.get(mode="fill", fill_value=0, unique_indices=True)
        return zip(self.distances, couplings, strict=True)


def _moved_down(x, distance):
    """X of the site at a distance after each site, and zeros behind the last site."""
    return jnp.pad(x[distance:], (0, distance))


class SiteNeighbours(NamedTuple):
    """SiteNeighbours of one site, with other entries behind them."""

    site: Int[Array, " near"]
    """Index of each neighbour."""
    edge: Int[Array, " near"]
    """Index of the edge to each neighbour."""
    exists: Bool[Array, " near"]
    """Whether an entry is a neighbour."""

    def values(self, coupling: Float[Array, " pair"]) -> Float[Array, " near"]:
        """Coupling with each neighbour, and zero for the other entries."""
        return jnp.where(self.exists, coupling[self.edge], 0)


class Incidence(NamedTuple):
    """Both ends of every edge, sorted by site."""

    edges: Edges
    site: Int[np.ndarray, " end"]
    """Site at this end."""
    neighbour: Int[np.ndarray, " end"]
    """Site at the other end."""
    edge: Int[np.ndarray, " end"]
    """Index of the edge."""
    start: Int[np.ndarray, " site"]
    """Index of the first end of each site."""
    degree: Int[np.ndarray, " site"]
    """Number of edges of each site."""

    def sums(
        self, coupling: Float[Array, " pair"], x: Float[Array, " site"]
    ) -> Float[Array, " site"]:
        """Sum over the edges of each site of the coupling times the other site's x."""
        terms = coupling[self.edge] * x[self.neighbour]
        return jax.ops.segment_sum(terms, self.site, len(x), indices_are_sorted=True)

    def total(
        self, coupling: Float[Array, " pair"], x: Float[Array, " site"]
    ) -> Scalar:
        """Sum over all edges of the coupling times x of both sites."""
        first, second = self.edges.sites
        return jnp.sum(coupling * x[first] * x[second])

    def around(self, site: Array | int) -> SiteNeighbours:
        """Return the neighbours of one site, as many entries as any site has."""
        entries = np.arange(self.degree.max(initial=0), dtype=np.int32)
        exists = jnp.less(entries, jnp.asarray(self.degree)[site])
        # Entries behind the last end are not used, but must be some site.
        end = jnp.asarray(self.start)[site] + entries
        end = jnp.minimum(end, len(self.site) - 1)
        neighbour, edge = jnp.asarray(self.neighbour)[end], jnp.asarray(self.edge)[end]
        return SiteNeighbours(neighbour, edge, exists)


def layout(size: int, edges: Edges | None) -> Shifts | Incidence | None:
    """Return the fastest form of sums over edges; None for a product with a matrix.

    >>> layout(5, Edges([(0, 1)])) is None
    True
    >>> ring = Edges([(i, i + 1) for i in range(999)])
    >>> layout(1000, ring).distances
    (1,)
    """
    return None if edges is None else _layout(size, as_edges(edges))


@lru_cache(maxsize=32)
def _layout(size, edges):
    first, second = edges.sites
    distances = np.unique(np.abs(second - first))
    products = size * len(distances)
    if (
        len(distances) <= MOST_DISTANCES
        and products * ENTRIES_PER_PRODUCT <= len(edges) * ENTRIES_PER_EDGE
        and products * ENTRIES_PER_PRODUCT <= size**2
    ):
        return _shifts(size, edges, distances)
    is_sparse = len(edges) * ENTRIES_PER_EDGE <= size**2
    return incidence(size, edges) if is_sparse else None


def _shifts(size, edges, distances):
    first, second = edges.sites
    row = np.searchsorted(distances, np.abs(second - first))
    # All indices differ, which lets gradients be written in any order.
    beyond = len(edges) + np.arange(len(distances) * size, dtype=np.int32)
    indices = beyond.reshape(len(distances), size)
    indices[row, np.minimum(first, second)] = np.arange(len(edges))
    return Shifts(edges, tuple(distances.tolist()), indices)


@lru_cache(maxsize=32)
def incidence(size: int, edges: Edges) -> Incidence:
    """Return both ends of every edge, sorted by site.

    >>> incidence(3, Edges([(0, 2), (0, 1)])).neighbour.tolist()
    [2, 1, 0, 0]
    """
    first, second = pair_indices(size, edges)
    site = np.concatenate([first, second])
    order = np.argsort(site, kind="stable")
    edge = np.tile(np.arange(len(first), dtype=np.int32), 2)
    degree = np.bincount(site, minlength=size).astype(np.int32)
    return Incidence(
        edges,
        site[order],
        np.concatenate([second, first])[order],
        edge[order],
        (np.cumsum(degree) - degree).astype(np.int32),
        degree,
    )


def sparse_block(
    field: Float[Array, " site"], coupling: Float[Array, " pair"], edges: Edges
) -> Callable[[Float[Array, " site"], Array, int], SiteBlock]:
    """Return the function of `pairwise_block`, for the couplings of edges.

    >>> block = sparse_block(jnp.array([1.0, 2.0]), jnp.array([3.0]), Edges([(0, 1)]))
    >>> block(jnp.array([1.0, 1.0]), 1, 1).field.tolist()
    [5.0]
    """
    graph = incidence(len(field), edges)

    def block(x, first, size):
        inside = jnp.arange(size, dtype=np.int32)
        near = jax.vmap(graph.around)(first + inside)
        values = near.values(coupling)
        start = jax.lax.dynamic_slice_in_dim(field, first, size)
        # SiteNeighbours outside the block are dropped.
        column = near.site - first
        column = jnp.where((column >= 0) & (column < size), column, size)
        among = jnp.zeros((size, size), values.dtype)
        among = among.at[inside[:, None], column].add(values, mode="drop")
        # Not a sum of products: with --xla_cpu_use_fusion_emitters=false, jaxlib 0.10.2
        # returns wrong sums here inside a sweep.
        coupled = jax.vmap(jnp.dot)(values, x[near.site])
        return SiteBlock(start + coupled, among)

    return block
