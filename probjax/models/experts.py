"""Products of experts: each likes the response of one linear filter to be small.

    E(x) = sum_l lambda_l log(1 + (f_l x)^2)       Student's t experts
    E(x) = sum_l lambda_l |f_l x|                  Laplace experts

The rows f_l of `filters` are the experts'. With as many experts as sites the responses
u = F x are independent, so that the partition function is a product of integrals over
one response each, over |det F|, and exact draws are x = F^-1 u:

    log Z = sum_l [log(pi) / 2 + ln Gamma(lambda_l - 1/2) - ln Gamma(lambda_l)]
            - log|det F|                           Student's t, every lambda_l > 1/2
    log Z = sum_l log(2 / lambda_l) - log|det F|   Laplace

A Student's t expert is a t density of nu = 2 lambda - 1 degrees of freedom in
u sqrt(nu): its moments from order nu on are infinite.

The order and the signs of the filters are open. A Laplace expert's strength is nothing
but the length of its filter, so that `laplace_chart` holds it; that of a Student's t
expert is the order of its tails, and `student_t_chart` keeps it where it may be.
`laplace_canonical` and `student_t_canonical` settle what is open.

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
from probjax.models.canonical import longest_first, signs
from probjax.potential import closed_form
from probjax.trees import float_dtype
from probjax.types import Array, Float, PRNGKeyArray, Scalar


class Params(NamedTuple):
    """A filter and a strength for every expert.

    >>> params = Params(filters=jnp.eye(2), strength=jnp.array([1.0, 2.0]))
    >>> float(laplace(params, jnp.array([1.0, -2.0])))  # 1 |1| + 2 |-2|
    5.0
    """

    filters: Float[Array, "expert site"]
    """The rows f_l: what each expert responds to."""
    strength: Float[Array, " expert"]
    """lambda_l: how much a response costs."""


def init(key: PRNGKeyArray, size: int, num_experts: int | None = None) -> Params:
    """Independent normal filters, and strengths of 1.

    White data of variance 1 have responses of variance 1.

    Args:
        size: number of sites.
        num_experts: as many as sites if None, so that log Z is known.

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
    """What leaves Laplace experts without a finite Z, in words; "" if nothing does.

    Experts of strength 0 count for nothing. Negative strengths are none of an expert,
    whatever the others make good.

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
            "directions, and along the others nothing falls off"
        )
    return ""


def student_t_unnormalisable(params: Params) -> str:
    """What leaves Student's t experts without a finite Z, in words; "" if not seen.

    As for Laplace experts, and as many experts as sites need strengths above 1/2. With
    more, those that respond somewhere in a subspace V must have
    sum_l 2 lambda_l > dim V, for every V. Only the whole space is looked at, so that
    this is necessary, and not sufficient.

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
    """How many directions the rows of a concrete matrix span."""
    if not len(filters):
        return 0
    # Of rows of one length, as a long one would drown the others.
    lengths = np.linalg.norm(filters, axis=1, keepdims=True)
    return int(np.linalg.matrix_rank(filters / np.where(lengths > 0, lengths, 1)))


@closed_form(unnormalisable=student_t_unnormalisable)
def student_t(params: Params, x: Float[Array, " site"]) -> Scalar:
    """The energy sum_l lambda_l log(1 + (f_l x)^2) of one state.

    >>> params = Params(jnp.eye(2), jnp.array([1.0, 2.0]))
    >>> round(float(student_t(params, jnp.array([1.0, 1.0]))), 4)  # 3 log 2
    2.0794
    """
    _check(params, x)
    return jnp.log1p(_responses(params, x) ** 2) @ params.strength


@closed_form(unnormalisable=laplace_unnormalisable)
def laplace(params: Params, x: Float[Array, " site"]) -> Scalar:
    """The energy sum_l lambda_l |f_l x| of one state.

    >>> params = Params(jnp.eye(2), jnp.array([1.0, 2.0]))
    >>> float(laplace(params, jnp.array([1.0, 1.0])))
    3.0
    """
    _check(params, x)
    return jnp.abs(_responses(params, x)) @ params.strength


def student_t_log_z(params: Params) -> Scalar:
    """Log Z of as many Student's t experts as sites; inf if it is not finite.

    >>> params = Params(jnp.eye(2), jnp.ones(2))
    >>> round(float(student_t_log_z(params)), 4)  # 2 log pi
    2.2895
    """
    _check_complete(params)
    strength = params.strength
    each = jnp.log(jnp.pi) / 2 + gammaln(strength - 0.5) - gammaln(strength)
    each = jnp.where(strength > 0.5, each, jnp.inf)
    return jnp.sum(each) - jnp.linalg.slogdet(params.filters)[1]


def laplace_log_z(params: Params) -> Scalar:
    """Log Z of as many Laplace experts as sites; inf if it is not finite.

    >>> params = Params(jnp.eye(2), jnp.ones(2))
    >>> round(float(laplace_log_z(params)), 4)  # 2 log 2
    1.3863
    """
    _check_complete(params)
    each = jnp.where(params.strength > 0, jnp.log(2 / params.strength), jnp.inf)
    return jnp.sum(each) - jnp.linalg.slogdet(params.filters)[1]


def sample_student_t(
    key: PRNGKeyArray, params: Params, *, num_draws: int
) -> Float[Array, "draw site"]:
    """Exact draws from as many Student's t experts as sites.

    >>> params = Params(jnp.eye(2), jnp.ones(2))
    >>> draws = sample_student_t(jax.random.key(0), params, num_draws=1000)
    >>> share = (jnp.abs(draws) < 1).mean()  # of Cauchy variables, a half
    >>> bool(jnp.abs(share - 0.5) < 0.1)
    True
    """
    _check_draws(params, student_t_unnormalisable(params), num_draws)
    shape, dtype = (num_draws, len(params.strength)), float_dtype(params)
    normal_key, gamma_key = random.split(key)
    # t / sqrt(nu) is a normal over the root of twice a gamma variable, whose logarithm
    # is taken as it underflows itself where a strength is little above 1/2.
    shapes = params.strength.astype(dtype) - 0.5
    log_gamma = jax.random.loggamma(
        gamma_key, jnp.broadcast_to(shapes, shape), dtype=dtype
    )
    noise = random.normal(normal_key, shape, dtype)
    return _states(params, noise * jnp.exp(-log_gamma / 2) / math.sqrt(2))


def sample_laplace(
    key: PRNGKeyArray, params: Params, *, num_draws: int
) -> Float[Array, "draw site"]:
    """Exact draws from as many Laplace experts as sites.

    >>> params = Params(jnp.eye(2), jnp.ones(2))
    >>> draws = sample_laplace(jax.random.key(0), params, num_draws=1000)
    >>> bool(jnp.abs(jnp.abs(draws).mean() - 1) < 0.2)
    True
    """
    _check_draws(params, laplace_unnormalisable(params), num_draws)
    shape = (num_draws, len(params.strength))
    noise = jax.random.laplace(key, shape, float_dtype(params))
    return _states(params, noise / params.strength[None])


def student_t_chart(params: Params) -> Composed:
    """A chart for `fit` that keeps strengths above 0; above 1/2 if there are as many
    experts as sites, as these have no finite Z otherwise.

    More experts than sites may still become too weak together: `ais` refuses them then.

    >>> params = Params(jnp.eye(2), jnp.ones(2))
    >>> chart = student_t_chart(params)
    >>> far = chart.forward(params)._replace(strength=jnp.full(2, -5.0))
    >>> bool((chart.inverse(far).strength > 0.5).all())
    True
    """
    _check_strength(params)
    experts, size = params.filters.shape
    # As near to 1/2 as can be told from it where numbers are of single precision.
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
    """A chart for `fit` that holds the strengths, and lets the filters move.

    >>> params = Params(jnp.eye(2), jnp.ones(2))
    >>> moved = Params(2 * jnp.eye(2), jnp.full(2, 7.0))
    >>> found = laplace_chart(params).inverse(moved)
    >>> found.filters.tolist(), found.strength.tolist()
    ([[2.0, 0.0], [0.0, 2.0]], [1.0, 1.0])
    """
    return Frozen(params, Params._make([True, False]))


def student_t_canonical(params: Params) -> Params:
    """The same energy: the longest filter first, largest entries above zero.

    >>> params = Params(jnp.array([[1.0, 0.5], [2.0, -3.0]]), jnp.array([1.0, 2.0]))
    >>> found = student_t_canonical(params)
    >>> found.filters.tolist(), found.strength.tolist()
    ([[-2.0, 3.0], [1.0, 0.5]], [2.0, 1.0])
    """
    filters = params.filters * signs(params.filters)[:, None]
    order = longest_first(filters)
    return Params(filters[order], params.strength[order])


def laplace_canonical(params: Params) -> Params:
    """The same energy: strengths of 1, signs and order as for Student's t experts.

    >>> params = Params(jnp.array([[1.0, 0.5], [2.0, -3.0]]), jnp.array([1.0, 2.0]))
    >>> found = laplace_canonical(params)
    >>> found.filters.tolist(), found.strength.tolist()
    ([[-4.0, 6.0], [1.0, 0.5]], [1.0, 1.0])
    """
    filters, strength = params
    ones = jnp.ones_like(strength)
    return student_t_canonical(Params(filters * strength[:, None], ones))


def _responses(params, x):
    # The state first: over many states this is a product without transposes.
    return x @ params.filters.T


def _states(params, responses):
    return jnp.linalg.solve(params.filters, responses.T).T


def _check_draws(params, trouble, num_draws):
    _check_complete(params)
    check_count("num_draws", num_draws)
    if trouble:
        raise ValueError(f"the model has no draws: {trouble}")


def _check_complete(params):
    experts, size = params.filters.shape
    if experts != size:
        raise ValueError(
            f"this is known for as many experts as sites, got {experts} experts of "
            f"{size} sites"
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
    size = params.filters.shape[1]
    if x.shape != (size,):
        raise ValueError(f"x must have the {size} sites of params, got shape {x.shape}")
