"""Estimates against true values, and means over data against those of a model.

Bands and error bars extend two standard errors to either side, so that they contain
about 19 of 20 entries if the model is correct.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from probjax.checks import check_count
from probjax.diagnostics.goodness import Comparison
from probjax.plots.canvas import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PALE,
    axes,
    finish,
    flat_arrays,
    unused_label,
)
from probjax.types import ArrayLike

NOISE = "2 standard errors"
UNDETERMINED = "not determined by the data"


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
    """Scatter plot of `estimate` against `truth`, with the line of equality.

    The line spans the range of `truth`, however far the estimates are from it.

    Args:
        truth: true values.
        estimate: estimated values, of the same shape.
        size: the area of a marker in square points; small ones suit thousands of
            entries.

    >>> ax = agreement([0.0, 1.0], [0.1, 50.0])
    >>> ax.lines[0].get_xydata().tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    truth, estimate = flat_arrays(truth=truth, estimate=estimate)
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
        # Unfilled markers, such as crosses, consist of lines only.
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
    """Scatter plot of means over the data against the model's, with sampling error.

    A vertical bar at each entry extends two standard errors to either side of equality.
    A point outside of its bar differs by more than sampling error.

    Args:
        found: a comparison, such as the result of `goodness.pair_frequencies`.

    >>> share = np.array([0.5, 0.1])
    >>> ax = comparison(Comparison(share + 0.01, share, share / 10, np.ones(2)))
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('model', 'data')
    """
    expected, observed, stderr = flat_arrays(
        expected=found.expected, observed=found.observed, stderr=found.stderr
    )
    ax = finish(axes(ax), "model", "data")
    low, high = expected - 2 * stderr, expected + 2 * stderr
    shared = unused_label(ax, NOISE)
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
    """Distribution of the number of units that are on: data as dots, model as a line.

    The band around the line extends two standard errors to either side, which include
    the sampling error of the data and of the model; a model that fits has the data in
    its band. Counts are shown if they occur in the data, or if the model expects them
    at least as often as the rarest count in the data. Further calls on the same axes
    add models; the dots are drawn once.

    Args:
        found: the result of `goodness.population_count`.

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
            "found must be a result of goodness.population_count, with one share for "
            f"each count, got shape {observed.shape}"
        )
    ax = axes(ax)
    least = observed[observed > 0].min()
    shown = np.flatnonzero((observed > 0) | (expected >= least))
    line = np.where(expected[shown] > 0, expected[shown], np.nan)
    floor = least / 4
    low = np.maximum(line - 2 * stderr[shown], floor / 10)
    high = line + 2 * stderr[shown]
    if unused_label(ax, "data"):
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
    names: Sequence[str] | None = None,
    num_names: int = 5,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
) -> Any:
    """Sorted parameters, with error bars of two standard errors to either side.

    Parameters with an infinite standard error, which the data do not determine, are
    drawn as rings without a bar.

    Args:
        values: estimated parameters.
        stderr: their standard errors, such as `uncertainty(...).stderr`.
        truth: true parameters, if known; they are drawn as a line and define the order.
        names: the names of the parameters, of which the outliers are labelled; None for
            no labels.
        num_names: the number of outliers: parameters that are farthest from the truth,
            in standard errors, or farthest from 0 without a truth.

    >>> ax = estimates([0.3, -0.2], [0.1, 0.1], truth=[0.25, -0.25])
    >>> [line.get_ydata().tolist() for line in ax.lines]
    [[-0.25, 0.25], [-0.2, 0.3]]
    """
    values, stderr = flat_arrays(values=values, stderr=stderr)
    if names is not None and len(names) != len(values):
        raise ValueError(f"names must have {len(values)} entries, got {len(names)}")
    order = np.argsort(values, kind="stable")
    ax = axes(ax)
    if truth is not None:
        truth, _ = flat_arrays(truth=np.ravel(truth), values=values)
        order = np.argsort(truth, kind="stable")
        line = {"color": ORANGE, "linewidth": 1.2, "zorder": 3}
        ax.plot(truth[order], label=unused_label(ax, "truth"), **line)
    misses = (values if truth is None else values - truth)[order]
    values, stderr = values[order], stderr[order]
    finite = np.isfinite(stderr)
    places = np.arange(len(values))
    bars = {"fmt": ".", "color": color, "markersize": 5, "elinewidth": 1, "zorder": 2}
    bar = ax.errorbar(
        places[finite], values[finite], 2 * stderr[finite], label=label, **bars
    )
    bar[2][0].set_alpha(0.35)
    if not finite.all():
        ring = {"color": color, "mfc": "none", "label": unused_label(ax, UNDETERMINED)}
        ax.plot(places[~finite], values[~finite], "o", **ring)
    if names is not None:
        check_count("num_names", num_names)
        z = np.where(finite & (stderr > 0), misses / np.where(stderr > 0, stderr, 1), 0)
        outliers = np.argsort(-np.abs(np.nan_to_num(z)), kind="stable")[:num_names]
        ends = values + 2 * np.where(finite, stderr, 0) * np.where(misses < 0, -1, 1)
        _name_outliers(ax, outliers, misses, ends, [names[i] for i in order])
    ax.locator_params(axis="x", integer=True)
    by = "of its estimate" if truth is None else "of its true value"
    return finish(ax, f"parameter, in order {by}", "value")


def _name_outliers(ax, outliers, misses, ends, names):
    """Write names at the ends of the error bars, above or below as the values miss."""
    for i in outliers:
        up = misses[i] >= 0
        style = {"ha": "center", "va": "bottom" if up else "top", "fontsize": 8}
        place = {"xytext": (0, 3 if up else -3), "textcoords": "offset points"}
        ax.annotate(names[i], (i, ends[i]), color=BLACK, zorder=4, **place, **style)
