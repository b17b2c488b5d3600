"""The restricted Boltzmann machine with real visible units, hidden units summed out.

    E(x) = sum_i (x_i - b_i)^2 / (2 s_i^2) - sum_h softplus(f_h),
    f = W'(x / s^2) + c

Given the hidden bits, the visible units are independent normals, x ~ N(b + W h, s^2).
Given the visible units, the hidden bits are independent with log odds f. So the model
is a mixture of 2^H normals, for H hidden units, that share a diagonal covariance. The
parameters include log s, so Z is finite for all parameters.

Reference: Cho, Ilin and Raiko, "Improved learning of Gaussian-Bernoulli restricted
Boltzmann machines", ICANN (2011).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.bases.fits import fit_gaussian
from probjax.data.rows import mean_of_observed
from probjax.exact import enumeration
from probjax.interfaces import Chart, Sampler
from probjax.models.rbm.layers import (
    accept_block,
    check_hidden,
    check_visible,
    draw_bits,
    initial_weights,
)
from probjax.potential import Potential, closed_form
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
    """Weights between the layers, a bias for each unit, and scales of visible units.

    >>> bias, zeros = jnp.array([1.0, 2.0]), jnp.zeros(2)
    >>> params = Params(jnp.ones((2, 1)), bias, jnp.zeros(1), log_scale=zeros)
    >>> visible_means(params, jnp.array([1.0])).tolist()
    [2.0, 3.0]
    """

    weight: Float[Array, "visible hidden"]
    """W: what a hidden unit adds to the means of the visible units if it is on."""
    visible_bias: Float[Array, " visible"]
    """b: means of the visible units if all hidden units are off."""
    hidden_bias: Float[Array, " hidden"]
    """c."""
    log_scale: Float[Array, " visible"]
    """log s: log standard deviation of each visible unit, given the hidden units."""


def init(
    key: PRNGKeyArray,
    num_visible: int,
    num_hidden: int,
    *,
    scale: float = 0.01,
    data: ArrayLike | Data | None = None,
) -> Params:
    """Return independent normal weights; biases are 0 and s is 1 without `data`.

    Args:
        num_visible: number of visible units.
        num_hidden: number of hidden units.
        scale: standard deviation of the weights.
        data: rows of real numbers. If given, b and s are their means and standard
            deviations: the maximum likelihood estimate of a machine without weights.

    >>> rows = jnp.array([[1.0, 5.0], [3.0, 5.5], [1.0, 6.0], [3.0, 5.5]])
    >>> init(jax.random.key(0), 2, 3, data=rows).visible_bias.tolist()
    [2.0, 5.5]
    """
    weight = initial_weights(key, num_visible, num_hidden, scale)
    zeros = jnp.zeros(num_visible)
    params = Params(weight, zeros, jnp.zeros(num_hidden), zeros)
    if data is None:
        return params
    base = fit_gaussian(data)
    mean, scales = (jnp.asarray(part, weight.dtype) for part in (base.mean, base.scale))
    check_visible(params, mean)
    return params._replace(visible_bias=mean, log_scale=jnp.log(scales))


def _couplings(params: Params) -> Params:
    """Weights of a penalty on W only: 1 on weights, 0 on biases and scales."""
    return params._replace(weight=1.0, visible_bias=0.0, hidden_bias=0.0, log_scale=0.0)


@recipe
class CentredGaussianRBM(Chart):
    """Coordinates (W, b*, c*, log s) over units minus their means m and n.

        b* = b + W n,    c* = c + W'(m / s^2)

    >>> zeros = jnp.zeros(2)
    >>> chart = CentredGaussianRBM(jnp.array([1.0, 2.0]), hidden_mean=jnp.array([0.5]))
    >>> params = Params(jnp.ones((2, 1)), zeros, jnp.zeros(1), log_scale=zeros)
    >>> chart.forward(params).hidden_bias.tolist()
    [3.0]
    """

    visible_mean: Float[Array, " visible"]
    """m, which is subtracted from the visible units."""
    hidden_mean: Float[Array, " hidden"]
    """n, which is subtracted from the hidden units."""

    def forward(self, params: Params) -> Params:
        return self._shifted(params, 1)

    def inverse(self, coordinates: Params) -> Params:
        return self._shifted(coordinates, -1)

    def scales(self, params: Params) -> Params:
        return Params(1.0, 0.0, 0.0, 1.0)  # pyright: ignore

    def _shifted(self, params, sign):
        field = (self.visible_mean * jnp.exp(-2 * params.log_scale)) @ params.weight
        return params._replace(
            visible_bias=params.visible_bias
            + sign * (params.weight @ self.hidden_mean),
            hidden_bias=params.hidden_bias + sign * field,
        )


def data_chart(params: Params, data: Data) -> CentredGaussianRBM:
    """Return the chart with the means of the units over the data.

    >>> params = Params(jnp.zeros((2, 1)), jnp.zeros(2), jnp.zeros(1), jnp.zeros(2))
    >>> data_chart(params, Data(jnp.array([[0.0, 2.0], [1.0, 4.0]]))).visible_mean
    Array([0.5, 3. ], dtype=float32)
    """
    hidden = jax.vmap(hidden_means, (None, 0))(params, data.x)
    return CentredGaussianRBM(*mean_of_observed(Data((data.x, hidden), data.weights)))


@closed_form(chart=data_chart, couplings=_couplings)
def energy(params: Params, x: Float[Array, " visible"]) -> Scalar:
    """Energy of one visible state.

    It is often called the free energy, because the hidden units are summed out.

    >>> params = Params(jnp.zeros((2, 1)), jnp.zeros(2), jnp.zeros(1), jnp.zeros(2))
    >>> round(float(energy(params, jnp.array([3.0, 1.0]))), 4)  # 5 - log 2
    4.3069
    """
    field = hidden_log_odds(params, x)
    deviation = (x - params.visible_bias) * jnp.exp(-params.log_scale)
    return jnp.sum(deviation**2) / 2 - jnp.sum(jax.nn.softplus(field))


def hidden_log_odds(
    params: Params, x: Float[Array, " visible"]
) -> Float[Array, " hidden"]:
    """Log odds W'(x / s^2) + c that each hidden unit is on, given the visible units.

    >>> weight, zeros = jnp.array([[1.0], [2.0]]), jnp.zeros(2)
    >>> params = Params(weight, zeros, jnp.array([-3.0]), zeros)
    >>> hidden_log_odds(params, jnp.array([1.0, 0.5])).tolist()
    [-1.0]
    """
    check_visible(params, x)
    return (x * jnp.exp(-2 * params.log_scale)) @ params.weight + params.hidden_bias


def hidden_means(
    params: Params, x: Float[Array, " visible"]
) -> Float[Array, " hidden"]:
    """Probability that each hidden unit is on, given the visible units.

    >>> weight, zeros = jnp.array([[1.0], [2.0]]), jnp.zeros(2)
    >>> params = Params(weight, zeros, jnp.array([-3.0]), zeros)
    >>> hidden_means(params, jnp.array([1.0, 1.0])).tolist()
    [0.5]
    """
    return jax.nn.sigmoid(hidden_log_odds(params, x))


def visible_means(
    params: Params, hidden: Float[Array, " hidden"]
) -> Float[Array, " visible"]:
    """Means W h + b of the visible units, given the hidden units.

    >>> weight, bias = jnp.array([[1.0], [2.0]]), jnp.array([0.5, 0.5])
    >>> params = Params(weight, bias, jnp.zeros(1), jnp.zeros(2))
    >>> visible_means(params, jnp.array([1.0])).tolist()
    [1.5, 2.5]
    """
    check_hidden(params, hidden)
    return params.weight @ hidden + params.visible_bias


def sample_hidden(
    key: PRNGKeyArray, params: Params, x: Float[Array, " visible"]
) -> Float[Array, " hidden"]:
    """Draw the hidden units given the visible units.

    >>> bias, zeros = jnp.array([50.0, -50.0]), jnp.zeros(2)
    >>> params = Params(jnp.zeros((2, 2)), zeros, bias, zeros)
    >>> sample_hidden(jax.random.key(0), params, jnp.zeros(2)).tolist()
    [1.0, 0.0]
    """
    return draw_bits(key, hidden_means(params, x))


def sample_visible(
    key: PRNGKeyArray, params: Params, hidden: Float[Array, " hidden"]
) -> Float[Array, " visible"]:
    """Draw the visible units given the hidden units.

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
    """Means of the visible units, given the means of the hidden units at `x`.

    >>> weight, zeros = jnp.array([[1.0], [2.0]]), jnp.zeros(2)
    >>> params = Params(weight, zeros, jnp.array([-3.0]), zeros)
    >>> reconstruct(params, jnp.array([1.0, 1.0])).tolist()
    [0.5, 1.0]
    """
    return visible_means(params, hidden_means(params, x))


def hidden_energy(params: Params, hidden: Float[Array, " hidden"]) -> Scalar:
    """Energy of the hidden bits, with the visible units integrated out.

    Its partition function is that of `energy`:

        -c'h - sum_i (((b + W h)_i^2 - b_i^2) / (2 s_i^2) + log s_i + log(2 pi) / 2)

    >>> params = Params(jnp.zeros((1, 1)), jnp.zeros(1), jnp.ones(1), jnp.zeros(1))
    >>> round(float(hidden_energy(params, jnp.ones(1))), 4)  # -1 - log(2 pi) / 2
    -1.9189
    """
    shift = params.weight @ hidden
    # (b + shift)^2 - b^2, written without cancellation for small shifts.
    square_rise = shift * (shift + 2 * params.visible_bias)
    log_width = params.log_scale + math.log(2 * math.pi) / 2
    log_integrals = square_rise * jnp.exp(-2 * params.log_scale) / 2 + log_width
    return -(params.hidden_bias @ hidden) - jnp.sum(log_integrals)


def log_z(params: Params) -> Scalar:
    """Log partition function, by enumeration of up to 22 hidden units.

    >>> params = Params(jnp.zeros((1, 1)), jnp.zeros(1), jnp.zeros(1), jnp.zeros(1))
    >>> round(float(log_z(params)), 4)  # log 2 + log(2 pi) / 2
    1.6121
    """
    return enumeration.log_z(hidden_energy, params, len(params.hidden_bias))


class GaussianBlockState(NamedTuple):
    """State of `GaussianBlockGibbs`.

    >>> from probjax.potential import potential
    >>> model = potential(energy, init(jax.random.key(0), 3, 2))
    >>> state = GaussianBlockGibbs().init(jax.random.key(1), model, jnp.arange(3.0))
    >>> state.x.tolist()
    [0.0, 1.0, 2.0]
    """

    x: Float[Array, " visible"]
    """Current values of the visible units."""


@recipe
class GaussianBlockGibbs(Sampler):
    """Sampler that redraws all hidden units, and then all visible units.

    At weight 1 of the energy each step is accepted. At another weight w, the new x' is
    accepted with probability min(1, exp((1 - w) (E(x') - E(x)))), as for
    `rbm.BlockGibbs`.

    >>> from probjax import sample
    >>> bias, tiny = jnp.array([1.0, 3.0]), jnp.full(2, -20.0)
    >>> params = Params(jnp.zeros((2, 1)), bias, jnp.zeros(1), log_scale=tiny)
    >>> draws = sample(jax.random.key(0), energy, params, jnp.zeros((3, 2)),
    ...                sampler=GaussianBlockGibbs(), num_draws=4)
    >>> draws.x.shape, draws.x.mean((0, 1)).round().tolist()
    ((3, 4, 2), [1.0, 3.0])
    """

    @property
    def domain(self) -> Domain:
        return "reals"

    def init(
        self, key: PRNGKeyArray, potential: Potential, x: State
    ) -> GaussianBlockState:
        if potential.energies != (energy,):
            raise ValueError(
                "GaussianBlockGibbs requires gaussian_rbm.energy and no other term; to "
                "anneal a machine, try path=annealing.Straight(start) from a machine "
                "without weights"
            )
        return GaussianBlockState(x)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: GaussianBlockState
    ) -> tuple[GaussianBlockState, Info]:
        (params,) = potential.args
        hidden_key, visible_key, accept_key = random.split(key, 3)
        hidden = sample_hidden(hidden_key, params, state.x)
        x = sample_visible(visible_key, params, hidden).astype(state.x.dtype)
        return accept_block(
            lambda: random.uniform(accept_key, (), hidden.dtype),
            potential.weights[0],
            lambda: energy(params, x) - energy(params, state.x),
            GaussianBlockState(x),
            state,
            hidden.dtype,
        )
