"""Pairwise models of real spikes: 40,000 words of 15 and of 50 neurons.

`--data` names a folder with `spikes_maxent15.npz` and `spikes_maxent50.npz` (Maoz and
Schneidman's maxent toolbox). With 15 neurons every likelihood is a sum over all states,
so what an estimator loses against maximum likelihood is exact. The energy of silence
is 0: log Z = -log p(no spike). With 50 neurons the models are judged by samples, and
those learned from the neighbourhood of the data fail far from it, where most neurons
fire at once.

Reference: Schneidman, Berry, Segev and Bialek, Nature 440, 1007 (2006); Rostami,
Porta Mana, Gruen and Helias, PLoS Computational Biology 13, e1005762 (2017), for the
second mode.
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
import optax

from benchmarks.harness import Options, Table, time_together
from probjax import (
    L2,
    MPF,
    ContrastiveDivergence,
    Data,
    MaximumLikelihood,
    PersistentDivergence,
    PseudoLikelihood,
    exact,
    fit,
    ising,
    loss,
    plots,
    sample,
)
from probjax.connectivity import AllFlips, BitFlips, Joined
from probjax.diagnostics import goodness
from probjax.fitting import fit_nodes
from probjax.models.ising import mean_field, tap
from probjax.objectives import RISE, LogRISE, NodeLikelihood, RatioMatching
from probjax.objectives.gaps import GapObjective
from probjax.objectives.reduce import log_mean_exp
from probjax.plots import BLUE, GREY, ORANGE
from probjax.samplers import HeatBath

FIGURE = Path("out/spikes.png")
GREEN = "#009E73"
WITH_MIRROR = MPF(ising.energy, connectivity=Joined((BitFlips(), AllFlips())))
OBJECTIVES = {
    "pseudolikelihood": PseudoLikelihood(ising.energy),
    "MPF": MPF(ising.energy),
    "MPF, all flips too": WITH_MIRROR,
}
TARGETS = {"pseudolikelihood": 2e-5, "MPF": 4e-4}
SMALL, STRENGTH, LARGE = 1e-6, 1e-4, 1e-2


class Learned(NamedTuple):
    """A model, and how it was come by."""

    params: ising.Params
    steps: int | str = ""
    gradient: float | str = ""
    warned: str = "no"


Learner = Callable[..., Learned]


def run(options: Options) -> Iterator[Table]:
    if options.data is None:
        raise SystemExit("spikes needs --data, a folder that holds spikes_maxent15.npz")
    plots.load_pyplot()
    few, many = (read(options.data / f"spikes_maxent{n}.npz") for n in (15, 50))
    yield exact_losses(options, few)
    yield silent_pairs(options, {"15": few, "50": many})
    models = learn_many(options, many)
    yield judged_by_samples(models, many)
    yield population_counts(models, many)
    draw(models, many)


def read(path: Path) -> np.ndarray:
    with np.load(path) as file:
        bits = np.unpackbits(file["packed"], axis=1)[:, : file["shape"][1]]
    return bits.astype(np.float32)


def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from, and rows to be judged by."""
    order = np.random.default_rng(0).permutation(len(x))
    return x[order[: len(x) // 2]], x[order[len(x) // 2 :]]


def counted(x: np.ndarray, rows: np.ndarray) -> Data:
    """How often each distinct row of `x` is among `rows`.

    Whatever the rows, the states are the same, and so are the programs compiled.
    """
    places = 2.0 ** np.arange(x.shape[1])
    numbers, first = np.unique(x @ places, return_index=True)
    where = np.searchsorted(numbers, rows @ places)
    counts = np.bincount(where, minlength=len(numbers))
    return Data(jnp.asarray(x[first], float), jnp.asarray(counts, float))


def by_fit(
    objective: Any, data: Data, *, strength: float = 0.0, **rounds: Any
) -> Learned:
    start, chart = independent(data).params, ising.centred(data)
    # A log flow is as steep as the mean over units of their losses.
    share = len(start.bias) if is_log_flow(objective) else 1
    penalty = ridge(start, strength / share)
    descend = partial(fit, jax.random.key(0), objective, start, data, chart=chart)
    found, warned = heard(partial(descend, penalty=penalty, **rounds))
    return Learned(found.params, len(found.losses), float(found.gradient_norm), warned)


def is_log_flow(objective: Any) -> bool:
    return isinstance(objective, GapObjective) and objective.reduction == log_mean_exp


def by_units(make: Any, data: Data, *, strength: float = 0.0) -> Learned:
    start, key = independent(data).params, jax.random.key(0)
    penalty = ridge(start, strength)
    descend = partial(fit_nodes, key, make, ising.energy, start, data)
    found, warned = heard(partial(descend, penalty=penalty))
    steps = int(np.isfinite(found.losses).sum(1).max())
    norm = float(found.gradient_norm.max())
    return Learned(ising.symmetrised(found.params), steps, norm, warned)


def heard(call: Callable[[], Any]) -> tuple[Any, str]:
    """What a call returns, and the names of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
    names = sorted({warning.category.__name__ for warning in caught})
    return found, ", ".join(names) or "no"


def ridge(params: ising.Params, strength: float) -> L2 | None:
    return L2(strength, ising.couplings_only(params)) if strength else None


def independent(data: Data) -> Learned:
    mean = jnp.average(data.x, axis=0, weights=data.weights)
    return Learned(ising.from_matrix(jnp.diag(-jax.scipy.special.logit(mean))))


def descents(options: Options) -> dict[str, Learner]:
    objectives = {"maximum likelihood": MaximumLikelihood(ising.energy)} | OBJECTIVES
    if options.quick:
        return {name: partial(by_fit, o) for name, o in objectives.items()}
    objectives |= {
        "MPF, up to 2 flips": MPF(ising.energy, connectivity=BitFlips(2)),
        "ratio matching": RatioMatching(ising.energy),
    }
    units = {make.__name__: make for make in (NodeLikelihood, LogRISE, RISE)}
    return {name: partial(by_fit, o) for name, o in objectives.items()} | {
        f"{name}, units": partial(by_units, make) for name, make in units.items()
    }


def from_moments() -> dict[str, Learner]:
    return {
        "TAP": lambda data: Learned(tap(data)),
        "mean field": lambda data: Learned(mean_field(data)),
        "independent": independent,
    }


def by_sampling(num_rounds: int, rate: float) -> dict[str, Learner]:
    """Plain descent in centred coordinates, its rate falling to nothing."""
    optimizer = optax.sgd(optax.cosine_decay_schedule(rate, num_rounds))
    rounds = {"optimizer": optimizer, "num_rounds": num_rounds, "steps_per_round": 1}
    persistent = PersistentDivergence(ising.energy, HeatBath(), num_particles=4000)
    single = ContrastiveDivergence(ising.energy, HeatBath())
    return {
        "PCD": partial(by_fit, persistent, **rounds),
        "CD-1": partial(by_fit, single, **rounds),
    }


def exact_losses(options: Options, x: np.ndarray) -> Table:
    train, test = halves(x)
    descending, at_once = descents(options), from_moments()
    sampling = by_sampling(50 if options.quick else 300, 0.3)
    with jax.enable_x64(True):
        whole, first, second = (counted(x, rows) for rows in (x, train, test))
        exactly = descending | at_once
        found = {name: (f(whole), f(first)) for name, f in exactly.items()}
        shrunk = {n: f(first, strength=SMALL) for n, f in descending.items()}
    words = Data(jnp.asarray(x))
    found |= {
        name: (learn(words), learn(Data(jnp.asarray(train))))
        for name, learn in sampling.items()
    }
    calls = {n: partial(f, words) for n, f in (exactly | sampling).items()}
    times = time_together(1, **_params_of(calls))
    rows = []
    with jax.enable_x64(True):
        best = log_likelihood(found["maximum likelihood"][0].params, whole)
        for name, (learned, of_half) in found.items():
            value = log_likelihood(learned.params, whole)
            apart = [of_half, *([shrunk[name]] if name in shrunk else [])]
            others = [f"{log_likelihood(m.params, second):.5f}" for m in apart]
            rows.append(
                (
                    name,
                    f"{value:.6f}",
                    f"{best - value:.2g}",
                    TARGETS.get(name, ""),
                    f"{log_z(learned.params):.6f}",
                    learned.steps,
                    learned.gradient,
                    times[name].median,
                    *(others if name in shrunk else [*others, ""]),
                )
            )
    return Table(
        "15 neurons: exact log-likelihood of pairwise models, nats per bin",
        (
            "loss",
            "all words",
            "below ML",
            "target",
            "log Z",
            "steps",
            "gradient",
            "seconds",
            "other half",
            "with L2",
        ),
        rows,
        "Float64, from distinct words with counts (CD and PCD: float32, all words). "
        "Seconds: of float32 on all 40,000 words, after compiling. Log Z is that of "
        "E = x'Jx over bits, -log p(no spike). Other half: learned from one half of "
        "the words, judged by the other, which has pairs that never fire together in "
        f"the first; with an L2 of {SMALL:g} on couplings their energy stays finite. "
        "Known: maximum likelihood -4.486519, log Z 1.557345, other half -4.49490, "
        "independent -4.55912.",
    )


def _params_of(calls):
    return {name: lambda call=call: call().params for name, call in calls.items()}


def log_likelihood(params: ising.Params, data: Data) -> float:
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), params)
    energies = jax.vmap(ising.energy, (None, 0))(params, data.x)
    return -float(jnp.average(energies, weights=data.weights)) - log_z(params)


def log_z(params: ising.Params) -> float:
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), params)
    return float(exact.log_z(ising.energy, params, len(params.bias)))


def silent_pairs(options: Options, recordings: dict[str, np.ndarray]) -> Table:
    rows = []
    for name, x in recordings.items():
        parts = {"half": halves(x)[0]} | ({} if options.quick else {"all": x})
        for part, words in parts.items():
            pairs = np.triu_indices(x.shape[1], 1)
            silent = (words.T @ words)[pairs] == 0
            for label in ("pseudolikelihood", "MPF"):
                for strength in (0.0, STRENGTH):
                    objective, data = OBJECTIVES[label], Data(jnp.asarray(words))
                    learned = by_fit(objective, data, strength=strength)
                    sizes = np.abs(learned.params.coupling)
                    rows.append(
                        (
                            name,
                            part,
                            int(silent.sum()),
                            label,
                            strength,
                            sizes[silent].max() if silent.any() else "",
                            sizes[~silent].max(),
                            learned.steps,
                            learned.gradient,
                            learned.warned,
                        )
                    )
    return Table(
        "Pairs that never fire together",
        (
            "neurons",
            "words",
            "such pairs",
            "loss",
            "L2",
            "their largest |J|",
            "of others",
            "steps",
            "gradient",
            "warned",
        ),
        rows,
        "Without a penalty their couplings have no finite best value: what is found "
        "is where the descent stopped. L2 is on couplings, biases spared, and for MPF "
        "divided by the number of neurons, as a log flow is as steep as the mean over "
        "neurons of their losses.",
    )


class Judged(NamedTuple):
    """A model of many neurons, learned from one half of the words."""

    learned: Learned
    seconds: float
    draws: jax.Array
    """States of the model, `(chain, draw, unit)`."""
    far: jax.Array
    """States of chains that began where half of the units are on."""


Models = dict[tuple[str, float], Judged]


def learn_many(options: Options, x: np.ndarray) -> Models:
    train, _ = halves(x)
    size, data = x.shape[1], Data(jnp.asarray(train))
    chains, draws = (200, 50) if options.quick else (400, 100)
    keys = iter(jax.random.split(jax.random.key(0), 100))
    near = data.x[:chains]
    far = jax.random.bernoulli(next(keys), 0.5, near.shape).astype(near.dtype)
    run_chains = partial(sample, sampler=HeatBath(), num_warmup=100, thin=4)
    learners: dict[str, Learner] = {
        n: partial(by_fit, o) for n, o in OBJECTIVES.items()
    }
    strengths = (0.0,) if options.quick else (0.0, STRENGTH, LARGE)
    cases = [(n, f, strength) for n, f in learners.items() for strength in strengths]
    cases.append(("PCD", by_sampling(100 if options.quick else 300, 0.1)["PCD"], 0.0))
    models = {}
    for name, learner, strength in cases:
        learn = partial(learner, data, strength=strength)
        learned = learn()
        begun = time.perf_counter()
        jax.block_until_ready(learn().params)
        seconds = time.perf_counter() - begun
        of_model = partial(run_chains, energy=ising.energy, params=learned.params)
        models[name, strength] = Judged(
            learned,
            seconds,
            of_model(next(keys), x=near, num_draws=draws).x,
            of_model(next(keys), x=far, num_draws=draws).x,
        )
    alone = independent(data)
    chances = data.x.mean(0)
    flips = jax.random.bernoulli(next(keys), chances, (chains, draws, size))
    flips = flips.astype(near.dtype)
    models["independent", 0.0] = Judged(alone, 0.0, flips, flips)
    return models


def judged_by_samples(models: Models, x: np.ndarray) -> Table:
    _, test = halves(x)
    wanted, rows = correlations(test), []
    pseudo = PseudoLikelihood(ising.energy)
    for (name, strength), model in models.items():
        of_model = correlations(model.draws.reshape(-1, x.shape[1]))
        third = goodness.third_moments(test, model.draws)
        held_out = -float(loss(jax.random.key(0), pseudo, model.learned.params, test))
        rows.append(
            (
                name,
                strength,
                model.seconds,
                model.learned.steps,
                model.learned.gradient,
                model.learned.warned,
                f"{held_out:.5f}",
                root_mean_square(goodness.compare(units, test, model.draws).z),
                root_mean_square(goodness.compare(products, test, model.draws).z),
                float(np.sqrt(np.mean((of_model - wanted) ** 2))),
                root_mean_square(third.z),
                100 * float(np.mean(np.abs(third.z) > 3)),
                f"{model.draws.sum(2).mean():.3f} / {model.far.sum(2).mean():.3f}",
            )
        )
    return Table(
        "50 neurons: learned from one half of the words, judged by the other",
        (
            "loss",
            "L2",
            "seconds",
            "steps",
            "gradient",
            "warned",
            "pseudo, nats",
            "z means",
            "z pairs",
            "correlations",
            "z thirds",
            "% above 3",
            "spikes near / far",
        ),
        rows,
        "Float32, seconds after compiling. Pseudo: log-pseudolikelihood per bin. z: "
        "root mean square of z-scores over units, pairs and triples, of the data "
        "against draws of a heat bath; where both halves are noise about the same "
        "truth, 1 to 1.4. Correlations: root mean square difference over pairs. % "
        "above 3: of triples with |z| > 3; .27 by chance. "
        f"Spikes per word: {test.sum(1).mean():.3f} in the data, and in chains begun "
        "at words / at random states.",
    )


def units(x: jax.Array) -> jax.Array:
    return x


def products(x: jax.Array) -> jax.Array:
    return jnp.outer(x, x)[np.triu_indices(len(x), 1)]


def root_mean_square(z: jax.Array) -> float:
    return float(np.sqrt(np.mean(np.square(z))))


def correlations(x) -> np.ndarray:
    matrix = np.corrcoef(np.asarray(x, np.float64), rowvar=False)
    return np.asarray(matrix)[np.triu_indices(x.shape[1], 1)]


SHOWN = ("independent", "pseudolikelihood", "MPF", "PCD")
COUNTS = (0, 1, 2, 3, 4, 6, 8, 10, 12, 15, 18, 21, 25, 45)


def population_counts(models: Models, x: np.ndarray) -> Table:
    _, test = halves(x)
    found = {n: goodness.population_count(test, models[n, 0.0].draws) for n in SHOWN}
    observed = found[SHOWN[0]].observed
    rows = [
        (
            count,
            observed[count],
            *(f"{f.expected[count]:.3g} ({f.z[count]:+.1f})" for f in found.values()),
        )
        for count in COUNTS
    ]
    return Table(
        "50 neurons: the chance that K of them fire in a bin",
        ("K", "data", *(f"{name} (z)" for name in SHOWN)),
        rows,
        "No model was fitted to it. z: (data - model) / standard error.",
    )


def draw(models: Models, x: np.ndarray) -> None:
    pyplot = plots.load_pyplot()
    pyplot.switch_backend("Agg")
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(10, 4.8), layout="constrained"
    )
    _, test = halves(x)
    styles = zip(SHOWN, (GREY, ORANGE, BLUE, GREEN), "s^oD", strict=True)
    for name, color, marker in styles:
        style = {"color": color, "marker": marker, "markersize": 4, "linewidth": 1}
        population(models[name, 0.0].draws, ax=left, label=name, **style)
    rows = test[:, None]
    population(rows, ax=left, label="data", color="black", fmt=".", zorder=3)
    left.set(
        yscale="log",
        ylim=(2e-5, 0.5),
        xlabel="neurons that fire in a bin",
        ylabel="probability",
        title="Population count, 50 neurons",
    )
    left.legend(frameon=False)
    pseudo, flow = (models[n, 0.0].learned.params for n in SHOWN[1:3])
    plots.agreement(pseudo.coupling, flow.coupling, ax=right)
    right.set(
        xlabel="J by pseudolikelihood",
        ylabel="J by MPF",
        title="Couplings of all pairs",
    )
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=150)
    pyplot.close(figure)
    print(f"Figure: {FIGURE}", flush=True)


def population(x: Any, *, ax: Any, **style: Any) -> None:
    """Draw P(K) of states `(chain, draw, unit)`, its error seen from the chains."""
    sums = np.asarray(x).sum(2).astype(int)
    counts = np.arange(x.shape[2] + 1)
    shares = np.stack([np.mean(sums == count, axis=1) for count in counts])
    mean, error = shares.mean(1), shares.std(1, ddof=1) / np.sqrt(shares.shape[1])
    seen = mean > 0
    ax.errorbar(counts[seen], mean[seen], error[seen], capsize=2, **style)
