"""The loss of a fit in its coordinates, and what changes before it is evaluated.

The gradient of the loss with respect to a point is that with respect to the parameters,
pulled back through the chart. If the loss contains means over states of the model,
these states are moved before every evaluation, and stochastic approximation receives
the gradient of each independent group of them.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.fitting.distance import RowSample
from probjax.fitting.loss import loss_over_rows
from probjax.fitting.metric import metric_of
from probjax.fitting.optimisers import Problem
from probjax.fitting.plan import Coordinates, RoundsPlan, is_stochastic
from probjax.trees import float_dtype, scaled
from probjax.types import (
    Array,
    Context,
    Data,
    Float,
    Params,
    PRNGKeyArray,
    PyTree,
    Scalar,
)


class Evaluated(NamedTuple):
    """The loss at the point that `ask` returned."""

    problem: Problem
    """Optional inputs of the optimisation method."""
    value: Scalar
    """Loss."""
    gradient: PyTree
    """Gradient of the loss in the coordinates."""


def evaluate(
    plan: RoundsPlan,
    coordinates: Coordinates,
    data: Data,
    context: Context,
    point: PyTree,
    row_gradient: Params | None = None,
) -> Evaluated:
    """Compute the loss on some rows at a point.

    Args:
        row_gradient: gradient of the loss over rows if it is linear, else None.
    """

    def over_rows(params):
        if row_gradient is not None:
            return linear_loss(row_gradient, params)
        return loss_over_rows(
            plan.objective, params, data, context.rows, chunk_size=plan.chunk_size
        )

    def at_point(point):
        return total_loss(plan, coordinates, context.shared, point, over_rows)

    @jax.custom_vjp
    def loss(point):
        return at_point(point)[0]

    loss.defvjp(at_point, lambda gradient, scale: (scaled(scale, gradient),))
    problem = Problem(loss, data, chart_inverse(plan, coordinates))
    return evaluate_with(plan, coordinates, problem, context, point, over_rows)


def evaluate_with(
    plan: RoundsPlan,
    coordinates: Coordinates,
    problem: Problem,
    context: Context,
    point: PyTree,
    over_rows: Callable[[Params], tuple[Scalar, Params]],
) -> Evaluated:
    """Compute the loss at a point, given the reduction over rows as for `total_loss`.

    For stochastic approximation `problem` receives the gradients of all groups.
    """
    value, gradient = total_loss(plan, coordinates, context.shared, point, over_rows)
    if is_stochastic(plan):
        args = (plan, coordinates, context.shared, point, gradient)
        problem = problem._replace(groups=partial(group_gradients, *args))
    return Evaluated(problem, value, gradient)


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


def group_gradients(
    plan: RoundsPlan,
    coordinates: Coordinates,
    shared: PyTree,
    point: PyTree,
    gradient: Float[Array, " n"],
) -> Float[Array, "group n"]:
    """Compute the gradient of the loss with each group of states of the model.

    Args:
        shared: as for `total_loss`.
        gradient: gradient of the loss with all states.
    """
    params, pull_back = jax.vjp(coordinates.params, point)
    groups, axes = plan.objective.groups(shared)
    rests = jax.vmap(jax.grad(plan.objective.rest), (None, axes))(params, groups)
    rests = jax.vmap(pull_back)(rests)[0]
    return gradient[None] + rests - rests.mean(0)[None]


def linear_loss(gradient: Params, params: Params) -> tuple[Scalar, Params]:
    """Return a linear loss over rows, up to a constant, and its gradient."""
    products = jax.tree.map(lambda g, p: jnp.sum(g * p), gradient, params)
    return jnp.stack(jax.tree.leaves(products)).sum(), gradient


def chart_inverse(
    plan: RoundsPlan, coordinates: Coordinates
) -> Callable[[PyTree], Params] | None:
    """Return the map from coordinates to parameters; None without a chart."""
    return None if plan.chart is None else coordinates.params


def moved_states(
    plan: RoundsPlan,
    coordinates: Coordinates,
    key: PRNGKeyArray,
    point: PyTree,
    data: Data,
    context: Context,
) -> Context:
    """Return the context after the states of the model have followed the parameters."""
    if not plan.objective.num_groups:
        return context
    return plan.objective.refresh(key, coordinates.params(point), data, context)


def with_metric(
    plan: RoundsPlan,
    coordinates: Coordinates,
    key: PRNGKeyArray,
    sample: Callable[[], RowSample],
    evaluated: Evaluated,
) -> Evaluated:
    """Add the metric of stochastic approximation: that of the plan, or an estimate.

    Args:
        sample: returns rows for an estimate. It is called where the method needs the
            metric, so that rows are not copied in every step.
    """

    def metric(point):
        if plan.metric is not None:
            return plan.metric
        args = (plan.objective, plan.penalty, coordinates.params, point, sample())
        return metric_of(key, *args, for_steps=False)

    return evaluated._replace(problem=evaluated.problem._replace(metric=metric))
