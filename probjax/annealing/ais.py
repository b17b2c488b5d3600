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

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from probjax import random
from probjax.annealing.bridge import Bridge
from probjax.annealing.estimate import Annealed, summed_up
from probjax.annealing.particles import Course, Particles
from probjax.annealing.paths import Geometric, Path, check_schedule
from probjax.annealing.pilot import Adaptation, Pilot
from probjax.annealing.planning import (
    LEAST_PARTICLES,
    advanced,
    drawn,
    make_plan,
    started,
)
from probjax.annealing.schedule import Schedule
from probjax.bases.checks import check_target
from probjax.checks import check_count, check_interface, check_key, warn
from probjax.devices import check_even
from probjax.interfaces import Base, Sampler
from probjax.runs.driver import Job, Watch, driver, run, run_in_turn
from probjax.types import Array, ArrayLike, Energy, Params, PRNGKeyArray, State


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
    path: Path | None = None,
    pilot: Pilot | None = Pilot(),
    resample_below: float | None = None,
    watch: Watch | None = None,
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
        watch: callback and checkpoint. The callback receives the estimate so far, by
            default every 1,000 distributions; see also `progress_bar`.

    >>> from probjax import Bernoulli, HeatBath, ising
    >>> params = ising.from_matrix([[-1.0, 1.0], [1.0, -1.0]])
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> found = ais(jax.random.key(0), ising.energy, params, Bernoulli(2), **options)
    >>> bool(abs(found.log_z - 2.006) < 0.2)  # log(2 + 2 e)
    True
    """
    asked = dict(locals())
    check_key(key)
    check_count("num_particles", num_particles)
    if resample_below is not None and not 0 < resample_below <= 1:
        raise ValueError(f"resample_below must be from 0 to 1, got {resample_below}")
    bridge = Bridge(energy, None, params, base, path or Geometric(), sampler)
    asked["betas"] = betas = checked(key, bridge, num_particles, num_steps, betas)
    settings = Settings(bridge, pilot, num_particles, num_steps, betas, resample_below)
    return run("ais", asked, forward_job(key, settings), watch)


@driver
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
    """Run `ais` with twice as many distributions again and again.

    Until its standard error is below `stderr`, with a tenth of the particles effective.
    Then one more run of that length is what is returned: one that was chosen for its
    own outcome would be biased. Every run begins anew with a key of its own.

    Args:
        num_steps: distributions of the first run.
        most_steps: of the last one; a warning says if that was not enough.
        watch: as that of `ais`, for all runs; the run that its callback stops is the
            last, and is returned as it is by then.

    >>> from probjax import Bernoulli, HeatBath, ising
    >>> params = ising.from_matrix([[-1.0, 1.0], [1.0, -1.0]])
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> args = jax.random.key(0), ising.energy, params, Bernoulli(2)
    >>> found = ais_until(*args, stderr=0.2, **options)
    >>> bool(abs(found.log_z - 2.006) < 0.4)  # log(2 + 2 e)
    True
    """
    asked = dict(locals())
    check_key(key)
    check_count("num_steps", num_steps)
    check_count("num_particles", num_particles, least=2)
    if not stderr > 0:
        raise ValueError(f"stderr must be positive, got {stderr}")
    bridge = Bridge(energy, None, params, base, path or Geometric(), sampler)
    checked(key, bridge, num_particles, num_steps, None)

    def is_good(annealed):
        return annealed.stderr < stderr and annealed.ess >= 0.1 * num_particles

    def next_job(results):
        if _is_confirmed(results, is_good):
            return None
        count = int(results[-1].plan.length) if results else num_steps
        if results and not is_good(results[-1]):
            count = 2 * count
            if count > most_steps:
                return None
        settings = Settings(bridge, pilot, num_particles, count)
        return forward_job(random.fold_in(key, len(results)), settings)

    results = run_in_turn("ais_until", asked, next_job, watch)
    annealed, last = results[-1], int(results[-1].plan.length)
    if annealed.particles.step == last and not _is_confirmed(results, is_good):
        warn(
            f"{annealed.describe()}: that is still above {stderr} after {last} "
            "distributions: take more particles, or a base that is nearer"
        )
    return annealed


def _is_confirmed(results, is_good):
    """Return whether a run followed the first one that was good enough."""
    return len(results) > 1 and is_good(results[-2])


def checked(
    key: PRNGKeyArray,
    bridge: Bridge,
    num_particles: int,
    num_steps: int,
    betas: ArrayLike | None,
) -> Array | None:
    """Raise if the parts of a run do not go together; return the schedule, if any."""
    check_count("num_particles", num_particles)
    check_even("num_particles", num_particles)
    check_count("num_steps", num_steps)
    check_interface("path", bridge.path, Path, "Geometric()", home="probjax.annealing")
    betas = check_schedule(betas, num_steps)
    check_target(key, bridge.energy, bridge.params, bridge.base, bridge.sampler)
    return betas


class Settings(NamedTuple):
    """Arguments of a run that do not depend on its direction."""

    bridge: Bridge
    pilot: Pilot | None
    num_particles: int
    num_steps: int
    betas: Array | None = None
    resample_below: float | None = None

    def plan(self, key: PRNGKeyArray) -> Schedule:
        """Make the plan of the run."""
        return make_plan(
            key,
            self.bridge,
            pilot=self.pilot,
            num_steps=self.num_steps,
            betas=self.betas,
            num_particles=max(self.num_particles, LEAST_PARTICLES),
        )

    def course(self, plan: Schedule, backwards: bool = False) -> Course:
        """Return all of the run except its particles."""
        is_like_its_pilot = (
            self.num_particles >= LEAST_PARTICLES
            and self.num_steps > 1
            and self.betas is None
            and self.resample_below is None
        )
        adaptation = None
        if self.pilot is not None and is_like_its_pilot:
            # Not active, but it makes the run and its pilot the same program.
            adaptation = Adaptation(self.pilot, self.bridge.sampler, 1, active=False)
        return Course(self.bridge, plan, adaptation, self.resample_below, backwards)


def forward_job(key: PRNGKeyArray, settings: Settings) -> Job:
    """Describe a run from the base to the target."""
    plan_key, start_key, run_key = random.split(key, 3)
    start_keys = random.split_array(start_key, settings.num_particles)
    keys = random.split_array(run_key, settings.num_particles)

    def begin():
        plan = settings.plan(plan_key)
        x = drawn(settings.bridge, start_keys)
        return plan, started(settings.course(plan), keys, x)

    return annealing_job(settings.course, keys, begin)


def reverse_job(
    key: PRNGKeyArray, settings: Settings, x: State, plan: Callable[[], Schedule]
) -> Job:
    """Describe a run from draws of the target to the base."""
    keys = random.split_array(key, settings.num_particles)
    course = partial(settings.course, backwards=True)

    def begin():
        found = plan()
        return found, started(course(found), keys, x)

    return annealing_job(course, keys, begin)


def annealing_job(
    course: Callable[[Schedule], Course],
    keys: PRNGKeyArray,
    begin: Callable[[], tuple[Schedule, Particles]],
) -> Job:
    """Describe a run of particles, whose state is its plan and where they are."""

    def advance(now, every):
        plan, particles = now
        last = plan.length
        if every is not None:
            last = min((int(particles.step) // every + 1) * every, int(last))
        return plan, advanced(course(plan), keys, particles, last)[0]

    def report(now):
        plan, particles = now
        return summed_up(course(plan), particles)

    return Job(
        begin=begin,
        advance=advance,
        is_over=lambda now: int(now[1].step) >= int(now[0].length),
        report=report,
        finish=lambda now, stopped: report(now),
        every=1000,
    )
