"""Couplings between pairs of units, as a matrix and as a graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from probjax.checks import check_count
from probjax.plots.canvas import GREY, axes, name_axes
from probjax.types import ArrayLike

COLOURS = "RdBu_r"
WIDEST = 4.0
COUPLING = "coupling"


def couplings(
    matrix: ArrayLike,
    *,
    limit: float | None = None,
    ax: Any = None,
    label: str | None = None,
) -> Any:
    """A matrix in colours that are symmetric about zero; what is NaN stays blank.

    Red is positive, blue negative. In an energy x'Jx, as of `ising.coupling_matrix`, a
    positive coupling keeps two units from being on together, a negative one brings them
    together.
    What is infinite has the strongest colour.

    Args:
        limit: the magnitude of the strongest colours; the largest entry's if None. Let
            biases on a diagonal be NaN, lest they decide.
        label: what the colours tell, beside their bar; "coupling" if None.

    >>> ax = couplings([[np.nan, -0.3], [-0.3, np.nan]])
    >>> ax.images[0].get_clim()
    (-0.3, 0.3)
    """
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"matrix must be (unit, unit), got shape {matrix.shape}")
    matrix, largest = _bounded(matrix, limit)
    ax = axes(ax)
    image = ax.imshow(matrix, cmap=COLOURS, vmin=-largest, vmax=largest)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, label=label or COUPLING)
    ax.locator_params(integer=True, nbins=6)
    return name_axes(ax, "unit", "unit")


def graph(
    matrix: ArrayLike,
    *,
    positions: ArrayLike | None = None,
    num_edges: int | None = None,
    names: Sequence[str] | None = None,
    limit: float | None = None,
    ax: Any = None,
    label: str | None = None,
) -> Any:
    """Units as dots, and a line for each coupling that is not zero, wide if strong.

    Colours are those of `couplings`: red is positive, which in an energy x'Jx keeps two
    units from being on together. What is infinite is as wide as the strongest. The
    diagonal is not shown.

    Args:
        matrix: symmetric, `(unit, unit)`.
        positions: where units are, `(unit, 2)`; on a circle if None.
        num_edges: how many lines at most, the strongest; all if None.
        names: of the units, written beside them.
        limit: the magnitude of the strongest colours and widest lines; the largest if
            None.
        label: what the colours tell, beside their bar; "coupling" if None.

    >>> ax = graph([[0, 1, 0], [1, 0, -2], [0, -2, 0]])
    >>> len(ax.collections[0].get_segments())
    2
    """
    matrix, places = _drawable(matrix, positions)
    first, second, values = _edges(matrix, num_edges)
    values, largest = _bounded(values, limit)
    if names is not None and len(names) != len(matrix):
        raise ValueError(f"names must be {len(matrix)}, one a unit, got {len(names)}")
    ax = axes(ax)
    ends = np.stack([places[first], places[second]], 1)
    _draw_lines(ax, ends, values, largest, label or COUPLING)
    ax.scatter(*places.T, s=18, color=GREY, zorder=2)
    # Beside a circle names stand outside of it, elsewhere above.
    ways = places if positions is None else np.tile([0.0, 1.0], (len(places), 1))
    named = () if names is None else names
    for name, place, way in zip(named, places, ways, strict=False):
        sides = {-1: "right", 0: "center", 1: "left"}
        beside = {"ha": sides[round(1.4 * way[0])], "va": "center", "fontsize": 8}
        offset = (7 * way[0], 9 * way[1])
        ax.annotate(name, place, offset, textcoords="offset points", **beside)
    if len(named):
        ax.margins(0.25)
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
    if not (matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0):
        raise ValueError(f"matrix must be square, got shape {matrix.shape}")
    unlike = ~np.isclose(matrix, matrix.T, 1e-4, 1e-6, equal_nan=True)
    if unlike.any():
        i, j = np.argwhere(unlike)[0]
        raise ValueError(
            f"matrix must be symmetric, got {matrix[i, j]:g} at ({i}, {j}) and "
            f"{matrix[j, i]:g} at ({j}, {i})"
        )
    angles = np.pi / 2 - 2 * np.pi * np.arange(len(matrix)) / len(matrix)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    places = circle if positions is None else np.asarray(positions)
    if places.shape != (len(matrix), 2):
        raise ValueError(
            f"positions must be ({len(matrix)}, 2), one a unit, got {places.shape}"
        )
    return matrix, places


def _edges(matrix, num_edges):
    """Pairs that are coupled, the strongest last and thus on top."""
    first, second = np.triu_indices(len(matrix), 1)
    values = matrix[first, second]
    values = np.where(np.isnan(values), 0, values)
    order = np.argsort(np.abs(values), kind="stable")
    order = order[values[order] != 0]
    if num_edges is not None:
        check_count("num_edges", num_edges)
        order = order[-num_edges:]
    return first[order], second[order], values[order]


def _bounded(values, limit):
    """Values, none infinite, and the limit: the largest magnitude, or 1 if none is."""
    if limit is None:
        sizes = np.abs(values[np.isfinite(values)])
        limit = float(sizes.max(initial=0)) or 1.0
    if not 0 < limit < np.inf:
        raise ValueError(f"limit must be finite and above 0, got {limit}")
    return np.nan_to_num(values, nan=np.nan, posinf=limit, neginf=-limit), limit
