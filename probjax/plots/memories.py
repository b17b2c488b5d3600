"""Capacity of Hopfield networks, and recovery of patterns from noisy ones."""

from typing import Any

from probjax.models import hopfield
from probjax.plots.canvas import BLUE, axes, finish


def capacity(
    found: hopfield.Capacity,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
    marker: str = "o",
    linestyle: str = "-",
) -> Any:
    """Share of random patterns that are stored, against the number of patterns.

    Args:
        found: the result of `hopfield.capacity`.

    >>> import numpy as np
    >>> stored = np.array([1.0, 0.5])
    >>> ax = capacity(hopfield.Capacity(np.array([4, 8]), stored, stored), marker="s")
    >>> ax.lines[0].get_xydata().tolist()
    [[4.0, 1.0], [8.0, 0.5]]
    """
    ax = axes(ax)
    style: dict[str, Any] = {"color": color, "marker": marker, "linestyle": linestyle}
    ax.plot(found.num_patterns, found.patterns, markersize=3.5, label=label, **style)
    return _finish_shares(ax, "patterns to store", "share stored")


def recovery(
    found: hopfield.Recovery,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
    marker: str = "o",
    linestyle: str = "-",
) -> Any:
    """Share of patterns recovered exactly, against the number of flipped bits.

    Args:
        found: the result of `hopfield.recovery`.

    >>> import numpy as np
    >>> exact = np.array([1.0, 0.5])
    >>> ax = recovery(hopfield.Recovery(np.array([0, 8]), exact, exact))
    >>> ax.get_xlabel()
    'flipped bits'
    """
    ax = axes(ax)
    style: dict[str, Any] = {"color": color, "marker": marker, "linestyle": linestyle}
    ax.plot(found.num_flips, found.exact, markersize=3.5, label=label, **style)
    return _finish_shares(ax, "flipped bits", "share recovered exactly")


def _finish_shares(ax, xlabel, ylabel):
    ax.set_ylim(-0.03, 1.03)
    return finish(ax, xlabel, ylabel)
