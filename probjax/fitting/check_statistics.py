"""Statistics of `check_fit`: means of dE/dparams and of other statistics, with errors.

Values f(x) = (phi(x), psi(x)) are reduced to means and covariances over the data and to
means of every chain. The spread of the chains' means is the Monte Carlo error, which
includes the autocorrelation of the draws.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from probjax.data.chunks import cut_chunk

MAX_FITTED = 2000
"""Largest number of entries of dE/dparams that are compared."""
CHUNK = 256
QUANTILES = (0.5, 0.75, 0.9, 0.99)
"""Quantiles of the number of ones at which its distribution is compared."""
MIN_EVENTS = 10
"""Number of rows that must deviate before a mean is compared as a normal number."""


class Moments(NamedTuple):
    """Means and covariance of (phi, psi) over rows or draws, on the host."""

    mean: np.ndarray
    covariance: np.ndarray
    error: np.ndarray
    """Covariance of `mean`."""
    rows: float
    """Number of rows or draws."""
    num_fitted: int
    num_params: int
    activity: float
    """Mean of the sum of a state's entries."""


def state_kind(x) -> tuple[str, int]:
    """Return the kind of states and the number of letters (0 for reals)."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(x)]
    if not all((leaf == np.round(leaf)).all() and leaf.min() >= 0 for leaf in leaves):
        return "reals", 0
    largest = int(max(leaf.max() for leaf in leaves))
    return ("bits", 2) if largest < 2 else ("letters", largest + 1)


def default_statistic(kind, x, share):
    """Return the statistic of one state that is compared by default."""
    if kind != "bits":
        return _nothing
    counts = _flat(x).sum(axis=1)
    order = np.argsort(counts)
    below = np.cumsum(np.asarray(share, float)[order])
    at = np.searchsorted(below, QUANTILES).clip(0, len(order) - 1)
    return Partial(_above, jnp.asarray(np.unique(counts[order][at])))


def _nothing(x):
    return jnp.zeros(0)


def _above(counts, x):
    return (ravel_pytree(x)[0].sum() > counts).astype(counts.dtype)


def far_states(key, x, num_states, count):
    """Return far starts: the first half with the last letter, the others uniform."""

    def fill(leaf):
        shape = (count, *leaf.shape[1:])
        drawn = jax.random.randint(key, shape, 0, num_states).astype(leaf.dtype)
        return drawn.at[: count // 2].set(num_states - 1)

    return jax.tree.map(fill, x)


def far_share(x, rows) -> float:
    """Return the share of states farther from all rows than 99 % of rows are."""
    x, rows = _flat(x), _flat(rows)
    among = _nearest(rows[: len(rows) // 2], rows[len(rows) // 2 :])
    return float(np.mean(_nearest(x, rows) > np.quantile(among, 0.99)))


def _flat(x):
    return np.asarray(jax.vmap(lambda row: ravel_pytree(row)[0])(x))


def _nearest(x, rows):
    """Number of sites that differ between each state and its nearest row."""
    return np.array([np.sum(rows != state, axis=1).min() for state in x])


def data_moments(key, energy, params, statistic, x, weights) -> Moments:
    """Compute moments over weighted rows; weights are counts."""
    found = _summed(
        energy, Partial(statistic), params, _subset(key, params), x, weights
    )
    mean, covariance, activity = (np.asarray(part, float) for part in found)
    rows = float(weights.sum())
    return _record(mean, covariance, covariance / rows, rows, params, activity)


def draw_moments(key, energy, params, statistic, x) -> Moments:
    """Compute moments over draws `(chain, draw, ...)`, with the error of the chains."""
    subset, statistic = _subset(key, params), Partial(statistic)
    chains, draws = jax.tree.leaves(x)[0].shape[:2]
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), x)
    ones = jnp.ones(chains * draws)
    found = _summed(energy, statistic, params, subset, flat, ones)
    mean, covariance, activity = (np.asarray(part, float) for part in found)
    means = np.asarray(_chain_means(energy, statistic, params, subset, x), float)
    error = np.atleast_2d(np.cov(means, rowvar=False)) / chains
    return _record(mean, covariance, error, chains * draws, params, activity)


def _record(mean, covariance, error, rows, params, activity):
    size = ravel_pytree(params)[0].size
    fitted = min(size, MAX_FITTED)
    return Moments(mean, covariance, error, rows, fitted, size, float(activity))


def _subset(key, params):
    size = ravel_pytree(params)[0].size
    if size <= MAX_FITTED:
        return jnp.arange(size)
    return jax.random.choice(key, size, (MAX_FITTED,), replace=False)


def _values(energy, statistic, params, subset, x):
    phi = ravel_pytree(jax.grad(energy)(params, x))[0][subset]
    psi = jnp.ravel(statistic(x)).astype(phi.dtype)
    return jnp.concatenate([phi, psi])


@partial(jax.jit, static_argnums=0)
def _summed(energy, statistic, params, subset, x, weights):
    values = jax.vmap(partial(_values, energy, statistic, params, subset))
    total, count = weights.sum(), len(weights)
    size = min(count, CHUNK)
    # Relative to the first row, so that means far from 0 lose no digits.
    origin = values(jax.tree.map(lambda leaf: leaf[:1], x))[0]

    def add(i, sums):
        rows, each = cut_chunk(i, size, x, weights)
        share = (each / total).astype(origin.dtype)
        f = values(rows) - origin[None]
        activity = jax.vmap(lambda row: ravel_pytree(row)[0].sum())(rows)
        new = (share @ f, (share[:, None] * f).T @ f, share @ activity)
        return jax.tree.map(jnp.add, sums, new)

    zero = jnp.zeros((), origin.dtype)
    start = (0 * origin, jnp.outer(0 * origin, origin), zero)
    mean, square, activity = jax.lax.fori_loop(0, -(-count // size), add, start)
    return origin + mean, square - jnp.outer(mean, mean), activity


@partial(jax.jit, static_argnums=0)
def _chain_means(energy, statistic, params, subset, x):
    values = jax.vmap(partial(_values, energy, statistic, params, subset))
    return jax.lax.map(lambda chain: values(chain).mean(0), x)


def compare_means(data: Moments, model: Moments) -> tuple[np.ndarray, int, int]:
    """Return z of every mean, and the numbers of compared and of all parameters."""
    k = data.num_fitted
    size = len(data.mean)
    # Rows of `combine` are phi itself and the residuals psi - B phi.
    combine = np.eye(size)
    pooled = (data.covariance + model.covariance) / 2
    scale = np.sqrt(np.maximum(np.diag(pooled)[:k], 0))
    scale = np.where(scale > 0, scale, 1)
    scaled = pooled[:k, :k] / np.outer(scale, scale)
    if size > k:
        # A faint ridge: directions without variance, such as gauges, are left out.
        inverse = np.linalg.pinv(scaled, rcond=1e-5, hermitian=True)
        combine[k:, :k] = -(pooled[k:, :k] / scale) @ inverse / scale
    difference = combine @ (model.mean - data.mean)

    def variances(matrix):
        return np.maximum(
            np.einsum("ij,jk,ik->i", combine, matrix, combine, optimize=True), 0
        )

    spread = np.maximum(variances(data.covariance), variances(model.covariance))
    # Events that happen to be missing from the draws have no spread between chains, so
    # the error is at least that of independent draws.
    error = np.maximum(variances(model.error), spread / model.rows)
    # With fewer than MIN_EVENTS deviating rows the mean is not normal: a mean of a few
    # rare events has at least the error of one event.
    reach = np.abs(combine).max(axis=1)
    floor = np.where(spread * data.rows < MIN_EVENTS, reach / data.rows, 0)
    stderr = np.sqrt(spread / data.rows + error) + floor
    rounding = 1e-5 * (np.abs(combine) @ np.abs(data.mean)) + 1e-12
    equal = np.abs(difference) <= rounding
    z = np.where(equal, 0, difference / np.where(equal, 1, np.maximum(stderr, 1e-30)))
    # In the library's dtype, so that files of a check can be loaded without x64.
    return z.astype(jnp.result_type(float)), k, data.num_params
