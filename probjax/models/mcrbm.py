"""The mean-covariance restricted Boltzmann machine (mcRBM), hidden units summed out.

    E(x) = - sum_k softplus(1/2 sum_l P_lk (C_l x)^2 / (s |x|^2 + 1/2) + b^c_k)
           - sum_j softplus(W_j x + b^m_j)
           + |x|^2 / (2 sigma^2) - b^v x

The filters C respond to the state divided by about its length, so they measure its
shape only. Covariance unit k pools the squared responses with weights P_lk; mean unit j
responds to the state itself. If P_lk is negative, covariance unit k is on while its
filters do not respond, which favours small responses, and switches off at large ones.
In the cited code P = -F, where F has no negative entries and columns that sum to 1. Z
is finite for P of either sign, because the first term is bounded and the second grows
no faster than |x|.

The scale s of |x|^2 is 1 in the thesis, and 1 / M for M sites in ports of the code that
it cites. It is the argument `norm_scale` of `energy`; `energy_by_mean_square` is the
energy with s = 1 / M, as a function that drivers can take. The visible bias has M
entries, where the thesis prints K.

The energy does not change if a filter C_l changes its sign, if its length is moved to
the row P_l (as its square), if sigma changes its sign, or if filters, covariance units
or mean units are reordered. `canonical` picks one of all these equivalent parameters.
As softplus(u) = u + softplus(-u), a mean unit may also be replaced by -W_j and -b^m_j,
with W_j added to b^v. This changes all energies by the constant b^m_j; `canonical` does
not resolve it.

Reference: thesis, "Hamiltonian Annealed Importance Sampling", mcRBM; Ranzato and
Hinton, CVPR (2010).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax import random
from probjax.checks import check_count, is_concrete
from probjax.fitting.charts import Affine, Composed, Frozen, Positive
from probjax.models.checks import check_positive, check_size
from probjax.models.symmetries import lengths, longest_first, signs
from probjax.potential import closed_form
from probjax.types import Array, Float, PRNGKeyArray, Scalar


class Params(NamedTuple):
    """Filters and pooling of covariance units, filters of mean units, and biases.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> params.filters.shape, params.pooling.shape, params.mean_filters.shape
    ((6, 4), (6, 3), (2, 4))
    """

    filters: Float[Array, "factor site"]
    """C: filters whose responses are normalised and squared."""
    pooling: Float[Array, "factor covariance"]
    """P: weights of the squared responses in the input of each covariance unit."""
    mean_filters: Float[Array, "mean site"]
    """W: filters of the mean units."""
    covariance_bias: Float[Array, " covariance"]
    """b^c: biases of the covariance units."""
    mean_bias: Float[Array, " mean"]
    """b^m: biases of the mean units."""
    visible_bias: Float[Array, " site"]
    """b^v: biases of the sites."""
    scale: Scalar
    """sigma, the standard deviation of each site without the hidden units."""


def init(
    key: PRNGKeyArray,
    size: int,
    *,
    num_factors: int,
    num_covariance: int,
    num_mean: int,
    norm_scale: float = 1.0,
) -> Params:
    """Return random normal filters, with squared responses to white data of about 1.

    Each covariance unit pools a block of neighbouring factors, and all other factors
    with about a tenth of the total weight. So all entries of the pooling are negative,
    and those of each unit sum to -1. Covariance units are mostly on, mean units mostly
    off.

    Args:
        size: number of sites.
        num_factors: number of filters whose responses are squared.
        num_covariance: number of covariance units.
        num_mean: number of mean units.
        norm_scale: s of the energy; 1 / size for `energy_by_mean_square`.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> bool(jnp.allclose(params.pooling.sum(0), -1, atol=1e-5))
    True
    """
    check_count("size", size)
    check_count("num_factors", num_factors)
    check_count("num_covariance", num_covariance)
    check_count("num_mean", num_mean)
    check_positive("norm_scale", norm_scale)
    filter_key, pooling_key, mean_key = random.split(key, 3)
    filters = math.sqrt(norm_scale) * random.normal(filter_key, (num_factors, size))
    pooling = _blocks(num_factors, num_covariance)
    others = (1 - random.uniform(pooling_key, pooling.shape)) / num_factors
    pooling = pooling + 0.2 * others
    return Params(
        filters=filters,
        pooling=-pooling / jnp.sum(pooling, 0)[None],
        mean_filters=random.normal(mean_key, (num_mean, size)) / math.sqrt(size),
        covariance_bias=jnp.full(num_covariance, 2.0),
        mean_bias=jnp.full(num_mean, -2.0),
        visible_bias=jnp.zeros(size),
        scale=jnp.ones(()),
    )


def unnormalisable(params: Params) -> str:
    """Reason why the model does not have a finite Z; "" if none is detected.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> unnormalisable(params._replace(scale=jnp.array(0.0)))
    'scale must not be zero'
    """
    if not is_concrete(params):
        return ""
    for name, leaf in params._asdict().items():
        if not np.isfinite(np.asarray(leaf)).all():
            return f"{name} must be finite, got NaN or infinity"
    if np.asarray(params.scale) == 0:
        return "scale must not be zero"
    return ""


@closed_form(unnormalisable=unnormalisable)
def energy(
    params: Params, x: Float[Array, " site"], *, norm_scale: float = 1.0
) -> Scalar:
    """Energy of one state.

    Args:
        norm_scale: s, the factor of |x|^2 in the normalisation of filter responses.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> hidden = 3 * jnp.log1p(jnp.exp(2.0)) + 2 * jnp.log1p(jnp.exp(-2.0))
    >>> bool(jnp.allclose(energy(params, jnp.zeros(4)), -hidden))
    True
    """
    covariance = covariance_log_odds(params, x, norm_scale=norm_scale)
    means = mean_log_odds(params, x)
    hidden = jnp.sum(_softplus(covariance)) + jnp.sum(_softplus(means))
    return x @ x / (2 * params.scale**2) - params.visible_bias @ x - hidden


@closed_form(unnormalisable=unnormalisable)
def energy_by_mean_square(params: Params, x: Float[Array, " site"]) -> Scalar:
    """Energy with s = 1 / M: the mean of x^2 replaces the sum in the normalisation.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> here, there = jnp.zeros(4), jnp.ones(4)
    >>> bool(energy_by_mean_square(params, here) == energy(params, here))
    True
    >>> bool(energy_by_mean_square(params, there) == energy(params, there))
    False
    """
    return energy(params, x, norm_scale=1 / len(x))


def covariance_log_odds(
    params: Params, x: Float[Array, " site"], *, norm_scale: float = 1.0
) -> Float[Array, " covariance"]:
    """Log odds that each covariance unit is on, given a state.

    Args:
        norm_scale: s, as in `energy`.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> covariance_log_odds(params, jnp.zeros(4)).tolist()
    [2.0, 2.0, 2.0]
    """
    _check(params, x)
    check_positive("norm_scale", norm_scale)
    normaliser = 1 / (2 * (norm_scale * (x @ x) + 0.5))
    # With the state first, this product needs no transposes under vmap.
    squares = (x @ params.filters.T) ** 2
    return squares @ params.pooling * normaliser + params.covariance_bias


def mean_log_odds(params: Params, x: Float[Array, " site"]) -> Float[Array, " mean"]:
    """Log odds that each mean unit is on, given a state.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> mean_log_odds(params, jnp.zeros(4)).tolist()
    [-2.0, -2.0]
    """
    _check(params, x)
    return x @ params.mean_filters.T + params.mean_bias


def chart(params: Params) -> Composed:
    """Chart for `fit` that keeps the pooling negative and sigma positive.

    Entries of the pooling that are exactly zero are fixed, because they do not have a
    logarithm: the unit and the factor are not connected.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> found = chart(params).inverse(jax.tree.map(jnp.zeros_like, params))
    >>> float(found.pooling.max()), float(found.scale)
    (-1.0, 1.0)
    """
    if is_concrete(params):
        most, scale = np.asarray(params.pooling).max(), np.asarray(params.scale)
        if most > 0:
            raise ValueError(f"pooling must not be positive, got {most:.3g}")
        if scale <= 0:
            raise ValueError(f"scale must be positive, got {scale:.3g}")
    connected = params.pooling != 0
    free = Params._make([True, connected, *[True] * 5])
    flipped = Params._make([1.0, -1.0, *[1.0] * 5])
    positive = Params._make([False, connected, *[False] * 4, True])
    return Composed((Frozen(params, free), Affine(scale=flipped), Positive(positive)))


def canonical(params: Params) -> Params:
    """Parameters of the same energy in a canonical form.

    Filters C have length 1. Sigma is positive, and so is the entry of largest magnitude
    of each filter C. Factors are sorted by the length of their row of P, covariance
    units by that of their column of P, and mean units by that of their filter, the
    longest first.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> found, x = canonical(params), jnp.ones(4)
    >>> bool(jnp.allclose(energy(found, x), energy(params, x), atol=1e-4))
    True
    """
    norms = lengths(params.filters) * signs(params.filters)
    filters = params.filters / norms[:, None]
    pooling = params.pooling * norms[:, None] ** 2
    factors, units = longest_first(pooling), longest_first(pooling.T)
    means = longest_first(params.mean_filters)
    return Params(
        filters=filters[factors],
        pooling=pooling[factors][:, units],
        mean_filters=params.mean_filters[means],
        covariance_bias=params.covariance_bias[units],
        mean_bias=params.mean_bias[means],
        visible_bias=params.visible_bias,
        scale=jnp.abs(params.scale),
    )


@jax.custom_jvp
def _softplus(value):
    """log(1 + exp(value)), with a cheaper derivative than `jax.nn.softplus`."""
    return jnp.maximum(value, 0) + jnp.log1p(jnp.exp(-jnp.abs(value)))


@_softplus.defjvp
def _softplus_slope(values, tangents):
    (value,), (tangent,) = values, tangents
    return _softplus(value), tangent * (1 + jnp.tanh(value / 2)) / 2


def _blocks(num_factors, num_covariance):
    """Pooling in which each unit averages a block of neighbouring factors.

    Each factor is in at least one block.
    """
    count = max(num_factors, num_covariance)
    factors = np.arange(count) * num_factors // count
    units = np.arange(count) * num_covariance // count
    blocks = np.zeros((num_factors, num_covariance))
    blocks[factors, units] = 1
    return jnp.asarray(blocks / blocks.sum(0), float)


def _check(params, x):
    size = params.filters.shape[1]
    check_size("x", x, size, "sites")
    (factors, units), means = params.pooling.shape, len(params.mean_filters)
    shapes = Params._make(
        [
            (factors, size),
            (factors, units),
            (means, size),
            (units,),
            (means,),
            (size,),
            (),
        ]
    )
    for name, shape in shapes._asdict().items():
        if (found := jnp.shape(params._asdict()[name])) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {found}")
