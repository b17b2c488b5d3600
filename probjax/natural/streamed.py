"""Metric G = A'A whose matrix A need not be stored.

A row of A is the derivative of a function of one row of data, minus the mean derivative
if scores are centred, times the square root of the row's weight w:

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
from probjax.natural.operators import Groups, RowOperator, RowTable, weighted_table
from probjax.recipe import recipe, static
from probjax.types import Array, Float, Params, PyTree, Scalar, State

MAX_ENTRIES = 2**27
"""Largest number of entries of A that is held in memory."""
CHUNK_ENTRIES = 2**24
"""Largest number of entries of A that is computed at a time, by default."""


@recipe
class Streamed(RowOperator):
    """Metric G = A'A, with A computed in chunks of rows.

    A row of A is the derivative of `function(params, x)`, minus the mean derivative if
    there is one, times the square root of the row's weight.
    """

    function: Callable[[Params, State], Array] = static()
    params: Params
    x: PyTree
    weights: Float[Array, " row"]
    """Weights of the rows of data; their sum is the scale factor of the metric."""
    mean: PyTree | None
    """Mean derivative, which is subtracted; None if it is not."""
    chunk: int = static()
    """Number of rows of data at a time."""
    outputs: int = static()
    """Number of rows of A for each row of data."""
    fits_in_memory: bool = static()
    """Whether A may be held in memory."""

    def blocks(self, groups: Groups) -> tuple[Array, ...]:
        return self._summed(lambda table: table.blocks(groups))

    def diagonal(self) -> PyTree:
        return self._summed(RowTable.diagonal)

    def gram(self) -> Float[Array, "row row"]:
        def products(row):
            table = self._table(*jax.tree.map(lambda leaf: leaf[None], row))
            return jax.vmap(self.apply_rows)(table.rows)

        found = jax.lax.map(products, (self.x, self.weights), batch_size=self.chunk)
        return found.reshape(self.num_rows, self.num_rows)

    def apply_rows(self, tree: PyTree) -> Float[Array, " row"]:
        def slope(x):
            def value(params):
                return self.function(params, x)

            return jnp.ravel(jax.jvp(value, (self.params,), (tree,))[1])

        slopes = jax.lax.map(slope, self.x, batch_size=self.chunk)
        if self.mean is not None:
            slopes = slopes - _dot(self.mean, tree)
        return (jnp.sqrt(self.weights)[:, None] * slopes).reshape(-1)

    def apply_rows_transposed(self, rows: Float[Array, " row"]) -> PyTree:
        factors = jnp.sqrt(self.weights)[:, None] * rows.reshape(-1, self.outputs)
        summed = self.row_sum(factors)
        if self.mean is None:
            return summed
        total = factors.sum()
        return jax.tree.map(lambda leaf, mean: leaf - total * mean, summed, self.mean)

    def row_sum(self, factors: Float[Array, "row output"]) -> PyTree:
        """Sum the derivatives of all rows, before centring, each times its factor."""

        def chunk_sum(x, factors):
            def values(params):
                found = jax.vmap(self.function, (None, 0))(params, x)
                return found.reshape(factors.shape)

            found, pull_back = jax.vjp(values, self.params)
            return pull_back(factors.astype(found.dtype))[0]

        if self.chunk >= len(self.weights):
            return chunk_sum(self.x, factors)

        def add(i, total):
            (x, chosen), counts = cut_chunk(i, self.chunk, (self.x, factors), ones)
            return jax.tree.map(jnp.add, total, chunk_sum(x, chosen * counts[:, None]))

        ones = jnp.ones_like(self.weights)
        zeros = jax.tree.map(jnp.zeros_like, self.params)
        return jax.lax.fori_loop(0, self._num_chunks(), add, zeros)

    def row_operator(self) -> RowOperator:
        return self._table(self.x, self.weights) if self.fits_in_memory else self

    def _table(self, x, weights):
        scores = jacobian(self.function, self.params, x)
        return weighted_table(scores, self.mean, jnp.repeat(weights, self.outputs))

    @property
    def num_rows(self) -> int:
        return len(self.weights) * self.outputs

    def _num_chunks(self):
        return -(-len(self.weights) // self.chunk)

    def _summed(self, function):
        """Sum a function of a chunk of A over all chunks."""
        if self.chunk >= len(self.weights):
            return function(self._table(self.x, self.weights))

        def add(i, total):
            table = self._table(*cut_chunk(i, self.chunk, self.x, self.weights))
            return jax.tree.map(jnp.add, total, function(table))

        shapes = jax.eval_shape(lambda: function(self._table(self.x, self.weights)))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.fori_loop(0, self._num_chunks(), add, zeros)


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
    """Return the metric of the derivatives of a function of one row.

    Args:
        function: `function(params, x)` of one row, which returns a number or a vector.
        x: rows of data.
        weights: weights of the rows of data, with sum 1.
        centred: whether the mean derivative is subtracted.
        scale: scale factor of the metric.
        chunk_size: number of rows of data at a time. If None, as many as need moderate
            memory, and A is held in memory if it has at most `MAX_ENTRIES` entries.
    """
    size = ravel_pytree(params)[0].size
    outputs = sum(row_shape(function, params, x)) or 1
    num_entries = len(weights) * outputs * size
    fits_in_memory = chunk_size is None and num_entries <= MAX_ENTRIES
    if chunk_size is None:
        chunk_size = max(1, CHUNK_ENTRIES // (size * outputs))
    check_count("chunk_size", chunk_size)
    chunk = min(chunk_size, len(weights))
    streamed = Streamed(
        function, params, x, weights * scale, None, chunk, outputs, fits_in_memory
    )
    if not centred:
        return streamed
    return dataclasses.replace(streamed, mean=streamed.row_sum(weights[:, None]))


def jacobian(
    function: Callable[[Params, State], Array], params: Params, x: PyTree
) -> PyTree:
    """Compute the derivatives of a function of one row, with leaves `(row, *leaf)`.

    If the function returns a vector, each entry of the vector has its own row.
    """
    derive = jax.grad if row_shape(function, params, x) == () else jax.jacrev
    found = jax.vmap(derive(function), (None, 0))(params, x)

    def joined(leaf, like):
        return leaf.reshape(-1, *jnp.shape(like))

    return jax.tree.map(joined, found, params)


def row_shape(
    function: Callable[[Params, State], Array], params: Params, x: PyTree
) -> tuple[int, ...]:
    """Return the shape of the result of a function for one row."""
    row = jax.tree.map(lambda rows: rows[0], x)
    return jax.eval_shape(function, params, row).shape


def _dot(first, second) -> Scalar:
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), first, second)
    return reduce(jnp.add, jax.tree.leaves(products))
