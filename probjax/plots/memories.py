"""What networks store and recover."""

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
    """The share of random patterns stored against how many there were.

    >>> import numpy as np
    >>> stored = np.array([1.0, 0.5])
    >>> ax = capacity(hopfield.Capacity(np.array([4, 8]), stored, stored), marker="s")
    >>> ax.lines[0].get_xydata().tolist()
    [[4.0, 1.0], [8.0, 0.5]]
    """
    ax = axes(ax)
    style: dict[str, Any] = {"color": color, "marker": marker, "linestyle": linestyle}
    ax.plot(found.num_patterns, found.patterns, markersize=3.5, label=label, **style)
    return _shares(ax, "patterns to store", "share stored")


def recovery(
    found: hopfield.Recovery,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
    marker: str = "o",
    linestyle: str = "-",
) -> Any:
    """The share of patterns recovered exactly against their flipped bits.

    >>> import numpy as np
    >>> exact = np.array([1.0, 0.5])
    >>> ax = recovery(hopfield.Recovery(np.array([0, 8]), exact, exact))
    >>> ax.get_xlabel()
    'flipped bits'
    """
    ax = axes(ax)
    style: dict[str, Any] = {"color": color, "marker": marker, "linestyle": linestyle}
    ax.plot(found.num_flips, found.exact, markersize=3.5, label=label, **style)
    return _shares(ax, "flipped bits", "share recovered exactly")


def _shares(ax, xlabel, ylabel):
    ax.set_ylim(-0.03, 1.03)
    return finish(ax, xlabel, ylabel)
