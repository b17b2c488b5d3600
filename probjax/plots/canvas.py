"""What all figures share: colours that the colour-blind can tell apart, and axes.

The colours are those of Okabe and Ito; lines that share axes should also differ in
marker or dashes, for prints without colours.
"""

from typing import Any

import numpy as np

from probjax.types import ArrayLike

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
SKY, PINK, GREY = "#56B4E9", "#CC79A7", "#666666"
BLACK, PALE = "#000000", "#D9D9D9"


def load_pyplot() -> Any:
    """Matplotlib's pyplot, or a sentence on how to get it.

    >>> load_pyplot().__name__
    'matplotlib.pyplot'
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error
    return pyplot


def axes(ax: Any) -> Any:
    """Those given, or those of a new figure."""
    return load_pyplot().subplots(layout="constrained")[1] if ax is None else ax


def name_axes(ax: Any, xlabel: str = "", ylabel: str = "") -> Any:
    """Name the axes that have no name yet: the caller's words are never replaced."""
    ax.set_xlabel(ax.get_xlabel() or xlabel)
    ax.set_ylabel(ax.get_ylabel() or ylabel)
    return ax


def finish(ax: Any, xlabel: str = "", ylabel: str = "") -> Any:
    """Name the axes and take away the frame where it says nothing."""
    ax.spines[["top", "right"]].set_visible(False)
    return name_axes(ax, xlabel, ylabel)


def once(ax: Any, label: str) -> str | None:
    """The label, or None if the legend has it: what calls share is named once."""
    return None if label in ax.get_legend_handles_labels()[1] else label


def alike(**arrays: ArrayLike) -> list[np.ndarray]:
    """Arrays of one shape, flat."""
    found = {name: np.asarray(array) for name, array in arrays.items()}
    shapes = {array.shape for array in found.values()}
    if len(shapes) > 1 or any(array.size == 0 for array in found.values()):
        said = ", ".join(f"{name} {array.shape}" for name, array in found.items())
        raise ValueError(
            f"arrays must have the same shape and not be empty: got {said}"
        )
    return [array.ravel() for array in found.values()]
