"""Plan of a fit: its arguments, its coordinates, and the loss in these coordinates.

A point is what an optimisation method moves: the parameters, or their coordinates in a
chart, as a tree or as one flat vector. The gradient of the loss with respect to a point
is that with respect to the parameters, pulled back through the chart.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from probjax.fitting.lbfgs import QuasiNewton
from probjax.fitting.loss import loss_over_rows
from probjax.fitting.optimisers import Optax, Problem
from probjax.fitting.proximal import Proximal
from probjax.fitting.stopping import StoppingRule
from probjax.interfaces import Chart, Objective, Penalty
from probjax.recipe import recipe, static
from probjax.trees import float_dtype, scaled
from probjax.types import Array, Context, Data, Params, PyTree, Scalar


@recipe
class RoundsPlan:
    """All arguments of a fit except its parameters and data."""

    objective: Objective
    penalty: Penalty | None
    chart: Chart | None
    stop: StoppingRule
    optimizer: optax.GradientTransformation | None = static()
    num_rounds: Array | int
    steps_per_round: Array | int
    batch_size: int | None = static()
    chunk_size: int | None = static()
    rows_per_round: int | None = static(default=None)
    """Number of rows that a round visits in minibatches; None without minibatches."""
    rough: Penalty | None = None
    """Part of the penalty that is not smooth, as a function of the coordinates."""


def has_distance(plan: RoundsPlan) -> bool:
    """Whether the distance from the minimum is computed in every step."""
    applies = plan.optimizer is None and plan.batch_size is None
    return applies and plan.stop.needs_distance


class Coordinates(NamedTuple):
    """Coordinates of a fit, and the optimisation method that works in them."""

    method: Any
    point: Callable[[Params], PyTree]
    """Map from parameters to coordinates."""
    params: Callable[[PyTree], Params]
    """Map from coordinates to parameters."""

    def gradient_norm(self, state: Any) -> Scalar:
        """Return the largest absolute entry of the gradient in the parameters."""
        _, pull_back = jax.vjp(self.point, self.params(state.evaluated))
        (gradient,) = pull_back(state.gradient)
        leaves = [
            jnp.max(jnp.abs(leaf), initial=0) for leaf in jax.tree.leaves(gradient)
        ]
        return jnp.max(jnp.stack(leaves))


def coordinates_of(plan: RoundsPlan, params: Params) -> Coordinates:
    """Return the coordinates and the optimisation method of a plan.

    L-BFGS and the proximal method use one flat vector, optax optimizers use a tree.
    """
    chart = plan.chart
    forward = _identity if chart is None else chart.forward
    inverse = _identity if chart is None else chart.inverse
    if plan.optimizer is not None:
        return Coordinates(Optax(plan.optimizer), forward, inverse)
    unravel = ravel_pytree(forward(params))[1]
    method = QuasiNewton()
    if plan.rough is not None:
        method = Proximal(plan.rough, unravel)
    return Coordinates(
        method,
        lambda params: ravel_pytree(forward(params))[0],
        lambda point: inverse(unravel(point)),
    )


def rough_in_chart(
    penalty: Penalty | None, chart: Chart | None, params: Params
) -> Penalty | None:
    """Return the part of a penalty that is not smooth, in terms of the coordinates.

    None if there is no such part, or if the chart is not diagonal in the penalised
    entries, so that the proximal map has no closed form.
    """
    _, rough = (None, None) if penalty is None else penalty.parts()
    if rough is None or chart is None:
        return rough
    scales = chart.scales(params)
    return None if scales is None else rough.in_chart(scales)


def _identity(params):
    return params


def make_problem(
    plan: RoundsPlan, coordinates: Coordinates, data: Data, context: Context
) -> tuple[Problem, Callable[[PyTree], tuple[Scalar, PyTree]]]:
    """Return the loss on some rows, and a function for its value and gradient."""

    def over_rows(params):
        return loss_over_rows(
            plan.objective, params, data, context.rows, chunk_size=plan.chunk_size
        )

    def evaluate(point):
        return total_loss(plan, coordinates, context.shared, point, over_rows)

    @jax.custom_vjp
    def loss(point):
        return evaluate(point)[0]

    loss.defvjp(evaluate, lambda gradient, scale: (scaled(scale, gradient),))
    return Problem(loss, data, chart_inverse(plan, coordinates)), evaluate


def total_loss(
    plan: RoundsPlan,
    coordinates: Coordinates,
    shared: PyTree,
    point: PyTree,
    over_rows: Callable[[Params], tuple[Scalar, Params]],
) -> tuple[Scalar, PyTree]:
    """Compute the loss and its gradient in the coordinates.

    Args:
        shared: part of the objective's context that belongs to no row.
        point: coordinates of the parameters.
        over_rows: returns the reduction over rows and its gradient in the parameters;
            `rest` and a smooth penalty are added here.
    """

    def remaining_terms(params):
        value = plan.objective.rest(params, shared)
        smooth, _ = (None, None) if plan.penalty is None else plan.penalty.parts()
        return value if smooth is None else value + smooth.value(params)

    params, pull_back = jax.vjp(coordinates.params, point)
    remaining = jax.value_and_grad(remaining_terms)(params)
    value, gradient = jax.tree.map(jnp.add, over_rows(params), remaining)
    return value.astype(float_dtype(params)), pull_back(gradient)[0]


def chart_inverse(
    plan: RoundsPlan, coordinates: Coordinates
) -> Callable[[PyTree], Params] | None:
    """Return the map from coordinates to parameters; None without a chart."""
    return None if plan.chart is None else coordinates.params
