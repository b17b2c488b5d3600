"""Products of experts: each expert favours small responses of one linear filter.

    E(x) = sum_l lambda_l log(1 + (f_l x)^2)       Student's t experts
    E(x) = sum_l lambda_l |f_l x|                  Laplace experts

The filter f_l of each expert is a row of F = `filters`. With as many experts as sites,
the responses u = F x are independent. Then Z is a product of one integral per response,
divided by |det F|, and x = F^-1 u is an exact draw:

    log Z = sum_l [log(pi) / 2 + ln Gamma(lambda_l - 1/2) - ln Gamma(lambda_l)]
            - log|det F|                           Student's t, every lambda_l > 1/2
    log Z = sum_l log(2 / lambda_l) - log|det F|   Laplace

For a Student's t expert, u sqrt(nu) has a t distribution with nu = 2 lambda - 1 degrees
of freedom, so the moments of u of order nu and above are infinite.

The model does not change with the order and the signs of the filters. The strength of a
Laplace expert only multiplies its filter, so `laplace_chart` fixes it. The strength of
a Student's t expert determines its tails, and `student_t_chart` keeps it in the range
where Z is finite. `laplace_canonical` and `student_t_canonical` pick one of all
equivalent parameters.

Reference: thesis, "Hamiltonian Annealed Importance Sampling", product of experts;
Hinton, Neural Computation 14, 1771 (2002).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from probjax import random
from probjax.checks import check_count, is_concrete
from probjax.fitting.charts import Affine, Composed, Frozen, Positive
from probjax.models.checks import check_size
from probjax.models.symmetries import longest_first, signs
from probjax.potential import closed_form
from probjax.trees import float_dtype
from probjax.types import Array, Float, PRNGKeyArray, Scalar


class Params(NamedTuple):
    """A filter and a strength for each expert.

    >>> params = Params(filters=jnp.eye(2), strength=jnp.array([1.0, 2.0]))
    >>> float(laplace(params, jnp.array([1.0, -2.0])))  # 1 |1| + 2 |-2|
    5.0
    """

    filters: Float[Array, "expert site"]
    """F, with the filter f_l of each expert as a row."""
    strength: Float[Array, " expert"]
    """lambda_l: factor of each expert's energy."""


def init(key: PRNGKeyArray, size: int, num_experts: int | None = None) -> Params:
    """Return independent normal filters, and strengths of 1.

    The responses to white data of variance 1 have variance 1.

    Args:
        size: number of sites.
        num_experts: number of experts; None for `size`, so that log Z is known.

    >>> params = init(jax.random.key(0), 4, 8)
    >>> params.filters.shape, params.strength.shape
    ((8, 4), (8,))
    """
    num_experts = size if num_experts is None else num_experts
    check_count("size", size)
    check_count("num_experts", num_experts)
    filters = random.normal(key, (num_experts, size)) / math.sqrt(size)
    return Params(filters, jnp.ones(num_experts))


def laplace_unnormalisable(params: Params) -> str:
    """Reason why Laplace experts do not have a finite Z; "" if none is detected.

    Experts of strength 0 are ignored. A negative strength is always a reason, even if
    the other experts would make Z finite.

    >>> laplace_unnormalisable(Params(jnp.eye(2), jnp.array([1.0, -1.0])))
    'strengths must not be negative, got -1'
    """
    if not is_concrete(params):
        return ""
    filters, strength = map(np.asarray, params)
    if not (np.isfinite(filters).all() and np.isfinite(strength).all()):
        return "filters and strengths must be finite, got NaN or infinity"
    if strength.min() < 0:
        return f"strengths must not be negative, got {strength.min():.3g}"
    rank, size = filter_rank(filters[strength > 0]), filters.shape[1]
    if rank < size:
        return (
            f"the filters of experts of positive strength span {rank} of {size} "
            "directions, and the energy is constant along the others"
        )
    return ""


def student_t_unnormalisable(params: Params) -> str:
    """Reason why Student's t experts do not have a finite Z; "" if none is detected.

    The conditions of Laplace experts apply. In addition, if there are as many experts
    as sites, each strength must be above 1/2. If there are more, each subspace V must
    have sum_l 2 lambda_l > dim V, with the sum over the experts that respond to V. This
    is tested for the whole space only, so the test is necessary but not sufficient.

    >>> student_t_unnormalisable(Params(jnp.eye(2), jnp.array([1.0, 0.5])))
    'as many experts as sites need strengths above 1/2, got 0.5'
    """
    if found := laplace_unnormalisable(params):
        return found
    if not is_concrete(params):
        return ""
    strength, size = np.asarray(params.strength, float), params.filters.shape[1]
    counted = strength[strength > 0]
    if len(counted) == size and counted.min() <= 0.5:
        return (
            "as many experts as sites need strengths above 1/2, got "
            f"{counted.min():.3g}"
        )
    if counted.sum() <= size / 2:
        return (
            f"the strengths must sum to more than half of {size} sites, got "
            f"{counted.sum():.3g}"
        )
    return ""


def filter_rank(filters: np.ndarray) -> int:
    """Rank of the rows of a concrete matrix, after each is scaled to length 1."""
    if not len(filters):
        return 0
    # Without the scaling, a long row would make the others count as zero.
    lengths = np.linalg.norm(filters, axis=1, keepdims=True)
    return int(np.linalg.matrix_rank(filters / np.where(lengths > 0, lengths, 1)))


@closed_form(unnormalisable=student_t_unnormalisable)
def student_t(params: Params, x: Float[Array, " site"]) -> Scalar:
    """Energy sum_l lambda_l log(1 + (f_l x)^2) of one state.

    >>> params = Params(jnp.eye(2), jnp.array([1.0, 2.0]))
    >>> round(float(student_t(params, jnp.array([1.0, 1.0]))), 4)  # 3 log 2
    2.0794
    """
    _check(params, x)
    return jnp.log1p(_responses(params, x) ** 2) @ params.strength


@closed_form(unnormalisable=laplace_unnormalisable)
def laplace(params: Params, x: Float[Array, " site"]) -> Scalar:
    """Energy sum_l lambda_l |f_l x| of one state.

    >>> params = Params(jnp.eye(2), jnp.array([1.0, 2.0]))
    >>> float(laplace(params, jnp.array([1.0, 1.0])))
    3.0
    """
    _check(params, x)
    return jnp.abs(_responses(params, x)) @ params.strength


def student_t_log_z(params: Params) -> Scalar:
    """Log Z of Student's t experts, one for each site; inf if Z is infinite.

    >>> params = Params(jnp.eye(2), jnp.ones(2))
    >>> round(float(student_t_log_z(params)), 4)  # 2 log pi
    2.2895
    """
    _check_square(params)
    strength = params.strength
    each = jnp.log(jnp.pi) / 2 + gammaln(strength - 0.5) - gammaln(strength)
    each = jnp.where(strength > 0.5, each, jnp.inf)
    return jnp.sum(each) - jnp.linalg.slogdet(params.filters)[1]


def laplace_log_z(params: Params) -> Scalar:
    """Log Z of Laplace experts, one for each site; inf if Z is infinite.

    >>> params = Params(jnp.eye(2), jnp.ones(2))
    >>> round(float(laplace_log_z(params)), 4)  # 2 log 2
    1.3863
    """
    _check_square(params)
    each = jnp.where(params.strength > 0, jnp.log(2 / params.strength), jnp.inf)
    return jnp.sum(each) - jnp.linalg.slogdet(params.filters)[1]


def sample_student_t(
    key: PRNGKeyArray, params: Params, *, num_draws: int
) -> Float[Array, "draw site"]:
    """Return exact draws of x for as many Student's t experts as sites.

    >>> params = Params(jnp.eye(2), jnp.ones(2))
    >>> draws = sample_student_t(jax.random.key(0), params, num_draws=1000)
    >>> share = (jnp.abs(draws) < 1).mean()  # 1/2 for Cauchy variables
    >>> bool(jnp.abs(share - 0.5) < 0.1)
    True
    """
    _check_draws(params, student_t_unnormalisable(params), num_draws)
    shape, dtype = (num_draws, len(params.strength)), float_dtype(params)
    normal_key, gamma_key = random.split(key)
    # t / sqrt(nu) is a normal divided by sqrt(2 g) for a gamma variable g. log g is
    # drawn, because g underflows if a strength is barely above 1/2.
    shapes = params.strength.astype(dtype) - 0.5
    log_gamma = jax.random.loggamma(
        gamma_key, jnp.broadcast_to(shapes, shape), dtype=dtype
    )
    noise = random.normal(normal_key, shape, dtype)
    return _states_of(params, noise * jnp.exp(-log_gamma / 2) / math.sqrt(2))


def sample_laplace(
    key: PRNGKeyArray, params: Params, *, num_draws: int
) -> Float[Array, "draw site"]:
    """Return exact draws of x for as many Laplace experts as sites.

    >>> params = Params(jnp.eye(2), jnp.ones(2))
    >>> draws = sample_laplace(jax.random.key(0), params, num_draws=1000)
    >>> bool(jnp.abs(jnp.abs(draws).mean() - 1) < 0.2)
    True
    """
    _check_draws(params, laplace_unnormalisable(params), num_draws)
    shape = (num_draws, len(params.strength))
    noise = jax.random.laplace(key, shape, float_dtype(params))
    return _states_of(params, noise / params.strength[None])


def student_t_chart(params: Params) -> Composed:
    """Chart for `fit` that keeps strengths in the range where Z is finite.

    The range is above 1/2 if there are as many experts as sites, and above 0 otherwise.
    With more experts than sites, all strengths together may still become too small for
    a finite Z; then `ais` raises an error.

    >>> params = Params(jnp.eye(2), jnp.ones(2))
    >>> chart = student_t_chart(params)
    >>> far = chart.forward(params)._replace(strength=jnp.full(2, -5.0))
    >>> bool((chart.inverse(far).strength > 0.5).all())
    True
    """
    _check_strength(params)
    experts, size = params.filters.shape
    # Above 1/2 by a margin that single precision resolves.
    least = 0.5 + 1e-6 if experts == size else 0.0
    found = np.asarray(params.strength).min() if is_concrete(params) else np.inf
    if not found > least:
        raise ValueError(
            f"strengths of {experts} experts of {size} sites must be above "
            f"{round(least, 3)}, got {found:.3g}"
        )
    above = Affine(shift=Params._make([0.0, least]))
    return Composed((above, Positive(Params._make([False, True]))))


def laplace_chart(params: Params) -> Frozen:
    """Chart for `fit` that fixes the strengths at their current values.

    >>> params = Params(jnp.eye(2), jnp.ones(2))
    >>> moved = Params(2 * jnp.eye(2), jnp.full(2, 7.0))
    >>> found = laplace_chart(params).inverse(moved)
    >>> found.filters.tolist(), found.strength.tolist()
    ([[2.0, 0.0], [0.0, 2.0]], [1.0, 1.0])
    """
    return Frozen(params, Params._make([True, False]))


def student_t_canonical(params: Params) -> Params:
    """Parameters of the same energy with ordered filters and fixed signs.

    The longest filter comes first. The entry of largest magnitude of each is positive.

    >>> params = Params(jnp.array([[1.0, 0.5], [2.0, -3.0]]), jnp.array([1.0, 2.0]))
    >>> found = student_t_canonical(params)
    >>> found.filters.tolist(), found.strength.tolist()
    ([[-2.0, 3.0], [1.0, 0.5]], [2.0, 1.0])
    """
    filters = params.filters * signs(params.filters)[:, None]
    order = longest_first(filters)
    return Params(filters[order], params.strength[order])


def laplace_canonical(params: Params) -> Params:
    """Parameters of the same energy with strengths of 1.

    Signs and order of the filters are those of `student_t_canonical`.

    >>> params = Params(jnp.array([[1.0, 0.5], [2.0, -3.0]]), jnp.array([1.0, 2.0]))
    >>> found = laplace_canonical(params)
    >>> found.filters.tolist(), found.strength.tolist()
    ([[-4.0, 6.0], [1.0, 0.5]], [1.0, 1.0])
    """
    filters, strength = params
    ones = jnp.ones_like(strength)
    return student_t_canonical(Params(filters * strength[:, None], ones))


def _responses(params, x):
    # With the state first, this product needs no transposes under vmap.
    return x @ params.filters.T


def _states_of(params, responses):
    return jnp.linalg.solve(params.filters, responses.T).T


def _check_draws(params, reason, num_draws):
    _check_square(params)
    check_count("num_draws", num_draws)
    if reason:
        raise ValueError(f"the model has no draws: {reason}")


def _check_square(params):
    experts, size = params.filters.shape
    if experts != size:
        raise ValueError(
            f"params must have as many experts as sites, got {experts} experts of "
            f"{size} sites; try ais for log Z and HMC for draws"
        )
    _check_strength(params)


def _check_strength(params):
    experts = len(params.filters)
    if params.strength.shape != (experts,):
        raise ValueError(
            f"params must have a strength for each of {experts} experts, got shape "
            f"{params.strength.shape}"
        )


def _check(params, x):
    _check_strength(params)
    check_size("x", x, params.filters.shape[1], "sites")
