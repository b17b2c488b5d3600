"""Partition functions and likelihoods: weights of particles, and intervals."""

import math
from typing import Any

import numpy as np

from probjax.annealing import Annealed, Bracket, Estimate
from probjax.plots.canvas import BLUE, GREY, axes, finish, once
from probjax.types import ArrayLike

FAR = 20.0
ROW, APART = "interval", 0.12


def weights(
    annealed: Annealed, *, ax: Any = None, label: str | None = None, color: str = BLUE
) -> Any:
    """How log weights are spread, and where the sum of the weights comes from.

    Filled is the share of particles, the line their share of the sum: where the line
    stands beyond the particles, or upon a few, the estimate rests on those. Shares are
    per nat, so that areas are 1 and calls on the same axes compare, however wide their
    bins. Weights below e^-20 of the mean are all shown there. The label is given the
    effective particles.

    >>> few = Annealed(0.0, 0.3, -0.2, 0.2, 2.7, np.log([1, 2, 1]), *4 * [None])
    >>> weights(few).get_ylabel()
    'share per nat (filled: particles, line: sum)'
    """
    apart, shares = _shares(annealed.log_weights)
    ax = axes(ax)
    shown = np.maximum(apart, -FAR)
    edges = np.histogram_bin_edges(shown, min(max(math.isqrt(len(shown)), 10), 60))
    even = np.full(len(shown), 1 / len(shown))
    said = f"ESS {float(annealed.ess):,.0f} of {len(shown):,}"
    said = said if label is None else f"{label}: {said}"
    heights, carried = (
        np.histogram(shown, edges, weights=each)[0] / np.diff(edges)
        for each in (even, shares)
    )
    ax.stairs(heights, edges, fill=True, color=color, alpha=0.35, label=said)
    ax.stairs(carried, edges, color=color, linewidth=1.4)
    return finish(
        ax,
        "log weight, less that of the mean weight",
        "share per nat (filled: particles, line: sum)",
    )


def interval(
    found: Bracket | Estimate,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
) -> Any:
    """What log Z, or a log-likelihood, is between. Each call is one more row.

    Of a `Bracket` triangles are the two estimates, pointing to the side on which their
    bias leaves the truth, one above the other lest they hide each other, and the line
    is between them, their errors allowed for. Of an `Estimate` the dot is its value;
    where it is bounded from below alone, a triangle; and where it is not bounded, its
    line is dotted and two standard errors long to either side. Sides that contradict
    each other are dashed, and it says so.

    Args:
        found: of `sandwich` or `log_likelihood`: particles of `ais` alone are between
            nothing.
        label: the name of the row.

    >>> ax = interval(Estimate(-3.0, 0.1, -3.2, -2.8, np.array([-3.0])), label="mine")
    >>> ax.lines[0].get_xdata().tolist()
    [-3.2, -2.8]
    """
    if not isinstance(found, Bracket | Estimate):
        raise ValueError(
            "found must be a Bracket of sandwich or an Estimate of log_likelihood, "
            f"got {type(found).__name__}"
        )
    ax = axes(ax)
    row = _new_row(ax, label)
    marks, ends, style = _sides(found)
    line = {"color": color, "linewidth": 2.5, "alpha": 0.5, "gid": ROW}
    ax.plot(ends, [row, row], style, **line)
    for value, marker, said, up in marks:
        ax.plot([value], [row - up], marker, color=color, markersize=7)
        if said is not None:
            # Rows differ in colour, and what a mark means does not.
            ax.plot([], [], marker, color=GREY, label=once(ax, said))
    if style == "--":
        where = ((ends[0] + ends[1]) / 2, row)
        beside = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
        ax.annotate("the sides contradict", where, fontsize=8, color=color, **beside)
    kind = "log Z" if isinstance(found, Bracket) else "log-likelihood, nats per row"
    return finish(ax, kind)


def _new_row(ax, label):
    """The number of the next row, named, with half a row of air around all."""
    row = sum(line.get_gid() == ROW for line in ax.lines)
    names = [text.get_text() for text in ax.get_yticklabels()][:row] if row else []
    ax.set_yticks(range(row + 1), [*names, label or ""])
    ax.set_ylim(row + 0.5, -0.5)
    return row


def _sides(found):
    """What to mark, from where to where there is a line, and in what style."""
    if isinstance(found, Bracket):
        marks = [
            (float(found.forward.log_z), ">", "from the base", APART),
            (float(found.reverse.log_z), "<", "back from the target", -APART),
        ]
        ends = (float(found.lower), float(found.upper))
        return marks, ends, _style(*ends)
    value, error = float(found.value), 2 * float(found.stderr)
    low, high = float(found.lower), float(found.upper)
    if np.isnan(low):
        return [(value, "o", None, 0.0)], (value - error, value + error), ":"
    if np.isnan(high):
        return [(value, ">", "at least", 0.0)], (low, value), "-"
    return [(value, "o", None, 0.0)], (low, high), _style(low, high)


def _style(low, high):
    return "--" if low > high else "-"


def _shares(log_weights: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms over that of their mean, and shares of the sum."""
    log_weights = np.asarray(log_weights, float)
    known = (log_weights < np.inf).all() and np.isfinite(log_weights).any()
    if log_weights.ndim != 1 or not known:
        raise ValueError(
            "log weights must be one a particle, finite or -inf but not all of them, "
            f"got {log_weights}"
        )
    largest = log_weights.max()
    sizes = np.exp(log_weights - largest)
    return log_weights - largest - np.log(sizes.mean()), sizes / sizes.sum()
