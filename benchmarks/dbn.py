"""Deep belief networks of handwritten digits: by flow, by divergence, by both.

Four machines of 200 hidden units stand on each other, each learned from what the one
below makes of 10,000 digits:

    MPF             flow to states a single flip away, in batches of 500;
    CD-1            one block Gibbs step from every row;
    persistent MPF  flow to particles of the model, which block Gibbs carries on.

All start alike, in centred coordinates and with the same weight decay, and see every
row equally often: what differs is which states the data are compared with.

Chains of the top machine begin at noise, and 1,000 Gibbs steps lie before the first
sample and between samples; the bottom machine is sampled alone likewise. What digit a
sample is, its five nearest neighbours among training digits say; how near they are,
against what they are to digits of the test set, says whether it is one at all.

With --data DIR the digits are MNIST's; without, scikit-learn's of 8 x 8 pixels.

Reference: thesis, "Deep Belief Network", its figure of samples.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness import Options, Table
from benchmarks.machine_brackets import bracket
from probjax import (
    L2,
    MPF,
    ContrastiveDivergence,
    Data,
    PersistentMPF,
    dbn,
    fit,
    log_likelihood,
    plots,
    rbm,
)
from probjax.data import datasets, preprocessing

FIGURE = Path("out/dbn.png")
NUM_LAYERS, NUM_HIDDEN = 4, 200
DECAY = 1e-4
NUM_NEIGHBOURS, NUM_CLASSES = 5, 10
GIBBS_STEPS = 1000

Learn = Callable[[jax.Array, tuple[rbm.Params, ...], Data], rbm.Params]


class Scale(NamedTuple):
    """How much is done."""

    rows: int
    epochs: int
    particles: int
    distributions: int
    chains: int
    draws: int


class Rows(NamedTuple):
    """Digits as bits, and the labels of those to learn from."""

    train: jax.Array
    label: jax.Array
    test: jax.Array


class Learned(NamedTuple):
    """A network, what it cost, and its samples as means, `(chain, draw, pixel)`."""

    layers: tuple[rbm.Params, ...]
    seconds: float
    network: jax.Array
    bottom: jax.Array
    """Of the bottom machine alone."""


def run(options: Options) -> Iterator[Table]:
    plots.load_pyplot()
    scale = (
        Scale(2000, 10, 50, 1000, 10, 10)
        if options.quick
        else Scale(10_000, 40, 200, 5000, 50, 20)
    )
    rows = load(options, scale.rows)
    learned = {
        name: learn(number, way, rows, scale)
        for number, (name, way) in enumerate(ways(scale).items())
    }
    yield likelihoods(rows, learned, scale)
    yield classes(rows, learned)
    draw(learned)


def load(options: Options, count: int) -> Rows:
    digits = datasets.digits(options.data)
    train, test = (
        preprocessing.binarise_randomly(
            jax.random.key(number), images[:count].reshape(len(images[:count]), -1)
        )
        for number, images in enumerate((digits.train, digits.test))
    )
    return Rows(train, jnp.asarray(digits.train_label[:count]), test)


def ways(scale: Scale) -> dict[str, Learn]:
    gibbs = rbm.BlockGibbs()
    steps = partial(_steps, epochs=scale.epochs)
    return {
        "MPF, single flips": partial(
            by, MPF(rbm.energy), optax.adam, 3e-3, partial(steps, size=500, each=20)
        ),
        "CD-1": partial(
            by,
            ContrastiveDivergence(rbm.energy, sampler=gibbs),
            optax.sgd,
            0.05,
            partial(steps, size=100, each=1),
        ),
        # Its gradients are half as large.
        "persistent MPF": partial(
            by,
            PersistentMPF(rbm.energy, sampler=gibbs, num_particles=500, num_moves=5),
            optax.sgd,
            0.1,
            partial(steps, size=100, each=5),
        ),
    }


def _steps(count, *, epochs, size, each):
    """What `fit` is told of rounds and batches for so many passes over the rows."""
    return {
        "batch_size": size,
        "steps_per_round": each,
        "num_rounds": epochs * count // (size * each),
    }


def by(objective, optimizer, rate, steps, key, below, data) -> rbm.Params:
    """The next machine: half of the steps at `rate`, which falls to 0 in the others."""
    start_key, fit_key = jax.random.split(key)
    start = rbm.init(start_key, data.x.shape[1], NUM_HIDDEN, data=data)
    plan = steps(len(data.x))
    half = plan["num_rounds"] * plan["steps_per_round"] // 2
    fall = optax.linear_schedule(rate, 0.0, half, transition_begin=half)
    return fit(
        fit_key,
        objective,
        start,
        data,
        optimizer=optimizer(fall),
        penalty=L2(DECAY, weights=rbm.weights_only(start)),
        chart=rbm.centred(start, data),
        **plan,
    ).params


def learn(number: int, way: Learn, rows: Rows, scale: Scale) -> Learned:
    key = jax.random.fold_in(jax.random.key(1), number)
    fit_key, noise_key, draw_key = jax.random.split(key, 3)
    begun = time.perf_counter()
    layers = dbn.fit_layers(fit_key, way, rows.train, num_layers=NUM_LAYERS)
    jax.block_until_ready(layers)
    seconds = time.perf_counter() - begun
    noise = jax.random.bernoulli(
        noise_key, rows.train.mean(0), (scale.chains, rows.train.shape[1])
    )
    drawn = partial(dbn.sample, num_draws=scale.draws, thin=GIBBS_STEPS)
    network = drawn(draw_key, layers, noise).means
    return Learned(layers, seconds, network, drawn(draw_key, layers[:1], noise).means)


def likelihoods(rows: Rows, learned: dict[str, Learned], scale: Scale) -> Table:
    figures = []
    for name, (layers, seconds, *_) in learned.items():
        first_key, up_key, top_key, bound_key = jax.random.split(jax.random.key(2), 4)
        counts = {
            "num_particles": scale.particles,
            "num_steps": scale.distributions,
        }
        bottom = bracket(first_key, layers[0], rows.train, **counts)
        alone = log_likelihood(rbm.energy, layers[0], rows.test, bottom)
        keys = jax.random.split(up_key, len(rows.train))
        raised = _raised(keys, layers[:-1], rows.train)
        top = bracket(top_key, layers[-1], raised, **counts)
        whole = dbn.log_likelihood_bound(bound_key, layers, rows.test, top)
        figures.append(
            (
                name,
                f"{seconds:.0f}",
                *(f"{float(value):.2f}" for value in alone[:4]),
                *(f"{float(value):.2f}" for value in whole[:3]),
            )
        )
    return Table(
        f"{NUM_LAYERS} machines of {NUM_HIDDEN} hidden units on {len(rows.train):,} "
        "digits",
        (
            "by",
            "seconds",
            "bottom machine",
            "stderr",
            "lower",
            "upper",
            "network, bound",
            "its stderr",
            "its lower end",
        ),
        figures,
        "Mean log-likelihoods of test digits in nats. Seconds are for all four, "
        "compiling included. A bound of the network far below its bottom machine says "
        "that the machines above lose what it had.",
    )


@jax.jit
def _raised(keys, layers, x):
    """Draws of the uppermost of `layers`, given the rows."""
    return jax.vmap(dbn.up_samples, (0, None, 0))(keys, layers, x)[-1]


def nearest(rows: Rows, images: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The class that most of the nearest training digits have, and how far they are."""
    squares = jnp.sum(rows.train**2, 1)[None] - 2 * images @ rows.train.T
    distances = jnp.sum(images**2, 1)[:, None] + squares
    fall, chosen = jax.lax.top_k(-distances, NUM_NEIGHBOURS)
    votes = jax.nn.one_hot(rows.label[chosen], NUM_CLASSES).sum(1)
    return votes.argmax(1), -fall.mean(1)


def classes(rows: Rows, learned: dict[str, Learned]) -> Table:
    labels = np.asarray(rows.label)
    figures = [("training digits", "", *evenness(labels[:, None]), "", "", "")]
    for part in ("network", "bottom"):
        for name, one in learned.items():
            figures.append((name, part, *judged(rows, getattr(one, part))))
    return Table(
        f"What digits the samples are, {GIBBS_STEPS:,} Gibbs steps apart",
        (
            "by",
            "samples of",
            "shares of 0 to 9",
            "entropy",
            "stderr",
            "ink",
            "distance",
            "beyond",
        ),
        figures,
        f"Entropy of the classes in nats, at most {np.log(NUM_CLASSES):.3f}; its "
        "standard error is over chains, redrawn. Ink: pixels that are on, against "
        "those of training digits. Distance: the squared one to the nearest training "
        "digits, against that of test digits; beyond: the share of samples that are "
        "farther from them than 99 % of test digits are. Little ink is near to all.",
    )


def judged(rows: Rows, means: jax.Array) -> tuple:
    """Classes and likeness of samples, drawn as the digits were."""
    bits = preprocessing.binarise_randomly(jax.random.key(3), means)
    found, distance = nearest(rows, bits.reshape(-1, bits.shape[-1]))
    _, usual = nearest(rows, rows.test)
    return (
        *evenness(np.asarray(found).reshape(bits.shape[:2])),
        bits.mean() / rows.train.mean(),
        distance.mean() / usual.mean(),
        (distance > jnp.quantile(usual, 0.99)).mean(),
    )


def evenness(found: np.ndarray) -> tuple[str, str, str]:
    """The shares of classes `(chain, draw)`, their entropy, and its error."""
    generator = np.random.default_rng(0)
    redrawn = generator.integers(len(found), size=(200, len(found)))
    error = np.std([_entropy(_shares(found[rows])) for rows in redrawn])
    share = _shares(found)
    shown = " ".join(f"{value:.2f}".lstrip("0") for value in share)
    return shown, f"{_entropy(share):.3f}", f"{error:.3f}"


def _shares(found):
    return np.bincount(found.ravel(), minlength=NUM_CLASSES) / found.size


def _entropy(share):
    return float(np.sum(share * -np.log(np.where(share > 0, share, 1))))


def draw(learned: dict[str, Learned]) -> None:
    figure, axes = plots.load_pyplot().subplots(
        2, len(learned), figsize=(4.2 * len(learned), 9), layout="constrained"
    )
    for column, (name, one) in zip(axes.T, learned.items(), strict=True):
        parts = {name: one.network, f"{name}: the bottom machine alone": one.bottom}
        for ax, (title, means) in zip(column, parts.items(), strict=True):
            shown = means[:10, :10]
            plots.images(shown.reshape(-1, shown.shape[-1]), num_columns=10, ax=ax)
            ax.set_title(title)
    figure.get_layout_engine().set(wspace=0.04)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)
