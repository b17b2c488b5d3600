"""The restricted Boltzmann machine over x in {0, 1}^v, with hidden units summed out.

    E(x) = -b'x - sum_h softplus(f_h),    f = W'x + c

With d_n = 1 - 2 x_n, flipping visible unit n gives the gap

    E(x) - E(x') = d_n b_n + sum_h log(sigmoid(-f_h) + sigmoid(f_h) exp(d_n W_nh)).

These gaps are computed in one of two ways. The exact way is a loop over visible units.
The other is a series: with q = tanh(W / 4), z = tanh(f / 2) and the Chebyshev
polynomials T_p,

    gap_n = d_n (b_n + sum_h W_nh / 2) - sum_h log(1 - q_nh^2)
            - 2 sum_(p >= 1) sum_h (-d_n q_nh)^p T_p(z_h) / p.

The first P terms of the series are P matrix products for all rows and units at once. As
|T_p| <= 1, the remaining terms sum to at most

    2 sum_h |q_nh|^(P+1) / ((P+1) (1 - |q_nh|)).

The compiled program chooses the smallest P of `NUM_PRODUCTS` for which this bound is
negligible. If the weights are too large for all of them, it uses the exact way.

Reference: thesis, "Deep Belief Network" and the appendix "MPF objective function for a
Restricted Boltzmann Machine (RBM)"; Hinton, "A practical guide to training restricted
Boltzmann machines" (2010).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.bases.fits import fit_bernoulli
from probjax.exact import enumeration
from probjax.generic_gaps import gradient_gaps
from probjax.models.rbm.centring import data_chart
from probjax.models.rbm.layers import (
    check_hidden,
    check_visible,
    draw_bits,
    initial_weights,
)
from probjax.potential import closed_form
from probjax.types import Array, ArrayLike, Data, Float, PRNGKeyArray, Scalar

BLOCK = 8
NUM_PRODUCTS = (8, 16, 24, 32)
"""Numbers of terms between which `flip_gaps` chooses."""
MODERATE = 40.0
"""Magnitude of weights whose exponentials are exact in float32."""


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


def flip_gaps(params: Params, x: Float[Array, " visible"]) -> Float[Array, " visible"]:
    """E(x) - E(x with visible unit n flipped) for every n.

    They are computed in the cheapest way that is accurate for these weights.

    >>> params, x = init(jax.random.key(0), 3, 2, scale=1.0), jnp.array([0.0, 1.0, 1.0])
    >>> other = jnp.array([1.0, 1.0, 1.0])
    >>> rise = flip_gaps(params, x)[0] - (energy(params, x) - energy(params, other))
    >>> bool(jnp.abs(rise) < 1e-5)
    True
    """
    check_visible(params, x)
    # The choice depends on the parameters only, so a batch of states shares one branch.
    weight = jax.lax.stop_gradient(params.weight)
    tolerance = 50 * jnp.finfo(weight.dtype).eps
    insufficient = [tail_bound(weight, n).max() > tolerance for n in NUM_PRODUCTS]
    num_blocks = 1 + jnp.sum(jnp.stack(insufficient))
    return jax.lax.platform_dependent(
        num_blocks, params, x, cpu=_gaps_by_branches, default=_gaps_by_loop
    )


def _gaps_by_branches(num_blocks, params, x):
    """Gaps by `num_blocks` blocks of products, or exactly if there are not as many.

    Each branch has a loop of its own, which stores only what its gradient needs.
    """
    series = [partial(gaps_by_products, num_products=count) for count in NUM_PRODUCTS]
    return jax.lax.switch(num_blocks - 1, [*series, exact_gaps], params, x)


def _gaps_by_loop(num_blocks, params, x):
    """Compute the same as `_gaps_by_branches` in a program of half the size."""
    is_enough = num_blocks <= len(NUM_PRODUCTS)
    series = partial(_gaps_by_blocks, num_blocks)
    return jax.lax.cond(is_enough, series, exact_gaps, params, x)


def _gaps_by_blocks(num_blocks, params, x):
    """Gaps by the first `num_blocks` blocks of products, in one loop over blocks."""
    first, add = _series(params, x)

    def add_block(carry, block):
        orders = BLOCK * block + jnp.arange(1, BLOCK + 1, dtype=x.dtype)
        return jax.lax.cond(
            block < num_blocks,
            lambda carry: jax.lax.scan(add, carry, orders)[0],
            lambda carry: carry,
            carry,
        ), None

    blocks = jnp.arange(len(NUM_PRODUCTS), dtype=x.dtype)
    return jax.lax.scan(add_block, first, blocks)[0][0]


def gaps_by_products(
    params: Params, x: Float[Array, " visible"], *, num_products: int
) -> Float[Array, " visible"]:
    """Gaps by the first `num_products` terms of the series, to within `tail_bound`.

    >>> params, x = init(jax.random.key(0), 3, 2, scale=1.0), jnp.array([0.0, 1.0, 1.0])
    >>> gaps = gaps_by_products(params, x, num_products=16)
    >>> bool(jnp.abs(gaps - exact_gaps(params, x)).max() < 1e-4)
    True
    """
    first, add = _series(params, x)
    orders = jnp.arange(1, num_products + 1, dtype=x.dtype)
    return jax.lax.scan(add, first, orders)[0][0]


def _series(params, x):
    """Return the gaps without products, and a function that adds the next product."""
    weight, visible_bias, hidden_bias = params
    change = 1 - 2 * x
    q, z = -jnp.tanh(weight / 4), jnp.tanh((x @ weight + hidden_bias) / 2)
    gaps = change * (visible_bias + weight.sum(1) / 2) - jnp.log1p(-(q**2)).sum(1)

    def add(carry, p):
        gaps, power, previous, chebyshev = carry
        term = (2 / p) * (power @ chebyshev)
        gaps = gaps - jnp.where(p % 2 == 1, change * term, term)
        return (gaps, power * q, chebyshev, 2 * z * chebyshev - previous), None

    return (gaps, q, jnp.ones_like(z), z), add


def tail_bound(
    weight: Float[Array, "visible hidden"], num_products: int
) -> Float[Array, " visible"]:
    """Bound on the error of `gaps_by_products` for each visible unit.

    >>> bool((tail_bound(jnp.ones((4, 10)), 8) < 1e-4).all())
    True
    """
    q, order = jnp.tanh(jnp.abs(weight) / 4), num_products + 1
    return 2 * jnp.sum(q**order / (order * (1 - q)), axis=1)


def exact_gaps(params: Params, x: Float[Array, " visible"]) -> Float[Array, " visible"]:
    """Gaps up to rounding for weights of any size, in a loop over visible units.

    >>> params = Params(jnp.zeros((2, 1)), jnp.array([1.0, 2.0]), jnp.zeros(1))
    >>> exact_gaps(params, jnp.array([0.0, 1.0])).tolist()
    [1.0, -2.0]
    """
    by_rises = partial(_gaps_by_units, _rises)

    def by_size(params, x):
        largest = jnp.abs(jax.lax.stop_gradient(params.weight)).max()
        moderate = partial(_gaps_by_units, _moderate_rises)
        return jax.lax.cond(largest < MODERATE, moderate, by_rises, params, x)

    # A CPU saves half of the time for moderate weights, other platforms code.
    return jax.lax.platform_dependent(params, x, cpu=by_size, default=by_rises)


def _gaps_by_units(rises, params, x):
    """Gaps in a loop over visible units.

    Args:
        rises: function of the log odds of the hidden units that returns a function of
            the weights of one unit and its state: what each hidden unit adds to the
            gap.
    """
    added = rises(x @ params.weight + params.hidden_bias)

    # Without a checkpoint, the gradient would store rows x visible x hidden numbers.
    @jax.checkpoint
    def gap(unit):
        weight, bias, on = unit
        return (1 - 2 * on) * bias + jnp.sum(added(weight, on))

    return jax.lax.map(gap, (params.weight, params.visible_bias, x))


def _moderate_rises(field):
    off_chance, on_chance = jax.nn.sigmoid(-field), jax.nn.sigmoid(field)

    def added(weight, on):
        # Under vmap over parameters both branches are computed, and must be finite.
        weight = jnp.clip(weight, -MODERATE, MODERATE)
        # These exponentials do not depend on the row, so a batch shares them.
        factor = jnp.where(on == 1, jnp.exp(-weight), jnp.exp(weight))
        return jnp.log(off_chance + on_chance * factor)

    return added


def _rises(field):
    def added(weight, on):
        # Exponentials of large weights would overflow, or leave the logarithm of 0.
        turned = jax.nn.softplus(field + (1 - 2 * on) * weight)
        return turned - jax.nn.softplus(field)

    return added


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
