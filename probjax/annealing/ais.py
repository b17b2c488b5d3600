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
from typing import Any

import jax

from probjax.annealing.annealed import Annealed, summed_up
from probjax.annealing.checks import check_schedule, check_target
from probjax.annealing.course import Course, Particles
from probjax.annealing.path import Geometric, Way
from probjax.annealing.pilot import Pilot
from probjax.annealing.plan import LEAST_PARTICLES, Plan, make_plan
from probjax.checkpoint import NOT_KEPT, Checkpoint, Kept, kept_by
from probjax.devices import check_even, driver, each
from probjax.potential import potential
from probjax.types import (
    ArrayLike,
    Base,
    Energy,
    Params,
    PRNGKeyArray,
    Sampler,
    State,
    check_count,
    check_key,
    is_concrete,
)


@driver
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
    checkpoint: Checkpoint | None = None,
) -> Annealed:
    """Estimate log Z of exp(-energy) by particles that come from a base.

    Args:
        base: what is known and drawn from; it has to be wherever the target is.
        sampler: moves particles at each distribution. With momentum that persists,
            `HMC(0.2)`, it is HAIS.
        num_particles: how many. They live on the mesh in context (`jax.set_mesh`), and
            have to be a multiple of its devices.
        num_steps: N, the number of weights that each collects; 1 is plain importance
            sampling.
        betas: the schedule, N + 1 numbers from 0 to 1; None to let the pilot find it.
        path: `Geometric()`, the default, or `Straight(start)` for parameters that move.
        pilot: how the sampler's steps, and the schedule, are found in a shorter run
            before; None to take the sampler as it is, and equal steps.
        resample_below: copy the heavy and drop the light where fewer than this share
            of the particles are effective. None never does. It is the one thing that
            moves particles from device to device.
        callback: called on the host after every `callback_every` distributions with
            what is known by then, as `annealing_bar(num_steps)`; the run ends if it
            returns True.
        checkpoint: where to keep the run between calls back, so that this same call
            goes on, to the bit, if it was killed or ended early.

    >>> from probjax import Bernoulli, HeatBath, ising
    >>> params = ising.from_matrix([[-1.0, 1.0], [1.0, -1.0]])
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> found = ais(jax.random.key(0), ising.energy, params, Bernoulli(2), **options)
    >>> bool(abs(found.log_z - 2.006) < 0.2)  # log(2 + 2 e)
    True
    """
    path = Geometric() if path is None else path
    check_key(key)
    check_count("num_particles", num_particles)
    plan_key, start_key, run_key = jax.random.split(key, 3)
    if resample_below is not None and not 0 < resample_below <= 1:
        raise ValueError(f"resample_below must be from 0 to 1, got {resample_below}")
    keys = jax.random.split(run_key, num_particles)

    def course(plan):
        return Course(
            energy, None, False, params, base, path, sampler, plan, resample_below
        )

    def begin():
        plan = planned(
            plan_key,
            energy,
            params,
            base,
            sampler=sampler,
            num_particles=num_particles,
            num_steps=num_steps,
            betas=betas,
            path=path,
            pilot=pilot,
        )
        return plan, _start(course(plan), start_key, keys)

    kept = kept_by(
        checkpoint,
        "ais",
        key=key,
        energy=energy,
        params=params,
        base=base,
        sampler=sampler,
        num_particles=num_particles,
        num_steps=num_steps,
        betas=betas,
        path=path,
        pilot=pilot,
        resample_below=resample_below,
    )
    plan, particles = kept.begin(begin)
    return finish(course(plan), keys, particles, callback, callback_every, kept)


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
    callback: Callable[[Annealed], Any] | None = None,
    callback_every: int = 1000,
) -> Annealed:
    """Run `ais` with twice as many distributions again and again.

    Until its standard error is below `stderr`, with a tenth of the particles effective.
    Then one more run of that length is what is returned: one that was chosen for its
    own outcome would be biased. Every run begins anew with a key of its own.

    Args:
        num_steps: distributions of the first run.
        most_steps: of the last one; a warning says if that was not enough.
        callback: as that of `ais`, called in every run; if it returns True that run is
            the last, and is returned as it is by then.

    >>> from probjax import Bernoulli, HeatBath, ising
    >>> params = ising.from_matrix([[-1.0, 1.0], [1.0, -1.0]])
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> args = jax.random.key(0), ising.energy, params, Bernoulli(2)
    >>> found = ais_until(*args, stderr=0.2, **options)
    >>> bool(abs(found.log_z - 2.006) < 0.4)  # log(2 + 2 e)
    True
    """
    check_count("num_steps", num_steps)
    check_count("num_particles", num_particles, least=2)
    if not stderr > 0:
        raise ValueError(f"stderr must be positive, got {stderr}")

    ended = False

    def call(annealed):
        nonlocal ended
        ended = bool(callback is not None and callback(annealed))
        return ended

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
            callback=None if callback is None else call,
            callback_every=callback_every,
        )

    attempt = 0
    while True:
        annealed = run(attempt, num_steps)
        if ended:
            return annealed
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
    energy: Energy,
    params: Params,
    base: Base,
    *,
    sampler: Sampler,
    num_particles: int,
    num_steps: int,
    betas: ArrayLike | None,
    path: Way,
    pilot: Pilot | None,
) -> Plan:
    """The plan of a run, unless what it is made of does not go together."""
    check_count("num_particles", num_particles)
    check_even("num_particles", num_particles)
    check_count("num_steps", num_steps)
    betas = check_schedule(betas, num_steps)
    check_target(jax.random.fold_in(key, 0), energy, params, base, sampler)
    return make_plan(
        key,
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


@jax.jit
def _start(course, key, keys):
    return course.start(keys, drawn(course, key, len(keys)))


def drawn(course: Course, key: PRNGKeyArray, count: int) -> State:
    """Draws of the base, as the sampler wants them."""
    return prepared(course, each(course.base.sample)(jax.random.split(key, count)))


def prepared(course: Course, x: State) -> State:
    """`x` as the sampler wants it."""
    return course.sampler.prepare(potential(type(course.base).energy, course.base), x)


def finish(
    course: Course,
    keys: PRNGKeyArray,
    particles: Particles,
    callback: Callable[[Annealed], Any] | None = None,
    every: int = 1000,
    kept: Kept = NOT_KEPT,
) -> Annealed:
    """Run particles to the end, with the host in between if it has to do."""
    if callback is None and kept is NOT_KEPT:
        particles, _ = go_on(course, keys, particles, None)
        return summed_up(course, particles)
    check_count("callback_every", every)
    while True:
        particles, done = go_on(course, keys, particles, every)
        annealed = summed_up(course, particles)
        ended = bool(callback is not None and callback(annealed)) or done
        kept.keep((course.plan, particles), last=ended)
        if ended:
            return annealed


def go_on(
    course: Course, keys: PRNGKeyArray, particles: Particles, every: int | None
) -> tuple[Particles, bool]:
    """Particles `every` distributions on, None for all, and whether that is the end."""
    last = len(course.plan.betas) - 1
    if every is None:
        return _advance(course, keys, particles, last), True
    if not is_concrete((course, particles)):
        raise ValueError("annealing inside jit or vmap cannot call back")
    until = min(int(particles.step) + every, last)
    return _advance(course, keys, particles, until), until == last


@jax.jit
def _advance(course, keys, particles, last):
    return course.run(keys, particles, last)
