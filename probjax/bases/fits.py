"""Bases with the moments of data: the nearer a base, the less there is to anneal."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from probjax.bases.continuous import Gaussian, Laplace
from probjax.bases.discrete import Bernoulli, Categorical
from probjax.checks import is_concrete
from probjax.data.rows import as_data, num_rows, refuse_mask
from probjax.states import binary, letters, one_hot
from probjax.trees import floating
from probjax.types import Array, ArrayLike, Data, Float


def fit_gaussian(data: ArrayLike | Data) -> Gaussian:
    """Independent normal entries with the means and variances of the data.

    >>> base = fit_gaussian(jnp.array([[0.0, 1.0], [2.0, 5.0]]))
    >>> base.mean.tolist(), base.scale.tolist()
    ([1.0, 3.0], [1.0, 2.0])
    """
    data = _complete(data, "variances are taken of complete rows")
    x = floating(data.x)
    mean, deviation = _mean_and_deviation(jnp.square, x, data.weights)
    return Gaussian(x.shape[1], mean, jnp.sqrt(deviation))


def fit_full_gaussian(data: ArrayLike | Data) -> Gaussian:
    """Normal entries with the means and the covariance of the data.

    It needs more rows than entries, and entries of which none is a sum of others.

    >>> rows = jnp.array([[1.0, 2.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, -2.0]])
    >>> fit_full_gaussian(rows).scale.round(4).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    data = _complete(data, "covariances are taken of complete rows")
    x = floating(data.x)
    mean, covariance = _mean_and_covariance(x, data.weights)
    _refuse_singular(covariance)
    return Gaussian(x.shape[1], mean, jnp.linalg.cholesky(covariance))


def fit_laplace(data: ArrayLike | Data) -> Laplace:
    """Laplace entries with the means of the data and the mean deviations from them.

    >>> base = fit_laplace(jnp.array([[0.0], [1.0], [5.0]]))
    >>> base.mean.tolist(), base.scale.tolist()
    ([2.0], [2.0])
    """
    data = _complete(data, "deviations are taken of complete rows")
    x = floating(data.x)
    mean, deviation = _mean_and_deviation(jnp.abs, x, data.weights)
    return Laplace(x.shape[1], mean, deviation)


def fit_bernoulli(data: ArrayLike | Data) -> Bernoulli:
    """Independent bits with the means of the data, to which one row of halves is added.

    So a bit that never changes keeps finite odds.

    >>> base = fit_bernoulli(jnp.array([[1, 0], [1, 1]]))
    >>> jnp.exp(base.log_odds).round(3).tolist()  # (2 + 1/2) to 1/2, and 3/2 to 3/2
    [5.0, 1.0]
    """
    data = _complete(data, "means are taken of complete rows")
    x = binary(data.x)
    return Bernoulli(x.shape[1], _log_odds(data._replace(x=x)))


@jax.jit
def _log_odds(data):
    mean = with_one_more(jnp.average(data.x, 0, data.weights), 0.5, data)
    return jax.scipy.special.logit(mean)


def fit_categorical(data: ArrayLike | Data, num_states: int) -> Categorical:
    """Independent letters with the shares of the data, to which one row is added.

    Its sites have every letter alike, so that one never seen keeps finite odds.

    >>> base = fit_categorical(jnp.array([[0], [1]]), num_states=3)
    >>> (9 * jnp.exp(base.log_odds)).round(3).tolist()  # of 3 rows, 1 + 1/3 and 1/3
    [[4.0, 4.0, 1.0]]
    """
    data = _complete(data, "shares are taken of complete rows")
    x = letters(data.x, num_states=num_states)
    odds = _log_shares(data._replace(x=x), num_states)
    return Categorical(x.shape[1], num_states, odds)


@partial(jax.jit, static_argnums=1)
def _log_shares(data, num_states):
    hot = jax.vmap(lambda row: one_hot(row, num_states))(data.x)
    shares = jnp.average(hot, 0, data.weights)
    return jnp.log(with_one_more(shares, 1 / num_states, data))


@partial(jax.jit, static_argnums=0)
def _mean_and_deviation(size, x, weights):
    """Return the means of entries, and those of the sizes of what differs from them."""
    mean = jnp.average(x, 0, weights)
    return mean, jnp.average(size(x - mean[None]), 0, weights)


@jax.jit
def _mean_and_covariance(x, weights):
    mean = jnp.average(x, 0, weights)
    apart = x - mean[None]
    weights = jnp.ones(len(x)) if weights is None else weights
    weighted = (weights / weights.sum()).astype(x.dtype)[:, None] * apart
    return mean, jnp.matmul(weighted.T, apart, precision="highest")


def _complete(data, why):
    data = as_data(data)
    refuse_mask(data, why)
    if jnp.ndim(data.x) != 2:
        raise ValueError(
            f"data must be rows of one array, (row, entry), got shape "
            f"{jnp.shape(data.x)}"
        )
    return data


def with_one_more(
    means: Float[Array, "..."], value: float, data: Data
) -> Float[Array, "..."]:
    """Means over the rows of `data` and one more, whose entries are `value`."""
    count = num_rows(data) if data.weights is None else data.weights.sum()
    return (count * means + value) / (count + 1)


def _refuse_singular(covariance):
    if not is_concrete(covariance):
        return
    matrix = np.asarray(covariance, float)
    scales = np.sqrt(np.diagonal(matrix))
    # As correlations, so that units do not matter.
    scales = np.where(scales > 0, scales, 1)
    spread = np.linalg.eigvalsh(matrix / np.outer(scales, scales))
    least = spread[-1] * len(spread) * np.finfo(covariance.dtype).eps
    if (rank := np.sum(spread > least)) < len(spread):
        raise ValueError(
            f"data must vary in all {len(spread)} directions, got {rank}: their "
            "covariance is singular. Use more rows, leave out entries that are sums "
            "of others, or use fit_gaussian"
        )
