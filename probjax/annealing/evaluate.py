"""Log-likelihoods of models that are not normalised, with what they are uncertain by.

Of an analysis model, p(x) = exp(-E(x)) / Z, one partition function serves all rows:

    log p(x) = -E(x) - log Z.

An estimate of log Z that is biased low makes a likelihood that is too high: an interval
from both sides (`sandwich`) belongs to it. Of a generative model, each row has its own,

    log p(x) = log Z_x,    Z_x = integral of exp(-joint(x, a)) over a,

by particles over `a` that start from a base, as its prior. There the same bias makes
likelihoods too low: they are bounds from below, on average.

Reference: thesis, "Log Likelihood of Analysis Models", "Log Likelihood of Generative
Models".
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.annealing.ais import (
    check_schedule,
    check_target,
    prepared,
)
from probjax.annealing.annealed import Annealed, estimate
from probjax.annealing.bounds import Bracket
from probjax.annealing.course import Course
from probjax.annealing.path import Geometric
from probjax.annealing.plan import Pilot, make_plan
from probjax.data import as_data, num_rows, refuse_mask
from probjax.types import (
    Array,
    ArrayLike,
    Base,
    Data,
    Energy,
    Float,
    Params,
    PRNGKeyArray,
    Sampler,
    Scalar,
    State,
    check_count,
    is_concrete,
)

AT_ONCE = 2**15
PILOT_GROUPS, PILOT_PARTICLES = 16, 32


class Estimate(NamedTuple):
    """A mean over rows, in nats per row."""

    value: Scalar
    """The weighted mean over rows."""
    stderr: Scalar
    """What it is uncertain by for these very rows."""
    lower: Scalar
    """Below which it is not, nor..."""
    upper: Scalar
    """...above; NaN where one side was not bounded."""
    per_row: Float[Array, " row"]
    """The same of each row."""
    weights: Float[Array, " row"] | None
    """How much each counts."""

    def describe(self) -> str:
        """In words."""
        said = f"{float(self.value):.6g} +- {float(self.stderr):.2g} nats per row"
        low, high = float(self.lower), float(self.upper)
        if low == low and high == high:
            return f"{said}, between {low:.6g} and {high:.6g}"
        if low == low:
            return f"{said}, a bound from below: no less than {low:.6g}"
        return f"{said}, from one side only: sandwich tells how far it may be off"


@dataclass(frozen=True)
class Conditioned:
    """The joint energy of a generative model as that of its latents, given a row."""

    joint: Callable[..., Scalar]

    def __call__(self, args: tuple[Params, State], a: State) -> Scalar:
        params, x = args
        return self.joint(params, x, a)


def log_likelihood(
    energy: Energy, params: Params, data: ArrayLike | Data, annealed: Annealed | Bracket
) -> Estimate:
    """The mean of log p(x) over rows, by a partition function that was estimated.

    Args:
        annealed: of the same energy and params: what `ais` or `sandwich` gave.
    """
    data = as_data(data)
    refuse_mask(data, "log p is of complete rows")
    for side in annealed if isinstance(annealed, Bracket) else (annealed,):
        _check_finished(side)
    minus_energy = -_energies(energy, params, data.x)
    mean = jnp.average(minus_energy, weights=data.weights)
    unknown = jnp.full_like(mean, jnp.nan)
    two_sided = isinstance(annealed, Bracket)
    return Estimate(
        value=mean - annealed.log_z,
        stderr=annealed.stderr,
        lower=mean - annealed.upper if two_sided else unknown,
        upper=mean - annealed.lower if two_sided else unknown,
        per_row=minus_energy - annealed.log_z,
        weights=data.weights,
    )


@partial(jax.jit, static_argnums=0)
def _energies(energy, params, x):
    return jax.vmap(energy, (None, 0))(params, x)


def marginal_log_likelihood(
    key: PRNGKeyArray,
    joint: Callable[..., Scalar],
    params: Params,
    base: Base,
    data: ArrayLike | Data,
    *,
    sampler: Sampler,
    num_particles: int,
    num_steps: int,
    betas: ArrayLike | None = None,
    pilot: Pilot | None = Pilot(),
    chunk_size: int | None = None,
) -> Estimate:
    """The mean of log p(x) over rows, latents integrated out row by row.

    All rows and particles run together, by one plan that is found on a few of the rows.

    Args:
        joint: `joint(params, x, a)`, -log p(x, a) with all its constants.
        base: over the latents `a`, as their prior.
        num_particles: of each row.
        chunk_size: how many rows at once; None for as many as 32,768 particles serve.
    """
    data = as_data(data)
    refuse_mask(data, "log p is of complete rows")
    check_count("num_particles", num_particles)
    check_count("num_steps", num_steps)
    if chunk_size is None:
        chunk_size = max(1, AT_ONCE // num_particles)
    check_count("chunk_size", chunk_size)
    betas = check_schedule(betas, num_steps)
    plan_key, run_key = jax.random.split(key)
    rows = num_rows(data)
    chunk_size = min(chunk_size, rows)
    energy = Conditioned(joint)
    check_target(plan_key, energy, (params, _row(data.x, 0)), base, sampler)
    chosen = jnp.arange(PILOT_GROUPS) * rows // PILOT_GROUPS
    plan = make_plan(
        plan_key,
        energy,
        (params, _taken(data.x, jnp.repeat(chosen, PILOT_PARTICLES))),
        base,
        (None, 0),
        num_groups=PILOT_GROUPS,
        pilot=pilot,
        path=Geometric(),
        sampler=sampler,
        num_particles=PILOT_GROUPS * PILOT_PARTICLES,
        num_steps=num_steps,
        betas=betas,
    )
    parts = []
    for first in range(0, rows, chunk_size):
        # The last chunk is filled up with its last row, so that one program serves all.
        numbers = jnp.minimum(first + jnp.arange(chunk_size), rows - 1)
        x = _taken(data.x, jnp.repeat(numbers, num_particles))
        course = Course(
            energy,
            (None, 0),
            False,
            (params, x),
            base,
            Geometric(),
            sampler,
            plan,
            None,
        )
        chunk_key = jax.random.fold_in(run_key, first)
        parts.append(_rows_of(course, chunk_key, num_particles))
    per_row, errors = (
        jnp.concatenate(part)[:rows] for part in zip(*parts, strict=True)
    )
    weights = data.weights
    value = jnp.average(per_row, weights=weights)
    shares = jnp.ones(rows) if weights is None else weights
    shares = shares / shares.sum()
    stderr = jnp.sqrt(jnp.sum((shares * errors) ** 2))
    upper = jnp.full_like(value, jnp.nan)
    return Estimate(value, stderr, value - 2 * stderr, upper, per_row, weights)


def compare(first: Estimate, second: Estimate) -> Estimate:
    """How much more likely the rows are under the first model, row by row.

    Both must be of the same rows in the same order. The error is that of a mean over
    rows drawn anew, and of both estimates: the rows' own variation, which both share,
    is not in it. Sides are bounded for these rows, where both models' are.
    """
    if len(first.per_row) != len(second.per_row):
        raise ValueError(
            f"both must be of the same rows, got {len(first.per_row)} and "
            f"{len(second.per_row)}"
        )
    apart = first.per_row - second.per_row
    rows = len(apart)
    weights = first.weights
    both = [each.weights for each in (first, second) if each.weights is not None]
    if len(both) == 1 or (both and not np.array_equal(both[0], both[1])):
        raise ValueError("both must be of rows with the same weights")
    shares = jnp.ones(rows) if weights is None else weights
    shares = shares / shares.sum()
    value = jnp.sum(shares * apart)
    # Of n equal rows this is the usual variance of a mean, n - 1 and all.
    grown = 1 / (1 - jnp.sum(shares**2))
    drawn = jnp.sum(shares**2 * (apart - value) ** 2) * grown
    stderr = jnp.sqrt(drawn + first.stderr**2 + second.stderr**2)
    lower, upper = first.lower - second.upper, first.upper - second.lower
    return Estimate(value, stderr, lower, upper, apart, weights)


def _check_finished(annealed):
    if not isinstance(annealed, Annealed) or not is_concrete(annealed.particles.step):
        return
    step, last = int(annealed.particles.step), len(annealed.plan.betas) - 1
    if step < last:
        raise ValueError(
            f"annealed ended at {step} of {last} distributions: resume_ais goes on"
        )


def _row(x: State, number: int) -> State:
    return jax.tree.map(lambda leaf: leaf[number], x)


def _taken(x: State, numbers: Array) -> State:
    return jax.tree.map(lambda leaf: leaf[numbers], x)


@partial(jax.jit, static_argnums=2)
def _rows_of(course: Course, key: PRNGKeyArray, num_particles: int) -> Any:
    count = len(jax.tree.leaves(course.params[1])[0])
    start_key, run_key = jax.random.split(key)
    keys = jax.random.split(run_key, count)
    a = jax.vmap(course.base.sample)(jax.random.split(start_key, count))
    particles = course.start(keys, prepared(course, a))
    particles = course.run(keys, particles, len(course.plan.betas) - 1)
    log_weights = (particles.log_weight + particles.lost).reshape(-1, num_particles)
    none = jnp.arange(num_particles)
    log_z, stderr, _ = jax.vmap(estimate, (0, None, None))(
        log_weights, none, jnp.zeros((), int)
    )
    return course.base.log_z + log_z, stderr
