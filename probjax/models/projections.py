"""Random projections: thresholded sums of random units, over x in {0, 1}^d.

    E(x) = sum_k c_k h_k(x),   h_k(x) = 1 if sum_(i in S_k) w_ki x_i > theta_k, else 0

The units, weights and thresholds of the projections are drawn once and held fixed; only
the coefficients are learned, so that the model is an exponential family. A few hundred
projections of a few units each can predict large populations better than pairs, and
their number may be smaller than that of pairs.

Reference: Maoz, Tkacik, Esteki, Kiani and Schneidman, PNAS 117, 25066 (2020).
"""

from collections.abc import Callable
from functools import cache

import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count
from probjax.fitting.charts import Affine
from probjax.models.features import (
    Subsets,
    check_subsets,
    counted_rows,
    padded,
    scaling,
    sum_at_unit,
    sum_over_units,
)
from probjax.potential import closed_form
from probjax.random import numpy_generator
from probjax.recipe import recipe, static
from probjax.types import Array, Data, Float, PRNGKeyArray, Scalar

Weights = tuple[tuple[float, ...], ...]


@recipe
class Params:
    """One coefficient for each projection; the projections themselves are static.

    >>> params = Params(np.array([2.0]), ((0, 2),), ((1.0, -1.0),), (0.5,))
    >>> float(energy(params, jnp.array([1.0, 0.0, 0.0])))
    2.0
    """

    coupling: Float[Array, " projection"]
    """Coefficient of each projection."""
    subsets: Subsets = static()
    """Units of each projection."""
    weights: Weights = static()
    """Weight of each of these units."""
    thresholds: tuple[float, ...] = static()
    """Threshold of each projection."""


def init(
    key: PRNGKeyArray,
    size: int,
    *,
    num_projections: int,
    num_units: int = 5,
    threshold: float = 1.0,
) -> Params:
    """Draw projections with normal weights, and return coefficients of 0.

    Args:
        size: number of units.
        num_projections: number of projections.
        num_units: number of units of each projection, chosen at random.
        threshold: threshold of all projections, in standard deviations of a weight.

    >>> params = init(jax.random.key(0), 50, num_projections=3, num_units=4)
    >>> [len(units) for units in params.subsets], params.coupling.tolist()
    ([4, 4, 4], [0.0, 0.0, 0.0])
    """
    check_count("num_projections", num_projections)
    check_count("num_units", num_units)
    if num_units > size:
        raise ValueError(
            f"num_units must not exceed the {size} units of a state, got {num_units}"
        )
    random = numpy_generator(key)
    subsets = [
        tuple(sorted(random.choice(size, num_units, replace=False).tolist()))
        for _ in range(num_projections)
    ]
    # Weights in single precision, so that models are the same in any precision.
    weights = random.standard_normal((num_projections, num_units)).astype(np.float32)
    return Params(
        jnp.zeros(num_projections),
        tuple(subsets),
        tuple(map(tuple, weights.tolist())),
        (float(threshold),) * num_projections,
    )


def features(params: Params, x: Float[Array, " unit"]) -> Float[Array, " projection"]:
    """Return h_k(x) for every projection.

    >>> params = Params(np.array([2.0]), ((0, 2),), ((1.0, -1.0),), (0.5,))
    >>> features(params, jnp.array([1.0, 0.0, 1.0])).tolist()
    [0.0]
    """
    check_subsets(params.subsets, len(x))
    members, weights, thresholds = _members(params, x)
    return (jnp.sum(weights * members, axis=1) > thresholds).astype(x.dtype)


def flip_gaps(params: Params, x: Float[Array, " unit"]) -> Float[Array, " unit"]:
    """E(x) - E(x with unit n flipped) for every unit n.

    >>> params = Params(np.array([2.0]), ((0, 2),), ((1.0, -1.0),), (0.5,))
    >>> flip_gaps(params, jnp.array([1.0, 0.0, 0.0])).tolist()
    [2.0, 0.0, 2.0]
    """
    check_subsets(params.subsets, len(x))
    members, weights, thresholds = _members(params, x)
    changes = params.coupling[:, None] * _losses(members, weights, thresholds)
    return sum_over_units(params.subsets, len(x), changes)


def flip_gap(params: Params) -> Callable[[Float[Array, " unit"], Array], Scalar]:
    """Return a function of a state and one unit: that unit's entry of `flip_gaps`.

    >>> gap = flip_gap(Params(np.array([2.0]), ((0, 2),), ((1.0, -1.0),), (0.5,)))
    >>> float(gap(jnp.array([1.0, 0.0, 0.0]), 2))
    2.0
    """

    def gap(x, unit):
        def change(number, place):
            losses = _losses(*_members(params, x, number))
            own = jnp.take_along_axis(losses, place[:, None], axis=1)[:, 0]
            return params.coupling[number] * own

        return sum_at_unit(params.subsets, len(x), unit, change)

    return gap


def unbounded(params: Params, data: Data) -> str:
    """Description of projections that are constant in the data; "" if there are none.

    >>> params = Params(np.zeros(1), ((0, 2),), ((1.0, -1.0),), (0.5,))
    >>> unbounded(params, Data(np.zeros((5, 3)))).split(", so")[0]
    '1 of 1 projections never change (such as number 0)'
    """
    constant = np.flatnonzero(unbounded_entries(params, data).coupling)
    if not constant.size:
        return ""
    return (
        f"{constant.size} of {len(params.subsets)} projections never change (such as "
        f"number {constant[0]}), so their couplings have no finite estimate"
    )


def unbounded_entries(params: Params, data: Data) -> Params:
    """Whether each projection is constant in the data.

    >>> params = Params(np.zeros(2), ((0, 2), (1,)), ((1.0, -1.0), (1.0,)), (0.5, 0.5))
    >>> unbounded_entries(params, Data(np.eye(3)[:2])).coupling.tolist()
    [False, False]
    """
    x = counted_rows(data)
    parts = zip(params.subsets, params.weights, params.thresholds, strict=True)
    on = [np.mean(x[:, units] @ np.array(w) > theta) for units, w, theta in parts]
    constant = np.isin(on, (0, 1))
    return Params(constant, *_projections(params))  # pyright: ignore


def data_chart(params: Params, data: Data) -> Affine:
    """Return coordinates in units of the standard deviation of each projection."""
    projections = _projections(params)
    return scaling(
        lambda x: features(params, x), lambda scale: Params(scale, *projections), data
    )


def _all_are_couplings(params):
    return Params(1.0, *_projections(params))  # pyright: ignore[reportArgumentType]


def _projections(params):
    return params.subsets, params.weights, params.thresholds


@closed_form(
    flip_gaps=flip_gaps,
    flip_gap=flip_gap,
    unbounded=unbounded,
    unbounded_entries=unbounded_entries,
    chart=data_chart,
    couplings=_all_are_couplings,
)
def energy(params: Params, x: Float[Array, " unit"]) -> Scalar:
    """Sum of the coefficients of the projections above their thresholds.

    >>> params = Params(np.array([2.0]), ((0, 2),), ((1.0, -1.0),), (0.5,))
    >>> float(energy(params, jnp.array([1.0, 0.0, 0.0])))
    2.0
    """
    return params.coupling @ features(params, x)


def _members(params, x, number=slice(None)):
    """Units of projections, their weights, both padded with 0, and the thresholds."""
    units = jnp.asarray(padded(params.subsets, len(x)))[number]
    weights = _padded_weights(params.weights)
    members = jnp.asarray(x).at[units].get(mode="fill", fill_value=0)
    numbers = jnp.asarray(weights, x.dtype), jnp.asarray(params.thresholds, x.dtype)
    return members, *(table[number] for table in numbers)


@cache
def _padded_weights(weights: Weights) -> np.ndarray:
    table = np.zeros((len(weights), max(map(len, weights))))
    for row, given in zip(table, weights, strict=True):
        row[: len(given)] = given
    return table


def _losses(members, weights, thresholds):
    """h_k(x) - h_k(x with one member flipped), `(projection, member)`."""
    total = jnp.sum(weights * members, axis=1)
    flipped = total[:, None] + weights * (1 - 2 * members)
    before = (total > thresholds).astype(members.dtype)
    return before[:, None] - (flipped > thresholds[:, None]).astype(members.dtype)
