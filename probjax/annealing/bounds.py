"""Both sides of a partition function: particles that come, and particles that go back.

From the base an estimate of log Z is biased low, from draws of the target it is biased
high. Where both agree it is known; where they do not, the interval between them says so
when neither run does by itself.

What goes back must start from draws of the target. Exact ones make the upper side a
bound, on average. The end of a long run of a sampler does so only if it has reached all
of the target: chains that missed a mode are blind to it in both directions.

Weights of particles that go back are heavy tailed where the target is narrower than the
base, and then their standard error says little. Two looser bounds do not need it. The
mean of their logarithms bounds log Z on average; and as no mean of positive numbers is
often many times what it is expected to be (Markov), log Z is above the estimate by more
than log 40 = 3.7 nats in one case of forty at most.

Reference: Grosse, Ghahramani and Adams, "Sandwiching the marginal likelihood using
bidirectional Monte Carlo", arXiv:1511.02543 (2015).
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.annealing.ais import Settings, checked, forward_job, reverse_job
from probjax.annealing.bridge import Bridge
from probjax.annealing.estimate import Annealed
from probjax.annealing.paths import Geometric, Path
from probjax.annealing.pilot import Pilot
from probjax.bases.checks import check_states
from probjax.checks import check_key, holds, is_finite
from probjax.data.rows import as_data, num_rows
from probjax.interfaces import Base, Sampler
from probjax.runs.driver import Watch, driver, run, run_in_turn
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

FEW, HEALTHY = 5, 0.1
MARKOV = math.log(40)


class Bracket(NamedTuple):
    """log Z from both sides.

    >>> found = Bracket(log_z=2.0, lower=1.5, upper=2.5, forward=None, reverse=None)
    >>> float(found.stderr)
    0.25
    """

    log_z: Scalar
    """Half way between the two estimates, whose biases are opposite."""
    lower: Scalar
    """The estimate from the base, less two standard errors."""
    upper: Scalar
    """That from the target, and two; or a looser bound, if few weights count."""
    forward: Annealed
    """From the base."""
    reverse: Annealed
    """From the target."""

    @property
    def stderr(self) -> Scalar:
        """Of `log_z`: a quarter of the interval, which the bias is part of.

        NaN if the sides contradict each other.
        """
        return _quarter(self.lower, self.upper)

    def describe(self) -> str:
        """In words: the interval, and what each side is worth."""
        width = float(self.upper - self.lower)
        if width < 0:
            return (
                f"the sides contradict each other: at least {float(self.lower):.6g} "
                f"from the base, at most {float(self.upper):.6g} from x, which are no "
                "draws of the target"
            )
        said = [
            f"log Z from {float(self.lower):.6g} to {float(self.upper):.6g}, "
            f"{width:.2g} wide",
            f"from the base: {self.forward.describe()}",
            f"back from the target: {self.reverse.describe()}",
        ]
        if not _is_healthy(self.reverse):
            said.append(
                "few of the particles that went back count, so the upper end is a "
                "bound that needs no error"
            )
        return "; ".join(said)


@jax.jit
def _quarter(lower, upper):
    return jnp.where(upper >= lower, (upper - lower) / 4, jnp.nan)


@driver
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
    """Estimate log Z by particles that go from the target back to the base.

    `log_z` is biased high, and `bound`, higher still, does not suffer from the tails of
    the weights, by which `stderr` may be far too small.

    Args:
        x: draws of the target, a particle each; how exact they have to be, see
            `probjax.annealing.bounds`.
        watch: as that of `ais`.

    >>> from probjax import Bernoulli, HeatBath, exact, ising
    >>> params = ising.from_matrix([[-1.0, 1.0], [1.0, -1.0]])
    >>> x = exact.sample(jax.random.key(0), ising.energy, params, 2, num_draws=100)
    >>> args = jax.random.key(1), ising.energy, params, Bernoulli(2), x
    >>> found = reverse_ais(*args, sampler=HeatBath(), num_steps=20, pilot=None)
    >>> bool(abs(found.log_z - 2.006) < 0.2)  # log(2 + 2 e)
    True
    """
    asked = dict(locals())
    check_key(key)
    bridge = Bridge(energy, None, params, base, path or Geometric(), sampler)
    count = num_rows(_draws(x))
    asked["betas"] = betas = checked(key, bridge, count, num_steps, betas)
    asked["x"] = x = check_states(sampler, base.prepare(_draws(x).x))
    plan_key, _, run_key = random.split(key, 3)
    settings = Settings(bridge, pilot, count, num_steps, betas)
    job = reverse_job(run_key, settings, x, partial(settings.plan, plan_key))
    return run("reverse_ais", asked, job, watch)


@driver
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
    """Log Z from below and from above, by as many distributions each way.

    The interval reaches two standard errors beyond each side, and at least two of what
    both say together: by chance they may come out crossed.

    Args:
        x: draws of the target, which go back; see `reverse_ais`.
        num_particles: how many come from the base; None for as many as go back.
        watch: as that of `ais`, for the forward and then the reverse run. The callback
            must not return True: an interval needs both runs.

    >>> from probjax import Bernoulli, HeatBath, exact, ising
    >>> params = ising.from_matrix([[-1.0, 1.0], [1.0, -1.0]])
    >>> x = exact.sample(jax.random.key(0), ising.energy, params, 2, num_draws=100)
    >>> args = jax.random.key(1), ising.energy, params, Bernoulli(2), x
    >>> found = sandwich(*args, sampler=HeatBath(), num_steps=20, pilot=None)
    >>> bool(found.lower < 2.006 < found.upper)  # log(2 + 2 e)
    True
    """
    asked = dict(locals())
    check_key(key)
    forward_key, reverse_key = random.split(key, 2)
    bridge = Bridge(energy, None, params, base, path or Geometric(), sampler)
    rows = num_rows(_draws(x))
    count = rows if num_particles is None else num_particles
    asked["betas"] = betas = checked(key, bridge, count, num_steps, betas)
    asked["x"] = x = check_states(sampler, base.prepare(_draws(x).x))

    settings = Settings(bridge, pilot, count, num_steps, betas)

    def next_job(results):
        match results:
            case []:
                job = forward_job(forward_key, settings)
            case [forward]:
                back = settings._replace(num_particles=rows)
                job = reverse_job(reverse_key, back, x, lambda: forward.plan)
            case _:
                return None
        return job._replace(may_stop=False)

    forward, reverse = run_in_turn("sandwich", asked, next_job, watch)
    return _bracket(forward, reverse)


def _bracket(forward, reverse):
    # What an interval does not depend on is left out of the program.
    sides = (side._replace(x=(), plan=(), particles=()) for side in (forward, reverse))
    log_z, lower, upper = _interval(*sides)
    return Bracket(log_z, lower, upper, forward=forward, reverse=reverse)


@jax.jit
def _interval(forward, reverse):
    lower = forward.log_z - 2 * forward.stderr
    upper = reverse.log_z + 2 * reverse.stderr
    on_average = jnp.fmax(upper, reverse.bound + 2 * reverse.bound_stderr)
    loose = jnp.fmin(on_average, reverse.log_z + MARKOV)
    lower, upper = _no_narrower(
        forward, reverse, lower, jnp.where(_is_healthy(reverse), upper, loose)
    )
    return (forward.log_z + reverse.log_z) / 2, lower, upper


def _no_narrower(forward, reverse, lower, upper):
    """The interval, if noise has crossed the sides, with what both know together.

    Where sides have no bias left, either may come out above the other. The interval
    between them would then be the narrower the worse they agree; it is widened to two
    standard errors about their mean, weighed by precision. Sides that contradict each
    other are left alone.
    """
    variances = forward.stderr**2 + reverse.stderr**2
    share = jnp.where(variances > 0, forward.stderr**2 / variances, 0.5)
    mean = forward.log_z + share * (reverse.log_z - forward.log_z)
    reach = 2 * jnp.sqrt(share) * reverse.stderr
    agree = upper >= lower
    return (
        jnp.where(agree, jnp.fmin(lower, mean - reach), lower),
        jnp.where(agree, jnp.fmax(upper, mean + reach), upper),
    )


def _is_healthy(annealed: Annealed) -> Array:
    return annealed.ess >= max(FEW, HEALTHY * len(annealed.log_weights))


def _draws(x: State) -> Data:
    if not holds(is_finite, x):
        raise ValueError(
            "x must be draws of the target, got NaN or infinity: ask "
            "diagnostics.summary what the chains that made them did"
        )
    data = as_data(x)
    if data.weights is not None or data.mask is not None:
        raise ValueError("x must be plain draws of the target, without weights or mask")
    return data
