"""Lower and upper bounds on log Z from a forward and a reverse run.

A forward run, from the base, gives an estimate of log Z that is biased low. A reverse
run, from draws of the target, gives one that is biased high. If both agree, log Z is
known. If they do not, the interval between them shows an error that neither run detects
by itself.

The reverse run must start from draws of the target. Exact draws make its result an
upper bound on average. Draws at the end of a long Markov chain do so only if the chain
has explored the whole target: a mode that the chains have missed is missing from both
runs.

The weights of a reverse run have heavy tails if the target is narrower than the base,
and their standard error is then unreliable. Two looser bounds do not depend on it.
Minus the mean log weight is an upper bound on log Z on average. And by Markov's
inequality log Z exceeds the estimate by more than log 40 = 3.7 nats with a probability
of at most 1 / 40.

Reference: Grosse, Ghahramani and Adams, "Sandwiching the marginal likelihood using
bidirectional Monte Carlo", arXiv:1511.02543 (2015).
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.annealing.ais import (
    NO_GRADIENT,
    Settings,
    check_run,
    forward_job,
    reverse_job,
)
from probjax.annealing.bennett import bennett
from probjax.annealing.bridge import Bridge
from probjax.annealing.estimate import Annealed
from probjax.annealing.paths import Geometric, Path
from probjax.annealing.pilot import Pilot
from probjax.bases.checks import check_states
from probjax.checks import check_key, holds, is_finite, nan_means_unknown
from probjax.data.rows import as_data, num_rows
from probjax.interfaces import Base, Sampler
from probjax.runs.driver import Watch, driver, run, run_in_turn, undifferentiable
from probjax.types import (
    Array,
    ArrayLike,
    Data,
    Energy,
    Params,
    PRNGKeyArray,
    Scalar,
    State,
)

MIN_EFFECTIVE, RELIABLE_SHARE = 5, 0.1
MARKOV = math.log(40)


class Bracket(NamedTuple):
    """Interval for log Z, from a forward and a reverse run.

    >>> bracket = Bracket(log_z=2.0, lower=1.5, upper=2.5, forward=None, reverse=None)
    >>> float(bracket.stderr)
    0.25
    """

    log_z: Scalar
    """Estimate from both runs together, by Bennett's acceptance ratio; NaN if the
    bounds contradict each other."""
    lower: Scalar
    """Lower end: the estimate of the forward run minus two standard errors."""
    upper: Scalar
    """Upper end: the estimate of the reverse run plus two standard errors, or a looser
    bound if few of its particles are effective."""
    forward: Annealed
    """Result of the run from the base to the target."""
    reverse: Annealed
    """Result of the run from the target to the base."""

    @property
    def stderr(self) -> Scalar:
        """Standard error of `log_z`: a quarter of the interval, so it includes bias.

        NaN if the bounds contradict each other.
        """
        return _quarter(self.lower, self.upper)

    def describe(self) -> str:
        """Describe the interval and the reliability of both runs."""
        width = float(self.upper - self.lower)
        if width < 0:
            return (
                "the bounds contradict each other: the forward run gives log Z >= "
                f"{float(self.lower):.6g}, the reverse run <= {float(self.upper):.6g}; "
                "x is probably not a sample of the target"
            )
        parts = [
            f"log Z from {float(self.lower):.6g} to {float(self.upper):.6g}, "
            f"{width:.2g} wide",
            f"forward run: {self.forward.describe()}",
            f"reverse run: {self.reverse.describe()}",
        ]
        if not _is_reliable(self.reverse):
            parts.append(
                "few particles of the reverse run are effective, so the upper end is a "
                "looser bound that does not depend on its standard error"
            )
        return "; ".join(parts)


@nan_means_unknown()
@jax.jit
def _quarter(lower, upper):
    return jnp.where(upper >= lower, (upper - lower) / 4, jnp.nan)


@driver
@undifferentiable(NO_GRADIENT)
def reverse_ais(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    base: Base,
    x: State,
    *,
    sampler: Sampler,
    num_steps: int,
    betas: ArrayLike | None = None,
    path: Path | None = None,
    pilot: Pilot | None = Pilot(),
    watch: Watch | None = None,
) -> Annealed:
    """Estimate log Z with particles that move from the target to the base.

    `log_z` is biased high. Heavy tails of the weights can make `stderr` far too small;
    they affect `bound`, which is higher still, and its standard error much less.

    Args:
        x: draws of the target, one for each particle; see `probjax.annealing.bounds`
            for how exact the draws must be.
        watch: callback and checkpoint, as for `ais`.

    The other arguments are those of `ais`.

    >>> from probjax import Bernoulli, HeatBath, exact, ising
    >>> params = ising.from_matrix([[-1.0, 1.0], [1.0, -1.0]])
    >>> x = exact.sample(jax.random.key(0), ising.energy, params, 2, num_draws=100)
    >>> args = jax.random.key(1), ising.energy, params, Bernoulli(2), x
    >>> annealed = reverse_ais(*args, sampler=HeatBath(), num_steps=20, pilot=None)
    >>> bool(abs(annealed.log_z - 2.006) < 0.2)  # log(2 + 2 e)
    True
    """
    arguments = dict(locals())
    check_key(key)
    bridge = Bridge(energy, None, params, base, path or Geometric(), sampler)
    draws = _check_draws(x)
    count = num_rows(draws)
    arguments["betas"] = betas = check_run(key, bridge, count, num_steps, betas)
    arguments["x"] = x = check_states(sampler, base.prepare(draws.x))
    schedule_key, _, run_key = random.split(key, 3)
    settings = Settings(bridge, pilot, count, num_steps, betas)
    get_schedule = partial(settings.make_schedule, schedule_key)
    job = reverse_job(run_key, settings, x, get_schedule)
    return run("reverse_ais", arguments, job, watch)


@driver
@undifferentiable(NO_GRADIENT)
def sandwich(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    base: Base,
    x: State,
    *,
    sampler: Sampler,
    num_steps: int,
    num_particles: int | None = None,
    betas: ArrayLike | None = None,
    path: Path | None = None,
    pilot: Pilot | None = Pilot(),
    watch: Watch | None = None,
) -> Bracket:
    """Bound log Z from below and from above, with a forward and a reverse run.

    Both runs have the same number of distributions. The interval extends two standard
    errors beyond both estimates. It also contains two standard errors around their
    combined estimate, because by chance the lower estimate can exceed the upper one.

    Args:
        x: draws of the target, from which the reverse run starts; see `reverse_ais`.
        num_particles: number of particles of the forward run; None for as many as `x`.
        watch: callback and checkpoint, as for `ais`, for the forward and then the
            reverse run. The callback must not return True: an interval needs both runs.

    The other arguments are those of `ais`.

    >>> from probjax import Bernoulli, HeatBath, exact, ising
    >>> params = ising.from_matrix([[-1.0, 1.0], [1.0, -1.0]])
    >>> x = exact.sample(jax.random.key(0), ising.energy, params, 2, num_draws=100)
    >>> args = jax.random.key(1), ising.energy, params, Bernoulli(2), x
    >>> bracket = sandwich(*args, sampler=HeatBath(), num_steps=20, pilot=None)
    >>> bool(bracket.lower < 2.006 < bracket.upper)  # log(2 + 2 e)
    True
    """
    arguments = dict(locals())
    check_key(key)
    forward_key, reverse_key = random.split(key, 2)
    bridge = Bridge(energy, None, params, base, path or Geometric(), sampler)
    draws = _check_draws(x)
    num_draws = num_rows(draws)
    if min(num_draws, num_draws if num_particles is None else num_particles) < 2:
        raise ValueError(
            "x and num_particles must have at least two particles for an interval, got "
            "one; try 100 draws"
        )
    count = num_draws if num_particles is None else num_particles
    arguments["betas"] = betas = check_run(key, bridge, count, num_steps, betas)
    arguments["x"] = x = check_states(sampler, base.prepare(draws.x))
    settings = Settings(bridge, pilot, count, num_steps, betas)

    def next_job(results):
        match results:
            case []:
                job = forward_job(forward_key, settings)
            case [forward]:
                reverse_settings = settings._replace(num_particles=num_draws)
                job = reverse_job(
                    reverse_key, reverse_settings, x, lambda: forward.schedule
                )
            case _:
                return None
        return job._replace(may_stop=False)

    forward, reverse = run_in_turn("sandwich", arguments, next_job, watch)
    return _bracket(forward, reverse)


@nan_means_unknown()
def _bracket(forward, reverse):
    # Fields that the interval does not depend on are left out of the program.
    unused = dict(x=(), schedule=(), particles=())
    log_z, lower, upper = _interval(
        forward._replace(**unused), reverse._replace(**unused)
    )
    return Bracket(log_z, lower, upper, forward=forward, reverse=reverse)


@jax.jit
def _interval(forward, reverse):
    lower = forward.log_z - 2 * forward.stderr
    upper = reverse.log_z + 2 * reverse.stderr
    on_average = jnp.fmax(upper, reverse.bound + 2 * reverse.bound_stderr)
    loose = jnp.fmin(on_average, reverse.log_z + MARKOV)
    upper = jnp.where(_is_reliable(reverse), upper, loose)
    log_z, stderr = bennett(forward.log_weights, -reverse.log_weights)
    # If the biases are negligible, the forward estimate can exceed the reverse one by
    # chance, and the interval would be narrower the less they agree. It extends to two
    # standard errors around the combined estimate, unless the bounds contradict.
    agree = upper >= lower
    return (
        jnp.where(agree, log_z, jnp.nan),
        jnp.where(agree, jnp.fmin(lower, log_z - 2 * stderr), lower),
        jnp.where(agree, jnp.fmax(upper, log_z + 2 * stderr), upper),
    )


def _is_reliable(annealed: Annealed) -> Array:
    """Whether enough particles are effective for a reliable standard error."""
    return annealed.ess >= max(
        MIN_EFFECTIVE, RELIABLE_SHARE * len(annealed.log_weights)
    )


def _check_draws(x: State) -> Data:
    """Return draws of the target as data; raise if they are not finite and plain."""
    if not holds(is_finite, x):
        raise ValueError(
            "x must be draws of the target, got NaN or infinity; check the chains with "
            "diagnostics.summary"
        )
    data = as_data(x)
    if data.weights is not None or data.mask is not None:
        given = "weights" if data.weights is not None else "a mask"
        raise ValueError(
            "x must be plain draws of the target, without weights or mask, got "
            f"{given}; try the field x of these data"
        )
    return data
