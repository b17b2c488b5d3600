"""Energies that are linear in features, each a function of a subset of the units.

    E(x) = sum_k c_k f_k(x_S)

with S the subset of feature k. Flipping unit n changes only features of subsets that
contain n, so all gaps of single flips cost one feature for each member of each subset.
`products` and `projections` define such features. Subsets of different lengths are
padded with the index of a unit that is not there.
"""

from collections.abc import Callable, Iterable
from functools import cache
from operator import index
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probjax.data.rows import num_rows
from probjax.fitting.charts import Affine
from probjax.types import Array, Data, Float, Params

Subsets = tuple[tuple[int, ...], ...]


def as_subsets(subsets: Iterable[Iterable[int]], size: int | None = None) -> Subsets:
    """Return subsets as sorted tuples; raise if one is empty or repeats a unit."""
    found = tuple(tuple(sorted(map(index, subset))) for subset in subsets)
    if not found or not all(found):
        raise ValueError("subsets must hold at least one unit each, got none")
    for subset in found:
        if len(set(subset)) < len(subset):
            raise ValueError(f"units of a subset must be distinct, got {subset}")
        if subset[0] < 0 or (size is not None and subset[-1] >= size):
            last = "" if size is None else f" to {size - 1}"
            raise ValueError(f"units must be numbered from 0{last}, got {subset}")
    return found


def check_subsets(subsets: Subsets, size: int) -> None:
    """Raise if a subset contains a unit that a state does not have."""
    largest = int(padded(subsets, 0).max())
    if largest >= size:
        raise ValueError(
            f"x must have the {largest + 1} units of the subsets at least, got {size}"
        )


@cache
def padded(subsets: Subsets, fill: int) -> np.ndarray:
    """Units of each subset, `(subset, member)`, padded at the end with `fill`."""
    table = np.full((len(subsets), max(map(len, subsets))), fill, np.int32)
    for row, subset in zip(table, subsets, strict=True):
        row[: len(subset)] = subset
    return table


@cache
def memberships(subsets: Subsets, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Subsets that contain each unit, and the place of the unit in each of them.

    Both arrays are `(unit, subset)`, padded with the number of subsets and the place 0.
    """
    lists: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    for number, subset in enumerate(subsets):
        for place, unit in enumerate(subset):
            lists[unit].append((number, place))
    most = max(1, *map(len, lists))
    numbers = np.full((size, most), len(subsets), np.int32)
    places = np.zeros((size, most), np.int32)
    for unit, found in enumerate(lists):
        for column, (number, place) in enumerate(found):
            numbers[unit, column], places[unit, column] = number, place
    return numbers, places


def sum_over_units(
    subsets: Subsets, size: int, values: Float[Array, "subset member"]
) -> Float[Array, " unit"]:
    """Add the values of all members of all subsets, unit by unit."""
    units = padded(subsets, size).ravel()
    return jax.ops.segment_sum(values.ravel(), units, size + 1)[:size]


def sum_at_unit(
    subsets: Subsets, size: int, unit: Array, value: Callable[[Array, Array], Array]
) -> Array:
    """Add the values of one unit over the subsets that contain it.

    Args:
        value: `value(number, place)` of the member at a place of a subset, for arrays
            of numbers and places.
    """
    numbers, places = (jnp.asarray(table) for table in memberships(subsets, size))
    number, place = numbers[unit], places[unit]
    inside = number < len(subsets)
    found = value(jnp.where(inside, number, 0), place)
    return jnp.sum(jnp.where(inside, found, 0))


def counted_rows(data: Data) -> np.ndarray:
    """Return the rows whose weight is not 0, as an array of NumPy."""
    x = np.asarray(data.x)
    return x if data.weights is None else x[np.asarray(data.weights) > 0]


def scaling(
    features: Callable[[Any], Float[Array, " feature"]],
    make: Callable[[Array], Params],
    data: Data,
) -> Affine:
    """Return coordinates in units of the standard deviations of the features.

    A feature that is constant in the data has the scale of one that differs in one row.

    Args:
        features: features of one state.
        make: function of the coefficients of the features that returns parameters.
    """
    count = num_rows(data)
    weights = jnp.ones(count) if data.weights is None else data.weights
    share = weights / weights.sum()
    first = features(jax.tree.map(lambda leaf: leaf[0], data.x))

    def add(sums, row):
        x, weight = row
        change = features(x) - first
        return (sums[0] + weight * change, sums[1] + weight * change**2), None

    start = (jnp.zeros_like(first), jnp.zeros_like(first))
    share = share.astype(first.dtype)
    (mean, square), _ = jax.lax.scan(add, start, (data.x, share))
    least = 1 / jnp.maximum(weights.sum(), count).astype(first.dtype)
    variance = jnp.maximum(square - mean**2, least)
    return Affine(scale=make(1 / jnp.sqrt(variance)))
