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
states. The fraction of them that ends far from all rows does not decide, as chains may
be trapped in a mode of negligible probability. If there are any, states are annealed to
the model, and their weights measure the probability of such modes, see
`probjax.fitting.check_modes`.

Reference: Besag and Clifford, Biometrika 76, 633 (1989), for chains that start at data.
"""

from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial

from probjax.checks import check_count, check_interface, check_key, is_concrete
from probjax.data.rows import as_data, num_rows, refuse_mask
from probjax.energies import check_energy
from probjax.fitting.check_modes import UNKNOWN, FarModes, far_modes
from probjax.fitting.check_statistics import (
    Values,
    are_far,
    compare_means,
    compared_entries,
    data_moments,
    default_statistic,
    draw_moments,
    entry_name,
    far_states,
    flat,
    state_kind,
)
from probjax.interfaces import Sampler
from probjax.random import numpy_generator, split
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
    map_states,
    split_inputs,
)

NUM_DRAWS = 20
"""Number of draws of each chain in either half of its steps."""
EARLY, CLEAR = 8, 1.5
"""Chains end after 1 / EARLY of their steps if a |z| is then CLEAR times the threshold.
"""
MAX_ROWS = 2048
"""Largest number of rows that distances are measured to. If a subset of the parameters
is compared, because they are many, it is also the number of rows that are compared."""
MOST_FAR = 0.05
"""Share of chains from far states that may end far from all rows, where 1 % of the rows
are, before the model is said to have modes there."""
FEWER = 5
"""One draw of this many is compared if a subset of the parameters is compared."""


class FitCheck(NamedTuple):
    """Comparison of a fitted model with data, by `check_fit`.

    >>> options = dict(num_fitted=2, num_params=2, threshold=3.0, num_steps=2000)
    >>> options |= dict(worst="params.bias[1]", worst_means=(0.2, 0.1), kind="bits")
    >>> options |= dict(observed=1.0, expected=1.1, early=1.0, far=float("nan"))
    >>> z = np.array([0.5, -1.0])
    >>> FitCheck(z=z, **options).passed
    True
    >>> FitCheck(z=5 * z, **options).describe().split(" by")[0]
    'the model differs from the data: 1 of 2 means'
    """

    z: Float[np.ndarray, " mean"]
    """Differences of means between the second half of the chains and the data, in
    standard errors: first those of dE/dparams, then those of the statistics."""
    num_fitted: int
    """Number of entries of `z` that belong to dE/dparams."""
    num_params: int
    """Number of parameters; above `num_fitted`, a random subset was compared."""
    threshold: float
    """Largest |z| that passes."""
    worst: str
    """Name of the mean with the largest |z|, such as "params.bias[3]"."""
    worst_means: tuple[float, float]
    """That mean in the data and in the second half of the chains."""
    num_steps: int
    """Number of steps of the chains, which end early if the model clearly differs."""
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
    modes: FarModes = UNKNOWN
    """Probability of states far from all rows; it is measured if chains from far states
    end there."""

    @property
    def largest(self) -> float:
        """Largest |z|; infinite if a mean is not a number."""
        z = np.abs(np.asarray(self.z))
        return float(z.max()) if np.isfinite(z).all() else float("inf")

    @property
    def passed(self) -> bool:
        """Whether no mean differs by more than the threshold, and no far mode is known
        to be probable.
        """
        return self.largest <= self.threshold and not self.modes.is_probable

    def describe(self) -> str:
        """Describe the verdict in words."""
        agrees = self.largest <= self.threshold
        parts = [self._agreement() if agrees else self._difference()]
        if self.modes.is_probable:
            parts.insert(0, self._far_mode())
        if self.num_fitted < self.num_params:
            parts.append(
                f"a random subset of {self.num_fitted:,} of {self.num_params:,} "
                "parameters was compared"
            )
        if self.far > MOST_FAR and not self.modes.is_probable:
            parts.append(
                f"{self.far:.0%} of the chains from far states ended far from all "
                f"rows: the model has modes there, {self.modes.describe()}"
            )
        return "; ".join(parts)

    def __repr__(self) -> str:
        return f"FitCheck: {self.describe()}"

    def _far_mode(self):
        """Describe a probable mode that chains from the data do not reach."""
        return (
            "the model has a mode far from all rows, with a probability of about "
            f"{self.modes.probability:.2g}, which chains from the data do not reach; "
            "likelihoods that do not include it are too high; learn the model by "
            "MaximumLikelihood with a sampler, with more steps if it was learned so"
        )

    def _agreement(self):
        return (
            f"no difference between model and data was found in {self.num_steps:,} "
            f"steps from the data: the largest |z| of {len(self.z):,} means is "
            f"{self.largest:.1f}, below {self.threshold:.1f}"
        )

    def _difference(self):
        beyond = int(np.sum(~(np.abs(np.asarray(self.z)) <= self.threshold)))
        count = f"{beyond:,} of {len(self.z):,} means"
        errors = f"more than {self.threshold:.1f} standard errors"
        ratio = self.expected / self.observed if self.observed > 0 else 1.0
        if self.kind != "bits" or 0.8 < ratio < 1.25:
            name = f"dE/d{self.worst}" if "params" in self.worst else self.worst
            data, model = self.worst_means
            return (
                f"the model differs from the data: {count} by {errors}; the largest "
                f"difference is {self.largest:.1f} standard errors, where the mean of "
                f"{name} is {data:.3g} in the data and {model:.3g} in the model"
            )
        return (
            f"the model is {ratio:.2g} times as active as the data: chains started at "
            "the data reach states that the data do not have (mean activity "
            f"{self.observed:.3g} in the data, {self.early:.3g} in the first and "
            f"{self.expected:.3g} in the second half of the chains); learn it by "
            "MaximumLikelihood, with a sampler if its states are too many to add up; "
            f"{count} differ by {errors}"
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
    data = data._replace(x=map_states(partial(jax.tree.map, floating), data.x))
    check_energy(energy, params, data.x)
    kind, num_states = state_kind(data.x)
    row_key, tune_key, chain_key, mode_key = split(key, 4)
    random = numpy_generator(row_key)
    x, weights = _on_host(data)
    share = weights / weights.sum()
    first = random.choice(len(share), num_chains, p=share)
    starts = jax.tree.map(lambda leaf: leaf[first], x)
    rows = _sampled_rows(random, x, weights)
    if sampler is None:
        chosen = _default_sampler(tune_key, energy, params, starts, kind, num_states)
    else:
        chosen = sampler
    check_interface("sampler", chosen, Sampler, "HeatBath() or HMC(0.1)")
    if kind != "reals":
        count = max(num_chains // 4, 1)
        far = far_states(random, starts, num_states, count, full=count // 2)
        starts = jax.tree.map(lambda *parts: np.concatenate(parts), starts, far)
    if statistic is None:
        statistic = default_statistic(kind, x, share)
    else:
        statistic = Partial(statistic)
    values = Values(energy, params, statistic, compared_entries(random, params))
    observed = _observed(random, values, x, weights)
    threshold = _student_quantile(
        false_alarms / max(len(observed.mean), 1), num_chains - 1
    )
    compare = partial(_compare, values, observed, rows, kind, num_chains, threshold)
    half = num_steps // 2
    thin = max(half // NUM_DRAWS, 1)
    num_draws = 2 * min(NUM_DRAWS, half)
    run = partial(
        sample, chain_key, energy, params, sampler=chosen, num_draws=num_draws
    )
    if short := thin // EARLY:
        starts = run(starts, thin=short)
        found = compare(starts)
        if found.largest > CLEAR * threshold:
            return found
    found = compare(run(starts, thin=thin - short))
    if not found.far > MOST_FAR:
        return found
    modes = far_modes(
        mode_key,
        energy,
        params,
        chosen,
        far_states(random, rows[0], num_states, max(num_chains // 2, 1), full=0),
        rows,
        num_steps=max(num_steps // 4, 1),
    )
    return found._replace(modes=modes)


def _check_arguments(key, num_chains, num_steps, false_alarms):
    check_key(key)
    check_count("num_chains", num_chains, least=20)
    check_count("num_steps", num_steps, least=4)
    if not 0 < false_alarms < 1:
        raise ValueError(f"false_alarms must be between 0 and 1, got {false_alarms}")


def _on_host(data):
    """Return rows and their weights as arrays of NumPy."""
    weights = data.weights
    weights = np.ones(num_rows(data)) if weights is None else np.asarray(weights, float)
    return jax.tree.map(np.asarray, data.x), weights


def _sampled_rows(random, x, weights):
    """Return a random subset of the rows, with their weights."""
    (kept,) = np.nonzero(weights)
    chosen = random.choice(kept, min(MAX_ROWS, len(kept)), replace=False)
    return jax.tree.map(lambda leaf: leaf[chosen], x), weights[chosen]


def _observed(random, values, x, weights):
    """Return moments of the data, or of draws from them if gradients are expensive."""
    total = weights.sum()
    if not values.is_subset or total <= MAX_ROWS:
        return data_moments(values, x, weights)
    drawn = random.choice(len(weights), MAX_ROWS, p=weights / total)
    x = jax.tree.map(lambda leaf: leaf[drawn], x)
    found = data_moments(values, x, np.ones(MAX_ROWS))
    return found._replace(rows=1 / (1 / MAX_ROWS + 1 / total))


def _compare(values, observed, rows, kind, num_chains, threshold, draws) -> FitCheck:
    """Compare the data with draws of chains from rows, and then from far states."""
    x = jax.tree.map(np.asarray, draws.x)
    near = jax.tree.map(lambda leaf: leaf[:num_chains], x)
    half = jax.tree.leaves(x)[0].shape[1] // 2
    every = FEWER if values.is_subset else 1
    late = draw_moments(values, jax.tree.map(lambda leaf: leaf[:, half::every], near))
    early = jax.tree.map(lambda leaf: leaf[:, :half].reshape(-1, *leaf.shape[2:]), near)
    far = float("nan")
    if kind != "reals":
        last = jax.tree.map(lambda leaf: leaf[num_chains:, -1], x)
        far = float(are_far(last, *rows).mean())
    num_fitted = len(values.subset)
    z = compare_means(observed, late, num_fitted)
    worst = int(np.argmax(np.where(np.isfinite(z), np.abs(z), np.inf)))
    if worst < num_fitted:
        name = entry_name(values.params, int(values.subset[worst]))
    else:
        name = f"statistic[{worst - num_fitted}]"
    return FitCheck(
        z=z,
        num_fitted=num_fitted,
        num_params=values.num_params,
        threshold=threshold,
        worst=name,
        worst_means=(float(observed.mean[worst]), float(late.mean[worst])),
        num_steps=int(draws.step),
        observed=observed.activity,
        expected=late.activity,
        early=float(flat(early).sum(axis=1).mean()),
        far=far,
        kind=kind,
    )


def _default_sampler(key, energy, params, x, kind, num_states):
    if kind != "reals":
        return HeatBath(num_states)
    start = HMC(0.1 / num_sites(split_inputs(x)[0]) ** 0.25)
    return tune(key, energy, params, x, sampler=start, num_steps=320).sampler


def _student_quantile(chance, freedom):
    """Return t such that |T| > t with probability `chance`.

    It is the expansion in 1 / freedom of Abramowitz and Stegun, 26.7.5. Its error is
    below 1 % for 19 degrees of freedom and a chance of 1e-5.
    """
    z = -NormalDist().inv_cdf(chance / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))
