"""Pairwise models of 50 neurons, learned in eight ways and judged by fresh draws.

Fresh chains start at the data, and others where all neurons fire. A model whose chains
differ by their start, or from the data, is wrong. Log Z comes from annealing both ways,
from independent neurons with the rates of the data and from draws of the model.
"""

import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness import Options, Table
from probjax import (
    L2,
    MPF,
    HeatBath,
    MaximumLikelihood,
    PersistentDivergence,
    PersistentMPF,
    PseudoLikelihood,
    check_fit,
    fit,
    ising,
    log_likelihood,
    plots,
    sample,
    sample_mean,
    sandwich,
)
from probjax.bases import fit_bernoulli
from probjax.plots import BLUE, GREY, ORANGE

FIGURE = Path("out/spikes.png")
GREEN = "#009E73"
SAMPLED = MaximumLikelihood(ising.energy, sampler=HeatBath())
LEAST_COUNT = 10
NUM_CHAINS, JUDGING_CHAINS = 1000, 4000


class Recording(NamedTuple):
    """Words of a recording, `(bin, neuron)`."""

    train: np.ndarray
    held_out: np.ndarray


class Judged(NamedTuple):
    """A model, and what fresh draws say of it."""

    params: ising.Params
    seconds: float
    steps: int | str
    distance: float | str
    near: np.ndarray
    """Mean products of all pairs, from chains that start at the data."""
    far: np.ndarray
    """The same, from chains that start where all neurons fire."""
    draws: np.ndarray
    bracket: Any
    bracket_seconds: float
    passed: bool


Learner = Callable[[jax.Array, np.ndarray], tuple[ising.Params, int | str, Any]]


def without_settings(key: jax.Array, x: np.ndarray) -> tuple:
    """A fit as a user calls it, from small random couplings."""
    start = ising.init(jax.random.key(7), x.shape[1])
    found = fit(key, SAMPLED, start, x)
    return found.params, len(found.losses), float(found.distance)


def by_fit(objective: Any, key: jax.Array, x: np.ndarray, **options: Any) -> tuple:
    """A fit with a normal prior of standard deviation 1 on couplings."""
    penalty = L2(1 / (2 * len(x)))
    found = fit(key, objective, independent(x), x, penalty=penalty, **options)
    return found.params, len(found.losses), float(found.distance)


def independent(x: np.ndarray) -> ising.Params:
    odds = jax.scipy.special.logit(jnp.asarray(x.mean(0)))
    return ising.from_matrix(jnp.diag(-odds))


def by_hand(key: jax.Array, x: np.ndarray) -> tuple:
    """PCD as it is written in an afternoon: chains, sweeps, a falling learning rate."""
    steps, rate = 3000, 2.0
    data = jnp.asarray(x)
    moments = data.T @ data / len(data)
    start = jnp.diag(-jax.scipy.special.logit(jnp.diagonal(moments)))

    def step(t, carry):
        chains, matrix = carry

        def redraw(i, chains):
            row = matrix[i].at[i].set(0)
            on = jax.nn.sigmoid(-matrix[i, i] - 2 * chains @ row)
            draw_key = jax.random.fold_in(jax.random.fold_in(key, t), i)
            uniform = jax.random.uniform(draw_key, (len(chains),))
            return chains.at[:, i].set((uniform < on).astype(chains.dtype))

        chains = jax.lax.fori_loop(0, len(matrix), redraw, chains)
        change = moments - chains.T @ chains / len(chains)
        return chains, matrix - rate * (1 - t / steps) * change

    @jax.jit
    def learn(matrix):
        return jax.lax.fori_loop(0, steps, step, (data[:NUM_CHAINS], matrix))[1]

    return ising.from_matrix(learn(start)), steps, ""


def learners(options: Options) -> dict[str, Learner]:
    rates = optax.exponential_decay(0.01, 3000, 0.1)
    adam = {"optimizer": optax.adam(rates), "num_rounds": 3000, "steps_per_round": 1}
    args = ising.energy, HeatBath()
    divergence = PersistentDivergence(*args, num_particles=NUM_CHAINS)
    flow = PersistentMPF(
        ising.energy, sampler=HeatBath(), num_particles=NUM_CHAINS, num_moves=10
    )
    every = {
        "ML by sampling": without_settings,
        "PersistentDivergence, Adam": partial(by_fit, divergence, **adam),
        "PersistentMPF": partial(by_fit, flow, num_rounds=60, steps_per_round=3),
        "PCD by hand": by_hand,
        "MPF": partial(by_fit, MPF(ising.energy)),
        "pseudolikelihood": partial(by_fit, PseudoLikelihood(ising.energy)),
        "independent": lambda key, x: (independent(x), "", ""),
    }
    if options.quick:
        return {name: every[name] for name in ("ML by sampling", "MPF", "independent")}
    again = partial(without_settings)
    return {"ML by sampling": without_settings, "another key": again} | every


def learn_all(options: Options, recording: Recording) -> dict[str, Judged]:
    models = {}
    for number, (name, learner) in enumerate(learners(options).items()):
        key = jax.random.fold_in(jax.random.key(0), number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jax.block_until_ready(learner(jax.random.key(99), recording.train)[0])
            begun = time.perf_counter()
            learned = jax.block_until_ready(learner(key, recording.train))
            seconds = time.perf_counter() - begun
        models[name] = judge(options, key, learned, seconds, recording.train)
    return models


def judge(
    options: Options, key: jax.Array, learned: tuple, seconds: float, x: np.ndarray
) -> Judged:
    params, steps, distance = learned
    near_key, far_key, draw_key, z_key, check_key = jax.random.split(key, 5)
    chosen = np.random.default_rng(0).choice(len(x), JUDGING_CHAINS, replace=False)
    starts = jnp.asarray(x[chosen])
    draws = 200 if options.quick else 1000
    moments = partial(
        sample_mean,
        energy=ising.energy,
        params=params,
        statistic=products,
        sampler=HeatBath(),
        num_draws=draws,
        num_warmup=500,
        thin=2,
    )
    near = moments(near_key, x=starts)
    far = moments(far_key, x=jnp.ones_like(starts))
    chains = partial(sample, energy=ising.energy, params=params, sampler=HeatBath())
    starts = near.state.x[:NUM_CHAINS]
    some = chains(draw_key, x=starts, num_draws=20, thin=20)
    base = fit_bernoulli(x)
    both_ways = partial(sandwich, z_key, ising.energy, params, base, some.x[:, -1])
    run = partial(both_ways, sampler=HeatBath(), num_steps=2000)
    jax.block_until_ready(run().log_z)
    begun = time.perf_counter()
    bracket = jax.block_until_ready(run())
    bracket_seconds = time.perf_counter() - begun
    passed = check_fit(check_key, ising.energy, params, x).passed
    found = np.asarray(near.mean), np.asarray(far.mean), np.asarray(some.x)
    return Judged(
        params, seconds, steps, distance, *found, bracket, bracket_seconds, passed
    )


def products(x: jax.Array) -> jax.Array:
    return jnp.outer(x, x)


class Scores(NamedTuple):
    """Agreement of the moments of a model with those of the training words."""

    pairs: float
    rates: float
    ratio: float


def scores(moments: np.ndarray, x: np.ndarray) -> Scores:
    data = (x.T @ x / len(x)).astype(float)
    error = np.sqrt(np.maximum(data * (1 - data), 1e-9) / len(x))
    z = (moments - data) / error
    first, second = np.triu_indices(len(data), 1)
    seen = data[first, second] * len(x) >= LEAST_COUNT
    pairs = z[first, second][seen]
    ratio = np.trace(moments) / np.trace(data)
    return Scores(
        float(np.sqrt(np.mean(pairs**2))),
        float(np.abs(np.diagonal(z)).max()),
        float(ratio),
    )


def judged(models: dict[str, Judged], recording: Recording) -> Table:
    rows = []
    for name, model in models.items():
        near = scores(model.near, recording.train)
        far = scores(model.far, recording.train)
        train, held_out = (
            log_likelihood(ising.energy, model.params, x, model.bracket)
            for x in recording
        )
        rows.append(
            (
                name,
                model.seconds,
                model.steps,
                model.distance,
                f"{float(train.value):.4f}",
                f"{float(held_out.value):.4f}",
                float(model.bracket.upper - model.bracket.lower),
                model.bracket_seconds,
                f"{near.pairs:.3g} / {far.pairs:.3g}",
                f"{near.rates:.2g} / {far.rates:.2g}",
                f"{near.ratio:.4f} / {far.ratio:.4f}",
                "yes" if model.passed else "no",
            )
        )
    return Table(
        "50 neurons, 30,000 bins to learn from",
        (
            "method",
            "seconds",
            "steps",
            "distance",
            "train",
            "held out",
            "width",
            "s for log Z",
            "z pairs",
            "largest z of rates",
            "mean rate",
            "check_fit",
        ),
        rows,
        "Seconds after compiling. Distance: of `Fit`, in standard errors. Train, held "
        "out: nats per bin, by `sandwich` from `fit_bernoulli`, and the width of its "
        "interval. z: root mean square over pairs with 10 coincidences or more, and "
        "the largest of a rate, of 4 x 10^6 draws against the training words, from "
        "chains that start at words / where all neurons fire; mean rate: relative to "
        "the data. ML by sampling has no setting and starts at small random couplings; "
        "others start at independent neurons, with a normal prior of standard "
        "deviation 1 on couplings (PCD by hand: none). Targets: z <= .35, mean rate "
        "within 1 %, train -12.1775, held out -12.175, width .006.",
    )


SHOWN = {"ML by sampling": GREEN, "pseudolikelihood": ORANGE, "MPF": BLUE}


def figure(models: dict[str, Judged], recording: Recording) -> None:
    """Population counts of the models and of held-out words."""
    pyplot = plots.load_pyplot()
    pyplot.switch_backend("Agg")
    drawing, ax = pyplot.subplots(figsize=(5.5, 4.4), layout="constrained")
    for name, color in ({"independent": GREY} | SHOWN).items():
        if name in models:
            population(models[name].draws, ax=ax, label=name, color=color)
    words = recording.held_out[:, None]
    population(words, ax=ax, label="held-out words", color="black", fmt=".", zorder=3)
    ax.set(
        yscale="log",
        ylim=(2e-5, 0.5),
        xlabel="neurons that fire in a bin",
        ylabel="probability",
        title="Population count, 50 neurons",
    )
    ax.legend(frameon=False)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(FIGURE, dpi=150)
    pyplot.close(drawing)
    print(f"Figure: {FIGURE}", flush=True)


def population(x: Any, *, ax: Any, **style: Any) -> None:
    """Draw P(K) of states `(chain, draw, unit)`, its error seen from the chains."""
    sums = np.asarray(x).sum(2).astype(int)
    counts = np.arange(x.shape[2] + 1)
    shares = np.stack([np.mean(sums == count, axis=1) for count in counts])
    mean, error = shares.mean(1), shares.std(1, ddof=1) / np.sqrt(shares.shape[1])
    seen = mean > 0
    ax.errorbar(counts[seen], mean[seen], error[seen], capsize=2, **style)
