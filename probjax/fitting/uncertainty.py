"""Error bars on fitted parameters: the sandwich covariance of any objective.

At an estimate the gradient of the loss vanishes. To first order, the sampling error of
the estimate is the sampling error of the gradient times the inverse of the Hessian H of
the loss:

    covariance = H^-1 (sum_r w_r u_r u_r') H^-1,    u_r = d gradient / d w_r,

where u_r is the change of the gradient if one more copy of row r is added. The model
need not be true. If it is true and the loss is the negative log-likelihood, the
covariance is the inverse Fisher matrix divided by the number of rows. See
`probjax.fitting.gradient_noise` for rows that are correlated, and
`probjax.fitting.curvature` for H.

Reference: Godambe, Ann. Math. Stat. 31, 1208 (1960); White, Econometrica 50, 1 (1982).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax.checks import check_interface, is_concrete, warn
from probjax.data.clusters import row_clusters
from probjax.data.rows import num_rows
from probjax.fitting.arguments import prepared_data, resolved_penalty
from probjax.fitting.chunk_size import default_chunk_size
from probjax.fitting.curvature import COLUMNS_AT_A_TIME
from probjax.fitting.result import ConvergenceWarning, Fit, warn_of_unbounded
from probjax.fitting.sandwich import FittedLoss, sandwich_covariance
from probjax.interfaces import Chart, Objective, Penalty, has_statistic
from probjax.runs.driver import driver
from probjax.trees import cast_floats, describe_range, float_dtype, known_values
from probjax.types import (
    Array,
    ArrayLike,
    Bool,
    Data,
    Float,
    Int,
    Params,
    PyTree,
)

# A function is undetermined if more than this fraction of its squared gradient lies
# along directions in which the loss is flat.
_FLAT_FRACTION = 1e-4


class Uncertainty(NamedTuple):
    """Sampling error of fitted parameters.

    >>> covariance = jnp.diag(jnp.array([9.0, 16.0]))
    >>> found = Uncertainty(jnp.ones(2), covariance, loose=jnp.zeros((2, 1)))
    >>> found.stderr.tolist(), float(found.of(jnp.sum))
    ([3.0, 4.0], 5.0)
    >>> print(found.describe())
    standard errors of 2 parameters: 3 to 4
    """

    params: Params
    """Fitted parameters."""
    covariance: Float[Array, "n n"]
    """Covariance of all entries of the parameters, in the order of `ravel_pytree`,
    without the undetermined part along `loose`."""
    loose: Float[Array, "n k"]
    """Unit vectors along which the loss is flat, so that the data do not determine the
    parameters; the other columns are zero."""
    unbounded: Bool[Array, " n"] | tuple[()] = ()
    """Whether an entry has no finite estimate, such as the coupling of two units that
    are never on together, whatever a penalty makes of it; () if that is not known."""

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
        if function is _identity:
            variance, size = jnp.diagonal(self.covariance), jnp.ones_like(flat)
            loose_size = jnp.sum(self.loose**2, axis=1) + self._unbounded_entries()
        else:
            slopes = jax.jacrev(lambda point: ravel_pytree(function(unravel(point)))[0])
            slopes = slopes(flat)
            variance = jnp.sum(slopes @ self.covariance * slopes, axis=1)
            size = jnp.sum(slopes**2, axis=1)
            loose_size = jnp.sum((slopes @ self.loose) ** 2, axis=1)
            loose_size += slopes**2 @ self._unbounded_entries()
        stderr = jnp.sqrt(jnp.maximum(variance, 0))
        # Compared with the slopes, so that the scale of the function does not matter.
        stderr = jnp.where(loose_size > _FLAT_FRACTION * size, jnp.inf, stderr)
        return back(stderr.astype(value.dtype))

    def _unbounded_entries(self):
        if isinstance(self.unbounded, tuple):
            return jnp.zeros_like(ravel_pytree(self.params)[0])
        return self.unbounded.astype(self.covariance.dtype)

    def describe(self) -> str:
        """Describe the range of the standard errors, and what is not determined."""
        stderr = known_values(ravel_pytree(self.stderr)[0])
        if stderr is None:
            return "standard errors that are not known yet"
        finite = stderr[np.isfinite(stderr)]
        lines = [
            f"standard errors of {stderr.size:,} parameters: {describe_range(finite)}"
        ]
        unbounded = np.count_nonzero(self._unbounded_entries())
        if unbounded:
            lines.append(
                f"{unbounded:,} parameters have no finite estimate, such as couplings "
                "of units that are never on together; their errors are infinite"
            )
        flat = int(np.count_nonzero(np.any(np.asarray(self.loose) != 0, axis=0)))
        if flat:
            count = np.count_nonzero(~np.isfinite(stderr)) - unbounded
            lines.append(
                f"{count:,} parameters are a gauge: the loss is flat along {flat:,} "
                "directions, and data cannot determine them; of(function) is finite "
                "for functions that are equal in every gauge, such as energy gaps"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Uncertainty: {self.describe()}"


@driver
def uncertainty(
    objective: Objective,
    fitted: Fit,
    data: PyTree | Data,
    *,
    clusters: Int[ArrayLike, " row"] | None = None,
    penalty: Penalty | None = None,
    chart: Chart | None = None,
    chunk_size: int | None = None,
) -> Uncertainty:
    """Compute the sandwich covariance of parameters that `fit` has found.

    Weights are counts: a weight of 2 means two equal rows. The sampling error is that
    of independent rows, or of independent clusters of rows, each together with the
    random moves drawn for it; the bias that a penalty causes is not included. If
    couplings have no finite estimate, there is an `UnboundedWarning`, and their
    standard errors are infinite, with or without a penalty. For a likelihood by
    sampling, the chains of the fit go on at the estimate to compute the curvature.

    With more than 2,048 parameters the noise of the gradient is estimated from 4,096
    rows, which changes standard errors by 1 % or so, and memory grows with the square
    of the number of parameters. Time does, too, for pairwise models; for others it
    grows with this number times the time of a gradient.

    Args:
        objective: the objective that was fitted. Contrastive divergence, persistent MPF
            and EM do not minimise a function, and raise an error.
        fitted: result of `fit`.
        data: the data that were fitted, in memory.
        clusters: a number for each row. Rows with equal numbers may be correlated, and
            rows with different numbers must be independent. For a recording of which
            500 successive bins are longer than its correlations, for example,
            `np.arange(num_rows) // 500`. At least 20 clusters are advisable.
        penalty: the penalty that was fitted, which must be smooth; None for the one in
            `fitted`. After a fit with `L1`, fit the nonzero couplings again without it,
            for example with `ising.init(..., edges=...)`, and compute their error bars.
        chart: the chart that was passed to `fit`; entries that it freezes have no
            error. A default chart need not be given.
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
    if not (objective.has_value or objective.num_groups):
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
    _refuse_mask(data)
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
    own = None if clusters is None else row_clusters(clusters, num_rows(data))
    loss = FittedLoss(objective, fitted.params, fitted.context, penalty, chart)
    loss = cast_floats(float_dtype(fitted.params), loss)
    size = chunk_size or default_chunk_size(
        objective, loss.params, data, num_copies=COLUMNS_AT_A_TIME
    )
    covariance, loose = sandwich_covariance(loss, data, own, size)
    unbounded = _unbounded(loss, data)
    return Uncertainty(loss.params, covariance, loose, unbounded)


def _refuse_mask(data):
    if data.mask is not None:
        raise ValueError(
            "data must have no missing entries for error bars, because imputed entries "
            "vary, too; try a bootstrap: fit again to rows drawn with replacement, or "
            "leave out rows with missing entries"
        )


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


def _unbounded(loss, data):
    """Return which entries have no finite estimate, except those that are frozen."""
    if not is_concrete((loss, data)):
        return ()
    found = loss.objective.unbounded_entries(loss.params, data)
    if found is None:
        return ()
    entries = ravel_pytree(jax.tree.map(jnp.asarray, found))[0]
    return entries if loss.chart is None else entries & _is_free(loss)


@jax.jit
def _is_free(loss):
    """Whether each parameter depends on the coordinates of the chart."""
    point, unravel = ravel_pytree(loss.chart.forward(loss.params))

    def to_params(point):
        return ravel_pytree(loss.chart.inverse(unravel(point)))[0]

    return jnp.any(jax.jacfwd(to_params)(point) != 0, axis=1)


def _identity(params):
    return params
