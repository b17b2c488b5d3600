"""Cluster samplers for Ising models: they flip whole clusters of spins that agree.

Fields become couplings to an additional "ghost" spin s_0 = 1. Over spins s = 2x - 1,

    p(s) ~ exp(sum_(i<j) K_ij s_i s_j),    K_i0 = h_i.

Given s, each bond (i, j) is *active* with probability

    1 - exp(-2 max(K_ij s_i s_j, 0)),

independently of all other bonds. Active bonds join spins to clusters, and given the
active bonds each cluster is flipped with probability 1/2. Swendsen and Wang flip each
cluster or not, at random; Wolff flips the cluster that contains one random spin. If the
ghost spin was flipped, all spins are flipped once more, which does not change p(s). So
the ghost is 1 again, and the spins outside its cluster have changed.

Couplings may have any sign. But clusters match the correlated regions, and keep chains
fast at a critical point, only if some state satisfies all couplings at once. In a
frustrated model one cluster contains nearly all spins, and flipping it changes little.

Reference: Swendsen and Wang, PRL 58, 86 (1987); Wolff, PRL 62, 361 (1989).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from probjax import random
from probjax.interfaces import Sampler
from probjax.models.ising.model import energy
from probjax.models.pairs import pair_indices
from probjax.potential import Potential
from probjax.recipe import recipe
from probjax.states import binary
from probjax.types import Array, ArrayLike, Domain, Float, Info, PRNGKeyArray, State


class ClusterState(NamedTuple):
    """State of a cluster sampler."""

    x: Float[Array, " unit"]
    """Current state of the model."""


class Bonds(NamedTuple):
    """Graph of a model, in which vertex 0 is the ghost spin and vertex i + 1 is unit i.

    Bonds between two units come first, in the order of the couplings. Bonds between the
    ghost and each unit, for the fields, come last.
    """

    first: Int[ArrayLike, " bond"]
    """Vertex at one end of each bond."""
    second: Int[ArrayLike, " bond"]
    """Vertex at the other end."""
    coupling: Float[Array, " bond"]
    """K of each bond, positive if the two spins tend to agree."""


@recipe
class SwendsenWang(Sampler):
    """Sampler that flips each cluster with probability 1/2. A step costs O(bonds).

    Two units that nearly always agree are flipped together:

    >>> from probjax import ising, sample
    >>> params = ising.from_matrix([[20.0, -20.0], [-20.0, 20.0]])
    >>> args = jax.random.key(0), ising.energy, params, jnp.zeros((10, 2))
    >>> x = sample(*args, sampler=SwendsenWang(), num_draws=20).x
    >>> bool((x[..., 0] == x[..., 1]).all()), bool(0.2 < x.mean() < 0.8)
    (True, True)
    """

    @property
    def domain(self) -> Domain:
        return "bits"

    def num_letters(self) -> int:
        return 2

    def prepare(self, potential: Potential, x: State) -> State:
        return binary(x)

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> ClusterState:
        return _start("SwendsenWang", potential, x)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: ClusterState
    ) -> tuple[ClusterState, Info]:
        bond_key, coin_key = jax.random.split(key)
        labels = _draw_clusters(bond_key, potential, state.x)
        coins = jax.random.bernoulli(coin_key, shape=labels.shape)
        return _step(state.x, coins[labels])


@recipe
class Wolff(Sampler):
    """Sampler that flips the cluster of one random unit.

    A step costs as much as that of `SwendsenWang`. Large clusters are chosen more often
    than small ones, which therefore change slowly.

    If all units are in one cluster, each step flips the whole state:

    >>> from probjax import ising, sample
    >>> params = ising.from_matrix([[20.0, -20.0], [-20.0, 20.0]])
    >>> args = jax.random.key(0), ising.energy, params, jnp.zeros((1, 2))
    >>> sample(*args, sampler=Wolff(), num_draws=3).x.tolist()
    [[[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]]
    """

    @property
    def domain(self) -> Domain:
        return "bits"

    def num_letters(self) -> int:
        return 2

    def prepare(self, potential: Potential, x: State) -> State:
        return binary(x)

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> ClusterState:
        return _start("Wolff", potential, x)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: ClusterState
    ) -> tuple[ClusterState, Info]:
        bond_key, unit_key = jax.random.split(key)
        labels = _draw_clusters(bond_key, potential, state.x)
        vertex = jax.random.randint(unit_key, (), 1, len(labels))
        return _step(state.x, labels == labels[vertex])


def bonds(potential: Potential) -> Bonds:
    """Bonds of an Ising model over spins, with couplings times the potential's weight.

    The values are those of `ising.to_fields(params, spins=True)`, but no matrix is
    formed: E = x'Jx has K_ij = -J_ij / 2 and K_i0 = sum_j K_ij - J_ii / 2.
    """
    params, weight = potential.args[0], potential.weights[0]
    size = len(params.bias)
    first, second = pair_indices(size, params.edges)
    pairs = -params.coupling / 2
    ends = np.concatenate([first, second])
    field = jax.ops.segment_sum(jnp.tile(pairs, 2), ends, size) - params.bias / 2
    units = np.arange(1, size + 1, dtype=np.int32)
    return Bonds(
        np.concatenate([first + 1, np.zeros_like(units)]),
        np.concatenate([second + 1, units]),
        weight * jnp.concatenate([pairs, field]),
    )


def bond_chances(graph: Bonds, x: Float[Array, " unit"]) -> Float[Array, " bond"]:
    """Probability that each bond is active: 1 - exp(-2 max(K s s', 0))."""
    spins = jnp.concatenate([jnp.ones(1, x.dtype), 2 * x - 1])
    agreement = graph.coupling * spins[graph.first] * spins[graph.second]
    return -jnp.expm1(-2 * jnp.maximum(agreement, 0))


def clusters(
    first: Int[ArrayLike, " bond"],
    second: Int[ArrayLike, " bond"],
    active: Bool[Array, " bond"],
    size: int,
) -> Int[Array, " vertex"]:
    """Label of each vertex: the smallest vertex that active bonds connect it to.

    The label of a vertex v is a vertex of its cluster and at most v; at first it is v.
    In one round, each active bond compares the labels of its two ends, a < b: it lowers
    the label of vertex b to a. Then each label is replaced by the label of its label.
    Once a round changes nothing, both ends of every active bond have the same label,
    which is its own label, and so the smallest vertex of the cluster. The number of
    rounds grows like the logarithm of the longest path.

    Args:
        first: vertex at one end of each bond.
        second: vertex at the other end.
        active: whether each bond is active.
        size: number of vertices.

    >>> active = jnp.array([True, True, False])
    >>> clusters(jnp.array([3, 2, 0]), jnp.array([1, 3, 2]), active, 4).tolist()
    [0, 1, 1, 1]
    """

    def lower(carry):
        labels, _ = carry
        one, other = labels[first], labels[second]
        # `size` exceeds all labels, so an inactive bond lowers nothing.
        smaller = jnp.where(active, jnp.minimum(one, other), size)
        lowered = labels.at[jnp.maximum(one, other)].min(smaller)
        # Doing this twice costs less than the rounds it saves.
        lowered = lowered[lowered]
        lowered = lowered[lowered]
        return lowered, jnp.any(lowered != labels)

    start = jnp.arange(size, dtype=jnp.int32), jnp.array(True)
    return jax.lax.while_loop(lambda carry: carry[1], lower, start)[0]


def flipped(
    x: Float[Array, " unit"], flips: Bool[Array, " vertex"]
) -> Float[Array, " unit"]:
    """State after flipping some vertices, and then all if the ghost was flipped.

    So a unit changes if either the unit or the ghost is in `flips`, but not both.
    """
    return jnp.where(flips[1:] != flips[0], 1 - x, x)


def _start(name, potential, x):
    if potential.energies != (energy,):
        raise ValueError(
            f"{name} requires ising.energy and no other term; try HeatBath() for "
            "other energies of bits"
        )
    return ClusterState(x)


def _draw_clusters(key, potential, x):
    graph = bonds(potential)
    chances = bond_chances(graph, x)
    active = random.uniform(key, chances.shape, chances.dtype) < chances
    return clusters(graph.first, graph.second, active, len(x) + 1)


def _step(x, flips):
    return ClusterState(flipped(x, flips)), Info(jnp.ones((), x.dtype))
