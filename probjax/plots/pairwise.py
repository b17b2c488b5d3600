"""Couplings between pairs of units, drawn as a matrix or as a graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from probjax.checks import check_count
from probjax.plots.canvas import GREY, PALE, axes, load_pyplot, name_axes
from probjax.types import ArrayLike

COLOURS = "RdBu_r"
WIDEST = 4.0
COUPLING = "coupling (red excites, blue inhibits)"


def couplings(
    matrix: ArrayLike,
    *,
    limit: float | None = None,
    ax: Any = None,
    label: str | None = None,
) -> Any:
    """Matrix in colours symmetric about zero: red is positive, blue negative.

    The diagonal of a symmetric matrix, such as biases or variances, is left out: it is
    grey, like NaN entries. Infinite entries have the strongest colour.

    Args:
        matrix: couplings, `(unit, unit)`, positive for units that excite each other,
            such as `ising.to_fields(params).coupling`. The signs of
            `ising.coupling_matrix`, J of E = x'Jx, are opposite.
        limit: the magnitude of the strongest colour; None for the largest finite
            magnitude that is drawn.
        label: the label of the colour bar; None for "coupling (red excites, blue
            inhibits)".

    >>> ax = couplings([[2.0, -0.3], [-0.3, 5.0]])
    >>> ax.images[0].get_clim()
    (-0.3, 0.3)
    """
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"matrix must be (unit, unit), got shape {matrix.shape}")
    matrix, largest = _bounded(_off_diagonal(matrix), limit)
    ax = axes(ax)
    colours = load_pyplot().get_cmap(COLOURS).with_extremes(bad=PALE)
    image = ax.imshow(matrix, cmap=colours, vmin=-largest, vmax=largest)
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
    """Graph with a dot for each unit and a line for each coupling that is not zero.

    The stronger the coupling, the wider the line. Colours are those of `couplings`: red
    is positive. Infinite couplings have the strongest colour and the widest line. The
    diagonal is not shown.

    Args:
        matrix: symmetric couplings, `(unit, unit)`, with signs as for `couplings`.
        positions: coordinates of the units, `(unit, 2)`; None for a circle.
        num_edges: draw at most this many lines, those of the strongest couplings; None
            for all.
        names: the names of the units, written next to their dots.
        limit: the magnitude of the strongest colour and the widest line; None for the
            largest finite magnitude among the lines.
        label: the label of the colour bar; None as for `couplings`.

    >>> ax = graph([[0, 1, 0], [1, 0, -2], [0, -2, 0]])
    >>> len(ax.collections[0].get_segments())
    2
    """
    matrix, places = _drawable(matrix, positions)
    first, second, values = _edges(matrix, num_edges)
    values, largest = _bounded(values, limit)
    if names is not None and len(names) != len(matrix):
        raise ValueError(f"names must have {len(matrix)} entries, got {len(names)}")
    ax = axes(ax)
    ends = np.stack([places[first], places[second]], 1)
    _draw_lines(ax, ends, values, largest, label or COUPLING)
    ax.scatter(*places.T, s=18, color=GREY, zorder=2)
    if names is not None:
        _write_names(ax, names, places, outward=positions is None)
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax


def _write_names(ax, names, places, *, outward):
    """Write names above their units, or outside of the circle on which units are."""
    above = np.tile([0.0, 1.0], (len(places), 1))
    directions = places if outward else above
    for name, place, (right, up) in zip(names, places, directions, strict=True):
        side = {-1: "right", 0: "center", 1: "left"}[round(1.4 * right)]
        style = {"ha": side, "va": "center", "fontsize": 8}
        offset = (7 * right, 9 * up)
        ax.annotate(name, place, offset, textcoords="offset points", **style)
    if len(names):
        ax.margins(0.25)


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
    """Return the matrix and the coordinates of its units, after checks of both."""
    matrix = np.asarray(matrix)
    if not (matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0):
        raise ValueError(f"matrix must be square, got shape {matrix.shape}")
    unlike = _asymmetric(matrix)
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
            f"positions must have shape ({len(matrix)}, 2), got {places.shape}"
        )
    return matrix, places


def _asymmetric(matrix):
    """Whether each entry of a square matrix differs from its mirror image."""
    return ~np.isclose(matrix, matrix.T, 1e-4, 1e-6, equal_nan=True)


def _off_diagonal(matrix):
    """Return a symmetric matrix with NaN on its diagonal, and any other unchanged.

    Weights between two groups of units may be square, too, but are not symmetric.
    """
    is_square = matrix.shape[0] == matrix.shape[1]
    if not is_square or _asymmetric(matrix).any():
        return matrix
    return np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)


def _edges(matrix, num_edges):
    """Return both ends and the values of the edges; the strongest are drawn last."""
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
    """Return the values with infinite ones set to the limit, and the limit.

    The default limit is the largest finite magnitude, or 1 if all values are 0.
    """
    if limit is None:
        sizes = np.abs(values[np.isfinite(values)])
        limit = float(sizes.max(initial=0)) or 1.0
    if not 0 < limit < np.inf:
        raise ValueError(f"limit must be finite and above 0, got {limit}")
    return np.nan_to_num(values, nan=np.nan, posinf=limit, neginf=-limit), limit
