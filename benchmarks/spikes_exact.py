"""Pairwise models of 15 neurons: what estimators lose against exact maximum likelihood.

Every likelihood is a sum over all states. The energy of silence is 0: log Z = -log p(no
spike). Pairs that never fire together have no finite coupling without a penalty.
"""

import warnings
from collections.abc import Callable
from functools import partial
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
    HeatBath,
    MaximumLikelihood,
    PersistentDivergence,
    PseudoLikelihood,
    exact,
    fit,
    ising,
)
from probjax.connectivity import AllFlips, BitFlips, Joined
from probjax.fitting import fit_nodes
from probjax.models.ising import mean_field, tap
from probjax.objectives import RISE, LogRISE, NodeLikelihood, RatioMatching
from probjax.objectives.gaps import GapObjective
from probjax.objectives.reduce import log_mean_exp

WITH_MIRROR = MPF(ising.energy, connectivity=Joined((BitFlips(), AllFlips())))
SAMPLED = MaximumLikelihood(ising.energy, sampler=HeatBath())
OBJECTIVES = {
    "pseudolikelihood": PseudoLikelihood(ising.energy),
    "MPF": MPF(ising.energy),
    "MPF, all flips too": WITH_MIRROR,
}
TARGETS = {"pseudolikelihood": 2e-5, "MPF": 4e-4, "ML by sampling": 1e-4}
SMALL, STRENGTH = 1e-6, 1e-4


class Learned(NamedTuple):
    """A model, and how it was come by."""

    params: ising.Params
    steps: int | str = ""
    gradient: float | str = ""
    warned: str = "no"


Learner = Callable[..., Learned]


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
        "ML by sampling": without_settings,
        "PCD": partial(by_fit, persistent, **rounds),
        "CD-1": partial(by_fit, single, **rounds),
    }


def without_settings(data: Data) -> Learned:
    """A fit as a user calls it, from small random couplings."""
    start = ising.init(jax.random.key(0), data.x.shape[1])
    found, warned = heard(partial(fit, jax.random.key(1), SAMPLED, start, data))
    return Learned(found.params, len(found.losses), float(found.distance), warned)


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
        "Float64, from distinct words with counts (by sampling: float32, all words; "
        "its gradient is a distance in standard errors). "
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
