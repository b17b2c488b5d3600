"""Gaps of energies without closed forms, from one energy for every neighbour."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.types import Array, Energy, Float, Params, Scalar, State

MAX_VECTORISED = 64


def flip_gap(energy: Energy, params: Params) -> Callable[[State, Array], Scalar]:
    """Return a function of `(x, n)`: E(x) - E(x with bit n flipped)."""

    def gap(x, bit):
        flat, unravel = ravel_pytree(x)
        flipped = unravel(flat.at[bit].set(1 - flat[bit]))
        return energy(params, x) - energy(params, flipped)

    return gap


def flip_gaps(energy: Energy, params: Params, x: State) -> Float[Array, " bit"]:
    """Compute E(x) - E(x with bit n flipped) for every bit n."""
    flat, unravel = ravel_pytree(x)

    def flipped(bit):
        return energy(params, unravel(flat.at[bit].set(1 - flat[bit])))

    return energy(params, x) - map_range(flipped, flat.size)


def mirror_gap(energy: Energy, params: Params, x: State) -> Scalar:
    """Compute E(x) - E(1 - x)."""
    return energy(params, x) - energy(params, jax.tree.map(lambda bits: 1 - bits, x))


def site_gap(
    energy: Energy, params: Params, *, num_states: int
) -> Callable[[State, Array], Array]:
    """Return a function of `(x, n)`: E(x) - E(x with site n set to a), every a."""

    def gap(x, site):
        flat, unravel = ravel_pytree(x)

        def changed(letter):
            return energy(params, unravel(flat.at[site].set(letter)))

        letters = jnp.arange(num_states, dtype=flat.dtype)
        return energy(params, x) - jax.vmap(changed)(letters)

    return gap


def site_gaps(
    energy: Energy, params: Params, x: State, *, num_states: int
) -> Float[Array, "site letter"]:
    """Compute E(x) - E(x with site n set to a) for every site n and letter a."""
    flat, unravel = ravel_pytree(x)

    def changed(number):
        site, letter = number // num_states, number % num_states
        return energy(params, unravel(flat.at[site].set(letter.astype(flat.dtype))))

    others = map_range(changed, flat.size * num_states)
    return energy(params, x) - others.reshape(flat.size, num_states)


def map_range(function: Callable[[Array], Array], count: int) -> Array:
    """Compute `function` of 0 to `count` - 1.

    A small count is vectorised. A large count is computed in batches of 8 and
    recomputed for the gradient, because the memory of one batch of all neighbours would
    grow with the square of the size of a state.
    """
    if count <= MAX_VECTORISED:
        return jax.vmap(function)(jnp.arange(count))
    return jax.lax.map(jax.checkpoint(function), jnp.arange(count), batch_size=8)
