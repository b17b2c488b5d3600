"""Optimisation methods: limited-memory BFGS, and any optax transformation.

A method does not evaluate the loss itself: `ask` returns the point at which it needs
the loss next, and `tell` receives the value and the gradient there. They are evaluated
in a compiled loop, or on the host, block of rows by block. One evaluation may or may
not complete a line search, so that batches of fits under `vmap` do not wait for each
other's searches.

Reference: Nocedal, "Updating quasi-Newton matrices with limited storage" (1980); Hager
and Zhang, "A new conjugate gradient method with guaranteed descent" (2005), for the
line search where the loss is flat to rounding.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from probjax.recipe import recipe, static
from probjax.trees import float_dtype
from probjax.types import Array, Data, Float, PyTree, Scalar

Vector = Float[Array, " n"]

_DECREASE, _CURVATURE, _ROUNDING = 1e-4, 0.9, 50
_MAX_TRIES, _PATIENCE = 25, 50


class Problem(NamedTuple):
    """Optional inputs of an optimisation method."""

    loss: Callable[[PyTree], Scalar]
    """The loss at a point."""
    data: Data | None
    """The rows it is computed on; None if they are not all at hand."""
    to_params: Callable[[PyTree], PyTree] | None = None
    """From a point to parameters, if it is in the coordinates of a chart."""


class DescentMethod(ABC):
    """An optimisation method that is told the loss where it asks for it.

    Its states have the members `point`, `value`, `gradient`, `evaluated` (the point of
    `value` and `gradient`), `accepted` (the last evaluation completed a step) and
    `stalled` (no further progress is possible).
    """

    @abstractmethod
    def start(self, point: PyTree, state: Any = None) -> Any:
        """Create a state at `point`; `state` is that of the round before, if any."""

    @abstractmethod
    def ask(self, state: Any) -> PyTree:
        """Return the point at which the loss is needed next."""

    @abstractmethod
    def tell(
        self, problem: Problem, state: Any, value: Scalar, gradient: PyTree
    ) -> Any:
        """Return the next state, given the loss and its gradient at that point."""


class Memory(NamedTuple):
    """The last `m` steps and changes of gradient, newest last; empty slots are zero."""

    steps: Float[Array, "m n"]
    changes: Float[Array, "m n"]
    curvature: Float[Array, " m"]
    """steps_i . changes_i, zero for an empty slot."""


def forget(size: int, point: Vector) -> Memory:
    """An empty memory of `size` slots."""
    slots = jnp.zeros((size, len(point)), point.dtype)
    return Memory(slots, slots, jnp.zeros(size, point.dtype))


def remember(memory: Memory, step: Vector, change: Vector) -> Memory:
    """The memory with one pair more; a pair of no positive curvature is passed over."""
    curvature = step @ change
    tiny = jnp.finfo(step.dtype).eps * jnp.linalg.norm(step) * jnp.linalg.norm(change)

    def push(slots, new):
        return jnp.where(
            curvature > tiny, jnp.roll(slots, -1, 0).at[-1].set(new), slots
        )

    return Memory(
        push(memory.steps, step),
        push(memory.changes, change),
        push(memory.curvature, curvature),
    )


def inverse_hessian(memory: Memory, vector: Vector) -> Vector:
    """The two-loop recursion: the remembered inverse Hessian times `vector`."""
    inverse = jnp.where(memory.curvature > 0, 1 / memory.curvature, 0)
    inverse = jnp.where(jnp.isfinite(inverse), inverse, 0)

    def backward(vector, slot):
        step, change, rho = slot
        amount = rho * (step @ vector)
        return vector - amount * change, amount

    def forward(vector, slot):
        step, change, rho, amount = slot
        return vector + (amount - rho * (change @ vector)) * step, None

    slots = (memory.steps, memory.changes, inverse)
    vector, amounts = jax.lax.scan(backward, vector, slots, reverse=True)
    newest = memory.changes[-1] @ memory.changes[-1]
    scale = jnp.where(newest > 0, memory.curvature[-1] / newest, 1)
    return jax.lax.scan(forward, scale * vector, (*slots, amounts))[0]


class Trial(NamedTuple):
    """A point on the line of search: how far, how high, how steep."""

    length: Scalar
    value: Scalar
    slope: Scalar


class QuasiNewtonState(NamedTuple):
    """Where `QuasiNewton` is: the accepted point, and a search along a direction."""

    point: Vector
    value: Scalar
    gradient: Vector
    accepted: Array
    stalled: Array
    memory: Memory
    direction: Vector
    length: Scalar
    """Where along `direction` the next evaluation is."""
    near: Trial
    """The longest length known to be too short."""
    far: Trial
    """The shortest length known to be too long; infinite if none is."""
    tries: Array
    best: tuple[Scalar, Scalar]
    """The lowest value and the smallest square of a gradient so far."""
    idle: Array
    """Steps since either of them was improved."""

    @property
    def evaluated(self) -> Vector:
        """Where `value` and `gradient` are."""
        return self.point


@recipe
class QuasiNewton(DescentMethod):
    """L-BFGS with a bracketing line search that is at home in float32.

    A length is accepted if the loss falls enough and its slope has risen enough (the
    weak Wolfe conditions). Where the fall drowns in rounding, the slope alone decides.
    Losses that are not finite count as too long a step.
    """

    memory_size: int = static(default=20)

    def start(self, point: Vector, state: Any = None) -> QuasiNewtonState:
        infinite = jnp.asarray(jnp.inf, point.dtype)
        zero = jnp.zeros_like(infinite)
        return QuasiNewtonState(
            point=point,
            value=infinite,
            gradient=jnp.zeros_like(point),
            accepted=jnp.asarray(False),
            stalled=jnp.asarray(False),
            memory=forget(self.memory_size, point),
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
        seen = Trial(state.length, value, gradient @ state.direction)
        first = jnp.isinf(state.value)
        too_long, too_short = _judge(state, seen)

        def accept():
            step, change = trial - state.point, gradient - state.gradient
            memory = remember(state.memory, step, change)
            best, idle = _improvement(state, value, gradient @ gradient)
            there = state._replace(
                point=trial,
                value=value,
                gradient=gradient,
                accepted=~first,
                stalled=~jnp.isfinite(value + gradient.sum()) | (idle > _PATIENCE),
                memory=memory,
                best=best,
                idle=idle,
            )
            return _search(there, -inverse_hessian(memory, gradient))

        def narrow():
            near = choose(too_long, state.near, seen)
            far = choose(too_long, seen, state.far)
            going = state._replace(
                accepted=jnp.asarray(False),
                near=near,
                far=far,
                length=_next_length(near, far),
                tries=state.tries + 1,
            )
            return choose(going.tries < _MAX_TRIES, going, self._give_up(going))

        return jax.lax.cond(first | ~(too_long | too_short), accept, narrow)

    def _give_up(self, state):
        """Forget the curvature and go straight down; stall if that was done already."""
        downhill = _search(
            state._replace(memory=forget(self.memory_size, state.point)),
            -state.gradient,
        )
        return downhill._replace(stalled=state.memory.curvature[-1] <= 0)


def _search(state, direction):
    """The state at the start of a line search, along the gradient if need be."""
    slope = state.gradient @ direction
    useless = ~(slope < 0)
    direction = jnp.where(useless, -state.gradient, direction)
    slope = jnp.where(useless, -(state.gradient @ state.gradient), slope)
    scaled = ~useless & (state.memory.curvature[-1] > 0)
    steep = jnp.maximum(jnp.linalg.norm(state.gradient), 1)
    zero = jnp.zeros_like(slope)
    infinite = jnp.full_like(slope, jnp.inf)
    return state._replace(
        direction=direction,
        length=jnp.where(scaled, 1, 1 / steep),
        near=Trial(zero, state.value, slope),
        far=Trial(infinite, infinite, zero),
        tries=jnp.zeros_like(state.tries),
    )


def _improvement(state, value, square):
    """The best value and squared gradient so far, and steps since they got better."""
    lowest, smallest = state.best
    last_bit = jnp.finfo(value.dtype).eps * jnp.abs(value)
    better = (value < lowest - last_bit) | (square < 0.98 * smallest)
    best = (jnp.minimum(lowest, value), jnp.minimum(smallest, square))
    return best, jnp.where(better, 0, state.idle + 1)


def _judge(state, seen):
    """Whether the length is too long, or else too short."""
    slope = state.gradient @ state.direction
    slack = rounding(state.value)
    falls = seen.value <= state.value + _DECREASE * seen.length * slope
    level = (seen.value <= state.value + slack) & (
        seen.slope <= (2 * _DECREASE - 1) * slope
    )
    finite = jnp.isfinite(seen.value) & jnp.isfinite(seen.slope)
    too_long = ~((falls | level) & finite)
    return too_long, ~too_long & (seen.slope < _CURVATURE * slope)


def _next_length(near, far):
    """The minimum of the cubic through both ends, kept well inside; or farther out."""
    width = far.length - near.length
    rise = 3 * (near.value - far.value) / width + near.slope + far.slope
    root = jnp.sqrt(jnp.maximum(rise**2 - near.slope * far.slope, 0))
    share = (root + rise - near.slope) / (2 * root + far.slope - near.slope)
    share = jnp.where(jnp.isfinite(share), share, 0.1)
    inside = near.length + jnp.clip(share, 0.1, 0.9) * width
    return jnp.where(jnp.isfinite(far.length), inside, 4 * near.length)


def rounding(value: Scalar) -> Scalar:
    """By how much a loss about `value` may be off, being a sum of many terms."""
    return _ROUNDING * jnp.finfo(value.dtype).eps * (1 + jnp.abs(value))


def choose(condition: Array, first: PyTree, second: PyTree) -> PyTree:
    """`first` where `condition` holds and else `second`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)


class OptaxState(NamedTuple):
    """Where an optax optimizer is."""

    point: PyTree
    evaluated: PyTree
    """The point before the last update, where `value` and `gradient` are."""
    value: Scalar
    gradient: PyTree
    accepted: Array
    stalled: Array
    inner: PyTree
    """The optimizer's own state, kept across rounds."""


@recipe
class Optax(DescentMethod):
    """An update of an optax optimizer each time, given all it may ask for."""

    optimizer: optax.GradientTransformation = static()

    def start(self, point: PyTree, state: OptaxState | None = None) -> OptaxState:
        inner = self.optimizer.init(point) if state is None else state.inner
        value = jnp.full((), jnp.inf, float_dtype(point))
        false = jnp.asarray(False)
        still = jax.tree.map(jnp.zeros_like, point)
        return OptaxState(point, point, value, still, false, false, inner)

    def ask(self, state: OptaxState) -> PyTree:
        return state.point

    def tell(
        self, problem: Problem, state: OptaxState, value: Scalar, gradient: PyTree
    ) -> OptaxState:
        # Line searches insist that it takes whatever they are given.
        def value_fn(point, data=None, to_params=None):
            return problem.loss(point)

        # Only passed if there is a chart, as few optimizers accept it.
        to_params = problem.to_params
        charted = {} if to_params is None else {"to_params": to_params}
        update = optax.with_extra_args_support(self.optimizer).update
        updates, inner = update(
            gradient,
            state.inner,
            state.point,
            value=value,
            grad=gradient,
            value_fn=value_fn,
            data=problem.data,
            **charted,
        )
        point = optax.apply_updates(state.point, updates)
        accepted = jnp.asarray(True)
        # A batch of which nothing is left has the loss log 0: its step is no step.
        stalled = ~(value < jnp.inf)
        return OptaxState(point, state.point, value, gradient, accepted, stalled, inner)
