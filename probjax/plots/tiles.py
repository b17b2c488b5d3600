"""Sheets of images side by side: filters, what groups of them pool, and samples."""

import math
from typing import Any

import numpy as np

from probjax.checks import check_count
from probjax.plots.canvas import PALE, axes, load_pyplot
from probjax.types import ArrayLike


def receptive_fields(
    filters: ArrayLike,
    *,
    shape: tuple[int, int] | None = None,
    num_columns: int | None = None,
    ax: Any = None,
) -> Any:
    """Filters as images side by side, of equal contrast, grey being zero.

    Of white coordinates show `preprocessing.pixel_filters(whitening, filters)`, and for
    the columns of a basis `preprocessing.pixel_bases(whitening, basis).T`.

    Args:
        filters: one a row, `(filter, site)`.
        shape: rows and columns of pixels of each; square if None.
        num_columns: how many side by side; about as many as below each other if None.

    >>> ax = receptive_fields(np.eye(6), shape=(2, 3), num_columns=6)
    >>> ax.images[0].get_array().shape
    (4, 25)
    """
    tiles = _filters(filters, shape)
    return _mosaic(tiles, num_columns, ax)


def groupings(
    filters: ArrayLike,
    weights: ArrayLike,
    *,
    shape: tuple[int, int] | None = None,
    num_columns: int = 10,
    ax: Any = None,
) -> Any:
    """What groups pool: a row a group, its filters from the strongest to the weakest.

    Contrasts are the magnitudes of weights as shares of the group's largest, whatever
    their signs: those of an mcRBM's pools are negative.

    Args:
        filters: as for `receptive_fields`.
        weights: one column a group, `(filter, group)`.
        shape: as for `receptive_fields`.
        num_columns: how many of a group's filters to show, at most.

    >>> ax = groupings(np.eye(4), np.ones((4, 2)), num_columns=3)
    >>> ax.images[0].get_array().shape
    (7, 10)
    """
    tiles, weights = _filters(filters, shape), np.asarray(weights)
    check_count("num_columns", num_columns)
    fits = weights.ndim == 2 and len(weights) == len(tiles) and weights.size > 0
    if not (fits and np.isfinite(weights).all()):
        raise ValueError(
            f"weights must be finite (filter, group) for {len(tiles)} filters, got "
            f"shape {weights.shape}"
        )
    strength = np.abs(weights.T)
    order = np.argsort(-strength, axis=1, kind="stable")[:, :num_columns]
    contrast = _normalised(np.take_along_axis(strength, order, axis=1))
    shown = contrast[:, :, None, None] * tiles[order]
    return _mosaic(shown.reshape(-1, *tiles.shape[1:]), order.shape[1], ax)


def images(
    rows: ArrayLike,
    *,
    shape: tuple[int, int] | None = None,
    num_columns: int | None = None,
    ax: Any = None,
) -> Any:
    """Images side by side, white at 0 and black at 1: data, or samples of a model.

    Between them is pale grey, so that what is white has an edge.

    Args:
        rows: grey levels from 0 to 1, one image a row, `(image, pixel)`.
        shape: as for `receptive_fields`.
        num_columns: likewise.

    >>> ax = images(np.zeros((9, 16)))
    >>> ax.images[0].get_array().shape
    (16, 16)
    """
    rows = np.asarray(rows)
    if rows.size and (rows.min() < 0 or rows.max() > 1):
        least, most = rows.min(), rows.max()
        raise ValueError(f"rows must be levels from 0 to 1, got {least:g} to {most:g}")
    tiles = _tiles("rows", rows, shape)
    return _mosaic(1 - 2 * tiles, num_columns, ax, gutter=PALE)


def _filters(filters, shape):
    """Filters as images, each with a largest magnitude of 1, or of 0."""
    tiles = _tiles("filters", filters, shape)
    return _normalised(tiles.reshape(len(tiles), -1)).reshape(tiles.shape)


def _tiles(name, rows, shape):
    """Rows as images, square if no shape is given."""
    rows = np.asarray(rows)
    if rows.ndim != 2 or rows.size == 0 or not np.isfinite(rows).all():
        raise ValueError(
            f"{name} must be finite ({name.rstrip('s')}, site), got {rows.shape}"
        )
    side = math.isqrt(rows.shape[1])
    shape = (side, side) if shape is None else shape
    if math.prod(shape) != rows.shape[1]:
        raise ValueError(
            f"{name} of {rows.shape[1]} sites are no images of {shape[0]} x "
            f"{shape[1]} pixels: give shape=(rows, columns), or bring filters of white "
            "coordinates to pixels by preprocessing.pixel_filters"
        )
    return rows.reshape(-1, *shape)


def _normalised(rows):
    largest = np.abs(rows).max(axis=1, keepdims=True)
    return rows / np.where(largest > 0, largest, 1)


def _mosaic(tiles, columns, ax, *, gutter="none"):
    """Images row by row, with a line of nothing around each, in a colour of its own."""
    columns = math.ceil(math.sqrt(len(tiles))) if columns is None else columns
    check_count("num_columns", columns)
    ax = axes(ax)
    count, height, width = tiles.shape
    framed = np.full((-(-count // columns) * columns, height + 1, width + 1), np.nan)
    framed[:count, 1:, 1:] = tiles
    sheet = framed.reshape(-1, columns, height + 1, width + 1).swapaxes(1, 2)
    sheet = sheet.reshape(-1, columns * (width + 1))
    sheet = np.pad(sheet, ((0, 1), (0, 1)), constant_values=np.nan)
    shades = load_pyplot().get_cmap("gray").with_extremes(bad=gutter)
    ax.imshow(sheet, cmap=shades, vmin=-1, vmax=1, interpolation="nearest")
    ax.set_axis_off()
    return ax
