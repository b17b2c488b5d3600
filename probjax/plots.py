"""Figures. Functions take `ax=`, draw on it and return it; matplotlib loads on call."""

from typing import Any

import numpy as np

from probjax.goodness import Comparison
from probjax.models import hopfield
from probjax.types import ArrayLike

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"


def agreement(
    truth: ArrayLike,
    estimate: ArrayLike,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
    marker: str = "o",
) -> Any:
    """Scatter `estimate` against `truth`, entry by entry, with the line of equality."""
    ax = _axes(ax)
    both = np.concatenate([np.ravel(truth), np.ravel(estimate)])
    ends = np.array([both.min(), both.max()])
    ax.plot(ends, ends, color=GREY, linewidth=0.8, zorder=0)
    ax.scatter(
        np.ravel(truth),
        np.ravel(estimate),
        s=14,
        marker=marker,
        color=color,
        alpha=0.6,
        linewidths=0,
        label=label,
    )
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def comparison(comparison: Comparison, *, ax: Any = None) -> Any:
    """Observed against expected means, with standard errors and line of equality."""
    ax = agreement(comparison.expected, comparison.observed, ax=ax)
    ax.errorbar(
        np.ravel(comparison.expected),
        np.ravel(comparison.observed),
        np.ravel(comparison.stderr),
        fmt="none",
        ecolor=BLUE,
        elinewidth=0.8,
        alpha=0.4,
    )
    ax.set_xlabel("expected")
    ax.set_ylabel("observed")
    return ax


def couplings(matrix: ArrayLike, *, ax: Any = None, limit: float | None = None) -> Any:
    """Show a coupling matrix in colours that are symmetric about zero."""
    ax = _axes(ax)
    largest = float(np.abs(np.asarray(matrix)).max()) if limit is None else limit
    image = ax.imshow(matrix, cmap="RdBu_r", vmin=-largest, vmax=largest)
    ax.figure.colorbar(image, ax=ax, shrink=0.8)
    ax.set_xticks([])
    ax.set_yticks([])
    return ax


def capacity(
    found: hopfield.Capacity,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
) -> Any:
    """The share of random patterns stored against how many there were."""
    ax = _axes(ax)
    ax.plot(found.num_patterns, found.patterns, color=color, label=label)
    return _shares(ax, "patterns to store", "share stored")


def recovery(
    found: hopfield.Recovery,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
    marker: str = "o",
) -> Any:
    """The share of patterns recovered exactly against their flipped bits."""
    ax = _axes(ax)
    ax.plot(
        found.num_flips,
        found.exact,
        color=color,
        marker=marker,
        markersize=3.5,
        label=label,
    )
    return _shares(ax, "flipped bits", "share recovered exactly")


def _shares(ax, xlabel, ylabel):
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _axes(ax):
    return load_pyplot().subplots(layout="constrained")[1] if ax is None else ax


def load_pyplot() -> Any:
    """Matplotlib's pyplot, or a sentence on how to get it."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error
    return pyplot
