"""From how many flipped bits a Hopfield network of 128 units recovers its patterns.

All rules store all patterns, and differ in how wide the basins are: the perceptron ends
as soon as no unit is wrong; so does minimum probability flow as it is stopped here, and
it may go on for some steps, which makes the energies of neighbours rise further.

Reference: thesis, "Memory Storage in a Hopfield Network", "Experimental Results", its
figure of exact recovery against bit corruption.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table
from probjax import MPF, ConvergenceWarning, fit, hopfield, plots
from probjax.plots import BLUE, GREY, ORANGE

FIGURE = Path("out/hopfield_denoise.png")
SIZE, FURTHER = 128, 50
FLIPS = range(0, SIZE // 2 + 1, 4)
STYLES = {16: (BLUE, "o"), 32: ("#009E73", "s"), 64: (ORANGE, "^"), 96: (GREY, "v")}
PERCEPTRON, STOPPED, ON = "perceptron", "MPF, stopped", f"MPF, {FURTHER} steps more"


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
    stopped = hopfield.flow(learn_key, x).params
    networks = {
        PERCEPTRON: hopfield.perceptron(x).params,
        STOPPED: stopped,
        ON: further(learn_key, stopped, x),
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


def further(key: jax.Array, params: hopfield.Params, x: jax.Array) -> hopfield.Params:
    with warnings.catch_warnings():
        # The infimum is at infinity: more steps would find wider gaps for ever.
        warnings.simplefilter("ignore", ConvergenceWarning)
        objective = MPF(hopfield.energy)
        return fit(key, objective, params, x, steps_per_round=FURTHER).params


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
        sorted(rows, key=lambda row: (row[1], row[0] != PERCEPTRON)),
        f"Means of {networks} networks, {num_trials} corrupted versions of each "
        "pattern. Radius: the most flipped bits from which a pattern still comes back "
        "in half of the trials, mean over patterns. The thesis shows curves, in which "
        "MPF recovers from more flipped bits than the perceptron.",
    )


def draw(found: dict[tuple[str, int], Denoised]) -> None:
    rules = (PERCEPTRON, STOPPED, ON)
    figure, axes = plots.load_pyplot().subplots(
        1, 3, figsize=(10, 3.2), sharey=True, layout="constrained"
    )
    for ax, name in zip(axes, rules, strict=True):
        for (rule, count), one in found.items():
            if rule == name:
                colour, marker = STYLES[count]
                label = f"m = {count}"
                plots.recovery(
                    one.recovery, ax=ax, label=label, color=colour, marker=marker
                )
        ax.set_title(name)
        ax.label_outer()
    axes[-1].legend(frameon=False)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)
