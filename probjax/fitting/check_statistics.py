"""Statistics of `check_fit`: means of dE/dparams and of other statistics, with errors.

Values f(x) = (phi(x), psi(x)) are reduced to means and covariances over the data and to
means of every chain. The spread of the chains' means is the Monte Carlo error, which
includes the autocorrelation of the draws. One compiled program of `BLOCK` states
computes all values; everything else is NumPy.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from probjax.types import Energy, Params, State, map_states, split_inputs

MAX_FITTED = 2000
"""Largest number of entries of dE/dparams that are compared."""
BLOCK, PART = 256, 4096
"""Number of states of one compiled call, and of one product of matrices."""
QUANTILES = (0.5, 0.75, 0.9, 0.99)
"""Quantiles of the number of ones at which its distribution is compared."""
MIN_EVENTS = 10
"""Number of rows that must deviate before a mean is compared as a normal number."""
RIDGE = 1e-5
"""Ridge of the regression on phi, whose entries have unit variance: directions without
variance, such as gauges, have no part in it."""


class SampleMoments(NamedTuple):
    """Means and covariance of (phi, psi) over rows or draws."""

    mean: np.ndarray
    covariance: np.ndarray
    error: np.ndarray
    """Covariance of `mean`."""
    rows: float
    """Number of rows or draws."""
    activity: float
    """Mean of the sum of a state's entries."""


class Values(NamedTuple):
    """The function (phi, psi) of blocks of states."""

    energy: Energy
    params: Params
    statistic: Partial
    subset: np.ndarray
    """Indices of the entries of dE/dparams in phi."""

    @property
    def num_params(self) -> int:
        """Number of parameters."""
        return sum(map(np.size, jax.tree.leaves(self.params)))

    @property
    def is_subset(self) -> bool:
        """Whether only some of the parameters are compared."""
        return len(self.subset) < self.num_params

    def __call__(self, x: State) -> np.ndarray:
        """Return the values of states `(row, ...)`, `(row, value)`."""
        count = len(jax.tree.leaves(x)[0])
        blocks = [
            np.asarray(_values(*self, _padded(x, first)))
            for first in range(0, count, BLOCK)
        ]
        return np.concatenate(blocks)[:count]


def state_kind(x: State) -> tuple[str, int]:
    """Return the kind of states and the number of letters (0 for reals)."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(split_inputs(x)[0])]
    if not all((leaf == np.round(leaf)).all() and leaf.min() >= 0 for leaf in leaves):
        return "reals", 0
    largest = int(max(leaf.max() for leaf in leaves))
    return ("bits", 2) if largest < 2 else ("letters", largest + 1)


def default_statistic(kind: str, x: State, share: np.ndarray) -> Partial:
    """Return the statistic of one state that is compared by default."""
    if kind != "bits":
        return Partial(_nothing)
    counts = flat(x).sum(axis=1)
    order = np.argsort(counts)
    at = np.searchsorted(np.cumsum(share[order]), QUANTILES).clip(0, len(order) - 1)
    return Partial(_above, np.unique(counts[order][at]))


def _nothing(x):
    return jnp.zeros(0)


def _above(counts, x):
    return ravel_pytree(split_inputs(x)[0])[0].sum() > counts


def compared_entries(
    random: np.random.Generator, params: Params, most: int = MAX_FITTED
) -> np.ndarray:
    """Return sorted indices of the entries of dE/dparams that are compared.

    Small leaves, such as biases, are compared as a whole. A random subset of the
    entries of large leaves is compared.
    """
    sizes = np.array([np.size(leaf) for leaf in jax.tree.leaves(params)], int)
    firsts = np.cumsum(sizes) - sizes
    chosen, left = [], most
    for rank, leaf in enumerate(np.argsort(sizes, kind="stable")):
        room = left if rank == len(sizes) - 1 else left // 2
        size = int(min(sizes[leaf], room))
        chosen.append(firsts[leaf] + random.choice(sizes[leaf], size, replace=False))
        left -= size
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, int)


def entry_name(params: Params, index: int) -> str:
    """Return the name of an entry of the parameters, given its index when flattened.

    >>> entry_name({"bias": np.zeros(2), "weight": np.zeros((3, 4))}, 7)
    "params['weight'][1, 1]"
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if index < np.size(leaf):
            place = np.unravel_index(index, np.shape(leaf))
            name = f"params{jax.tree_util.keystr(path)}"
            return name + (str([int(i) for i in place]) if place else "")
        index -= np.size(leaf)
    raise ValueError(f"index must be below the number of parameters, got {index} more")


def far_states(
    random: np.random.Generator, x: State, num_states: int, count: int, *, full: int
) -> State:
    """Return `count` uniformly random states, the first `full` with last letters only.

    Args:
        x: states that these are like, and whose inputs they have.
    """

    def fill(leaf):
        drawn = random.integers(num_states, size=(count, *leaf.shape[1:]))
        drawn[:full] = num_states - 1
        return drawn.astype(leaf.dtype)

    starts = jax.tree.map(lambda leaf: leaf[:count], x)
    return map_states(partial(jax.tree.map, fill), starts)


def are_far(x: State, rows: State, counts: np.ndarray) -> np.ndarray:
    """Return whether each state is farther from all rows than 99 % of rows are.

    Args:
        rows: a sample of the rows.
        counts: weight of each row, its number of repetitions.
    """
    x, rows = flat(x), flat(rows)
    agree = _agreements(rows, rows)
    np.fill_diagonal(agree, 0)
    among = np.where(counts >= 2, 0, rows.shape[1] - agree.max(axis=1))
    order = np.argsort(among)
    below = np.cumsum(counts[order]) / counts.sum()
    limit = among[order][np.searchsorted(below, 0.99).clip(0, len(order) - 1)]
    return x.shape[1] - _agreements(x, rows).max(axis=1) > limit


def flat(x: State) -> np.ndarray:
    """Return states `(row, ...)`, without inputs, as one matrix `(row, entry)`."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(split_inputs(x)[0])]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _agreements(x, rows):
    """Number of sites at which each state agrees with each row."""
    agree = np.zeros((len(x), len(rows)), np.float32)
    for letter in range(int(max(x.max(), rows.max())) + 1):
        agree += (x == letter).astype(np.float32) @ (rows == letter).astype(
            np.float32
        ).T
    return agree


def data_moments(values: Values, x: State, weights: np.ndarray) -> SampleMoments:
    """Compute moments over weighted rows; weights are counts."""
    share = weights / weights.sum()
    origin = values(_rows(x, 0, 1))[0].astype(float)
    mean, square = np.zeros_like(origin), np.zeros((len(origin), len(origin)))
    for first in range(0, len(share), PART):
        # Relative to the first row, so that means far from 0 lose no digits.
        f = values(_rows(x, first, PART))
        f -= origin.astype(f.dtype)
        part = share[first : first + PART]
        mean += part @ f
        f *= np.sqrt(part)[:, None].astype(f.dtype)
        square += f.T @ f
    covariance = square - np.outer(mean, mean)
    activity = float(flat(x).sum(axis=1) @ share)
    rows = float(weights.sum())
    return SampleMoments(origin + mean, covariance, covariance / rows, rows, activity)


def draw_moments(values: Values, x: State) -> SampleMoments:
    """Compute moments over draws `(chain, draw, ...)`, with the error of the chains."""
    chains, draws = jax.tree.leaves(x)[0].shape[:2]
    x = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), x)
    f = values(x)
    mean = f.mean(axis=0, dtype=float)
    deviation = f - mean.astype(f.dtype)
    covariance = (deviation.T @ deviation).astype(float) / len(f)
    means = deviation.reshape(chains, draws, -1).mean(axis=1, dtype=float)
    error = np.atleast_2d(np.cov(means, rowvar=False)) / chains
    activity = float(flat(x).sum(axis=1).mean())
    return SampleMoments(mean, covariance, error, float(len(f)), activity)


def _rows(x, first, count):
    return jax.tree.map(lambda leaf: leaf[first : first + count], x)


def _padded(x, first):
    """Return `BLOCK` states from index `first` on; the last state is repeated."""
    count = len(jax.tree.leaves(x)[0])
    index = np.minimum(np.arange(first, first + BLOCK), count - 1)
    return jax.tree.map(lambda leaf: leaf[index], x)


@partial(jax.jit, static_argnums=0)
def _values(energy, params, statistic, subset, x):
    def of_state(x):
        phi = ravel_pytree(jax.grad(energy)(params, x))[0][subset]
        return jnp.concatenate([phi, jnp.ravel(statistic(x)).astype(phi.dtype)])

    return jax.vmap(of_state)(x)


def compare_means(
    data: SampleMoments, model: SampleMoments, num_fitted: int
) -> np.ndarray:
    """Return the difference of every mean in standard errors."""
    k, size = num_fitted, len(data.mean)
    # Rows of `combine` are the residuals psi - B phi.
    pooled = (data.covariance + model.covariance) / 2
    scale = np.sqrt(np.maximum(np.diag(pooled)[:k], 0))
    scale = np.where(scale > 0, scale, 1)
    scaled = pooled[:k, :k] / np.outer(scale, scale) + RIDGE * np.eye(k)
    solved = np.linalg.solve(scaled, pooled[:k, k:] / scale[:, None])
    combine = np.eye(size)[k:]
    combine[:, :k] = -solved.T / scale

    def combined(vector, rows):
        return np.concatenate([vector[:k], rows @ vector])

    def variances(matrix):
        of_rest = np.sum((combine @ matrix) * combine, axis=1)
        return np.maximum(np.concatenate([np.diag(matrix)[:k], of_rest]), 0)

    difference = combined(model.mean - data.mean, combine)
    spread = np.maximum(variances(data.covariance), variances(model.covariance))
    # Events that happen to be missing from the draws have no spread between chains, so
    # the error is at least that of independent draws.
    error = np.maximum(variances(model.error), spread / model.rows)
    # With fewer than MIN_EVENTS deviating rows the mean is not normal: a mean of a few
    # rare events has at least the error of one event.
    reach = np.concatenate([np.ones(k), np.abs(combine).max(axis=1)])
    floor = np.where(spread * data.rows < MIN_EVENTS, reach / data.rows, 0)
    stderr = np.sqrt(spread / data.rows + error) + floor
    rounding = 1e-5 * combined(np.abs(data.mean), np.abs(combine)) + 1e-12
    equal = np.abs(difference) <= rounding
    z = np.where(equal, 0, difference / np.where(equal, 1, np.maximum(stderr, 1e-30)))
    # In the library's dtype, so that files of a check can be loaded without x64.
    return z.astype(jnp.result_type(float))
