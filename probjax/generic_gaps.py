"""Gaps of energies without closed forms.

Exact gaps take one energy for every neighbour, gaps of first order a single gradient.
"""

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


def gradient_gaps(
    energy: Energy, params: Params, x: State
) -> tuple[Scalar, Float[Array, " bit"]]:
    """Compute an energy and its gaps of bits of first order, (2 x_n - 1) dE/dx_n.

    They are exact if the energy is linear in every single bit.

    >>> def energy(bias, x):
    ...     return bias @ x + x[0] * x[1]
    >>> bias, x = jnp.array([1.0, 3.0]), jnp.array([0.0, 1.0])
    >>> value, gaps = gradient_gaps(energy, bias, x)
    >>> float(value), gaps.tolist()
    (3.0, [-2.0, 3.0])
    """
    value, gradient = jax.value_and_grad(energy, argnums=1)(params, x)
    return value, (2 * ravel_pytree(x)[0] - 1) * ravel_pytree(gradient)[0]


def one_hot_gaps(
    energy: Energy, params: Params, x: Float[Array, " site"], num_states: int
) -> tuple[Scalar, Float[Array, "site letter"]]:
    """Compute an energy of one-hot states, and its gaps of letters of first order.

    Args:
        energy: function of `params` and of a one-hot encoding `(site, letter)`.
        x: letters of the sites.

    A network reads letters in one-hot form, and proposes by its gradient:

    >>> from probjax.potential import closed_form
    >>> def network(weights, hot):
    ...     return jnp.sum(weights * hot)
    >>> def gaps(weights, x):
    ...     return one_hot_gaps(network, weights, x, 3)
    >>> @closed_form(proposal_gaps=gaps)
    ... def energy(weights, x):
    ...     return network(weights, x[:, None] == jnp.arange(3)[None])
    >>> gaps(jnp.array([[1.0, 2.0, 5.0]]), jnp.array([1.0]))[1].tolist()
    [[1.0, 0.0, -3.0]]
    """
    columns = jnp.arange(num_states, dtype=x.dtype)
    hot = (x[:, None] == columns[None]).astype(x.dtype)
    value, slope = jax.value_and_grad(energy, argnums=1)(params, hot)
    return value, jnp.sum(slope * hot, 1, keepdims=True) - slope


def map_range(function: Callable[[Array], Array], count: int) -> Array:
    """Compute `function` of 0 to `count` - 1.

    A small count is vectorised. A large count is computed in batches of 8 and
    recomputed for the gradient, because the memory of one batch of all neighbours would
    grow with the square of the size of a state.
    """
    if count <= MAX_VECTORISED:
        return jax.vmap(function)(jnp.arange(count))
    return jax.lax.map(jax.checkpoint(function), jnp.arange(count), batch_size=8)
