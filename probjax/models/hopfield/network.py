"""The Hopfield network over x in {0, 1}^n: energy, dynamics and fixed points.

    E(x) = -1/2 x'Jx + theta'x,    J symmetric with a diagonal of zeros.

Units are updated one after the other, in order: x_i = H(J_i x - theta_i) with H(0) = 0.
The energy never rises, and the dynamics reach a *fixed point*, which no update changes.
With d_i = 1 - 2 x_i, flipping unit i gives the gap

    E(x) - E(x') = d_i (J_i x - theta_i).

A *strict minimum*, where all gaps are negative, is a fixed point. A fixed point is a
strict minimum unless a gap is 0, which is possible for a unit that is off.

Updating all units at once would define another network, whose states can alternate
between two values forever.

All functions use the symmetric part of J without its diagonal. So descent in J starts
and ends at a network, and energy and dynamics agree for any matrix J.

Reference: thesis, "Memory Storage in a Hopfield Network"; Hopfield, PNAS 79, 2554
(1982).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count, holds, is_concrete, is_finite
from probjax.interfaces import Chart
from probjax.models import ising
from probjax.models.checks import check_size
from probjax.models.pairs import pairwise_block
from probjax.potential import closed_form
from probjax.recipe import recipe
from probjax.states import binary
from probjax.trees import floating
from probjax.types import (
    Array,
    ArrayLike,
    Bool,
    Data,
    Float,
    PRNGKeyArray,
    Scalar,
    SiteBlock,
)

# Rounding errors of its largest entry by which J may differ from its transpose.
_ROUNDING_UNITS = 100


class Params(NamedTuple):
    """Weights and thresholds; `checked` validates them.

    >>> params = Params(weight=1 - jnp.eye(2), threshold=jnp.full(2, 0.5))
    >>> is_fixed(params, [[0, 0], [0, 1], [1, 1]]).tolist()
    [True, False, True]
    """

    weight: Float[Array, "unit unit"]
    """J: positive for two units that tend to be on together."""
    threshold: Float[Array, " unit"]
    """theta: input above which a unit is on."""


def init(key: PRNGKeyArray, size: int, *, scale: float = 0.0) -> Params:
    """Return symmetric normal weights, and thresholds of 0.

    Args:
        size: number of units.
        scale: standard deviation of the weights; by default they are 0.

    >>> weight = init(jax.random.key(0), 3, scale=1.0).weight
    >>> bool((weight == weight.T).all()), weight.diagonal().tolist()
    (True, [0.0, 0.0, 0.0])
    """
    check_count("size", size)
    half = jnp.triu(scale * jax.random.normal(key, (size, size)), 1)
    return Params(half + half.T, jnp.zeros(size))


def checked(weight: ArrayLike, threshold: ArrayLike) -> Params:
    """Return the network of a matrix J and thresholds; raise if J is not valid.

    J must be finite and symmetric up to rounding, with zeros on its diagonal.

    >>> checked([[0, 1], [1, 0]], [0.5, 0.5]).weight.tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    weight, threshold = floating(weight), floating(threshold)
    if weight.ndim != 2 or weight.shape != (*threshold.shape, *threshold.shape):
        raise ValueError(
            "J must be n x n for n thresholds, got shapes "
            f"{weight.shape} and {threshold.shape}"
        )
    if not is_concrete((weight, threshold)):
        return Params(weight, threshold)
    if not holds(is_finite, (weight, threshold)):
        raise ValueError("J and thresholds must be finite, got NaN or infinity")
    matrix = np.asarray(weight)
    if np.any(np.diagonal(matrix)):
        unit = int(np.flatnonzero(np.diagonal(matrix))[0])
        raise ValueError(
            f"J must have a diagonal of zeros, got J[{unit}, {unit}]="
            f"{matrix[unit, unit]}; try to add -J[{unit}, {unit}] / 2 to the threshold"
        )
    # Fits may leave rounding errors, which have no effect.
    rounding = _ROUNDING_UNITS * jnp.finfo(weight.dtype).eps * np.abs(matrix).max()
    if np.any(unequal := np.abs(matrix - matrix.T) > rounding):
        i, j = np.argwhere(unequal)[0]
        raise ValueError(
            f"J must be symmetric, got J[{i}, {j}]={matrix[i, j]} and "
            f"J[{j}, {i}]={matrix[j, i]}; try (J + J.T) / 2"
        )
    return Params(weight, threshold)


def flip_gaps(params: Params, x: Float[Array, " unit"]) -> Float[Array, " unit"]:
    """E(x) - E(x with unit i flipped) = d_i (J_i x - theta_i) for every i.

    >>> params = Params(1 - jnp.eye(2), jnp.array([0.25, 0.5]))
    >>> flip_gaps(params, jnp.array([1.0, 1.0])).tolist()
    [-0.75, -0.5]
    """
    check_size("x", x, len(params.threshold), "units")
    return (1 - 2 * x) * (_symmetric(params.weight) @ x - params.threshold)


def bit_block(
    params: Params,
) -> Callable[[Float[Array, " unit"], Array, int], SiteBlock]:
    """Return a function of a state and consecutive units: the log odds of these units.

    >>> block = bit_block(Params(1 - jnp.eye(2), jnp.array([0.25, 0.5])))
    >>> block(jnp.array([1.0, 1.0]), 0, 2).field.tolist()
    [0.75, 0.5]
    """
    return pairwise_block(-params.threshold, _symmetric(params.weight))


def _couplings(params: Params) -> Params:
    """Weights of a penalty that leaves the thresholds out: 1 on J, 0 on thresholds."""
    return params._replace(weight=1.0, threshold=0.0)


@recipe
class CentredHopfield(Chart):
    """Coordinates of a network over y = (x - mean) / scale.

    With y, the energy is -1/2 y'Ay + a'y + constant, where

        A_ij = J_ij s_i s_j,    a_i = s_i (theta_i - sum_j J_ij m_j).

    >>> chart = CentredHopfield(mean=jnp.full(2, 0.5), scale=jnp.full(2, 0.5))
    >>> chart.forward(Params(1 - jnp.eye(2), jnp.zeros(2))).threshold.tolist()
    [-0.25, -0.25]
    """

    mean: Float[Array, " unit"]
    """Value that is subtracted from each unit."""
    scale: Float[Array, " unit"]
    """Positive value by which each unit is then divided."""

    def forward(self, params: Params) -> Params:
        shift = _symmetric(params.weight) @ self.mean
        weight = params.weight * jnp.outer(self.scale, self.scale)
        return Params(weight, self.scale * (params.threshold - shift))

    def inverse(self, coordinates: Params) -> Params:
        weight = coordinates.weight / jnp.outer(self.scale, self.scale)
        shift = _symmetric(weight) @ self.mean
        return Params(weight, coordinates.threshold / self.scale + shift)

    def scales(self, params: Params) -> Params:
        weight = 1 / jnp.outer(self.scale, self.scale)
        return Params(weight, 0.0)  # pyright: ignore


def data_chart(params: Params, data: Data) -> CentredHopfield:
    """Return the chart with the mean and standard deviation of each unit.

    >>> params = Params(1 - jnp.eye(2), jnp.zeros(2))
    >>> data_chart(params, Data(jnp.array([[0.0, 1.0], [1.0, 1.0]]))).mean.tolist()
    [0.5, 1.0]
    """
    chart = ising.data_chart(to_ising(params), data)
    return CentredHopfield(chart.mean, chart.scale)


@closed_form(
    flip_gaps=flip_gaps, bit_block=bit_block, chart=data_chart, couplings=_couplings
)
def energy(params: Params, x: Float[Array, " unit"]) -> Scalar:
    """Energy -1/2 x'Jx + theta'x of one state.

    >>> params = Params(1 - jnp.eye(2), jnp.array([0.25, 0.5]))
    >>> float(energy(params, jnp.array([1.0, 1.0])))  # -1 + 0.25 + 0.5
    -0.25
    """
    check_size("x", x, len(params.threshold), "units")
    return -(x @ _symmetric(params.weight) @ x) / 2 + params.threshold @ x


def to_ising(params: Params) -> ising.Params:
    """Return the Ising model with the same energy: -J/2, with theta on the diagonal.

    >>> params = Params(1 - jnp.eye(2), jnp.array([0.25, 0.5]))
    >>> ising.coupling_matrix(to_ising(params)).tolist()
    [[0.25, -0.5], [-0.5, 0.5]]
    """
    return ising.from_matrix(
        -_symmetric(params.weight) / 2 + jnp.diag(params.threshold)
    )


def from_ising(params: ising.Params) -> Params:
    """Return the network with the same energy as an Ising model.

    >>> found = from_ising(ising.from_matrix([[0.25, -0.5], [-0.5, 0.5]]))
    >>> float(found.weight[0, 1]), found.threshold.tolist()
    (1.0, [0.25, 0.5])
    """
    matrix = ising.coupling_matrix(params)
    return Params(-2 * (matrix - jnp.diag(params.bias)), params.bias)


def is_fixed(params: Params, x: ArrayLike) -> Bool[Array, "*row"]:
    """Whether a state, or each row of states, is a fixed point.

    >>> params = Params(1 - jnp.eye(3), jnp.full(3, 0.5))
    >>> is_fixed(params, [[0, 0, 0], [1, 1, 0], [1, 1, 1]]).tolist()
    [True, False, True]
    """
    x = _states(params, x)
    return jnp.all(_updated(_fields(params, x), x) == x, axis=-1)


def is_strict_minimum(params: Params, x: ArrayLike) -> Bool[Array, "*row"]:
    """Whether every flip of a unit raises the energy of a state, or of each row.

    >>> params = Params(1 - jnp.eye(2), jnp.zeros(2))
    >>> is_fixed(params, [[0, 0], [1, 1]]).tolist()
    [True, True]
    >>> is_strict_minimum(params, [[0, 0], [1, 1]]).tolist()
    [False, True]
    """
    x = _states(params, x)
    return jnp.all((1 - 2 * x) * _fields(params, x) < 0, axis=-1)


def is_stored(params: Params, patterns: ArrayLike) -> Bool[Array, ""]:
    """Whether all patterns are fixed points.

    >>> params = Params(1 - jnp.eye(3), jnp.full(3, 0.5))
    >>> bool(is_stored(params, [[0, 0, 0], [1, 1, 1]]))
    True
    """
    return jnp.all(is_fixed(params, patterns))


class Recall(NamedTuple):
    """Result of `recall`.

    >>> params = Params(1 - jnp.eye(3), jnp.full(3, 0.5))
    >>> found = recall(params, [[1, 1, 0], [1, 0, 0]])
    >>> found.converged.tolist(), int(found.num_sweeps)  # the last changes nothing
    ([True, True], 2)
    """

    x: Float[Array, "*row unit"]
    """States at the end of the dynamics."""
    converged: Bool[Array, "*row"]
    """Whether each state is a fixed point; if not, it needs more sweeps."""
    num_sweeps: Array
    """Number of updates of all units, which is the same for all rows."""


def recall(params: Params, x: ArrayLike, *, max_sweeps: int = 100) -> Recall:
    """Run the dynamics from a state, or from each row of states, to a fixed point.

    Args:
        x: a state of bits, or rows of states.
        max_sweeps: limit on the number of times that all units are updated. Most states
            need two or three; in some networks, some states need exponentially many.

    >>> params = Params(1 - jnp.eye(3), jnp.full(3, 0.5))
    >>> recall(params, [[1, 1, 0], [1, 0, 0]]).x.tolist()
    [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """
    check_count("max_sweeps", max_sweeps)
    params = checked(*params)
    return _recall(params, _states(params, x), max_sweeps)


@jax.jit
def _recall(params, x, max_sweeps):
    params = params._replace(weight=_symmetric(params.weight))

    def cond(carry):
        _, moved, count = carry
        return moved & (count < max_sweeps)

    def body(carry):
        x, _, count = carry
        new = _sweep(params, x)
        return new, jnp.any(new != x), count + 1

    start = (x, jnp.asarray(True), jnp.zeros((), int))
    x, _, count = jax.lax.while_loop(cond, body, start)
    return Recall(x, is_fixed(params, x), count)


def sweep(params: Params, x: Float[Array, "*row unit"]) -> Float[Array, "*row unit"]:
    """Update all units of a state, or of each row of states, once in order.

    >>> params = Params(1 - jnp.eye(3), jnp.full(3, 0.5))
    >>> sweep(params, jnp.array([1.0, 1.0, 0.0])).tolist()
    [1.0, 1.0, 1.0]
    """
    return _sweep(params._replace(weight=_symmetric(params.weight)), x)


def _sweep(params, x):
    def step(unit, x):
        field = x @ params.weight[unit] - params.threshold[unit]
        return x.at[..., unit].set(_updated(field, x))

    return jax.lax.fori_loop(0, x.shape[-1], step, x)


def _states(params, x):
    x = binary(jnp.asarray(x))
    if x.shape[-1:] != params.threshold.shape:
        raise ValueError(
            f"x must have the {len(params.threshold)} units of params, got shape "
            f"{x.shape}"
        )
    return x


def _fields(params, x):
    shape = (*[1] * (x.ndim - 1), x.shape[-1])
    return x @ _symmetric(params.weight) - params.threshold.reshape(shape)


def _updated(field, x):
    return (field > 0).astype(x.dtype)


def _symmetric(weight):
    off = 1 - jnp.eye(len(weight), dtype=weight.dtype)
    return (weight + weight.T) * (off / 2)
