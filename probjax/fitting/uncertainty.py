"""Error bars on fitted parameters: the sandwich covariance of any objective.

At an estimate the gradient of the loss vanishes. To first order, the sampling error of
the estimate is the sampling error of the gradient times the inverse of the Hessian H of
the loss:

    covariance = H^-1 (sum_r w_r u_r u_r') H^-1,    u_r = d gradient / d w_r,

where u_r is the change of the gradient if one more copy of row r is added. The model
need not be true. If it is true and the loss is the negative log-likelihood, the
covariance is the inverse Fisher matrix divided by the number of rows.

Reference: Godambe, Ann. Math. Stat. 31, 1208 (1960); White, Econometrica 50, 1 (1982).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.checks import check_interface, is_concrete, warn
from probjax.data.chunks import cut_chunk
from probjax.data.rows import num_rows, refuse_mask
from probjax.fitting.arguments import prepared_data, resolved_penalty
from probjax.fitting.loss import default_chunk_size, loss_over_rows
from probjax.fitting.result import ConvergenceWarning, Fit, warn_of_unbounded
from probjax.interfaces import Chart, Objective, Penalty, has_statistic
from probjax.runs.driver import driver
from probjax.trees import cast_floats, float_dtype
from probjax.types import Array, Data, Float, Params, PyTree

# Columns of the Hessian that are computed at a time.
_HESSIAN_BATCH = 32
# Largest number of entries of the row gradients that are computed at a time.
_MAX_GRADIENT_ENTRIES = 2**22
# A function is undetermined if more than this fraction of its squared gradient lies
# along directions in which the loss is flat.
_FLAT_FRACTION = 1e-4
# The loss is flat along eigenvectors of the scaled Hessian whose eigenvalues are below
# this number of rounding errors of the largest.
_FLAT_ROUNDING_UNITS = 100


class Uncertainty(NamedTuple):
    """Sampling error of fitted parameters.

    >>> covariance = jnp.diag(jnp.array([9.0, 16.0]))
    >>> found = Uncertainty(jnp.ones(2), covariance, loose=jnp.zeros((2, 1)))
    >>> found.stderr.tolist(), float(found.of(jnp.sum))
    ([3.0, 4.0], 5.0)
    """

    params: Params
    """Fitted parameters."""
    covariance: Float[Array, "n n"]
    """Covariance of all entries of the parameters, in the order of `ravel_pytree`,
    without the undetermined part along `loose`."""
    loose: Float[Array, "n k"]
    """Unit vectors along which the loss is flat, so that the data do not determine the
    parameters; the other columns are zero."""

    @property
    def stderr(self) -> Params:
        """Standard error of each parameter; infinite if it is not determined."""
        return self.of(_identity)

    def of(self, function: Callable[[Params], PyTree]) -> PyTree:
        """Return the standard error of a differentiable function of the parameters.

        It may be finite although those of the parameters are infinite: an energy gap,
        for example, is the same in every gauge.

        Args:
            function: maps parameters to a number, an array or a tree of arrays.
        """
        flat, unravel = ravel_pytree(self.params)
        value, back = ravel_pytree(function(self.params))
        slopes = jnp.eye(flat.size, dtype=flat.dtype)
        if function is not _identity:
            slopes = jax.jacrev(lambda point: ravel_pytree(function(unravel(point)))[0])
            slopes = slopes(flat)
        variance = jnp.sum(slopes @ self.covariance * slopes, axis=1)
        # Compared with the slopes, so that the scale of the function does not matter.
        size = jnp.sum(slopes**2, axis=1)
        flat_size = jnp.sum((slopes @ self.loose) ** 2, axis=1)
        stderr = jnp.sqrt(jnp.maximum(variance, 0))
        stderr = jnp.where(flat_size > _FLAT_FRACTION * size, jnp.inf, stderr)
        return back(stderr.astype(value.dtype))


@driver
def uncertainty(
    objective: Objective,
    fitted: Fit,
    data: PyTree | Data,
    *,
    penalty: Penalty | None = None,
    chart: Chart | None = None,
    chunk_size: int | None = None,
) -> Uncertainty:
    """Compute the sandwich covariance of parameters that `fit` has found.

    Weights are counts: a weight of 2 means two equal rows. The sampling error is that
    of rows that are independent, each together with the random moves drawn for it; the
    bias that a penalty causes is not included. If couplings have no finite estimate,
    there is an `UnboundedWarning`, and their error bars refer to the point at which the
    fit ended.

    Args:
        objective: the objective that was fitted. Contrastive divergence, persistent MPF
            and EM do not minimise a function, and raise an error.
        fitted: result of `fit`.
        data: the data that were fitted, in memory.
        penalty: the penalty that was fitted, which must be smooth; None for the one in
            `fitted`. After a fit with `L1`, fit the nonzero couplings again without it,
            for example with `ising.init(..., edges=...)`, and compute their error bars.
        chart: the chart that was used; entries that it freezes have no error.
        chunk_size: as for `fit`.

    >>> from probjax import ScoreMatching, fit
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / 2
    >>> objective, rows = ScoreMatching(energy), jnp.array([[0.0], [4.0], [0.0], [4.0]])
    >>> fitted = fit(jax.random.key(0), objective, jnp.ones(1), rows)
    >>> uncertainty(objective, fitted, rows).stderr.round(4).tolist()  # 2 / sqrt(4)
    [1.0]
    """
    check_interface("objective", objective, Objective, "MPF(energy)")
    if not isinstance(fitted, Fit):
        raise ValueError(
            f"fitted must be the result of fit(...), got {type(fitted).__name__}"
        )
    if not objective.has_value:
        raise ValueError(
            "objective must have a loss value, whose curvature gives the error bars, "
            f"got {type(objective).__name__}, which defines only a gradient; try MPF, "
            "PseudoLikelihood or MaximumLikelihood"
        )
    penalty = fitted.penalty if penalty is None else penalty
    if penalty is not None and not penalty.smooth:
        raise ValueError(
            f"penalty must be smooth for error bars, got {penalty}; try fitting the "
            "nonzero parameters again without a penalty"
        )
    data = prepared_data(objective, fitted.params, data)
    refuse_mask(data, "error bars require complete rows")
    penalty = resolved_penalty(penalty, objective, fitted.params, data)
    _check_sum_over_rows(objective, fitted.params, data)
    if is_concrete(fitted.converged) and not fitted.converged:
        warn(
            "error bars are valid only at a minimum, which the fit has not reached; "
            "try more steps_per_round in fit",
            ConvergenceWarning,
        )
    if penalty is None:
        warn_of_unbounded(objective, fitted.params, data)
    dtype = float_dtype(fitted.params)
    parts = (objective, fitted.params, fitted.context, penalty, chart)
    size = chunk_size or default_chunk_size(data)
    return _sandwich(*cast_floats(dtype, parts), data, chunk_size=size)


def _check_sum_over_rows(objective, params, data):
    name = type(objective).__name__
    if objective.couples_rows:
        raise ValueError(
            f"objective must be a sum over rows for error bars, got {name} with "
            "exclude_data, in which rows exclude each other's neighbours; try "
            "exclude_data=False"
        )
    if has_statistic(objective, params, data.x):
        raise ValueError(
            f"objective must be a sum over rows for error bars, got {name}, which adds "
            "a function of all rows together; try the objective without it"
        )


@partial(jax.jit, static_argnames="chunk_size")
def _sandwich(objective, params, context, penalty, chart, data, *, chunk_size):
    forward = _identity if chart is None else chart.forward
    inverse = _identity if chart is None else chart.inverse
    point, unravel = ravel_pytree(forward(params))

    def to_params(point):
        return inverse(unravel(point))

    def remaining_terms(params):
        value = objective.rest(params, context.shared)
        return value if penalty is None else value + penalty.value(params)

    def over_rows(point):
        params, pull_back = jax.vjp(to_params, point)
        value, gradient = loss_over_rows(
            objective, params, data, context.rows, chunk_size=chunk_size
        )
        return value, pull_back(gradient)[0]

    def gradient(point):
        remaining = jax.grad(lambda point: remaining_terms(to_params(point)))
        return over_rows(point)[1] + remaining(point)

    def curvature(direction):
        return jax.jvp(gradient, (point,), (direction,))[1]

    axes = jnp.eye(point.size, dtype=point.dtype)
    hessian = jax.lax.map(curvature, axes, batch_size=_HESSIAN_BATCH)

    def row(point, x, rows):
        return objective.row(to_params(point), x, rows)

    rows = (data, context.rows)
    noise = _noise(objective.reduce, row, point, *over_rows(point), *rows, chunk_size)
    inverse_hessian, flat = _inverse(hessian)
    slopes = jax.jacfwd(lambda point: ravel_pytree(to_params(point))[0])(point)
    bread = slopes @ inverse_hessian
    return Uncertainty(params, bread @ noise @ bread.T, _normalised(slopes @ flat))


def _noise(reduce, row, point, value, gradient, data, context, chunk_size):
    """Compute sum_r w_r u_r u_r', the matrix between the two inverse Hessians.

    Args:
        value: reduction over all rows.
        gradient: gradient of the reduction.
    """
    weights = data.weights
    if weights is None:
        weights = jnp.ones(num_rows(data), point.dtype)
    total = weights.sum()

    def influence(x, context):
        """Compute u_r of one row."""
        row_value, row_gradient = jax.value_and_grad(row)(point, x, context)

        def factors(added):
            """Factors of both gradients if this row is added with the weight `added`.

            See `Objective.reduce`.
            """
            values = jnp.stack([value, row_value])
            return jax.grad(reduce)(values, jnp.stack([total, added]))

        # Derivative near the weight 0, at which reductions leave the row out.
        tiny = total * jnp.finfo(total.dtype).eps ** 2
        _, change = jax.jvp(factors, (tiny,), (jnp.ones_like(total),))
        return change[0] * gradient + change[1] * row_gradient

    count = num_rows(data)
    size = max(1, min(count, chunk_size, _MAX_GRADIENT_ENTRIES // point.size))

    def add(i, matrix):
        (x, rows), chunk_weights = cut_chunk(i, size, (data.x, context), weights)
        weighted = jnp.sqrt(chunk_weights)[:, None] * jax.vmap(influence)(x, rows)
        return matrix + weighted.T @ weighted

    zeros = jnp.zeros((point.size, point.size), point.dtype)
    return jax.lax.fori_loop(0, -(-count // size), add, zeros)


def _inverse(hessian):
    """Return the pseudo-inverse of the Hessian, and the directions without curvature.

    The Hessian is scaled to a diagonal of 1, so that the scale of the parameters does
    not matter.
    """
    hessian = (hessian + hessian.T) / 2
    diagonal = jnp.diagonal(hessian)
    scale = jnp.where(diagonal > 0, jax.lax.rsqrt(jnp.abs(diagonal)), 1)
    values, vectors = jnp.linalg.eigh(scale[:, None] * hessian * scale[None])
    rounding = jnp.finfo(values.dtype).eps * values[-1]
    curved = values > _FLAT_ROUNDING_UNITS * rounding
    inverse = (vectors * jnp.where(curved, 1 / values, 0)[None]) @ vectors.T
    flat = scale[:, None] * jnp.where(curved[None], 0, vectors)
    return scale[:, None] * inverse * scale[None], flat


def _normalised(columns):
    """Scale columns to length 1; columns of zeros are left unchanged."""
    lengths = jnp.sqrt(jnp.sum(columns**2, axis=0))
    return columns / jnp.where(lengths > 0, lengths, 1)[None]


def _identity(params):
    return params
