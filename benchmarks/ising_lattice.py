"""A 10x10 spin glass learned back from 20,000 exact states, method by method.

The thesis draws couplings "from a normal distribution with variance 10", which can be
read as J_ij itself, as the mean of J_ij and J_ji drawn apart (variance 5), or as the
pair's energy 2 J_ij (variance 2.5); the program its author published draws 1.125. All
readings are run, on a torus, with the lattice known (its edges alone are fitted, and
all figures are exact) and unknown (all 4,950 pairs).

Where all pairs are fitted there is no exact log Z. With fresh exact states of the truth

    Z_fit / Z_true = E_true[exp(E_true - E_fit)],

and the same weights give the fit's correlations, of which those of the states
themselves are subtracted; E_true[E_fit - E_true] in KL is of the same states too. So
what both terms have of noise cancels.

Reference: thesis, "Two Dimensional Ising Spin Glass".
"""

import time
import warnings
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
    Learned,
    Snapshot,
    correlation,
    descend,
    diverge,
    divergences,
    draw_ways,
    plateau,
    screen,
    timed,
    way,
)
from probjax import L2, Data, MaximumLikelihood, cross_validate, exact, ising
from probjax.fitting import GradientNorm
from probjax.models.ising import tap
from probjax.objectives import flow
from probjax.types import Scalar

SHAPE, SIZE, ROWS = (10, 10), 100, 20_000
EDGES = ising.Edges(exact.lattice.edges(SHAPE, periodic=True))
PAIRS: dict[str, ising.Edges | None] = {"lattice": EDGES, "all pairs": None}
READINGS = {
    "1.125, the author's program": 1.125,
    "2.5, so that 2 J_ij has 10": 2.5,
    "5, symmetrised": 5.0,
    "10, literally": 10.0,
}
SHOWN = "2.5, so that 2 J_ij has 10"
FIXED = 1e-4
STRENGTHS = np.geomspace(1e-2, 1e-7, 6)
NUM_FOLDS = 3
MOST_STEPS, MOST_EXACT_STEPS, MOST_NODE_STEPS = 800, 10, 150
NUM_ROUNDS = {"CD-1": 3000, "CD-10": 1000, "PCD": 3000}
VALIDATED = ("2.5, so that 2 J_ij has 10", "10, literally")
SLOW = {("RISE", "all pairs")}
FEWEST_EFFECTIVE = 100
PUBLISHED = {
    "MPF": (0.0172, 0.0025, 60),
    "PL": (0.0582, 0.0036, 800),
    "CD-1": (0.3196, 0.0127, 20_000),
    "CD-10": (0.3341, 0.0123, 20_000),
    "TAP": (7.7704, 0.0983, 0.1),
}
PEERS = (
    ("MPF", "original code (Octave)", 0.0314, 1.1e-3, 302),
    ("MPF", "NumPy", 0.0313, 1.1e-3, 10.0),
    ("PL", "NumPy, couplings tied", 0.0196, 3.9e-4, 57),
    ("PL", "scikit-learn, unit by unit", 0.0305, 1.6e-3, 18),
    ("PL", "coniii, unit by unit", 0.0305, 1.6e-3, 83),
    ("TAP", "NumPy", 3.2, 2.3e-2, 0.02),
)
COMPARED = (
    ("none", "none"),
    ("of log K", "fixed"),
    ("of K", "fixed"),
    ("validated", "validated"),
)
ORDERING = (
    "Without a penalty, and with one that is cross-validated, PL is nearer the truth "
    "in J and by KL. With L2 of 1e-4 for PL and what 1e-4 added to K amounts to for "
    "MPF, MPF is mostly nearer in J, as the thesis published, and PL mostly by KL. So "
    "the published order is one of penalties and of stopping, not of the methods. All "
    "flips bring MPF's KL down, not its error in J."
)


class Problem(NamedTuple):
    """A spin glass, states to fit and states to judge by."""

    truth: np.ndarray
    second: np.ndarray
    """E[x_i x_j], exact."""
    correlation: np.ndarray
    log_z: float
    train: jax.Array
    fresh: jax.Array
    """For importance weights."""
    test: jax.Array
    """For log-likelihoods."""


class Outcome(NamedTuple):
    """How far one fit is from the truth, and what it took."""

    coupling_error: float
    """Mean square over all entries of J, biases too."""
    correlation_error: float
    """Mean square over pairs."""
    divergence: float
    """KL(truth || fit) in nats."""
    log_likelihood: float
    """Nats per state on states that were not fitted, less what the truth has there."""
    effective: float
    """Fresh states that the weights are worth; all of them where nothing is sampled."""
    learned: Learned


class Way(NamedTuple):
    """One way to fit."""

    method: str
    penalty: str
    strength: float
    learn: Callable[..., Any]
    """A function of the states."""


class Fitted(NamedTuple):
    """A way to fit, and how it did on every seed."""

    way: Way
    compiling: float
    outcomes: list[Outcome]

    def mean(self, name: str) -> float:
        """Over seeds, of one figure."""
        return float(np.mean([getattr(outcome, name) for outcome in self.outcomes]))

    @property
    def seconds(self) -> float:
        """The mean over seeds."""
        return float(np.mean([outcome.learned.seconds for outcome in self.outcomes]))


class Search(NamedTuple):
    """What a cross-validation chose."""

    method: str
    strength: float
    seconds: float


def run(options: Options) -> Iterator[Table]:
    seeds = range(1) if options.quick else range(3)
    readings = {SHOWN: READINGS[SHOWN]} if options.quick else READINGS
    compiling: dict[tuple[str, str], float] = {}
    everything, searches = {}, []
    for reading, variance in readings.items():
        problems = [problem(seed, variance) for seed in seeds]
        for pairs in PAIRS:
            ways = ways_to_fit(options, pairs, problems[0])
            if not options.quick and reading in VALIDATED:
                chosen = [validated(name, pairs, problems[0]) for name in ("MPF", "PL")]
                ways += [by_descent(s.method, "validated", pairs, s[1]) for s in chosen]
                searches += [(reading, pairs, *each) for each in chosen]
            found = [fitted(each, pairs, problems, compiling) for each in ways]
            everything[reading, pairs] = found
            yield outcome_table(reading, pairs, problems, found)
    if searches:
        yield search_table(searches)
    yield beside_the_thesis(everything)
    yield ordering(everything)
    yield on_the_way(options, problem(0, READINGS[SHOWN]))


def problem(seed: int, variance: float) -> Problem:
    glass_key, state_key = jax.random.split(jax.random.key(seed))
    truth = exact.lattice.spin_glass(glass_key, SHAPE, variance=variance)
    draw = partial(exact.lattice.sample, num_draws=3 * ROWS, periodic=True)
    x = draw(state_key, truth, SHAPE)
    moments = exact.lattice.moments(truth, SHAPE, periodic=True)
    return Problem(
        np.asarray(truth),
        np.asarray(moments.second),
        correlation(moments),
        float(log_z(ising.from_matrix(truth))),
        *jnp.split(x, 3),
    )


def log_z(params: ising.Params) -> Scalar:
    """By transfer matrix, for a model that is a lattice."""
    return exact.lattice.log_z(ising.coupling_matrix(params), SHAPE, periodic=True)


def ways_to_fit(options: Options, pairs: str, given: Problem) -> list[Way]:
    """All but those that need a cross-validation."""
    edges = PAIRS[pairs]
    size_of_flow = float(
        flow(KEY, ising.energy, ising.from_matrix(given.truth), Data(given.train))
    )
    ways = [
        by_descent("MPF", "none", pairs, 0.0),
        by_descent("MPF", "of log K", pairs, FIXED),
        by_descent("MPF", "of K", pairs, FIXED / size_of_flow),
        by_descent("PL", "none", pairs, 0.0),
        by_descent("PL", "fixed", pairs, FIXED),
    ]
    if not options.quick:
        ways.append(by_descent("MPF, all flips too", "none", pairs, 0.0))
    if edges is None:
        ways.append(Way("TAP", "none", 0.0, tap))
    if not options.quick:
        learn = partial(screen, zeros(edges), most_steps=MOST_NODE_STEPS)
        ways.append(Way("RISE", "none", 0.0, learn))
    if edges is not None and not options.quick:
        ways.append(Way("exact ML", "none", 0.0, most_likely))
    num_rounds = {"CD-1": 1000} if options.quick else NUM_ROUNDS
    return ways + [by_divergence(name, edges, n) for name, n in num_rounds.items()]


def by_descent(name: str, penalty: str, pairs: str, strength: float) -> Way:
    learn = partial(
        descend,
        DESCENTS[name],
        zeros(PAIRS[pairs]),
        strength=strength,
        most_steps=MOST_STEPS,
    )
    return Way(name, penalty, strength, learn)


def by_divergence(name: str, edges: ising.Edges | None, num_rounds: int) -> Way:
    learn = partial(
        diverge,
        divergences(edges, SIZE)[name],
        zeros(edges),
        num_rounds=num_rounds,
    )
    return Way(name, "none", 0.0, learn)


def most_likely(x: jax.Array) -> Any:
    """Exact maximum likelihood, from the pseudolikelihood's minimum."""
    near = descend(DESCENTS["PL"], zeros(EDGES), x, most_steps=MOST_STEPS).params
    objective = MaximumLikelihood(ising.energy, log_z)
    return descend(objective, near, x, most_steps=MOST_EXACT_STEPS)


def zeros(edges: ising.Edges | None) -> ising.Params:
    return ising.init(KEY, SIZE, edges=edges, scale=0.0)


def validated(name: str, pairs: str, given: Problem) -> Search:
    """The strength that the method's own loss on rows left out prefers."""
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cross_validate(
            KEY,
            DESCENTS[name],
            zeros(PAIRS[pairs]),
            given.train,
            penalty=L2(1.0),
            chart=ising.centred(given.train),
            strengths=STRENGTHS,
            num_folds=NUM_FOLDS,
            steps_per_round=MOST_STEPS,
            stop=GradientNorm(1e-5),
        )
    return Search(name, float(STRENGTHS[found.best]), time.perf_counter() - begun)


def fitted(
    each: Way,
    pairs: str,
    problems: list[Problem],
    compiling: dict[tuple[str, str], float],
) -> Fitted:
    """One way on every problem; what is slow on the first alone."""
    if (each.method, pairs) in SLOW:
        problems = problems[:1]
    learned = [timed(partial(each.learn, given.train)) for given in problems]
    named = (each.method, pairs)
    if named not in compiling:
        compiled = timed(partial(each.learn, problems[0].train))
        compiling[named] = learned[0].seconds - compiled.seconds
        learned[0] = compiled
    outcomes = [judge(*both, pairs) for both in zip(problems, learned, strict=True)]
    return Fitted(each, compiling[named], outcomes)


def judge(given: Problem, learned: Learned, pairs: str) -> Outcome:
    """Exactly where the fit is a lattice, else by importance weights."""
    matrix = np.asarray(ising.coupling_matrix(learned.params), float)
    away = matrix - given.truth
    if pairs == "lattice":
        moments = exact.lattice.moments(jnp.asarray(matrix), SHAPE, periodic=True)
        second, wanted = given.second, given.correlation
        log_ratio, effective = float(log_z(learned.params)) - given.log_z, float(ROWS)
    else:
        moments, log_ratio, effective = weighed(given.fresh, away)
        plain, _, _ = weighed(given.fresh, np.zeros_like(away))
        second, wanted = np.asarray(plain.second), correlation(plain)
    difference = correlation(moments) - wanted
    # KL = E_true[E_fit - E_true] + log Z_fit - log Z_true, and x'Jx = sum(J * xx').
    divergence = float(np.sum(away * second)) + log_ratio
    gain = float(-quadratic(away, given.test).mean()) - log_ratio
    fine = effective >= FEWEST_EFFECTIVE
    upper = np.triu_indices(SIZE, 1)
    return Outcome(
        float(np.mean(away**2)),
        float(np.mean(difference[upper] ** 2)) if fine else np.nan,
        divergence if fine else np.nan,
        gain if fine else np.nan,
        effective,
        learned,
    )


def weighed(fresh: Any, away: np.ndarray) -> tuple[exact.Moments, float, float]:
    """Moments of the fit, log Z_fit - log Z_true, and the states the weights are worth.

    The weights are exp(E_true - E_fit) of the fresh states.
    """
    x = np.asarray(fresh, float)
    log_weights = -quadratic(away, x)
    largest = log_weights.max()
    weights = np.exp(log_weights - largest)
    share = weights / weights.sum()
    moments = exact.Moments(jnp.asarray(share @ x), jnp.asarray((x.T * share) @ x))
    return moments, float(np.log(weights.mean()) + largest), float(1 / (share @ share))


def quadratic(matrix: np.ndarray, x) -> np.ndarray:
    x = np.asarray(x, float)
    return np.einsum("ri,ri->r", x @ matrix, x)


def outcome_table(
    reading: str, pairs: str, problems: list[Problem], found: list[Fitted]
) -> Table:
    columns = (
        "method",
        "L2",
        "lambda",
        "seeds",
        "error in J",
        "least to most",
        "in correlations",
        "KL, nats",
        "held-out log p less the truth's",
        "effective states",
        "seconds",
        "compiling",
        "gradient",
        "steps",
        "converged",
    )
    rows = [
        (
            each.way.method,
            each.way.penalty,
            f"{each.way.strength:.2g}",
            len(each.outcomes),
            each.mean("coupling_error"),
            span([o.coupling_error for o in each.outcomes]),
            or_words(each.mean("correlation_error")),
            or_words(each.mean("divergence")),
            or_words(each.mean("log_likelihood")),
            "exact"
            if pairs == "lattice"
            else span([o.effective for o in each.outcomes], "{:.0f}"),
            each.seconds,
            each.compiling,
            largest_gradient(each),
            round(np.mean([o.learned.steps for o in each.outcomes])),
            verdicts(each),
        )
        for each in found
    ]
    best = np.mean(
        [-quadratic(p.truth, p.test).mean() - p.log_z for p in problems], dtype=float
    )
    empty = np.mean([np.mean(p.truth**2) for p in problems], dtype=float)
    return Table(
        f"Variance {reading}; {pairs} fitted; means over seeds",
        columns,
        rows,
        "Errors are mean squares, in J over all entries. The truth's held-out log p "
        f"is {best:.3f}; a model of zeros has an error in J of {empty:.3g}. Collapsed: "
        f"fewer than {FEWEST_EFFECTIVE} of {ROWS:,} fresh states count. L2 is on "
        'couplings and biases alike; that of MPF is added to log K, and "of K" is '
        f"{FIXED:g} / K, to which {FIXED:g} added to K itself amounts. CD and PCD: "
        f"batches of {BATCH}, {NUM_PARTICLES} particles, rate falling in a line from "
        f"{FASTEST} to {SLOWEST} over centred units. At most {MOST_STEPS} steps; exact "
        f"ML at most {MOST_EXACT_STEPS}, from PL's minimum, whose time is counted; "
        f"RISE at most {MOST_NODE_STEPS} for each unit.",
    )


def span(values: list[float], form: str = "{:.3g}") -> str:
    least, most = (form.format(value) for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def or_words(value: float, form: str = "{:.3g}") -> str:
    return form.format(value) if np.isfinite(value) else "collapsed"


def largest_gradient(each: Fitted) -> str:
    norm = max(outcome.learned.gradient_norm for outcome in each.outcomes)
    return f"{norm:.1e}" if np.isfinite(norm) else ""


def verdicts(each: Fitted) -> str:
    said = [outcome.learned.verdict for outcome in each.outcomes]
    return " ".join(said) if len(set(said)) > 1 else said[0]


def search_table(searches: list[tuple]) -> Table:
    return Table(
        f"Strengths of L2 by {NUM_FOLDS}-fold cross-validation on the first seed",
        ("variance", "pairs", "method", "lambda", "seconds"),
        searches,
        "By the method's own loss on rows left out, among "
        f"{', '.join(f'{s:.0e}' for s in STRENGTHS)}; seconds with compiling.",
    )


def beside_the_thesis(everything: dict) -> Table:
    """The thesis' methods at every reading, theirs, the peers' and ours."""
    rows: list[tuple] = []
    for name, figures in PUBLISHED.items():
        rows.append((name, "thesis", "variance 10", "", *figures, ""))
        rows += [
            (name, peer, "2.5, another glass", "all pairs", *theirs, "")
            for of, peer, *theirs in PEERS
            if of == name
        ]
        rows += [
            (
                name,
                "ours",
                reading,
                pairs,
                each.mean("coupling_error"),
                or_words(each.mean("correlation_error")),
                each.seconds,
                f"{figures[2] / each.seconds:.2g}",
            )
            for (reading, pairs), found in everything.items()
            for each in found
            if each.way.method == name and each.way.penalty == "none"
        ]
    return Table(
        "Beside what was published, no penalty",
        (
            "method",
            "program",
            "variance",
            "pairs",
            "error in J",
            "in correlations",
            "seconds",
            "times faster than the thesis",
        ),
        rows,
        "Peers: on a like machine, another glass.",
    )


def on_the_way(options: Options, given: Problem) -> Table:
    """Error in J against time on one glass, all pairs fitted, and the figure of it."""
    ways, rows = {}, []
    for each in ways_to_fit(options, "all pairs", given):
        if each.penalty != "none":
            continue
        name, learn = each.method, partial(each.learn, given.train)
        whole = timed(learn)
        if name in ("RISE", "TAP"):
            taken = [Snapshot(whole.seconds, whole.params)]
        else:
            taken = way(learn, whole.seconds, count=25)
        times = [snapshot.seconds for snapshot in taken]
        errors = [coupling_error(snapshot.params, given) for snapshot in taken]
        ways[name] = (times, errors)
        reached = plateau(errors)
        thesis = PUBLISHED.get(name)
        rows.append(
            (
                name,
                errors[-1],
                min(errors),
                times[reached],
                times[-1],
                thesis[2] if thesis else "",
                f"{thesis[2] / times[reached]:.0f}" if thesis else "",
            )
        )
    path = draw_ways(
        Path("out") / "ising_lattice.png",
        ways,
        {name: (time, error) for name, (error, _, time) in PUBLISHED.items()},
        ylabel="mean square error in J",
        title="10x10 spin glass, variance 2.5, all pairs fitted, no penalty",
        level=("a model of zeros", float(np.mean(given.truth**2)), 0.6),
    )
    return Table(
        f"The way there: variance {SHOWN}; all pairs, no penalty",
        (
            "method",
            "error in J",
            "least on the way",
            "seconds to plateau",
            "seconds in all",
            "thesis, s",
            "times faster",
        ),
        rows,
        "Plateau: from there on the error stays within a tenth of its last. Seconds "
        f"are without compiling and judging. Figure: {path}. Target: CD-1 in 200 s.",
    )


def coupling_error(params: ising.Params, given: Problem) -> float:
    matrix = np.asarray(ising.coupling_matrix(params))
    return float(np.mean((matrix - given.truth) ** 2))


def ordering(everything: dict) -> Table:
    """Which of MPF and PL is nearer the truth, by penalty and by yardstick."""
    rows = []
    for (reading, pairs), found in everything.items():
        by_kind = {(each.way.method, each.way.penalty): each for each in found}
        for first, second in COMPARED:
            if ("MPF", first) in by_kind and ("PL", second) in by_kind:
                both = by_kind["MPF", first], by_kind["PL", second]
                rows.append((reading, pairs, first, second, *wins(*both)))
    return Table(
        "Is MPF nearer the truth than PL? Seeds of all seeds",
        (
            "variance",
            "pairs",
            "L2 of MPF",
            "L2 of PL",
            "by error in J",
            "by error in correlations",
            "by KL",
            "MPF times faster",
        ),
        rows,
        ORDERING if len(everything) > len(PAIRS) else "",
    )


def wins(of_flow: Fitted, conditional: Fitted) -> tuple[str, str, str, float]:
    said = []
    for name in ("coupling_error", "correlation_error", "divergence"):
        both = [
            (getattr(a, name), getattr(b, name))
            for a, b in zip(of_flow.outcomes, conditional.outcomes, strict=True)
        ]
        known = [pair for pair in both if np.isfinite(pair).all()]
        less = sum(a < b for a, b in known)
        said.append(f"{less} of {len(known)}" if known else "collapsed")
    return *said, conditional.seconds / of_flow.seconds
