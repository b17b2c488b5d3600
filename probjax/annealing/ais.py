"""Annealed importance sampling: log Z with a standard error, by particles on a way.

Each particle starts as a draw of the base. Along b_0 = 0 < b_1 < ... < b_N = 1 it is
weighed and then moved, by any sampler, N times and N - 1 times:

    log w += E_(b_k)(x) - E_(b_k+1)(x),    then  x moves at b_k+1,

and mean w = Z_1 / Z_0 without bias, whatever N and however badly the sampler mixes.
Its logarithm is biased low, the more so the more the weights scatter. The weight has to
be added before the move. With `HMC`, whose momentum persists, it is Hamiltonian AIS:
one gradient of the target for each distribution. Backwards, from draws of the target,
mean w = Z_0 / Z_1, and the estimate of log Z_1 is biased high.

`stderr` is that of a logarithm by the spread of the weights, and holds if `ess` is
large; that few particles have come to a place where they should be many, neither tells.
Two-sided bounds do: see `sandwich`.

Gradients of an estimate with respect to parameters are not promised: accepting and
rejecting has none. Those of log Z are means of -dE/dparams over draws.

Reference: thesis, "Annealed Importance Sampling" and "Hamiltonian Annealed Importance
Sampling"; Neal, Statistics and Computing 11, 125 (2001). Error with resampling: Lee and
Whiteley, Biometrika 105, 609 (2018).
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from probjax import random
from probjax.annealing.path import Geometric, Way, check_betas
from probjax.annealing.plan import (
    LEAST_PARTICLES,
    Pilot,
    Plan,
    fixed_plan,
    is_tunable,
    make_plan,
)
from probjax.potential import check_energy, potential
from probjax.types import (
    Array,
    ArrayLike,
    Base,
    Energy,
    Float,
    Params,
    PRNGKeyArray,
    Sampler,
    Scalar,
    State,
    check_count,
    closed_forms,
    float_dtype,
    is_concrete,
    recipe,
    static,
)

NUM_BINS = 50


class Annealed(NamedTuple):
    """What particles tell of a partition function."""

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
    plan: Plan
    """The schedule and the sampler's steps."""
    particles: "Particles"
    """All that is needed to go on."""

    def describe(self) -> str:
        """In words: the estimate, and whether it is to be trusted."""
        return _describe(self)


class Particles(NamedTuple):
    """Where a run is."""

    state: Any
    """The sampler's states."""
    log_weight: Float[Array, " particle"]
    """Since they were last resampled."""
    lost: Float[Array, " particle"]
    """What rounding has kept out of it."""
    eve: Array
    """Which start each has come of."""
    settled: Scalar
    """The logarithm of the mean weights that resampling has set to 1."""
    num_resampled: Array
    """How often it has."""
    accept: Float[Array, " bin"]
    """Acceptances, summed."""
    step: Array
    """The number of the distribution that they are to be moved at next."""


@recipe
class Course:
    """All of a run but its particles."""

    energy: Energy = static()
    axes: Any = static()
    backwards: bool = static()
    params: Params
    base: Base
    path: Way
    sampler: Sampler
    plan: Plan
    resample_below: float | None

    def betas(self, kind: Any) -> Float[Array, " beta"]:
        """In the order in which they are visited."""
        betas = self.plan.betas.astype(kind)
        return betas[::-1] if self.backwards else betas

    def start(self, keys: PRNGKeyArray, x: State) -> Particles:
        """Particles that have been weighed once and not moved."""
        kind = float_dtype(x)
        betas = self.betas(kind)
        sampler = self.plan.sampler(self.sampler, self.plan.places(betas[:1])[0])
        size = len(keys)

        def one(key, params, x):
            model = self._model(params, betas[0])
            state = sampler.init(random.fold_in(key, 2**31 - 1), model, x)
            first = self.path.first(self.energy, params, self.base, x)
            first = jnp.zeros((), kind) if self.backwards else first.astype(kind)
            return state, _no_nan(first + self._fall(params, state, betas[0], betas[1]))

        state, log_weight = jax.vmap(one, (0, self.axes, 0))(keys, self.params, x)
        zero = jnp.zeros((), kind)
        return Particles(
            state,
            log_weight,
            jnp.zeros_like(log_weight),
            jnp.arange(size),
            zero,
            jnp.zeros((), int),
            jnp.zeros(NUM_BINS, kind),
            jnp.ones((), int),
        )

    def run(
        self, keys: PRNGKeyArray, particles: Particles, last: Array | int
    ) -> Particles:
        """Move and weigh particles until all before number `last` is done."""
        kind = particles.log_weight.dtype
        betas = self.betas(kind)
        places = self.plan.places(betas)
        num_steps = len(betas) - 1

        def step(k, particles):
            sampler = self.plan.sampler(self.sampler, places[k])
            here, there = betas[k], betas[k + 1]

            def one(key, params, state):
                model = self._model(params, here)
                step_key = random.fold_in(key, k)
                if not self.path.lasting:
                    init_key, step_key = random.split(step_key)
                    state = sampler.init(init_key, model, state.x)
                state, info = sampler.step(step_key, model, state)
                return state, self._fall(params, state, here, there), info.accept

            state, fall, accept = jax.vmap(one, (0, self.axes, 0))(
                keys, self.params, particles.state
            )
            log_weight, lost = _add(particles.log_weight, particles.lost, fall)
            place = (k - 1) * NUM_BINS // jnp.maximum(num_steps - 1, 1)
            particles = particles._replace(
                state=state,
                log_weight=log_weight,
                lost=lost,
                accept=particles.accept.at[place].add(accept.mean().astype(kind)),
                step=k + 1,
            )
            if self.resample_below is None:
                return particles
            return self._resampled(random.fold_in(keys[0], 2**31 - 1 - k), particles)

        return jax.lax.fori_loop(particles.step, last, step, particles)

    def _model(self, params, beta):
        return self.path.model(self.energy, params, self.base, beta)

    def _fall(self, params, state, here, there):
        return self.path.fall(self.energy, params, self.base, state, here, there)

    def _resampled(self, key, particles):
        count = len(particles.log_weight)
        log_weight = particles.log_weight + particles.lost
        total = logsumexp(log_weight)
        weights = jnp.exp(log_weight - total)

        def resample():
            # Each drawn by itself: the error of more even ways is not known.
            levels = random.uniform(key, (count,), weights.dtype)
            ends = jnp.cumsum(weights)
            chosen = jnp.searchsorted(ends, levels * ends[-1], side="right")
            chosen = jnp.minimum(chosen, count - 1)
            return particles._replace(
                state=jax.tree.map(lambda leaf: leaf[chosen], particles.state),
                log_weight=jnp.zeros_like(log_weight),
                lost=jnp.zeros_like(log_weight),
                eve=particles.eve[chosen],
                settled=particles.settled + total - jnp.log(count),
                num_resampled=particles.num_resampled + 1,
            )

        few = 1 / jnp.sum(weights**2) < count * jnp.asarray(self.resample_below)
        return jax.lax.cond(few & jnp.isfinite(total), resample, lambda: particles)


def ais(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    base: Base,
    *,
    sampler: Sampler,
    num_particles: int,
    num_steps: int,
    betas: ArrayLike | None = None,
    path: Way | None = None,
    pilot: Pilot | None = Pilot(),
    resample_below: float | None = None,
    callback: Callable[[Annealed], Any] | None = None,
    callback_every: int = 1000,
) -> Annealed:
    """Estimate log Z of exp(-energy) by particles that come from a base.

    Args:
        base: what is known and drawn from; it has to be wherever the target is.
        sampler: moves particles at each distribution. With momentum that persists,
            `HMC(0.2)`, it is HAIS.
        num_particles: how many.
        num_steps: N, the number of weights that each collects; 1 is plain importance
            sampling.
        betas: the schedule, N + 1 numbers from 0 to 1; None to let the pilot find it.
        path: `Geometric()`, the default, or `Straight(start)` for parameters that move.
        pilot: how the sampler's steps, and the schedule, are found in a shorter run
            before; None to take the sampler as it is, and equal steps.
        resample_below: copy the heavy and drop the light where fewer than this share
            of the particles are effective. None never does.
        callback: called on the host after every `callback_every` distributions with
            what is known by then, as `annealing_bar(num_steps)`, or to save it; the
            run ends if it returns True, and `resume_ais` can go on from there.
    """
    path = Geometric() if path is None else path
    plan_key, start_key, run_key = jax.random.split(key, 3)
    check_count("num_particles", num_particles)
    check_count("num_steps", num_steps)
    betas = check_schedule(betas, num_steps)
    if resample_below is not None and not 0 < resample_below <= 1:
        raise ValueError(f"resample_below must be from 0 to 1, got {resample_below}")
    check_target(start_key, energy, params, base, sampler)
    plan = planned(
        plan_key,
        energy,
        params,
        base,
        None,
        pilot=pilot,
        path=path,
        sampler=sampler,
        num_particles=max(num_particles, LEAST_PARTICLES),
        num_steps=num_steps,
        betas=betas,
    )
    course = Course(
        energy, None, False, params, base, path, sampler, plan, resample_below
    )
    keys = jax.random.split(run_key, num_particles)
    particles = _start(course, start_key, keys)
    return finish(course, keys, particles, callback, callback_every)


def resume_ais(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    base: Base,
    annealed: Annealed,
    *,
    sampler: Sampler,
    path: Way | None = None,
    resample_below: float | None = None,
    callback: Callable[[Annealed], Any] | None = None,
    callback_every: int = 1000,
) -> Annealed:
    """The end of a run that a callback ended, or whose `annealed` it has saved.

    With the arguments of that run it is the same to the bit.
    """
    path = Geometric() if path is None else path
    _, _, run_key = jax.random.split(key, 3)
    keys = jax.random.split(run_key, len(annealed.log_weights))
    course = Course(
        energy, None, False, params, base, path, sampler, annealed.plan, resample_below
    )
    return finish(course, keys, annealed.particles, callback, callback_every)


def ais_until(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    base: Base,
    *,
    stderr: float,
    sampler: Sampler,
    num_particles: int,
    num_steps: int = 1000,
    most_steps: int = 1_000_000,
    path: Way | None = None,
    pilot: Pilot | None = Pilot(),
) -> Annealed:
    """Run `ais` with twice as many distributions again and again.

    Until its standard error is below `stderr`, with a tenth of the particles effective.
    Then one more run of that length is what is returned: one that was chosen for its
    own outcome would be biased. Every run begins anew with a key of its own.

    Args:
        num_steps: distributions of the first run.
        most_steps: of the last one; a warning says if that was not enough.
    """
    check_count("num_steps", num_steps)
    check_count("num_particles", num_particles, least=2)
    if not stderr > 0:
        raise ValueError(f"stderr must be positive, got {stderr}")

    def run(number, num_steps):
        return ais(
            jax.random.fold_in(key, number),
            energy,
            params,
            base,
            sampler=sampler,
            num_particles=num_particles,
            num_steps=num_steps,
            path=path,
            pilot=pilot,
        )

    attempt = 0
    while True:
        annealed = run(attempt, num_steps)
        if annealed.stderr < stderr and annealed.ess >= 0.1 * num_particles:
            return run(attempt + 1, num_steps)
        if 2 * num_steps > most_steps:
            warnings.warn(
                f"{annealed.describe()}: that is still above {stderr} after "
                f"{num_steps} distributions: take more particles, or a base that is "
                "nearer",
                stacklevel=2,
            )
            return annealed
        attempt, num_steps = attempt + 1, 2 * num_steps


def planned(
    key: PRNGKeyArray,
    *target: Any,
    pilot: Pilot | None,
    num_steps: int,
    betas: Array | None,
    **options: Any,
) -> Plan:
    """The plan of a run: by its pilot if it has one."""
    if pilot is None or num_steps == 1:
        plan = fixed_plan(num_steps)
        return plan if betas is None else plan._replace(betas=betas)
    return make_plan(
        key, *target, pilot=pilot, num_steps=num_steps, betas=betas, **options
    )


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


@jax.jit
def _start(course, key, keys):
    x = jax.vmap(course.base.sample)(jax.random.split(key, len(keys)))
    return course.start(keys, prepared(course, x))


def prepared(course: Course, x: State) -> State:
    """`x` as the sampler wants it."""
    return course.sampler.prepare(potential(type(course.base).energy, course.base), x)


@jax.jit
def _advance(course, keys, particles, last):
    return course.run(keys, particles, last)


@jax.jit
def summed_up(course: Course, particles: Particles) -> Annealed:
    """What the particles tell by now."""
    log_weights = particles.settled + particles.log_weight + particles.lost
    sign = -1 if course.backwards else 1
    base_log_z = jnp.asarray(course.base.log_z, log_weights.dtype)
    log_weights = log_weights + sign * base_log_z
    if course.backwards:
        # From where the way begins to the base, the last of all.
        first = partial(course.path.first, course.energy)
        over = jax.vmap(first, (course.axes, None, 0))
        rest = over(course.params, course.base, particles.state.x)
        done = particles.step == len(course.plan.betas) - 1
        log_weights = log_weights - jnp.where(done, rest, 0)
    eve, num_resampled = particles.eve, particles.num_resampled
    log_mean, stderr, ess = estimate(log_weights, eve, num_resampled)
    num_steps = len(course.plan.betas) - 1
    done = (jnp.arange(num_steps - 1) * NUM_BINS) // max(num_steps - 1, 1)
    counts = (
        jnp.zeros(NUM_BINS)
        .at[done]
        .add((jnp.arange(1, num_steps) < particles.step).astype(float))
    )
    return Annealed(
        log_z=sign * log_mean,
        stderr=stderr,
        bound=sign * log_weights.mean(),
        bound_stderr=jnp.where(
            particles.num_resampled > 0,
            jnp.nan,
            log_weights.std(ddof=1) / jnp.sqrt(len(log_weights)),
        ),
        ess=ess,
        log_weights=log_weights,
        x=particles.state.x,
        accept=jnp.where(counts > 0, particles.accept / counts, jnp.nan),
        plan=course.plan,
        particles=particles,
    )


def finish(
    course: Course,
    keys: PRNGKeyArray,
    particles: Particles,
    callback: Callable[[Annealed], Any] | None = None,
    every: int = 1000,
) -> Annealed:
    """Run particles to the end, with the host in between if it is to be called."""
    num_steps = len(course.plan.betas) - 1
    if callback is None:
        return summed_up(course, _advance(course, keys, particles, num_steps))
    check_count("callback_every", every)
    if not is_concrete((course, particles)):
        raise ValueError("ais inside jit or vmap cannot call back")
    while True:
        last = min(int(particles.step) + every, num_steps)
        particles = _advance(course, keys, particles, last)
        annealed = summed_up(course, particles)
        if callback(annealed) or last == num_steps:
            return annealed


def check_schedule(betas: ArrayLike | None, num_steps: int) -> Array | None:
    """`betas`, unless they are no schedule of `num_steps` weights."""
    if betas is None:
        return None
    betas = check_betas(betas)
    if len(betas) != num_steps + 1:
        raise ValueError(
            f"betas must be num_steps + 1 = {num_steps + 1} numbers, got {len(betas)}"
        )
    return betas


def check_target(
    key: PRNGKeyArray, energy: Energy, params: Params, base: Base, sampler: Sampler
) -> None:
    """Refuse models, bases and samplers that do not go together."""
    if getattr(base, "discrete", False) and is_tunable(sampler):
        raise ValueError(
            f"{type(base).__name__} draws discrete states, which "
            f"{type(sampler).__name__} cannot move: use HeatBath, or a continuous base"
        )
    told = closed_forms(energy).get("unnormalisable")
    if told is not None and is_concrete(params) and (why := told(params)):
        raise ValueError(f"the model has no partition function: {why}")
    few = jax.vmap(base.sample)(jax.random.split(key, 10))
    few = sampler.prepare(potential(type(base).energy, base), few)
    check_energy(energy, params, jax.tree.map(lambda rows: rows[0], few))


def _no_nan(fall):
    # Infinite energies on both sides are no place for a particle: it weighs nothing.
    return jnp.where(jnp.isnan(fall), -jnp.inf, fall)


def _add(total, lost, change):
    """A sum of many, with what rounding loses of it kept apart (Kahan, Neumaier)."""
    change = _no_nan(change)
    new = total + change
    larger = jnp.abs(total) >= jnp.abs(change)
    slip = jnp.where(larger, (total - new) + change, (change - new) + total)
    return new, lost + jnp.where(jnp.isfinite(new), slip, 0)


def _describe(annealed: Annealed) -> str:
    count = len(annealed.log_weights)
    log_z, ess = float(annealed.log_z), float(annealed.ess)
    num_steps = len(annealed.plan.betas) - 1
    if not np.isfinite(log_z):
        return (
            f"log Z {log_z}: no particle has a weight, the base does not cover the "
            "target"
        )
    said = [f"log Z {log_z:.6g} +- {float(annealed.stderr):.2g}"]
    step = int(annealed.particles.step)
    if step < num_steps:
        said = [f"ended at {step} of {num_steps} distributions, short of the target"]
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
