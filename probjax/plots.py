"""Figures. Functions take `ax=`, draw on it and return it; matplotlib loads on call."""

from typing import Any

import numpy as np

from probjax.types import Array

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"


def agreement(
    truth: Array,
    estimate: Array,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
    marker: str = "o",
) -> Any:
    """Scatter `estimate` against `truth`, entry by entry, with the line of equality."""
    ax = _axes(ax)
    truth, estimate = np.ravel(np.asarray(truth)), np.ravel(np.asarray(estimate))
    both = np.concatenate([truth, estimate])
    ends = np.array([both.min(), both.max()])
    ax.plot(ends, ends, color=GREY, linewidth=0.8, zorder=0)
    ax.scatter(
        truth,
        estimate,
        s=14,
        marker=marker,
        color=color,
        alpha=0.6,
        linewidths=0,
        label=label,
    )
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def couplings(matrix: Array, *, ax: Any = None, limit: float | None = None) -> Any:
    """Show a coupling matrix in colours that are symmetric about zero."""
    ax = _axes(ax)
    matrix = np.asarray(matrix)
    limit = np.abs(matrix).max() if limit is None else limit
    image = ax.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit)
    ax.figure.colorbar(image, ax=ax, shrink=0.8)
    ax.set_xticks([])
    ax.set_yticks([])
    return ax


def _axes(ax):
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error
    return pyplot.subplots(layout="constrained")[1]
