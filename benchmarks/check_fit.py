"""`check_fit` on models that are known to be right, and on models known to be wrong.

With `--data`, a folder with `spikes_maxent15.npz` and `spikes_maxent50.npz`: models of
recordings, learned in several ways. Without, simulated models only: exact fits to their
own draws, which should pass, and the same with a spurious mode, which should fail. The
mode is an attraction between all pairs, so weak that it has less than half of the
probability.
"""

import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import numpy as np

from benchmarks.harness import Options, Table
from benchmarks.spikes import read, split
from probjax import (
    L2,
    MPF,
    HeatBath,
    MaximumLikelihood,
    PseudoLikelihood,
    check_fit,
    exact,
    fit,
    ising,
)

SIZE, NUM_ROWS = 10, 5000
NUM_RIGHT, NUM_WRONG = 100, 50
MOST_ALARMS = 5
STRENGTHS = (1e-6, 1e-5, 1e-4)
MODE_SHARE = 0.3


def run(options: Options) -> Iterator[Table]:
    if options.data is not None:
        yield recordings(options, options.data)
    yield simulated(options)


def recordings(options: Options, folder: Path) -> Table:
    few = read(folder / "spikes_maxent15.npz")
    rows = [row_of("15", "maximum likelihood", few, MaximumLikelihood(ising.energy))]
    if not options.quick:
        train = split(read(folder / "spikes_maxent50.npz")).train
        sampled = MaximumLikelihood(ising.energy, sampler=HeatBath())
        rows.append(row_of("50", "maximum likelihood by sampling", train, sampled))
        for name, make in (("MPF", MPF), ("pseudolikelihood", PseudoLikelihood)):
            for strength in STRENGTHS:
                label = f"{name}, L2 {strength:g}"
                penalty = L2(strength)
                rows.append(
                    row_of("50", label, train, make(ising.energy), penalty=penalty)
                )
    return Table(
        "Pairwise models of recordings",
        ("neurons", "learned by", "seconds", "largest |z|", "passed", "verdict"),
        rows,
        "Seconds of `check_fit`, after compiling.",
    )


def row_of(neurons, label, x, objective, **options) -> tuple:
    key = jax.random.key(0)
    start = ising.init(key, x.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        params = fit(key, objective, start, x, **options).params
    check = partial(check_fit, energy=ising.energy, params=params, data=x)
    check(jax.random.key(1))
    begun = time.perf_counter()
    found = check(jax.random.key(2))
    seconds = time.perf_counter() - begun
    passed = "yes" if found.passed else "no"
    return (neurons, label, seconds, found.largest, passed, found.describe())


def simulated(options: Options) -> Table:
    right, wrong = (10, 5) if options.quick else (NUM_RIGHT, NUM_WRONG)
    alarms = sum(not checked(seed, planted=False) for seed in range(right))
    found = sum(not checked(seed, planted=True) for seed in range(wrong))
    return Table(
        f"Simulated models of {SIZE} units and {NUM_ROWS:,} rows",
        ("models", "number", "failed", "verdict"),
        [
            (
                "exact fits",
                right,
                alarms,
                f"{'' if alarms <= MOST_ALARMS else 'NOT '}at most {MOST_ALARMS}",
            ),
            ("with a mode", wrong, found, "all" if found == wrong else "NOT all"),
        ],
        "The mode is the state of all ones, with a share of "
        f"{MODE_SHARE:g} of the probability.",
    )


def checked(seed: int, *, planted: bool) -> bool:
    """Whether a model that was fitted to draws of a random model passes."""
    random = np.random.default_rng(seed)
    matrix = 0.4 * random.normal(size=(SIZE, SIZE)) / np.sqrt(SIZE)
    matrix = (matrix + matrix.T) / 2 + np.diag(random.normal(1.5, 0.5, SIZE))
    key = jax.random.key(seed)
    truth = ising.from_matrix(matrix)
    x = np.asarray(exact.sample(key, ising.energy, truth, SIZE, num_draws=NUM_ROWS))
    objective, start = MaximumLikelihood(ising.energy), ising.init(key, SIZE)
    params = fit(key, objective, start, x).params
    if planted:
        params = with_mode(params)
    return check_fit(key, ising.energy, params, x).passed


def with_mode(params: ising.Params) -> ising.Params:
    """Add the attraction with which all ones have their share, found by bisection."""
    matrix = np.asarray(ising.coupling_matrix(params), float)
    places = (np.arange(2**SIZE)[:, None] >> np.arange(SIZE) & 1).astype(float)
    energies = np.einsum("si,ij,sj->s", places, matrix, places)
    pairs = places.sum(1) * (places.sum(1) - 1)
    low, high = 0.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        minus = middle * pairs - energies
        share = np.exp(minus[-1] - np.logaddexp.reduce(minus))
        low, high = (middle, high) if share < MODE_SHARE else (low, middle)
    return ising.from_matrix(matrix - low * (1 - np.eye(SIZE)))
