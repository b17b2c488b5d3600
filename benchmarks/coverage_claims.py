"""Claims of standard errors and intervals, and how often they held in repeated runs.

A trial is one run with its own key: it returns an estimate, what the library says of
its error, and the truth. Over many trials an interval of two standard errors must cover
the truth as often as it says, and the root mean square of the claimed errors must be
that of the observed ones.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from scipy.stats import binom, t

from probjax.random import split_array
from probjax.types import Array, ArrayLike, PRNGKeyArray

# Chance that a claim that holds is found not to hold, of which there are about 50.
CHANCE = 1e-4
LEAST_RATIO, MOST_RATIO = 0.8, 1.25


class Claim(NamedTuple):
    """An estimate with its error, of any shape; of all runs, a leading axis of runs."""

    value: Array
    stderr: Array
    lower: Array
    upper: Array
    """Ends of the interval."""
    truth: Array
    """NaN if it is not known, for the mean over all runs."""


class Kind(NamedTuple):
    """What is required of a claim.

    Args:
        holds: whether the interval covers as often as it says.
        is_exact: whether the standard error is that of the runs; if not, it includes a
            bias or is one-sided, and only coverage is required.
        dof: degrees of freedom of the standard error, such as chains less one.
    """

    holds: bool = True
    is_exact: bool = True
    dof: float = np.inf

    @property
    def nominal(self) -> float:
        """Chance that two standard errors to either side cover the truth."""
        return float(1 - 2 * t.sf(2, self.dof))


EXACT = Kind()
AT_LEAST = Kind(is_exact=False)
TOO_SMALL = Kind(holds=False, is_exact=False)


class Case(NamedTuple):
    """Trials and what they claim.

    Args:
        trial: one run, which returns its claims in the order of `claims`.
        claims: kinds of the claims, by name.
        compiled: whether the trial can be compiled; otherwise it runs in a loop,
            half as often.
    """

    trial: Callable[[PRNGKeyArray], list[Claim]]
    claims: dict[str, Kind]
    compiled: bool = True


class Verdict(NamedTuple):
    """What was found of one claim."""

    claim: str
    kind: Kind
    num_runs: int
    coverage: float
    """Share of intervals that contain the truth, over runs and entries."""
    ratio: float
    """Claimed over observed error, root mean squares over runs; geometric mean over
    entries."""
    smallest: float
    """The smallest standard error of all runs, without its sign."""

    @property
    def least_coverage(self) -> float:
        """The lowest coverage of as many runs that is not below the nominal one.

        Entries of one run are correlated, so they are not counted.
        """
        return (
            float(binom.ppf(CHANCE, self.num_runs, self.kind.nominal)) / self.num_runs
        )

    @property
    def covers(self) -> bool:
        """Whether the coverage is not below the nominal one."""
        return self.coverage >= self.least_coverage

    @property
    def is_as_said(self) -> bool:
        """Whether the claim is of its kind."""
        fits = LEAST_RATIO < self.ratio < MOST_RATIO or not self.kind.is_exact
        return self.smallest > 0 and self.covers == self.kind.holds and fits


def by_stderr(value: Array, stderr: Array, truth: ArrayLike = np.nan) -> Claim:
    """Claim that two standard errors to either side contain the truth."""
    lower, upper = value - 2 * stderr, value + 2 * stderr
    return Claim(value, stderr, lower, upper, jnp.broadcast_to(truth, value.shape))


def by_ends(value: Array, lower: Array, upper: Array, truth: ArrayLike) -> Claim:
    """Claim that the truth is between two ends; an upper one of NaN is no bound."""
    stderr = jnp.where(jnp.isnan(upper), (value - lower) / 2, (upper - lower) / 4)
    upper = jnp.where(jnp.isnan(upper), jnp.inf, upper)
    return Claim(value, stderr, lower, upper, jnp.broadcast_to(truth, value.shape))


def verdicts(case: Case, key: PRNGKeyArray, num_runs: int) -> list[Verdict]:
    """Run the trials of a case, and judge each of its claims."""
    keys = split_array(key, num_runs)
    if case.compiled:
        # Arrays of a Partial are arguments of the program, which is compiled once.
        trial = case.trial
        trial = trial if isinstance(trial, Partial) else Partial(trial)
        found = _of_keys(trial, keys)
    else:
        # In a loop, half as many.
        runs = [case.trial(each) for each in keys[::2]]
        found = jax.tree.map(lambda *leaves: np.stack(leaves), *runs)
    pairs = zip(case.claims.items(), found, strict=True)
    return [judged(name, kind, claim) for (name, kind), claim in pairs]


@jax.jit
def _of_keys(trial, keys):
    return jax.vmap(trial)(keys)


def judged(name: str, kind: Kind, claim: Claim) -> Verdict:
    """Compare what was claimed with the truth."""
    value, stderr, lower, upper, truth = (
        np.asarray(leaf, float).reshape(len(leaf), -1) for leaf in claim
    )
    truth = np.where(np.isnan(truth), np.nanmean(value, 0), truth)
    # Where there is no interval, because two bounds contradict, nothing is covered.
    covered = (lower <= truth) & (truth <= upper)
    claimed, observed = (
        np.sqrt(np.nanmean(np.square(each), 0)) for each in (stderr, value - truth)
    )
    return Verdict(
        name,
        kind,
        num_runs=len(truth),
        coverage=float(covered.mean()),
        ratio=float(np.exp(np.mean(np.log(claimed / observed)))),
        smallest=float(np.nanmin(np.abs(stderr))),
    )
