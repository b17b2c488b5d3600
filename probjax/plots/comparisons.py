"""What was found against what it should be: parameters, moments, counts.

Noise is shown as two standard errors to either side throughout: where a model is true,
19 of 20 entries are within.
"""

from typing import Any

import numpy as np

from probjax.diagnostics.goodness import Comparison
from probjax.plots.canvas import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PALE,
    alike,
    axes,
    finish,
    once,
)
from probjax.types import ArrayLike

NOISE = "2 standard errors"
UNHELD = "not held by the data"


def agreement(
    truth: ArrayLike,
    estimate: ArrayLike,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
    marker: str = "o",
    size: float = 14.0,
) -> Any:
    """`estimate` against `truth`, entry by entry, and the line where they are equal.

    The line spans the truth, whatever becomes of the estimates.

    Args:
        size: the area of a marker, in square points: small ones suit thousands.

    >>> ax = agreement([0.0, 1.0], [0.1, 50.0])
    >>> ax.lines[0].get_xydata().tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    truth, estimate = alike(truth=truth, estimate=estimate)
    ax = axes(ax)
    from matplotlib.markers import MarkerStyle

    ends = [np.nanmin(truth), np.nanmax(truth)]
    ax.plot(ends, ends, color=GREY, linewidth=0.8, zorder=1)
    ax.scatter(
        truth,
        estimate,
        s=size,
        marker=marker,
        color=color,
        alpha=0.6,
        # Crosses are nothing but lines.
        linewidths=0 if MarkerStyle(marker).is_filled() else 1,
        label=label,
        zorder=2,
    )
    return finish(ax, "truth", "estimate")


def comparison(
    found: Comparison,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
    marker: str = "o",
) -> Any:
    """Means over the data against the model's, with a band of sampling noise.

    The band is two standard errors about equality, each entry's own: a point beyond it
    differs by more than noise.

    >>> share = np.array([0.5, 0.1])
    >>> ax = comparison(Comparison(share + 0.01, share, share / 10, np.ones(2)))
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('model', 'data')
    """
    expected, observed, stderr = alike(
        expected=found.expected, observed=found.observed, stderr=found.stderr
    )
    ax = finish(axes(ax), "model", "data")
    low, high = expected - 2 * stderr, expected + 2 * stderr
    shared = once(ax, NOISE)
    ax.vlines(expected, low, high, color=PALE, linewidth=2.5, zorder=0, label=shared)
    return agreement(expected, observed, ax=ax, label=label, color=color, marker=marker)


def population_count(
    found: Comparison,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
    linestyle: str = "-",
) -> Any:
    """How many units are on at once: the data's shares as dots, the model's as a line.

    The model's band is two standard errors wide to either side, that of the data's
    sampling and its own: a model that fits has the data in it. Shown is what was seen,
    or should have been by the model. Further calls add models; dots are drawn once.

    Args:
        found: of `goodness.population_count`.

    >>> share = np.array([0.5, 0.4, 0.1])
    >>> found = Comparison(share, share, share / 10, np.zeros(3))
    >>> ax = population_count(found, label="model")
    >>> ax.get_yscale(), [line.get_label() for line in ax.lines]
    ('log', ['data', 'model'])
    """
    expected, observed, stderr = map(
        np.asarray, (found.expected, found.observed, found.stderr)
    )
    if observed.ndim != 1 or not (observed > 0).any():
        raise ValueError(
            "found must be of goodness.population_count, one share to a count: "
            f"got shape {observed.shape}"
        )
    ax = axes(ax)
    least = observed[observed > 0].min()
    shown = np.flatnonzero((observed > 0) | (expected >= least))
    line = np.where(expected[shown] > 0, expected[shown], np.nan)
    floor = least / 4
    low = np.maximum(line - 2 * stderr[shown], floor / 10)
    high = line + 2 * stderr[shown]
    if once(ax, "data"):
        dots = np.flatnonzero(observed > 0)
        style = {"color": BLACK, "markersize": 4, "zorder": 3, "label": "data"}
        ax.plot(dots, observed[dots], "o", **style)
    ax.fill_between(shown, low, high, color=color, alpha=0.2, linewidth=0, zorder=1)
    ax.plot(shown, line, color=color, linestyle=linestyle, label=label, zorder=2)
    ax.set_yscale("log")
    heights = np.concatenate([each.get_ydata() for each in ax.lines])
    ax.set_ylim(floor, 2 * np.nanmax(heights))
    ax.locator_params(axis="x", integer=True)
    return finish(ax, "units that are on", "share of states")


def estimates(
    values: ArrayLike,
    stderr: ArrayLike,
    *,
    truth: ArrayLike | None = None,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
) -> Any:
    """Parameters in order, with bars of two standard errors to either side.

    What nothing holds, whose error is infinite, is a ring without a bar.

    Args:
        stderr: as of `uncertainty(...).stderr`.
        truth: what they should be, if that is known: a line, which sets the order.

    >>> ax = estimates([0.3, -0.2], [0.1, 0.1], truth=[0.25, -0.25])
    >>> [line.get_ydata().tolist() for line in ax.lines]
    [[-0.25, 0.25], [-0.2, 0.3]]
    """
    values, stderr = alike(values=values, stderr=stderr)
    order = np.argsort(values, kind="stable")
    ax = axes(ax)
    if truth is not None:
        truth, _ = alike(truth=np.ravel(truth), values=values)
        order = np.argsort(truth, kind="stable")
        line = {"color": ORANGE, "linewidth": 1.2, "zorder": 3}
        ax.plot(truth[order], label=once(ax, "truth"), **line)
    values, stderr = values[order], stderr[order]
    held = np.isfinite(stderr)
    places = np.arange(len(values))
    bars = {"fmt": ".", "color": color, "markersize": 5, "elinewidth": 1, "zorder": 2}
    bar = ax.errorbar(places[held], values[held], 2 * stderr[held], label=label, **bars)
    bar[2][0].set_alpha(0.35)
    if not held.all():
        ring = {"color": color, "mfc": "none", "label": once(ax, UNHELD)}
        ax.plot(places[~held], values[~held], "o", **ring)
    ax.locator_params(axis="x", integer=True)
    by = "of its estimate" if truth is None else "of its true value"
    return finish(ax, f"parameter, in order {by}", "value")
