"""The restricted Boltzmann machine over x in {0, 1}^v, its hidden units summed out.

    E(x) = -b'x - sum_h softplus(f_h),    f = W'x + c

With d_n = 1 - 2 x_n, flipping visible unit n gives

    E(x) - E(x') = d_n b_n + sum_h log(sigmoid(-f_h) + sigmoid(f_h) exp(d_n W_nh)).

There are two ways to all these gaps. The *exact* one goes over visible units. The other
has no loop: with q = tanh(W / 4) and z = tanh(f / 2),

    gap_n = d_n (b_n + sum_h W_nh / 2) - sum_h log(1 - q_nh^2)
            - 2 sum_(p >= 1) sum_h (-d_n q_nh)^p T_p(z_h) / p,

T_p being Chebyshev polynomials, so that P terms are P matrix products for all rows and
units at once. As |T_p| <= 1, the terms left out amount to at most

    2 sum_h |q_nh|^(P+1) / ((P+1) (1 - |q_nh|)).

The compiled program picks the fewest products that make this negligible, or the exact
way where weights are too large for any.

Reference: thesis, "Deep Belief Network" and the appendix "MPF objective function for a
Restricted Boltzmann Machine (RBM)".
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.bases.fits import fit_bernoulli
from probjax.exact import enumeration
from probjax.potential import closed_form
from probjax.types import Array, ArrayLike, Data, Float, PRNGKeyArray, Scalar

NUM_PRODUCTS = (8, 16, 32)


class Params(NamedTuple):
    """Weights between the layers, and a bias for every unit.

    >>> params = Params(jnp.array([[1.0], [2.0]]), jnp.zeros(2), jnp.zeros(1))
    >>> hidden_log_odds(params, jnp.array([1.0, 1.0])).tolist()
    [3.0]
    """

    weight: Float[Array, "visible hidden"]
    """Positive where two units like to be on together."""
    visible_bias: Float[Array, " visible"]
    hidden_bias: Float[Array, " hidden"]


def init(
    key: PRNGKeyArray,
    num_visible: int,
    num_hidden: int,
    *,
    scale: float = 0.01,
    data: ArrayLike | Data | None = None,
) -> Params:
    """Independent normal weights of standard deviation `scale`, and no biases.

    Args:
        data: rows of bits, whose log odds are the visible biases then, with one row of
            halves added; where units are mostly off, as of digits, that learns faster.

    >>> init(jax.random.key(0), 6, 3).weight.shape
    (6, 3)
    >>> rows = jnp.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    >>> bias = init(jax.random.key(0), 2, 1, data=rows).visible_bias
    >>> [round(float(each), 2) for each in bias]  # the logarithm of 3.5 / 0.5
    [1.95, -1.95]
    """
    if min(num_visible, num_hidden) < 1:
        raise ValueError(
            f"both layers must have units, got {num_visible} and {num_hidden}"
        )
    weight = scale * jax.random.normal(key, (num_visible, num_hidden))
    bias = jnp.zeros(num_visible)
    if data is not None:
        bias = jnp.asarray(fit_bernoulli(data).log_odds, weight.dtype)
    params = Params(weight, jnp.zeros(num_visible), jnp.zeros(num_hidden))
    check_visible(params, bias)
    return params._replace(visible_bias=bias)


def flip_gaps(params: Params, x: Float[Array, " visible"]) -> Float[Array, " visible"]:
    """E(x) - E(x with visible unit n flipped) for every n, the cheapest safe way.

    >>> params, x = init(jax.random.key(0), 3, 2, scale=1.0), jnp.array([0.0, 1.0, 1.0])
    >>> other = jnp.array([1.0, 1.0, 1.0])
    >>> rise = flip_gaps(params, x)[0] - (energy(params, x) - energy(params, other))
    >>> bool(jnp.abs(rise) < 1e-5)
    True
    """
    check_visible(params, x)
    # Chosen from the parameters alone, so that a batch of states shares one branch.
    weight = jax.lax.stop_gradient(params.weight)
    tolerance = 50 * jnp.finfo(weight.dtype).eps
    fits = [tail_bound(weight, count).max() <= tolerance for count in NUM_PRODUCTS]
    ways = [partial(gaps_by_products, num_products=count) for count in NUM_PRODUCTS]
    branch = jnp.sum(~jnp.stack(fits))
    return jax.lax.switch(branch, [*ways, exact_gaps], params, x)


def gaps_by_products(
    params: Params, x: Float[Array, " visible"], *, num_products: int
) -> Float[Array, " visible"]:
    """The gaps to within `tail_bound`, by matrix products alone.

    >>> params, x = init(jax.random.key(0), 3, 2, scale=1.0), jnp.array([0.0, 1.0, 1.0])
    >>> gaps = gaps_by_products(params, x, num_products=16)
    >>> bool(jnp.abs(gaps - exact_gaps(params, x)).max() < 1e-4)
    True
    """
    weight, visible_bias, hidden_bias = params
    turn = 1 - 2 * x
    q, z = -jnp.tanh(weight / 4), jnp.tanh((x @ weight + hidden_bias) / 2)
    gaps = turn * (visible_bias + weight.sum(1) / 2) - jnp.log1p(-(q**2)).sum(1)

    # In a loop: written out, the products of all branches take seconds to trace.
    def add(carry, p):
        gaps, power, before, chebyshev = carry
        term = (2 / p) * (power @ chebyshev)
        gaps = gaps - jnp.where(p % 2 == 1, turn * term, term)
        return (gaps, power * q, chebyshev, 2 * z * chebyshev - before), None

    orders = jnp.arange(1, num_products + 1, dtype=z.dtype)
    (gaps, *_), _ = jax.lax.scan(add, (gaps, q, jnp.ones_like(z), z), orders)
    return gaps


def tail_bound(
    weight: Float[Array, "visible hidden"], num_products: int
) -> Float[Array, " visible"]:
    """The most that `gaps_by_products` can be off for each visible unit.

    >>> bool((tail_bound(jnp.ones((4, 10)), 8) < 1e-4).all())
    True
    """
    q, after = jnp.tanh(jnp.abs(weight) / 4), num_products + 1
    return 2 * jnp.sum(q**after / (after * (1 - q)), axis=1)


def exact_gaps(params: Params, x: Float[Array, " visible"]) -> Float[Array, " visible"]:
    """The gaps to rounding, whatever the weights, visible unit by visible unit.

    >>> params = Params(jnp.zeros((2, 1)), jnp.array([1.0, 2.0]), jnp.zeros(1))
    >>> exact_gaps(params, jnp.array([0.0, 1.0])).tolist()
    [1.0, -2.0]
    """
    field = x @ params.weight + params.hidden_bias
    stays, goes = jax.nn.sigmoid(-field), jax.nn.sigmoid(field)

    # Nothing of the size of rows x visible x hidden is kept for the gradient.
    @jax.checkpoint
    def gap(unit):
        weight, bias, on = unit
        # Exponentials of parameters alone, shared by all rows of a batch.
        change = jnp.where(on == 1, jnp.exp(-weight), jnp.exp(weight))
        return (1 - 2 * on) * bias + jnp.sum(jnp.log(stays + goes * change))

    return jax.lax.map(gap, (params.weight, params.visible_bias, x))


@closed_form(flip_gaps=flip_gaps)
def energy(params: Params, x: Float[Array, " visible"]) -> Scalar:
    """The energy -b'x - sum_h softplus(W'x + c)_h of one visible state.

    Others call it the free energy, as the hidden units are summed out of it.

    >>> params = Params(jnp.zeros((2, 1)), jnp.array([1.0, 2.0]), jnp.zeros(1))
    >>> round(float(energy(params, jnp.array([1.0, 1.0]))), 4)  # -3 - log 2
    -3.6931
    """
    check_visible(params, x)
    field = x @ params.weight + params.hidden_bias
    return -(params.visible_bias @ x) - jnp.sum(jax.nn.softplus(field))


def hidden_log_odds(
    params: Params, x: Float[Array, " visible"]
) -> Float[Array, " hidden"]:
    """W'x + c: the log odds that each hidden unit is on, given the visible ones.

    >>> params = Params(jnp.array([[1.0], [2.0]]), jnp.zeros(2), jnp.array([-3.0]))
    >>> hidden_log_odds(params, jnp.array([0.0, 1.0])).tolist()
    [-1.0]
    """
    check_visible(params, x)
    return x @ params.weight + params.hidden_bias


def visible_log_odds(
    params: Params, hidden: Float[Array, " hidden"]
) -> Float[Array, " visible"]:
    """W h + b: the log odds that each visible unit is on, given the hidden ones.

    >>> params = Params(jnp.array([[1.0], [2.0]]), jnp.array([0.0, 0.5]), jnp.zeros(1))
    >>> visible_log_odds(params, jnp.array([1.0])).tolist()
    [1.0, 2.5]
    """
    if hidden.shape != params.hidden_bias.shape:
        raise ValueError(
            f"hidden must have the {len(params.hidden_bias)} hidden units of params, "
            f"got shape {hidden.shape}"
        )
    return hidden_log_odds(transpose(params), hidden)


def hidden_means(
    params: Params, x: Float[Array, " visible"]
) -> Float[Array, " hidden"]:
    """The probability that each hidden unit is on, given the visible ones.

    >>> params = Params(jnp.array([[1.0], [2.0]]), jnp.zeros(2), jnp.array([-3.0]))
    >>> hidden_means(params, jnp.array([1.0, 1.0])).tolist()
    [0.5]
    """
    return jax.nn.sigmoid(hidden_log_odds(params, x))


def visible_means(
    params: Params, hidden: Float[Array, " hidden"]
) -> Float[Array, " visible"]:
    """The probability that each visible unit is on, given the hidden ones.

    >>> weight, bias = jnp.array([[1.0], [2.0]]), jnp.array([-1.0, -2.0])
    >>> params = Params(weight, bias, jnp.zeros(1))
    >>> visible_means(params, jnp.array([1.0])).tolist()
    [0.5, 0.5]
    """
    return jax.nn.sigmoid(visible_log_odds(params, hidden))


def sample_hidden(
    key: PRNGKeyArray, params: Params, x: Float[Array, " visible"]
) -> Float[Array, " hidden"]:
    """Hidden units drawn given the visible ones.

    >>> params = Params(jnp.zeros((2, 2)), jnp.zeros(2), jnp.array([50.0, -50.0]))
    >>> sample_hidden(jax.random.key(0), params, jnp.array([0.0, 1.0])).tolist()
    [1.0, 0.0]
    """
    return _bits(key, hidden_means(params, x))


def sample_visible(
    key: PRNGKeyArray, params: Params, hidden: Float[Array, " hidden"]
) -> Float[Array, " visible"]:
    """Visible units drawn given the hidden ones.

    >>> params = Params(jnp.zeros((2, 2)), jnp.array([50.0, -50.0]), jnp.zeros(2))
    >>> sample_visible(jax.random.key(0), params, jnp.array([0.0, 1.0])).tolist()
    [1.0, 0.0]
    """
    return _bits(key, visible_means(params, hidden))


def reconstruct(
    params: Params, x: Float[Array, " visible"]
) -> Float[Array, " visible"]:
    """What the means of the hidden units make of a state: up and down once, as means.

    It is near `x` where the machine knows it; that is no likelihood.

    >>> params = Params(jnp.full((2, 1), 20.0), jnp.full(2, -10.0), jnp.array([-20.0]))
    >>> reconstruct(params, jnp.array([1.0, 1.0])).round().tolist()
    [1.0, 1.0]
    >>> reconstruct(params, jnp.array([0.0, 0.0])).round().tolist()
    [0.0, 0.0]
    """
    return visible_means(params, hidden_means(params, x))


def _bits(key, chances):
    levels = random.uniform(key, chances.shape, chances.dtype)
    return (levels < chances).astype(chances.dtype)


def transpose(params: Params) -> Params:
    """The machine with its layers exchanged: the same joint, the other marginal.

    >>> transpose(init(jax.random.key(0), 6, 3)).weight.shape
    (3, 6)
    """
    return Params(params.weight.T, params.hidden_bias, params.visible_bias)


def log_z(params: Params) -> Scalar:
    """Log of the sum over all states, by enumerating the smaller layer (up to 22).

    >>> params = Params(jnp.zeros((2, 1)), jnp.zeros(2), jnp.zeros(1))
    >>> round(float(log_z(params)), 4)  # log 8, of 2 visible units and a hidden one
    2.0794
    """
    visible, hidden = params.weight.shape
    params = params if visible <= hidden else transpose(params)
    return enumeration.log_z(energy, params, min(visible, hidden))


def check_visible(params: Params, x: Float[Array, " visible"]) -> None:
    """Refuse a state that is not of the visible units of `params`."""
    if x.shape != params.visible_bias.shape:
        raise ValueError(
            f"x must have the {len(params.visible_bias)} visible units of params, "
            f"got shape {x.shape}"
        )
