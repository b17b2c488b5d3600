"""The states of a small discrete space, in blocks, and weighted sums over them.

    sum_x exp(-E(x)) f(x) = sum over blocks of sum_{x in block} exp(-E(x)) f(x)

State number i holds the digits of i in base `num_states`, site 0 the most significant.
A block shares its leading digits. Only running sums are carried from block to block,
rescaled by the largest weight so far; in reverse mode every block is computed again, so
memory stays bounded there too.
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
    instead: str = "exact.lattice sums over lattices, ais estimates log Z of any model",
) -> int:
    """The number of states, or a `ValueError` if they are too many to enumerate."""
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
    """The energy of every row of `x`."""
    values = jax.vmap(energy, in_axes=(None, 0))(params, x)
    if values.shape != x.shape[:1]:
        raise ValueError(
            f"energy must return a scalar for one state, got shape {values.shape[1:]}"
        )
    return values.astype(jnp.promote_types(values.dtype, x.dtype))


def digits(index: Array, size: int, num_states: int, dtype: Any) -> Array:
    """The states of the given numbers, `(number, size)`."""
    places = num_states ** np.arange(size)[::-1]
    return (index[:, None] // places[None] % num_states).astype(dtype)


def blocks(
    size: int, num_states: int, dtype: Any
) -> tuple[Callable[[Array], Array], Array]:
    """The states as a function of a block's leading digits, and those of every block.

    Digits are divided out here, once: in the loop over blocks the divisions would be
    fused into, and repeated by, whatever reads the states.
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
    """The largest -E, and the sums of w = exp(-E - largest) and of `reduce(w, x)`.

    The largest enters as a constant: no result depends on it, and the derivatives of
    the sums alone are exact and stay finite in blocks of states that have no
    probability.
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
