"""What weighted particles tell of a partition function, in numbers and in words.

The error of the logarithm of a mean weight is by the spread of the weights, those of
one start taken together where particles were resampled.

Reference: Lee and Whiteley, Biometrika 105, 609 (2018).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from probjax.annealing.particles import NUM_BINS, Course, Particles
from probjax.annealing.schedule import Schedule
from probjax.types import (
    Array,
    Float,
    Scalar,
    State,
)


class Annealed(NamedTuple):
    """What particles tell of a partition function.

    >>> from probjax import Bernoulli, HeatBath, ais, ising
    >>> flat = ising.from_matrix(jnp.zeros((2, 2)))
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> found = ais(jax.random.key(0), ising.energy, flat, Bernoulli(2), **options)
    >>> found.describe()  # log 4  # doctest: +ELLIPSIS
    'log Z 1.38629 +- ...; ESS 100 of 100'
    """

    log_z: Scalar
    """log Z of the target, biased low; of particles that ran backwards, high."""
    stderr: Scalar
    """Its standard error by the spread of the weights; to be believed if `ess` is."""
    bound: Scalar
    """The mean of log w: at most log Z on average; backwards less it, at least."""
    bound_stderr: Scalar
    """Its standard error, which tails of the weights do not upset; NaN if resampled."""
    ess: Scalar
    """Effective particles, (sum w)^2 / sum w^2, of those that came of one start."""
    log_weights: Float[Array, " particle"]
    """Whose mean, not in logarithms, is the estimate of Z; backwards, of 1 / Z."""
    x: State
    """Where the particles are, leaves `(particle, ...)`."""
    accept: Float[Array, " bin"]
    """The mean acceptance along the way, in equal parts of its steps."""
    plan: Schedule
    """The schedule and the sampler's steps."""
    particles: Particles
    """All that is needed to go on."""

    def describe(self) -> str:
        """In words: the estimate, and whether it is to be trusted."""
        return _describe(self)


def estimate(
    log_weights: Float[Array, " particle"], eve: Array, num_resampled: Array
) -> tuple[Scalar, Scalar, Scalar]:
    """The logarithm of the mean weight, its standard error, and effective particles."""
    count = len(log_weights)
    total = logsumexp(log_weights)
    weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(total), total, 0))
    shares = jnp.zeros(count, weights.dtype).at[eve].add(weights)
    # About 1 / count, so that equal weights have no error but their rounding's.
    apart = jnp.sum((shares - 1 / count) ** 2) * count / max(count - 1, 1)
    grown = (count / max(count - 1, 1)) ** num_resampled.astype(weights.dtype)
    variance = jnp.maximum(1 - grown + grown * apart, 0)
    stderr = jnp.sqrt(variance) if count > 1 else jnp.full_like(total, jnp.nan)
    alive = jnp.isfinite(total)
    ess = jnp.where(alive, 1 / jnp.sum(shares**2), 0)
    return total - jnp.log(count), jnp.where(alive, stderr, jnp.nan), ess


def summed_up(course: Course, particles: Particles) -> Annealed:
    """What the particles tell by now."""
    told = _summed_up(course, particles)
    kept = particles._replace(tuning=None)
    return Annealed(**told, x=kept.state.x, plan=course.plan, particles=kept)


@jax.jit
def _summed_up(course, particles):
    log_weights = particles.settled + particles.log_weight + particles.lost
    sign = jnp.where(course.backwards, -1, 1).astype(log_weights.dtype)
    base_log_z = jnp.asarray(course.bridge.base.log_z, log_weights.dtype)
    log_weights = log_weights + sign * base_log_z
    # The last increment back, from the first distribution of the path to the base.
    rest = course.bridge.offsets(particles.state.x)
    is_back = course.backwards & (particles.step == course.plan.length)
    log_weights = log_weights - jnp.where(is_back, rest, 0)
    eve, num_resampled = particles.eve, particles.num_resampled
    log_mean, stderr, ess = estimate(log_weights, eve, num_resampled)
    counts = _moves_per_bin(course.plan.length, particles.step)
    return {
        "log_z": sign * log_mean,
        "stderr": stderr,
        "bound": sign * log_weights.mean(),
        "bound_stderr": jnp.where(
            particles.num_resampled > 0,
            jnp.nan,
            log_weights.std(ddof=1) / jnp.sqrt(len(log_weights)),
        ),
        "ess": ess,
        "log_weights": log_weights,
        "accept": jnp.where(counts > 0, particles.accept / counts, jnp.nan),
    }


def _moves_per_bin(num_steps, step):
    """Return how many of the moves before `step` are in each bin of acceptances."""
    num_moves = jnp.maximum(num_steps - 1, 1)
    # Move k, counted from 0, is in bin k * NUM_BINS // num_moves.
    ends = -(-jnp.arange(NUM_BINS + 1) * num_moves // NUM_BINS)
    ends = jnp.minimum(ends, step - 1)
    return jnp.diff(jnp.maximum(ends, 0))


def _describe(annealed: Annealed) -> str:
    count = len(annealed.log_weights)
    log_z, ess = float(annealed.log_z), float(annealed.ess)
    num_steps = int(annealed.plan.length)
    if not np.isfinite(log_z):
        return (
            f"log Z {log_z}: no particle has a weight, the base does not cover the "
            "target"
        )
    said = [f"log Z {log_z:.6g} +- {float(annealed.stderr):.2g}"]
    step = int(annealed.particles.step)
    if step < num_steps:
        said = [f"ended at {step} of {num_steps} distributions, short of the end"]
    dead = int(jnp.sum(jnp.isneginf(annealed.log_weights)))
    if dead:
        said.append(
            f"{dead:,} of {count:,} particles weigh nothing: they were where one of "
            "base and target is not"
        )
    if ess < min(max(5, 0.1 * count), 0.9 * count):
        said.append(
            f"ESS {ess:.3g} of {count:,}: the path is too fast; try "
            f"num_steps={4 * num_steps}"
        )
    else:
        said.append(f"ESS {ess:.3g} of {count:,}")
    accept = np.asarray(annealed.accept)
    if np.isfinite(accept).any() and np.nanmin(accept) < 0.1:
        worst = int(np.nanargmin(accept))
        said.append(
            f"acceptance falls to {accept[worst]:.2g} at {worst / len(accept):.0%} of "
            "the way: shorten the step, or let a pilot find it"
        )
    return "; ".join(said)
