"""Limited-memory BFGS, with a line search that is accurate in float32.

Reference: Nocedal, "Updating quasi-Newton matrices with limited storage" (1980); Hager
and Zhang, "A new conjugate gradient method with guaranteed descent" (2005), for the
line search where changes of the loss are below its rounding error.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax.fitting.history import (
    Memory,
    Vector,
    cleared,
    initial_memory,
    inverse_hessian,
    with_pair,
    with_pairs,
    without_pairs,
)
from probjax.fitting.optimisers import DescentMethod, Problem
from probjax.recipe import recipe, static
from probjax.types import Array, PyTree, Scalar

# Constants of the Wolfe conditions: sufficient decrease, and curvature.
_DECREASE, _CURVATURE = 1e-4, 0.9
# Rounding error of a loss, in units in the last place.
_ROUNDING_UNITS = 50
# Evaluations of one line search before it is abandoned.
_MAX_TRIES = 25
# Steps without progress after which the method has stalled, if the gradient is as small
# as its own rounding error, and if it is not.
_PATIENCE, _LONG_PATIENCE = 50, 500
# A step makes progress if it lowers the loss, or the squared norm of the gradient to
# this fraction of the smallest one so far.
_PROGRESS = 0.98
# Smallest distance of a new length from the ends of the bracket, as a fraction of it.
_MARGIN = 0.1
# Factor by which a length grows while no length is known to be too long, and the number
# of times. A loss without a lower bound may be linear along the line, so that every
# length is too short.
_GROWTH, _MOST_GROWTHS = 4, 5


class Trial(NamedTuple):
    """A point on the line of a line search."""

    length: Scalar
    """Step length, in multiples of the direction."""
    value: Scalar
    """Loss there."""
    slope: Scalar
    """Derivative of the loss along the direction."""


class QuasiNewtonState(NamedTuple):
    """State of `QuasiNewton`: the last accepted point, and a line search from it."""

    point: Vector
    value: Scalar
    gradient: Vector
    accepted: Array
    stalled: Array
    memory: Memory
    direction: Vector
    length: Scalar
    """Step length along `direction` of the next evaluation."""
    near: Trial
    """Longest length known to be too short."""
    far: Trial
    """Shortest length known to be too long; its length is infinite if there is none."""
    tries: Array
    """Number of lengths rejected in this line search."""
    best: tuple[Scalar, Scalar]
    """Lowest value and smallest squared norm of the gradient so far."""
    idle: Array
    """Number of steps since either of `best` improved."""

    @property
    def evaluated(self) -> Vector:
        """Point at which `value` and `gradient` were computed."""
        return self.point

    @property
    def smooth_gradient(self) -> Vector:
        """Gradient of the loss without a penalty that is not smooth."""
        return self.gradient

    @property
    def rough_value(self) -> Scalar:
        """Value of a penalty that is not smooth: 0, because there is none."""
        return jnp.zeros_like(self.value)


@recipe
class QuasiNewton(DescentMethod):
    """L-BFGS with a bracketing line search that is accurate in float32.

    A length is accepted if the loss has decreased enough and its slope has increased
    enough (the weak Wolfe conditions). If the decrease is smaller than the rounding
    error of the loss, only the slope is used. A length at which the loss is not finite
    is too long.

    Args:
        memory_size: number of pairs that approximate the inverse Hessian; None for
            `num_pairs` of the number of parameters.
    """

    memory_size: int | None = static(default=None)

    def start(self, point: Vector, state: Any = None) -> QuasiNewtonState:
        infinite = jnp.asarray(jnp.inf, point.dtype)
        zero = jnp.zeros_like(infinite)
        return QuasiNewtonState(
            point=point,
            value=infinite,
            gradient=jnp.zeros_like(point),
            accepted=jnp.asarray(False),
            stalled=jnp.asarray(False),
            memory=initial_memory(self.memory_size, point, state),
            direction=jnp.zeros_like(point),
            length=zero,
            near=Trial(zero, infinite, zero),
            far=Trial(infinite, infinite, zero),
            tries=jnp.asarray(0),
            best=(infinite, infinite),
            idle=jnp.asarray(0),
        )

    def ask(self, state: QuasiNewtonState) -> Vector:
        return state.point + state.length * state.direction

    def tell(
        self, problem: Problem, state: QuasiNewtonState, value: Scalar, gradient: Vector
    ) -> QuasiNewtonState:
        trial = self.ask(state)
        evaluation = Trial(state.length, value, gradient @ state.direction)
        first = jnp.isinf(state.value)
        too_long, too_short = _length_errors(state, evaluation)
        too_short &= jnp.isfinite(state.far.length) | (state.tries < _MOST_GROWTHS)
        is_accepted = first | ~(too_long | too_short)
        memory = with_pair(
            state.memory,
            trial - state.point,
            gradient - state.gradient,
            where=is_accepted,
        )
        state, pairs = without_pairs(state._replace(memory=memory))

        def accept():
            best, idle = _improvement(state, value, gradient @ gradient)
            at_rest = jnp.max(jnp.abs(gradient)) <= gradient_rounding(value)
            patience = jnp.where(at_rest, _PATIENCE, _LONG_PATIENCE)
            accepted = state._replace(
                point=trial,
                value=value,
                gradient=gradient,
                accepted=~first,
                stalled=~jnp.isfinite(value + gradient.sum()) | (idle > patience),
                best=best,
                idle=idle,
            )
            return _start_search(accepted, -inverse_hessian(memory, gradient))

        def narrow():
            near = select(too_long, state.near, evaluation)
            far = select(too_long, evaluation, state.far)
            narrowed = state._replace(
                accepted=jnp.asarray(False),
                near=near,
                far=far,
                length=_next_length(near, far),
                tries=state.tries + 1,
            )
            restarted = self._restarted(narrowed)
            return select(narrowed.tries < _MAX_TRIES, narrowed, restarted)

        return with_pairs(jax.lax.cond(is_accepted, accept, narrow), pairs)

    def _restarted(self, state):
        """Search along the negative gradient, without the memory.

        The method has stalled if the memory was empty already.
        """
        emptied = state._replace(memory=cleared(state.memory))
        downhill = _start_search(emptied, -state.gradient)
        return downhill._replace(stalled=state.memory.newest_curvature <= 0)


def _start_search(state, direction):
    """Return the state at the start of a line search.

    The search is along the negative gradient if `direction` is not a descent direction.
    """
    slope = state.gradient @ direction
    is_ascent = ~(slope < 0)
    direction = jnp.where(is_ascent, -state.gradient, direction)
    slope = jnp.where(is_ascent, -(state.gradient @ state.gradient), slope)
    is_newton_step = ~is_ascent & (state.memory.newest_curvature > 0)
    steepness = jnp.maximum(jnp.linalg.norm(state.gradient), 1)
    zero = jnp.zeros_like(slope)
    infinite = jnp.full_like(slope, jnp.inf)
    return state._replace(
        direction=direction,
        length=jnp.where(is_newton_step, 1, 1 / steepness),
        near=Trial(zero, state.value, slope),
        far=Trial(infinite, infinite, zero),
        tries=jnp.zeros_like(state.tries),
    )


def _improvement(state, value, square):
    """Return the best value and squared gradient so far, and steps without progress."""
    lowest, smallest = state.best
    last_bit = jnp.finfo(value.dtype).eps * jnp.abs(value)
    better = (value < lowest - last_bit) | (square < _PROGRESS * smallest)
    best = (jnp.minimum(lowest, value), jnp.minimum(smallest, square))
    return best, jnp.where(better, 0, state.idle + 1)


def _length_errors(state, trial):
    """Return whether a length is too long, and whether it is too short."""
    slope = state.gradient @ state.direction
    decreases = trial.value <= state.value + _DECREASE * trial.length * slope
    # The approximate condition of Hager and Zhang, if the change is below rounding.
    is_level = (trial.value <= state.value + loss_rounding(state.value)) & (
        trial.slope <= (2 * _DECREASE - 1) * slope
    )
    finite = jnp.isfinite(trial.value) & jnp.isfinite(trial.slope)
    too_long = ~((decreases | is_level) & finite)
    return too_long, ~too_long & (trial.slope < _CURVATURE * slope)


def _next_length(near, far):
    """Return the minimum of the cubic interpolant, away from the ends of the bracket.

    Without an upper end, the length grows by a constant factor.
    """
    width = far.length - near.length
    rise = 3 * (near.value - far.value) / width + near.slope + far.slope
    root = jnp.sqrt(jnp.maximum(rise**2 - near.slope * far.slope, 0))
    place = (root + rise - near.slope) / (2 * root + far.slope - near.slope)
    place = jnp.where(jnp.isfinite(place), place, _MARGIN)
    inside = near.length + jnp.clip(place, _MARGIN, 1 - _MARGIN) * width
    return jnp.where(jnp.isfinite(far.length), inside, _GROWTH * near.length)


def loss_rounding(value: Scalar) -> Scalar:
    """Bound the rounding error of a loss near `value`, a sum of many terms."""
    return _ROUNDING_UNITS * jnp.finfo(value.dtype).eps * (1 + jnp.abs(value))


def gradient_rounding(value: Scalar) -> Scalar:
    """Estimate the rounding error of an entry of the gradient near a loss `value`."""
    return jnp.finfo(value.dtype).eps * (1 + jnp.abs(value))


def select(condition: Array, first: PyTree, second: PyTree) -> PyTree:
    """Return `first` if `condition` holds and `second` otherwise, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)
