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

from probjax.descent import (
    Memory,
    Problem,
    Vector,
    choose,
    forget,
    inverse_hessian,
    remember,
    rounding,
)
from probjax.types import Array, Penalty, PyTree, Scalar, recipe, static


class ProximalState(NamedTuple):
    """Where `Proximal` is: `point` minimises a model of the loss around `base`."""

    point: Vector
    value: Scalar
    """Loss and penalty at `point`."""
    gradient: Vector
    """A subgradient of loss plus penalty at `point`."""
    accepted: Array
    stalled: Array
    base: Vector
    residual: Vector
    """base - point."""
    envelope: Scalar
    """The forward-backward envelope at `base`, which every tick lowers."""
    direction: Vector
    memory: Memory
    step: Scalar
    """The step of the proximal map, shortened until it suits the loss."""

    @property
    def evaluated(self) -> Vector:
        """Where `value` and `gradient` are."""
        return self.point


@recipe
class Proximal:
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
            gradient=still,
            accepted=jnp.asarray(False),
            stalled=jnp.asarray(False),
            base=point,
            residual=still,
            envelope=jnp.inf * one,
            direction=still,
            memory=forget(self.memory_size, point),
            step=one,
        )

    def tick(self, problem: Problem, state: ProximalState) -> ProximalState:
        found = self._search(problem, state)
        first = jnp.isinf(state.envelope)
        memory = remember(
            state.memory, found.base - state.base, found.residual - state.residual
        )
        step = jax.lax.cond(
            first, lambda: self._first_step(problem, found), lambda: state.step
        )
        step, there = self._shorten(problem, step, found)
        renewed = forget(self.memory_size, found.base)
        memory = choose(step != state.step, renewed, memory)
        value, slope = there.value_at_point, there.gradient_at_point
        subgradient = slope - found.gradient + there.residual / step
        return ProximalState(
            point=there.point,
            value=value + self.penalty.value(self.unravel(there.point)),
            gradient=subgradient,
            accepted=~first,
            stalled=~jnp.isfinite(there.envelope)
            | (~first & jnp.all(found.base == state.base)),
            base=found.base,
            residual=there.residual,
            envelope=there.envelope,
            direction=-inverse_hessian(memory, there.residual),
            memory=memory,
            step=step,
        )

    def _first_step(self, problem, base):
        """The inverse of the loss's curvature along its gradient.

        Losses come in all sizes, and steps are only ever shortened: one that begins
        far too short would stay so.
        """
        slope = jnp.linalg.norm(base.gradient)
        length = 1e-3 * (1 + jnp.linalg.norm(base.base))
        away = base.base - length / slope * base.gradient
        change = problem.evaluate(away)[1] - base.gradient
        step = length / jnp.linalg.norm(change)
        return jnp.where(jnp.isfinite(step) & (slope > 0), step, jnp.ones_like(step))

    def _search(self, problem, state):
        """The first base along the path from the proximal point to the direction."""
        goal = state.residual @ state.residual * (0.05 / 4) / state.step
        highest = state.envelope - goal + rounding(state.envelope)

        def look(share):
            base = state.point + share * (state.direction + state.residual)
            value, gradient = problem.evaluate(base)
            return self._model(base, value, gradient, state.step)

        def unfit(carry):
            share, base = carry
            return ~(base.envelope <= highest) & (share > 0)

        def shrink(carry):
            share = jnp.where(carry[0] > 1e-3, carry[0] / 2, 0)
            return share, look(share)

        one = jnp.ones_like(goal)
        return jax.lax.while_loop(unfit, shrink, (one, look(one)))[1]

    def _shorten(self, problem, step, base):
        """Halve the step until the quadratic model lies above the loss."""

        def look(step):
            there = self._model(base.base, base.value, base.gradient, step)
            value, gradient = problem.evaluate(there.point)
            return there._replace(value_at_point=value, gradient_at_point=gradient)

        def crossed(carry):
            step, there = carry
            square = there.residual @ there.residual
            model = base.value - base.gradient @ there.residual + 0.475 * square / step
            highest = model + rounding(base.value)
            return ~(there.value_at_point <= highest) & (step > 1e-12)

        def halve(carry):
            return carry[0] / 2, look(carry[0] / 2)

        return jax.lax.while_loop(crossed, halve, (step, look(step)))

    def _model(self, base, value, gradient, step):
        target = self.unravel(base - step * gradient)
        near = self.penalty.prox(target, step)
        point = ravel_pytree(near)[0]
        residual = base - point
        envelope = (
            value
            - gradient @ residual
            + residual @ residual / (2 * step)
            + self.penalty.value(near)
        )
        return _Model(base, value, gradient, point, residual, envelope, value, gradient)


class _Model(NamedTuple):
    base: Vector
    value: Scalar
    gradient: Vector
    point: Vector
    residual: Vector
    envelope: Scalar
    value_at_point: Scalar
    gradient_at_point: Vector
