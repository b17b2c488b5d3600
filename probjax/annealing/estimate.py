"""Estimates of a partition function from weighted particles.

    log Z_1 = log Z_0 + log mean_i w_i

The standard error of the log mean weight is estimated from the variance of the weights,
and if particles were resampled from the variance over groups of particles, which are
independent.

It is the error of the particles that arrived. No statistic of their weights can detect
a region of the target that none of them reached. What always holds is one side: the
mean weight is an unbiased estimate of Z, so that it exceeds exp(b) Z with a probability
of at most exp(-b) (Markov), and log Z is above the estimate minus 3 with a probability
of at least 95 %. For the other side, run `sandwich`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from probjax.annealing.particles import NUM_BINS, AnnealingRun, Particles, group_of
from probjax.annealing.schedule import Schedule
from probjax.checks import nan_means_unknown
from probjax.types import Array, Float, Scalar, State


class Annealed(NamedTuple):
    """Estimate of a partition function by annealed importance sampling.

    >>> from probjax import Bernoulli, HeatBath, ais, ising
    >>> flat = ising.from_matrix(jnp.zeros((2, 2)))
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> annealed = ais(jax.random.key(0), ising.energy, flat, Bernoulli(2), **options)
    >>> annealed.describe()  # log 4  # doctest: +ELLIPSIS
    'log Z 1.38629 +- ...; ESS 100 of 100'
    """

    log_z: Scalar
    """Estimate of log Z of the target, biased low; biased high for a reverse run."""
    stderr: Scalar
    """Standard error of `log_z` over the particles that arrived. It is too small if
    they missed a region of the target, which no statistic of the weights detects."""
    bound: Scalar
    """Mean log weight: a stochastic lower bound on log Z. For a reverse run, minus the
    mean log weight: a stochastic upper bound."""
    bound_stderr: Scalar
    """Standard error of `bound`, which heavy tails of the weights affect little."""
    ess: Scalar
    """Effective number of particles, (sum w)^2 / sum w^2, where each w is the total
    weight of all particles with the same ancestor."""
    log_weights: Float[Array, " particle"]
    """Logarithms of the weights. The mean weight estimates Z, and 1 / Z for a reverse
    run."""
    x: State
    """States of the particles, leaves `(particle, ...)`."""
    accept: Float[Array, " bin"]
    """Mean acceptance in equal parts of the run; NaN for parts without a step."""
    schedule: Schedule
    """Schedule of the run, with the settings of the sampler."""
    particles: Particles
    """State from which the run can be continued."""

    def describe(self) -> str:
        """Describe the estimate and its reliability."""
        return _describe(self)


def estimate(
    log_weights: Float[Array, " particle"], ancestor: Array, num_resampled: Array
) -> tuple[Scalar, Scalar, Scalar]:
    """Return the log mean weight, its standard error, and the effective sample size."""
    count = len(log_weights)
    total = logsumexp(log_weights)
    weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(total), total, 0))
    stderr = jnp.where(
        num_resampled > 0,
        _relative_stderr(*_over_groups(weights)),
        _relative_stderr(weights, 1 / count),
    )
    shares = jnp.zeros(count, weights.dtype).at[ancestor].add(weights)
    has_weight = jnp.isfinite(total)
    ess = jnp.where(has_weight, 1 / jnp.sum(shares**2), 0)
    return total - jnp.log(count), jnp.where(has_weight, stderr, jnp.nan), ess


def _relative_stderr(shares, expected):
    """Standard error of a sum of shares, which add up to 1, over its value."""
    count = len(shares)
    # Deviations from the expectation, so that equal weights have only rounding errors.
    spread = jnp.sqrt(jnp.sum((shares - expected) ** 2))
    return spread * np.sqrt(count / (count - 1)) if count > 1 else spread * jnp.nan


def _over_groups(values):
    """Sum of the values in each group of particles, and each group's share of them."""
    group = group_of(len(values))
    sums = jax.ops.segment_sum(values, group, group[-1] + 1)
    return sums, (np.bincount(group) / len(group)).astype(values.dtype)


def _mean_stderr(values, by_groups):
    """Standard error of a mean over particles, or over groups of particles."""
    sums, shares = _over_groups(values)
    means = sums / (len(values) * shares)
    return jnp.where(
        by_groups,
        means.std(ddof=1) / np.sqrt(len(means)),
        values.std(ddof=1) / np.sqrt(len(values)),
    )


@nan_means_unknown()
def summarise(annealing_run: AnnealingRun, particles: Particles) -> Annealed:
    """Return the estimate from the particles of a run, finished or not."""
    numbers = _summarise(annealing_run, particles)
    particles = particles._replace(tuning=None)
    return Annealed(
        **numbers,
        x=particles.state.x,
        schedule=annealing_run.schedule,
        particles=particles,
    )


@jax.jit
def _summarise(annealing_run, particles):
    bridge, length = annealing_run.bridge, annealing_run.schedule.length
    backwards = annealing_run.backwards
    log_weights = (
        particles.log_normaliser + particles.log_weight + particles.compensation
    )
    sign = jnp.where(backwards, -1, 1).astype(log_weights.dtype)
    log_weights = log_weights + sign * jnp.asarray(bridge.base.log_z, log_weights.dtype)
    # The last increment of a reverse run, from the start of the path to the base.
    is_at_base = backwards & (particles.step == length)
    offsets = bridge.offsets(particles.state.x)
    log_weights = log_weights - jnp.where(is_at_base, offsets, 0)
    log_mean, stderr, ess = estimate(
        log_weights, particles.ancestor, particles.num_resampled
    )
    counts = _moves_per_bin(length, particles.step).astype(particles.accept.dtype)
    return {
        "log_z": sign * log_mean,
        "stderr": stderr,
        "bound": sign * log_weights.mean(),
        "bound_stderr": _mean_stderr(log_weights, particles.num_resampled > 0),
        "ess": ess,
        "log_weights": log_weights,
        "accept": jnp.where(counts > 0, particles.accept.mean(1) / counts, jnp.nan),
    }


def _moves_per_bin(num_steps, step):
    """Count the moves before `step` in each bin of acceptances."""
    num_moves = jnp.maximum(num_steps - 1, 1)
    # Move k, counted from 0, is in bin k * NUM_BINS // num_moves. Its last factor is
    # split, because the product with all of it may overflow.
    bins = jnp.arange(NUM_BINS + 1)
    size, rest = num_moves // NUM_BINS, num_moves % NUM_BINS
    ends = bins * size - (-bins * rest // NUM_BINS)
    ends = jnp.minimum(ends, step - 1)
    return jnp.diff(jnp.maximum(ends, 0))


def _describe(annealed: Annealed) -> str:
    count = len(annealed.log_weights)
    log_z, ess = float(annealed.log_z), float(annealed.ess)
    length, step = int(annealed.schedule.length), int(annealed.particles.step)
    if not np.isfinite(log_z):
        return (
            f"log Z {log_z}: all particles have weight 0, so the base does not cover "
            "the target; try a wider base"
        )
    parts = [f"log Z {log_z:.6g} +- {float(annealed.stderr):.2g}"]
    if step < length:
        parts = [f"stopped at distribution {step} of {length}, before the last one"]
    num_zero = int(jnp.sum(jnp.isneginf(annealed.log_weights)))
    if num_zero:
        parts.append(
            f"{num_zero:,} of {count:,} particles have weight 0, because base or "
            "target has probability 0 where they are"
        )
    if count == 1:
        parts.append("one particle has no standard error; try num_particles=100")
    parts.append(f"ESS {ess:.3g} of {count:,}")
    if ess < min(max(5, 0.1 * count), 0.9 * count):
        parts[-1] += f": too few distributions; try num_steps={4 * length}"
    accept = np.asarray(annealed.accept)
    if np.isfinite(accept).any() and np.nanmin(accept) < 0.1:
        worst = int(np.nanargmin(accept))
        parts.append(
            f"acceptance falls to {accept[worst]:.2g} after {worst / len(accept):.0%} "
            "of the run; try a smaller step size, or a pilot run to choose it"
        )
    return "; ".join(parts)
