"""Parts that restricted Boltzmann machines with bits or real visible units share.

Given one layer, the units of the other layer are independent. So hidden units are drawn
as independent bits, and block Gibbs sampling redraws a whole layer at once.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from probjax import random
from probjax.checks import check_count
from probjax.models.checks import check_size
from probjax.types import Array, Float, Info, Params, PRNGKeyArray, Scalar


def initial_weights(
    key: PRNGKeyArray, num_visible: int, num_hidden: int, scale: float
) -> Float[Array, "visible hidden"]:
    """Draw independent normal weights of standard deviation `scale`."""
    check_count("num_visible", num_visible)
    check_count("num_hidden", num_hidden)
    return scale * jax.random.normal(key, (num_visible, num_hidden))


def draw_bits(
    key: PRNGKeyArray,
    chances: Float[Array, " unit"],
    dtype: Any = None,
    *,
    stream: int = 0,
) -> Float[Array, " unit"]:
    """Draw independent bits.

    Args:
        chances: probability that each bit is 1.
        dtype: floating dtype of the random numbers and of the bits; that of `chances`
            if None.
        stream: stream of the key, as in `probjax.random.uniform`.
    """
    dtype = chances.dtype if dtype is None else dtype
    levels = random.uniform(key, chances.shape, dtype, stream=stream)
    return (levels < chances).astype(dtype)


def accept_block(
    uniform: Callable[[], Scalar],
    weight: Scalar,
    rise: Callable[[], Scalar],
    proposed: Any,
    state: Any,
    dtype: Any,
) -> tuple[Any, Info]:
    """Accept or reject a block Gibbs update at weight w of the energy.

    Redrawing both layers is reversible for the machine itself, where w = 1, and the
    result is always accepted. At another weight the update is a Metropolis-Hastings
    proposal, accepted with probability min(1, exp((1 - w) (E(x') - E(x)))).

    Args:
        uniform: function that draws a uniform number; not evaluated if w is 1.
        weight: w.
        rise: function that computes E(x') - E(x); not evaluated if w is 1.
        proposed: state of the sampler at x'.
        state: state of the sampler at x.
        dtype: floating dtype of the acceptance in the report.
    """

    def is_accepted():
        return jnp.log(uniform()) <= (1 - weight) * rise()

    accept = jax.lax.cond(weight == 1, lambda: jnp.ones((), bool), is_accepted)
    state = jax.tree.map(lambda new, old: jnp.where(accept, new, old), proposed, state)
    return state, Info(accept.astype(dtype))


def check_visible(params: Params, x: Float[Array, " visible"]) -> None:
    """Raise if `x` does not have the visible units of `params`."""
    check_size("x", x, len(params.visible_bias), "visible units")


def check_hidden(params: Params, hidden: Float[Array, " hidden"]) -> None:
    """Raise if `hidden` does not have the hidden units of `params`."""
    check_size("hidden", hidden, len(params.hidden_bias), "hidden units")
