"""Bases that are fitted to data.

Annealing needs fewer distributions from a base that is closer to its target.
"""

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
    """Fit independent normal entries with the means and variances of the data.

    >>> base = fit_gaussian(jnp.array([[0.0, 1.0], [2.0, 5.0]]))
    >>> base.mean.tolist(), base.scale.tolist()
    ([1.0, 3.0], [1.0, 2.0])
    """
    data = _complete(data, "variances are computed from complete rows only")
    x = floating(data.x)
    mean, deviation = _mean_and_deviation(jnp.square, x, data.weights)
    return Gaussian(x.shape[1], mean, jnp.sqrt(deviation))


def fit_full_gaussian(data: ArrayLike | Data) -> Gaussian:
    """Fit normal entries with the means and the covariance of the data.

    The data must have more rows than entries, and no entry may be a linear combination
    of others.

    >>> rows = jnp.array([[1.0, 2.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, -2.0]])
    >>> fit_full_gaussian(rows).scale.round(4).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    data = _complete(data, "covariances are computed from complete rows only")
    x = floating(data.x)
    mean, covariance = _mean_and_covariance(x, data.weights)
    _check_not_singular(covariance)
    return Gaussian(x.shape[1], mean, jnp.linalg.cholesky(covariance))


def fit_laplace(data: ArrayLike | Data) -> Laplace:
    """Fit Laplace entries with the means and mean absolute deviations of the data.

    >>> base = fit_laplace(jnp.array([[0.0], [1.0], [5.0]]))
    >>> base.mean.tolist(), base.scale.tolist()
    ([2.0], [2.0])
    """
    data = _complete(data, "deviations are computed from complete rows only")
    x = floating(data.x)
    mean, deviation = _mean_and_deviation(jnp.abs, x, data.weights)
    return Laplace(x.shape[1], mean, deviation)


def fit_bernoulli(data: ArrayLike | Data) -> Bernoulli:
    """Fit independent bits with the means of the data.

    One row whose bits are all 1/2 is added to the data, so that a bit that never
    changes has finite log odds.

    >>> base = fit_bernoulli(jnp.array([[1, 0], [1, 1]]))
    >>> jnp.exp(base.log_odds).round(3).tolist()  # (2 + 1/2) to 1/2, and 3/2 to 3/2
    [5.0, 1.0]
    """
    data = _complete(data, "means are computed from complete rows only")
    x = binary(data.x)
    return Bernoulli(x.shape[1], _log_odds(data._replace(x=x)))


@jax.jit
def _log_odds(data):
    mean = add_pseudo_row(jnp.average(data.x, 0, data.weights), 0.5, data)
    return jax.scipy.special.logit(mean)


def fit_categorical(data: ArrayLike | Data, num_states: int) -> Categorical:
    """Fit independent letters with the frequencies of the data.

    One row that has each letter in equal parts is added to the data, so that a letter
    that does not occur has finite log odds.

    >>> base = fit_categorical(jnp.array([[0], [1]]), num_states=3)
    >>> (9 * jnp.exp(base.log_odds)).round(3).tolist()  # 1 + 1/3 and 1/3, of 3 rows
    [[4.0, 4.0, 1.0]]
    """
    data = _complete(data, "frequencies are computed from complete rows only")
    x = letters(data.x, num_states=num_states)
    odds = _log_shares(data._replace(x=x), num_states)
    return Categorical(x.shape[1], num_states, odds)


@partial(jax.jit, static_argnums=1)
def _log_shares(data, num_states):
    hot = jax.vmap(lambda row: one_hot(row, num_states))(data.x)
    shares = jnp.average(hot, 0, data.weights)
    return jnp.log(add_pseudo_row(shares, 1 / num_states, data))


@partial(jax.jit, static_argnums=0)
def _mean_and_deviation(measure, x, weights):
    """Return the mean of each entry, and the mean of `measure(x - mean)`."""
    mean = jnp.average(x, 0, weights)
    return mean, jnp.average(measure(x - mean[None]), 0, weights)


@jax.jit
def _mean_and_covariance(x, weights):
    mean = jnp.average(x, 0, weights)
    deviation = x - mean[None]
    weights = jnp.ones(len(x)) if weights is None else weights
    weighted = (weights / weights.sum()).astype(x.dtype)[:, None] * deviation
    return mean, jnp.matmul(weighted.T, deviation, precision="highest")


def _complete(data, why):
    """Return `data` as `Data`; raise, with the reason `why`, if entries are missing."""
    data = as_data(data)
    refuse_mask(data, why)
    if jnp.ndim(data.x) != 2:
        raise ValueError(
            f"data must be one array (row, entry), got shape {jnp.shape(data.x)}"
        )
    return data


def add_pseudo_row(
    means: Float[Array, "..."], value: float, data: Data
) -> Float[Array, "..."]:
    """Return the means after adding to `data` one row whose entries are `value`.

    Args:
        means: means over the rows of `data`.
    """
    count = num_rows(data) if data.weights is None else data.weights.sum()
    return (count * means + value) / (count + 1)


def _check_not_singular(covariance):
    """Raise if a covariance is singular up to rounding."""
    if not is_concrete(covariance):
        return
    matrix = np.asarray(covariance, float)
    scales = np.sqrt(np.diagonal(matrix))
    # Eigenvalues of the correlations do not depend on units.
    scales = np.where(scales > 0, scales, 1)
    eigenvalues = np.linalg.eigvalsh(matrix / np.outer(scales, scales))
    count = len(eigenvalues)
    rounding = eigenvalues[-1] * count * np.finfo(covariance.dtype).eps
    if (rank := np.sum(eigenvalues > rounding)) < count:
        raise ValueError(
            f"data must have a covariance of rank {count}, got rank {rank}; "
            "try more rows, or fit_gaussian, or leave out entries that are linear "
            "combinations of others"
        )
