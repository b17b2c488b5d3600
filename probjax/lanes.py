"""Work that only some lanes of a batch need, done for those alone.

Under `vmap` a `cond` evaluates both branches for everyone. `lazily` says what a single
state needs, and its batching rule gathers the lanes that do into blocks of fixed size,
which one `while_loop` works off: with a fifth of the lanes in need it costs about a
fifth. Lanes that drivers spread over devices are gathered on each by itself, as
`probjax.devices.each` maps over those of one device.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from probjax.types import Array, PyTree

BLOCKS = 16


def lazily(function: Callable[..., PyTree], needed: Array, *args: Any) -> PyTree:
    """`function(*args)` where it is `needed`, and zeros where it is not.

    `function` must not close over traced values: all it needs goes through `args`.
    """
    function, args = _of_leaves(function, args)

    @jax.custom_batching.custom_vmap
    def call(needed, args):
        return jax.lax.cond(needed, lambda: function(*args), lambda: _zeros(args))

    def _zeros(args):
        shapes = jax.eval_shape(function, *args)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    @call.def_vmap
    def batched(axis_size, in_batched, needed, args):
        needs_batch, args_batched = in_batched
        needed = needed if needs_batch else jnp.broadcast_to(needed, (axis_size,))
        out = _in_blocks(function, axis_size, needed, args, args_batched)
        return out, jax.tree.map(lambda _: True, out)

    return call(needed, args)


def together(function: Callable[..., PyTree], needed: Array, *args: Any) -> PyTree:
    """`function(*args)` in all lanes if any of them needs it, else zeros in all.

    For work that lanes need at the same time, whatever number of `vmap`s they are in.
    `function` must not close over traced values: all it needs goes through `args`.
    """
    function, args = _of_leaves(function, args)

    @jax.custom_batching.custom_vmap
    def call(needed, args):
        shapes = jax.eval_shape(function, *args)

        def nothing():
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        return jax.lax.cond(needed, lambda: function(*args), nothing)

    @call.def_vmap
    def batched(axis_size, in_batched, needed, args):
        needs_batch, args_batched = in_batched
        axes = jax.tree.map(lambda flag: 0 if flag else None, args_batched)
        lanes = jax.vmap(function, in_axes=axes, axis_size=axis_size)
        out = together(lanes, needed.any() if needs_batch else needed, *args)
        return out, jax.tree.map(lambda _: True, out)

    return call(needed, args)


def _of_leaves(function, args):
    """The same as a function of leaves: of trees, batching makes trees of flags."""
    leaves, form = jax.tree.flatten(args)
    return lambda *leaves: function(*form.unflatten(leaves)), tuple(leaves)


def _in_blocks(function, count, needed, args, batched):
    size = -(-count // BLOCKS)
    axes = jax.tree.map(lambda flag: 0 if flag else None, batched)
    # Those in need, by counting: a sort costs more than many a leap. Padded, so that
    # the last block is whole.
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
        # What is not in need fills up the last block, and is not written.
        wanted = start + jnp.arange(size) < total
        found = jax.vmap(function, in_axes=axes, axis_size=size)(*gather(lanes))
        places = jnp.where(wanted, lanes, count)
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
    busy = lambda carry: carry[0] < total  # noqa: E731
    return jax.lax.while_loop(busy, work, (jnp.zeros((), total.dtype), nothing))[1]
