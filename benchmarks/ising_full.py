"""A fully connected Ising model of 40 units learned back from 20,000 states.

The error is the mean absolute one of the Pearson correlations of all pairs, against
time. Correlations of a fit come from many states of the truth weighted by
exp(E_true - E_fit); those of the same states without weights are subtracted, so that
what both have of noise cancels. The correlations of 20,000 states are themselves off by
sqrt(2 / pi / 20,000) = .0056 in the mean, which the thesis' .0058 is next to: what is
measured is the data as much as the method.

With `--data` the problem is that of `ising_t2.npz`, else three of its kind are drawn.

Reference: thesis, "Fully Connected Ising Model Comparison"; Broderick, Dudik, Tkacik,
Schapire and Bialek, arXiv:0712.2437.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from benchmarks.ising_fits import (
    BATCH,
    DESCENTS,
    FASTEST,
    KEY,
    NUM_PARTICLES,
    SLOWEST,
    Snapshot,
    correlation,
    descend,
    diverge,
    divergences,
    draw_ways,
    timed,
    way,
)
from benchmarks.mpf_cost import read
from probjax import exact, ising, sample
from probjax.models.ising import mean_field, tap
from probjax.samplers import HeatBath

SIZE, ROWS = 40, 20_000
CHAINS, WARMUP, THIN = 2000, 200, 5
THESIS_ERROR, THESIS_SECONDS = 0.0058, 15.0
FEWEST_EFFECTIVE = 1000
NUM_ROUNDS = 3000
UPPER = np.triu_indices(SIZE, 1)


class Problem(NamedTuple):
    """The truth, states to fit, and many more to judge by."""

    name: str
    truth: np.ndarray
    train: jax.Array
    many: np.ndarray
    """States of the truth, `(half, state, unit)`, the halves independent."""
    moments: list[exact.Moments]
    """Of those states: of either half, and of both."""


class Judged(NamedTuple):
    """How far the correlations of a model are from the truth's."""

    error: float
    """Mean absolute, Pearson."""
    noise: float
    """Of what it is the mean of: by how much the halves differ."""
    covariance_error: float
    """The same of covariances of spins."""


class Trace(NamedTuple):
    """One method's way on one problem."""

    seconds: list[float]
    judged: list[Judged]
    compiling: float


def run(options: Options) -> Iterator[Table]:
    given = problems(options)
    num_rounds = NUM_ROUNDS // 6 if options.quick else NUM_ROUNDS
    traces = {each.name: traced(each, num_rounds) for each in given}
    yield reached(traces, num_rounds)
    yield floors(given)
    first = given[0].name
    own = compared(moments_of_train(given[0]), given[0].moments).error
    path = draw_ways(
        Path("out") / "ising_full.png",
        {
            name: (trace.seconds, [judged.error for judged in trace.judged])
            for name, trace in traces[first].items()
        },
        {"MPF": (THESIS_SECONDS, THESIS_ERROR)},
        ylabel="mean absolute error of correlations",
        title=f"40 units, all pairs, {ROWS:,} states ({first})",
        level=("the states' own error", own, 0.02),
    )
    print(f"Figure: {path}")


def problems(options: Options) -> list[Problem]:
    num_draws = 50 if options.quick else 200
    if options.data is not None:
        truth, x = read(options.data / "ising_t2.npz")
        return [judgeable("T2", truth, jnp.asarray(x), num_draws)]
    given = []
    for seed in range(1 if options.quick else 3):
        truth_key, state_key = jax.random.split(jax.random.fold_in(KEY, seed))
        truth = connected(truth_key)
        x = states(state_key, truth, num_draws=ROWS // CHAINS, thin=20)
        x = jnp.asarray(x.reshape(ROWS, SIZE))
        given.append(judgeable(f"drawn {seed}", truth, x, num_draws))
    return given


def connected(key: jax.Array) -> np.ndarray:
    """Couplings of spins ~ N(.02, .1^2), and fields for rates that differ."""
    pair_key, rate_key = jax.random.split(key)
    half = np.triu(0.02 + 0.1 * jax.random.normal(pair_key, (SIZE, SIZE)), 1)
    coupling = half + half.T
    rate = np.clip(
        0.08 * np.asarray(jax.random.gamma(rate_key, 4.0, (SIZE,))), 0.1, 0.6
    )
    away = 2 * rate - 1
    params = ising.from_fields(coupling, np.arctanh(away) - coupling @ away, spins=True)
    return np.asarray(ising.coupling_matrix(params))


def states(key, matrix, *, num_draws: int, thin: int) -> np.ndarray:
    """By heat bath, `(half, state, unit)`, the halves from chains of their own."""
    start_key, key = jax.random.split(key)
    start = jax.random.bernoulli(start_key, 0.3, (CHAINS, SIZE)).astype(float)
    draws = sample(
        key,
        ising.energy,
        ising.from_matrix(matrix),
        start,
        sampler=HeatBath(),
        num_draws=num_draws,
        num_warmup=WARMUP,
        thin=thin,
    )
    return np.asarray(draws.x).reshape(2, -1, SIZE)


def judgeable(name: str, truth, x: jax.Array, num_draws: int) -> Problem:
    key = jax.random.fold_in(KEY, 100)
    many = states(key, truth, num_draws=num_draws, thin=THIN)
    return Problem(name, np.asarray(truth, float), x, many, moments(many))


def moments(x: np.ndarray, weights: np.ndarray | None = None) -> list[exact.Moments]:
    """Of states `(half, state, unit)`: of either half, and of both."""
    weights = np.ones(x.shape[:2], x.dtype) if weights is None else weights
    sums = [
        (float(w.sum(dtype=float)), w @ half, (half.T * w) @ half)
        for half, w in zip(x, weights, strict=True)
    ]
    sums.append(tuple(first + second for first, second in zip(*sums, strict=True)))
    return [
        exact.Moments(jnp.asarray(first / total), jnp.asarray(second / total))
        for total, first, second in sums
    ]


def moments_of_train(given: Problem) -> list[exact.Moments]:
    return moments(np.asarray(given.train).reshape(2, -1, SIZE))


def traced(given: Problem, num_rounds: int) -> dict[str, Trace]:
    """Every method's way, on one problem."""
    start = ising.init(KEY, SIZE, scale=0.0)
    learn: dict[str, Callable[..., Any]] = {
        name: partial(descend, objective, start, given.train)
        for name, objective in DESCENTS.items()
    }
    for name, objective in divergences(None, SIZE).items():
        if name != "CD-10":
            learn[name] = partial(
                diverge,
                objective,
                start,
                given.train,
                num_rounds=num_rounds,
            )
    learn["TAP"] = partial(tap, given.train)
    learn["mean field"] = partial(mean_field, given.train)
    return {name: trace(name, method, given) for name, method in learn.items()}


def trace(name: str, learn: Callable[..., Any], given: Problem) -> Trace:
    first = timed(learn).seconds
    repeats = 1 if name in ("CD-1", "PCD") else 7
    runs = sorted((timed(learn) for _ in range(repeats)), key=lambda run: run.seconds)
    typical = runs[repeats // 2]
    if name in ("TAP", "mean field"):
        taken = [Snapshot(typical.seconds, typical.params)]
    else:
        taken = way(learn, typical.seconds, count=25)
    judged = [judge(snapshot.params, given) for snapshot in taken]
    judged[-1] = judged[-1] or judge_by_own_states(taken[-1].params, given)
    kept = [i for i, each in enumerate(judged) if each is not None]
    return Trace(
        [taken[i].seconds for i in kept],
        [each for each in judged if each is not None],
        first - typical.seconds,
    )


def judge(params: ising.Params, given: Problem) -> Judged | None:
    """By weights of the truth's states; None where too few of them count."""
    away = np.asarray(ising.coupling_matrix(params), float) - given.truth
    products = given.many @ away.astype(given.many.dtype)
    log_weights = -np.einsum("hri,hri->hr", products, given.many)
    weights = np.exp(log_weights - log_weights.max())
    if weights.sum() ** 2 / np.sum(weights**2) < FEWEST_EFFECTIVE:
        return None
    return compared(moments(given.many, weights), given.moments)


def judge_by_own_states(params: ising.Params, given: Problem) -> Judged:
    """By as many states of the fit as there are of the truth; no noise cancels."""
    num_draws = given.many.shape[1] * 2 // CHAINS
    key, matrix = jax.random.fold_in(KEY, 200), ising.coupling_matrix(params)
    x = states(key, matrix, num_draws=num_draws, thin=THIN)
    return compared(moments(x), given.moments)


def compared(mine: list[exact.Moments], true: list[exact.Moments]) -> Judged:
    both = list(zip(mine, true, strict=True))
    pearson = [(correlation(m) - correlation(t))[UPPER] for m, t in both]
    of_spins = 4 * (covariance(mine[-1]) - covariance(true[-1]))[UPPER]
    return Judged(
        float(np.abs(pearson[-1]).mean()),
        float(np.abs(pearson[0] - pearson[1]).mean() / 2),
        float(np.abs(of_spins).mean()),
    )


def covariance(of: exact.Moments) -> np.ndarray:
    return np.asarray(of.second) - np.outer(of.mean, of.mean)


def reached(traces: dict[str, dict[str, Trace]], num_rounds: int) -> Table:
    rows = []
    for problem, ways in traces.items():
        for name, trace in ways.items():
            last, seconds = trace.judged[-1], np.array(trace.seconds)
            errors = np.array([judged.error for judged in trace.judged])
            of_spins = np.array([judged.covariance_error for judged in trace.judged])
            rows.append(
                (
                    problem,
                    name,
                    last.error,
                    last.noise,
                    first_time(seconds, errors <= 1.02 * errors[-1]),
                    first_time(seconds, errors <= THESIS_ERROR),
                    first_time(seconds, errors <= THESIS_ERROR, trace.compiling),
                    last.covariance_error,
                    first_time(seconds, of_spins <= THESIS_ERROR),
                    first_time(seconds, of_spins <= THESIS_ERROR, trace.compiling),
                    seconds[-1],
                    trace.compiling,
                )
            )
    return Table(
        f"{SIZE} units, all pairs, {ROWS:,} states",
        (
            "problem",
            "method",
            "Pearson error",
            "noise of it",
            "s to 1.02 of it",
            f"s to {THESIS_ERROR}",
            "with compiling",
            "error of spins",
            f"spins: s to {THESIS_ERROR}",
            "spins: with compiling",
            "s in all",
            "s compiling",
        ),
        rows,
        f"Errors are mean absolute. Thesis: MPF {THESIS_ERROR} in "
        f"{THESIS_SECONDS:.0f} s; target: a hundredth of it. It does not say whether "
        "correlations are Pearson's or covariances of spins. Seconds exclude judging. "
        f"CD-1 and PCD: {num_rounds} steps on batches of {BATCH}, {NUM_PARTICLES} "
        f"particles, rate falling in a line from {FASTEST} to {SLOWEST} over centred "
        "units.",
    )


def first_time(seconds: np.ndarray, there: np.ndarray, more: float = 0.0) -> Any:
    return float(seconds[there.argmax()] + more) if there.any() else "never"


def floors(given: list[Problem]) -> Table:
    rows = []
    start = ising.init(KEY, SIZE, scale=0.0)
    for each in given:
        own = compared(moments_of_train(each), each.moments)
        even, odd, _ = map(correlation, each.moments)
        found = descend(DESCENTS["MPF"], start, each.train).params
        weighted = judge(found, each)
        rows.append(
            (
                each.name,
                own.error,
                own.covariance_error,
                float(np.abs(even - odd)[UPPER].mean() / 2),
                "collapsed" if weighted is None else weighted.error,
                judge_by_own_states(found, each).error,
            )
        )
    return Table(
        "What can be had from the states",
        (
            "problem",
            "their own error",
            "of spins' covariances",
            "noise of the truth's",
            "MPF, by weights",
            "MPF, by its own states",
        ),
        rows,
        f"Held to {given[0].many.size // SIZE:,} states of the truth from {CHAINS} "
        f"chains of heat bath, {THIN} sweeps apart. The last column checks the weights "
        "by as many states of the fit itself, whose noise does not cancel. Expected of "
        f"the correlations of {ROWS:,} states: {np.sqrt(2 / np.pi / ROWS):.4f}.",
    )
