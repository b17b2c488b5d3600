"""Error bars on fitted parameters: the sandwich covariance of any objective.

An estimate is where the gradient of a loss vanishes. To first order its noise is that
of the gradient, carried over by the curvature H of the loss,

    covariance = H^-1 (sum_r w_r u_r u_r') H^-1,    u_r = d gradient / d w_r,

u_r being what one more copy of row r adds to the gradient. Nothing in it supposes that
the model is true; where it is, and the loss is the likelihood, the covariance is the
inverse of the Fisher matrix over the number of rows.

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
from probjax.fitting.fit import ConvergenceWarning, Fit, at_door, warn_of_unbounded
from probjax.fitting.loss import default_chunk_size, loss_over_rows
from probjax.interfaces import Chart, Objective, Penalty, has_statistic
from probjax.runs.driver import driver
from probjax.trees import cast_floats, float_dtype
from probjax.types import Array, Data, Float, Params, PyTree

DIRECTIONS = 32
ENTRIES = 2**22


class Uncertainty(NamedTuple):
    """How far fitted parameters may be from what endless data would give.

    >>> covariance = jnp.diag(jnp.array([9.0, 16.0]))
    >>> found = Uncertainty(jnp.ones(2), covariance, loose=jnp.zeros((2, 1)))
    >>> found.stderr.tolist(), float(found.of(jnp.sum))
    ([3.0, 4.0], 5.0)
    """

    params: Params
    """The parameters it is about."""
    covariance: Float[Array, "n n"]
    """Of all entries of the parameters, in the order of `ravel_pytree`, as far as the
    data determine them."""
    loose: Float[Array, "n k"]
    """Directions in which the loss is flat, so that nothing holds the parameters; zero
    columns where there are fewer."""

    @property
    def stderr(self) -> Params:
        """The standard error of every parameter; infinite where nothing holds it."""
        return self.of(_itself)

    def of(self, function: Callable[[Params], PyTree]) -> PyTree:
        """The standard error of any differentiable function of the parameters.

        It may be finite where those of the parameters are not, as of an energy gap that
        is the same in every gauge.
        """
        flat, unravel = ravel_pytree(self.params)
        value, back = ravel_pytree(function(self.params))
        slopes = jnp.eye(flat.size, dtype=flat.dtype)
        if function is not _itself:
            slopes = jax.jacrev(lambda point: ravel_pytree(function(unravel(point)))[0])
            slopes = slopes(flat)
        variance = jnp.sum(slopes @ self.covariance * slopes, axis=1)
        # Relative to the slopes, which have the scale of the function.
        size = jnp.sum(slopes**2, axis=1)
        adrift = jnp.sum((slopes @ self.loose) ** 2, axis=1) > 1e-4 * size
        stderr = jnp.sqrt(jnp.maximum(variance, 0))
        return back(jnp.where(adrift, jnp.inf, stderr).astype(value.dtype))


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
    """The sandwich covariance of parameters found by `fit`, from the same arguments.

    Weights are counts: a weight of 2 is two rows alike. The noise is that of the rows
    with what was drawn for each, all taken as independent; what a penalty does to the
    estimate on average is not in it. Couplings without a finite estimate, of which
    there is a warning, have no error bars either: theirs are of where the fit ended.

    Args:
        objective: as it was fitted. Contrastive divergences, persistent flow and EM are
            no function that is minimised, and are refused.
        penalty: as it was fitted, if it is smooth. After `L1` fit what was kept without
            it, as `ising.init(..., edges=...)`, and ask there.
        chart: as it was fitted: what it holds fixed has no error.
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
    if not objective.has_value:
        raise ValueError(
            f"{type(objective).__name__} is no loss that is minimised, so its "
            "curvature says nothing: fit MPF, PseudoLikelihood or MaximumLikelihood"
        )
    if penalty is not None and not penalty.smooth:
        raise ValueError(
            "a penalty that is not smooth leaves no error bars: fit what it kept "
            "without it, and ask there"
        )
    data = at_door(objective, fitted.params, data)
    refuse_mask(data, "error bars do not know what missing entries would have said")
    if objective.couples_rows:
        raise ValueError(
            "with exclude_data rows decide on the neighbours of others, so that the "
            "loss is no sum over rows: there are no error bars for it"
        )
    if has_statistic(objective, fitted.params, data.x):
        raise ValueError(
            f"{type(objective).__name__} adds a function of all rows together, so that "
            "the loss is no sum over rows: there are no error bars for it"
        )
    if is_concrete(fitted.converged) and not fitted.converged:
        warn(
            "error bars are of a minimum, which the fit has not come to",
            ConvergenceWarning,
        )
    if penalty is None:
        warn_of_unbounded(objective, fitted.params, data)
    kind = float_dtype(fitted.params)
    parts = (objective, fitted.params, fitted.context, penalty, chart)
    size = chunk_size or default_chunk_size(data)
    return _sandwich(*cast_floats(kind, parts), data, chunk_size=size)


@partial(jax.jit, static_argnames="chunk_size")
def _sandwich(objective, params, context, penalty, chart, data, *, chunk_size):
    forward = _itself if chart is None else chart.forward
    inverse = _itself if chart is None else chart.inverse
    point, unravel = ravel_pytree(forward(params))

    def to_params(point):
        return inverse(unravel(point))

    def beside(params):
        value = objective.rest(params, context.shared)
        return value if penalty is None else value + penalty.value(params)

    def over_rows(point):
        at, pull = jax.vjp(to_params, point)
        value, gradient = loss_over_rows(
            objective, at, data, context.rows, chunk_size=chunk_size
        )
        return value, pull(gradient)[0]

    def gradient(point):
        return over_rows(point)[1] + jax.grad(lambda p: beside(to_params(p)))(point)

    def curvature(direction):
        return jax.jvp(gradient, (point,), (direction,))[1]

    axes = jnp.eye(point.size, dtype=point.dtype)
    hessian = jax.lax.map(curvature, axes, batch_size=DIRECTIONS)

    def row(point, x, rows):
        return objective.row(to_params(point), x, rows)

    rows = (data, context.rows)
    noise = _noise(objective.reduce, row, point, *over_rows(point), *rows, chunk_size)
    inverse_hessian, flat = _inverse(hessian)
    slopes = jax.jacfwd(lambda p: ravel_pytree(to_params(p))[0])(point)
    spread = slopes @ inverse_hessian
    return Uncertainty(params, spread @ noise @ spread.T, _of_length_one(slopes @ flat))


def _noise(reduce, row, point, value, gradient, data, context, most):
    """sum_r w_r u_r u_r'; `value` and `gradient` are those of the reduction."""
    weights = data.weights
    if weights is None:
        weights = jnp.ones(num_rows(data), point.dtype)
    total = weights.sum()

    def influence(x, context):
        mine, slope = jax.value_and_grad(row)(point, x, context)

        def shares(added):
            """Of the data and of `added` rows like this one, see `Objective.reduce`."""
            both = jnp.stack([value, mine])
            return jax.grad(reduce)(both, jnp.stack([total, added]))

        # Not at 0, where what has no weight is left out of reductions.
        little = total * jnp.finfo(total.dtype).eps ** 2
        _, change = jax.jvp(shares, (little,), (jnp.ones_like(total),))
        return change[0] * gradient + change[1] * slope

    count = num_rows(data)
    size = max(1, min(count, most, ENTRIES // point.size))

    def add(i, sum_):
        (x, rows), mine = cut_chunk(i, size, (data.x, context), weights)
        scaled = jnp.sqrt(mine)[:, None] * jax.vmap(influence)(x, rows)
        return sum_ + scaled.T @ scaled

    nothing = jnp.zeros((point.size, point.size), point.dtype)
    return jax.lax.fori_loop(0, -(-count // size), add, nothing)


def _inverse(hessian):
    """The inverse where the loss is curved, and the directions in which it is not.

    In units in which its diagonal is 1, so that parameters of any scale are alike.
    """
    hessian = (hessian + hessian.T) / 2
    diagonal = jnp.diagonal(hessian)
    scale = jnp.where(diagonal > 0, jax.lax.rsqrt(jnp.abs(diagonal)), 1)
    values, vectors = jnp.linalg.eigh(scale[:, None] * hessian * scale[None])
    curved = values > 100 * jnp.finfo(values.dtype).eps * values[-1]
    inverse = (vectors * jnp.where(curved, 1 / values, 0)[None]) @ vectors.T
    loose = scale[:, None] * jnp.where(curved[None], 0, vectors)
    return scale[:, None] * inverse * scale[None], loose


def _of_length_one(columns):
    lengths = jnp.sqrt(jnp.sum(columns**2, axis=0))
    return columns / jnp.where(lengths > 0, lengths, 1)[None]


def _itself(params):
    return params
