"""Log-likelihoods of unnormalised models, with their uncertainty.

For an analysis model, p(x) = exp(-E(x)) / Z, all rows share one partition function:

    log p(x) = -E(x) - log Z.

An estimate of log Z that is biased low makes the likelihood too high, so use an
interval for log Z from both sides (`sandwich`). For a generative model each row has its
own partition function,

    log p(x) = log Z_x,    Z_x = integral of exp(-joint(x, a)) over a,

which is estimated with particles over the latents `a`: see `marginal_log_likelihood`.
There the same bias makes likelihoods too low: they are lower bounds on average.

Reference: thesis, "Log Likelihood of Analysis Models", "Log Likelihood of Generative
Models".
"""

import math
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.annealing.bounds import MIN_EFFECTIVE, Bracket
from probjax.annealing.estimate import Annealed
from probjax.checks import is_concrete, nan_means_unknown
from probjax.data.rows import as_data, refuse_inputs, refuse_mask
from probjax.devices import on_host
from probjax.runs.driver import driver
from probjax.types import Array, ArrayLike, Data, Energy, Float, Params, Scalar


class Estimate(NamedTuple):
    """Estimate of a mean over rows, in nats per row.

    >>> rows = jnp.array([-1.0, -3.0])
    >>> estimate = Estimate(-2.0, stderr=0.1, lower=-2.2, upper=-1.8, per_row=rows)
    >>> estimate._replace(row_stderr=1.0).describe()
    '-2 nats per row +- 0.1 (Monte Carlo) +- 1 (over rows), between -2.2 and -1.8'
    """

    value: Scalar
    """Weighted mean over rows; NaN if the bounds on log Z contradict each other."""
    stderr: Scalar
    """Monte Carlo standard error of `value`, for these rows."""
    lower: Scalar
    """Lower end of an interval for the true mean; NaN if there is no lower bound."""
    upper: Scalar
    """Upper end of an interval for the true mean; NaN if there is no upper bound."""
    per_row: Float[Array, " row"]
    """Estimate for each row."""
    weights: Float[Array, " row"] | None = None
    """Weight of each row; None for equal weights."""
    common: Scalar | float = 0.0
    """Part of `stderr` that is the same error in all rows, such as that of log Z."""
    ess: Float[Array, "..."] | float = math.nan
    """Effective number of particles, for each row or for the run that gave log Z."""
    row_stderr: Scalar | float = math.nan
    """Standard error of a mean over newly drawn rows, from the variance over rows.
    Weights count as numbers of rows."""

    @property
    def total_stderr(self) -> Scalar:
        """Standard error of `value` for newly drawn rows, Monte Carlo error included.

        Independent Monte Carlo errors of rows are part of the variance over rows; the
        error that all rows have in common is added.
        """
        return jnp.hypot(self.row_stderr, self.common)

    def describe(self) -> str:
        """Describe the estimate and its reliability."""
        return "; ".join(filter(None, (self._describe_value(), self._describe_ess())))

    def _describe_value(self):
        text = f"{float(self.value):.6g} nats per row"
        text += f" +- {float(self.stderr):.2g} (Monte Carlo)"
        if not np.isnan(self.row_stderr):
            text += f" +- {float(self.row_stderr):.2g} (over rows)"
        low, high = float(self.lower), float(self.upper)
        if low > high:
            return (
                "no value, because the bounds on log Z contradict each other: the "
                f"forward run gives at most {high:.6g} nats per row, the reverse run "
                f"at least {low:.6g}; the reverse run probably did not start from "
                "draws of the target"
            )
        if low == low and high == high:
            return f"{text}, between {low:.6g} and {high:.6g}"
        if low == low:
            return f"{text}, a stochastic lower bound: at least {low:.6g}"
        return (
            f"{text}, from one side only: a log Z that is too low makes it too high; "
            "try sandwich for an interval"
        )

    def _describe_ess(self):
        ess = on_host(self.ess)
        num_few = int(np.sum(ess < MIN_EFFECTIVE))
        if not num_few:
            return ""
        if ess.ndim:
            return (
                f"{num_few:,} of {len(ess):,} rows are unreliable: they have fewer "
                f"than {MIN_EFFECTIVE} effective particles; try a larger num_steps"
            )
        if np.isnan(self.upper):
            return (
                f"log Z is unreliable: only {float(ess):.2g} effective particles; try "
                "a larger num_steps"
            )
        return (
            f"the value is unreliable, because one run has only {float(ess):.2g} "
            "effective particles; use the interval"
        )


@driver
def log_likelihood(
    energy: Energy, params: Params, data: ArrayLike | Data, annealed: Annealed | Bracket
) -> Estimate:
    """Compute the mean of log p(x) over rows from an estimate of log Z.

    Args:
        data: complete rows, with weights as `Data`.
        annealed: result of `ais` or `sandwich` for the same energy and params.

    >>> from probjax import Bernoulli, HeatBath, ais, ising
    >>> flat = ising.from_matrix(jnp.zeros((2, 2)))
    >>> options = dict(sampler=HeatBath(), num_particles=100, num_steps=20, pilot=None)
    >>> annealed = ais(jax.random.key(0), ising.energy, flat, Bernoulli(2), **options)
    >>> estimate = log_likelihood(ising.energy, flat, jnp.eye(2), annealed)
    >>> round(float(estimate.value), 4)  # -log 4
    -1.3863
    """
    if not isinstance(annealed, Annealed | Bracket):
        raise ValueError(
            "annealed must be the result of ais(...) or sandwich(...), got "
            f"{annealed!r}"
        )
    data = as_data(data)
    refuse_mask(data, "log p is computed for complete rows only")
    refuse_inputs(data.x, "rows with different inputs have different log Z")
    two_sided = isinstance(annealed, Bracket)
    runs = (annealed.forward, annealed.reverse) if two_sided else (annealed,)
    for run in runs:
        _check_finished(run)
    stderr = annealed.stderr
    ends = (annealed.upper, annealed.lower) if two_sided else (np.nan, np.nan)
    with nan_means_unknown():
        per_row, numbers = _given_log_z(
            energy, params, data, annealed.log_z, ends, [run.ess for run in runs]
        )
    value, lower, upper, ess, row_stderr = numbers
    return Estimate(
        value, stderr, lower, upper, per_row, data.weights, stderr, ess, row_stderr
    )


@partial(jax.jit, static_argnums=0)
def _given_log_z(energy, params, data, log_z, ends, ess):
    minus_energy = -jax.vmap(energy, (None, 0))(params, data.x)
    mean = jnp.average(minus_energy, weights=data.weights)
    lower, upper = (mean - end for end in ends)
    row_stderr = stderr_over_rows(minus_energy, data.weights)
    numbers = (mean - log_z, lower, upper, reduce(jnp.minimum, ess), row_stderr)
    return minus_energy - log_z, numbers


@nan_means_unknown()
def compare(first: Estimate, second: Estimate) -> Estimate:
    """Estimate the mean difference of log p(x) between two models, row by row.

    Both estimates must be for the same rows in the same order. With d_i the difference
    for row i,

        value = mean d_i,    total_stderr^2 = var(d_i) / n + common_1^2 + common_2^2,

    where n is the number of rows, or the sum of their weights. Variation over rows that
    both models share cancels. Independent errors of the rows are part of var(d_i); an
    error that all rows have in common is not, and is added. The bounds are for these
    rows, and NaN unless both estimates have them.

    >>> one = Estimate(-1.5, 0.0, -1.5, -1.5, per_row=jnp.array([-1.0, -2.0]))
    >>> other = Estimate(-3.0, 0.0, -3.0, -3.0, per_row=jnp.array([-2.0, -4.0]))
    >>> better = compare(one, other)
    >>> float(better.value), round(float(better.total_stderr), 4)
    (1.5, 0.5)
    """
    if len(first.per_row) != len(second.per_row):
        raise ValueError(
            "first and second must be estimates for the same rows, got "
            f"{len(first.per_row)} and {len(second.per_row)} rows"
        )
    weights = first.weights
    both = [on_host(e.weights) for e in (first, second) if e.weights is not None]
    if len(both) == 1 or (both and not np.array_equal(both[0], both[1])):
        raise ValueError(
            "first and second must be estimates for rows with the same weights, got "
            + (
                "different weights"
                if len(both) == 2
                else "weights for one of them only"
            )
        )
    differences = first.per_row - second.per_row
    shares = normalised_weights(weights, len(differences))
    common = jnp.hypot(first.common, second.common)
    return Estimate(
        value=jnp.sum(shares * differences),
        stderr=jnp.hypot(first.stderr, second.stderr),
        lower=first.lower - second.upper,
        upper=first.upper - second.lower,
        per_row=differences,
        weights=weights,
        common=common,
        ess=jnp.fmin(first.ess, second.ess),
        row_stderr=stderr_over_rows(differences, weights),
    )


@nan_means_unknown()
def stderr_over_rows(
    values: Float[Array, " row"], weights: Float[Array, " row"] | None
) -> Scalar:
    """Return the standard error of a mean over rows; weights are numbers of rows.

    NaN for a single row, and for weights that sum to 1 or less.
    """
    shares = normalised_weights(weights, len(values))
    count = len(values) if weights is None else weights.sum()
    variance = jnp.sum(shares * (values - jnp.sum(shares * values)) ** 2)
    many = count > 1
    return jnp.sqrt(jnp.where(many, variance / jnp.where(many, count - 1, 1), jnp.nan))


def normalised_weights(
    weights: Float[Array, " row"] | None, count: int
) -> Float[Array, " row"]:
    """Return weights of `count` rows that sum to 1, equal ones for None."""
    weights = jnp.ones(count) if weights is None else weights
    return weights / weights.sum()


def _check_finished(annealed):
    if not isinstance(annealed, Annealed) or not is_concrete(annealed.particles.step):
        return
    step, length = int(annealed.particles.step), int(annealed.schedule.length)
    if step < length:
        raise ValueError(
            "annealed must be a finished run, got one that stopped at distribution "
            f"{step} of {length}; try again without the callback that stopped it"
        )
