"""Conditional computation under `vmap`, for those lanes of a batch that need it.

Under `vmap`, `cond` becomes a `select` that evaluates both branches in every lane. The
batching rule of `lazily` gathers the lanes that need a result into blocks of fixed
size, and a `while_loop` computes block after block: if a fifth of the lanes need a
result, the cost is about a fifth. With several devices, each device gathers its own
lanes, because `probjax.devices.sharded_vmap` maps over the lanes of one device.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from probjax.trees import zeros_of
from probjax.types import Array, PyTree

BLOCKS = 16  # The number of blocks into which a batch is divided.


def lazily(function: Callable[..., PyTree], needed: Array, *args: Any) -> PyTree:
    """Compute `function(*args)` in lanes where `needed` is True; others return zeros.

    `function` must not close over traced values: pass these in `args`.
    """
    function, args = _of_leaves(function, args)

    @jax.custom_batching.custom_vmap
    def call(needed, args):
        return _cond(needed, function, args)

    @call.def_vmap
    def batched(axis_size, in_batched, needed, args):
        needs_batch, args_batched = in_batched
        needed = needed if needs_batch else jnp.broadcast_to(needed, (axis_size,))
        out = _in_blocks(function, axis_size, needed, args, args_batched)
        return out, jax.tree.map(lambda _: True, out)

    return call(needed, args)


def if_any(function: Callable[..., PyTree], needed: Array, *args: Any) -> PyTree:
    """Compute `function(*args)` in all lanes if any lane needs it, else return zeros.

    Use it for results that lanes need at the same time. It may be nested in several
    `vmap`s. `function` must not close over traced values: pass these in `args`.
    """
    function, args = _of_leaves(function, args)

    @jax.custom_batching.custom_vmap
    def call(needed, args):
        return _cond(needed, function, args)

    @call.def_vmap
    def batched(axis_size, in_batched, needed, args):
        needs_batch, args_batched = in_batched
        axes = jax.tree.map(lambda flag: 0 if flag else None, args_batched)
        lanes = jax.vmap(function, in_axes=axes, axis_size=axis_size)
        out = if_any(lanes, needed.any() if needs_batch else needed, *args)
        return out, jax.tree.map(lambda _: True, out)

    return call(needed, args)


def _cond(needed, function, args):
    """Compute `function(*args)` if `needed`, else zeros of the same shapes."""
    shapes = jax.eval_shape(function, *args)
    return jax.lax.cond(needed, lambda: function(*args), lambda: zeros_of(shapes))


def _of_leaves(function, args):
    """Rewrite `function(*args)` as a function of the leaves of `args`.

    `custom_vmap` then passes one batching flag for each leaf, and no trees of flags.
    """
    leaves, form = jax.tree.flatten(args)
    return lambda *leaves: function(*form.unflatten(leaves)), tuple(leaves)


def _in_blocks(function, count, needed, args, batched):
    size = -(-count // BLOCKS)
    axes = jax.tree.map(lambda flag: 0 if flag else None, batched)
    # `order` lists the lanes in need. It is computed by counting, because a sort can
    # cost more than the work itself, and padded so that the last block is whole.
    rank = jnp.cumsum(needed)
    total = rank[-1]
    places = jnp.where(needed, rank - 1, count + size)
    order = jnp.full(count + size, count).at[places].set(jnp.arange(count), mode="drop")

    def gather(lanes):
        def one(leaf, flag):
            return leaf.at[lanes].get(mode="clip") if flag else leaf

        return jax.tree.map(one, args, batched)

    def work(carry):
        start, out = carry
        lanes = jax.lax.dynamic_slice_in_dim(order, start, size)
        # The padding of the last block is computed and not written.
        is_needed = start + jnp.arange(size) < total
        found = jax.vmap(function, in_axes=axes, axis_size=size)(*gather(lanes))
        places = jnp.where(is_needed, lanes, count)
        out = jax.tree.map(
            lambda whole, part: whole.at[places].set(part, mode="drop"), out, found
        )
        return start + size, out

    first = gather(jnp.arange(size))
    shapes = jax.eval_shape(
        lambda args: jax.vmap(function, in_axes=axes, axis_size=size)(*args), first
    )
    nothing = jax.tree.map(
        lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype), shapes
    )
    start = jnp.zeros((), total.dtype)
    return jax.lax.while_loop(lambda carry: carry[0] < total, work, (start, nothing))[1]
