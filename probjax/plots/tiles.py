"""Mosaics of images: filters, groups of filters, and samples."""

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
    """Mosaic of filters as images; grey is 0 and all filters have the same contrast.

    For filters of whitened data pass `preprocessing.pixel_filters(whitening, filters)`,
    and for the columns of a basis `preprocessing.pixel_bases(whitening, basis).T`.

    Args:
        filters: a filter in each row, `(filter, site)`.
        shape: the numbers of rows and columns of pixels of a filter; None for square.
        num_columns: the number of filters in each row of the mosaic; None for about as
            many as there are rows.

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
    """Mosaic with a row for each group of filters, from strongest to weakest weight.

    The contrast of a filter is the magnitude of its weight, divided by the largest in
    the group. Signs are ignored, because the pooling weights of an mcRBM are negative.

    Args:
        filters: a filter in each row, `(filter, site)`.
        weights: the weights of a group in each column, `(filter, group)`.
        shape: the numbers of rows and columns of pixels of a filter; None for square.
        num_columns: the largest number of filters to show for each group.

    >>> ax = groupings(np.eye(4), np.ones((4, 2)), num_columns=3)
    >>> ax.images[0].get_array().shape
    (7, 10)
    """
    tiles, weights = _filters(filters, shape), np.asarray(weights)
    check_count("num_columns", num_columns)
    fits = weights.ndim == 2 and len(weights) == len(tiles) and weights.size > 0
    if not (fits and np.isfinite(weights).all()):
        raise ValueError(
            f"weights must be finite with shape (filter, group) for {len(tiles)} "
            f"filters, got shape {weights.shape}"
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
    """Mosaic of images, white at 0 and black at 1, such as data or samples of a model.

    The lines between images are pale grey, so that white images have visible edges.

    Args:
        rows: grey levels from 0 to 1, an image in each row, `(image, pixel)`.
        shape: the numbers of rows and columns of pixels of an image; None for square.
        num_columns: the number of images in each row of the mosaic; None for about as
            many as there are rows.

    >>> ax = images(np.zeros((9, 16)))
    >>> ax.images[0].get_array().shape
    (16, 16)
    """
    rows = np.asarray(rows)
    if rows.size and (rows.min() < 0 or rows.max() > 1):
        low, high = rows.min(), rows.max()
        raise ValueError(
            f"rows must be grey levels from 0 to 1, got {low:g} to {high:g}"
        )
    tiles = _tiles("rows", rows, shape)
    return _mosaic(1 - 2 * tiles, num_columns, ax, gutter=PALE)


def _filters(filters, shape):
    """Return filters as images, each scaled to a largest magnitude of 1."""
    tiles = _tiles("filters", filters, shape)
    return _normalised(tiles.reshape(len(tiles), -1)).reshape(tiles.shape)


def _tiles(name, rows, shape):
    """Return rows as images, `(image, height, width)`; square if `shape` is None."""
    rows = np.asarray(rows)
    if rows.ndim != 2 or rows.size == 0 or not np.isfinite(rows).all():
        raise ValueError(
            f"{name} must be finite with shape ({name.rstrip('s')}, site), got shape "
            f"{rows.shape}"
        )
    side = math.isqrt(rows.shape[1])
    shape = (side, side) if shape is None else shape
    if math.prod(shape) != rows.shape[1]:
        raise ValueError(
            f"{name} must have {math.prod(shape)} sites for images of {shape[0]} x "
            f"{shape[1]} pixels, got {rows.shape[1]}; give shape=(rows, columns), or "
            "convert filters of whitened data with preprocessing.pixel_filters"
        )
    return rows.reshape(-1, *shape)


def _normalised(rows):
    """Return rows scaled to a largest magnitude of 1; rows of zeros stay zero."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    return rows / np.where(largest > 0, largest, 1)


def _mosaic(tiles, columns, ax, *, gutter="none"):
    """Draw images row by row, with lines of the colour `gutter` around each image."""
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
