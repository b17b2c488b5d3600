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
from probjax.annealing.plan import Plan
from probjax.types import (
    Array,
    Float,
    PRNGKeyArray,
    Scalar,
    State,
    float_dtype,
    recipe,
    static,
)

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


@recipe
class Course:
    """All of a run except its particles."""

    bridge: Bridge
    plan: Plan
    resample_below: float | None = None
    backwards: bool = static(default=False)

    @property
    def num_steps(self) -> int:
        """Number of weights that each particle collects."""
        return len(self.plan.betas) - 1

    def betas(self, kind: Any) -> Float[Array, " beta"]:
        """Return the schedule in the order in which it is visited."""
        betas = self.plan.betas.astype(kind)
        return betas[::-1] if self.backwards else betas

    def start(self, keys: PRNGKeyArray, x: State) -> Particles:
        """Create particles that have been weighed once and not moved."""
        kind = float_dtype(x)
        betas = self.betas(kind)
        places = self.plan.places(betas[:1])
        sampler = self.plan.sampler(self.bridge.sampler, places[0])
        state = self.bridge.start(keys, x, sampler, betas[0])
        log_weight = self.bridge.increments(state, sampler, betas[0], betas[1])
        if not self.backwards:
            log_weight = log_weight + self.bridge.offsets(x)
        log_weight = _no_nan(log_weight.astype(kind))
        return Particles(
            state,
            log_weight,
            lost=jnp.zeros_like(log_weight),
            eve=jnp.arange(len(keys)),
            settled=jnp.zeros((), kind),
            num_resampled=jnp.zeros((), int),
            accept=jnp.zeros(NUM_BINS, kind),
            step=jnp.ones((), int),
        )

    def run(
        self, keys: PRNGKeyArray, particles: Particles, last: Array | int
    ) -> Particles:
        """Move and weigh particles until all before number `last` is done."""
        kind = particles.log_weight.dtype
        betas = self.betas(kind)
        places = self.plan.places(betas)

        def step(k, particles):
            sampler = self.plan.sampler(self.bridge.sampler, places[k])
            state, info, increment = self.bridge.step(
                keys, k, particles.state, sampler, betas[k], betas[k + 1]
            )
            log_weight, lost = _add(particles.log_weight, particles.lost, increment)
            place = (k - 1) * NUM_BINS // max(self.num_steps - 1, 1)
            particles = particles._replace(
                state=state,
                log_weight=log_weight,
                lost=lost,
                accept=particles.accept.at[place].add(info.accept.mean().astype(kind)),
                step=k + 1,
            )
            if self.resample_below is None:
                return particles
            return self._resampled(random.fold_in(keys[0], 2**31 - 1 - k), particles)

        return jax.lax.fori_loop(particles.step, last, step, particles)

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
