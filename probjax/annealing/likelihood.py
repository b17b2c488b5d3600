"""Log-likelihoods of models that are not normalised, with what they are uncertain by.

Of an analysis model, p(x) = exp(-E(x)) / Z, one partition function serves all rows:

    log p(x) = -E(x) - log Z.

An estimate of log Z that is biased low makes a likelihood that is too high: an interval
from both sides (`sandwich`) belongs to it. Of a generative model, each row has its own,

    log p(x) = log Z_x,    Z_x = integral of exp(-joint(x, a)) over a,

by particles over `a`: see `marginal_log_likelihood`. There the same bias makes
likelihoods too low: they are bounds from below, on average.

Reference: thesis, "Log Likelihood of Analysis Models", "Log Likelihood of Generative
Models".
"""

import math
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.annealing.bounds import FEW, Bracket
from probjax.annealing.estimate import Annealed
from probjax.checks import is_concrete
from probjax.data.rows import as_data, refuse_mask
from probjax.devices import on_host
from probjax.runs.driver import driver
from probjax.types import Array, ArrayLike, Data, Energy, Float, Params, Scalar


class Estimate(NamedTuple):
    """A mean over rows, in nats per row.

    >>> rows = jnp.array([-1.0, -3.0])
    >>> found = Estimate(-2.0, stderr=0.1, lower=-2.2, upper=-1.8, per_row=rows)
    >>> found.describe()
    '-2 +- 0.1 nats per row, between -2.2 and -1.8'
    """

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
    weights: Float[Array, " row"] | None = None
    """How much each counts."""
    common: Scalar | float = 0.0
    """What of `stderr` is the same error in all rows, as that of one log Z."""
    ess: Float[Array, "..."] | float = math.nan
    """Effective particles of each row; where one log Z serves all, of its run."""

    def describe(self) -> str:
        """In words: the estimate, and whether it is to be trusted."""
        return "; ".join(filter(None, (self._said(), self._doubt())))

    def _said(self):
        said = f"{float(self.value):.6g} +- {float(self.stderr):.2g} nats per row"
        low, high = float(self.lower), float(self.upper)
        if low > high:
            return (
                f"{float(self.value):.6g} nats per row, but the sides of log Z "
                f"contradict each other: at most {high:.6g} from the base, at least "
                f"{low:.6g} from draws, which are none of the target"
            )
        if low == low and high == high:
            return f"{said}, between {low:.6g} and {high:.6g}"
        if low == low:
            return f"{said}, a bound from below: no less than {low:.6g}"
        return f"{said}, from one side only: sandwich tells how far it may be off"

    def _doubt(self):
        ess = on_host(self.ess)
        num_few = int(np.sum(ess < FEW))
        if not num_few:
            return ""
        if ess.ndim:
            return (
                f"{num_few:,} of {len(ess):,} rows have fewer than {FEW} effective "
                "particles and are not to be trusted: take more distributions"
            )
        if np.isnan(self.upper):
            return (
                f"log Z is not to be trusted, by {float(ess):.2g} effective particles: "
                "take more distributions"
            )
        return (
            f"trust the interval alone, as one of its sides has {float(ess):.2g} "
            "effective particles"
        )


@driver
def log_likelihood(
    energy: Energy, params: Params, data: ArrayLike | Data, annealed: Annealed | Bracket
) -> Estimate:
    """The mean of log p(x) over rows, by a partition function that was estimated.

    Args:
        annealed: of the same energy and params: what `ais` or `sandwich` gave.

    >>> from probjax import Bernoulli, HeatBath, ais, ising
    >>> flat = ising.from_matrix(jnp.zeros((2, 2)))
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> annealed = ais(jax.random.key(0), ising.energy, flat, Bernoulli(2), **options)
    >>> found = log_likelihood(ising.energy, flat, jnp.eye(2), annealed)
    >>> round(float(found.value), 4)  # -log 4
    -1.3863
    """
    if not isinstance(annealed, Annealed | Bracket):
        raise ValueError(
            "annealed must be the result of ais(...) or sandwich(...), got "
            f"{annealed!r}"
        )
    data = as_data(data)
    refuse_mask(data, "log p is of complete rows")
    two_sided = isinstance(annealed, Bracket)
    sides = (annealed.forward, annealed.reverse) if two_sided else (annealed,)
    for side in sides:
        _check_finished(side)
    stderr = annealed.stderr
    ends = (annealed.upper, annealed.lower) if two_sided else (np.nan, np.nan)
    per_row, numbers = _given_log_z(
        energy, params, data, annealed.log_z, ends, [side.ess for side in sides]
    )
    value, lower, upper, ess = numbers
    return Estimate(value, stderr, lower, upper, per_row, data.weights, stderr, ess)


@partial(jax.jit, static_argnums=0)
def _given_log_z(energy, params, data, log_z, ends, ess):
    minus_energy = -jax.vmap(energy, (None, 0))(params, data.x)
    mean = jnp.average(minus_energy, weights=data.weights)
    lower, upper = (mean - end for end in ends)
    numbers = (mean - log_z, lower, upper, reduce(jnp.minimum, ess))
    return minus_energy - log_z, numbers


def compare(first: Estimate, second: Estimate) -> Estimate:
    """How much more likely the rows are under the first model, row by row.

    Both must be of the same rows in the same order. With d_i the difference of row i,

        value = mean d_i,    stderr^2 = var(d_i) / n + common_1^2 + common_2^2,

    the error of a mean over rows drawn anew. What varies from row to row and is the
    same under both models is not in it. What each row is estimated wrong by on its own
    is, as it scatters the d_i; only an error that all rows have in common does not, and
    is added. Sides are bounded for these rows, where both models' are.

    >>> one = Estimate(-1.5, 0.0, -1.5, -1.5, per_row=jnp.array([-1.0, -2.0]))
    >>> other = Estimate(-3.0, 0.0, -3.0, -3.0, per_row=jnp.array([-2.0, -4.0]))
    >>> better = compare(one, other)
    >>> float(better.value), round(float(better.stderr), 4)
    (1.5, 0.5)
    """
    if len(first.per_row) != len(second.per_row):
        raise ValueError(
            f"both must be of the same rows, got {len(first.per_row)} and "
            f"{len(second.per_row)}"
        )
    weights = first.weights
    both = [on_host(e.weights) for e in (first, second) if e.weights is not None]
    if len(both) == 1 or (both and not np.array_equal(both[0], both[1])):
        raise ValueError("both must be of rows with the same weights")
    apart = first.per_row - second.per_row
    shares = shares_of(weights, len(apart))
    value = jnp.sum(shares * apart)
    # Of n equal rows this is the usual variance of a mean, n - 1 and all.
    grown = 1 / (1 - jnp.sum(shares**2))
    drawn = jnp.sum(shares**2 * (apart - value) ** 2) * grown
    common = jnp.hypot(first.common, second.common)
    return Estimate(
        value=value,
        stderr=jnp.sqrt(drawn + common**2),
        lower=first.lower - second.upper,
        upper=first.upper - second.lower,
        per_row=apart,
        weights=weights,
        common=common,
        ess=jnp.fmin(first.ess, second.ess),
    )


def shares_of(weights: Float[Array, " row"] | None, count: int) -> Float[Array, " row"]:
    """What each of `count` rows counts, of 1 in all."""
    weights = jnp.ones(count) if weights is None else weights
    return weights / weights.sum()


def _check_finished(annealed):
    if not isinstance(annealed, Annealed) or not is_concrete(annealed.particles.step):
        return
    step, last = int(annealed.particles.step), int(annealed.plan.length)
    if step < last:
        raise ValueError(
            f"annealed ended at {step} of {last} distributions: run it to its end"
        )
