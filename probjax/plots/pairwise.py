"""Couplings between pairs of units, as a matrix and as a graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from probjax.plots.canvas import GREY, axes
from probjax.types import ArrayLike, check_count

COLOURS = "RdBu_r"
WIDEST = 4.0


def couplings(
    matrix: ArrayLike,
    *,
    limit: float | None = None,
    ax: Any = None,
    label: str = "coupling",
) -> Any:
    """A matrix in colours that are symmetric about zero; what is NaN stays blank.

    Args:
        limit: the magnitude of the strongest colours; the largest entry's if None. Let
            biases on a diagonal be NaN, lest they decide.
        label: what the colours tell.

    >>> ax = couplings([[np.nan, -0.3], [-0.3, np.nan]])
    >>> ax.images[0].get_clim()
    (-0.3, 0.3)
    """
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"matrix must be (unit, unit), got shape {matrix.shape}")
    ax = axes(ax)
    largest = _largest(matrix) if limit is None else limit
    image = ax.imshow(matrix, cmap=COLOURS, vmin=-largest, vmax=largest)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, label=label)
    ax.locator_params(integer=True, nbins=6)
    ax.set(xlabel="unit", ylabel="unit")
    return ax


def graph(
    matrix: ArrayLike,
    *,
    positions: ArrayLike | None = None,
    strongest: int | None = None,
    names: Sequence[str] | None = None,
    limit: float | None = None,
    ax: Any = None,
    label: str = "coupling",
) -> Any:
    """Units as dots, and a line for each coupling that is not zero, wide if strong.

    Colours are those of `couplings`. The diagonal is not shown.

    Args:
        matrix: symmetric, `(unit, unit)`.
        positions: where units are, `(unit, 2)`; on a circle if None.
        strongest: how many lines at most, the strongest; all if None.
        names: of the units, written beside them.
        limit: the magnitude of the strongest colours and widest lines; the largest if
            None.
        label: what the colours tell.

    >>> ax = graph([[0, 1, 0], [1, 0, -2], [0, -2, 0]])
    >>> len(ax.collections[0].get_segments())
    2
    """
    matrix, places = _drawable(matrix, positions)
    first, second, values = _edges(matrix, strongest)
    if names is not None and len(names) != len(matrix):
        raise ValueError(f"names must be {len(matrix)}, one a unit, got {len(names)}")
    ax = axes(ax)
    largest = _largest(values) if limit is None else limit
    _draw_lines(
        ax, np.stack([places[first], places[second]], 1), values, largest, label
    )
    ax.scatter(*places.T, s=18, color=GREY, zorder=2)
    # Beside a circle names stand outside of it, elsewhere above.
    ways = places if positions is None else np.tile([0.0, 1.0], (len(places), 1))
    for name, place, way in zip(names or (), places, ways, strict=False):
        beside = {"textcoords": "offset points", "ha": "center", "va": "center"}
        ax.annotate(name, place, tuple(11 * way), fontsize=8, **beside)
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax


def _draw_lines(ax, segments, values, largest, label):
    from matplotlib.collections import LineCollection

    lines = LineCollection(
        list(segments),
        cmap=COLOURS,
        linewidths=0.4 + (WIDEST - 0.4) * np.minimum(np.abs(values) / largest, 1),
        capstyle="round",
        zorder=1,
    )
    lines.set(array=values, clim=(-largest, largest))
    ax.add_collection(lines)
    ax.figure.colorbar(lines, ax=ax, shrink=0.8, label=label)


def _drawable(matrix, positions):
    """The matrix and where its units are."""
    matrix = np.asarray(matrix)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0
    if not square or not np.allclose(matrix, matrix.T, 1e-4, 1e-6, equal_nan=True):
        raise ValueError(f"matrix must be symmetric, got one of {matrix.shape}")
    angles = np.pi / 2 - 2 * np.pi * np.arange(len(matrix)) / len(matrix)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    places = circle if positions is None else np.asarray(positions)
    if places.shape != (len(matrix), 2):
        raise ValueError(
            f"positions must be ({len(matrix)}, 2), one a unit, got {places.shape}"
        )
    return matrix, places


def _edges(matrix, strongest):
    """Pairs that are coupled, the strongest last and thus on top."""
    first, second = np.triu_indices(len(matrix), 1)
    values = np.nan_to_num(matrix[first, second])
    order = np.argsort(np.abs(values), kind="stable")
    order = order[values[order] != 0]
    if strongest is not None:
        check_count("strongest", strongest)
        order = order[-strongest:]
    return first[order], second[order], values[order]


def _largest(values):
    """The largest magnitude, or 1 if there is none."""
    sizes = np.abs(values[np.isfinite(values)])
    return float(sizes.max(initial=0)) or 1.0
