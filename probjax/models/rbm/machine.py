"""The restricted Boltzmann machine over x in {0, 1}^v, with hidden units summed out.

    E(x) = -b'x - sum_h softplus(f_h),    f = W'x + c

`probjax.models.rbm.gaps` computes the changes of E by flips.

Reference: thesis, "Deep Belief Network"; Hinton, "A practical guide to training
restricted Boltzmann machines" (2010).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.bases.fits import fit_bernoulli
from probjax.exact import enumeration
from probjax.generic_gaps import gradient_gaps
from probjax.models.rbm.centring import data_chart
from probjax.models.rbm.gaps import flip_gaps
from probjax.models.rbm.layers import (
    check_hidden,
    check_visible,
    draw_bits,
    initial_weights,
)
from probjax.potential import closed_form
from probjax.types import Array, ArrayLike, Data, Float, PRNGKeyArray, Scalar


class Params(NamedTuple):
    """Weights between the layers, and a bias for each unit.

    >>> params = Params(jnp.array([[1.0], [2.0]]), jnp.zeros(2), jnp.zeros(1))
    >>> hidden_log_odds(params, jnp.array([1.0, 1.0])).tolist()
    [3.0]
    """

    weight: Float[Array, "visible hidden"]
    """W: positive for two units that tend to be on together."""
    visible_bias: Float[Array, " visible"]
    """b."""
    hidden_bias: Float[Array, " hidden"]
    """c."""


def init(
    key: PRNGKeyArray,
    num_visible: int,
    num_hidden: int,
    *,
    scale: float = 0.01,
    data: ArrayLike | Data | None = None,
) -> Params:
    """Return independent normal weights, and biases of 0 unless `data` is given.

    Args:
        num_visible: number of visible units.
        num_hidden: number of hidden units.
        scale: standard deviation of the weights.
        data: rows of bits. If given, the visible biases are the log odds of the bits,
            after a row of halves is added to the data so that they are finite. Learning
            is then faster if most units are off, such as the pixels of digits.

    >>> init(jax.random.key(0), 6, 3).weight.shape
    (6, 3)
    >>> rows = jnp.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    >>> bias = init(jax.random.key(0), 2, 1, data=rows).visible_bias
    >>> [round(float(each), 2) for each in bias]  # log(3.5 / 0.5) and its negative
    [1.95, -1.95]
    """
    weight = initial_weights(key, num_visible, num_hidden, scale)
    bias = jnp.zeros(num_visible)
    if data is not None:
        bias = jnp.asarray(fit_bernoulli(data).log_odds, weight.dtype)
    params = Params(weight, jnp.zeros(num_visible), jnp.zeros(num_hidden))
    check_visible(params, bias)
    return params._replace(visible_bias=bias)


def weights_only(params: Params) -> Params:
    """Weights of a penalty that leaves the biases out: 1 on weights, 0 on biases.

    Without weights, `fit` uses them too, and adds a faint prior on biases.

    >>> from probjax import L2
    >>> params = Params(jnp.ones((2, 1)), jnp.ones(2), jnp.ones(1))
    >>> float(L2(0.5, weights=weights_only(params)).value(params))
    1.0
    """
    return params._replace(weight=1.0, visible_bias=0.0, hidden_bias=0.0)


def proposal_gaps(
    params: Params, x: Float[Array, " visible"]
) -> tuple[Scalar, Float[Array, " visible"]]:
    """E(x) and gaps of first order, at a fraction of the cost of `flip_gaps`.

    >>> params, x = init(jax.random.key(0), 3, 2), jnp.array([0.0, 1.0, 1.0])
    >>> value, gaps = proposal_gaps(params, x)
    >>> bool(jnp.abs(gaps - flip_gaps(params, x)).max() < 1e-3)
    True
    """
    return gradient_gaps(energy, params, x)


@closed_form(
    flip_gaps=flip_gaps,
    proposal_gaps=proposal_gaps,
    chart=data_chart,
    couplings=weights_only,
)
def energy(params: Params, x: Float[Array, " visible"]) -> Scalar:
    """Energy -b'x - sum_h softplus(W'x + c)_h of one visible state.

    It is often called the free energy, because the hidden units are summed out.

    >>> params = Params(jnp.zeros((2, 1)), jnp.array([1.0, 2.0]), jnp.zeros(1))
    >>> round(float(energy(params, jnp.array([1.0, 1.0]))), 4)  # -3 - log 2
    -3.6931
    """
    field = hidden_log_odds(params, x)
    return -(params.visible_bias @ x) - jnp.sum(jax.nn.softplus(field))


def hidden_log_odds(
    params: Params, x: Float[Array, " visible"]
) -> Float[Array, " hidden"]:
    """Log odds W'x + c that each hidden unit is on, given the visible units.

    >>> params = Params(jnp.array([[1.0], [2.0]]), jnp.zeros(2), jnp.array([-3.0]))
    >>> hidden_log_odds(params, jnp.array([0.0, 1.0])).tolist()
    [-1.0]
    """
    check_visible(params, x)
    return x @ params.weight + params.hidden_bias


def visible_log_odds(
    params: Params, hidden: Float[Array, " hidden"]
) -> Float[Array, " visible"]:
    """Log odds W h + b that each visible unit is on, given the hidden units.

    >>> params = Params(jnp.array([[1.0], [2.0]]), jnp.array([0.0, 0.5]), jnp.zeros(1))
    >>> visible_log_odds(params, jnp.array([1.0])).tolist()
    [1.0, 2.5]
    """
    check_hidden(params, hidden)
    return hidden_log_odds(transpose(params), hidden)


def hidden_means(
    params: Params, x: Float[Array, " visible"]
) -> Float[Array, " hidden"]:
    """Probability that each hidden unit is on, given the visible units.

    >>> params = Params(jnp.array([[1.0], [2.0]]), jnp.zeros(2), jnp.array([-3.0]))
    >>> hidden_means(params, jnp.array([1.0, 1.0])).tolist()
    [0.5]
    """
    return jax.nn.sigmoid(hidden_log_odds(params, x))


def visible_means(
    params: Params, hidden: Float[Array, " hidden"]
) -> Float[Array, " visible"]:
    """Probability that each visible unit is on, given the hidden units.

    >>> weight, bias = jnp.array([[1.0], [2.0]]), jnp.array([-1.0, -2.0])
    >>> params = Params(weight, bias, jnp.zeros(1))
    >>> visible_means(params, jnp.array([1.0])).tolist()
    [0.5, 0.5]
    """
    return jax.nn.sigmoid(visible_log_odds(params, hidden))


def sample_hidden(
    key: PRNGKeyArray, params: Params, x: Float[Array, " visible"]
) -> Float[Array, " hidden"]:
    """Draw the hidden units given the visible units.

    >>> params = Params(jnp.zeros((2, 2)), jnp.zeros(2), jnp.array([50.0, -50.0]))
    >>> sample_hidden(jax.random.key(0), params, jnp.array([0.0, 1.0])).tolist()
    [1.0, 0.0]
    """
    return draw_bits(key, hidden_means(params, x))


def sample_visible(
    key: PRNGKeyArray, params: Params, hidden: Float[Array, " hidden"]
) -> Float[Array, " visible"]:
    """Draw the visible units given the hidden units.

    >>> params = Params(jnp.zeros((2, 2)), jnp.array([50.0, -50.0]), jnp.zeros(2))
    >>> sample_visible(jax.random.key(0), params, jnp.array([0.0, 1.0])).tolist()
    [1.0, 0.0]
    """
    return draw_bits(key, visible_means(params, hidden))


def reconstruct(
    params: Params, x: Float[Array, " visible"]
) -> Float[Array, " visible"]:
    """Means of the visible units, given the means of the hidden units at `x`.

    They are close to `x` for states that the machine has learned. A small difference
    does not mean that `x` is likely.

    >>> params = Params(jnp.full((2, 1), 20.0), jnp.full(2, -10.0), jnp.array([-20.0]))
    >>> reconstruct(params, jnp.array([1.0, 1.0])).round().tolist()
    [1.0, 1.0]
    >>> reconstruct(params, jnp.array([0.0, 0.0])).round().tolist()
    [0.0, 0.0]
    """
    return visible_means(params, hidden_means(params, x))


def transpose(params: Params) -> Params:
    """Return the machine with exchanged layers.

    The joint distribution is the same, and `energy` is that of the other layer.

    >>> transpose(init(jax.random.key(0), 6, 3)).weight.shape
    (3, 6)
    """
    return Params(params.weight.T, params.hidden_bias, params.visible_bias)


def log_z(params: Params) -> Scalar:
    """Log partition function, by enumeration of the smaller layer (up to 22 units).

    >>> params = Params(jnp.zeros((2, 1)), jnp.zeros(2), jnp.zeros(1))
    >>> round(float(log_z(params)), 4)  # log 8: three free units
    2.0794
    """
    visible, hidden = params.weight.shape
    params = params if visible <= hidden else transpose(params)
    return enumeration.log_z(energy, params, min(visible, hidden))
