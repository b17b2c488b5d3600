"""How many random patterns a Hopfield network of 64 units stores, and how fast.

Every rule learns the same patterns. The thesis compares the outer product, the
perceptron and minimum probability flow; Storkey's rule and the pseudo-inverse are the
usual others.

The perceptron takes one pattern after the other, and near capacity very many passes
over them: beyond 64 patterns it gets fewer m, and all its passes are limited.

Reference: thesis, "Memory Storage in a Hopfield Network", "Experimental Results", its
figures of the share of patterns made fixed points and of the time to train.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table, Timing, time_together
from probjax import hopfield, plots
from probjax.plots import BLUE, GREY, ORANGE

FIGURE = Path("out/hopfield_capacity.png")
SIZE = 64
FLOW, PERCEPTRON = "MPF", "perceptron"
COLOURS = {
    "outer product": GREY,
    "Storkey": "#CC79A7",
    "pseudo-inverse": "#009E73",
    PERCEPTRON: ORANGE,
    FLOW: BLUE,
}
# Milliseconds of a NumPy implementation, and how many of five sets it stored.
PEER = {32: "3 (5)", 64: "5 (5)", 80: "7 (5)", 96: "18 (5)", 104: "333 (1)"}
# What is padded to the same number of patterns is compiled once.
BLOCK = 24


class Trained(NamedTuple):
    """What it took to train one network after the other."""

    timing: Timing
    stored: int
    """Of how many networks all patterns are fixed points."""
    num_steps: float
    """The median of steps or passes."""


def run(options: Options) -> Iterator[Table]:
    plots.load_pyplot()
    trials, steps, passes = (10, 200, 100) if options.quick else (20, 500, 200)
    found = measure(options, trials, rules(steps, passes))
    yield shares(found, trials, steps, passes)
    yield limits(found)
    steps, passes, repeats = (300, 300, 5) if options.quick else (2000, 1000, 7)
    trained = train(options, rules(steps, passes), repeats)
    yield seconds(trained, steps, passes, repeats)
    draw(found, trained)


def rules(max_steps: int, max_passes: int) -> dict[str, Callable]:
    return {
        "outer product": lambda key, x: hopfield.outer_product(x),
        "Storkey": lambda key, x: hopfield.storkey(x),
        "pseudo-inverse": lambda key, x: hopfield.pseudo_inverse(x),
        PERCEPTRON: lambda key, x: hopfield.perceptron(x, max_passes=max_passes),
        FLOW: partial(hopfield.flow, max_steps=max_steps),
    }


def measure(
    options: Options, num_trials: int, rules: dict[str, Callable]
) -> dict[str, hopfield.Capacity]:
    every = range(1, 121)
    coarse = (2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 104, 112, 120)
    some = [*range(1, 65), *range(68, 121, 4)]
    found = {}
    for name, rule in rules.items():
        full = some if name == PERCEPTRON else every
        counts = coarse if options.quick else full
        found[name] = in_blocks(rule, counts, num_trials)
    return found


def in_blocks(
    rule: Callable, counts: Sequence[int], num_trials: int
) -> hopfield.Capacity:
    parts = []
    for block, group in itertools.groupby(counts, lambda count: (count - 1) // BLOCK):
        key = jax.random.fold_in(jax.random.key(0), block)
        part = hopfield.capacity(key, rule, SIZE, list(group), num_trials=num_trials)
        parts.append(part)
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)


def shares(
    found: dict[str, hopfield.Capacity], trials: int, steps: int, passes: int
) -> Table:
    counts = [int(count) for count in found[PERCEPTRON].num_patterns]
    shown = (4, 8, 16, 32, 48, 64, 80, 88, 96, 100, 104, 108, 112, 120)
    rows = []
    for count in (count for count in shown if count in counts):
        at = {name: _at(count, capacity) for name, capacity in found.items()}
        patterns = [at[name].patterns for name in found]
        complete = [at[name].complete for name in (PERCEPTRON, FLOW)]
        rows.append((count, *patterns, *complete))
    return Table(
        f"{SIZE} units: the share of m patterns made fixed points, {trials} trials",
        ("m", *found, f"all, {PERCEPTRON}", f"all, {FLOW}"),
        rows,
        "All: the share of trials in which every pattern is a fixed point. At most "
        f"{passes} passes of the perceptron and {steps} steps of L-BFGS for MPF.",
    )


def _at(count, capacity):
    where = int(np.flatnonzero(np.asarray(capacity.num_patterns) == count)[0])
    return hopfield.Capacity(*(part[where] for part in capacity))


def limits(found: dict[str, hopfield.Capacity]) -> Table:
    rows = []
    for name, (counts, _, complete) in found.items():
        counts, complete = np.asarray(counts), np.asarray(complete)
        short = np.flatnonzero(complete < 1)
        safe = counts[: short[0]] if len(short) else counts
        half = counts[complete >= 0.5]
        some = counts[complete > 0]
        most = [int(part.max(initial=0)) for part in (safe, half, some)]
        rows.append((name, *most, most[0] / SIZE, most[2] / SIZE))
    outer = SIZE / (4 * np.log(SIZE))
    return Table(
        f"{SIZE} units: the most patterns stored",
        ("rule", "in all trials", "in half", "in any", "all, of n", "any, of n"),
        rows,
        "In all trials: for this m and every smaller one. Published: MPF stores all "
        f"up to about 1.5 n = {1.5 * SIZE:.0f}, none past 1.7 n = {1.7 * SIZE:.0f}; "
        f"the outer product at most n / (4 ln n) = {outer:.1f}, for large n.",
    )


def train(
    options: Options, rules: dict[str, Callable], repeats: int
) -> dict[int, dict[str, Trained]]:
    counts = (8, 32, 64, 96) if options.quick else (8, 16, 32, 48, 64, 80, 96, 104)
    return {count: train_at(count, rules, repeats) for count in counts}


def train_at(
    count: int, rules: dict[str, Callable], repeats: int
) -> dict[str, Trained]:
    """Other patterns in every turn, the same for all rules."""
    key = jax.random.fold_in(jax.random.key(1), count)
    # The first turn compiles, and is not counted.
    shape = (repeats + 1, count, SIZE)
    sets = jax.random.bernoulli(key, 0.5, shape).astype(float)
    kept = {name: [] for name in rules}

    def call(name, rule, left):
        learned = rule(key, next(left))
        kept[name].append(learned)
        return learned

    calls = {
        name: partial(call, name, jax.jit(rule), iter(list(sets)))
        for name, rule in rules.items()
    }
    timings = time_together(repeats, **calls)
    return {
        name: Trained(
            timings[name],
            sum(bool(learned.stored.all()) for learned in learned[1:]),
            float(np.median([learned.num_steps for learned in learned[1:]])),
        )
        for name, learned in kept.items()
    }


def seconds(
    trained: dict[int, dict[str, Trained]], steps: int, passes: int, repeats: int
) -> Table:
    rows = []
    for count, one in trained.items():
        times = [1e3 * one[name].timing.median for name in one]
        ends = [f"{one[name].stored}" for name in (PERCEPTRON, FLOW)]
        taken = [f"{one[name].num_steps:.0f}" for name in (PERCEPTRON, FLOW)]
        rows.append((count, *times, *ends, *taken, PEER.get(count, "")))
    return Table(
        f"{SIZE} units: milliseconds to train one network",
        (
            "m",
            *COLOURS,
            f"{PERCEPTRON}: stored",
            f"{FLOW}: stored",
            "passes",
            "steps",
            "MPF, NumPy",
        ),
        rows,
        f"Medians of {repeats} networks in turns, compiled before. Stored: how many of "
        f"these store all patterns, in at most {passes:,} passes or {steps:,} steps. "
        "NumPy: a plain implementation with L-BFGS, sets stored of 5 in brackets. The "
        "thesis shows times on a log scale that rise steeply near capacity.",
    )


def draw(
    found: dict[str, hopfield.Capacity], trained: dict[int, dict[str, Trained]]
) -> None:
    figure, (left, right) = plots.load_pyplot().subplots(
        1, 2, figsize=(9, 3.6), layout="constrained"
    )
    for name, capacity in found.items():
        plots.capacity(capacity, ax=left, label=name, color=COLOURS[name])
        times = [1e3 * one[name].timing.median for one in trained.values()]
        right.plot(list(trained), times, color=COLOURS[name], marker="o", markersize=4)
    left.axvline(1.5 * SIZE, color="black", linewidth=0.8, linestyle=":", label="1.5 n")
    figure.legend(loc="outside lower center", ncols=6, frameon=False)
    right.set_yscale("log")
    right.set_xlabel("patterns to store")
    right.set_ylabel("milliseconds to train a network")
    right.spines[["top", "right"]].set_visible(False)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)
