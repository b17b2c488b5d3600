"""Metric of a sampled likelihood: the covariance of the gradient of a row.

With F the covariance over rows of the gradient of the loss of a row, which is the
Fisher matrix of a model that fits the data, the step F^-1 g has the same length in all
directions, measured in standard errors. F is estimated from a sample of rows:

    D = diag(F),    F is replaced by D^(1/2) (R + s) D^(1/2),

with R the matrix of correlations for up to `MAX_DENSE` parameters and the identity for
more, and s = parameters / (parameters + rows) for the sampling error of R. The
curvature of a penalty is added to F. No entry of D is smaller than that of a statistic
that occurs in one of the rows: for a model of letters, its range over random states,
squared, divided by the number of rows. So a pair that was never seen has a finite step.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve

from probjax.data.chunks import cut_chunk
from probjax.data.rows import num_rows
from probjax.fitting.distance import RowSample
from probjax.interfaces import Objective, Penalty
from probjax.types import Array, Float, Params, PRNGKeyArray, Scalar

MAX_DENSE = 512
"""Largest number of parameters for which all correlations are used."""
# With correlations, a direction that varies in few rows must not be missing.
_MAX_ROWS, _MAX_DENSE_ROWS, _LEAST_ROWS = 8192, 32768, 256
_RANDOM_STATES = 1024
# Largest numbers of entries of the row gradients: in all, and of those in memory.
_MAX_ENTRIES, _MAX_ENTRIES_AT_A_TIME = 2**25, 2**18
_LEAST_RIDGE = 1e-3
_NUM_PROBES = 4


class StepMetric(NamedTuple):
    """Inverse of the regularised covariance F, as a linear map."""

    scale: Float[Array, " n"]
    """D^(-1/2)."""
    inverse: Float[Array, "n n"] | None
    """Inverse of R + s; None for the identity."""

    def solve(self, gradient: Float[Array, " n"]) -> Float[Array, " n"]:
        """Compute F^-1 `gradient`.

        >>> StepMetric(jnp.array([0.5, 2.0]), None).solve(jnp.ones(2)).tolist()
        [0.25, 4.0]
        """
        scaled = self.scale * gradient
        if self.inverse is not None:
            scaled = self.inverse @ scaled
        return self.scale * scaled


def metric_of(
    key: PRNGKeyArray,
    objective: Objective,
    penalty: Penalty | None,
    to_params: Callable[[Array], Params],
    point: Float[Array, " n"],
    sample: RowSample,
    *,
    for_steps: bool,
) -> StepMetric:
    """Estimate the metric at `point` from rows of data.

    Args:
        penalty: penalty that is added to the loss; it must be smooth.
        to_params: map from a point to parameters.
        for_steps: whether steps are taken in the metric, so that it needs the range
            over random states.
    """
    data = sample.data
    count, is_dense = num_rows(data), point.size <= MAX_DENSE
    most = _MAX_DENSE_ROWS if is_dense else _MAX_ROWS
    most = max(_LEAST_ROWS, min(most, _MAX_ENTRIES // point.size))
    chosen = jnp.arange(0, count, -(-count // most))
    x, context = jax.tree.map(lambda leaf: leaf[chosen], (data.x, sample.context))
    weights = jnp.ones(len(chosen), point.dtype)
    if data.weights is not None:
        weights = data.weights[chosen].astype(point.dtype)
    shares = weights / weights.sum()
    params, pull_back = jax.vjp(to_params, point)

    def of_row(x, context):
        return pull_back(jax.grad(objective.row)(params, x, context))[0]

    low, high, mean, square = _moments(of_row, x, context, shares, point, is_dense)
    square -= jnp.outer(mean, mean) if is_dense else mean**2
    variance = jnp.maximum(jnp.diagonal(square) if is_dense else square, 0)
    letters = objective.num_letters()
    if for_steps and letters is not None and not jax.tree.leaves(context):
        low, high = _with_random_states(key, of_row, x, letters, low, high)
    floor = jnp.maximum((high - low) ** 2 / len(chosen), jnp.finfo(point.dtype).tiny)
    added = penalty_curvature(key, penalty, to_params, point)
    total = jnp.maximum(variance, floor) + added
    # Entries that no row and no random state changes: their steps have length 0.
    scale = jnp.where((high > low) | (added > 0), jax.lax.rsqrt(total), 0)
    if not is_dense:
        return StepMetric(scale, None)
    ridge = max(_LEAST_RIDGE, point.size / (point.size + len(chosen)))
    correlations = scale[:, None] * square * scale[None]
    diagonal = jnp.arange(point.size)
    correlations = correlations.at[diagonal, diagonal].set(1 + ridge)
    factor = jnp.linalg.cholesky(correlations)
    return StepMetric(scale, cho_solve((factor, True), jnp.eye(point.size)))


def _moments(of_row, x, context, shares, point, is_dense):
    """Compute the range, mean and second moments of row gradients, less the first."""
    count = len(shares)
    size = max(1, min(count, _MAX_ENTRIES_AT_A_TIME // point.size))
    first = of_row(*jax.tree.map(lambda leaf: leaf[0], (x, context)))

    def add(i, sums):
        low, high, mean, square = sums
        (rows, rows_context), share = cut_chunk(i, size, (x, context), shares)
        found = jax.vmap(of_row)(rows, rows_context) - first[None]
        weighted = share[:, None] * found
        square += weighted.T @ found if is_dense else jnp.sum(weighted * found, 0)
        low, high = jnp.minimum(low, found.min(0)), jnp.maximum(high, found.max(0))
        return low, high, mean + weighted.sum(0), square

    zeros = jnp.zeros_like(first)
    squares = jnp.outer(zeros, zeros) if is_dense else zeros
    start = (zeros, zeros, zeros, squares)
    low, high, mean, square = jax.lax.fori_loop(0, -(-count // size), add, start)
    return low + first, high + first, mean, square


def _with_random_states(key, of_row, x, letters, low, high):
    """Widen the range of the gradients by that over uniformly random states."""
    size = max(1, min(_RANDOM_STATES, _MAX_ENTRIES_AT_A_TIME // low.size))
    num_chunks = max(1, min(_RANDOM_STATES, _MAX_ENTRIES // low.size) // size)

    def add(i, bounds):
        def fill(leaf):
            shape = (size, *leaf.shape[1:])
            drawn = jax.random.randint(jax.random.fold_in(key, i), shape, 0, letters)
            return drawn.astype(leaf.dtype)

        found = jax.vmap(lambda x: of_row(x, ()))(jax.tree.map(fill, x))
        low, high = bounds
        return jnp.minimum(low, found.min(0)), jnp.maximum(high, found.max(0))

    return jax.lax.fori_loop(0, num_chunks, add, (low, high))


def penalty_curvature(
    key: PRNGKeyArray,
    penalty: Penalty | None,
    to_params: Callable[[Array], Params],
    point: Float[Array, " n"],
) -> Float[Array, " n"]:
    """Estimate the diagonal of the Hessian of a penalty, exactly if it is diagonal."""
    if penalty is None:
        return jnp.zeros_like(point)

    def along(probe_key):
        signs = jax.random.rademacher(probe_key, point.shape, point.dtype)
        slope = jax.grad(lambda point: penalty.value(to_params(point)))
        return signs * jax.jvp(slope, (point,), (signs,))[1]

    found = jax.lax.map(along, jax.random.split(key, _NUM_PROBES))
    return jnp.maximum(found.mean(0), 0)


def gram(
    metric: StepMetric, gradients: Float[Array, "group n"]
) -> tuple[Float[Array, "group group"], Scalar]:
    """Return the products g_i' F^-1 g_j, and the number of entries that can change."""
    solved = jax.lax.map(metric.solve, gradients)
    return gradients @ solved.T, jnp.sum(metric.scale > 0).astype(gradients.dtype)
