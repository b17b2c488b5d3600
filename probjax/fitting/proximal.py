"""Quasi-Newton descent for losses with a penalty that is not smooth.

The method needs the value and the proximal map of the penalty h, and the gradient of
the loss f.

Reference: Stella, Themelis, Sopasakis and Patrinos, "A simple and efficient algorithm
for nonlinear model predictive control" (PANOC), CDC 2017.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.fitting.history import (
    Memory,
    Vector,
    cleared,
    initial_memory,
    inverse_hessian,
    with_pair,
)
from probjax.fitting.lbfgs import loss_rounding, select
from probjax.fitting.optimisers import DescentMethod, Problem
from probjax.interfaces import Penalty
from probjax.recipe import recipe, static
from probjax.types import Array, PyTree, Scalar

# Purposes of the next evaluation.
_SEARCH, _PROBE, _SHORTEN = 0, 1, 2
# The step t is accepted if the curvature of the loss is below (1 - _SLACK) / t.
_SLACK = 0.05
# A step of the search has to lower the envelope by this times |residual|^2 / t.
_DECREASE = _SLACK / 4
# The quadratic term of the model with that curvature is this times |residual|^2 / t.
_CURVATURE = (1 - _SLACK) / 2
# Position along the direction below which the search takes the proximal step.
_SMALLEST_SHARE = 1e-3
# Shortest step of the proximal map.
_SMALLEST_STEP = 1e-12
# Length of the step that measures the curvature of the loss, relative to the point.
_PROBE_LENGTH = 1e-3


class Evaluation(NamedTuple):
    """A point, and the loss and its gradient there."""

    point: Vector
    value: Scalar
    gradient: Vector


class ProximalState(NamedTuple):
    """State of `Proximal`: `point` is the outcome of the proximal map at `base`."""

    point: Vector
    value: Scalar
    """Loss plus penalty at `point`."""
    gradient: Vector
    """Subgradient of loss plus penalty at `point`; infinite before the first step."""
    accepted: Array
    stalled: Array
    base: Vector
    """Point at which the gradient of the proximal step was computed."""
    residual: Vector
    """Difference base - point."""
    envelope: Scalar
    """Forward-backward envelope at `base`, which every step lowers."""
    direction: Vector
    """L-BFGS direction from `base`."""
    memory: Memory
    step: Scalar
    """Step t of the proximal map, shortened until it suits the loss's curvature."""
    asked: Vector
    """Point of the next evaluation."""
    purpose: Array
    """Purpose of the next evaluation: to search along the direction, to measure the
    curvature of the loss, or to check whether the step has to be shortened."""
    share: Scalar
    """Position of the search between the proximal point (0) and the end of the
    direction (1)."""
    found: Evaluation
    """Next base, once the search has ended."""
    trial: Scalar
    """Step that is being checked, and may have to be shortened."""
    smooth_gradient: Any = ()
    """Gradient of the loss alone at `point`; () in files of version 0.1.0."""
    rough_value: Any = ()
    """Penalty at `point`; () in files of version 0.1.0."""

    @property
    def evaluated(self) -> Vector:
        """Point at which `value` and `gradient` were computed."""
        return self.point


@recipe
class Proximal(DescentMethod):
    """Quasi-Newton descent on the forward-backward envelope (PANOC).

    With point(x) = prox_h(x - t grad f(x), t), the minima of f + h are the roots of
    x - point(x), and also the minima of the smooth envelope

        f(x) - grad f(x).r + r.r / 2t + h(x - r),   r = x - point(x).

    Each step searches between the plain proximal step, which always lowers the
    envelope, and an L-BFGS direction for the root. Returned points are outcomes of the
    proximal map, so that zeros are exact.

    Args:
        penalty: the penalty h.
        unravel: map from a flat vector to the tree that the penalty receives.
        memory_size: number of pairs that approximate the inverse Jacobian of the
            residual; None for `history.num_pairs` of the number of parameters.
    """

    penalty: Penalty
    unravel: Callable[[Vector], PyTree] = static()
    memory_size: int | None = static(default=None)

    def start(self, point: Vector, state: Any = None) -> ProximalState:
        one = jnp.ones((), point.dtype)
        zeros = jnp.zeros_like(point)
        return ProximalState(
            point=point,
            value=jnp.inf * one,
            gradient=jnp.full_like(point, jnp.inf),
            smooth_gradient=zeros,
            rough_value=jnp.zeros_like(one),
            accepted=jnp.asarray(False),
            stalled=jnp.asarray(False),
            base=point,
            residual=zeros,
            envelope=jnp.inf * one,
            direction=zeros,
            memory=initial_memory(self.memory_size, point, state),
            step=one,
            asked=point,
            purpose=jnp.asarray(_SEARCH),
            share=one,
            found=Evaluation(point, jnp.inf * one, zeros),
            trial=one,
        )

    def ask(self, state: ProximalState) -> Vector:
        return state.asked

    def tell(
        self, problem: Problem, state: ProximalState, value: Scalar, gradient: Vector
    ) -> ProximalState:
        evaluation = Evaluation(state.asked, value, gradient)
        state = state._replace(accepted=jnp.asarray(False))
        branches = (self._after_search, self._after_probe, self._after_trial)
        return jax.lax.switch(state.purpose, branches, state, evaluation)

    def _after_search(self, state, evaluation):
        """Accept the point as the next base if its envelope is low enough.

        Before the first step, the next evaluation measures the curvature of the loss
        along its gradient, whose inverse is the first step t. Steps are only ever
        shortened, so that a first step that is far too short would remain so.
        """
        decrease = state.residual @ state.residual * _DECREASE / state.step
        highest = state.envelope - decrease + loss_rounding(state.envelope)
        model = self._proximal_step(evaluation, state.step)
        is_accepted = (model.envelope <= highest) | (state.share <= 0)
        share = jnp.where(state.share > _SMALLEST_SHARE, state.share / 2, 0)
        nearer = state.point + share * (state.direction + state.residual)
        continued = state._replace(share=share, asked=nearer)
        slope = jnp.linalg.norm(evaluation.gradient)
        probe = (
            evaluation.point - _probe_length(evaluation) / slope * evaluation.gradient
        )
        is_first = jnp.isinf(state.envelope)
        accepted = state._replace(
            found=evaluation,
            trial=state.step,
            asked=jnp.where(is_first, probe, model.point),
            purpose=jnp.where(is_first, _PROBE, _SHORTEN),
        )
        return select(is_accepted, accepted, continued)

    def _after_probe(self, state, evaluation):
        """Set the first step to the inverse of the curvature, or to 1 if it is flat."""
        slope = jnp.linalg.norm(state.found.gradient)
        change = jnp.linalg.norm(evaluation.gradient - state.found.gradient)
        step = _probe_length(state.found) / change
        step = jnp.where(jnp.isfinite(step) & (slope > 0), step, jnp.ones_like(step))
        return self._try_step(state, step)

    def _try_step(self, state, step):
        asked = self._proximal_step(state.found, step).point
        purpose = jnp.full_like(state.purpose, _SHORTEN)
        return state._replace(trial=step, asked=asked, purpose=purpose)

    def _after_trial(self, state, evaluation):
        """Halve the step until the quadratic model lies above the loss."""
        found, step = state.found, state.trial
        target = self._proximal_step(found, step)
        square = target.residual @ target.residual
        model = (
            found.value - found.gradient @ target.residual + _CURVATURE * square / step
        )
        highest = model + loss_rounding(found.value)
        too_long = ~(evaluation.value <= highest) & (step > _SMALLEST_STEP)
        return select(
            too_long,
            self._try_step(state, step / 2),
            self._take_step(state, evaluation, target),
        )

    def _take_step(self, state, evaluation, target):
        """Return the state after a step to `target`, at the start of a search."""
        found, step = state.found, state.trial
        is_first = jnp.isinf(state.envelope)
        residual = self._proximal_step(found, state.step).residual
        memory = with_pair(
            state.memory, found.point - state.base, residual - state.residual
        )
        # Residuals of different steps are not comparable.
        memory = cleared(memory, where=step != state.step)
        direction = -inverse_hessian(memory, target.residual)
        penalty = self.penalty.value(self.unravel(target.point))
        return ProximalState(
            point=target.point,
            value=evaluation.value + penalty,
            gradient=evaluation.gradient - found.gradient + target.residual / step,
            smooth_gradient=evaluation.gradient,
            rough_value=penalty,
            accepted=~is_first,
            stalled=~jnp.isfinite(target.envelope)
            | (~is_first & jnp.all(found.point == state.base)),
            base=found.point,
            residual=target.residual,
            envelope=target.envelope,
            direction=direction,
            memory=memory,
            step=step,
            asked=target.point + (direction + target.residual),
            purpose=jnp.full_like(state.purpose, _SEARCH),
            share=jnp.ones_like(state.share),
            found=found,
            trial=step,
        )

    def _proximal_step(self, base, step):
        """Return the proximal point from `base`, and the envelope at `base`."""
        target = self.penalty.prox(
            self.unravel(base.point - step * base.gradient), step
        )
        point = ravel_pytree(target)[0]
        residual = base.point - point
        envelope = (
            base.value
            - base.gradient @ residual
            + residual @ residual / (2 * step)
            + self.penalty.value(target)
        )
        return _ProximalStep(point, residual, envelope)


def _probe_length(base):
    return _PROBE_LENGTH * (1 + jnp.linalg.norm(base.point))


class _ProximalStep(NamedTuple):
    point: Vector
    residual: Vector
    envelope: Scalar
