"""Independent component analysis: as many filters as sites, with Laplace responses.

    E(x) = sum_k |J_k x|,    log Z = K log 2 - log|det J|

with the absolute value of the determinant of the filters J (K x K, rows J_k), where the
thesis prints |J^-1|. Responses u = J x are independent Laplace variables, so that exact
draws are x = J^-1 u, and the columns of J^-1 are what each of them adds to the data.
These are Laplace experts of strength 1, as many as sites. Singular filters respond to
nothing along some direction and have no density: log Z is infinite, and drivers that
need it refuse them.

The order and the signs of the filters are open; their lengths are not, as they are the
scales of the responses. `canonical` has the longest filter first and the largest entry
of each above zero. `amari_distance` compares filters whatever their order, signs and
lengths.

A fit by `MaximumLikelihood(energy, log_z=log_z)` finds a mean of absolute values, which
has a kink wherever a response is zero: its gradient falls no further than about the
length of a row over the number of rows; choose `stop=GradientNorm(...)` accordingly.

Reference: thesis, "Independent Component Analysis"; Bell and Sejnowski, Neural
Computation 7, 1129 (1995).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax import random
from probjax.checks import check_count, is_concrete
from probjax.models.canonical import lengths, longest_first, signs
from probjax.models.experts import filter_rank
from probjax.potential import closed_form
from probjax.types import Array, Float, PRNGKeyArray, Scalar


class Params(NamedTuple):
    """A filter for every component.

    >>> params = Params(filters=jnp.array([[1.0, 0.0], [1.0, 2.0]]))
    >>> float(energy(params, jnp.array([1.0, -1.0])))  # |1| + |1 - 2|
    2.0
    """

    filters: Float[Array, "component site"]
    """J: its rows J_k are what each component responds to."""


def init(key: PRNGKeyArray, size: int) -> Params:
    """Independent normal filters, to which white data respond with variance 1.

    Args:
        size: number of sites, and of components.

    >>> init(jax.random.key(0), 4).filters.shape
    (4, 4)
    """
    check_count("size", size)
    return Params(random.normal(key, (size, size)) / math.sqrt(size))


def unnormalisable(params: Params) -> str:
    """What leaves the model without a finite Z, in words; "" if nothing does.

    >>> unnormalisable(Params(jnp.array([[1.0, 2.0], [2.0, 4.0]]))).split(",")[0]
    'the filters are singular: they span 1 of 2 directions'
    >>> unnormalisable(Params(jnp.eye(2)))
    ''
    """
    if not is_concrete(params):
        return ""
    filters = np.asarray(params.filters)
    if not np.isfinite(filters).all():
        return "filters must be finite, got NaN or infinity"
    rank, size = filter_rank(filters), filters.shape[1]
    if rank < size:
        return (
            f"the filters are singular: they span {rank} of {size} directions, and "
            "along the others nothing falls off"
        )
    return ""


@closed_form(unnormalisable=unnormalisable)
def energy(params: Params, x: Float[Array, " site"]) -> Scalar:
    """The energy sum_k |J_k x| of one state.

    >>> float(energy(Params(2 * jnp.eye(2)), jnp.array([1.0, -1.0])))
    4.0
    """
    _check_square(params)
    size = params.filters.shape[1]
    if x.shape != (size,):
        raise ValueError(f"x must have the {size} sites of params, got shape {x.shape}")
    # The state first: over many states this is a product without transposes.
    return jnp.sum(jnp.abs(x @ params.filters.T))


def log_z(params: Params) -> Scalar:
    """K log 2 - log|det J|; inf if the filters are singular.

    >>> round(float(log_z(Params(jnp.eye(2)))), 4)  # 2 log 2
    1.3863
    """
    _check_square(params)
    size = len(params.filters)
    return size * math.log(2) - jnp.linalg.slogdet(params.filters)[1]


def log_likelihood(params: Params, x: Float[Array, " site"]) -> Scalar:
    """Log p(x) of one state.

    >>> params = Params(jnp.eye(2))
    >>> round(float(log_likelihood(params, jnp.array([1.0, -1.0]))), 4)  # -2 - 2 log 2
    -3.3863
    """
    return -energy(params, x) - log_z(params)


def sample(
    key: PRNGKeyArray, params: Params, *, num_draws: int
) -> Float[Array, "draw site"]:
    """Exact draws, J^-1 times Laplace variables.

    >>> params = Params(jnp.array([[1.0, 0.0], [0.0, 2.0]]))
    >>> draws = sample(jax.random.key(0), params, num_draws=1000)
    >>> size = jnp.abs(draws).mean(0)  # of Laplace variables, 1 over the filter
    >>> bool(jnp.abs(size - jnp.array([1.0, 0.5])).max() < 0.2)
    True
    """
    _check_square(params)
    check_count("num_draws", num_draws)
    if trouble := unnormalisable(params):
        raise ValueError(f"the model has no draws: {trouble}")
    shape, dtype = (num_draws, len(params.filters)), params.filters.dtype
    responses = jax.random.laplace(key, shape, dtype)
    return jnp.linalg.solve(params.filters, responses.T).T


def canonical(params: Params) -> Params:
    """The same model, with its longest filter first and signs settled.

    >>> canonical(Params(jnp.array([[1.0, 0.5], [2.0, -3.0]]))).filters.tolist()
    [[-2.0, 3.0], [1.0, 0.5]]
    """
    filters = params.filters * signs(params.filters)[:, None]
    return Params(filters[longest_first(filters)])


def amari_distance(
    filters: Float[Array, "component site"], others: Float[Array, "component site"]
) -> Scalar:
    """How far filters are from others: 0 if they are the same, at most 1.

    With all rows brought to length 1 and G = |J_filters J_others^-1|, it is

        sum_k [sum_j G_kj / max_j G_kj - 1 + sum_j G_jk / max_j G_jk - 1]
        / (2 K (K - 1)),

    which no order, sign or length of a filter changes: 0 if every filter is a multiple
    of one of the others, and each of another one.

    Args:
        others: what they are measured against, as the filters that drew the data: a
            regular matrix. The inverse of a mixing matrix, if that is known.

    Reference: Amari, Cichocki and Yang, NIPS 8, 757 (1996).

    >>> filters = jnp.array([[1.0, 2.0], [0.5, -1.0]])
    >>> round(float(amari_distance(filters[::-1] * -3, filters)), 6)
    0.0
    """
    if filters.shape != others.shape or filters.shape != 2 * (len(filters),):
        raise ValueError(
            "filters and others must be square and of one size, got shapes "
            f"{filters.shape} and {others.shape}"
        )
    size = len(filters)
    if size == 1:
        return jnp.zeros((), filters.dtype)
    mine, theirs = (rows / lengths(rows)[:, None] for rows in (filters, others))
    crossed = jnp.abs(jnp.linalg.solve(theirs.T, mine.T))
    apart = [jnp.sum(_shares(g)) - size for g in (crossed, crossed.T)]
    return (apart[0] + apart[1]) / (2 * size * (size - 1))


def _shares(crossed):
    """Of the largest in each column; a filter of zeros is as like one as the other."""
    largest = jnp.broadcast_to(crossed.max(0), crossed.shape)
    return jnp.where(largest > 0, crossed / jnp.where(largest > 0, largest, 1), 1)


def _check_square(params):
    shape = params.filters.shape
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"filters must be a square matrix, got shape {shape}")
