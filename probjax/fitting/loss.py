"""The loss over many rows and its gradient, computed in chunks of rows.

Chunks bound memory, fit into a processor's cache, and keep float32 sums accurate: in
one long sum of a million terms, the rounding error would exceed a gradient near zero.
`probjax.fitting.chunk_size` chooses their size. Chunks are exact. `reduce` is a
weighted mean of a transform of the rows' values, so that the values of two chunks
reduce, by their weights, to the value of all rows; the derivatives of this reduction
are the factors of the chunks' gradients.

A function f of a mean m over rows, such as the mean activity of a hidden unit, is not
itself a mean over rows. Its gradient is: with the statistic s of each row, the gradient
of f(m) is the mean over rows of f'(m) ds. A first pass computes m, a second pass the
gradient, and chunks are exact again.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from probjax.data.chunks import cut_chunk, num_parts
from probjax.data.rows import num_rows
from probjax.interfaces import Objective, has_statistic
from probjax.trees import float_dtype, scaled, weighted_mean
from probjax.types import Array, Data, Params, PyTree, Scalar


def loss_over_rows(
    objective: Objective,
    params: Params,
    data: Data,
    context: PyTree,
    *,
    chunk_size: int | None,
) -> tuple[Scalar, Params]:
    """Compute the reduction over rows, and its gradient in the parameters.

    Args:
        context: part of the objective's context that belongs to rows.
        chunk_size: number of rows evaluated at a time; None for all.
    """
    chunk_size = chunk_size or num_rows(data)
    weights = data.weights
    if weights is None:
        weights = jnp.ones(num_rows(data), float_dtype(params))
    rows = (data.x, weights, context)
    total = _reduced(objective.reduce, objective.row, params, *rows, chunk_size)
    if not has_statistic(objective, params, data.x):
        return total
    added = _loss_of_mean(objective, params, data.x, weights, chunk_size)
    return jax.tree.map(jnp.add, total, added)


def _reduced(reduce, row, params, x, weights, context, chunk_size):
    """Compute the reduction of `row` over all rows, and its gradient."""

    def chunk_loss(params, x, weights, context):
        values = jax.vmap(row, (None, 0, 0))(params, x, context)
        return reduce(values, weights)

    evaluate = jax.value_and_grad(chunk_loss)
    num_chunks, size = _chunks(len(weights), chunk_size)
    if num_chunks == 1:
        return evaluate(params, x, weights, context)

    def add(i, total):
        (rows, rows_context), counted = cut_chunk(i, size, (x, context), weights)
        value, gradient = evaluate(params, rows, counted, rows_context)
        return merged(reduce, total, (value, gradient, counted.sum()))

    # Rounding errors grow with the number of totals that are merged in turn. So chunks
    # are merged in groups, as many as there are chunks in each.
    group, nothing = math.isqrt(num_chunks), empty_total(params, weights.dtype)

    def add_group(number, total):
        first = number * group
        last = jnp.minimum(first + group, num_chunks)
        return merged(reduce, total, jax.lax.fori_loop(first, last, add, nothing))

    return jax.lax.fori_loop(0, -(-num_chunks // group), add_group, nothing)[:2]


def value_over_rows(
    objective: Objective,
    params: Params,
    data: Data,
    context: PyTree,
    *,
    chunk_size: int,
) -> Scalar:
    """Compute the reduction over rows, whose derivatives need the memory of one chunk.

    With several chunks their intermediate values are computed again for a derivative.
    Arguments are those of `loss_over_rows`.
    """
    weights = data.weights
    if weights is None:
        weights = jnp.ones(num_rows(data), float_dtype(params))

    def reduced(params, rows, weights):
        x, rows_context = rows
        values = jax.vmap(objective.row, (None, 0, 0))(params, x, rows_context)
        return objective.reduce(values, weights)

    args = chunk_size, params, (data.x, context), weights
    value = objective.reduce(*_over_chunks(reduced, *args))
    if not has_statistic(objective, params, data.x):
        return value

    def summed(params, rows, weights):
        return weights @ jax.vmap(objective.statistic, (None, 0))(params, rows[0])

    sums, counted = _over_chunks(summed, *args)
    return value + objective.of_mean(sums.sum(0) / counted.sum())


def _over_chunks(function, chunk_size, params, rows, weights):
    """Return the values of a function of chunks of rows, and the chunks' weights.

    They are reduced at once, because rounding errors would grow if they were joined one
    after the other.
    """
    num_chunks, size = _chunks(len(weights), chunk_size)
    if num_chunks == 1:
        return function(params, rows, weights)[None], weights.sum()[None]

    @jax.checkpoint
    def of_chunk(params, i):
        part, counted = cut_chunk(i, size, rows, weights)
        return function(params, part, counted), counted.sum()

    return jax.lax.map(partial(of_chunk, params), jnp.arange(num_chunks))


def _loss_of_mean(objective, params, x, weights, chunk_size):
    """Compute `objective.of_mean` of the mean statistic, and its gradient."""

    def weighted_sum(x, weights):
        return weights @ jax.vmap(objective.statistic, (None, 0))(params, x)

    def add(i, total):
        return total + weighted_sum(*cut_chunk(i, size, x, weights))

    num_chunks, size = _chunks(len(weights), chunk_size)
    if num_chunks == 1:
        summed = weighted_sum(x, weights)
    else:
        shape = jax.eval_shape(weighted_sum, x, weights)
        zeros = jnp.zeros(shape.shape, shape.dtype)
        summed = jax.lax.fori_loop(0, num_chunks, add, zeros)
    value, slope = jax.value_and_grad(objective.of_mean)(summed / weights.sum())

    def row(params, x, context):
        return slope @ objective.statistic(params, x)

    _, gradient = _reduced(weighted_mean, row, params, x, weights, (), chunk_size)
    return value, gradient


def _chunks(count, chunk_size):
    """Return the number of chunks and their size, at most `chunk_size` on each device.

    The chunks are as even as possible, because the last one repeats rows to be as long
    as the others.
    """
    parts = num_parts(count)
    num_chunks = -(-count // (chunk_size * parts))
    return num_chunks, -(-count // (num_chunks * parts)) * parts


Total = tuple[Scalar, Params, Scalar]
"""Value, gradient and weight of some rows."""


def empty_total(params: Params, dtype: np.dtype) -> Total:
    """Return the total of no rows, to which chunks are added.

    Its arrays are different, so that each can be overwritten.
    """
    value, weight = jnp.zeros((), dtype), jnp.zeros((), dtype)
    return value, jax.tree.map(jnp.zeros_like, params), weight


def merged(
    reduce: Callable[[Array, Array], Scalar], first: Total, second: Total
) -> Total:
    """Combine the totals of two chunks; see `Objective.reduce`."""
    values, gradients, weights = zip(first, second, strict=True)
    weights = jnp.stack(weights)
    value, factors = jax.value_and_grad(reduce)(jnp.stack(values), weights)
    parts = [scaled(*pair) for pair in zip(factors, gradients, strict=True)]
    return value, jax.tree.map(jnp.add, *parts), weights.sum()
