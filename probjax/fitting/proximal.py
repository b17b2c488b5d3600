"""Quasi-Newton descent for losses with a penalty that is not smooth.

Of the penalty h it needs only the value and the proximal map, of the loss f its
gradient.

Reference: Stella, Themelis, Sopasakis and Patrinos, "A simple and efficient algorithm
for nonlinear model predictive control" (PANOC), CDC 2017.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.fitting.descent import (
    DescentMethod,
    Memory,
    Problem,
    Vector,
    choose,
    forget,
    inverse_hessian,
    remember,
    rounding,
)
from probjax.interfaces import Penalty
from probjax.recipe import recipe, static
from probjax.types import Array, PyTree, Scalar

# What the next evaluation is for.
_SEARCH, _PROBE, _SHORTEN = 0, 1, 2


class Seen(NamedTuple):
    """A place where the loss was evaluated."""

    point: Vector
    value: Scalar
    gradient: Vector


class ProximalState(NamedTuple):
    """Where `Proximal` is: `point` minimises a model of the loss around `base`."""

    point: Vector
    value: Scalar
    """Loss and penalty at `point`."""
    gradient: Vector
    """A subgradient of loss plus penalty at `point`, infinite before there is one."""
    accepted: Array
    stalled: Array
    base: Vector
    residual: Vector
    """base - point."""
    envelope: Scalar
    """The forward-backward envelope at `base`, which every step lowers."""
    direction: Vector
    memory: Memory
    step: Scalar
    """The step of the proximal map, shortened until it suits the loss."""
    asked: Vector
    """Where the next evaluation is."""
    purpose: Array
    """What it is for: to search along the direction, to probe the loss's curvature, or
    to see whether the step has to be shortened."""
    share: Scalar
    """How far along the direction the search is."""
    found: Seen
    """The next base, once the search has found it."""
    trial: Scalar
    """The step that may have to be shortened."""

    @property
    def evaluated(self) -> Vector:
        """Where `value` and `gradient` are."""
        return self.point


@recipe
class Proximal(DescentMethod):
    """Quasi-Newton descent on the forward-backward envelope (PANOC): zeros are zeros.

    With point(x) = prox_h(x - t grad f(x), t), the minima of f + h are the roots of
    x - point(x), and those of the smooth envelope

        f(x) - grad f(x).r + r.r / 2t + h(x - r),   r = x - point(x),

    along which an L-BFGS direction for the root is searched, the plain proximal step
    being always good enough. The points returned are outcomes of the proximal map.
    """

    penalty: Penalty
    unravel: Callable[[Vector], PyTree] = static()
    memory_size: int = static(default=20)

    def start(self, point: Vector, state: Any = None) -> ProximalState:
        one = jnp.ones((), point.dtype)
        still = jnp.zeros_like(point)
        return ProximalState(
            point=point,
            value=jnp.inf * one,
            gradient=jnp.full_like(point, jnp.inf),
            accepted=jnp.asarray(False),
            stalled=jnp.asarray(False),
            base=point,
            residual=still,
            envelope=jnp.inf * one,
            direction=still,
            memory=forget(self.memory_size, point),
            step=one,
            asked=point,
            purpose=jnp.asarray(_SEARCH),
            share=one,
            found=Seen(point, jnp.inf * one, still),
            trial=one,
        )

    def ask(self, state: ProximalState) -> Vector:
        return state.asked

    def tell(
        self, problem: Problem, state: ProximalState, value: Scalar, gradient: Vector
    ) -> ProximalState:
        seen = Seen(state.asked, value, gradient)
        state = state._replace(accepted=jnp.asarray(False))
        branches = (self._searched, self._probed, self._tried)
        return jax.lax.switch(state.purpose, branches, state, seen)

    def _searched(self, state, seen):
        """Take the first base along the path from the proximal point to the direction.

        Before the first step, the inverse of the loss's curvature along its gradient is
        asked for: losses come in all sizes, and steps are only ever shortened, so that
        one that begins far too short would stay so.
        """
        goal = state.residual @ state.residual * (0.05 / 4) / state.step
        highest = state.envelope - goal + rounding(state.envelope)
        model = self._model(seen, state.step)
        fit = (model.envelope <= highest) | (state.share <= 0)
        share = jnp.where(state.share > 1e-3, state.share / 2, 0)
        nearer = state.point + share * (state.direction + state.residual)
        on = state._replace(share=share, asked=nearer)
        slope = jnp.linalg.norm(seen.gradient)
        away = seen.point - _probe_length(seen) / slope * seen.gradient
        begins = jnp.isinf(state.envelope)
        done = state._replace(
            found=seen,
            trial=state.step,
            asked=jnp.where(begins, away, model.point),
            purpose=jnp.where(begins, _PROBE, _SHORTEN),
        )
        return choose(fit, done, on)

    def _probed(self, state, seen):
        """Begin with the inverse of the curvature, if there is one."""
        slope = jnp.linalg.norm(state.found.gradient)
        change = jnp.linalg.norm(seen.gradient - state.found.gradient)
        step = _probe_length(state.found) / change
        step = jnp.where(jnp.isfinite(step) & (slope > 0), step, jnp.ones_like(step))
        return self._try(state, step)

    def _try(self, state, step):
        asked = self._model(state.found, step).point
        purpose = jnp.full_like(state.purpose, _SHORTEN)
        return state._replace(trial=step, asked=asked, purpose=purpose)

    def _tried(self, state, seen):
        """Halve the step until the quadratic model lies above the loss."""
        found, step = state.found, state.trial
        there = self._model(found, step)
        square = there.residual @ there.residual
        model = found.value - found.gradient @ there.residual + 0.475 * square / step
        highest = model + rounding(found.value)
        crossed = ~(seen.value <= highest) & (step > 1e-12)
        return choose(
            crossed, self._try(state, step / 2), self._stepped(state, seen, there)
        )

    def _stepped(self, state, seen, there):
        """The state after a step to `there`, about to search from it."""
        found, step = state.found, state.trial
        first = jnp.isinf(state.envelope)
        residual = self._model(found, state.step).residual
        memory = remember(
            state.memory, found.point - state.base, residual - state.residual
        )
        renewed = forget(self.memory_size, found.point)
        memory = choose(step != state.step, renewed, memory)
        direction = -inverse_hessian(memory, there.residual)
        return ProximalState(
            point=there.point,
            value=seen.value + self.penalty.value(self.unravel(there.point)),
            gradient=seen.gradient - found.gradient + there.residual / step,
            accepted=~first,
            stalled=~jnp.isfinite(there.envelope)
            | (~first & jnp.all(found.point == state.base)),
            base=found.point,
            residual=there.residual,
            envelope=there.envelope,
            direction=direction,
            memory=memory,
            step=step,
            asked=there.point + (direction + there.residual),
            purpose=jnp.full_like(state.purpose, _SEARCH),
            share=jnp.ones_like(state.share),
            found=found,
            trial=step,
        )

    def _model(self, base, step):
        target = self.unravel(base.point - step * base.gradient)
        near = self.penalty.prox(target, step)
        point = ravel_pytree(near)[0]
        residual = base.point - point
        envelope = (
            base.value
            - base.gradient @ residual
            + residual @ residual / (2 * step)
            + self.penalty.value(near)
        )
        return _Model(point, residual, envelope)


def _probe_length(base):
    return 1e-3 * (1 + jnp.linalg.norm(base.point))


class _Model(NamedTuple):
    point: Vector
    residual: Vector
    envelope: Scalar
