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

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax import random
from probjax.annealing.path import Way, linear, towards_one
from probjax.potential import potential
from probjax.samplers.tuning import LENGTHS, MATRIX, Spread
from probjax.types import (
    Array,
    Base,
    Energy,
    Float,
    Params,
    PRNGKeyArray,
    Sampler,
    Scalar,
    State,
    float_dtype,
    is_concrete,
    recipe,
    static,
)

NUM_KNOTS, NUM_SETTLING = 40, 50
LEAST_STEPS, MOST_STEPS = 400, 4000
LEAST_PARTICLES = 100
GAIN = 0.2
KEPT_SHARE = 0.5


class Plan(NamedTuple):
    """A schedule, and what a sampler is to be along it."""

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

    def sampler(self, sampler: Any, place: Scalar) -> Any:
        """`sampler` as it is to be at a place among the knots."""
        if self.knots is None:
            return sampler
        low = jnp.clip(jnp.floor(place).astype(int), 0, len(self.knots) - 2)
        share = place - low

        def between(values):
            return (1 - share) * values[low] + share * values[low + 1]

        found = {"step_size": jnp.exp(between(self.log_step))}
        if self.metric is not None:
            found["metric"] = between(self.metric)
        return dataclasses.replace(sampler, **found)


@recipe
class Pilot:
    """How a plan is found.

    Args:
        spread: `MATRIX` or `LENGTHS`, what metric a sampler that has one is given; None
            to leave it as it is. A matrix costs as much as the energy of a product of
            experts; lengths are for states of many hundred coordinates. Within bounds
            only lengths can be used, and are.
        target: the mean acceptance that step sizes come to.
        share: how much longer a run gets by its pilot, which takes 450 to 4,050 steps.
    """

    spread: Spread | None = static(default=MATRIX)
    target: float = 0.9
    share: float = static(default=0.1)

    def __post_init__(self):
        if is_concrete(self.target) and not 0 < self.target < 1:
            raise ValueError(f"target must be between 0 and 1, got {self.target}")


def is_tunable(sampler: Any) -> bool:
    """Whether it has a step size that a pilot can find."""
    return hasattr(sampler, "step_size")


def make_plan(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    base: Base,
    axes: Any,
    *,
    num_groups: int = 1,
    pilot: Pilot | None,
    path: Way,
    sampler: Sampler,
    num_particles: int,
    num_steps: int,
    betas: Array | None,
) -> Plan:
    """The plan of `num_steps` distributions: as a pilot suggests, if there is one.

    Args:
        axes: of the params, for `vmap`, if particles have their own.
        num_groups: how many kinds of particles there are then, in order; spreads are
            within them.
        betas: a schedule to keep, if one was given.
    """
    if pilot is None or num_steps == 1:
        betas = linear(num_steps) if betas is None else betas
        return Plan(betas, None, None, None)
    if betas is not None and not is_tunable(sampler):
        return Plan(betas, None, None, None)
    steps = np.clip(int(pilot.share * num_steps), LEAST_STEPS, MOST_STEPS)
    per_knot = -(-int(steps) // NUM_KNOTS)
    found = _explore(
        key,
        energy,
        params,
        base,
        axes,
        pilot,
        path,
        sampler,
        num_particles,
        num_groups,
        per_knot,
    )
    betas = _even(found, num_steps) if betas is None else betas
    if not is_tunable(sampler):
        return Plan(betas, None, None, None)
    return Plan(betas, found.beta, found.log_step, found.metric)


class _Found(NamedTuple):
    """What a pilot saw, knot by knot."""

    beta: Array
    scatter: Array
    log_step: Array | None
    metric: Array | None


@partial(jax.jit, static_argnums=(1, 4, 8, 9, 10))
def _explore(
    key,
    energy,
    params,
    base,
    axes,
    pilot,
    path,
    sampler,
    num_particles,
    num_groups,
    per_knot,
):
    start_key, run_key = jax.random.split(key)
    keys = jax.random.split(run_key, num_particles)
    x = jax.vmap(base.sample)(jax.random.split(start_key, num_particles))
    x = sampler.prepare(potential(type(base).energy, base), x)
    kind = float_dtype(x)
    betas = towards_one(NUM_KNOTS * per_knot).astype(kind)
    tunable = is_tunable(sampler)
    spread = pilot.spread if hasattr(sampler, "metric") else None
    if spread is not None and getattr(sampler, "bounds", None) is not None:
        spread = LENGTHS

    def tuned(log_step, metric):
        if not tunable:
            return sampler
        current = dataclasses.replace(sampler, step_size=jnp.exp(log_step))
        if spread is None:
            return current
        return dataclasses.replace(current, metric=metric)

    def init(key, params, x):
        model = path.model(energy, params, base, betas[0])
        return sampler.init(random.fold_in(key, 2**31 - 1), model, x)

    states = jax.vmap(init, (0, axes, 0))(keys, params, x)
    log_step = jnp.log(jnp.asarray(sampler.step_size, kind)) if tunable else None
    metric = _metric(spread, x, num_groups) if spread is not None else None

    def step(number, carry):
        states, log_step, metric, mean_log_step, scatter = carry
        # The first ones stay at the base, until the step has come to its size there.
        k = jnp.maximum(number, 0)

        def one(key, params, state):
            model = path.model(energy, params, base, betas[k])
            now = tuned(log_step, metric)
            step_key, init_key = random.split(random.fold_in(key, number))
            if not path.lasting:
                state = now.init(init_key, model, state.x)
            state, info = now.step(step_key, model, state)
            width = betas[k + 1] - betas[k]
            fall = path.fall(energy, params, base, state, betas[k], betas[k + 1])
            return state, info, fall / width

        states, info, slope = jax.vmap(one, (0, axes, 0))(keys, params, states)
        if tunable:
            miss = (info.chance.mean() - pilot.target) / (
                pilot.target * (1 - pilot.target)
            )
            log_step = log_step + GAIN * jnp.clip(miss, -1, 1)
            mean_log_step = mean_log_step + log_step / per_knot
        away = _centred(slope, num_groups)
        away = jnp.sqrt(jnp.mean(jnp.where(jnp.isfinite(away), away, 0) ** 2))
        # Steps that rounding has left without a width tell nothing.
        wide = betas[k + 1] > betas[k]
        scatter = scatter + jnp.where(wide, jnp.stack([away, 1.0]), 0).astype(kind)
        return states, log_step, metric, mean_log_step, scatter

    def knot(carry, number):
        states, log_step, metric = carry
        zero = jnp.zeros((), kind)
        first = number * per_knot
        total = zero if tunable else None
        start = (states, log_step, metric, total, jnp.zeros(2, kind))
        last = first + per_knot
        states, log_step, _, mean_log_step, scatter = jax.lax.fori_loop(
            first, last, step, start
        )
        middle = betas[first + per_knot // 2]
        mean_scatter = scatter[0] / jnp.maximum(scatter[1], 1)
        found = _Found(middle, mean_scatter, mean_log_step, metric)
        metric = _metric(spread, states.x, num_groups) if spread is not None else metric
        return (states, log_step, metric), found

    zero = jnp.zeros((), kind)
    start = (states, log_step, metric, zero if tunable else None, jnp.zeros(2, kind))
    states, log_step, *_ = jax.lax.fori_loop(-NUM_SETTLING, 0, step, start)
    carry = (states, log_step, metric)
    _, found = jax.lax.scan(knot, carry, jnp.arange(NUM_KNOTS))
    return found


def _centred(rows, num_groups):
    """What each is from the median of its group."""
    groups = rows.reshape(num_groups, -1, *rows.shape[1:])
    return (groups - jnp.median(groups, 1, keepdims=True)).reshape(rows.shape)


def _metric(spread: Spread, x: State, num_groups: int) -> Array:
    """Of particles that may have heavy tails: far ones count as if they were nearer."""
    rows = jax.vmap(lambda row: ravel_pytree(row)[0])(x)
    count, size = rows.shape
    away = _centred(rows, num_groups)
    # Of normal coordinates 1.4826 times this is the standard deviation.
    lengths = 1.4826 * jnp.median(jnp.abs(away), 0)
    lengths = jnp.where(lengths > 0, lengths, jnp.maximum(away.std(0), 1e-30))
    scaled = away / lengths[None]
    radius = jnp.linalg.norm(scaled, axis=1, keepdims=True) / jnp.sqrt(size)
    scaled = scaled / jnp.maximum(radius / 2, 1)
    square = jax.vmap(spread.square)(scaled).mean(0)
    unit = spread.unit(size).astype(square.dtype)
    weight = count / (count + size + 5)
    shrunk = weight * square + (1 - weight) * unit
    inner = spread.metric(shrunk)
    return lengths[:, None] * inner if inner.ndim == 2 else lengths * inner


@partial(jax.jit, static_argnums=1)
def _even(found: _Found, num_steps: int) -> Array:
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
