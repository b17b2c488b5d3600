"""Check of a fitted model: Markov chains against the data.

Chains start at rows of the data. If the model is right, the data are draws from it, and
chains remain distributed like the data. The means of two kinds of statistics f are
compared, entry by entry,

    z = (<f>_chains - <f>_data) / stderr,
    stderr^2 = var f / rows + (variance of the chains' means) / chains,

where var f is the larger of the variances of f over the data and along the chains:
phi = dE/dparams, and statistics psi that were not fitted. A fit moves the means of phi,
and with them those of psi, so that psi is replaced by its residual psi - B phi of a
regression on phi, with variance Var(psi) - Cov(psi, phi) F^-1 Cov(phi, psi). To first
order, the error of the parameters cancels in its mean, on fitted and on held-out rows.

The threshold of the largest |z| is the two-sided quantile of Student's t at
`false_alarms` divided by the number of means (Bonferroni). Further chains start at far
states. The fraction of them that ends far from all rows is reported, but does not
decide: chains may be trapped in a mode of negligible probability.

Reference: Besag and Clifford, Biometrika 76, 633 (1989), for chains that start at data.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc

from probjax.checks import check_count, check_interface, check_key, is_concrete
from probjax.data.rows import as_data, num_rows, refuse_mask
from probjax.fitting.check_statistics import (
    Moments,
    compare_means,
    data_moments,
    default_statistic,
    draw_moments,
    far_share,
    far_states,
    state_kind,
)
from probjax.interfaces import Sampler
from probjax.potential import check_energy
from probjax.runs.driver import driver
from probjax.samplers import HMC, HeatBath, sample, tune
from probjax.states import num_sites
from probjax.trees import floating
from probjax.types import (
    Array,
    Data,
    Energy,
    Float,
    Params,
    PRNGKeyArray,
    PyTree,
    State,
)

NUM_DRAWS = 20
"""Number of draws of each chain in either half of its steps."""
MAX_ROWS = 4096
"""Largest number of rows, drawn by their weights, that distances are measured to."""


class FitCheck(NamedTuple):
    """Comparison of a fitted model with data, by `check_fit`.

    >>> options = dict(num_fitted=2, num_params=2, threshold=3.0, observed=1.0)
    >>> options |= dict(expected=1.1, early=1.0, far=float("nan"), kind="bits")
    >>> z = np.array([0.5, -1.0])
    >>> FitCheck(z=z, early_z=z, **options).passed
    True
    >>> FitCheck(z=5 * z, early_z=z, **options).describe().split(",")[0]
    'the model differs from the data: 1 of 2 means by more than 3.0 standard errors'
    """

    z: Float[np.ndarray, " mean"]
    """Differences of means between the second half of the chains and the data, in
    standard errors: first those of dE/dparams, then those of the statistics."""
    early_z: Float[np.ndarray, " mean"]
    """The same for the first half of the chains."""
    num_fitted: int
    """Number of entries of `z` that belong to dE/dparams."""
    num_params: int
    """Number of parameters; above `num_fitted`, a random subset was compared."""
    threshold: float
    """Largest |z| that passes."""
    observed: float
    """Mean over the data of the sum of a state's entries: for bits, the activity."""
    expected: float
    """The same mean in the second half of the chains."""
    early: float
    """The same mean in the first half of the chains."""
    far: float
    """Fraction of chains from far states that ended farther from the nearest row than
    99 % of rows are from other rows; NaN if no such chains were run."""
    kind: str
    """Kind of states: "bits", "letters" or "reals"."""

    @property
    def largest(self) -> float:
        """Largest |z|; infinite if a mean is not a number."""
        z = np.abs(np.asarray(self.z))
        return float(z.max()) if np.isfinite(z).all() else float("inf")

    @property
    def passed(self) -> bool:
        """Whether no mean differs by more than the threshold."""
        return self.largest <= self.threshold

    def describe(self) -> str:
        """Describe the verdict in words."""
        parts = [self._agreement() if self.passed else self._difference()]
        if self.num_fitted < self.num_params:
            parts.append(
                f"a random subset of {self.num_fitted:,} of {self.num_params:,} "
                "parameters was compared"
            )
        if self.far > 0:
            parts.append(
                f"{self.far:.0%} of the chains from far states ended far from all "
                "rows: the model has modes there, whose probability these chains do "
                "not measure"
            )
        return "; ".join(parts)

    def _agreement(self):
        return (
            "no difference between model and data was found: the largest |z| of "
            f"{len(self.z):,} means is {self.largest:.1f}, below {self.threshold:.1f}"
        )

    def _difference(self):
        beyond = int(np.sum(~(np.abs(np.asarray(self.z)) <= self.threshold)))
        found = (
            f"the model differs from the data: {beyond:,} of {len(self.z):,} means by "
            f"more than {self.threshold:.1f} standard errors, the largest by "
            f"{self.largest:.1f}"
        )
        if self.kind != "bits" or not self.observed > 0:
            return found
        ratio = self.expected / self.observed
        if 0.8 < ratio < 1.25:
            return found
        often = f"{ratio:.2g} times as active as the data"
        return (
            f"the model is {often}: chains started at the data reach states that the "
            f"data do not have (mean activity {self.observed:.3g} in the data, "
            f"{self.early:.3g} in the first and {self.expected:.3g} in the second half "
            "of the chains); learn it by MaximumLikelihood, with a sampler if its states "
            f"are too many to add up; {found}"
        )


@driver
def check_fit(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    data: PyTree | Data,
    *,
    sampler: Sampler | None = None,
    statistic: Callable[[State], Array] | None = None,
    num_chains: int = 400,
    num_steps: int = 2000,
    false_alarms: float = 0.02,
) -> FitCheck:
    """Compare a fitted model with data by Markov chains that start at the data.

    A correct model that was fitted to independent rows fails with a probability of
    about `false_alarms`. A model that passes may still have modes that the chains did
    not reach.

    Args:
        data: rows that were fitted, or held-out rows. Weights are counts.
        sampler: None for `HeatBath` for bits and letters, and for a tuned `HMC` for
            reals. States of whole numbers count as letters.
        statistic: function of one state that returns an array, defined at module level
            like an energy. None for bits: whether the number of ones is above some
            quantiles of the data; None for other states: none.
        num_chains: number of chains from rows; a quarter as many start at far states.
        num_steps: number of steps of each chain. Half of them precede the draws that
            decide, because chains may leave the data slowly.
        false_alarms: probability with which a correct model may fail.

    >>> from probjax import ising
    >>> x = np.random.default_rng(0).integers(0, 2, (500, 3))
    >>> args = jax.random.key(0), ising.energy
    >>> check_fit(*args, ising.from_matrix(np.zeros((3, 3))), x, num_steps=40).passed
    True
    >>> active = ising.from_matrix(-9 * np.eye(3))
    >>> check_fit(*args, active, x, num_steps=40).describe().split(":")[0]
    'the model is 1.9 times as active as the data'
    """
    _check_arguments(key, num_chains, num_steps, false_alarms)
    data = as_data(data)
    refuse_mask(data, "check_fit requires complete rows")
    if not is_concrete((params, data)):
        raise ValueError("check_fit must not be called inside jit or vmap")
    data = data._replace(x=jax.tree.map(floating, data.x))
    check_energy(energy, params, data.x)
    kind, num_states = state_kind(data.x)
    row_key, tune_key, chain_key, far_key, subset_key = jax.random.split(key, 5)
    weights = data.weights
    weights = jnp.ones(num_rows(data)) if weights is None else weights
    share = weights / weights.sum()
    starts, rows = _drawn_rows(row_key, data.x, share, num_chains)
    if sampler is None:
        chosen = _default_sampler(tune_key, energy, params, starts, kind, num_states)
    else:
        check_interface("sampler", sampler, Sampler, "HeatBath() or HMC(0.1)")
        chosen = sampler
    half = num_steps // 2
    run = partial(sample, sampler=chosen, thin=max(half // NUM_DRAWS, 1))
    draws = run(chain_key, energy, params, starts, num_draws=2 * min(NUM_DRAWS, half))
    statistic = statistic or default_statistic(kind, data.x, share)
    moments = partial(_moments, subset_key, energy, params, statistic)
    observed = moments(data_moments, data.x, weights)
    early, late = (moments(draw_moments, part) for part in _halves(draws.x))
    far = float("nan")
    if kind != "reals":
        x = far_states(far_key, starts, num_states, max(num_chains // 4, 1))
        last = run(far_key, energy, params, x, num_draws=min(NUM_DRAWS, half))
        far = far_share(jax.tree.map(lambda leaf: leaf[:, -1], last.x), rows)
    z, num_fitted, num_params = compare_means(observed, late)
    return FitCheck(
        z=z,
        early_z=compare_means(observed, early)[0],
        num_fitted=num_fitted,
        num_params=num_params,
        threshold=_student_quantile(false_alarms / max(len(z), 1), num_chains - 1),
        observed=observed.activity,
        expected=late.activity,
        early=early.activity,
        far=far,
        kind=kind,
    )


def _check_arguments(key, num_chains, num_steps, false_alarms):
    check_key(key)
    check_count("num_chains", num_chains, least=20)
    check_count("num_steps", num_steps, least=4)
    if not 0 < false_alarms < 1:
        raise ValueError(f"false_alarms must be between 0 and 1, got {false_alarms}")


def _drawn_rows(key, x, share, num_chains):
    """Draw rows by their weights: starts of the chains, and rows for distances."""
    chosen = jax.random.choice(key, len(share), (num_chains + MAX_ROWS,), p=share)
    drawn = jax.tree.map(lambda leaf: leaf[chosen], x)
    starts = jax.tree.map(lambda leaf: leaf[:num_chains], drawn)
    return starts, jax.tree.map(lambda leaf: leaf[num_chains:], drawn)


def _moments(key, energy, params, statistic, of, *args) -> Moments:
    return of(key, energy, params, statistic, *args)


def _halves(x):
    half = jax.tree.leaves(x)[0].shape[1] // 2
    first = jax.tree.map(lambda leaf: leaf[:, :half], x)
    return first, jax.tree.map(lambda leaf: leaf[:, half:], x)


def _default_sampler(key, energy, params, x, kind, num_states):
    if kind != "reals":
        return HeatBath(num_states)
    start = HMC(0.1 / num_sites(x) ** 0.25)
    return tune(key, energy, params, x, sampler=start, num_steps=320).sampler


def _student_quantile(chance, freedom):
    """Return t such that |T| > t with probability `chance`, by bisection."""
    low, high = 0.0, 1e3
    for _ in range(60):
        t = (low + high) / 2
        tail = float(betainc(freedom / 2, 0.5, freedom / (freedom + t * t)))
        low, high = (t, high) if tail > chance else (low, t)
    return high
