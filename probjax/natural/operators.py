"""A metric G as a linear operator, often G = A'A with a matrix A of (row, parameter).

`MatrixOperator` stores G, a matrix that a user computes. `RowTable` stores A, with one
array (row, *leaf) for each leaf of the parameters. `Streamed`, in
`probjax.natural.streamed`, computes A of a large model again for each use.
"""

import abc
import math
from functools import reduce

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.recipe import recipe
from probjax.types import Array, Float, Params, PyTree

MAX_PARAMETERS = 2**14
"""Largest number of rows and columns of a matrix that is stored."""
Groups = tuple[tuple[int, ...], ...]
"""Groups of leaves of the parameters, by the indices of the leaves."""


class MetricOperator(abc.ABC):
    """Metric G at some parameters, as a linear operator."""

    @abc.abstractmethod
    def blocks(self, groups: Groups) -> tuple[Array, ...]:
        """Return the diagonal blocks of G, one for each group of leaves."""

    @abc.abstractmethod
    def diagonal(self) -> PyTree:
        """Return the diagonal of G, as a tree like the parameters."""

    @abc.abstractmethod
    def times(self, tree: PyTree) -> PyTree:
        """Multiply G by a tree like the parameters."""

    def row_operator(self) -> "RowOperator | None":
        """Return A, in memory if it is small enough; None if only G is known."""
        return None


class RowOperator(MetricOperator):
    """Metric G = A'A, given by its matrix A."""

    @property
    @abc.abstractmethod
    def num_rows(self) -> int:
        """Number of rows of A."""

    @abc.abstractmethod
    def gram(self) -> Float[Array, "row row"]:
        """Return the matrix AA'."""

    @abc.abstractmethod
    def apply_rows(self, tree: PyTree) -> Float[Array, " row"]:
        """Multiply A by a tree like the parameters."""

    @abc.abstractmethod
    def apply_rows_transposed(self, rows: Float[Array, " row"]) -> PyTree:
        """Multiply A' by a vector with one entry for each row of A."""

    def times(self, tree: PyTree) -> PyTree:
        return self.apply_rows_transposed(self.apply_rows(tree))


@recipe
class MatrixOperator(MetricOperator):
    """Metric that is stored as the matrix G."""

    matrix: Float[Array, "n n"]
    params: Params

    def blocks(self, groups: Groups) -> tuple[Array, ...]:
        sizes = [leaf.size for leaf in jax.tree.leaves(self.params)]
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]

        def block(group):
            spans = [jnp.arange(ends[k] - sizes[k], ends[k]) for k in group]
            places = jnp.concatenate(spans)
            return self.matrix[places[:, None], places[None, :]]

        return tuple(block(group) for group in groups)

    def diagonal(self) -> PyTree:
        return self._tree(jnp.diagonal(self.matrix))

    def times(self, tree: PyTree) -> PyTree:
        return self._tree(self.matrix @ ravel_pytree(tree)[0])

    def _tree(self, flat):
        return ravel_pytree(self.params)[1](flat)


@recipe
class RowTable(RowOperator):
    """Metric G = A'A, with A stored as a tree with leaves `(row, *leaf)`."""

    rows: PyTree

    def blocks(self, groups: Groups) -> tuple[Array, ...]:
        leaves = jax.tree.leaves(self.rows)

        def block(group):
            flat = jnp.concatenate([_flat(leaves[k]) for k in group], axis=1)
            return flat.T @ flat

        return tuple(block(group) for group in groups)

    def diagonal(self) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.sum(leaf**2, 0), self.rows)

    def gram(self) -> Float[Array, "row row"]:
        flats = map(_flat, jax.tree.leaves(self.rows))
        return reduce(jnp.add, [flat @ flat.T for flat in flats])

    def apply_rows(self, tree: PyTree) -> Float[Array, " row"]:
        pairs = zip(jax.tree.leaves(self.rows), jax.tree.leaves(tree), strict=True)
        return reduce(jnp.add, [_flat(leaf) @ jnp.ravel(part) for leaf, part in pairs])

    def apply_rows_transposed(self, rows: Float[Array, " row"]) -> PyTree:
        return weighted_row_sum(self.rows, rows)

    def row_operator(self) -> RowOperator:
        return self

    @property
    def num_rows(self) -> int:
        return len(jax.tree.leaves(self.rows)[0])


def weighted_table(
    table: PyTree, mean: PyTree | None, weights: Float[Array, " row"]
) -> RowTable:
    """Return the matrix A of weighted scores.

    Args:
        table: scores, with leaves `(row, *leaf)`.
        mean: mean score, which is subtracted; None for zero.
        weights: weights of the rows, whose square roots multiply the rows.
    """

    def weighted(leaf, mean):
        roots = jnp.sqrt(weights).astype(leaf.dtype)
        return (leaf - mean[None]) * roots.reshape(-1, *[1] * (leaf.ndim - 1))

    if mean is None:
        mean = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), table)
    return RowTable(jax.tree.map(weighted, table, mean))


def weighted_row_sum(table: PyTree, weights: Float[Array, " row"]) -> PyTree:
    """Sum the rows of a table with leaves `(row, *leaf)`, each times its weight."""

    def summed(leaf):
        return (weights.astype(leaf.dtype) @ _flat(leaf)).reshape(leaf.shape[1:])

    return jax.tree.map(summed, table)


def check_matrix_size(size: int) -> None:
    """Raise if a metric is too large to be stored as a matrix."""
    if size > MAX_PARAMETERS:
        raise ValueError(
            f"a metric that is stored must have at most {MAX_PARAMETERS:,} parameters, "
            f"got {size:,}; try LowRank() for few rows, ConjugateGradient(), "
            "Diagonal(), or smaller groups in BlockDiagonal()"
        )


def _flat(leaf):
    return leaf.reshape(len(leaf), math.prod(leaf.shape[1:]))
