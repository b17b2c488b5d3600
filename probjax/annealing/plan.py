"""What an annealing run will do, found by a pilot run and then left alone.

A short run from base to target finds two things on its way. The step size follows the
particles' mean acceptance, with the metric of their spread a little earlier. And the
schedule: if s(b) is the spread of E_0 - E_1 over the particles at b, steps of

    db ~ 1 / s(b)

let the weights of all distributions scatter alike, so that the conditional effective
sample size is the same along the way. Half of the steps stay where the pilot's were,
lest a gap be left where it saw nothing: tails are found late or not at all.

Nothing of it is used in an estimate: weights of a run that adapts are biased.

Reference: thesis, "Hamiltonian Annealed Importance Sampling", for a step size that is
fixed; Zhou, Johansen and Aston, J. Comput. Graph. Stat. 25, 701 (2016), for schedules.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.annealing.bridge import Bridge
from probjax.annealing.path import linear, towards_one
from probjax.annealing.pilot import (
    NUM_KNOTS,
    Exploration,
    Found,
    Pilot,
    explore,
)
from probjax.types import (
    Array,
    Float,
    PRNGKeyArray,
    Sampler,
    Scalar,
)

LEAST_STEPS, MOST_STEPS = 400, 4000
LEAST_PARTICLES = 100
KEPT_SHARE = 0.5


class Plan(NamedTuple):
    """A schedule, and what a sampler is to be along it.

    >>> from probjax import HMC
    >>> knots, log_step = jnp.array([0.0, 1.0]), jnp.log(jnp.array([1.0, 4.0]))
    >>> plan = Plan(linear(4), knots, log_step, metric=None)
    >>> half_way = plan.sampler(HMC(1.0), plan.places(jnp.array([0.5]))[0])
    >>> round(float(half_way.step_size), 4)
    2.0
    """

    betas: Float[Array, " beta"]
    """From 0 to 1, the ends included."""
    knots: Float[Array, " knot"] | None
    """Where along it the sampler was tuned; None for a sampler as it is."""
    log_step: Float[Array, " knot"] | None
    """The logarithm of its step size there."""
    metric: Float[Array, "knot ..."] | None
    """Its metric there; None for the sampler's own."""

    def places(self, betas: Float[Array, " beta"]) -> Float[Array, " beta"]:
        """Where each of `betas` lies among the knots, from 0 to their number less 1."""
        if self.knots is None:
            return jnp.zeros_like(betas)
        numbers = jnp.arange(len(self.knots), dtype=betas.dtype)
        return jnp.interp(betas, self.knots.astype(betas.dtype), numbers)

    def sampler(self, sampler: Sampler, place: Scalar) -> Sampler:
        """`sampler` as it is to be at a place among the knots."""
        if self.knots is None:
            return sampler
        low = jnp.clip(jnp.floor(place).astype(int), 0, len(self.knots) - 2)
        share = place - low

        def between(values):
            return (1 - share) * values[low] + share * values[low + 1]

        metric = None if self.metric is None else between(self.metric)
        return sampler.adapted(jnp.exp(between(self.log_step)), metric)


def make_plan(
    key: PRNGKeyArray,
    bridge: Bridge,
    *,
    pilot: Pilot | None,
    num_steps: int,
    betas: Array | None,
    num_particles: int,
    num_groups: int = 1,
) -> Plan:
    """Make the plan of `num_steps` distributions, as a pilot suggests if there is one.

    Args:
        betas: a schedule to keep, if one was given.
        num_particles: number of particles of the pilot run.
        num_groups: number of kinds of particles, in order, if their params differ;
            spreads are within groups.
    """
    if pilot is None or num_steps == 1:
        return Plan(linear(num_steps) if betas is None else betas, None, None, None)
    adapts = bridge.sampler.target_acceptance is not None
    if betas is not None and not adapts:
        return Plan(betas, None, None, None)
    steps = np.clip(int(pilot.share * num_steps), LEAST_STEPS, MOST_STEPS)
    per_knot = -(-int(steps) // NUM_KNOTS)
    exploration = Exploration(bridge, pilot, num_groups, per_knot)
    found = explore(exploration, key, num_particles)
    betas = _even(found, num_steps) if betas is None else betas
    if not adapts:
        return Plan(betas, None, None, None)
    return Plan(betas, found.beta, found.log_step, found.metric)


@partial(jax.jit, static_argnums=1)
def _even(found: Found, num_steps: int) -> Array:
    """Betas over which the scatter adds up evenly, in part where the pilot's were."""
    kind = found.beta.dtype
    fine = towards_one(2000).astype(kind)
    scatter = jnp.interp(fine, found.beta, found.scatter)
    middles = (scatter[1:] + scatter[:-1]) / 2
    length = jnp.concatenate([jnp.zeros(1, kind), jnp.cumsum(middles * jnp.diff(fine))])
    pilot = jnp.linspace(0, 1, len(fine), dtype=kind)
    share = jnp.where(length[-1] > 0, 1 - KEPT_SHARE, 0)
    height = share * length / jnp.maximum(length[-1], 1e-30) + (1 - share) * pilot
    betas = jnp.interp(jnp.linspace(0, 1, num_steps + 1, dtype=kind), height, fine)
    return betas.at[0].set(0).at[-1].set(1)
