"""Particles on their way from a base to a target, or back.

At b_k a particle is moved, and then weighed by E_(b_k)(x) - E_(b_k+1)(x). Logarithms of
weights are sums of many small numbers, kept with what rounding loses of them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from probjax import random
from probjax.annealing.bridge import Bridge
from probjax.annealing.pilot import NUM_KNOTS, Adaptation, Found, Tuning
from probjax.annealing.schedule import Schedule
from probjax.recipe import recipe
from probjax.trees import float_dtype
from probjax.types import Array, Float, PRNGKeyArray, Scalar, State

NUM_BINS = 50


class Particles(NamedTuple):
    """Where a run is."""

    state: Any
    """The sampler's states."""
    log_weight: Float[Array, " particle"]
    """Since they were last resampled."""
    lost: Float[Array, " particle"]
    """What rounding has kept out of it."""
    eve: Array
    """Which start each has come of."""
    settled: Scalar
    """The logarithm of the mean weights that resampling has set to 1."""
    num_resampled: Array
    """How often it has."""
    accept: Float[Array, " bin"]
    """Acceptances, summed."""
    step: Array
    """The number of the distribution that they are to be moved at next."""
    tuning: Tuning | None = None
    """Settings of the sampler that a pilot adapts; None if the run has no pilot."""


@recipe
class Course:
    """All of a run except its particles."""

    bridge: Bridge
    plan: Schedule
    adaptation: Adaptation | None = None
    """How a pilot adapts the sampler; None if the run has no pilot."""
    resample_below: float | None = None
    backwards: Any = False

    def beta(self, number: Array | int, kind: Any) -> Scalar:
        """Compute beta of the distribution that is visited as `number`.

        Numbers below 0 are those of a pilot's first steps, which stay at the base.
        """
        number = jnp.maximum(number, 0)
        length = self.plan.length
        return self.plan.beta(jnp.where(self.backwards, length - number, number), kind)

    def start(self, keys: PRNGKeyArray, x: State) -> Particles:
        """Create particles that have been weighed once and not moved."""
        kind = float_dtype(x)
        here, there = self.beta(0, kind), self.beta(1, kind)
        tuning = None if self.adaptation is None else self.adaptation.start(x)
        sampler = self._sampler(tuning, here)
        state = self.bridge.start(keys, x, sampler, here)
        log_weight = self.bridge.increments(state, sampler, here, there)
        offsets = jnp.where(self.backwards, 0, self.bridge.offsets(x))
        log_weight = _no_nan((log_weight + offsets).astype(kind))
        return Particles(
            state,
            log_weight,
            lost=jnp.zeros_like(log_weight),
            eve=jnp.arange(len(keys)),
            settled=jnp.zeros((), kind),
            num_resampled=jnp.zeros((), int),
            accept=jnp.zeros(NUM_BINS, kind),
            step=jnp.ones((), int),
            tuning=tuning,
        )

    def run(
        self, keys: PRNGKeyArray, particles: Particles, last: Array | int
    ) -> tuple[Particles, Found | None]:
        """Move and weigh particles until all before number `last` is done.

        Returns:
            The particles, and what a pilot saw at its knots.
        """
        adaptation = self.adaptation
        if adaptation is None:
            return self._steps(keys, particles, last), None
        kind = particles.log_weight.dtype
        size = -(-jnp.asarray(last) // NUM_KNOTS)

        def knot(particles, number):
            tuning = adaptation.begun(particles.tuning, particles.state.x)
            end = jnp.minimum(number * size, last)
            particles = self._steps(keys, particles._replace(tuning=tuning), end)
            middle = self.beta((number - 1) * size + size // 2, kind)
            found = adaptation.found(particles.tuning, middle, size)
            return particles, found

        particles, found = jax.lax.scan(knot, particles, jnp.arange(NUM_KNOTS + 1))
        # What was seen before the first knot is of a sampler that was not adapted yet.
        return particles, jax.tree.map(lambda leaf: leaf[1:], found)

    def _steps(self, keys, particles, last):
        kind = particles.log_weight.dtype
        num_moves = jnp.maximum(self.plan.length - 1, 1)

        def step(k, particles):
            here, there = self.beta(k, kind), self.beta(k + 1, kind)
            sampler = self._sampler(particles.tuning, here)
            state, info, increment = self.bridge.step(
                keys, k, particles.state, sampler, here, there
            )
            log_weight, lost = _add(particles.log_weight, particles.lost, increment)
            place = (k - 1) * NUM_BINS // num_moves
            tuning = particles.tuning
            if self.adaptation is not None:
                tuning = self.adaptation.adapted(tuning, info, increment, here, there)
            particles = particles._replace(
                state=state,
                log_weight=log_weight,
                lost=lost,
                accept=particles.accept.at[place].add(info.accept.mean().astype(kind)),
                step=k + 1,
                tuning=tuning,
            )
            if self.resample_below is None:
                return particles
            return self._resampled(random.fold_in(keys[0], 2**31 - 1 - k), particles)

        return jax.lax.fori_loop(particles.step, last, step, particles)

    def _sampler(self, tuning, beta):
        if self.adaptation is None:
            return self.plan.sampler(self.bridge.sampler, beta)
        return self.adaptation.current(tuning, self.plan, beta)

    def _resampled(self, key, particles):
        count = len(particles.log_weight)
        log_weight = particles.log_weight + particles.lost
        total = logsumexp(log_weight)
        weights = jnp.exp(log_weight - total)

        def resample():
            # Each drawn by itself: the error of more even ways is not known.
            levels = random.uniform(key, (count,), weights.dtype)
            ends = jnp.cumsum(weights)
            chosen = jnp.searchsorted(ends, levels * ends[-1], side="right")
            chosen = jnp.minimum(chosen, count - 1)
            return particles._replace(
                state=jax.tree.map(lambda leaf: leaf[chosen], particles.state),
                log_weight=jnp.zeros_like(log_weight),
                lost=jnp.zeros_like(log_weight),
                eve=particles.eve[chosen],
                settled=particles.settled + total - jnp.log(count),
                num_resampled=particles.num_resampled + 1,
            )

        few = 1 / jnp.sum(weights**2) < count * jnp.asarray(self.resample_below)
        return jax.lax.cond(few & jnp.isfinite(total), resample, lambda: particles)


def _no_nan(fall):
    # Infinite energies on both sides are no place for a particle: it weighs nothing.
    return jnp.where(jnp.isnan(fall), -jnp.inf, fall)


def _add(total, lost, change):
    """A sum of many, with what rounding loses of it kept apart (Kahan, Neumaier)."""
    change = _no_nan(change)
    new = total + change
    larger = jnp.abs(total) >= jnp.abs(change)
    slip = jnp.where(larger, (total - new) + change, (change - new) + total)
    return new, lost + jnp.where(jnp.isfinite(new), slip, 0)
