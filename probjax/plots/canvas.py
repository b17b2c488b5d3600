"""Colours and axes of all figures.

The colours are those of Okabe and Ito, which colour-blind readers can distinguish.
Lines on the same axes should also differ in marker or line style, for prints without
colours.
"""

from typing import Any

import numpy as np

from probjax.types import ArrayLike

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
SKY, PINK, GREY = "#56B4E9", "#CC79A7", "#666666"
BLACK, PALE = "#000000", "#D9D9D9"


def load_pyplot() -> Any:
    """Import and return `matplotlib.pyplot`.

    Raises:
        ImportError: if matplotlib is not installed, with the command that installs it.

    >>> load_pyplot().__name__
    'matplotlib.pyplot'
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plots require matplotlib: pip install matplotlib") from error
    return pyplot


def axes(ax: Any) -> Any:
    """Return `ax`, or the axes of a new figure if it is None."""
    return load_pyplot().subplots(layout="constrained")[1] if ax is None else ax


def name_axes(ax: Any, xlabel: str = "", ylabel: str = "") -> Any:
    """Set the axis labels that are still empty, and return the axes."""
    ax.set_xlabel(ax.get_xlabel() or xlabel)
    ax.set_ylabel(ax.get_ylabel() or ylabel)
    return ax


def finish(ax: Any, xlabel: str = "", ylabel: str = "") -> Any:
    """Set empty axis labels, hide the top and right spines, and return the axes."""
    ax.spines[["top", "right"]].set_visible(False)
    return name_axes(ax, xlabel, ylabel)


def unused_label(ax: Any, label: str) -> str | None:
    """Return the label, or None if the axes already have an artist of this label.

    Several calls on the same axes then add a shared entry to the legend only once.
    """
    return None if label in ax.get_legend_handles_labels()[1] else label


def flat_arrays(**arrays: ArrayLike) -> list[np.ndarray]:
    """Return the arrays flattened; raise if their shapes differ or they are empty."""
    found = {name: np.asarray(array) for name, array in arrays.items()}
    shapes = {array.shape for array in found.values()}
    if len(shapes) > 1 or any(array.size == 0 for array in found.values()):
        given = ", ".join(f"{name} {array.shape}" for name, array in found.items())
        raise ValueError(
            f"arrays must have the same shape and not be empty, got {given}"
        )
    return [array.ravel() for array in found.values()]
