"""A pilot run, and the plan that is made of what it saw.

A short run from base to target adapts the sampler and notes the spread s(b) of
E_0 - E_1 over the particles at b. Steps of

    db ~ 1 / s(b)

let the weights of all distributions scatter alike, so that the conditional effective
sample size is the same along the way. Half of the steps stay where the pilot's were,
lest a gap be left where it saw nothing: tails are found late or not at all.

Nothing of it is used in an estimate: weights of a run that adapts are biased.

Reference: thesis, "Hamiltonian Annealed Importance Sampling", for a step size that is
fixed; Zhou, Johansen and Aston, J. Comput. Graph. Stat. 25, 701 (2016), for schedules.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probjax import random
from probjax.annealing.bridge import Bridge
from probjax.annealing.particles import Course, Particles
from probjax.annealing.paths import spaced_towards_one
from probjax.annealing.pilot import NUM_KNOTS, Adaptation, Found, Pilot
from probjax.annealing.schedule import Schedule
from probjax.bases.checks import check_states
from probjax.checks import is_concrete, is_eager, namespace
from probjax.devices import on_host
from probjax.trees import as_array
from probjax.types import Array, PRNGKeyArray, State

LEAST_STEPS, MOST_STEPS = 400, 4000
LEAST_PARTICLES = 100
NUM_SETTLING = 50
NUM_CELLS = 4000
KEPT_SHARE = 0.5


def make_plan(
    key: PRNGKeyArray,
    bridge: Bridge,
    *,
    pilot: Pilot | None,
    num_steps: int,
    betas: Array | None,
    num_particles: int,
    num_groups: int = 1,
) -> Schedule:
    """Make the plan of `num_steps` distributions, as a pilot suggests if there is one.

    Args:
        betas: a schedule to keep, if one was given.
        num_particles: number of particles of the pilot run.
        num_groups: number of kinds of particles, in order, if their params differ;
            spreads are within groups.
    """
    plan = _made(key, bridge, pilot, num_steps, betas, num_particles, num_groups)
    return jax.tree.map(as_array, plan) if is_eager(plan) else plan


def _made(key, bridge, pilot, num_steps, betas, num_particles, num_groups):
    adapts = bridge.sampler.target_acceptance is not None
    # By NumPy, so that it is known while code is traced.
    count = np.asarray(num_steps, np.int32)
    if pilot is None or num_steps == 1 or (betas is not None and not adapts):
        equal = np.array([0.0, 1.0], jnp.result_type(float))
        return Schedule(equal, num_steps=count) if betas is None else Schedule(betas)
    adaptation = Adaptation(pilot, bridge.sampler, num_groups, active=True)
    share = int(np.clip(int(pilot.share * num_steps), LEAST_STEPS, MOST_STEPS))
    found = _explored(key, bridge, adaptation, share, num_particles)
    plan = _planned(found)
    if betas is not None:
        return plan._replace(table=betas)
    return plan._replace(num_steps=count)


def _explored(key, bridge, adaptation, num_steps, num_particles):
    """Return what a pilot run of at least `num_steps` steps sees at its knots."""
    start_keys, keys = (
        random.split_array(part, num_particles) for part in random.split(key, 2)
    )
    x = drawn(bridge, start_keys)
    last = np.asarray(-(-num_steps // NUM_KNOTS) * NUM_KNOTS, np.int32)
    plan = _blank(jax.eval_shape(adaptation.start, x))._replace(num_steps=last)
    course = Course(bridge, plan, adaptation)
    particles = started(course, keys, x)
    # The first steps stay at the base until the step size has adapted to it.
    particles = particles._replace(step=np.asarray(-NUM_SETTLING, particles.step.dtype))
    _, found = advanced(course, keys, particles, last)
    return found


def _blank(tuning):
    """Return a plan of the form that a pilot with such settings makes."""
    kind = tuning.scatter.dtype
    table = spaced_towards_one(NUM_CELLS).astype(kind)
    if tuning.log_step is None:
        return Schedule(table)

    def room(leaf):
        return np.zeros((NUM_KNOTS, *leaf.shape), leaf.dtype)

    settings = jax.tree.map(room, (tuning.log_step, tuning.metric))
    return Schedule(table, np.linspace(0, 1, NUM_KNOTS, dtype=kind), *settings)


def _planned(found: Any) -> Schedule:
    """Return a plan in which the scatter adds up evenly, in part as the pilot's."""
    settings = (None, None, None)
    if found.log_step is not None:
        settings = (found.beta, found.log_step, found.metric)
    if is_concrete(found):
        # By NumPy, which compiles nothing.
        found = jax.tree.map(on_host, found._replace(metric=None))
    return Schedule(_table(found), *settings)


def _table(found):
    xp, kind = namespace(found.beta), found.beta.dtype
    fine = spaced_towards_one(NUM_CELLS // 2).astype(kind)
    scatter = xp.interp(fine, found.beta, found.scatter)
    middles = (scatter[1:] + scatter[:-1]) / 2
    length = xp.concatenate([np.zeros(1), xp.cumsum(middles * np.diff(fine))])
    pilot = np.linspace(0, 1, len(fine))
    share = xp.where(length[-1] > 0, 1 - KEPT_SHARE, 0)
    height = share * length / xp.maximum(length[-1], 1e-30) + (1 - share) * pilot
    inner = np.linspace(0, 1, NUM_CELLS + 1)[1:-1]
    inner = xp.interp(inner, height, fine)
    return xp.concatenate([np.zeros(1), inner, np.ones(1)]).astype(kind)


def drawn(bridge: Bridge, keys: PRNGKeyArray) -> State:
    """Return particles drawn from the base, after checks."""
    return check_states(bridge.sampler, _drawn(bridge, keys))


@jax.jit
def _drawn(bridge, keys):
    return bridge.draw(keys)


@jax.jit
def started(course: Course, keys: PRNGKeyArray, x: State) -> Particles:
    """Return particles at `x` that have not been moved."""
    return course.start(keys, x)


def advanced(
    course: Course, keys: PRNGKeyArray, particles: Particles, last: Any
) -> tuple[Particles, Found | None]:
    """Return the particles at distribution `last`, and what a pilot saw on the way."""
    return _advanced(course, keys, particles, np.asarray(last, particles.step.dtype))


@jax.jit
def _advanced(course, keys, particles, last):
    return course.run(keys, particles, last)
