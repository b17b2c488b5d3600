"""Annealed importance sampling (AIS): log Z with a standard error.

Each particle starts as a draw from the base. Along b_0 = 0 < b_1 < ... < b_N = 1 its
log weight is increased N times, and any sampler moves it N - 1 times:

    log w += E_(b_k)(x) - E_(b_k+1)(x),    then  x moves at b_k+1.

The mean weight estimates Z_1 / Z_0 without bias for any N, even if the sampler mixes
badly. Its logarithm is biased low, and the bias grows with the variance of the weights.
Each increment must be added before the move. With `HMC`, whose momentum persists, this
is Hamiltonian AIS: one gradient of the target for each distribution. In a reverse run,
which starts from draws of the target, the mean weight estimates Z_0 / Z_1, and the
estimate of log Z_1 is biased high.

`stderr` is estimated from the variance of the weights and is reliable only if `ess` is
large. Neither detects regions that too few particles reached. A lower and an upper
bound together do: see `sandwich`.

The gradient of an estimate with respect to parameters is not supported, because
accepting and rejecting is not differentiable. The gradient of log Z is the mean of
-dE/dparams over draws.

Reference: thesis, "Annealed Importance Sampling" and "Hamiltonian Annealed Importance
Sampling"; Neal, Statistics and Computing 11, 125 (2001). Standard error with
resampling: Lee and Whiteley, Biometrika 105, 609 (2018).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from probjax import random
from probjax.annealing.bridge import Bridge
from probjax.annealing.estimate import Annealed, summarise
from probjax.annealing.particles import (
    AnnealingRun,
    Particles,
    advance_particles,
    draw_particles,
    start_particles,
)
from probjax.annealing.paths import Geometric, Path
from probjax.annealing.pilot import MIN_PARTICLES, Pilot, make_schedule
from probjax.annealing.schedule import Schedule, check_schedule
from probjax.bases.checks import check_target
from probjax.checks import check_count, check_interface, check_key, warn
from probjax.devices import check_even
from probjax.interfaces import Base, Sampler
from probjax.runs.driver import Job, Watch, driver, run, run_in_turn, undifferentiable
from probjax.types import Array, ArrayLike, Energy, Params, PRNGKeyArray, State

MIN_RESAMPLED = 20
NO_GRADIENT = (
    "the gradient of log Z is minus the mean of the energy's gradient over the "
    "particles, weighted by exp(log_weights); try jax.lax.stop_gradient(params)"
)


@driver
@undifferentiable(NO_GRADIENT)
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
    path: Path | None = None,
    pilot: Pilot | None = Pilot(),
    resample_below: float | None = None,
    watch: Watch | None = None,
) -> Annealed:
    """Estimate log Z of exp(-energy) with particles that start from a base.

    Args:
        base: distribution with a known log Z, from which the particles are drawn. It
            must cover the target: have a positive probability wherever the target has
            one.
        sampler: sampler that moves the particles at each distribution. `HMC(0.2)`,
            whose momentum persists, makes this Hamiltonian AIS.
        num_particles: number of particles. They are sharded over the devices of the
            mesh in context (`jax.set_mesh`), so it must be a multiple of their number.
        num_steps: number of distributions N, which is also the number of increments of
            each log weight. 1 is plain importance sampling.
        betas: schedule, N + 1 numbers from 0 to 1; None to let the pilot run choose it.
        path: `Geometric()`, which is the default, or `Straight(start)` to interpolate
            the parameters.
        pilot: settings of the pilot run, a shorter run that adapts the sampler's step
            size and metric and chooses the schedule. None for the sampler as it is and
            equal steps.
        resample_below: resample a group of particles whenever the effective sample size
            is less than this share of the group; None to never resample. There are up
            to 20 groups, of at least 5 particles each. Resampling is the only operation
            that moves particles between devices.
        watch: callback and checkpoint. The callback receives the estimate so far, by
            default every 1,000 distributions; see also `progress_bar`.

    >>> from probjax import Bernoulli, HeatBath, ising
    >>> params = ising.from_matrix([[-1.0, 1.0], [1.0, -1.0]])
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> annealed = ais(jax.random.key(0), ising.energy, params, Bernoulli(2), **options)
    >>> bool(abs(annealed.log_z - 2.006) < 0.2)  # log(2 + 2 e)
    True
    """
    arguments = dict(locals())
    check_key(key)
    check_count("num_particles", num_particles)
    if resample_below is not None and not 0 < resample_below <= 1:
        raise ValueError(
            "resample_below must be above 0 and at most 1, or None, got "
            f"{resample_below}; try 0.5"
        )
    if resample_below is not None:
        name = "num_particles, if particles are resampled,"
        check_count(name, num_particles, least=MIN_RESAMPLED)
    bridge = Bridge(energy, None, params, base, path or Geometric(), sampler)
    betas = check_run(key, bridge, num_particles, num_steps, betas)
    arguments["betas"] = betas
    settings = Settings(bridge, pilot, num_particles, num_steps, betas, resample_below)
    return run("ais", arguments, forward_job(key, settings), watch)


@driver
@undifferentiable(NO_GRADIENT)
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
    path: Path | None = None,
    pilot: Pilot | None = Pilot(),
    watch: Watch | None = None,
) -> Annealed:
    """Double the number of distributions of `ais` until its error is small enough.

    The standard error must be below `stderr`, and the effective sample size at least a
    tenth of `num_particles`. One more run of that length is then returned, because a
    run that is selected by its own result would be biased. Every run starts from the
    base, with its own key.

    Args:
        stderr: standard error of log Z to reach, in nats.
        num_steps: number of distributions of the first run.
        most_steps: largest number of distributions. A warning is issued if the standard
            error or the effective sample size is still insufficient.
        watch: callback and checkpoint, as for `ais`, for all runs. If the callback
            stops a run, its unfinished result is returned.

    The other arguments are those of `ais`.

    >>> from probjax import Bernoulli, HeatBath, ising
    >>> params = ising.from_matrix([[-1.0, 1.0], [1.0, -1.0]])
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> args = jax.random.key(0), ising.energy, params, Bernoulli(2)
    >>> annealed = ais_until(*args, stderr=0.2, **options)
    >>> bool(abs(annealed.log_z - 2.006) < 0.4)  # log(2 + 2 e)
    True
    """
    arguments = dict(locals())
    check_key(key)
    check_count("num_steps", num_steps)
    check_count("num_particles", num_particles, least=2)
    if not stderr > 0:
        raise ValueError(f"stderr must be positive, got {stderr}; try 0.1")
    bridge = Bridge(energy, None, params, base, path or Geometric(), sampler)
    check_run(key, bridge, num_particles, num_steps, None)

    def is_good(annealed):
        return annealed.stderr < stderr and annealed.ess >= 0.1 * num_particles

    def next_job(results):
        if _is_confirmed(results, is_good):
            return None
        length = int(results[-1].schedule.length) if results else num_steps
        if results and not is_good(results[-1]):
            length = 2 * length
            if length > most_steps:
                return None
        settings = Settings(bridge, pilot, num_particles, length)
        return forward_job(random.fold_in(key, len(results)), settings)

    results = run_in_turn("ais_until", arguments, next_job, watch)
    annealed, length = results[-1], int(results[-1].schedule.length)
    if annealed.particles.step == length and not _is_confirmed(results, is_good):
        warn(
            f"{annealed.describe()}: stderr={stderr}, with at least a tenth of the "
            f"particles effective, was not reached after {length} distributions; try "
            "more particles, a larger most_steps, or a base closer to the target"
        )
    return annealed


def _is_confirmed(results, is_good):
    """Whether a run followed the first one whose error was small enough."""
    return len(results) > 1 and is_good(results[-2])


def check_run(
    key: PRNGKeyArray,
    bridge: Bridge,
    num_particles: int,
    num_steps: int,
    betas: ArrayLike | None,
) -> Array | None:
    """Raise if the parts of a run do not fit together; return `betas` as an array."""
    check_count("num_particles", num_particles)
    check_even("num_particles", num_particles)
    check_count("num_steps", num_steps)
    check_interface("path", bridge.path, Path, "Geometric()", home="probjax.annealing")
    betas = check_schedule(betas, num_steps)
    check_target(key, bridge.energy, bridge.params, bridge.base, bridge.sampler)
    return betas


class Settings(NamedTuple):
    """Settings of a run, forward or reverse."""

    bridge: Bridge
    pilot: Pilot | None
    num_particles: int
    num_steps: int
    betas: Array | None = None
    resample_below: float | None = None

    def make_schedule(self, key: PRNGKeyArray) -> Schedule:
        """Make the schedule of the run, with a pilot run if there is one."""
        return make_schedule(
            key,
            self.bridge,
            pilot=self.pilot,
            num_steps=self.num_steps,
            betas=self.betas,
            num_particles=max(self.num_particles, MIN_PARTICLES),
        )

    def annealing_run(
        self, schedule: Schedule, backwards: bool = False
    ) -> AnnealingRun:
        """Return all parts of the run except its particles."""
        is_like_its_pilot = (
            self.num_particles >= MIN_PARTICLES
            and self.num_steps > 1
            and self.betas is None
            and self.resample_below is None
        )
        adaptation = None
        if self.pilot is not None and is_like_its_pilot:
            # Inactive, but with it the run and its pilot are the same program.
            adaptation = self.pilot.adaptation(active=False)
        return AnnealingRun(
            self.bridge, schedule, adaptation, self.resample_below, backwards
        )


def forward_job(key: PRNGKeyArray, settings: Settings) -> Job:
    """Return the job of a run from the base to the target."""
    schedule_key, start_key, run_key = random.split(key, 3)
    start_keys = random.split_array(start_key, settings.num_particles)
    keys = random.split_array(run_key, settings.num_particles)

    def begin():
        schedule = settings.make_schedule(schedule_key)
        x = draw_particles(settings.bridge, start_keys)
        return schedule, start_particles(settings.annealing_run(schedule), keys, x)

    return _annealing_job(settings.annealing_run, keys, begin)


def reverse_job(
    key: PRNGKeyArray,
    settings: Settings,
    x: State,
    get_schedule: Callable[[], Schedule],
) -> Job:
    """Return the job of a run from draws `x` of the target to the base.

    Args:
        get_schedule: function that returns the schedule, called when the job begins.
    """
    keys = random.split_array(key, settings.num_particles)
    make_run = partial(settings.annealing_run, backwards=True)

    def begin():
        schedule = get_schedule()
        return schedule, start_particles(make_run(schedule), keys, x)

    return _annealing_job(make_run, keys, begin)


def _annealing_job(
    make_run: Callable[[Schedule], AnnealingRun],
    keys: PRNGKeyArray,
    begin: Callable[[], tuple[Schedule, Particles]],
) -> Job:
    """Return the job of a run, whose state is a schedule and the particles."""

    def advance(state, every):
        schedule, particles = state
        last = schedule.length
        if every is not None:
            last = min((int(particles.step) // every + 1) * every, int(last))
        annealing_run = make_run(schedule)
        return schedule, advance_particles(annealing_run, keys, particles, last)[0]

    def report(state):
        schedule, particles = state
        return summarise(make_run(schedule), particles)

    return Job(
        begin=begin,
        advance=advance,
        is_over=lambda state: int(state[1].step) >= int(state[0].length),
        report=report,
        finish=lambda state, stopped: report(state),
        every=1000,
    )
