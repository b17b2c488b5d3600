"""Metric G = A'A of a model whose matrix A need not be stored.

A row of A is the derivative of a function of one row of data, minus the mean derivative
if scores are centred, times the root of the row's weight w:

    A_r = sqrt(w_r) (d f(params, x_r) - <d f>).

Blocks of G are sums over chunks of rows. Products A v are forward derivatives along v,
products A' r are reverse derivatives.
"""

import dataclasses
from collections.abc import Callable
from functools import reduce

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count
from probjax.data.chunks import cut_chunk
from probjax.natural.operators import Groups, RowOperator, RowTable, weighed
from probjax.recipe import recipe, static
from probjax.types import Array, Float, Params, PyTree, Scalar, State

MOST_ENTRIES, CHUNK_ENTRIES = 2**27, 2**24


@recipe
class Streamed(RowOperator):
    """The matrix A, computed in chunks of rows.

    A row is the derivative of `function(params, x)`, minus the mean if there is one,
    times the root of its weight.
    """

    function: Callable[[Params, State], Array] = static()
    params: Params
    x: PyTree
    weights: Float[Array, " row"]
    """Weights of the rows of data; their sum is the scale of the metric."""
    mean: PyTree | None
    """Mean derivative, if it is subtracted."""
    chunk: int = static()
    outputs: int = static()
    """Number of rows of A for each row of data."""
    hold: bool = static()
    """Whether A may be held in memory."""

    def squares(self, groups: Groups) -> tuple[Array, ...]:
        return self._summed(lambda table: table.squares(groups))

    def diagonal(self) -> PyTree:
        return self._summed(RowTable.diagonal)

    def gram(self) -> Float[Array, "row row"]:
        def products(row):
            table = self._table(*jax.tree.map(lambda leaf: leaf[None], row))
            return jax.vmap(self.along)(table.rows)

        found = jax.lax.map(products, (self.x, self.weights), batch_size=self.chunk)
        return found.reshape(self.num_rows, self.num_rows)

    def along(self, tree: PyTree) -> Float[Array, " row"]:
        def slope(x):
            def value(params):
                return self.function(params, x)

            return jnp.ravel(jax.jvp(value, (self.params,), (tree,))[1])

        slopes = jax.lax.map(slope, self.x, batch_size=self.chunk)
        if self.mean is not None:
            slopes = slopes - _dot(self.mean, tree)
        return (jnp.sqrt(self.weights)[:, None] * slopes).reshape(-1)

    def back(self, rows: Float[Array, " row"]) -> PyTree:
        each = jnp.sqrt(self.weights)[:, None] * rows.reshape(-1, self.outputs)
        pulled = self.pulled(each)
        if self.mean is None:
            return pulled
        total = each.sum()
        return jax.tree.map(lambda leaf, mean: leaf - total * mean, pulled, self.mean)

    def pulled(self, each: Float[Array, "row output"]) -> PyTree:
        """Sum over rows of derivatives, before centring, times a number each."""

        def part(x, each):
            def values(params):
                found = jax.vmap(self.function, (None, 0))(params, x)
                return found.reshape(each.shape)

            found, pull = jax.vjp(values, self.params)
            return pull(each.astype(found.dtype))[0]

        if self.chunk >= len(self.weights):
            return part(self.x, each)

        def add(i, total):
            (x, mine), new = cut_chunk(i, self.chunk, (self.x, each), counted)
            return jax.tree.map(jnp.add, total, part(x, mine * new[:, None]))

        counted = jnp.ones_like(self.weights)
        nothing = jax.tree.map(jnp.zeros_like, self.params)
        return jax.lax.fori_loop(0, self._num_chunks(), add, nothing)

    def held(self) -> RowOperator:
        return self._table(self.x, self.weights) if self.hold else self

    def _table(self, x, weights):
        roots = jnp.repeat(weights, self.outputs)
        return weighed(jacobian(self.function, self.params, x), self.mean, roots)

    @property
    def num_rows(self) -> int:
        return len(self.weights) * self.outputs

    def _num_chunks(self):
        return -(-len(self.weights) // self.chunk)

    def _summed(self, part):
        if self.chunk >= len(self.weights):
            return part(self._table(self.x, self.weights))

        def add(i, total):
            table = self._table(*cut_chunk(i, self.chunk, self.x, self.weights))
            return jax.tree.map(jnp.add, total, part(table))

        shapes = jax.eval_shape(lambda: part(self._table(self.x, self.weights)))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.fori_loop(0, self._num_chunks(), add, nothing)


def stream(
    function: Callable[[Params, State], Array],
    params: Params,
    x: PyTree,
    weights: Float[Array, " row"],
    *,
    centred: bool,
    scale: Scalar,
    chunk_size: int | None,
) -> Streamed:
    """Metric of the derivatives of a function of one row.

    Args:
        weights: weights of the rows of data, with sum 1.
        centred: whether the mean derivative is subtracted.
        scale: factor of the metric.
        chunk_size: number of rows of data at a time; None for a moderate amount of
            memory, and for A to be held in memory if it is small enough.
    """
    size = ravel_pytree(params)[0].size
    outputs = sum(row_shape(function, params, x)) or 1
    hold = chunk_size is None and len(weights) * outputs * size <= MOST_ENTRIES
    if chunk_size is None:
        chunk_size = max(1, CHUNK_ENTRIES // (size * outputs))
    check_count("chunk_size", chunk_size)
    chunk = min(chunk_size, len(weights))
    shares = weights * scale
    streamed = Streamed(function, params, x, shares, None, chunk, outputs, hold)
    if not centred:
        return streamed
    return dataclasses.replace(streamed, mean=streamed.pulled(weights[:, None]))


def jacobian(
    function: Callable[[Params, State], Array], params: Params, x: PyTree
) -> PyTree:
    """Derivatives of a function of one row, leaves `(row, *leaf)`.

    A function that returns a vector has as many rows for each row of data.
    """
    derive = jax.grad if row_shape(function, params, x) == () else jax.jacrev
    found = jax.vmap(derive(function), (None, 0))(params, x)

    def joined(leaf, like):
        return leaf.reshape(-1, *jnp.shape(like))

    return jax.tree.map(joined, found, params)


def row_shape(
    function: Callable[[Params, State], Array], params: Params, x: PyTree
) -> tuple[int, ...]:
    """Shape of the result of a function for one row."""
    row = jax.tree.map(lambda rows: rows[0], x)
    return jax.eval_shape(function, params, row).shape


def _dot(first, second) -> Scalar:
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), first, second)
    return reduce(jnp.add, jax.tree.leaves(products))
