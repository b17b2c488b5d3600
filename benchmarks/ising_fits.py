"""Fits of Ising models by one method after the other, timed, with their way there."""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from probjax import (
    L2,
    MPF,
    ContrastiveDivergence,
    PersistentDivergence,
    PseudoLikelihood,
    Watch,
    exact,
    fit,
    ising,
    plots,
    samplers,
)
from probjax.connectivity import AllFlips, BitFlips, Joined
from probjax.fitting import fit_nodes
from probjax.objectives import RISE

KEY = jax.random.key(7)
BATCH, NUM_PARTICLES = 100, 200
FASTEST, SLOWEST = 0.1, 0.001
DESCENTS = {
    "MPF": MPF(ising.energy),
    "MPF, all flips too": MPF(
        ising.energy, connectivity=Joined((BitFlips(), AllFlips()))
    ),
    "PL": PseudoLikelihood(ising.energy),
}
COLOURS = {
    "MPF": "#0072B2",
    "MPF, all flips too": "#56B4E9",
    "PL": "#D55E00",
    "RISE": "#CC79A7",
    "CD-1": "#009E73",
    "CD-10": "#004D38",
    "PCD": "#B8860B",
    "mean field": "#999999",
    "TAP": "#333333",
    "exact ML": "#000000",
}


class Learned(NamedTuple):
    """A fit, and what it took."""

    params: ising.Params
    seconds: float
    """After compiling."""
    steps: int
    gradient_norm: float
    """NaN where the gradient is an estimate or there is none."""
    verdict: str
    """Whether it converged, in a word."""


class Snapshot(NamedTuple):
    """Where a fit was after some seconds."""

    seconds: float
    params: ising.Params


def descend(
    objective: Any,
    start: ising.Params,
    x: jax.Array,
    *,
    strength: float = 0.0,
    most_steps: int = 2000,
    callback: Callable | None = None,
) -> Any:
    """`fit` by L-BFGS over centred units, L2 on couplings and biases alike.

    A strength of 0 is no other program, so that one compilation serves all.
    """
    return fit(
        KEY,
        objective,
        start,
        x,
        chart=ising.centred(x),
        penalty=L2(strength),
        steps_per_round=most_steps,
        watch=_every_step(callback),
    )


def screen(
    start: ising.Params, x: jax.Array, *, strength: float = 0.0, most_steps: int = 2000
) -> Any:
    """RISE unit by unit, symmetrised; the worst unit speaks for all."""
    found = fit_nodes(
        KEY,
        RISE,
        ising.energy,
        start,
        x,
        penalty=L2(strength),
        steps_per_round=most_steps,
    )
    longest = int(jnp.isfinite(found.losses).sum(1).max())
    return found._replace(
        params=ising.symmetrised(found.params),
        losses=found.losses[:, :longest].mean(0),
        converged=found.converged.all(),
        gradient_norm=found.gradient_norm.max(),
    )


def divergences(edges: ising.Edges | None, size: int) -> dict[str, Any]:
    """CD-1, CD-10 and PCD by heat bath, colour by colour where a graph allows it."""
    if edges is None:
        sampler = samplers.HeatBath()
    else:
        sampler = samplers.ColourGibbs(samplers.colours(edges, size))
    return {
        "CD-1": ContrastiveDivergence(ising.energy, sampler),
        "CD-10": ContrastiveDivergence(ising.energy, sampler, num_moves=10),
        "PCD": PersistentDivergence(ising.energy, sampler, NUM_PARTICLES),
    }


@cache
def slowing(num_rounds: int) -> optax.GradientTransformation:
    """Gradient descent at a rate that falls in a line, as in the thesis."""
    return optax.sgd(optax.linear_schedule(FASTEST, SLOWEST, num_rounds))


def diverge(
    objective: Any,
    start: ising.Params,
    x: jax.Array,
    *,
    num_rounds: int,
    callback: Callable | None = None,
) -> Any:
    """`fit` of a divergence on batches, its states renewed at every step."""
    found = fit(
        KEY,
        objective,
        start,
        x,
        chart=ising.centred(x),
        optimizer=slowing(num_rounds),
        num_rounds=num_rounds,
        steps_per_round=1,
        batch_size=BATCH,
        watch=_every_step(callback),
    )
    return found._replace(gradient_norm=jnp.nan)


def _every_step(callback: Callable | None) -> Watch | None:
    # A fit without a watch is one program, which is what is timed.
    return None if callback is None else Watch(callback, every=1)


def timed(learn: Callable[[], Any]) -> Learned:
    """Run a fit once and tell what it took; what it warns of goes into the verdict."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begun = time.perf_counter()
        found = jax.block_until_ready(learn())
        seconds = time.perf_counter() - begun
    if isinstance(found, ising.Params):
        return Learned(found, seconds, 0, np.nan, "")
    norm = float(found.gradient_norm)
    names = {w.category.__name__ for w in caught}
    verdict = "unbounded" if "UnboundedWarning" in names else "no"
    if bool(found.converged):
        verdict = "yes"
    return Learned(
        found.params, seconds, len(found.losses), norm, "" if norm != norm else verdict
    )


def way(learn: Callable[..., Any], seconds: float, *, count: int) -> list[Snapshot]:
    """About `count` snapshots of a fit, evenly spaced in the logarithm of its steps.

    Steps of one fit cost alike, so a snapshot has its share of the `seconds` of the
    same fit without interruption; storing and judging cost it nothing.
    """
    kept: list[tuple[int, ising.Params]] = []

    def keep(progress) -> None:
        step = int(progress.step)
        if not kept or step > kept[-1][0]:
            kept.append((step, progress.params))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        last = timed(partial(learn, callback=keep))
    steps = np.array([step for step, _ in kept])
    wanted = np.unique(np.geomspace(1, last.steps, count).round())
    chosen = np.unique(np.searchsorted(steps, wanted).clip(0, len(steps) - 1))
    share = seconds / last.steps
    return [Snapshot(share * int(steps[i]), kept[i][1]) for i in chosen]


def plateau(errors: Sequence[float]) -> int:
    """The first of the errors from which all stay within a tenth of the last."""
    away = np.abs(np.asarray(errors) / errors[-1] - 1) > 0.1
    return int(np.flatnonzero(away).max(initial=-1)) + 1


def correlation(moments: exact.Moments) -> np.ndarray:
    """Pearson correlations from first and second moments.

    Moments known to 1e-7 say nothing of units with a variance below 1e-6: 0 for them.
    """
    mean, second = np.asarray(moments.mean), np.asarray(moments.second)
    covariance = second - np.outer(mean, mean)
    variance = np.diag(covariance)
    scale = np.where(variance > 1e-6, np.sqrt(np.abs(variance)), np.inf)
    return covariance / np.outer(scale, scale)


def draw_ways(
    path: Path,
    ways: dict[str, tuple[Sequence[float], Sequence[float]]],
    published: dict[str, tuple[float, float]],
    *,
    ylabel: str,
    title: str,
    level: tuple[str, float, float],
) -> Path:
    """Error against seconds, one line a method, what was published as hollow rings.

    `level` is a line across: its name, height and where in the width the name begins.
    """
    pyplot = plots.load_pyplot()
    pyplot.switch_backend("Agg")
    figure, ax = pyplot.subplots(figsize=(8.6, 5.4), layout="constrained")
    ends = {}
    for name, (seconds, errors) in ways.items():
        style = {"color": COLOURS[name], "linewidth": 1.8}
        if len(seconds) == 1:
            ax.plot(seconds, errors, "o", markersize=6, **style)
        else:
            ax.plot(seconds, errors, **style)
            ax.plot(seconds[-1:], errors[-1:], "o", markersize=4, **style)
        ends[name] = (seconds[-1], errors[-1])
    for name, (seconds, error) in published.items():
        color = COLOURS[name]
        ax.plot(seconds, error, "o", mfc="none", mec=color, markersize=8, mew=1.5)
        ends[f"{name}, thesis"] = (seconds, error)
    words, height, left = level
    ax.axhline(height, color=plots.GREY, linewidth=0.8, linestyle="--", zorder=0)
    ax.annotate(
        words,
        (left, height),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        fontsize=8.5,
        color=plots.GREY,
    )
    ax.set(xscale="log", yscale="log", xlabel="seconds, after compiling")
    ax.set(ylabel=ylabel, title=title)
    low, high = ax.get_xlim()
    ax.set_xlim(low, high * 6)
    ax.spines[["top", "right"]].set_visible(False)
    _label(figure, ax, ends)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path


def _label(figure, ax, ends):
    """Names beside the points, moved up where they would meet others."""
    figure.draw_without_rendering()
    scale = figure.dpi / 72
    spots = {name: ax.transData.transform(point) for name, point in ends.items()}
    taken: list[tuple[float, float, float]] = []
    for name, (x, y) in sorted(spots.items(), key=lambda item: item[1][1]):
        start, width, height = x + 7 * scale, 5.5 * scale * len(name), y
        points = [(*spots[other], 0.0) for other in spots if other != name]
        for left, level, reach in sorted(taken + points, key=lambda box: box[1]):
            meets = start <= left + reach and left <= start + width
            if meets and abs(level - height) < 11 * scale:
                height = level + 11 * scale
        taken.append((start, height, width))
        ax.annotate(
            name,
            ends[name],
            xytext=(7, (height - y) / scale),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=COLOURS[name.removesuffix(", thesis")],
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.7},
        )
