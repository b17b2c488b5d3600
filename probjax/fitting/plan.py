"""Plan of a fit: its arguments, its coordinates, and its optimisation method.

A point is what an optimisation method moves: the parameters, or their coordinates in a
chart, as a tree or as one flat vector.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from probjax.fitting.lbfgs import QuasiNewton
from probjax.fitting.metric import StepMetric
from probjax.fitting.optimisers import Optax
from probjax.fitting.proximal import Proximal
from probjax.fitting.stochastic import StochasticApproximation
from probjax.fitting.stopping import StoppingRule
from probjax.interfaces import Chart, Objective, Penalty
from probjax.recipe import recipe, static
from probjax.types import Array, Params, PyTree, Scalar


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
    is_linear: bool = static(default=False)
    """Whether the loss is sampled and its gradient over rows is the same for all
    parameters, so that it is computed once."""
    metric: StepMetric | None = None
    """Metric of the steps of stochastic approximation, if the loss is linear."""
    total_rows: Scalar | float = 1.0
    """Number of rows, or their total weight; only used by stochastic approximation."""


def is_stochastic(plan: RoundsPlan) -> bool:
    """Whether the fit descends by stochastic approximation."""
    return plan.optimizer is None and plan.objective.num_groups > 0


def has_distance(plan: RoundsPlan) -> bool:
    """Whether the distance from the minimum is computed in every step."""
    applies = plan.optimizer is None and plan.batch_size is None
    return applies and plan.stop.needs_distance and not is_stochastic(plan)


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
    method: Any = QuasiNewton()
    if is_stochastic(plan):
        method = StochasticApproximation(
            metric=plan.metric,
            num_rows=plan.total_rows,
            max_steps=plan.steps_per_round,
            num_groups=plan.objective.num_groups,
        )
    elif plan.rough is not None:
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
