"""Gaps of a restricted Boltzmann machine: changes of its energy by flips.

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

Reference: thesis, appendix "MPF objective function for a Restricted Boltzmann Machine
(RBM)".
"""

from functools import partial

import jax
import jax.numpy as jnp

from probjax.models.rbm.layers import check_visible
from probjax.types import Array, Float, Params

BLOCK = 8
NUM_PRODUCTS = (8, 16, 24, 32)
"""Numbers of terms between which `flip_gaps` chooses."""
MODERATE = 40.0
"""Magnitude of weights whose exponentials are exact in float32."""


def flip_gaps(params: Params, x: Float[Array, " visible"]) -> Float[Array, " visible"]:
    """E(x) - E(x with visible unit n flipped) for every n.

    They are computed in the cheapest way that is accurate for these weights.

    >>> from probjax import rbm
    >>> params = rbm.init(jax.random.key(0), 3, 2, scale=1.0)
    >>> x, other = jnp.array([0.0, 1.0, 1.0]), jnp.array([1.0, 1.0, 1.0])
    >>> gap = rbm.energy(params, x) - rbm.energy(params, other)
    >>> bool(jnp.abs(flip_gaps(params, x)[0] - gap) < 1e-5)
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

    >>> from probjax import rbm
    >>> params = rbm.init(jax.random.key(0), 3, 2, scale=1.0)
    >>> x = jnp.array([0.0, 1.0, 1.0])
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

    >>> from probjax import rbm
    >>> params = rbm.Params(jnp.zeros((2, 1)), jnp.array([1.0, 2.0]), jnp.zeros(1))
    >>> exact_gaps(params, jnp.array([0.0, 1.0])).tolist()
    [1.0, -2.0]
    """
    by_rises = partial(_gaps_by_units, _rises)

    def by_size(params, x):
        largest = jnp.abs(jax.lax.stop_gradient(params.weight)).max()
        moderate = partial(_gaps_by_units, _moderate_rises)
        return jax.lax.cond(largest < MODERATE, moderate, by_rises, params, x)

    # For moderate weights a CPU takes a fifth of the time; other platforms save code.
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
