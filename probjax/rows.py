"""The loss over many rows and its gradient, chunk by chunk.

Chunks bound memory, stay in a processor's cache, and keep float32 sums accurate: one
long sum of a million terms would lose what a gradient near its zero is made of. They
are exact: `reduce` is a weighted mean of a transform, so two chunks' values reduce to
the whole's by their weights, and the derivatives of that reduction are the shares of
the chunks' gradients.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from probjax.data import num_rows
from probjax.types import (
    Array,
    Data,
    Float,
    Objective,
    Params,
    PyTree,
    Scalar,
    float_dtype,
    is_concrete,
)

CACHED_ROWS = 4096


def default_chunk_size(data: Data) -> int:
    """`CACHED_ROWS` on one CPU; all rows elsewhere, where sums are trees already."""
    on_cpu = jax.default_backend() == "cpu"
    leaves = [leaf for leaf in jax.tree.leaves(data.x) if is_concrete(leaf)]
    spread = any(len(leaf.sharding.device_set) > 1 for leaf in leaves)
    return CACHED_ROWS if on_cpu and not spread else num_rows(data)


def loss_over_rows(
    objective: Objective,
    params: Params,
    data: Data,
    context: PyTree,
    *,
    chunk_size: int,
) -> tuple[Scalar, Params]:
    """`objective.reduce` over the rows, and its gradient in the parameters."""
    count, weights = num_rows(data), data.weights
    if weights is None:
        weights = jnp.ones(count, float_dtype(params))

    def part(params, x, weights, context):
        values = jax.vmap(objective.row, (None, 0, 0))(params, x, context)
        return objective.reduce(values, weights)

    of_chunk = jax.value_and_grad(part)
    num_chunks = -(-count // chunk_size)
    # As even as they can be: the last one then repeats next to nothing.
    size = -(-count // num_chunks)
    if num_chunks == 1:
        return of_chunk(params, data.x, weights, context)

    def add(i, total):
        (x, rows), mine = cut_chunk(i, size, (data.x, context), weights)
        value, gradient = of_chunk(params, x, mine, rows)
        return merged(objective.reduce, total, (value, gradient, mine.sum()))

    total = no_rows(params, weights.dtype)
    return jax.lax.fori_loop(0, num_chunks, add, total)[:2]


Total = tuple[Scalar, Params, Scalar]


def no_rows(params: Params, kind: np.dtype) -> Total:
    """The value, the gradient and the weight of no rows, to which others are added."""
    nothing = jnp.zeros((), kind)
    return nothing, jax.tree.map(jnp.zeros_like, params), nothing


def cut_chunk(
    i: Array, size: int, rows: PyTree, weights: Float[Array, " row"]
) -> tuple[PyTree, Float[Array, " chunk"]]:
    """The i-th `size` of the rows, and their weights.

    The last chunk reaches back over rows already counted, which then weigh nothing.
    """
    start = jnp.minimum(i * size, len(weights) - size)
    cut = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=size)
    mine = jnp.where(start + jnp.arange(size) >= i * size, cut(weights), 0)
    return jax.tree.map(cut, rows), mine


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


def scaled(scale: Scalar, tree: PyTree) -> PyTree:
    """`scale` times every leaf."""
    return jax.tree.map(lambda leaf: scale * leaf, tree)
