"""Patterns a Hopfield network has never seen but with 20 of 64 bits flipped.

Rules get 4,000 corrupted versions of m random patterns. Minimum probability flow fits
them as the sample that they are, whose centres are the lowest states; the perceptron
tries to make every version a fixed point and comes to no end.

That exactly 20 bits are flipped is itself something to learn: where 63 bits are right,
the last cannot be. A network can hold that against few patterns, less so against many.
Versions whose bits are flipped each with probability 20 / 64 know of no such thing.

Reference: thesis, "Memory Storage in a Hopfield Network", "Experimental Results", its
figure of patterns and bits recalled after learning from corrupted ones.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from probjax import MPF, fit, hopfield, plots
from probjax.data import FixedFlips, IndependentFlips
from probjax.data.corruption import Corruption
from probjax.objectives import Corrupted
from probjax.plots import BLUE, ORANGE

FIGURE = Path("out/hopfield_corrupt.png")
SIZE, NUM_FLIPS, NUM_VERSIONS = 64, 20, 4000
NUM_PASSES, NUM_STEPS = 5, 50
FLOW, INDEPENDENT, PERCEPTRON = "MPF", "MPF, independent flips", "perceptron"
COLOURS = {FLOW: BLUE, INDEPENDENT: "#009E73", PERCEPTRON: ORANGE}
# Of a NumPy implementation, from as many versions.
PEER = {4: "1", 8: "1", 12: "2/3"}


class Recalled(NamedTuple):
    """What a network knows of patterns, each a share."""

    patterns: jax.Array
    """That are fixed points."""
    bits: jax.Array
    """That stay, or are right again, once the dynamics have come to rest."""
    back: jax.Array
    """Of corrupted versions, those that return to their pattern exactly."""


def run(options: Options) -> Iterator[Table]:
    plots.load_pyplot()
    counts = (4, 8, 12, 16) if options.quick else range(2, 21)
    num_trials = 4 if options.quick else 13
    found = {count: measure(count, num_trials) for count in counts}
    yield table(found, num_trials)
    draw(found)


def measure(count: int, num_trials: int) -> dict[str, tuple[Recalled, Recalled]]:
    """Means over trials, with their standard errors."""
    key = jax.random.fold_in(jax.random.key(0), count)
    pattern_key, learn_key, start_key = jax.random.split(key, 3)
    shape = (num_trials, count, SIZE)
    x = jax.random.bernoulli(pattern_key, 0.5, shape).astype(float)
    # As many rows for every m, so that all are one program.
    rows = x[:, jnp.arange(NUM_VERSIONS) % count]
    keys = jax.random.split(learn_key, num_trials)
    start = FixedFlips(NUM_FLIPS)(start_key, x)
    return {
        name: summary(jax.vmap(recalled)(learn(keys, rows), x, start))
        for name, learn in RULES.items()
    }


@jax.jit
@partial(jax.vmap, in_axes=(None, 0, 0))
def by_flow(corruption: Corruption, key: jax.Array, rows: jax.Array) -> hopfield.Params:
    objective = Corrupted(MPF(hopfield.energy), corruption)
    start = hopfield.init(key, SIZE)
    return fit(key, objective, start, rows, steps_per_round=NUM_STEPS).params


@jax.jit
@jax.vmap
def by_perceptron(key: jax.Array, rows: jax.Array) -> hopfield.Params:
    versions = FixedFlips(NUM_FLIPS)(key, rows)
    return hopfield.perceptron(versions, max_passes=NUM_PASSES).params


RULES = {
    FLOW: partial(by_flow, FixedFlips(NUM_FLIPS)),
    INDEPENDENT: partial(by_flow, IndependentFlips(NUM_FLIPS / SIZE)),
    PERCEPTRON: by_perceptron,
}


def recalled(params: hopfield.Params, x: jax.Array, start: jax.Array) -> Recalled:
    return Recalled(
        hopfield.is_fixed(params, x).mean(),
        (hopfield.recall(params, x).x == x).mean(),
        (hopfield.recall(params, start).x == x).all(1).mean(),
    )


def summary(found: Recalled) -> tuple[Recalled, Recalled]:
    root = np.sqrt(len(found.patterns))
    mean = jax.tree.map(jnp.mean, found)
    return mean, jax.tree.map(lambda part: jnp.std(part, ddof=1) / root, found)


def table(
    found: dict[int, dict[str, tuple[Recalled, Recalled]]], num_trials: int
) -> Table:
    rows = []
    for count, one in found.items():
        flow, error = one[FLOW]
        means = [one[name][0] for name in (INDEPENDENT, PERCEPTRON)]
        others = [part for mean in means for part in mean]
        rows.append((count, *flow, error.patterns, PEER.get(count, ""), *others))
    return Table(
        f"{SIZE} units, {NUM_FLIPS} bits of every version flipped, {num_trials} trials",
        (
            "m",
            "MPF: patterns",
            "MPF: bits",
            "MPF: back",
            "+-",
            "known",
            "independent: patterns",
            "independent: bits",
            "independent: back",
            "perceptron: patterns",
            "perceptron: bits",
            "perceptron: back",
        ),
        rows,
        f"Learned from {NUM_VERSIONS:,} versions in all: MPF by at most {NUM_STEPS} "
        f"steps of L-BFGS, the perceptron in {NUM_PASSES} passes. Patterns: the share "
        "that are fixed points. Bits: the share right once the dynamics have come to "
        f"rest from the patterns. Back: of versions with {NUM_FLIPS} other bits "
        "flipped, the share that return exactly. Independent: MPF of versions whose "
        f"bits are flipped each with probability {NUM_FLIPS} / {SIZE}. +-: the "
        "standard error of the patterns of MPF. Known: those of plain NumPy.",
    )


def draw(found: dict[int, dict[str, tuple[Recalled, Recalled]]]) -> None:
    _, ax = plots.load_pyplot().subplots(figsize=(6, 4), layout="constrained")
    counts: Sequence[int] = list(found)
    for name, colour in COLOURS.items():
        means = [found[count][name][0] for count in counts]
        errors = [found[count][name][1] for count in counts]
        ax.errorbar(
            counts,
            [mean.patterns for mean in means],
            [error.patterns for error in errors],
            color=colour,
            label=f"{name}, patterns",
        )
        bits = [mean.bits for mean in means]
        ax.plot(counts, bits, ":", color=colour, label=f"{name}, bits")
    ax.set_xlabel("patterns to store")
    ax.set_ylabel("share recalled")
    ax.set_xticks(range(min(counts), max(counts) + 1, 2))
    ax.set_ylim(-0.03, 1.03)
    ax.spines[["top", "right"]].set_visible(False)
    ax.figure.legend(loc="outside lower center", ncols=2, frameon=False)
    FIGURE.parent.mkdir(exist_ok=True)
    ax.figure.savefig(FIGURE, dpi=150)
