"""Log-likelihoods of generative models, with the latents integrated out row by row.

    log p(x) = log Z_x,    Z_x = integral of exp(-joint(x, a)) over a.

Every row has its own particles over the latents `a`, which start from a base such as
the prior of `a`. All rows share one schedule. Log mean weights are biased low: they are
lower bounds on average.

Reference: thesis, "Log Likelihood of Generative Models".
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.annealing.ais import NO_GRADIENT
from probjax.annealing.bridge import Bridge
from probjax.annealing.estimate import estimate
from probjax.annealing.likelihood import Estimate, normalised_weights, stderr_over_rows
from probjax.annealing.particles import AnnealingRun, Particles, advance_particles
from probjax.annealing.paths import Geometric
from probjax.annealing.pilot import Pilot, make_schedule
from probjax.annealing.schedule import Schedule, check_schedule
from probjax.bases.checks import check_target
from probjax.checks import check_count, check_key, nan_means_unknown
from probjax.data.chunks import take
from probjax.data.rows import as_data, num_rows, refuse_mask
from probjax.devices import num_devices
from probjax.interfaces import Base, Sampler
from probjax.potential import Posterior
from probjax.runs.driver import Job, Watch, driver, run, undifferentiable
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

MAX_PARTICLES = 2**15
PILOT_GROUPS, PILOT_PARTICLES = 16, 32


class RowsDone(NamedTuple):
    """Progress of `marginal_log_likelihood`.

    >>> def show(done):
    ...     print(f"{done.num_done:.1f} of {done.num_rows} rows")
    >>> show(RowsDone(num_rows=4, num_done=2.5, per_row=jnp.array([-1.0, -3.0])))
    2.5 of 4 rows
    """

    num_rows: int
    """Number of rows."""
    num_done: float
    """Number of finished rows, with fractions for rows of an unfinished chunk."""
    per_row: Float[Array, " row"]
    """Estimate of log p(x) for each finished row."""


@driver
@undifferentiable(NO_GRADIENT)
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
    """Estimate the mean of log p(x) over rows, with the latents integrated out.

    All rows have the same schedule, which a pilot run with a few of the rows chooses.
    Each row's estimate is biased low, and averaging over rows does not reduce the bias.
    `stderr` and `total_stderr` do not include it, so that with few particles they are
    too small; `lower` is a bound in any case.

    Args:
        joint: `joint(params, x, a)`, -log p(x, a) including all constants.
        base: distribution of the latents `a` at the start, such as their prior.
        data: complete rows, with weights as `Data`.
        sampler: sampler that moves `a` at each distribution.
        num_particles: number of particles for each row.
        num_steps: number of distributions.
        betas: schedule, `num_steps` + 1 numbers from 0 to 1; None to let the pilot run
            choose it.
        pilot: settings of the pilot run, as for `ais`.
        chunk_size: number of rows that each device handles at once; None for the number
            that makes 32,768 particles. Results depend on it by rounding only, except
            with keys of `rbg`: see `probjax.random`.
        watch: callback and checkpoint. The callback receives a `RowsDone`, by default
            every 1,000 distributions of a chunk and at the end of the chunk; see also
            `progress_bar`. It must not return True: the mean needs all rows.

    >>> from probjax import Bernoulli, HeatBath
    >>> def joint(params, x, a):  # a is a coin, and x is N(a, 1)
    ...     return jnp.sum((x - a) ** 2) / 2 + jnp.log(2 * jnp.pi) / 2 + jnp.log(2)
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> args = jax.random.key(0), joint, 0.0, Bernoulli(1), jnp.full((2, 1), 0.5)
    >>> estimate = marginal_log_likelihood(*args, **options)
    >>> round(float(estimate.value), 3)  # log N(0.5; a, 1), the same for both a
    -1.044
    """
    arguments = dict(locals())
    check_key(key)
    arguments["data"] = data = as_data(data)
    refuse_mask(data, "log p is computed for complete rows only")
    check_count("num_particles", num_particles)
    check_count("num_steps", num_steps)
    if chunk_size is None:
        chunk_size = max(1, MAX_PARTICLES // num_particles)
    check_count("chunk_size", chunk_size)
    schedule_key, run_key = random.split(key, 2)
    energy, count = Posterior(joint), num_rows(data)
    check_target(schedule_key, energy, (params, _row(data.x, 0)), base, sampler)
    arguments["betas"] = betas = check_schedule(betas, num_steps)
    bridge = Bridge(energy, (None, 0), (), base, Geometric(), sampler)
    # The same number on every device; a chunk larger than the data is padded.
    size = -(-min(chunk_size * num_devices(), count) // num_devices()) * num_devices()
    arguments["chunk_size"] = size
    chunks = _Chunks(run_key, bridge, params, data.x, count, size, num_particles)
    get_schedule = partial(
        make_schedule,
        schedule_key,
        chunks.pilot_bridge(),
        num_groups=PILOT_GROUPS,
        pilot=pilot,
        num_particles=PILOT_GROUPS * PILOT_PARTICLES,
        num_steps=num_steps,
        betas=betas,
    )
    job = Job(
        begin=lambda: chunks.start(get_schedule()),
        advance=chunks.advance,
        is_over=lambda state: int(state.first) >= count,
        report=chunks.report,
        finish=lambda state, stopped: _estimate(state.results, data.weights),
        every=1000,
        may_stop=False,
    )
    return run("marginal_log_likelihood", arguments, job, watch)


@nan_means_unknown()
def _estimate(results, weights):
    value = jnp.average(results.log_z, weights=weights)
    errors = normalised_weights(weights, len(results.log_z)) * results.stderr
    stderr = jnp.sqrt(jnp.sum(errors**2))
    return Estimate(
        value=value,
        stderr=stderr,
        lower=value - 2 * stderr,
        upper=jnp.full_like(value, jnp.nan),
        per_row=results.log_z,
        weights=weights,
        common=jnp.zeros_like(value),
        ess=results.ess,
        row_stderr=stderr_over_rows(results.log_z, weights),
    )


class _RowResults(NamedTuple):
    """Estimates for rows."""

    log_z: Array
    stderr: Array
    ess: Array


class _State(NamedTuple):
    """State of a run over all rows."""

    schedule: Schedule
    first: Array
    """Index of the first row of the current chunk."""
    keys: PRNGKeyArray
    particles: Particles
    results: _RowResults
    """Results for all rows, zero for those that are not finished."""


class _Chunks(NamedTuple):
    """Run over all rows, one chunk of rows after the other."""

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
        return self._bridge(jnp.repeat(chosen, PILOT_PARTICLES))

    def start(self, schedule: Schedule) -> _State:
        """Return the state before the first chunk."""
        keys, particles = self._begin(schedule, 0)
        summarise = partial(_row_results, num_particles=self.num_particles)
        annealing_run = self._annealing_run(schedule, 0)
        shapes = jax.eval_shape(summarise, annealing_run, particles)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(self.num_rows, leaf.dtype), shapes)
        return _State(schedule, jnp.zeros((), int), keys, particles, zeros)

    def advance(self, state: _State, every: int | None) -> _State:
        """Advance the current chunk by `every` distributions; None for all chunks."""
        if every is not None:
            return self._advance(state, every)
        for first in range(0, self.num_rows, self.size):
            state = self._advance(state._replace(first=first), None)
        return state

    def report(self, state: _State) -> RowsDone:
        """Return the progress, for a callback."""
        first, last = int(state.first), int(state.schedule.length) + 1
        step = int(state.particles.step) if first < self.num_rows else 0
        share = step / last if step > 1 else 0
        done = first + share * (min(first + self.size, self.num_rows) - first)
        return RowsDone(self.num_rows, done, state.results.log_z[:first])

    def _advance(self, state, every):
        last, first = int(state.schedule.length), state.first
        until = last
        if every is not None:
            until = min((int(state.particles.step) // every + 1) * every, last)
        annealing_run = self._annealing_run(state.schedule, first)
        particles, _ = advance_particles(
            annealing_run, state.keys, state.particles, until
        )
        state = state._replace(particles=particles)
        return state if until < last else self._next(state, annealing_run, int(first))

    def _next(self, state, annealing_run, first):
        """Store the results of a chunk, and begin the next one if there is one."""
        end = min(first + self.size, self.num_rows)
        new = _row_results(annealing_run, state.particles, self.num_particles)
        put = partial(_put, first=first, last=end)
        results = jax.tree.map(put, state.results, new)
        state = state._replace(first=jnp.asarray(end), results=results)
        if end == self.num_rows:
            return state
        keys, particles = self._begin(state.schedule, end)
        return state._replace(keys=keys, particles=particles)

    def _begin(self, schedule, first):
        """Return the keys and the particles at the start of a chunk."""
        annealing_run = self._annealing_run(schedule, first)
        return _begin(annealing_run, self.key, self._rows(first), self.num_particles)

    def _annealing_run(self, schedule, first):
        rows = jnp.repeat(self._rows(first), self.num_particles)
        return AnnealingRun(self._bridge(rows), schedule)

    def _bridge(self, rows):
        """Return the bridge of particles for the given rows, one row each."""
        params = (self.params, _take(self.x, rows))
        return dataclasses.replace(self.bridge, params=params)

    def _rows(self, first):
        """Return the indices of the rows of a chunk, padded with the last row."""
        return jnp.minimum(first + jnp.arange(self.size), self.num_rows - 1)


def _put(results: Array, new: Array, *, first: int, last: int) -> Array:
    return results.at[first:last].set(new[: last - first])


def _row(x: State, number: int) -> State:
    return jax.tree.map(lambda leaf: leaf[number], x)


_take = jax.jit(take)


@partial(jax.jit, static_argnums=3)
def _begin(annealing_run, key, rows, num_particles):
    def row_keys(row):
        both = jax.random.split(jax.random.fold_in(key, row))
        return jax.vmap(lambda key: jax.random.split(key, num_particles))(both)

    # Keys depend on the index of the row, so that results do not depend on chunks.
    # A legacy key has an axis of two words.
    both = jax.vmap(row_keys, out_axes=1)(rows)
    start_keys, keys = both.reshape(2, -1, *key.shape)
    return keys, annealing_run.start(keys, annealing_run.bridge.draw(start_keys))


@partial(jax.jit, static_argnames="num_particles")
def _row_results(annealing_run, particles, num_particles):
    log_weights = particles.log_weight + particles.compensation
    own = jnp.arange(num_particles)
    log_z, stderr, ess = jax.vmap(estimate, (0, None, None))(
        log_weights.reshape(-1, num_particles), own, jnp.zeros((), int)
    )
    return _RowResults(annealing_run.bridge.base.log_z + log_z, stderr, ess)
