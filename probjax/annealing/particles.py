"""Particles of annealed importance sampling: moves, log weights and resampling.

At b_k each particle takes a step of the sampler, and then its log weight grows by

    E_(b_k)(x) - E_(b_k+1)(x).

Log weights are sums of many small numbers, so they are summed with compensation for
rounding errors.

Particles are resampled within groups. Groups are independent of each other, so that the
standard error of an estimate is that of a mean over groups. (Errors from the genealogy
of one large group were too small: the estimated variance could be negative.)
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax import random
from probjax.annealing.adaptation import NUM_KNOTS, Adaptation, KnotStatistics, Tuning
from probjax.annealing.bridge import Bridge
from probjax.annealing.schedule import Schedule, cell_of
from probjax.bases.checks import check_states
from probjax.checks import is_eager
from probjax.devices import shard_rows
from probjax.recipe import recipe
from probjax.trees import compensated_sum, float_dtype
from probjax.types import Array, Float, PRNGKeyArray, Scalar, State

NUM_BINS, MAX_GROUPS, MIN_GROUP_SIZE = 50, 20, 5
# A power of two, as most numbers of devices are.
MAX_PARTS = 1024


class Particles(NamedTuple):
    """Particles of a run, with all that is needed to continue the run."""

    state: Any
    """State of the sampler for each particle."""
    log_weight: Float[Array, " particle"]
    """Log weight of each particle, since the last resampling."""
    compensation: Float[Array, " particle"]
    """Rounding error of `log_weight`, to be added to it."""
    ancestor: Array
    """Index of each particle's ancestor among the particles at the start."""
    log_normaliser: Float[Array, " particle"]
    """Sum of the log mean weights of each particle's group at its resampling steps."""
    num_resampled: Array
    """Number of steps at which groups of particles were resampled."""
    accept: Float[Array, "bin part"]
    """Sums of the mean acceptances of parts of the particles, in equal parts of the
    run. Devices sum the acceptances of their own particles, so that a step needs no
    communication."""
    step: Array
    """Index of the distribution at which the particles are moved next."""
    tuning: Tuning | None = None
    """Settings of the sampler that a pilot run adapts; None if the run has no pilot."""


@recipe
class AnnealingRun:
    """All parts of an annealing run except its particles.

    Args:
        adaptation: rule by which a pilot run adapts the sampler; None to take its
            settings from the schedule.
        resample_below: share of effective particles below which a group of particles
            is resampled; None to never resample.
        backwards: whether the particles move from the target to the base.
    """

    bridge: Bridge
    schedule: Schedule
    adaptation: Adaptation | None = None
    resample_below: float | None = None
    backwards: Any = False

    def beta(self, number: Array | int, dtype: Any) -> Scalar:
        """Compute beta of the distribution that is visited as `number`.

        Negative numbers are the first steps of a pilot run, which stay at the base.
        """
        number = jnp.maximum(number, 0)
        number = jnp.where(self.backwards, self.schedule.length - number, number)
        return self.schedule.beta(number, dtype)

    def start(self, keys: PRNGKeyArray, x: State) -> Particles:
        """Create particles that have their first log weight and were not moved yet."""
        dtype = float_dtype(x)
        here, there = self.beta(0, dtype), self.beta(1, dtype)
        tuning = None
        if self.adaptation is not None:
            tuning = self.adaptation.start(self.bridge.sampler, x)
        sampler = self._sampler(tuning, here)
        state = self.bridge.start(keys, x, sampler, here)
        log_weight = self.bridge.increments(state, sampler, here, there)
        offsets = jnp.where(self.backwards, 0, self.bridge.offsets(x))
        num_parts = math.gcd(len(log_weight), MAX_PARTS)
        log_weight = _nan_to_zero_weight((log_weight + offsets).astype(dtype))
        return Particles(
            state,
            log_weight,
            compensation=jnp.zeros_like(log_weight),
            ancestor=jnp.arange(len(keys)),
            log_normaliser=jnp.zeros_like(log_weight),
            num_resampled=jnp.zeros((), int),
            accept=shard_rows(jnp.zeros((NUM_BINS, num_parts), dtype), axis=1),
            step=jnp.ones((), int),
            tuning=tuning,
        )

    def advance(
        self, keys: PRNGKeyArray, particles: Particles, last: Array | int
    ) -> tuple[Particles, KnotStatistics | None]:
        """Move and weight particles at all distributions before number `last`.

        Returns:
            The particles, and the statistics at all knots of a pilot run.
        """
        adaptation, sampler = self.adaptation, self.bridge.sampler
        if adaptation is None:
            return self._advance(keys, particles, last), None
        dtype = particles.log_weight.dtype
        size = -(-jnp.asarray(last) // NUM_KNOTS)

        def interval(particles, number):
            tuning = adaptation.begin_interval(
                sampler, particles.tuning, particles.state.x
            )
            end = jnp.minimum(number * size, last)
            particles = self._advance(keys, particles._replace(tuning=tuning), end)
            middle = self.beta((number - 1) * size + size // 2, dtype)
            return particles, adaptation.statistics(particles.tuning, middle, size)

        particles, statistics = jax.lax.scan(
            interval, particles, jnp.arange(NUM_KNOTS + 1)
        )
        # Interval 0 is the warm-up, in which the sampler has not adapted yet.
        return particles, jax.tree.map(lambda leaf: leaf[1:], statistics)

    def _advance(self, keys, particles, last):
        dtype = particles.log_weight.dtype
        num_moves = jnp.maximum(self.schedule.length - 1, 1)

        def step(k, particles):
            here, there = self.beta(k, dtype), self.beta(k + 1, dtype)
            sampler, tuning = self._sampler(particles.tuning, here), particles.tuning
            state, info, increments = self.bridge.step(
                keys, k, particles.state, sampler, here, there
            )
            # States of float32 may have energies of float64.
            increments = increments.astype(dtype)
            log_weight, compensation = compensated_sum(
                particles.log_weight,
                particles.compensation,
                _nan_to_zero_weight(increments),
            )
            bin_number, _ = cell_of(k - 1, num_moves, NUM_BINS)
            by_part = info.accept.reshape(particles.accept.shape[1], -1)
            accept = by_part.mean(1).astype(dtype)
            if self.adaptation is not None:
                tuning = self.adaptation.update(
                    self.bridge.sampler, tuning, info, increments, here, there
                )
            particles = particles._replace(
                state=state,
                log_weight=log_weight,
                compensation=compensation,
                accept=particles.accept.at[bin_number].add(accept),
                step=k + 1,
                tuning=tuning,
            )
            if self.resample_below is None:
                return particles
            key = random.fold_in(keys[0], 2**31 - 1 - k)
            return self._resample_if_few(key, particles)

        return jax.lax.fori_loop(particles.step, last, step, particles)

    def _sampler(self, tuning, beta):
        sampler = self.bridge.sampler
        if self.adaptation is None:
            return self.schedule.sampler(sampler, beta)
        return self.adaptation.sampler(sampler, tuning, self.schedule, beta)

    def _resample_if_few(self, key, particles):
        group = group_of(len(particles.log_weight))
        num_groups, sizes = group[-1] + 1, np.bincount(group)
        log_weight = particles.log_weight + particles.compensation
        size = sizes.astype(log_weight.dtype)
        largest = jax.ops.segment_max(log_weight, group, num_groups)
        has_weight = jnp.isfinite(largest)
        weights = jnp.exp(log_weight - jnp.where(has_weight, largest, 0)[group])
        total = jax.ops.segment_sum(weights, group, num_groups)
        squares = jax.ops.segment_sum(weights**2, group, num_groups)
        ess = total**2 / jnp.where(has_weight, squares, 1)
        below = jnp.asarray(self.resample_below, weights.dtype)
        is_due = (has_weight & (ess < below * size))[group]

        def resample():
            offsets = random.uniform(key, (num_groups,), weights.dtype)
            counts = (size / total)[group] * weights  # expected number of copies
            chosen = _systematic(offsets, counts, sizes)
            chosen = jnp.where(is_due, chosen, jnp.arange(len(group)))
            log_mean = largest + jnp.log(total / size)
            return particles._replace(
                state=jax.tree.map(lambda leaf: leaf[chosen], particles.state),
                log_weight=jnp.where(is_due, 0, particles.log_weight),
                compensation=jnp.where(is_due, 0, particles.compensation),
                ancestor=particles.ancestor[chosen],
                log_normaliser=particles.log_normaliser
                + jnp.where(is_due, log_mean[group], 0),
                num_resampled=particles.num_resampled + 1,
            )

        return jax.lax.cond(jnp.any(is_due), resample, lambda: particles)


def group_of(count: int) -> np.ndarray:
    """Return the group of each particle: up to 20 groups, of 5 particles or more."""
    num_groups = max(min(MAX_GROUPS, count // MIN_GROUP_SIZE), 1)
    return np.arange(count) * num_groups // count


def _systematic(offsets, counts, sizes):
    """Index of the particle that is copied to each place, within its group.

    Args:
        offsets: a uniform number for each group.
        counts: expected number of copies of each particle; the sum over a group is its
            size.
        sizes: number of particles of each group; groups are contiguous.
    """
    first, place = np.cumsum(sizes) - sizes, np.arange(sizes.max())
    index = first[:, None] + np.minimum(place, sizes[:, None] - 1)
    is_used = place < sizes[:, None]
    # Sums over one group each, because a sum over all particles would lose digits.
    ends = jnp.cumsum(jnp.where(is_used, counts[index], 0), axis=1)
    levels = place[None].astype(counts.dtype) + offsets[:, None]
    chosen = jax.vmap(partial(jnp.searchsorted, side="right"))(ends, levels)
    chosen = first[:, None] + jnp.minimum(chosen, sizes[:, None] - 1)
    return chosen[np.nonzero(is_used)]


def draw_particles(bridge: Bridge, keys: PRNGKeyArray) -> State:
    """Draw states from the base; raise if the sampler cannot move them."""
    return check_states(bridge.sampler, _draw(bridge, keys))


@jax.jit
def _draw(bridge, keys):
    return bridge.draw(keys)


@jax.jit
def start_particles(
    annealing_run: AnnealingRun, keys: PRNGKeyArray, x: State
) -> Particles:
    """Create particles at `x` that were not moved yet."""
    return annealing_run.start(keys, x)


def advance_particles(
    annealing_run: AnnealingRun, keys: PRNGKeyArray, particles: Particles, last: Any
) -> tuple[Particles, KnotStatistics | None]:
    """Move particles up to distribution `last`, and overwrite their arrays.

    Returns:
        The particles, and the statistics at all knots of a pilot run.
    """
    last = np.asarray(last, particles.step.dtype)
    # Under `vmap` particles can be smaller than the results, and are not overwritten.
    arguments = annealing_run, keys, particles
    advance = _advance_in_place if is_eager(arguments) else _advance
    return advance(*arguments, last)


@jax.jit
def _advance(annealing_run, keys, particles, last):
    return annealing_run.advance(keys, particles, last)


_advance_in_place = jax.jit(_advance, donate_argnums=2)


def _nan_to_zero_weight(log_weight_increment):
    # NaN means that both energies are infinite: the particle gets a weight of 0.
    is_nan = jnp.isnan(log_weight_increment)
    return jnp.where(is_nan, -jnp.inf, log_weight_increment)
