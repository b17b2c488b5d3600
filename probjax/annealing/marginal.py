"""Log-likelihoods of generative models, latents integrated out row by row.

    log p(x) = log Z_x,    Z_x = integral of exp(-joint(x, a)) over a.

Every row has particles of its own over `a`, which start from a base, as its prior. All
rows follow one plan. Logarithms of mean weights are biased low: they are bounds from
below, on average.

Reference: thesis, "Log Likelihood of Generative Models".
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.annealing.bridge import Bridge
from probjax.annealing.estimate import estimate
from probjax.annealing.likelihood import Estimate, shares_of
from probjax.annealing.particles import Course, Particles
from probjax.annealing.paths import Geometric, check_schedule
from probjax.annealing.pilot import Pilot
from probjax.annealing.planning import advanced, make_plan
from probjax.annealing.schedule import Schedule
from probjax.bases.checks import check_target
from probjax.checks import check_count, check_key
from probjax.data.chunks import take
from probjax.data.rows import as_data, num_rows, refuse_mask
from probjax.devices import num_devices
from probjax.interfaces import Base, Sampler
from probjax.potential import Conditioned
from probjax.runs.driver import Job, Watch, driver, run
from probjax.types import (
    Array,
    ArrayLike,
    Data,
    Float,
    Params,
    PRNGKeyArray,
    Scalar,
    State,
)

AT_ONCE = 2**15
PILOT_GROUPS, PILOT_PARTICLES = 16, 32


class RowsDone(NamedTuple):
    """How far `marginal_log_likelihood` is.

    >>> def show(done):
    ...     print(f"{done.num_done:.1f} of {done.num_rows} rows")
    >>> show(RowsDone(num_rows=4, num_done=2.5, per_row=jnp.array([-1.0, -3.0])))
    2.5 of 4 rows
    """

    num_rows: int
    """How many there are."""
    num_done: float
    """How many are done; those on their way count by how much of it they have done."""
    per_row: Float[Array, " row"]
    """log p(x) of those that are at its end."""


@driver
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
    watch: Watch | None = None,
) -> Estimate:
    """The mean of log p(x) over rows, latents integrated out row by row.

    All rows and particles run together, by one plan that is found on a few of the rows.

    Args:
        joint: `joint(params, x, a)`, -log p(x, a) with all its constants.
        base: over the latents `a`, as their prior.
        num_particles: of each row.
        chunk_size: how many rows at once, on each of the devices that they are spread
            over; None for as many as 32,768 particles serve. It changes nothing but
            rounding.
        watch: callback and checkpoint. The callback receives a `RowsDone`, by default
            every 1,000 distributions of a chunk and at its end; see also
            `progress_bar`. It must not return True: there is no mean of some of
            the rows.

    >>> from probjax import Bernoulli, HeatBath
    >>> def joint(params, x, a):  # a is a coin, and x is N(a, 1)
    ...     return jnp.sum((x - a) ** 2) / 2 + jnp.log(2 * jnp.pi) / 2 + jnp.log(2)
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> args = jax.random.key(0), joint, 0.0, Bernoulli(1), jnp.full((2, 1), 0.5)
    >>> found = marginal_log_likelihood(*args, **options)
    >>> round(float(found.value), 3)  # as far from either side of the coin
    -1.044
    """
    asked = dict(locals())
    check_key(key)
    asked["data"] = data = as_data(data)
    refuse_mask(data, "log p is of complete rows")
    check_count("num_particles", num_particles)
    check_count("num_steps", num_steps)
    if chunk_size is None:
        chunk_size = max(1, AT_ONCE // num_particles)
    check_count("chunk_size", chunk_size)
    plan_key, run_key = random.split(key, 2)
    energy, count = Conditioned(joint), num_rows(data)
    check_target(plan_key, energy, (params, _row(data.x, 0)), base, sampler)
    asked["betas"] = betas = check_schedule(betas, num_steps)
    bridge = Bridge(energy, (None, 0), (), base, Geometric(), sampler)
    # As many on every device; more than there are rows is filled up.
    size = -(-min(chunk_size * num_devices(), count) // num_devices()) * num_devices()
    asked["chunk_size"] = size
    chunks = _Chunks(run_key, bridge, params, data.x, count, size, num_particles)
    plan = partial(
        make_plan,
        plan_key,
        chunks.pilot_bridge(),
        num_groups=PILOT_GROUPS,
        pilot=pilot,
        num_particles=PILOT_GROUPS * PILOT_PARTICLES,
        num_steps=num_steps,
        betas=betas,
    )
    job = Job(
        begin=lambda: chunks.start(plan()),
        advance=chunks.advance,
        is_over=lambda now: int(now.first) >= count,
        report=chunks.report,
        finish=lambda now, stopped: _estimate(now.found, data.weights),
        every=1000,
        may_stop=False,
    )
    return run("marginal_log_likelihood", asked, job, watch)


def _estimate(found, weights):
    value = jnp.average(found.log_z, weights=weights)
    errors = shares_of(weights, len(found.log_z)) * found.stderr
    stderr = jnp.sqrt(jnp.sum(errors**2))
    return Estimate(
        value=value,
        stderr=stderr,
        lower=value - 2 * stderr,
        upper=jnp.full_like(value, jnp.nan),
        per_row=found.log_z,
        weights=weights,
        common=jnp.zeros_like(value),
        ess=found.ess,
    )


class _Rows(NamedTuple):
    """What particles tell of rows that are done."""

    log_z: Array
    stderr: Array
    ess: Array


class _Run(NamedTuple):
    """State of a run."""

    plan: Schedule
    first: Array
    """Number of the first row of the current chunk."""
    keys: PRNGKeyArray
    particles: Particles
    found: _Rows
    """Results of all rows, zero for those that are not done."""


class _Chunks(NamedTuple):
    """A run over all rows, chunk after chunk."""

    key: PRNGKeyArray
    bridge: Bridge
    params: Params
    x: State
    num_rows: int
    size: int
    num_particles: int

    def pilot_bridge(self) -> Bridge:
        """Return the bridge of a few rows, for a pilot run."""
        chosen = jnp.arange(PILOT_GROUPS) * self.num_rows // PILOT_GROUPS
        return self._given(jnp.repeat(chosen, PILOT_PARTICLES))

    def start(self, plan: Schedule) -> _Run:
        """Create the state before the first chunk."""
        keys, particles = self._begin(plan, 0)
        of_chunk = partial(_rows_of, num_particles=self.num_particles)
        shapes = jax.eval_shape(of_chunk, self._course(plan, 0), particles)
        blank = jax.tree.map(lambda leaf: jnp.zeros(self.num_rows, leaf.dtype), shapes)
        return _Run(plan, jnp.zeros((), int), keys, particles, blank)

    def advance(self, now: _Run, every: int | None) -> _Run:
        """Advance the current chunk by `every` distributions; None for all chunks."""
        if every is not None:
            return self._advance(now, every)
        for first in range(0, self.num_rows, self.size):
            now = self._advance(now._replace(first=first), None)
        return now

    def report(self, now: _Run) -> RowsDone:
        """Return what a callback receives."""
        first, last = int(now.first), int(now.plan.length) + 1
        step = int(now.particles.step) if first < self.num_rows else 0
        share = step / last if step > 1 else 0
        done = first + share * (min(first + self.size, self.num_rows) - first)
        return RowsDone(self.num_rows, done, now.found.log_z[:first])

    def _advance(self, now, every):
        last, first = int(now.plan.length), now.first
        until = last
        if every is not None:
            until = min((int(now.particles.step) // every + 1) * every, last)
        course = self._course(now.plan, first)
        particles, _ = advanced(course, now.keys, now.particles, until)
        now = now._replace(particles=particles)
        return now if until < last else self._next(now, course, int(first))

    def _next(self, now, course, first):
        """Store the results of a chunk, and begin the next one if there is one."""
        end = min(first + self.size, self.num_rows)
        new = _rows_of(course, now.particles, self.num_particles)
        put = partial(_put, first=first, last=end)
        now = now._replace(
            first=jnp.asarray(end), found=jax.tree.map(put, now.found, new)
        )
        if end == self.num_rows:
            return now
        keys, particles = self._begin(now.plan, end)
        return now._replace(keys=keys, particles=particles)

    def _begin(self, plan, first):
        numbers = self._numbers(first)
        course = self._course(plan, first)
        return _begin(course, self.key, numbers, self.num_particles)

    def _course(self, plan, first):
        numbers = jnp.repeat(self._numbers(first), self.num_particles)
        return Course(self._given(numbers), plan)

    def _given(self, numbers):
        """Return the bridge of particles given rows."""
        params = (self.params, _taken(self.x, numbers))
        return dataclasses.replace(self.bridge, params=params)

    def _numbers(self, first):
        """Return the rows of a chunk, padded with the last one."""
        return jnp.minimum(first + jnp.arange(self.size), self.num_rows - 1)


def _put(known: Array, new: Array, *, first: int, last: int) -> Array:
    return known.at[first:last].set(new[: last - first])


def _row(x: State, number: int) -> State:
    return jax.tree.map(lambda leaf: leaf[number], x)


_taken = jax.jit(take)


@partial(jax.jit, static_argnums=3)
def _begin(course, key, numbers, num_particles):
    def of_row(number):
        both = jax.random.split(jax.random.fold_in(key, number))
        return jax.vmap(lambda key: jax.random.split(key, num_particles))(both)

    # By the number of its row, so that chunks change nothing.
    start_keys, keys = jax.vmap(of_row, out_axes=1)(numbers).reshape(2, -1)
    return keys, course.start(keys, course.bridge.draw(start_keys))


@partial(jax.jit, static_argnames="num_particles")
def _rows_of(course, particles, num_particles):
    log_weights = (particles.log_weight + particles.lost).reshape(-1, num_particles)
    none = jnp.arange(num_particles)
    log_z, stderr, ess = jax.vmap(estimate, (0, None, None))(
        log_weights, none, jnp.zeros((), int)
    )
    return _Rows(course.bridge.base.log_z + log_z, stderr, ess)
