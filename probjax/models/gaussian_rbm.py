"""The restricted Boltzmann machine of real visible units, its hidden units summed out.

    E(x) = sum_i (x_i - b_i)^2 / (2 s_i^2) - sum_h softplus(f_h),
    f = W'(x / s^2) + c

Given hidden bits the visible units are normal and independent, x ~ N(b + W h, s^2), and
given those the bits are, of log odds f: the model is a mixture of 2^h normals of one
diagonal covariance. With the scales as logarithms it has a finite Z everywhere.

Reference: Cho, Ilin and Raiko, "Improved learning of Gaussian-Bernoulli restricted
Boltzmann machines", ICANN (2011).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.bases.fits import fit_gaussian
from probjax.checks import check_count
from probjax.exact import enumeration
from probjax.interfaces import Sampler
from probjax.potential import Potential
from probjax.recipe import recipe
from probjax.types import (
    Array,
    ArrayLike,
    Data,
    Domain,
    Float,
    Info,
    PRNGKeyArray,
    Scalar,
    State,
)


class Params(NamedTuple):
    """Weights between the layers, a bias for every unit, and scales of visible ones.

    >>> bias, nothing = jnp.array([1.0, 2.0]), jnp.zeros(2)
    >>> params = Params(jnp.ones((2, 1)), bias, jnp.zeros(1), log_scale=nothing)
    >>> visible_means(params, jnp.array([1.0])).tolist()
    [2.0, 3.0]
    """

    weight: Float[Array, "visible hidden"]
    """What a hidden unit that is on adds to the means of the visible ones."""
    visible_bias: Float[Array, " visible"]
    """Their means where no hidden unit is on."""
    hidden_bias: Float[Array, " hidden"]
    log_scale: Float[Array, " visible"]
    """log s, of their standard deviations given the hidden units."""


def init(
    key: PRNGKeyArray,
    num_visible: int,
    num_hidden: int,
    *,
    scale: float = 0.01,
    data: ArrayLike | Data | None = None,
) -> Params:
    """Independent normal weights of standard deviation `scale`; no biases, s = 1.

    Args:
        data: rows whose means and standard deviations are those of the visible units
            then: the most likely machine without weights.

    >>> rows = jnp.array([[1.0, 5.0], [3.0, 5.5], [1.0, 6.0], [3.0, 5.5]])
    >>> init(jax.random.key(0), 2, 3, data=rows).visible_bias.tolist()
    [2.0, 5.5]
    """
    check_count("num_visible", num_visible)
    check_count("num_hidden", num_hidden)
    weight = scale * jax.random.normal(key, (num_visible, num_hidden))
    zeros = jnp.zeros(num_visible)
    params = Params(weight, zeros, jnp.zeros(num_hidden), zeros)
    if data is None:
        return params
    base = fit_gaussian(data)
    mean, scales = (jnp.asarray(part, weight.dtype) for part in (base.mean, base.scale))
    _check_visible(params, mean)
    return params._replace(visible_bias=mean, log_scale=jnp.log(scales))


def energy(params: Params, x: Float[Array, " visible"]) -> Scalar:
    """The energy of one visible state; others call it the free energy.

    >>> params = Params(jnp.zeros((2, 1)), jnp.zeros(2), jnp.zeros(1), jnp.zeros(2))
    >>> round(float(energy(params, jnp.array([3.0, 1.0]))), 4)  # 5 - log 2
    4.3069
    """
    field = hidden_log_odds(params, x)
    away = (x - params.visible_bias) * jnp.exp(-params.log_scale)
    return jnp.sum(away**2) / 2 - jnp.sum(jax.nn.softplus(field))


def hidden_log_odds(
    params: Params, x: Float[Array, " visible"]
) -> Float[Array, " hidden"]:
    """W'(x / s^2) + c: the log odds of each hidden unit, given the visible ones.

    >>> weight, nothing = jnp.array([[1.0], [2.0]]), jnp.zeros(2)
    >>> params = Params(weight, nothing, jnp.array([-3.0]), nothing)
    >>> hidden_log_odds(params, jnp.array([1.0, 0.5])).tolist()
    [-1.0]
    """
    _check_visible(params, x)
    return (x * jnp.exp(-2 * params.log_scale)) @ params.weight + params.hidden_bias


def hidden_means(
    params: Params, x: Float[Array, " visible"]
) -> Float[Array, " hidden"]:
    """The probability that each hidden unit is on, given the visible ones.

    >>> weight, nothing = jnp.array([[1.0], [2.0]]), jnp.zeros(2)
    >>> params = Params(weight, nothing, jnp.array([-3.0]), nothing)
    >>> hidden_means(params, jnp.array([1.0, 1.0])).tolist()
    [0.5]
    """
    return jax.nn.sigmoid(hidden_log_odds(params, x))


def visible_means(
    params: Params, hidden: Float[Array, " hidden"]
) -> Float[Array, " visible"]:
    """W h + b: the means of the visible units, given the hidden ones.

    >>> weight, bias = jnp.array([[1.0], [2.0]]), jnp.array([0.5, 0.5])
    >>> params = Params(weight, bias, jnp.zeros(1), jnp.zeros(2))
    >>> visible_means(params, jnp.array([1.0])).tolist()
    [1.5, 2.5]
    """
    if hidden.shape != params.hidden_bias.shape:
        raise ValueError(
            f"hidden must have the {len(params.hidden_bias)} hidden units of params, "
            f"got shape {hidden.shape}"
        )
    return params.weight @ hidden + params.visible_bias


def sample_hidden(
    key: PRNGKeyArray, params: Params, x: Float[Array, " visible"]
) -> Float[Array, " hidden"]:
    """Hidden units drawn given the visible ones.

    >>> bias, nothing = jnp.array([50.0, -50.0]), jnp.zeros(2)
    >>> params = Params(jnp.zeros((2, 2)), nothing, bias, nothing)
    >>> sample_hidden(jax.random.key(0), params, jnp.zeros(2)).tolist()
    [1.0, 0.0]
    """
    chances = hidden_means(params, x)
    levels = random.uniform(key, chances.shape, chances.dtype)
    return (levels < chances).astype(chances.dtype)


def sample_visible(
    key: PRNGKeyArray, params: Params, hidden: Float[Array, " hidden"]
) -> Float[Array, " visible"]:
    """Visible units drawn given the hidden ones.

    >>> bias, tiny = jnp.array([1.0, 3.0]), jnp.full(2, -20.0)
    >>> params = Params(jnp.zeros((2, 2)), bias, jnp.zeros(2), log_scale=tiny)
    >>> sample_visible(jax.random.key(0), params, jnp.zeros(2)).round().tolist()
    [1.0, 3.0]
    """
    means = visible_means(params, hidden)
    noise = random.normal(key, means.shape, means.dtype)
    return means + jnp.exp(params.log_scale) * noise


def reconstruct(
    params: Params, x: Float[Array, " visible"]
) -> Float[Array, " visible"]:
    """What the means of hidden units make of a state: up and down once, as means.

    >>> weight, nothing = jnp.array([[1.0], [2.0]]), jnp.zeros(2)
    >>> params = Params(weight, nothing, jnp.array([-3.0]), nothing)
    >>> reconstruct(params, jnp.array([1.0, 1.0])).tolist()
    [0.5, 1.0]
    """
    return visible_means(params, hidden_means(params, x))


def hidden_energy(params: Params, hidden: Float[Array, " hidden"]) -> Scalar:
    """The energy of hidden bits, visible units integrated out: of the same Z.

    -c'h - sum_i (((b + W h)_i^2 - b_i^2) / (2 s_i^2) + log s_i + log(2 pi) / 2)

    >>> params = Params(jnp.zeros((1, 1)), jnp.zeros(1), jnp.ones(1), jnp.zeros(1))
    >>> round(float(hidden_energy(params, jnp.ones(1))), 4)  # -1 - log(2 pi) / 2
    -1.9189
    """
    shift = params.weight @ hidden
    # (b + shift)^2 - b^2, which would lose its digits where shifts are small.
    rise = shift * (shift + 2 * params.visible_bias)
    spread = params.log_scale + math.log(2 * math.pi) / 2
    gain = rise * jnp.exp(-2 * params.log_scale) / 2 + spread
    return -(params.hidden_bias @ hidden) - jnp.sum(gain)


def log_z(params: Params) -> Scalar:
    """Log of the integral over visible units, by summing over up to 22 hidden ones.

    >>> params = Params(jnp.zeros((1, 1)), jnp.zeros(1), jnp.zeros(1), jnp.zeros(1))
    >>> round(float(log_z(params)), 4)  # log 2 + log(2 pi) / 2
    1.6121
    """
    return enumeration.log_z(hidden_energy, params, len(params.hidden_bias))


class BlockState(NamedTuple):
    """Where `BlockGibbs` is.

    >>> from probjax.potential import potential
    >>> model = potential(energy, init(jax.random.key(0), 3, 2))
    >>> state = BlockGibbs().init(jax.random.key(1), model, jnp.arange(3.0))
    >>> state.x.tolist()
    [0.0, 1.0, 2.0]
    """

    x: Float[Array, " visible"]
    """The visible units."""


@recipe
class BlockGibbs(Sampler):
    """One step redraws all hidden units given the visible ones, and then those.

    At weight 1 of the energy nothing is rejected; at weight w the outcome x' is
    accepted with probability min(1, exp((1 - w) (E(x') - E(x)))), as by that of `rbm`.

    >>> from probjax import sample
    >>> bias, tiny = jnp.array([1.0, 3.0]), jnp.full(2, -20.0)
    >>> params = Params(jnp.zeros((2, 1)), bias, jnp.zeros(1), log_scale=tiny)
    >>> draws = sample(jax.random.key(0), energy, params, jnp.zeros((3, 2)),
    ...                sampler=BlockGibbs(), num_draws=4)
    >>> draws.x.shape, draws.x.mean((0, 1)).round().tolist()
    ((3, 4, 2), [1.0, 3.0])
    """

    @property
    def domain(self) -> Domain:
        return "reals"

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> BlockState:
        if potential.energies != (energy,):
            raise ValueError("gaussian_rbm.BlockGibbs is for gaussian_rbm.energy alone")
        return BlockState(x)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: BlockState
    ) -> tuple[BlockState, Info]:
        (params,) = potential.args
        up_key, down_key, accept_key = random.split(key, 3)
        hidden = sample_hidden(up_key, params, state.x)
        there = sample_visible(down_key, params, hidden).astype(state.x.dtype)

        def judged():
            rise = energy(params, there) - energy(params, state.x)
            log_chance = jnp.log(random.uniform(accept_key, (), rise.dtype))
            return log_chance <= (1 - potential.weights[0]) * rise

        whole = potential.weights[0] == 1
        accept = jax.lax.cond(whole, lambda: jnp.ones((), bool), judged)
        x = jnp.where(accept, there, state.x)
        return BlockState(x), Info(accept.astype(hidden.dtype))


def _check_visible(params, x):
    if x.shape != params.visible_bias.shape:
        raise ValueError(
            f"x must have the {len(params.visible_bias)} visible units of params, "
            f"got shape {x.shape}"
        )
