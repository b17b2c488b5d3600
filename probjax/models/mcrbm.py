"""The mean and covariance restricted Boltzmann machine, hidden units summed out.

    E(x) = - sum_k softplus(1/2 sum_l P_lk (C_l x)^2 / (s |x|^2 + 1/2) + b^c_k)
           - sum_j softplus(W_j x + b^m_j)
           + |x|^2 / (2 sigma^2) - b^v x

Filters C see a state as a share of its length, so that they respond to its shape alone;
covariance units k pool their squares by P, and mean units j see the state itself. Where
P is below zero a covariance unit is on unless its filters respond: it holds their
responses small, until it gives way. The mark of the cited code is P = -F with F not
negative and columns that sum to 1; the model has a finite Z for P of either sign, as
the first term is bounded and the second grows no faster than |x|.

The scale s of |x|^2 is 1 in the thesis, and 1 / M for M sites in ports of the code it
cites: `energy` has it as `norm_scale`, and `energy_by_mean_square` is the energy with
1 / M, as an energy of its own. The visible bias is of the M sites, where the thesis
prints K.

Open are the signs of filters C_l and their lengths, whose squares the row P_l can take
on, the sign of sigma, and the orders of filters, of covariance units and of mean units:
`canonical` settles these. As softplus(u) = u + softplus(-u), a mean unit may also turn
over, to -W_j and -b^m_j with W_j added to b^v. That shifts all energies by b^m_j, and
`canonical` leaves it alone.

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
from probjax.models.canonical import lengths, longest_first, signs
from probjax.potential import closed_form
from probjax.types import Array, Float, PRNGKeyArray, Scalar


class Params(NamedTuple):
    """Filters and pooling of covariance units, filters of mean units, and biases.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> params.filters.shape, params.pooling.shape, params.mean_filters.shape
    ((6, 4), (6, 3), (2, 4))
    """

    filters: Float[Array, "factor site"]
    """C: what is squared, as a share of the length of a state."""
    pooling: Float[Array, "factor covariance"]
    """P: what covariance units make of the squares."""
    mean_filters: Float[Array, "mean site"]
    """W: what mean units respond to."""
    covariance_bias: Float[Array, " covariance"]
    """b^c: how readily covariance units are on."""
    mean_bias: Float[Array, " mean"]
    """b^m: how readily mean units are."""
    visible_bias: Float[Array, " site"]
    """b^v, a force on each site."""
    scale: Scalar
    """sigma, the standard deviation of a site where no unit has a say."""


def init(
    key: PRNGKeyArray,
    size: int,
    *,
    num_factors: int,
    num_covariance: int,
    num_mean: int,
    norm_scale: float = 1.0,
) -> Params:
    """Normal filters, to which white data respond with squares of about 1.

    The factors are dealt out to the covariance units in blocks of neighbours, with
    about a tenth of all others, so that every entry of the pooling is below zero. Each
    unit's sum to -1. Covariance units are mostly on, mean units mostly off.

    Args:
        size: number of sites.
        num_factors: filters that are squared.
        num_covariance: units that pool them.
        num_mean: units that see the state itself.
        norm_scale: s, as of the energy: 1 / size for `energy_by_mean_square`.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> bool(jnp.allclose(params.pooling.sum(0), -1, atol=1e-5))
    True
    """
    check_count("size", size)
    check_count("num_factors", num_factors)
    check_count("num_covariance", num_covariance)
    check_count("num_mean", num_mean)
    _check_norm_scale(norm_scale)
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
    """What leaves the model without a finite Z, in words; "" if nothing does.

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
    """The energy of one state.

    Args:
        norm_scale: s, what |x|^2 is multiplied by where filters see its share.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> on = 3 * jnp.log1p(jnp.exp(2.0)) + 2 * jnp.log1p(jnp.exp(-2.0))  # by the biases
    >>> bool(jnp.allclose(energy(params, jnp.zeros(4)), -on))
    True
    """
    covariance = covariance_log_odds(params, x, norm_scale=norm_scale)
    means = mean_log_odds(params, x)
    hidden = jnp.sum(_softplus(covariance)) + jnp.sum(_softplus(means))
    return x @ x / (2 * params.scale**2) - params.visible_bias @ x - hidden


@closed_form(unnormalisable=unnormalisable)
def energy_by_mean_square(params: Params, x: Float[Array, " site"]) -> Scalar:
    """The energy with the mean of x^2 in place of its sum: s = 1 / M.

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
    """The log odds that each covariance unit is on, given a state.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> covariance_log_odds(params, jnp.zeros(4)).tolist()
    [2.0, 2.0, 2.0]
    """
    _check(params, x)
    _check_norm_scale(norm_scale)
    share = 1 / (2 * (norm_scale * (x @ x) + 0.5))
    # In this order: under vmap, filters @ x is made transposed, and turned again.
    squares = (x @ params.filters.T) ** 2
    return squares @ params.pooling * share + params.covariance_bias


def mean_log_odds(params: Params, x: Float[Array, " site"]) -> Float[Array, " mean"]:
    """The log odds that each mean unit is on, given a state.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> mean_log_odds(params, jnp.zeros(4)).tolist()
    [-2.0, -2.0]
    """
    _check(params, x)
    return x @ params.mean_filters.T + params.mean_bias


def chart(params: Params) -> Composed:
    """A chart for `fit` that keeps the pooling below zero and sigma above it.

    Entries of the pooling that are exactly zero have no logarithm, and stay zero: no
    connection.

    >>> params = init(jax.random.key(0), 4, num_factors=6, num_covariance=3, num_mean=2)
    >>> found = chart(params).inverse(jax.tree.map(jnp.zeros_like, params))
    >>> float(found.pooling.max()), float(found.scale)
    (-1.0, 1.0)
    """
    if is_concrete(params):
        most, scale = np.asarray(params.pooling).max(), np.asarray(params.scale)
        if most > 0:
            raise ValueError(f"pooling must not be above zero, got {most:.3g}")
        if scale <= 0:
            raise ValueError(f"scale must be above zero, got {scale:.3g}")
    connected = params.pooling != 0
    free = Params._make([True, connected, *[True] * 5])
    turned = Params._make([1.0, -1.0, *[1.0] * 5])
    positive = Params._make([False, connected, *[False] * 4, True])
    return Composed((Frozen(params, free), Affine(scale=turned), Positive(positive)))


def canonical(params: Params) -> Params:
    """The same energy: filters C of length 1, signs and orders settled.

    Factors are in the order of the lengths of their rows of P, covariance units in that
    of its columns, and mean units in that of their filters. Largest entries of filters
    C, and sigma, are above zero.

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
    """log(1 + exp(value)), with a slope that costs less than that of jax.nn's."""
    return jnp.maximum(value, 0) + jnp.log1p(jnp.exp(-jnp.abs(value)))


@_softplus.defjvp
def _softplus_slope(values, tangents):
    (value,), (tangent,) = values, tangents
    return _softplus(value), tangent * (1 + jnp.tanh(value / 2)) / 2


def _blocks(num_factors, num_covariance):
    """Shares of factors in the unit whose block they are of; all have one."""
    count = max(num_factors, num_covariance)
    factors = np.arange(count) * num_factors // count
    units = np.arange(count) * num_covariance // count
    blocks = np.zeros((num_factors, num_covariance))
    blocks[factors, units] = 1
    return jnp.asarray(blocks / blocks.sum(0), float)


def _check_norm_scale(norm_scale):
    if is_concrete(norm_scale) and not 0 < norm_scale < math.inf:
        raise ValueError(f"norm_scale must be positive and finite, got {norm_scale}")


def _check(params, x):
    size = params.filters.shape[1]
    if x.shape != (size,):
        raise ValueError(f"x must have the {size} sites of params, got shape {x.shape}")
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
