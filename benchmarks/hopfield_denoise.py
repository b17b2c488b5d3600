"""From how many flipped bits a Hopfield network of 128 units recovers its patterns.

All rules store all patterns, and differ in how wide the basins are. The perceptron ends
as soon as no unit is wrong, and so does minimum probability flow where it is stopped
once all patterns are strict minima. With a small penalty the flow has a minimum, and
goes on to it: there gaps are as wide as weights of that size allow.

Reference: thesis, "Memory Storage in a Hopfield Network", "Experimental Results", its
figure of exact recovery against bit corruption.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from probjax import L2, MPF, fit, hopfield, plots
from probjax.plots import BLUE, GREY, ORANGE

FIGURE = Path("out/hopfield_denoise.png")
SIZE, STRENGTH = 128, 2e-5
FLIPS = range(0, SIZE // 2 + 1, 4)
STYLES = {16: (BLUE, "o"), 32: ("#009E73", "s"), 64: (ORANGE, "^"), 96: (GREY, "v")}
PERCEPTRON, PROJECTION = "perceptron", "pseudo-inverse"
STOPPED, PENALISED = "MPF, stopped", "MPF, penalised"
RULES = (PERCEPTRON, PROJECTION, STOPPED, PENALISED)


class Denoised(NamedTuple):
    """How networks of one rule and one number of patterns do."""

    stored: float
    """The share of patterns that are fixed points."""
    recovery: hopfield.Recovery
    """Averaged over networks."""
    radius: float
    """The mean over patterns of their basins' radii, in bits."""


def run(options: Options) -> Iterator[Table]:
    plots.load_pyplot()
    counts, networks, trials = ((16, 64), 1, 5) if options.quick else (STYLES, 3, 10)
    found = {}
    for count in counts:
        sets = [measure(count, seed, trials) for seed in range(networks)]
        for rule in sets[0]:
            found[rule, count] = average([one[rule] for one in sets])
    yield table(found, networks, trials)
    draw(found)


def measure(count: int, seed: int, num_trials: int) -> dict[str, Denoised]:
    key = jax.random.fold_in(jax.random.key(seed), count)
    pattern_key, learn_key, flip_key, basin_key = jax.random.split(key, 4)
    x = jax.random.bernoulli(pattern_key, 0.5, (count, SIZE)).astype(float)
    networks = {
        PERCEPTRON: hopfield.perceptron(x).params,
        PROJECTION: hopfield.pseudo_inverse(x).params,
        STOPPED: hopfield.flow(learn_key, x).params,
        PENALISED: penalised(learn_key, x),
    }
    return {
        name: Denoised(
            float(hopfield.is_fixed(params, x).mean()),
            hopfield.recovery(flip_key, params, x, FLIPS, num_trials=num_trials),
            float(
                hopfield.basin_radius(
                    basin_key, params, x, num_trials=num_trials
                ).mean()
            ),
        )
        for name, params in networks.items()
    }


def penalised(key: jax.Array, x: jax.Array) -> hopfield.Params:
    start = hopfield.init(key, SIZE)
    return fit(key, MPF(hopfield.energy), start, x, penalty=L2(STRENGTH)).params


def average(sets: list[Denoised]) -> Denoised:
    return jax.tree.map(lambda *parts: jnp.mean(jnp.stack(parts), 0), *sets)


def table(
    found: dict[tuple[str, int], Denoised], networks: int, num_trials: int
) -> Table:
    shown = (4, 8, 16, 24, 32, 40)
    rows = []
    for (rule, count), one in found.items():
        where = np.searchsorted(FLIPS, shown)
        exact = np.asarray(one.recovery.exact)[where]
        rows.append((rule, count, one.stored, one.radius, *exact))
    return Table(
        f"{SIZE} units: share of patterns recovered exactly, by flipped bits",
        ("rule", "m", "stored", "radius", *map(str, shown)),
        sorted(rows, key=lambda row: (row[1], RULES.index(row[0]))),
        f"Means of {networks} networks, {num_trials} corrupted versions of each "
        "pattern. Radius: the most flipped bits from which a pattern still comes back "
        "in half of the trials, mean over patterns. Stopped: once all patterns are "
        f"strict minima. Penalised: the minimum with L2({STRENGTH}). The thesis shows "
        "curves, in which MPF recovers from more flipped bits than the perceptron.",
    )


def draw(found: dict[tuple[str, int], Denoised]) -> None:
    figure, axes = plots.load_pyplot().subplots(
        1, len(RULES), figsize=(11, 3), sharey=True, layout="constrained"
    )
    for ax, name in zip(axes, RULES, strict=True):
        for (rule, count), one in found.items():
            if rule == name:
                colour, marker = STYLES[count]
                label = f"m = {count}"
                plots.recovery(
                    one.recovery, ax=ax, label=label, color=colour, marker=marker
                )
        ax.set_title(name)
        ax.label_outer()
    axes[0].legend(frameon=False)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)
