"""Potential of the number of active units, over x in {0, 1}^d.

    E(x) = V(K),   K = sum_i x_i

Added to an Ising model (`sums.add`) it is the K-pairwise model, added to biases the
K-synchrony model. A constant, a linear and a quadratic part of V change neither model:
the constant only changes log Z, biases contain the linear part, and pairwise couplings
the quadratic one. The gauge is fixed by leaving out the first values of V, which are 0:

    alone        V(0) = 0                      first=1
    K-synchrony  V(0) = V(1) = 0               first=2
    K-pairwise   V(0) = V(1) = V(2) = 0        first=3

Counts above the last value share it. So if more units than some count are rarely active
together, let it be the last: the value of a count that was never observed has no finite
estimate.

Reference: Tkacik, Marre, Amodei, Schneidman, Bialek and Berry, PLoS Comput. Biol. 10,
e1003408 (2014), for K-pairwise; Tkacik, Marre, Mora, Amodei, Berry and Bialek, J. Stat.
Mech. P03011 (2013), for V alone.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count
from probjax.fitting.charts import Affine
from probjax.models.features import counted_rows, scaling
from probjax.potential import closed_form
from probjax.recipe import recipe, static
from probjax.types import Array, Data, Float, Scalar


@recipe
class Params:
    """Values of V from the count `first` on; V is 0 below, and constant above.

    >>> params = Params(np.array([-1.0, 2.0]), first=2)
    >>> potential(params, 4).tolist()
    [0.0, 0.0, -1.0, 2.0, 2.0]
    """

    values: Float[Array, " count"]
    """V(first), V(first + 1), ...; the last value is that of all larger counts."""
    first: int = static(default=1)
    """Smallest count whose value is a parameter; it fixes the gauge."""


def init(size: int, *, first: int = 1, last: int | None = None) -> Params:
    """Return a potential that is 0 for every number of active units.

    Args:
        size: number of units.
        first: smallest count with a value of its own; see the gauge above.
        last: smallest count that shares its value with all larger ones; None for the
            number of units.

    >>> init(5, first=3).values.tolist()
    [0.0, 0.0, 0.0]
    """
    check_count("first", first)
    last = size if last is None else last
    if not first <= last <= size:
        raise ValueError(
            f"last must be from {first}, which is first, to {size}, the number of "
            f"units, got {last}"
        )
    return Params(jnp.zeros(last - first + 1), first)


def potential(params: Params, size: int) -> Float[Array, " count"]:
    """Return V(0), ..., V(size).

    >>> potential(Params(np.array([2.0, 3.0])), 2).tolist()
    [0.0, 2.0, 3.0]
    """
    count = len(params.values)
    if params.first + count - 1 > size:
        raise ValueError(
            f"params must have values up to {size}, the number of units, got values up "
            f"to {params.first + count - 1}"
        )
    index = np.arange(size + 1, dtype=np.int32) - params.first
    values = jnp.asarray(params.values)[np.clip(index, 0, count - 1)]
    return jnp.where(index < 0, 0, values)


def flip_gaps(params: Params, x: Float[Array, " unit"]) -> Float[Array, " unit"]:
    """E(x) - E(x with unit n flipped) for every unit n.

    >>> params = Params(np.array([1.0, 3.0]))
    >>> flip_gaps(params, jnp.array([1.0, 0.0])).tolist()  # V(1) - V(0), V(1) - V(2)
    [1.0, -2.0]
    """
    off, on = _gaps(params, x)
    return jnp.where(x == 1, off, on)


def flip_gap(params: Params) -> Callable[[Float[Array, " unit"], Array], Scalar]:
    """Return a function of a state and one unit: that unit's entry of `flip_gaps`.

    >>> gap = flip_gap(Params(np.array([1.0, 3.0])))
    >>> float(gap(jnp.array([1.0, 0.0]), 1))
    -2.0
    """

    def gap(x, unit):
        off, on = _gaps(params, x)
        return jnp.where(x[unit] == 1, off, on)

    return gap


def mirror_gap(params: Params, x: Float[Array, " unit"]) -> Scalar:
    """E(x) - E(1 - x), which is V(K) - V(size - K).

    >>> float(mirror_gap(Params(np.array([1.0, 3.0])), jnp.array([1.0, 1.0])))
    3.0
    """
    table, count = potential(params, len(x)), _count(x)
    return table[count] - table[len(x) - count]


def unbounded(params: Params, data: Data) -> str:
    """Description of counts that never occur in the data; "" if there are none.

    >>> rows = Data(np.array([[0.0, 1.0], [0.0, 0.0]]))
    >>> unbounded(init(2), rows).split(", so")[0]
    '1 of 2 numbers of active units never occur (such as 2)'
    """
    missing = params.first + np.flatnonzero(unbounded_entries(params, data).values)
    if not missing.size:
        return ""
    most = int(counted_rows(data).sum(1).max())
    advice = f"; try last={most}" if missing[-1] > most >= params.first else ""
    return (
        f"{missing.size} of {len(params.values)} numbers of active units never occur "
        f"(such as {missing[-1]}), so their values have no finite estimate{advice}"
    )


def unbounded_entries(params: Params, data: Data) -> Params:
    """Whether each number of active units never occurs in the data.

    >>> rows = Data(np.array([[0.0, 1.0], [0.0, 0.0]]))
    >>> unbounded_entries(init(2), rows).values.tolist()
    [False, True]
    """
    numbers = params.first + np.arange(len(params.values))
    seen = np.minimum(counted_rows(data).sum(1), numbers[-1])
    return Params(~np.isin(numbers, seen), params.first)  # pyright: ignore


def data_chart(params: Params, data: Data) -> Affine:
    """Return coordinates in units of the standard deviation of each count's indicator.

    A count that never occurs has the scale of one that occurs in one row.
    """
    numbers = params.first + np.arange(len(params.values), dtype=np.int32)

    def indicators(x):
        counts = jnp.minimum(_count(x), numbers[-1])
        return (counts == numbers).astype(x.dtype)

    return scaling(indicators, lambda scale: Params(scale, params.first), data)


def _values_are_fields(params):
    return Params(0.0, params.first)  # pyright: ignore[reportArgumentType]


@closed_form(
    flip_gaps=flip_gaps,
    flip_gap=flip_gap,
    mirror_gap=mirror_gap,
    unbounded=unbounded,
    unbounded_entries=unbounded_entries,
    chart=data_chart,
    couplings=_values_are_fields,
)
def energy(params: Params, x: Float[Array, " unit"]) -> Scalar:
    """Energy V(K) of one state of 0s and 1s.

    >>> float(energy(Params(np.array([1.0, 3.0])), jnp.array([1.0, 1.0])))
    3.0
    """
    return potential(params, len(x))[_count(x)]


def _count(x):
    return jnp.sum(x).astype(np.int32)


def _gaps(params, x):
    """Gaps of switching an active unit off, and of switching a silent unit on."""
    table, count = potential(params, len(x)), _count(x)
    now = table[count]
    return now - table[count - 1], now - table[jnp.minimum(count + 1, len(x))]
