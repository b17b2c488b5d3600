"""Interactions of chosen subsets of units, such as triplets, over x in {0, 1}^d.

    E(x) = sum_k c_k prod_(i in S_k) x_i

A positive c_k keeps the units of S_k from being on together, as in an Ising model.
Add the energy to that of an Ising model with `sums.add`.

Reference: Ganmor, Segev and Schneidman, PNAS 108, 9679 (2011), for products of chosen
units.
"""

from collections.abc import Callable, Iterable
from itertools import combinations

import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count
from probjax.fitting.charts import Affine
from probjax.models.features import (
    Subsets,
    as_subsets,
    check_subsets,
    counted_rows,
    padded,
    scaling,
    sum_at_unit,
    sum_over_units,
)
from probjax.potential import closed_form
from probjax.recipe import recipe, static
from probjax.types import Array, Data, Float, Scalar


@recipe
class Params:
    """One coefficient for each subset of units.

    >>> params = Params(np.array([1.0, -2.0]), subsets=((0, 1), (0, 1, 2)))
    >>> float(energy(params, jnp.ones(3)))
    -1.0
    """

    coupling: Float[Array, " subset"]
    """Coefficient of each product."""
    subsets: Subsets = static()
    """Units of each product, in ascending order."""


def init(subsets: Iterable[Iterable[int]]) -> Params:
    """Return coefficients of 0 for some subsets of units, numbered from 0.

    >>> init([(2, 0, 1), (3, 1)]).subsets
    ((0, 1, 2), (1, 3))
    """
    found = as_subsets(subsets)
    if len(set(found)) < len(found):
        twice = next(subset for subset in found if found.count(subset) > 1)
        raise ValueError(f"subsets must differ, got {twice} more than once")
    return Params(jnp.zeros(len(found)), found)


def triplets(size: int) -> Subsets:
    """Return all subsets of three units.

    >>> triplets(4)
    ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3))
    """
    check_count("size", size, least=3)
    return tuple(combinations(range(size), 3))


def flip_gaps(params: Params, x: Float[Array, " unit"]) -> Float[Array, " unit"]:
    """E(x) - E(x with unit n flipped) for every unit n.

    >>> params = Params(np.array([1.0, -2.0]), subsets=((0, 1), (0, 1, 2)))
    >>> flip_gaps(params, jnp.array([1.0, 1.0, 0.0])).tolist()
    [1.0, 1.0, 2.0]
    """
    check_subsets(params.subsets, len(x))
    others = params.coupling[:, None] * _others(_members(params, x))
    fields = sum_over_units(params.subsets, len(x), others)
    return (2 * x - 1) * fields


def flip_gap(params: Params) -> Callable[[Float[Array, " unit"], Array], Scalar]:
    """Return a function of a state and one unit: that unit's entry of `flip_gaps`.

    >>> gap = flip_gap(Params(np.array([1.0, -2.0]), subsets=((0, 1), (0, 1, 2))))
    >>> float(gap(jnp.array([1.0, 1.0, 0.0]), 2))
    2.0
    """

    def gap(x, unit):
        # With the unit on, a product is the product of the other units.
        on = x.at[unit].set(1)

        def field(number, place):
            return params.coupling[number] * jnp.prod(_members(params, on, number), -1)

        return (2 * x[unit] - 1) * sum_at_unit(params.subsets, len(x), unit, field)

    return gap


def unbounded(params: Params, data: Data) -> str:
    """Description of products that are never 1 in the data; "" if there are none.

    >>> rows = Data(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> unbounded(init([(0, 1), (1, 2)]), rows).split(", so")[0]
    '1 of 2 subsets of units are never on together (such as units 1, 2)'
    """
    never = np.flatnonzero(unbounded_entries(params, data).coupling)
    if not never.size:
        return ""
    units = ", ".join(map(str, params.subsets[never[0]]))
    return (
        f"{never.size} of {len(params.subsets)} subsets of units are never on together "
        f"(such as units {units}), so their couplings have no finite estimate"
    )


def unbounded_entries(params: Params, data: Data) -> Params:
    """Whether each product is 0 in all rows of the data.

    >>> rows = Data(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> unbounded_entries(init([(0, 1), (1, 2)]), rows).coupling.tolist()
    [False, True]
    """
    x = counted_rows(data) == 1
    never = [not x[:, subset].all(1).any() for subset in params.subsets]
    return Params(np.array(never), params.subsets)  # pyright: ignore


def data_chart(params: Params, data: Data) -> Affine:
    """Return coordinates in units of the standard deviation of each product."""

    def features(x):
        return jnp.prod(_members(params, x), axis=-1)

    return scaling(features, lambda scale: Params(scale, params.subsets), data)


def _all_are_couplings(params):
    return Params(1.0, params.subsets)  # pyright: ignore[reportArgumentType]


@closed_form(
    flip_gaps=flip_gaps,
    flip_gap=flip_gap,
    unbounded=unbounded,
    unbounded_entries=unbounded_entries,
    chart=data_chart,
    couplings=_all_are_couplings,
)
def energy(params: Params, x: Float[Array, " unit"]) -> Scalar:
    """Sum of the coefficients of the products that are 1.

    >>> params = Params(np.array([1.0, -2.0]), subsets=((0, 1), (0, 1, 2)))
    >>> float(energy(params, jnp.array([1.0, 1.0, 0.0])))
    1.0
    """
    check_subsets(params.subsets, len(x))
    return params.coupling @ jnp.prod(_members(params, x), axis=-1)


def _members(params, x, number=slice(None)):
    """Values of the units of subsets, `(subset, member)`, padded with 1."""
    units = jnp.asarray(padded(params.subsets, len(x)))[number]
    return jnp.asarray(x).at[units].get(mode="fill", fill_value=1)


def _others(members):
    """Product of the other members of each subset, which are bits."""
    zeros = 1 - members
    others = jnp.sum(zeros, axis=1, keepdims=True) - zeros
    return (others == 0).astype(members.dtype)
