"""Log-likelihoods of generative models, latents integrated out row by row.

    log p(x) = log Z_x,    Z_x = integral of exp(-joint(x, a)) over a.

Every row has particles of its own over `a`, which start from a base, as its prior. All
rows follow one plan. Logarithms of mean weights are biased low: they are bounds from
below, on average.

Reference: thesis, "Log Likelihood of Generative Models".
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax.annealing.ais import go_on, prepared
from probjax.annealing.annealed import estimate
from probjax.annealing.checks import check_schedule, check_target, unending
from probjax.annealing.course import Course, Particles
from probjax.annealing.evaluate import Estimate, shares_of
from probjax.annealing.path import Geometric
from probjax.annealing.pilot import Pilot
from probjax.annealing.plan import Plan, make_plan
from probjax.batches import take
from probjax.checkpoint import Checkpoint, Kept, kept_by
from probjax.data import as_data, num_rows, refuse_mask
from probjax.devices import driver, each, num_devices
from probjax.potential import Conditioned
from probjax.types import (
    Array,
    ArrayLike,
    Base,
    Data,
    Float,
    Params,
    PRNGKeyArray,
    Sampler,
    Scalar,
    State,
    check_count,
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
    callback: Callable[[RowsDone], Any] | None = None,
    callback_every: int = 1000,
    checkpoint: Checkpoint | None = None,
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
        callback: called on the host after every `callback_every` distributions of a
            chunk, and at its end, as `rows_bar(num_rows)`. It must not return True:
            there is no mean of some of the rows.
        checkpoint: where to keep the run between calls back, so that this same call
            goes on, to the bit, if it was killed.

    >>> from probjax import Bernoulli, HeatBath
    >>> def joint(params, x, a):  # a is a coin, and x is N(a, 1)
    ...     return jnp.sum((x - a) ** 2) / 2 + jnp.log(2 * jnp.pi) / 2 + jnp.log(2)
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> args = jax.random.key(0), joint, 0.0, Bernoulli(1), jnp.full((2, 1), 0.5)
    >>> found = marginal_log_likelihood(*args, **options)
    >>> round(float(found.value), 3)  # as far from either side of the coin
    -1.044
    """
    callback = unending("marginal_log_likelihood", callback)
    check_count("callback_every", callback_every)
    data = as_data(data)
    refuse_mask(data, "log p is of complete rows")
    check_count("num_particles", num_particles)
    check_count("num_steps", num_steps)
    if chunk_size is None:
        chunk_size = max(1, AT_ONCE // num_particles)
    check_count("chunk_size", chunk_size)
    plan_key, run_key = jax.random.split(key)
    energy, rows = Conditioned(joint), num_rows(data)
    check_target(plan_key, energy, (params, _row(data.x, 0)), base, sampler)
    chosen = jnp.arange(PILOT_GROUPS) * rows // PILOT_GROUPS
    betas = check_schedule(betas, num_steps)
    # As many on every device; more than there are rows is filled up.
    size = -(-min(chunk_size * num_devices(), rows) // num_devices()) * num_devices()

    def planned():
        return make_plan(
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

    def course(plan, numbers):
        given = (params, _taken(data.x, jnp.repeat(numbers, num_particles)))
        path = Geometric()
        return Course(energy, (None, 0), False, given, base, path, sampler, plan, None)

    kept = kept_by(
        checkpoint,
        "marginal_log_likelihood",
        key=key,
        joint=joint,
        params=params,
        base=base,
        data=data,
        sampler=sampler,
        num_particles=num_particles,
        num_steps=num_steps,
        betas=betas,
        pilot=pilot,
        chunk_size=size,
    )
    every = None if callback is None and checkpoint is None else callback_every
    chunks = _Chunks(run_key, course, rows, size, num_particles)
    found = _in_chunks(chunks, planned, callback, every, kept)
    value = jnp.average(found.log_z, weights=data.weights)
    errors = shares_of(data.weights, rows) * found.stderr
    stderr = jnp.sqrt(jnp.sum(errors**2))
    return Estimate(
        value=value,
        stderr=stderr,
        lower=value - 2 * stderr,
        upper=jnp.full_like(value, jnp.nan),
        per_row=found.log_z,
        weights=data.weights,
        common=jnp.zeros_like(value),
        ess=found.ess,
    )


class _Rows(NamedTuple):
    """What particles tell of rows that are done."""

    log_z: Array
    stderr: Array
    ess: Array


class _Chunks(NamedTuple):
    """What a run is of, chunk after chunk of its rows."""

    key: PRNGKeyArray
    course: Callable[[Plan, Array], Course]
    num_rows: int
    size: int
    num_particles: int

    def begin(self, plan: Plan, first: int) -> tuple[PRNGKeyArray, Particles]:
        numbers = self.numbers(first)
        return _begin(self.course(plan, numbers), self.key, numbers, self.num_particles)

    def numbers(self, first: int) -> Array:
        """The rows of a chunk, filled up with the last so that one program serves."""
        return jnp.minimum(first + jnp.arange(self.size), self.num_rows - 1)


class _Way(NamedTuple):
    """How far a run is."""

    plan: Plan
    first: int
    """The number of the first row of those on their way."""
    keys: PRNGKeyArray
    particles: Particles
    found: _Rows
    """What is known of all rows, zero for those that are not done."""


def _in_chunks(
    chunks: _Chunks,
    planned: Callable[[], Plan],
    callback: Callable[[RowsDone], Any] | None,
    every: int | None,
    kept: Kept,
) -> _Rows:
    rows, size = chunks.num_rows, chunks.size

    def begin():
        plan = planned()
        keys, particles = chunks.begin(plan, 0)
        of_chunk = partial(_rows_of, num_particles=chunks.num_particles)
        course = chunks.course(plan, chunks.numbers(0))
        shapes = jax.eval_shape(of_chunk, course, particles)
        blank = jax.tree.map(lambda leaf: jnp.zeros(rows, leaf.dtype), shapes)
        return _Way(plan, 0, keys, particles, blank)

    way = kept.begin(begin)
    while (first := int(way.first)) < rows:
        now = chunks.course(way.plan, chunks.numbers(first))
        last = min(first + size, rows)
        particles, done = go_on(now, way.keys, way.particles, every)
        way = way._replace(particles=particles)
        share = 1 if done else int(particles.step) / len(now.plan.betas)
        if done:
            new = _rows_of(now, particles, chunks.num_particles)
            put = partial(_put, first=first, last=last)
            found = jax.tree.map(put, way.found, new)
            keys, particles = chunks.begin(way.plan, last) if last < rows else way[2:4]
            way = _Way(way.plan, last, keys, particles, found)
        if callback is not None:
            told = way.found.log_z[: last if done else first]
            callback(RowsDone(rows, first + share * (last - first), told))
        kept.keep(way, last=last == rows and done)
    return way.found


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
    x = prepared(course, each(course.base.sample)(start_keys))
    return keys, course.start(keys, x)


@partial(jax.jit, static_argnames="num_particles")
def _rows_of(course, particles, num_particles):
    log_weights = (particles.log_weight + particles.lost).reshape(-1, num_particles)
    none = jnp.arange(num_particles)
    log_z, stderr, ess = jax.vmap(estimate, (0, None, None))(
        log_weights, none, jnp.zeros((), int)
    )
    return _Rows(course.base.log_z + log_z, stderr, ess)
