"""Distance of a fit from the minimum, in standard errors.

    t^2 = 2 n d / c

n is the number of rows and d the decrease of the loss that remains, extrapolated from
the decreases D and P over the last W steps and over the W steps before them,

    d = D r / (1 - r),    r = D / P.

c is the variance over rows of the row gradient along these steps, divided by the
curvature of the loss along them; it is 1 for the likelihood of a true model. So t is a
distance in standard errors, and depends neither on the coordinates nor on the scale of
the loss. The decrease of a step s is measured from gradients, -s.(g + g') / 2, because
near a minimum the change of the loss itself is below its rounding error.

Extrapolation fails where descent is slow for another reason, such as near a saddle
point. So t is at least the distance along the gradient g alone,

    t^2 >= n (g.g)^2 / (variance over rows of the row gradient along g),

and at least that of windows of half the length.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax.data.chunks import thinned
from probjax.data.rows import num_rows
from probjax.interfaces import Objective
from probjax.trees import float_dtype
from probjax.types import Array, Data, Float, PyTree, Scalar

WINDOW = 20
"""Largest number of steps in a window."""
MAX_ROWS = 8192
"""Number of rows from which variances are estimated, to about 2 %."""
# Fewest steps from which a decrease is extrapolated.
_LEAST_STEPS = 6
# Number of steps between estimates of the variance in a short fit.
_SHORT_CHECK = 3


class Descent(NamedTuple):
    """Recent steps of a fit, from which its distance from the minimum is computed."""

    decreases: Float[Array, " step"]
    """Decreases of the loss by the last 2 `WINDOW` steps, the newest last."""
    num_steps: Array
    """Number of steps taken in this round."""
    anchor: Float[Array, " n"]
    """Point at the beginning of the steps along which the variance is computed."""
    anchor_gradient: Float[Array, " n"]
    """Gradient of the loss without its non-smooth part at `anchor`."""
    ratio: Scalar
    """c, the variance along the steps divided by their curvature; infinite at first."""
    slope_distance: Scalar
    """Distance along the gradient alone, in standard errors."""
    distance: Scalar
    """Distance in standard errors; infinite if it is not known."""


def start_descent(point: Float[Array, " n"]) -> Descent:
    """Return the state before the first step of a round at `point`."""
    infinite = jnp.full((), jnp.inf, point.dtype)
    return Descent(
        decreases=jnp.zeros(2 * WINDOW, point.dtype),
        num_steps=jnp.asarray(0),
        anchor=point,
        anchor_gradient=jnp.zeros_like(point),
        ratio=infinite,
        slope_distance=infinite,
        distance=infinite,
    )


class RowSample(NamedTuple):
    """Rows from which variances are estimated."""

    data: Data
    context: PyTree
    """Part of the objective's context that belongs to these rows."""
    num_rows: Scalar
    """Number of all rows, or their total weight."""


def row_sample(data: Data, context: PyTree) -> RowSample:
    """Return at most about twice `MAX_ROWS` of the rows, at equal distances."""
    count = num_rows(data)
    total = jnp.asarray(float(count)) if data.weights is None else data.weights.sum()
    stride = max(1, count // MAX_ROWS)
    return RowSample(thinned(data, stride), thinned(context, stride), total)


def next_descent(
    objective: Objective,
    coordinates: Any,
    sample: RowSample,
    descent: Descent,
    before: Any,
    after: Any,
) -> Descent:
    """Return the state after an evaluation of the loss.

    Args:
        coordinates: the `Coordinates` of the fit.
        before: state of the optimisation method before the evaluation.
        after: its state after the evaluation.
    """
    step = after.point - before.point
    slope = (before.smooth_gradient + after.smooth_gradient) @ step / 2
    fall = before.rough_value - after.rough_value - slope
    is_first = jnp.isinf(before.value)
    moved = descent._replace(
        decreases=jnp.append(descent.decreases[1:], fall),
        num_steps=descent.num_steps + 1,
    )
    begun = descent._replace(anchor=after.point, anchor_gradient=after.smooth_gradient)
    descent = _select(after.accepted, moved, descent)
    descent = _select(is_first, begun, descent)
    number = sample.num_rows.astype(fall.dtype)
    remaining = _remaining_decrease(descent)
    count = descent.num_steps
    is_due = count % jnp.where(count < WINDOW, _SHORT_CHECK, WINDOW) == 0
    hopeful = 2 * number * remaining < descent.ratio * 1e-2
    checks = after.accepted & (count >= _LEAST_STEPS) & (is_due | hopeful)

    def check():
        return _variance_ratio(objective, coordinates, sample, descent, after)

    # Only numbers, because the branches of a conditional copy what they return.
    numbers = descent.ratio, descent.slope_distance
    ratio, slope_distance = jax.lax.cond(checks, check, lambda: numbers)
    restarts = checks & (count % WINDOW == 0)
    here = (after.point, after.smooth_gradient)
    anchors = _select(restarts, here, (descent.anchor, descent.anchor_gradient))
    descent = Descent(
        descent.decreases,
        count,
        *anchors,
        ratio=ratio,
        slope_distance=slope_distance,
        distance=descent.distance,
    )
    known = jnp.isfinite(descent.ratio) & (descent.ratio > 0)
    ratio = jnp.where(known, descent.ratio, 1)
    distance = jnp.sqrt(2 * number * remaining / ratio)
    distance = jnp.maximum(distance, descent.slope_distance)
    return descent._replace(distance=jnp.where(known, distance, jnp.inf))


def _remaining_decrease(descent):
    """Extrapolate the decrease of the loss after all further steps."""
    longest = jnp.clip(descent.num_steps // 2, 1, WINDOW)
    age = jnp.arange(2 * WINDOW)[::-1]

    def extrapolated(window):
        last = jnp.sum(jnp.where(age < window, descent.decreases, 0))
        previous = (age >= window) & (age < 2 * window)
        previous = jnp.sum(jnp.where(previous, descent.decreases, 0))
        falls = (last >= 0) & (last < previous)
        gone = jnp.where(falls, previous - last, 1)
        return jnp.where(falls, last**2 / gone, jnp.inf)

    both = extrapolated(longest), extrapolated((longest + 1) // 2)
    remaining = jnp.maximum(*both)
    return jnp.where(descent.num_steps < _LEAST_STEPS, jnp.inf, remaining)


def _variance_ratio(objective, coordinates, sample, descent, method):
    """Return `ratio` and `slope_distance` of a `Descent`, estimated from rows."""
    steps = method.point - descent.anchor
    change = method.smooth_gradient - descent.anchor_gradient
    gradient = method.gradient
    variances = row_variances(
        objective,
        coordinates.params,
        method.point,
        sample,
        jnp.stack([steps, gradient]),
    )
    curvature = steps @ change
    convex = curvature > 0
    ratio = variances[0] / jnp.where(convex, curvature, 1)
    varies = variances[1] > 0
    along = gradient @ gradient / jnp.sqrt(jnp.where(varies, variances[1], 1))
    number = sample.num_rows.astype(along.dtype)
    slope_distance = jnp.where(varies, jnp.sqrt(number) * along, 0)
    return jnp.where(convex, ratio, jnp.inf), slope_distance


def row_variances(
    objective: Objective,
    to_params: Any,
    point: Float[Array, " n"],
    sample: RowSample,
    directions: Float[Array, "direction n"],
) -> Float[Array, " direction"]:
    """Compute the variance over rows of the row gradient along each direction.

    The row gradient is the derivative of the gradient of the loss with respect to the
    weight of a row, times the total weight. It is exact for objectives that reduce rows
    to their mean, or to the logarithm of their mean exponential.
    """
    x, weights = sample.data.x, sample.data.weights
    if weights is None:
        weights = jnp.ones(num_rows(sample.data), float_dtype(point))
    weights = weights.astype(point.dtype)

    def row_values(point):
        params = to_params(point)
        return jax.vmap(objective.row, (None, 0, 0))(params, x, sample.context)

    values, tangent = jax.linearize(row_values, point)
    shares = jax.grad(objective.reduce)(values, weights)
    total = weights.sum()
    factors = jnp.where(weights > 0, total * shares / weights, 0)

    def variance(direction):
        slopes = tangent(direction)
        influence = factors * (slopes - shares @ slopes)
        return weights @ influence**2 / total

    # In turn and not batched, so that only one tangent is in memory.
    return jax.lax.map(variance, directions)


def _select(condition, first, second):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)
