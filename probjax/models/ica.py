"""Independent component analysis: as many filters as sites, with Laplace responses.

    E(x) = sum_k |J_k x|,    log Z = K log 2 - log|det J|

The filters J_k are the rows of J (K x K). Log Z has the absolute value of the
determinant of J; the thesis prints |J^-1|. The responses u = J x are independent
Laplace variables, so x = J^-1 u is an exact draw, and column k of J^-1 is the
contribution of component k to the data. The model is a product of K Laplace experts of
strength 1. If J is singular, the energy is constant along some direction and log Z is
infinite; drivers that need log Z then raise an error.

The model does not change with the order and the signs of the filters. Their lengths
matter, because they are the inverse scales of the components. `canonical` puts the
longest filter first and makes the entry of largest magnitude of each positive.
`amari_distance` compares filters irrespective of order, signs and lengths.

`MaximumLikelihood(energy, log_z=log_z)` minimises a mean of absolute values, which has
a kink wherever a response is zero. So the norm of its gradient stays above about the
length of a row divided by the number of rows; choose `stop=GradientNorm(...)`
accordingly.

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
from probjax.models.checks import check_size
from probjax.models.experts import filter_rank
from probjax.models.symmetries import lengths, longest_first, signs
from probjax.potential import closed_form
from probjax.types import Array, Float, PRNGKeyArray, Scalar


class Params(NamedTuple):
    """A filter for each component.

    >>> params = Params(filters=jnp.array([[1.0, 0.0], [1.0, 2.0]]))
    >>> float(energy(params, jnp.array([1.0, -1.0])))  # |1| + |1 - 2|
    2.0
    """

    filters: Float[Array, "component site"]
    """J, with the filter J_k of each component as a row."""


def init(key: PRNGKeyArray, size: int) -> Params:
    """Return independent normal filters.

    Their responses to white data of variance 1 have variance 1.

    Args:
        size: number of sites, and of components.

    >>> init(jax.random.key(0), 4).filters.shape
    (4, 4)
    """
    check_count("size", size)
    return Params(random.normal(key, (size, size)) / math.sqrt(size))


def unnormalisable(params: Params) -> str:
    """Reason why the model does not have a finite Z; "" if none is detected.

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
            "the energy is constant along the others"
        )
    return ""


@closed_form(unnormalisable=unnormalisable)
def energy(params: Params, x: Float[Array, " site"]) -> Scalar:
    """Energy sum_k |J_k x| of one state.

    >>> float(energy(Params(2 * jnp.eye(2)), jnp.array([1.0, -1.0])))
    4.0
    """
    _check_square(params)
    check_size("x", x, params.filters.shape[1], "sites")
    # With the state first, this product needs no transposes under vmap.
    return jnp.sum(jnp.abs(x @ params.filters.T))


def log_z(params: Params) -> Scalar:
    """Log partition function K log 2 - log|det J|; inf if the filters are singular.

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
    """Return exact draws: J^-1 times independent Laplace variables.

    >>> params = Params(jnp.array([[1.0, 0.0], [0.0, 2.0]]))
    >>> draws = sample(jax.random.key(0), params, num_draws=1000)
    >>> size = jnp.abs(draws).mean(0)  # 1 / filter for Laplace variables
    >>> bool(jnp.abs(size - jnp.array([1.0, 0.5])).max() < 0.2)
    True
    """
    _check_square(params)
    check_count("num_draws", num_draws)
    if reason := unnormalisable(params):
        raise ValueError(f"the model has no draws: {reason}")
    shape, dtype = (num_draws, len(params.filters)), params.filters.dtype
    responses = jax.random.laplace(key, shape, dtype)
    return jnp.linalg.solve(params.filters, responses.T).T


def canonical(params: Params) -> Params:
    """Parameters of the same model with ordered filters and fixed signs.

    The longest filter comes first. The entry of largest magnitude of each is positive.

    >>> canonical(Params(jnp.array([[1.0, 0.5], [2.0, -3.0]]))).filters.tolist()
    [[-2.0, 3.0], [1.0, 0.5]]
    """
    filters = params.filters * signs(params.filters)[:, None]
    return Params(filters[longest_first(filters)])


def amari_distance(
    filters: Float[Array, "component site"], others: Float[Array, "component site"]
) -> Scalar:
    """Distance between two sets of filters, from 0 (equivalent) to 1.

    With all rows scaled to length 1 and G = |J_filters J_others^-1|, it is

        sum_k [sum_j G_kj / max_j G_kj - 1 + sum_j G_jk / max_j G_jk - 1]
        / (2 K (K - 1)).

    It does not depend on the order, signs and lengths of the filters. It is 0 if each
    filter is a multiple of a different one of `others`.

    Args:
        filters: filters to be compared, such as those of a fit.
        others: reference, such as the filters from which the data were drawn. If the
            mixing matrix is known, this is its inverse. Must be a regular matrix.

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
    unit, other_unit = (rows / lengths(rows)[:, None] for rows in (filters, others))
    products = jnp.abs(jnp.linalg.solve(other_unit.T, unit.T))
    sums = [jnp.sum(_relative(g)) - size for g in (products, products.T)]
    return (sums[0] + sums[1]) / (2 * size * (size - 1))


def _relative(products):
    """Entries divided by the largest of their column; 1 in a column of zeros."""
    largest = jnp.broadcast_to(products.max(0), products.shape)
    return jnp.where(largest > 0, products / jnp.where(largest > 0, largest, 1), 1)


def _check_square(params):
    shape = params.filters.shape
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"filters must be a square matrix, got shape {shape}")
