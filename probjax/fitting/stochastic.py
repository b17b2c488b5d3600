"""Stochastic approximation: descent of a sampled likelihood by noisy gradients.

    theta <- theta - a_t min(1, 1 / |g|) F^-1 g,    |g|^2 = g'F^-1 g,
    a_t = RATE / (1 + t / DECAY),

with g the gradient from the chains and F the metric of `probjax.fitting.metric`. The
chains lag behind the parameters. Steps must therefore be small: no step is longer than
a_t in the metric, so that the model changes by at most a_t^2 / 2 nats. Full Newton
steps lead chains into modes far from the data, where they stay.

A fit consists of stages, each twice as long as the one before. The result of a stage is
the mean of the points of its second half if it is the first stage, and of all its
points otherwise. The parameters are then held at that mean while the chains go on, and
the distance from the maximum is measured by the products of the gradients of
independent groups of chains, see `probjax.fitting.group_distance`. If it is above
`NEAR`, t begins at 0 again. If the chains did not move enough to measure it, but did
before, the next stage is as long as this one. The steps and the holds of all stages
count as steps of the fit.

If the energy is not linear in the parameters, F changes along the way, and may be
singular at the start, as that of an RBM with small weights is. The direction is then
that of Adam, and F is estimated again for each measurement.

Reference: Younes, Probability Theory and Related Fields 82, 625 (1989); Polyak and
Juditsky, SIAM J. Control Optim. 30, 838 (1992), for the mean; Kingma and Ba, ICLR 2015.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from probjax.fitting.group_distance import correlation, group_distance
from probjax.fitting.metric import StepMetric, gram
from probjax.fitting.optimisers import DescentMethod, Problem
from probjax.recipe import recipe, static
from probjax.trees import float_dtype
from probjax.types import Array, Float, PyTree, Scalar

RATE, DECAY = 0.2, 100.0
ADAM_RATE, ADAM_DECAY = 0.02, 1000.0
MAX_STEPS = 10_000
"""Largest number of steps of a fit by default."""
FIRST_STAGE = 250
NEAR = 1.0
"""Distance above which the steps of the next stage are as long as at first."""
_LEAST_HOLD, _HOLD_SHARE = 50, 2
# Share of a hold before the gradients count, in which chains adjust to the parameters.
_SETTLING_SHARE = 5
# Chains that remember more than this of the first half of a hold do not move enough.
_MOST_CORRELATION = 0.5


class StochasticState(NamedTuple):
    """State of `StochasticApproximation`."""

    point: Float[Array, " n"]
    """Best estimate: the mean of the last stage, or of this one once it is longer."""
    evaluated: Float[Array, " n"]
    """Point at which `value` and `gradient` were computed."""
    value: Scalar
    gradient: Float[Array, " n"]
    accepted: Array
    stalled: Array
    current: Float[Array, " n"]
    """Point that the next step starts from."""
    mean: Float[Array, " n"]
    """Mean of the points of this stage."""
    num_points: Array
    """Number of points in `mean`."""
    points_before: Array
    """Number of points in the mean of the stage before."""
    stage: Array
    """Number of the stage, from 0."""
    length: Array
    """Number of steps of this stage."""
    hold: Array
    """Number of evaluations at its mean."""
    step: Array
    """Number of steps and evaluations of this stage so far."""
    taken: Array
    """Number of steps and evaluations of all stages before."""
    clock: Array
    """Number t of steps, from which the length of the next one follows."""
    sums: Float[Array, "2 group n"]
    """Sums of the gradients of groups in the first and in the second half of a hold."""
    adam: PyTree
    """State of Adam; () if steps are in the metric."""
    distance: Scalar
    """Distance at the end of the last hold; infinite if it is not known."""
    memory: Scalar
    """Correlation of the errors of groups between the halves of the last hold."""


@recipe
class StochasticApproximation(DescentMethod):
    """Descent by gradients that are means over chains, as the module describes."""

    metric: StepMetric | None
    """Metric of the steps; None for Adam."""
    num_rows: Scalar | float
    """Number of rows, or their total weight."""
    max_steps: Array | int
    """Number of steps after which the fit ends."""
    num_groups: int = static()
    """Number of groups of chains."""

    def start(self, point: PyTree, state: Any = None) -> StochasticState:
        if state is not None:
            point = state.point
        dtype, zero = float_dtype(point), jnp.asarray(0)
        infinite, false = jnp.full((), jnp.inf, dtype), jnp.asarray(False)
        zeros = jnp.zeros_like(point)
        length, hold = self._stage(zero, zero)
        return StochasticState(
            point=point,
            evaluated=point,
            value=infinite,
            gradient=zeros,
            accepted=false,
            stalled=false,
            current=point,
            mean=zeros,
            num_points=zero,
            points_before=zero,
            stage=zero,
            length=length,
            hold=hold,
            step=zero,
            taken=zero,
            clock=zero,
            sums=jnp.zeros((2, self.num_groups, *point.shape), dtype),
            adam=() if self.metric is not None else _ADAM.init(point),
            distance=infinite,
            memory=jnp.zeros((), dtype),
        )

    def ask(self, state: StochasticState) -> PyTree:
        return jnp.where(state.step < state.length, state.current, state.mean)

    def tell(
        self, problem: Problem, state: StochasticState, value: Scalar, gradient: PyTree
    ) -> StochasticState:
        state = state._replace(
            evaluated=self.ask(state),
            value=value,
            gradient=gradient,
            accepted=jnp.asarray(True),
        )
        return jax.lax.cond(
            state.step < state.length,
            self._descend,
            lambda state: self._hold(problem, state),
            state,
        )

    def distance(self, state: StochasticState) -> Scalar:
        return state.distance

    def remedy(self, state: StochasticState) -> str:
        if state.memory < _MOST_CORRELATION:
            return "try more steps_per_round, or more chains (num_chains)"
        return (
            "the chains have hardly moved while the distance was measured, with a "
            f"correlation of {float(state.memory):.2f} between both halves of this "
            "time; try more num_moves, or a sampler that mixes faster"
        )

    def _stage(self, stage, taken):
        """Return the numbers of steps and of evaluations of a stage.

        A stage uses all steps that are left if they do not suffice for another one.
        """
        length = FIRST_STAGE * 2 ** jnp.maximum(stage - 1, 0)
        hold = jnp.maximum(length // _HOLD_SHARE, _LEAST_HOLD)
        left = self.max_steps - taken
        is_last = left - length - hold < FIRST_STAGE + _LEAST_HOLD
        last_hold = left // (_HOLD_SHARE + 1)
        return (
            jnp.where(is_last, left - last_hold, length),
            jnp.where(is_last, last_hold, hold),
        )

    def _descend(self, state):
        """Take a step, and add the new point to the mean."""
        time = state.clock.astype(state.value.dtype)
        adam = state.adam
        if self.metric is None:
            direction, adam = _ADAM.update(state.gradient, adam)
            rate = ADAM_RATE / (1 + time / ADAM_DECAY)
        else:
            direction = self.metric.solve(state.gradient)
            length = jnp.sqrt(jnp.maximum(state.gradient @ direction, 0))
            rate = RATE / (1 + time / DECAY) / jnp.maximum(length, 1)
        current = state.current - rate * direction
        counts = (state.stage > 0) | (state.step >= state.length // 2)
        count = state.num_points + counts
        share = jnp.where(counts, 1 / jnp.maximum(count, 1), 0)
        mean = state.mean + share.astype(current.dtype) * (current - state.mean)
        point = jnp.where(state.stage == 0, current, state.point)
        point = jnp.where((count > state.points_before) & counts, mean, point)
        return state._replace(
            point=point,
            current=current,
            mean=mean,
            num_points=count,
            step=state.step + 1,
            clock=state.clock + 1,
            adam=adam,
        )

    def _hold(self, problem, state):
        """Add the gradients of groups, and begin a new stage after the last hold."""
        settling = state.hold // _SETTLING_SHARE
        number = state.step - state.length - settling
        is_first = 2 * number < state.hold - settling
        counts = jnp.stack([is_first, ~is_first]) & (number >= 0)
        added = counts[:, None, None] * problem.groups()[None]
        state = state._replace(sums=state.sums + added, step=state.step + 1)
        return jax.lax.cond(
            state.step == state.length + state.hold,
            lambda state: self._next_stage(problem, state),
            lambda state: state,
            state,
        )

    def _next_stage(self, problem, state):
        metric = problem.metric(state.mean)
        counted = state.hold - state.hold // _SETTLING_SHARE
        groups = state.sums.sum(0) / counted.astype(state.value.dtype)
        products, num_directions = gram(metric, groups)
        squared, error = group_distance(self.num_rows * products, num_directions)
        memory = correlation(state.sums[0], state.sums[1], metric.scale)
        distance = jnp.sqrt(jnp.maximum(squared, 0) + error)
        moves_enough = memory < _MOST_CORRELATION
        distance = jnp.where(moves_enough, distance, jnp.inf)
        taken = state.taken + state.step
        # Only once, because a sampler that mixes slowly needs longer holds.
        repeats = ~moves_enough & (state.memory < _MOST_CORRELATION)
        stage = jnp.maximum(state.stage + ~repeats, 1)
        length, hold = self._stage(stage, taken)
        zero = jnp.zeros_like(state.step)
        return state._replace(
            point=state.mean,
            current=state.mean,
            mean=jnp.zeros_like(state.mean),
            num_points=zero,
            points_before=state.num_points,
            stage=stage,
            length=length,
            hold=hold,
            step=zero,
            taken=taken,
            # Far from the maximum, steps become as long as they were at first.
            clock=jnp.where(distance < NEAR, state.clock, 0),
            sums=jnp.zeros_like(state.sums),
            distance=distance,
            memory=memory,
        )


_ADAM = optax.scale_by_adam()
