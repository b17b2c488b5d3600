"""Values of pairs of sites, as vectors of pairs and as matrices.

The pairs i < j of d sites are those of a graph, or all pairs row by row: (0, 1),
(0, 2), ..., (0, d-1), (1, 2), .... Row i of the upper triangle is then a window of the
vector of pairs, which accelerators read and write as a whole. One index for each pair
would be slow there: the compiler of a TPU makes megabytes of code of it and moves a
hundred times the bytes. On a CPU, one index for each pair is faster.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from probjax.types import Array, Float, Int, SiteBlock

# Edges are printed if there are at most as many.
_MOST_PRINTED = 8


@dataclasses.dataclass(frozen=True, init=False, eq=False, repr=False)
class Edges(Sequence):
    """Immutable sequence of pairs of sites, which compares by value.

    Programs are compiled for the edges of a model, and every call of a program hashes
    them. A tuple of two million pairs takes 25 ms to hash each time; these edges are
    hashed once.

    Args:
        array: any iterable of pairs.

    >>> Edges([(0, 1), (1, 2)])
    Edges(((0, 1), (1, 2)))
    >>> Edges([(0, 1), (1, 2)]) == Edges(np.array([[0, 1], [1, 2]]))
    True
    """

    array: Int[np.ndarray, "pair 2"]
    """Both sites of each pair, as 32-bit integers that cannot be changed."""

    def __init__(self, array: Iterable[tuple[int, int]]):
        array = as_pairs(array).astype(np.int32)
        array.setflags(write=False)
        object.__setattr__(self, "array", array)

    @cached_property
    def sites(self) -> tuple[np.ndarray, np.ndarray]:
        """First and second site of every pair."""
        first, second = np.ascontiguousarray(self.array.T)
        return first, second

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return Edges(self.array[index])
        return tuple(self.array[index].tolist())

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return map(tuple, self.array.tolist())  # pyright: ignore[reportReturnType]

    def __array__(self, dtype=None, copy=None):
        return np.array(self.array, dtype)

    def __eq__(self, other):
        if not isinstance(other, Edges):
            return NotImplemented
        return hash(self) == hash(other) and np.array_equal(self.array, other.array)

    def __hash__(self):
        return self._hash

    @cached_property
    def _hash(self):
        return hash(self.array.tobytes())

    def __reduce__(self):
        # Hashes differ from process to process, so the cached one is left out.
        return Edges, (self.array,)

    def __repr__(self):
        if len(self) > _MOST_PRINTED:
            return f"Edges({len(self)} pairs)"
        return f"Edges({tuple(self)})"


def as_pairs(edges: Iterable[tuple[int, int]]) -> Int[np.ndarray, "pair 2"]:
    """Return any iterable of pairs as an array of integers."""
    if not hasattr(edges, "__array__"):
        edges = list(edges)
    return np.array(edges, int).reshape(-1, 2)


def as_edges(edges: Iterable[tuple[int, int]] | None) -> Edges | None:
    """Return `Edges`, or None for all pairs; see `checked_edges` for a check."""
    if edges is None or isinstance(edges, Edges):
        return edges
    return Edges(edges)


def upper_triangle(
    values: Float[Array, "pair ..."], size: int, edges: Edges | None
) -> Float[Array, "site site ..."]:
    """Matrix with the value of each pair i < j at (i, j), and zeros elsewhere.

    Args:
        values: one value, or one array, for each pair.
        size: number of sites.
        edges: pairs of sites, as for `pair_indices`.

    >>> upper_triangle(jnp.array([1.0, 2.0, 3.0]), 3, None).tolist()
    [[0.0, 1.0, 2.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]]
    """

    def by_index(values):
        matrix = jnp.zeros((size, size, *values.shape[1:]), values.dtype)
        indices = pair_indices(size, edges)
        return matrix.at[indices].set(values, unique_indices=True)

    if edges is not None:
        return by_index(values)
    by_row = partial(_upper_triangle, size=size)
    return jax.lax.platform_dependent(values, cpu=by_index, default=by_row)


def pair_values(
    matrix: Float[Array, "site site ..."], edges: Edges | None
) -> Float[Array, "pair ..."]:
    """Return the value at (i, j) of each pair i < j: the transpose of `upper_triangle`.

    >>> matrix = jnp.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    >>> pair_values(matrix, None).tolist()
    [1.0, 2.0, 3.0]
    """
    size = len(matrix)

    def by_index(matrix):
        return matrix[pair_indices(size, edges)]

    def by_row(matrix):
        shape = (size * (size - 1) // 2, *matrix.shape[2:])
        values = jax.ShapeDtypeStruct(shape, matrix.dtype)
        to_matrix = partial(_upper_triangle, size=size)
        return jax.linear_transpose(to_matrix, values)(matrix)[0]

    if edges is not None:
        return by_index(matrix)
    return jax.lax.platform_dependent(matrix, cpu=by_index, default=by_row)


def at_both_sites(
    values: Float[Array, "site ..."], edges: Edges | None
) -> tuple[Float[Array, "pair ..."], Float[Array, "pair ..."]]:
    """Return the value of the first site, and that of the second site, of every pair.

    >>> first, second = at_both_sites(jnp.array([1.0, 2.0, 3.0]), None)
    >>> first.tolist(), second.tolist()
    ([1.0, 1.0, 2.0], [2.0, 3.0, 3.0])
    """
    if edges is not None:
        first, second = pair_indices(len(values), edges)
        return values[first], values[second]
    shape = (len(values), *values.shape)
    of_first = jnp.broadcast_to(values[:, None], shape)
    of_second = jnp.broadcast_to(values[None], shape)
    return pair_values(of_first, edges), pair_values(of_second, edges)


def sums_of_sites(
    at_first: Float[Array, "pair ..."],
    at_second: Float[Array, "pair ..."],
    size: int,
    edges: Edges | None,
) -> Float[Array, "site ..."]:
    """Sum over pairs a value for the first and one for the second site of each pair.

    >>> sums_of_sites(jnp.array([1.0, 2.0, 4.0]), jnp.zeros(3), 3, None).tolist()
    [3.0, 4.0, 0.0]
    """
    if edges is not None:
        first, second = pair_indices(size, edges)
        total = jnp.zeros((size, *at_first.shape[1:]), at_first.dtype)
        return total.at[first].add(at_first).at[second].add(at_second)
    rows = upper_triangle(at_first, size, edges).sum(1)
    return rows + upper_triangle(at_second, size, edges).sum(0)


def _upper_triangle(values, size):
    """Matrix of the values of all pairs, which are read row by row."""
    site = np.arange(size)
    # Row i has its diagonal at this index of the vector with a zero in front.
    starts = (site * (size - 1) - site * (site + 1) // 2).astype(np.int32)
    zero = jnp.zeros((1, *values.shape[1:]), values.dtype)
    padded = jnp.concatenate([zero, values])

    def window(start):
        return jax.lax.dynamic_slice_in_dim(padded, start, size)

    rows = jax.vmap(window)(starts)
    first, second = (jax.lax.broadcasted_iota(np.int32, rows.shape, i) for i in (0, 1))
    return jnp.where(first < second, rows, 0)


def pairwise_block(
    field: Float[Array, " site"], coupling: Float[Array, "site site"]
) -> Callable[[Float[Array, " site"], Array, int], SiteBlock]:
    """Return a function of `(x, first, size)`: these entries of `field + coupling @ x`.

    Args:
        coupling: symmetric matrix, with zeros for a site and itself.

    >>> coupling = jnp.array([[0.0, 3.0], [3.0, 0.0]])
    >>> block = pairwise_block(jnp.array([1.0, 2.0]), coupling)
    >>> block(jnp.array([1.0, 1.0]), 1, 1).field.tolist()
    [5.0]
    """

    def block(x, first, size):
        part = partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=size)
        rows = part(coupling)
        return SiteBlock(part(field) + rows @ x, part(rows, axis=1))

    return block


def pair_products(
    values: Float[Array, " site"], edges: Edges | None
) -> Float[Array, " pair"]:
    """Product of the values of both sites of each pair.

    >>> pair_products(jnp.array([1.0, 2.0, 3.0]), None).tolist()
    [2.0, 3.0, 6.0]
    """
    if edges is None:
        return pair_values(jnp.outer(values, values), None)
    first, second = at_both_sites(values, edges)
    return first * second


def num_pairs(size: int, edges: Edges | None) -> int:
    """Number of pairs: that of the edges, or of all pairs.

    >>> num_pairs(4, None)
    6
    """
    return size * (size - 1) // 2 if edges is None else len(edges)


def pair_indices(size: int, edges: Edges | None) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the first and of the second site of every pair.

    Args:
        edges: pairs of sites that are coupled; None for all pairs.

    >>> first, second = pair_indices(3, None)
    >>> first.tolist(), second.tolist()
    ([0, 0, 1], [1, 2, 2])
    """
    edges = as_edges(edges)
    return _all_pairs(size) if edges is None else edges.sites


@cache
def _all_pairs(size):
    first, second = np.triu_indices(size, 1)
    # jax caches such constants, so their dtype must not depend on jax_enable_x64.
    return first.astype(np.int32), second.astype(np.int32)


def checked_edges(edges: Iterable[tuple[int, int]] | None, size: int) -> Edges | None:
    """Return `edges` as pairs i < j; raise if they repeat or do not join two sites.

    Args:
        edges: pairs of sites; None stands for all pairs and is returned as None.
        size: number of sites.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if edges is None:
        return None
    pairs = np.sort(as_pairs(edges), axis=1)
    first, second = pairs.T
    if np.any(outside := (first < 0) | (first == second) | (second >= size)):
        raise ValueError(
            f"edges must join two different units of 0 to {size - 1}, got "
            f"{tuple(pairs[outside][0].tolist())}"
        )
    codes, counts = np.unique(first * size + second, return_counts=True)
    if len(codes) < len(pairs):
        twice = divmod(int(codes[counts > 1][0]), size)
        raise ValueError(f"edges must not repeat, got {twice} twice")
    return Edges(pairs)
