"""The loss over many rows and its gradient, chunk by chunk.

Chunks bound memory, stay in a processor's cache, and keep float32 sums accurate: one
long sum of a million terms would lose what a gradient near its zero is made of. They
are exact: `reduce` is a weighted mean of a transform, so two chunks' values reduce to
the whole's by their weights, and the derivatives of that reduction are the shares of
the chunks' gradients.

A function of a mean over rows, as of how often a hidden unit is on, is no mean over
rows itself. Its gradient is one, once the mean m is known: that of f(m) is the mean of
f'(m) ds over rows' statistics s. So there are two passes, and chunks are exact again.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import is_concrete
from probjax.data.chunks import cut_chunk, num_parts
from probjax.data.rows import num_rows
from probjax.devices import num_devices
from probjax.interfaces import Objective, has_statistic
from probjax.trees import float_dtype, scaled, weighted_mean
from probjax.types import Array, Data, Params, PyTree, Scalar

CACHED_ROWS = 4096


def default_chunk_size(data: Data) -> int:
    """`CACHED_ROWS` on CPUs; all rows elsewhere, where sums are trees already.

    And where rows are spread over devices that are not known, which would have to send
    each other all of a chunk.
    """
    on_cpu = jax.default_backend() == "cpu"
    leaves = [leaf for leaf in jax.tree.leaves(data.x) if is_concrete(leaf)]
    spread = any(len(leaf.sharding.device_set) > 1 for leaf in leaves)
    known = num_devices() > 1 or not spread
    return CACHED_ROWS if on_cpu and known else num_rows(data)


def loss_over_rows(
    objective: Objective,
    params: Params,
    data: Data,
    context: PyTree,
    *,
    chunk_size: int | None,
) -> tuple[Scalar, Params]:
    """Compute the reduction of the rows, and its gradient in the parameters.

    `chunk_size` is the number of rows evaluated at a time; None for all.
    """
    chunk_size = chunk_size or num_rows(data)
    weights = data.weights
    if weights is None:
        weights = jnp.ones(num_rows(data), float_dtype(params))
    rows = (data.x, weights, context)
    found = _reduced(objective.reduce, objective.row, params, *rows, chunk_size)
    if not has_statistic(objective, params, data.x):
        return found
    beside = _of_mean(objective, params, data.x, weights, chunk_size)
    return jax.tree.map(jnp.add, found, beside)


def _reduced(reduce, row, params, x, weights, context, chunk_size):
    """The reduction of `row` over the rows, and its gradient."""

    def part(params, x, weights, context):
        values = jax.vmap(row, (None, 0, 0))(params, x, context)
        return reduce(values, weights)

    of_chunk = jax.value_and_grad(part)
    num_chunks, size = _cuts(len(weights), chunk_size)
    if num_chunks == 1:
        return of_chunk(params, x, weights, context)

    def add(i, total):
        (mine, rows), counted = cut_chunk(i, size, (x, context), weights)
        value, gradient = of_chunk(params, mine, counted, rows)
        return merged(reduce, total, (value, gradient, counted.sum()))

    total = no_rows(params, weights.dtype)
    return jax.lax.fori_loop(0, num_chunks, add, total)[:2]


def _of_mean(objective, params, x, weights, chunk_size):
    """`objective.of_mean` of the mean statistic, and its gradient."""

    def total(x, weights):
        return weights @ jax.vmap(objective.statistic, (None, 0))(params, x)

    def add(i, found):
        return found + total(*cut_chunk(i, size, x, weights))

    num_chunks, size = _cuts(len(weights), chunk_size)
    if num_chunks == 1:
        summed = total(x, weights)
    else:
        shape = jax.eval_shape(total, x, weights)
        nothing = jnp.zeros(shape.shape, shape.dtype)
        summed = jax.lax.fori_loop(0, num_chunks, add, nothing)
    value, slope = jax.value_and_grad(objective.of_mean)(summed / weights.sum())

    def row(params, x, context):
        return slope @ objective.statistic(params, x)

    _, gradient = _reduced(weighted_mean, row, params, x, weights, (), chunk_size)
    return value, gradient


def _cuts(count, chunk_size):
    """How many chunks of `chunk_size` on each device, and of what size: as even as can
    be, so that the last one repeats next to nothing.
    """
    parts = num_parts(count)
    num_chunks = -(-count // (chunk_size * parts))
    return num_chunks, -(-count // (num_chunks * parts)) * parts


Total = tuple[Scalar, Params, Scalar]


def no_rows(params: Params, kind: np.dtype) -> Total:
    """The value, the gradient and the weight of no rows, to which others are added."""
    nothing = jnp.zeros((), kind)
    return nothing, jax.tree.map(jnp.zeros_like, params), nothing


def merged(
    reduce: Callable[[Array, Array], Scalar], first: Total, second: Total
) -> Total:
    """Two chunks' value, gradient and weight as one: see `Objective.reduce`."""
    values, gradients, weights = zip(first, second, strict=True)
    weights = jnp.stack(weights)
    value, shares = jax.value_and_grad(reduce)(jnp.stack(values), weights)
    parts = zip(shares, gradients, strict=True)
    summed = jax.tree.map(jnp.add, *(scaled(share, part) for share, part in parts))
    return value, summed, weights.sum()
