"""Blocks of the states of a small discrete space, and weighted sums over all blocks.

    sum_x exp(-E(x)) f(x) = sum over blocks of sum_{x in block} exp(-E(x)) f(x)

State number i consists of the digits of i in base `num_states`, with site 0 the most
significant. The states of a block have the same leading digits. Running sums, rescaled
by the largest weight so far, are carried from block to block. Reverse-mode
differentiation computes every block again, so its memory is bounded, too.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probjax.trees import float_dtype
from probjax.types import Array, Energy, Float, Params, PyTree, Scalar

LIMIT = 2**22
BLOCK = 2**12


def count_states(
    size: int,
    num_states: int,
    *,
    limit: int = LIMIT,
    instead: str = "try exact.lattice for lattices, or ais to estimate log Z",
) -> int:
    """Return the number of states; raise if there are too many to enumerate.

    Args:
        limit: largest number of states.
        instead: end of the message, such as the reason or another method.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if num_states < 2:
        raise ValueError(f"num_states must be at least 2, got {num_states}")
    if size > math.log2(limit) or num_states**size > limit:
        magnitude = size * math.log10(num_states)
        raise ValueError(
            f"num_states**size must be at most 2**{math.log2(limit):.0f} = {limit} "
            f"states, got {num_states}**{size} (about 10**{magnitude:.1f}); {instead}"
        )
    return num_states**size


def energies(
    energy: Energy, params: Params, x: Float[Array, "state size"]
) -> Float[Array, " state"]:
    """Compute the energy of every row of `x`."""
    values = jax.vmap(energy, in_axes=(None, 0))(params, x)
    if values.shape != x.shape[:1]:
        raise ValueError(
            f"energy must return a scalar for one state, got shape {values.shape[1:]}"
        )
    return values.astype(jnp.promote_types(values.dtype, x.dtype))


def digits(index: Array, size: int, num_states: int, dtype: Any) -> Array:
    """Return the states with the given numbers, `(number, size)`."""
    places = num_states ** np.arange(size)[::-1]
    return (index[:, None] // places[None] % num_states).astype(dtype)


def blocks(
    size: int, num_states: int, dtype: Any
) -> tuple[Callable[[Array], Array], Array]:
    """Return a function from leading digits to a block of states, and all its inputs.

    The inputs are the leading digits of all blocks, `(block, digit)`. All digits are
    computed here, once. In the loop over blocks, XLA would fuse the divisions into the
    code that reads the states and repeat them there.
    """
    tail = min(size, max(1, int(math.log(BLOCK, num_states))))
    tails = digits(jnp.arange(num_states**tail), tail, num_states, dtype)
    heads = jnp.arange(num_states ** (size - tail))
    heads = digits(heads, size - tail, num_states, dtype)

    def block(head):
        repeated = jnp.broadcast_to(head, (len(tails), len(head)))
        return jnp.concatenate([repeated, tails], axis=1)

    return block, heads


def weighted_sums(
    energy: Energy,
    reduce: Callable[[Array, Array], PyTree],
    params: Params,
    size: int,
    num_states: int,
) -> tuple[Scalar, Scalar, PyTree]:
    """Return the largest -E, and the sums of w = exp(-E - largest) and `reduce(w, x)`.

    Derivatives treat the largest -E as a constant. They are exact, because log Z and
    ratios of the sums do not depend on it, and they remain finite in blocks whose
    states all have probability 0.

    Args:
        reduce: function of the weights `(state,)` and states `(state, site)` of a
            block.
    """
    block, heads = blocks(size, num_states, float_dtype(params))

    @jax.checkpoint
    def add(carry, head):
        before, weight_sum, sums = carry
        x = block(head)
        log_weight = -energies(energy, params, x)
        largest = jax.lax.stop_gradient(jnp.maximum(before, log_weight.max()))
        shift = jnp.where(largest > -jnp.inf, largest, 0.0)
        weight, kept = jnp.exp(log_weight - shift), jnp.exp(before - shift)
        more = reduce(weight, x)
        sums = jax.tree.map(lambda old, new: kept * old + new, sums, more)
        return (largest, kept * weight_sum + weight.sum(), sums), None

    x = jax.eval_shape(block, heads[0])
    weight = jax.eval_shape(partial(energies, energy), params, x)
    sums = jax.eval_shape(reduce, weight, x)
    sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums)
    zero = jnp.zeros((), weight.dtype)
    return jax.lax.scan(add, (zero - jnp.inf, zero, sums), heads)[0]
