"""Adaptation of a sampler's step size and metric during a pilot run.

The run from base to target is divided into intervals. After every step of all particles
the step size changes a little, so that the mean acceptance approaches its target. The
metric is computed from the particles at the beginning of each interval. The statistics
of each interval, at its middle value of beta, define a `Schedule`: see
`probjax.annealing.pilot`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.annealing.schedule import Schedule
from probjax.interfaces import Sampler
from probjax.recipe import recipe, static
from probjax.samplers.adaptation import adapt_log_step
from probjax.samplers.tuning import LENGTHS, Spread
from probjax.trees import float_dtype
from probjax.types import Array, Float, Info, Scalar, State

NUM_KNOTS = 40


class KnotStatistics(NamedTuple):
    """Statistics of a pilot run in one interval, or stacked over all intervals."""

    beta: Array
    """Value of beta at the middle of the interval."""
    deviation: Array
    """Standard deviation of E_0 - E_1 over the particles."""
    log_step: Array | None
    """Mean logarithm of the step size; None if the step size is not adapted."""
    metric: Array | None
    """Metric; None to keep the sampler's own metric."""


class Tuning(NamedTuple):
    """Settings of a sampler while a pilot run adapts them."""

    log_step: Scalar | None
    """Logarithm of the step size; None if it is not adapted."""
    metric: Array | None
    """Metric in this interval; None to keep the sampler's own metric."""
    total_log_step: Any
    """Sum of `log_step` over the steps of this interval."""
    total_deviation: Float[Array, " 2"]
    """Sum of the standard deviations of E_0 - E_1 at the steps of this interval, and
    the number of these steps."""


@recipe
class Adaptation:
    """Rule by which a pilot run adapts the step size and the metric of its sampler.

    A pilot run and the run after it are one compiled program. If `active` is False, the
    program adapts nothing and takes the settings from its schedule.

    Args:
        spread: form of the metric, as in `Pilot`; None to keep the sampler's own
            metric.
        target: mean acceptance to reach; None for the sampler's `target_acceptance`.
        num_groups: number of groups of particles, of equal size and in order, whose
            params differ. Deviations are computed within groups.
        active: whether the settings are adapted.
    """

    spread: Spread | None = static()
    target: Any
    num_groups: int = static()
    active: Any

    def start(self, sampler: Sampler, x: State) -> Tuning:
        """Return the settings at the start of the run, for particles at `x`."""
        dtype = float_dtype(x)
        no_deviation = jnp.zeros(2, dtype)
        if sampler.target_acceptance is None:
            return Tuning(None, None, None, no_deviation)
        log_step = jnp.log(jnp.asarray(sampler.step_size, dtype))
        metric = None
        if self._spread(sampler) is not None:
            shape = jax.eval_shape(partial(self._metric, sampler), x)
            metric = jnp.zeros(shape.shape, shape.dtype)
        return Tuning(log_step, metric, jnp.zeros((), dtype), no_deviation)

    def begin_interval(self, sampler: Sampler, tuning: Tuning, x: State) -> Tuning:
        """Return the settings at the start of an interval, for particles at `x`."""
        sums = (tuning.total_log_step, tuning.total_deviation)
        total, deviation = jax.tree.map(jnp.zeros_like, sums)
        metric = tuning.metric
        if metric is not None:
            metric = jax.lax.cond(
                self.active, lambda: self._metric(sampler, x), lambda: metric
            )
        return Tuning(tuning.log_step, metric, total, deviation)

    def sampler(
        self, sampler: Sampler, tuning: Tuning, schedule: Schedule, beta: Scalar
    ) -> Sampler:
        """Return `sampler` with the adapted settings, or else those of the schedule."""
        if tuning.log_step is None:
            return sampler
        scheduled, adapted = schedule.settings(beta), (tuning.log_step, tuning.metric)
        choose = partial(jnp.where, self.active)
        log_step, metric = jax.tree.map(choose, adapted, scheduled)
        return sampler.adapted(jnp.exp(log_step), metric)

    def update(
        self,
        sampler: Sampler,
        tuning: Tuning,
        info: Info,
        increments: Array,
        here: Scalar,
        there: Scalar,
    ) -> Tuning:
        """Return the settings after a step of all particles at `here`.

        Args:
            info: reports of the sampler, one for each particle.
            increments: changes of the log weights, from `here` to the next beta,
                `there`.
        """
        # Without the metric, which would be copied in every step.
        before = tuning._replace(metric=None)

        def adapt():
            away = _centred(increments / (there - here), self.num_groups)
            away = jnp.sqrt(jnp.mean(jnp.where(jnp.isfinite(away), away, 0) ** 2))
            # A step of beta that was rounded to 0 has no deviation.
            new = jnp.where(there > here, jnp.stack([away, jnp.ones_like(away)]), 0)
            deviation = before.total_deviation + new.astype(here.dtype)
            if before.log_step is None:
                return before._replace(total_deviation=deviation)
            acceptance = info.acceptance.mean()
            log_step = adapt_log_step(
                before.log_step,
                acceptance,
                self._target(sampler),
                sampler.max_step_size,
            )
            return Tuning(log_step, None, before.total_log_step + log_step, deviation)

        after = jax.lax.cond(self.active, adapt, lambda: before)
        return after._replace(metric=tuning.metric)

    def statistics(
        self, tuning: Tuning, beta: Scalar, num_steps: Array
    ) -> KnotStatistics:
        """Return the statistics of an interval of `num_steps` steps around `beta`."""
        log_step, deviation = tuning.total_log_step, tuning.total_deviation
        if log_step is not None:
            log_step = log_step / num_steps.astype(log_step.dtype)
        return KnotStatistics(
            beta=beta,
            deviation=deviation[0] / jnp.maximum(deviation[1], 1),
            log_step=log_step,
            metric=tuning.metric,
        )

    def _target(self, sampler) -> Any:
        return sampler.target_acceptance if self.target is None else self.target

    def _spread(self, sampler):
        """Form of metric that the sampler accepts; None to keep its own metric."""
        if self.spread is None or not sampler.metrics:
            return None
        return self.spread if self.spread.form in sampler.metrics else LENGTHS

    def _metric(self, sampler, x):
        return _robust_metric(self._spread(sampler), x, self.num_groups)


def _centred(rows, num_groups):
    """Subtract from each row the median of its group."""
    groups = rows.reshape(num_groups, -1, *rows.shape[1:])
    return (groups - jnp.median(groups, 1, keepdims=True)).reshape(rows.shape)


def _robust_metric(spread: Any, x: State, num_groups: int) -> Array:
    """Compute a metric from particles that may have heavy tails.

    Coordinates are scaled by their median absolute deviation. Particles at more than
    twice the typical distance from the median are moved to that distance.
    """
    rows = jax.vmap(lambda row: ravel_pytree(row)[0])(x)
    count, size = rows.shape
    away = _centred(rows, num_groups)
    # The standard deviation of a normal distribution is 1.4826 times this median.
    lengths = 1.4826 * jnp.median(jnp.abs(away), 0)
    lengths = jnp.where(lengths > 0, lengths, jnp.maximum(away.std(0), 1e-30))
    scaled = away / lengths[None]
    radius = jnp.linalg.norm(scaled, axis=1, keepdims=True) / jnp.sqrt(size)
    scaled = scaled / jnp.maximum(radius / 2, 1)
    square = jax.vmap(spread.square)(scaled).mean(0)
    unit = spread.unit(size).astype(square.dtype)
    weight = count / (count + size + 5)
    shrunk = weight * square + (1 - weight) * unit
    metric = spread.metric(shrunk)
    return lengths[:, None] * metric if metric.ndim == 2 else lengths * metric
