"""All cliques of a graph, stored by a Hopfield network that has seen a few of them.

A unit is an edge between two of v vertices, and a pattern a clique of k = v / 2
vertices: of n = v (v - 1) / 2 edges it has k (k - 1) / 2. Almost 2^v such cliques, many
more than units, are fixed points of one network, and minimum probability flow finds it
from a sample of one or two cliques to the edge.

Reference: Hillar and Tran, "Robust exponential memory in Hopfield networks", J. Math.
Neurosci. 8, 1 (2018).
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from probjax import L2, MPF, Data, fit, hopfield, plots
from probjax.plots import BLUE, ORANGE

FIGURE = Path("out/hopfield_cliques.png")
STRENGTH = 1e-5
# Of the cliques seen, to the edge.
RATIOS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
# Of the edges flipped.
FLIPPED = (0.0, 0.015, 0.03, 0.045, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2)
MOST_RECALLED = 1000
STYLES = {12: (BLUE, "o"), 16: ("#009E73", "s"), 20: (ORANGE, "^")}


class Taught(NamedTuple):
    """What networks know that have seen some of the cliques: means over samples."""

    num_seen: int
    seen: jax.Array
    """The share of these that are fixed points."""
    unseen: jax.Array
    """That of the others."""
    all: jax.Array
    """That of all."""
    whole: jax.Array
    """The share of samples after which all are."""


class Memory(NamedTuple):
    """Of the cliques among so many vertices."""

    num_cliques: int
    num_edges: int
    taught: list[Taught]
    recovery: hopfield.Recovery
    """From flipped edges, after most have been seen."""


def run(options: Options) -> Iterator[Table]:
    plots.load_pyplot()
    vertices, samples = ((12, 16), 3) if options.quick else (tuple(STYLES), 10)
    found = {count: measure(count, samples) for count in vertices}
    yield learned(found, samples)
    yield recovered(found, samples)
    draw(found)


def cliques(vertices: int) -> np.ndarray:
    """All cliques of half of the vertices, as rows of edges."""
    chosen = np.array(list(itertools.combinations(range(vertices), vertices // 2)))
    inside = np.zeros((len(chosen), vertices), bool)
    np.put_along_axis(inside, chosen, True, axis=1)
    one, other = np.triu_indices(vertices, 1)
    return (inside[:, one] & inside[:, other]).astype(np.float32)


def measure(vertices: int, num_samples: int) -> Memory:
    every = cliques(vertices)
    size = every.shape[1]
    counts = [round(ratio * size) for ratio in RATIOS]
    flips = sorted({round(share * size) for share in FLIPPED})
    taught, recoveries = [], []
    for seed in range(num_samples):
        order = np.random.default_rng(seed).permutation(len(every))
        rows = jnp.asarray(every[order])
        networks = [learn(rows[: counts[-1]], count) for count in counts]
        taught.append(
            [known(*each, rows) for each in zip(networks, counts, strict=True)]
        )
        asked = rows[counts[-1] :][:MOST_RECALLED]
        key = jax.random.key(seed)
        recoveries.append(
            hopfield.recovery(key, networks[-1], asked, flips, num_trials=1)
        )
    mean_taught = [average(each) for each in zip(*taught, strict=True)]
    return Memory(len(every), size, mean_taught, average(recoveries))


def learn(rows: jax.Array, count: int) -> hopfield.Params:
    """From the first rows; the others weigh nothing, so that all are one program."""
    key, size = jax.random.key(0), rows.shape[1]
    data = Data(rows, (jnp.arange(len(rows)) < count).astype(float))
    start = hopfield.init(key, size)
    found = fit(key, MPF(hopfield.energy), start, data, penalty=L2(STRENGTH))
    return found.params


def known(params: hopfield.Params, count: int, rows: jax.Array) -> Taught:
    fixed = hopfield.is_fixed(params, rows)
    parts = fixed[:count].mean(), fixed[count:].mean(), fixed.mean()
    return Taught(count, *parts, fixed.all().astype(float))


def average(found):
    return jax.tree.map(lambda *parts: jnp.mean(jnp.stack(parts), 0), *found)


def learned(found: dict[int, Memory], num_samples: int) -> Table:
    rows = []
    for vertices, memory in found.items():
        for ratio, taught in zip(RATIOS, memory.taught, strict=True):
            shares = taught.seen, taught.unseen, taught.all, taught.whole
            seen = f"{int(taught.num_seen):,}"
            rows.append(
                (vertices, memory.num_edges, f"{memory.num_cliques:,}", seen, ratio)
                + shares
            )
    return Table(
        "Cliques of half of v vertices: the share that are fixed points",
        (
            "v",
            "edges n",
            "cliques",
            "seen",
            "seen / n",
            "of the seen",
            "of the others",
            "of all",
            "all at once",
        ),
        rows,
        f"MPF with L2({STRENGTH}), means of {num_samples} samples of cliques. All at "
        "once: the share of samples after which every clique is a fixed point. Hillar "
        "and Tran prove that a network has all as fixed points, and find it by MPF.",
    )


def recovered(found: dict[int, Memory], num_samples: int) -> Table:
    rows = []
    for vertices, memory in found.items():
        for flips, exact, bits in zip(*memory.recovery, strict=True):
            share = f"{int(flips) / memory.num_edges:.1%}"
            rows.append((vertices, int(flips), share, exact, bits))
    return Table(
        "Cliques of half of v vertices: recovered from flipped edges",
        ("v", "flipped", "of n", "exactly", "edges right"),
        rows,
        f"By networks that have seen {RATIOS[-1]:.0f} n cliques, of others: at most "
        f"{MOST_RECALLED:,} each of {num_samples} networks.",
    )


def draw(found: dict[int, Memory]) -> None:
    figure, (left, right) = plots.load_pyplot().subplots(
        1, 2, figsize=(9, 3.4), sharey=True, layout="constrained"
    )
    for vertices, memory in found.items():
        colour, marker = STYLES[vertices]
        style = {"color": colour, "marker": marker, "markersize": 4}
        label = f"{vertices} vertices, {memory.num_cliques:,} cliques"
        left.plot(RATIOS, [each.all for each in memory.taught], label=label, **style)
        shares = np.asarray(memory.recovery.num_flips) / memory.num_edges
        right.plot(shares, memory.recovery.exact, **style)
    left.set_xlabel("cliques seen per edge")
    left.set_ylabel("share of all cliques fixed")
    right.set_xlabel("share of edges flipped")
    right.set_xticks(np.arange(5) / 20)
    right.set_ylabel("share recovered exactly")
    for ax in (left, right):
        ax.set_ylim(-0.03, 1.03)
        ax.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, loc="lower right")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)
