"""Pilot runs, which choose the schedule of a run and adapt its sampler.

A short run from base to target adapts the sampler and measures the standard deviation
s(b) of E_0 - E_1 over the particles at b. Steps of

    db ~ 1 / s(b)

give the increments of all distributions the same variance, so that the conditional
effective sample size is the same everywhere along the path. Half of the steps are
placed as in the pilot run itself, so that no gap is left where s(b) was underestimated:
particles reach the tails of a target late or not at all.

The estimate uses the schedule only and no particle of the pilot run: the weights of a
run that adapts its sampler are biased.

Reference: thesis, "Hamiltonian Annealed Importance Sampling", for a fixed step size;
Zhou, Johansen and Aston, J. Comput. Graph. Stat. 25, 701 (2016), for schedules.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probjax import random
from probjax.annealing.adaptation import NUM_KNOTS, Adaptation
from probjax.annealing.bridge import Bridge
from probjax.annealing.particles import (
    AnnealingRun,
    advance_particles,
    draw_particles,
    start_particles,
)
from probjax.annealing.schedule import Schedule, spaced_towards_one
from probjax.checks import is_concrete, is_eager, namespace
from probjax.devices import on_host
from probjax.recipe import recipe, static
from probjax.samplers.adaptation import check_acceptance
from probjax.samplers.tuning import MATRIX, Spread
from probjax.trees import as_array
from probjax.types import Array, PRNGKeyArray

MIN_STEPS, MAX_STEPS = 400, 4000
MIN_PARTICLES = 100
NUM_WARMUP = 50
NUM_CELLS = 4000
PILOT_SHARE = 0.5


@recipe
class Pilot:
    """Settings of a pilot run.

    Args:
        spread: `MATRIX` or `LENGTHS`, the form of the metric for a sampler that has
            one; None to keep the sampler's own metric. Multiplying by a matrix costs as
            much as the energy of a product of experts; use lengths for states of many
            hundred coordinates. A sampler with bounds always uses lengths.
        target: mean acceptance to which step sizes are adapted; None for the sampler's
            `target_acceptance`.
        share: length of the pilot run as a fraction of the run's `num_steps`. The pilot
            run takes at least 450 and at most 4,050 steps.

    >>> from probjax import Bernoulli, HeatBath, ais, ising
    >>> params = ising.from_matrix([[-1.0, 1.0], [1.0, -1.0]])
    >>> args = jax.random.key(0), ising.energy, params, Bernoulli(2)
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20)
    >>> annealed = ais(*args, pilot=Pilot(share=0.2), **options)
    >>> bool((jnp.diff(annealed.schedule.betas) > 0).all())
    True
    """

    spread: Spread | None = static(default=MATRIX)
    target: float | None = None
    share: float = static(default=0.1)

    def __post_init__(self):
        check_acceptance(self.target)

    def adaptation(self, *, active: bool, num_groups: int = 1) -> Adaptation:
        """Return the rule by which the sampler is adapted, if it is `active`."""
        return Adaptation(self.spread, self.target, num_groups, active)


def make_schedule(
    key: PRNGKeyArray,
    bridge: Bridge,
    *,
    pilot: Pilot | None,
    num_steps: int,
    betas: Array | None,
    num_particles: int,
    num_groups: int = 1,
) -> Schedule:
    """Return a schedule of `num_steps` distributions, from a pilot run if there is one.

    Args:
        pilot: settings of the pilot run; None for equal steps and the sampler as it is.
        betas: schedule to keep; the pilot run then adapts the sampler only. None to
            choose it by the pilot run.
        num_particles: number of particles of the pilot run.
        num_groups: number of groups of particles, of equal size and in order, if their
            params differ. Deviations are computed within groups.
    """
    schedule = _schedule(
        key, bridge, pilot, num_steps, betas, num_particles, num_groups
    )
    return jax.tree.map(as_array, schedule) if is_eager(schedule) else schedule


def _schedule(key, bridge, pilot, num_steps, betas, num_particles, num_groups):
    is_adapted = bridge.sampler.target_acceptance is not None
    # A NumPy array, whose value can be read while code is traced.
    length = np.asarray(num_steps, np.int32)
    if pilot is None or num_steps == 1 or (betas is not None and not is_adapted):
        equal = np.array([0.0, 1.0], jnp.result_type(float))
        return Schedule(equal, num_steps=length) if betas is None else Schedule(betas)
    adaptation = pilot.adaptation(active=True, num_groups=num_groups)
    pilot_steps = int(np.clip(int(pilot.share * num_steps), MIN_STEPS, MAX_STEPS))
    statistics = _pilot_run(key, bridge, adaptation, pilot_steps, num_particles)
    schedule = _from_statistics(statistics)
    if betas is not None:
        return schedule._replace(table=betas)
    return schedule._replace(num_steps=length)


def _pilot_run(key, bridge, adaptation, num_steps, num_particles):
    """Return the statistics, at all knots, of a pilot run of at least `num_steps`."""
    start_keys, keys = (
        random.split_array(part, num_particles) for part in random.split(key, 2)
    )
    x = draw_particles(bridge, start_keys)
    last = np.asarray(-(-num_steps // NUM_KNOTS) * NUM_KNOTS, np.int32)
    tuning = jax.eval_shape(partial(adaptation.start, bridge.sampler), x)
    schedule = _placeholder(tuning)._replace(num_steps=last)
    annealing_run = AnnealingRun(bridge, schedule, adaptation)
    particles = start_particles(annealing_run, keys, x)
    # The first steps stay at the base until the step size has adapted to it.
    particles = particles._replace(step=np.asarray(-NUM_WARMUP, particles.step.dtype))
    return advance_particles(annealing_run, keys, particles, last)[1]


def _placeholder(tuning):
    """Return the schedule of a pilot run, with the shapes of the one that it makes."""
    dtype = tuning.total_deviation.dtype
    table = spaced_towards_one(NUM_CELLS).astype(dtype)
    if tuning.log_step is None:
        return Schedule(table)

    def zeros(leaf):
        return np.zeros((NUM_KNOTS, *leaf.shape), leaf.dtype)

    settings = jax.tree.map(zeros, (tuning.log_step, tuning.metric))
    return Schedule(table, np.linspace(0, 1, NUM_KNOTS, dtype=dtype), *settings)


def _from_statistics(statistics: Any) -> Schedule:
    """Return the schedule, without its length, that suits a pilot run's statistics."""
    settings = (None, None, None)
    if statistics.log_step is not None:
        settings = (statistics.beta, statistics.log_step, statistics.metric)
    if is_concrete(statistics):
        # NumPy, which compiles nothing.
        statistics = jax.tree.map(on_host, statistics._replace(metric=None))
    return Schedule(_table(statistics), *settings)


def _table(statistics):
    """Return the values of beta: half of the steps as 1 / deviation, half as before."""
    xp, dtype = namespace(statistics.beta), statistics.beta.dtype
    fine = spaced_towards_one(NUM_CELLS // 2).astype(dtype)
    deviation = xp.interp(fine, statistics.beta, statistics.deviation)
    middles = (deviation[1:] + deviation[:-1]) / 2
    length = xp.concatenate([np.zeros(1), xp.cumsum(middles * np.diff(fine))])
    pilot = np.linspace(0, 1, len(fine))
    share = xp.where(length[-1] > 0, 1 - PILOT_SHARE, 0)
    height = share * length / xp.maximum(length[-1], 1e-30) + (1 - share) * pilot
    inner = np.linspace(0, 1, NUM_CELLS + 1)[1:-1]
    inner = xp.interp(inner, height, fine)
    return xp.concatenate([np.zeros(1), inner, np.ones(1)]).astype(dtype)
