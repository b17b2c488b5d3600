"""Linear operators of a metric G = A'A, where A is (row, parameter).

`Known` stores G, as a matrix that a user computes. `RowTable` stores A, leaf by leaf of
the parameters, (row, *leaf). `Streamed`, in `probjax.natural.streamed`, computes A of a
large model for each use.
"""

import abc
import math
from functools import reduce

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.recipe import recipe
from probjax.types import Array, Float, Params, PyTree

MOST_PARAMETERS = 2**14
Groups = tuple[tuple[int, ...], ...]


class Linear(abc.ABC):
    """Metric at some parameters."""

    @abc.abstractmethod
    def squares(self, groups: Groups) -> tuple[Array, ...]:
        """Blocks of G, one for each group of leaves of the parameters."""

    @abc.abstractmethod
    def diagonal(self) -> PyTree:
        """Diagonal of G, a tree like the parameters."""

    @abc.abstractmethod
    def times(self, tree: PyTree) -> PyTree:
        """Product of G and a tree like the parameters."""

    def held(self) -> "RowOperator | None":
        """Matrix A, in memory if it is small enough; None if only G is known."""
        return None


class RowOperator(Linear):
    """Metric G = A'A, by its matrix A."""

    @property
    @abc.abstractmethod
    def num_rows(self) -> int:
        """Number of rows of A."""

    @abc.abstractmethod
    def gram(self) -> Float[Array, "row row"]:
        """Matrix AA'."""

    @abc.abstractmethod
    def along(self, tree: PyTree) -> Float[Array, " row"]:
        """Product of A and a tree like the parameters."""

    @abc.abstractmethod
    def back(self, rows: Float[Array, " row"]) -> PyTree:
        """Product of A' and a vector with a number for each row."""

    def times(self, tree: PyTree) -> PyTree:
        return self.back(self.along(tree))


@recipe
class Known(Linear):
    """The matrix G."""

    matrix: Float[Array, "n n"]
    params: Params

    def squares(self, groups: Groups) -> tuple[Array, ...]:
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
    """The matrix A, as a tree with leaves `(row, *leaf)`."""

    rows: PyTree

    def squares(self, groups: Groups) -> tuple[Array, ...]:
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

    def along(self, tree: PyTree) -> Float[Array, " row"]:
        pairs = zip(jax.tree.leaves(self.rows), jax.tree.leaves(tree), strict=True)
        return reduce(jnp.add, [_flat(leaf) @ jnp.ravel(part) for leaf, part in pairs])

    def back(self, rows: Float[Array, " row"]) -> PyTree:
        return times_rows(self.rows, rows)

    def held(self) -> RowOperator:
        return self

    @property
    def num_rows(self) -> int:
        return len(jax.tree.leaves(self.rows)[0])


def weighed(
    table: PyTree, mean: PyTree | None, weights: Float[Array, " row"]
) -> RowTable:
    """Rows of a table, minus their mean if given, times the roots of their weights."""

    def each(leaf, mean):
        roots = jnp.sqrt(weights).astype(leaf.dtype)
        return (leaf - mean[None]) * roots.reshape(-1, *[1] * (leaf.ndim - 1))

    if mean is None:
        mean = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), table)
    return RowTable(jax.tree.map(each, table, mean))


def times_rows(table: PyTree, rows: Float[Array, " row"]) -> PyTree:
    """Sum over the rows of a table, leaves `(row, *leaf)`, times a number each."""

    def summed(leaf):
        return (rows.astype(leaf.dtype) @ _flat(leaf)).reshape(leaf.shape[1:])

    return jax.tree.map(summed, table)


def check_fits(size: int) -> None:
    """Reject a metric that is too large to be stored as a matrix."""
    if size > MOST_PARAMETERS:
        raise ValueError(
            f"a metric of {size:,} parameters has {size**2:.1e} entries: use LowRank() "
            "for few rows, ConjugateGradient(), Diagonal(), or smaller Blocks"
        )


def _flat(leaf):
    return leaf.reshape(len(leaf), math.prod(leaf.shape[1:]))
