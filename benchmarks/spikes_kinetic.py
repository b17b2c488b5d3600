"""Kinetic Ising models of simulated words: errors at the limit of Cramer and Rao.

The conditional likelihood is exact, so the errors of all parameters must be those of
the Fisher information, and a parallel fit must equal a logistic regression per unit.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from benchmarks.peer_packages import why_missing
from probjax import PseudoLikelihood, fit
from probjax.data.spikes import words_from_counts
from probjax.fitting import GradientNorm
from probjax.models import kinetic_ising

SIZE, NUM_BINS, NUM_SEEDS = 30, 20_000, 12
ASYNCHRONOUS_RATE = 0.5
EXACT = PseudoLikelihood(kinetic_ising.energy)


def run(options: Options) -> Table:
    rows = []
    bins, seeds = (4000, 2) if options.quick else (NUM_BINS, NUM_SEEDS)
    for label, rate in (("parallel", None), ("asynchronous", ASYNCHRONOUS_RATE)):
        ratios = np.array([relative_error(seed, bins, rate) for seed in range(seeds)])
        error = ratios.std(ddof=1) / np.sqrt(seeds)
        difference = from_regressions(bins) if rate is None else ""
        rows.append((label, ratios.mean(), error, difference))
    return Table(
        f"Kinetic Ising models of {SIZE} units, {bins:,} bins, {seeds} simulations",
        ("updates", "error over Cramer-Rao", "stderr", "from regressions"),
        rows,
        "Error: root mean square over parameters of the difference from the truth, in "
        "units of the standard error by the Fisher information; targets 1 +- .1. From "
        "regressions: largest difference of a coefficient from scikit-learn's "
        "logistic regression of each unit, in float64; target 1e-5.",
    )


def truth_of(seed: int) -> kinetic_ising.Params:
    generator = np.random.default_rng(seed)
    return kinetic_ising.Params(
        jnp.asarray(generator.normal(-1, 0.5, SIZE), float),
        jnp.asarray(generator.normal(0, 0.5, (1, SIZE, SIZE)), float),
    )


def rows_of(seed: int, num_bins: int, rate: float | None) -> tuple:
    """The true model, and rows that were simulated from it."""
    truth, key = truth_of(seed), jax.random.key(seed)
    x = kinetic_ising.simulate(key, truth, num_bins=num_bins, rate=rate)
    words = words_from_counts(np.asarray(x))
    return truth, kinetic_ising.rows(words, rate=rate)


def relative_error(seed: int, num_bins: int, rate: float | None) -> float:
    truth, rows = rows_of(seed, num_bins, rate)
    fitted = fit(jax.random.key(0), EXACT, kinetic_ising.init(SIZE), rows).params
    bound = cramer_rao(truth, rows, 1.0 if rate is None else rate)
    z = (coefficients(fitted) - coefficients(truth)) / bound
    return float(np.sqrt(np.mean(z**2)))


def coefficients(params: kinetic_ising.Params) -> np.ndarray:
    """Field and couplings of each unit, `(unit, 1 + source)`."""
    parts = (params.field[:, None], params.coupling[0])
    return np.concatenate([np.asarray(part, float) for part in parts], axis=1)


def cramer_rao(params: kinetic_ising.Params, rows, rate: float) -> np.ndarray:
    """Standard errors from the Fisher information, like `coefficients`."""
    past = np.asarray(rows.inputs.past, float)[:, 0]
    z = np.concatenate([np.ones((len(past), 1)), past], axis=1)
    errors = []
    for unit, own in enumerate(coefficients(params)):
        sigma = 1 / (1 + np.exp(-z @ own))
        p = rate * sigma + (1 - rate) * past[:, unit]
        slope = rate * sigma * (1 - sigma)
        information = slope**2 / (p * (1 - p))
        inverse = np.linalg.inv((z * information[:, None]).T @ z)
        errors.append(np.sqrt(np.diag(inverse)))
    return np.array(errors)


def from_regressions(num_bins: int) -> float | str:
    """Largest difference from a logistic regression of each unit."""
    if missing := why_missing("scikit-learn"):
        return missing
    from sklearn.linear_model import LogisticRegression

    with jax.enable_x64(True):
        _, rows = rows_of(0, num_bins, None)
        start = kinetic_ising.init(SIZE)
        found = fit(jax.random.key(0), EXACT, start, rows, stop=GradientNorm(1e-9))
        own = coefficients(found.params)
        past, x = np.asarray(rows.inputs.past)[:, 0], np.asarray(rows.x)
    largest = 0.0
    for unit in range(SIZE):
        regression = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000)
        regression.fit(past, x[:, unit])
        theirs = np.append(regression.intercept_, regression.coef_[0])
        largest = max(largest, float(np.abs(own[unit] - theirs).max()))
    return largest
