"""Annealing weights, and intervals of log Z and of log-likelihoods."""

import math
from typing import Any

import numpy as np

from probjax.annealing import Annealed, Bracket, Estimate
from probjax.plots.canvas import BLUE, GREY, axes, finish, unused_label
from probjax.types import ArrayLike

LOWEST = -20.0
ROW_ID, ROW_OFFSET = "interval", 0.12


def weights(
    annealed: Annealed, *, ax: Any = None, label: str | None = None, color: str = BLUE
) -> Any:
    """Histogram of log weights, and of their contributions to the sum of the weights.

    The filled histogram counts particles; the line counts each particle by its weight.
    If the line is high where there are few particles, the estimate of log Z depends on
    these few. Both have area 1, so that calls on the same axes can be compared whatever
    their bins. Weights below e^-20 times the mean weight are shown at that value. The
    effective number of particles is added to the label.

    Args:
        annealed: the result of `ais`.

    >>> few = Annealed(0.0, 0.3, -0.2, 0.2, 2.7, np.log([1, 2, 1]), *4 * [None])
    >>> weights(few).get_ylabel()
    'share per nat (filled: particles, line: sum)'
    """
    relative, shares = _relative_weights(annealed.log_weights)
    ax = axes(ax)
    shown = np.maximum(relative, LOWEST)
    edges = np.histogram_bin_edges(shown, min(max(math.isqrt(len(shown)), 10), 60))
    equal = np.full(len(shown), 1 / len(shown))
    ess = f"ESS {float(annealed.ess):,.0f} of {len(shown):,}"
    particles, contributions = (
        np.histogram(shown, edges, weights=each)[0] / np.diff(edges)
        for each in (equal, shares)
    )
    label = ess if label is None else f"{label}: {ess}"
    ax.stairs(particles, edges, fill=True, color=color, alpha=0.35, label=label)
    ax.stairs(contributions, edges, color=color, linewidth=1.4)
    return finish(
        ax,
        "log weight - log mean weight",
        "share per nat (filled: particles, line: sum)",
    )


def interval(
    found: Bracket | Estimate,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
) -> Any:
    """Interval of log Z or of a log-likelihood; each call adds one row to the axes.

    For a `Bracket`, two triangles are the forward and the reverse estimate, with a
    small vertical offset. Each points towards the true value, given the sign of its
    bias. The line extends from the lower to the upper bound, which include the standard
    errors. For an `Estimate`, the marker is its value: a triangle if there is only a
    lower bound, otherwise a dot. Without any bound, the line is dotted and extends two
    standard errors to either side. If the lower bound is above the upper bound, the
    line is dashed and a text notes the contradiction.

    Args:
        found: the result of `sandwich` or `log_likelihood`. A result of `ais` is not
            accepted, because it has no bounds.
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
    markers, ends, style = _markers_and_line(found)
    line = {"color": color, "linewidth": 2.5, "alpha": 0.5, "gid": ROW_ID}
    ax.plot(ends, [row, row], style, **line)
    for value, symbol, meaning, offset in markers:
        ax.plot([value], [row - offset], symbol, color=color, markersize=7)
        if meaning is not None:
            # Grey in the legend, because the meaning does not depend on the row.
            ax.plot([], [], symbol, color=GREY, label=unused_label(ax, meaning))
    if style == "--":
        where = ((ends[0] + ends[1]) / 2, row)
        beside = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
        ax.annotate("contradictory bounds", where, fontsize=8, color=color, **beside)
    kind = "log Z" if isinstance(found, Bracket) else "log-likelihood, nats per row"
    return finish(ax, kind)


def _new_row(ax, label):
    """Add a labelled row to the axes and return its index."""
    row = sum(line.get_gid() == ROW_ID for line in ax.lines)
    names = [text.get_text() for text in ax.get_yticklabels()][:row] if row else []
    ax.set_yticks(range(row + 1), [*names, label or ""])
    ax.set_ylim(row + 0.5, -0.5)
    return row


def _markers_and_line(found):
    """Return the markers, the ends of the line and its style.

    A marker is a value, a symbol, its meaning for the legend and a vertical offset.
    """
    if isinstance(found, Bracket):
        markers = [
            (float(found.forward.log_z), ">", "from the base", ROW_OFFSET),
            (float(found.reverse.log_z), "<", "back from the target", -ROW_OFFSET),
        ]
        ends = (float(found.lower), float(found.upper))
        return markers, ends, _style(*ends)
    value, error = float(found.value), 2 * float(found.stderr)
    low, high = float(found.lower), float(found.upper)
    if np.isnan(low):
        return [(value, "o", None, 0.0)], (value - error, value + error), ":"
    if np.isnan(high):
        return [(value, ">", "at least", 0.0)], (low, value), "-"
    return [(value, "o", None, 0.0)], (low, high), _style(low, high)


def _style(low, high):
    return "--" if low > high else "-"


def _relative_weights(log_weights: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return log(weight / mean weight), and weights normalised to sum to 1."""
    log_weights = np.asarray(log_weights, float)
    known = (log_weights < np.inf).all() and np.isfinite(log_weights).any()
    if log_weights.ndim != 1 or not known:
        raise ValueError(
            "log_weights must have one entry for each particle, finite or -inf but not "
            f"all -inf, got {log_weights}"
        )
    largest = log_weights.max()
    sizes = np.exp(log_weights - largest)
    return log_weights - largest - np.log(sizes.mean()), sizes / sizes.sum()
