"""Values of pairs of sites, as vectors of pairs and as matrices.

The pairs i < j of d sites are those of a graph, or all pairs row by row: (0, 1),
(0, 2), ..., (0, d-1), (1, 2), .... Row i of the upper triangle is then a window of the
vector of pairs, which accelerators read and write as a whole. One index for each pair
would be slow there: the compiler of a TPU makes megabytes of code of it and moves a
hundred times the bytes. On a CPU, one index for each pair is faster.
"""

from collections.abc import Callable, Iterable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from probjax.types import Array, Float, SiteBlock

Edges = tuple[tuple[int, int], ...]


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


@cache
def pair_indices(size: int, edges: Edges | None) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the first and of the second site of every pair.

    Args:
        edges: pairs of sites that are coupled; None for all pairs.

    >>> first, second = pair_indices(3, None)
    >>> first.tolist(), second.tolist()
    ([0, 0, 1], [1, 2, 2])
    """
    if edges is None:
        first, second = np.triu_indices(size, 1)
    else:
        first, second = np.asarray(edges, int).reshape(-1, 2).T
    # jax caches such constants, so their dtype must not depend on jax_enable_x64.
    return first.astype(np.int32), second.astype(np.int32)


@cache
def coupled_sites(size: int, edges: Edges | None) -> np.ndarray:
    """Matrix of whether two sites are coupled.

    >>> coupled_sites(3, ((0, 1),)).astype(int).tolist()
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    """
    first, second = pair_indices(size, edges)
    coupled = np.zeros((size, size), bool)
    coupled[first, second] = coupled[second, first] = True
    return coupled


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
    edges = tuple((min(int(i), int(j)), max(int(i), int(j))) for i, j in edges)
    for i, j in edges:
        if not 0 <= i < j < size:
            raise ValueError(
                f"edges must join two different units of 0 to {size - 1}, got {(i, j)}"
            )
    if len(set(edges)) < len(edges):
        twice = next(edge for edge in edges if edges.count(edge) > 1)
        raise ValueError(f"edges must not repeat, got {twice} twice")
    return edges
