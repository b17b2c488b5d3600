"""The Ising model, or fully visible Boltzmann machine, over x in {0, 1}^d.

    E(x) = x'Jx = sum_i J_ii x_i + 2 sum_(i<j) J_ij x_i x_j,   J symmetric

The diagonal of J holds the biases. Flipping unit n changes the energy by

    E(x) - E(x') = (2 x_n - 1) (J_nn + 2 sum_(m != n) J_nm x_m).

Reference: thesis, "Ising Model" and appendix "MPF objective function for an Ising
model".
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from probjax.models.checks import check_size
from probjax.models.ising.centring import data_chart
from probjax.models.ising.joint_counts import joint_counts
from probjax.models.ising.parameters import (
    Params,
    UnitParams,
    coupled_sums,
    coupling_matrix,
    couplings_only,
    pair_matrix,
    unit_params,
)
from probjax.models.pairs import num_pairs, pair_indices, pairwise_block
from probjax.models.sparse_pairs import incidence, layout, sparse_block
from probjax.potential import closed_form
from probjax.types import Array, Data, Float, Scalar, SiteBlock


def flip_gaps(params: Params, x: Float[Array, " unit"]) -> Float[Array, " unit"]:
    """E(x) - E(x with unit n flipped) for every unit n.

    >>> from probjax import ising
    >>> params = ising.from_matrix([[1.0, 0.5], [0.5, -2.0]])
    >>> flip_gaps(params, jnp.array([1.0, 1.0])).tolist()  # E is 0, and -2 or 1
    [2.0, -1.0]
    """
    _check_state(params, x)
    # Biases are added and not on the diagonal of a matrix, so that in the gradient one
    # array serves both the couplings and the biases.
    return (2 * x - 1) * (params.bias + coupled_sums(params, x))


def mirror_gap(params: Params, x: Float[Array, " unit"]) -> Scalar:
    """E(x) - E(1 - x) = 2 1'Jx - 1'J1.

    >>> from probjax import ising
    >>> params = ising.from_matrix([[1.0, 0.5], [0.5, -2.0]])
    >>> float(mirror_gap(params, jnp.array([1.0, 0.0])))  # E is 1, and -2
    3.0
    """
    _check_state(params, x)
    columns = params.bias + coupled_sums(params, jnp.ones_like(params.bias)) / 2
    return 2 * columns @ x - columns.sum()


def flip_gap(params: Params) -> Callable[[Float[Array, " unit"], Array], Scalar]:
    """Return a function of a state and one unit: that unit's entry of `flip_gaps`.

    >>> from probjax import ising
    >>> gap = flip_gap(ising.from_matrix([[1.0, 0.5], [0.5, -2.0]]))
    >>> float(gap(jnp.array([1.0, 1.0]), 1))
    -1.0
    """
    size = len(params.bias)
    if layout(size, params.edges) is not None:
        return _sparse_flip_gap(params)
    pairs = pair_matrix(params)

    def gap(x, unit):
        # Under nested vmap, the row times x is twice as slow as x times the row.
        return (2 * x[unit] - 1) * (params.bias[unit] + x @ (2 * pairs[unit]))

    return gap


def _sparse_flip_gap(params):
    graph = incidence(len(params.bias), params.edges)

    def gap(x, unit):
        near = graph.around(unit)
        coupled = near.values(params.coupling) @ x[near.site]
        return (2 * x[unit] - 1) * (params.bias[unit] + 2 * coupled)

    return gap


def bit_block(
    params: Params,
) -> Callable[[Float[Array, " unit"], Array, int], SiteBlock]:
    """Return a function of a state and consecutive units: the log odds of these units.

    >>> from probjax import ising
    >>> block = bit_block(ising.from_matrix([[1.0, 0.5], [0.5, -2.0]]))
    >>> block(jnp.array([1.0, 1.0]), 0, 2).field.tolist()
    [-2.0, 1.0]
    """
    form = layout(len(params.bias), params.edges)
    if form is None:
        return pairwise_block(-params.bias, -2 * pair_matrix(params))
    return sparse_block(-params.bias, -2 * params.coupling, form.edges)


def unit_flip_gap(
    params: UnitParams,
) -> Callable[[Float[Array, " unit"], Array], Scalar]:
    """Return a function of a state and the unit that `params` describe: its gap.

    >>> from probjax import ising
    >>> model = ising.from_matrix([[1.0, 0.5], [0.5, -2.0]])
    >>> gap = unit_flip_gap(ising.unit_params(model, 1))
    >>> float(gap(jnp.array([1.0, 1.0]), 1))
    -1.0
    """
    coupled = _is_coupled(len(params.coupling), params.edges)

    def gap(x, unit):
        coupling = jnp.where(coupled(unit), 2 * params.coupling, 0)
        return (2 * x[unit] - 1) * (params.bias + x @ coupling)

    return gap


def _is_coupled(size, edges):
    """Return a function of a unit: whether each unit is coupled to it."""
    if edges is None:
        return lambda unit: jnp.arange(size) != unit
    graph = incidence(size, edges)

    def coupled(unit):
        near = graph.around(unit)
        return jnp.zeros(size, bool).at[near.site].max(near.exists)

    return coupled


def _unit_couplings(params):
    zero = jnp.zeros_like(params.bias)
    return UnitParams(zero, zero + 1, params.edges)


@closed_form(flip_gap=unit_flip_gap, couplings=_unit_couplings)
def unit_energy(params: UnitParams, x: Float[Array, " unit"]) -> Scalar:
    """Energy of turning one unit on, given the others.

    Its closed form `flip_gap` is the gap of that unit. Gaps of other units are not
    defined.

    >>> from probjax import ising
    >>> model = ising.from_matrix([[1.0, 0.5], [0.5, -2.0]])
    >>> float(unit_energy(ising.unit_params(model, 1), jnp.array([1.0, 0.0])))
    -1.0
    """
    check_size("x", x, len(params.coupling), "units")
    return params.bias + 2 * params.coupling @ x


def unbounded(params: Params, data: Data) -> str:
    """Description of parameters without a finite estimate; "" if there are none.

    If a unit is constant in the data, or two units never occur in one of their four
    joint states, then the likelihood, the pseudolikelihood and minimum probability
    flow keep improving as a bias or a coupling goes to infinity. Pairs that were never
    observed together are not reported.

    >>> from probjax import ising
    >>> rows = jnp.array([[0.0, 1.0], [0.0, 0.0]])
    >>> params = ising.init(jax.random.key(0), 2)
    >>> unbounded(params, Data(rows)).split(", so")[0]
    '1 of 2 units never change (unit 0 is always off)'
    """
    pairs = pair_indices(len(params.bias), params.edges)
    counts = joint_counts(data, *pairs)
    constant = np.flatnonzero(counts.is_constant)
    if constant.size:
        unit, size = constant[0], len(params.bias)
        return (
            f"{constant.size} of {size} units never change (unit {unit} is always "
            f"{'off' if counts.on[unit] == 0 else 'on'}), so their biases have "
            "no finite estimate"
        )
    missing = np.flatnonzero(counts.missing.any(0))
    if not missing.size:
        return ""
    first, second = (sites[missing[0]] for sites in pairs)
    states = ("both on", "on and off", "off and on", "both off")
    never = states[int(np.argmax(counts.missing[:, missing[0]]))]
    return (
        f"{missing.size} of {len(pairs[0])} pairs of units lack one of their four "
        f"joint states (units {first} and {second} are never {never}), so "
        "their couplings have no finite estimate"
    )


def unbounded_entries(params: Params, data: Data) -> Params:
    """Whether each bias and each coupling has no finite estimate, see `unbounded`.

    The couplings of a constant unit have none. The bias of a unit is the log odds of
    the unit if all others are off. So it has none, too, if the unit is never on, or
    never off, while another unit is off.

    >>> from probjax import ising
    >>> rows = jnp.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> params = ising.init(jax.random.key(0), 3)
    >>> unbounded_entries(params, Data(rows)).coupling.tolist()
    [True, True, True]
    """
    first, second = pair_indices(len(params.bias), params.edges)
    counts = joint_counts(data, first, second)
    constant, size = counts.is_constant, len(params.bias)
    _, first_on, second_on, both_off = counts.missing
    of_bias = np.bincount(first, first_on | both_off, minlength=size)
    of_bias += np.bincount(second, second_on | both_off, minlength=size)
    return Params(
        constant | (of_bias > 0),  # pyright: ignore[reportArgumentType]
        counts.missing.any(0) | constant[first] | constant[second],  # pyright: ignore
        params.edges,
    )


@closed_form(
    flip_gaps=flip_gaps,
    mirror_gap=mirror_gap,
    flip_gap=flip_gap,
    bit_block=bit_block,
    unbounded=unbounded,
    unbounded_entries=unbounded_entries,
    chart=data_chart,
    couplings=couplings_only,
    unit_params=unit_params,
    unit_energy=unit_energy,
)
def energy(params: Params, x: Float[Array, " unit"]) -> Scalar:
    """Energy x'Jx of one state of 0s and 1s.

    >>> from probjax import ising
    >>> params = ising.from_matrix([[1.0, 0.5], [0.5, -2.0]])
    >>> float(energy(params, jnp.array([1.0, 1.0])))  # 1 - 2 + 2 * 0.5
    0.0
    """
    _check_state(params, x)
    form = layout(len(params.bias), params.edges)
    if form is None:
        return x @ coupling_matrix(params) @ x
    return params.bias @ x + 2 * form.total(params.coupling, x)


def _check_state(params, x):
    check_size("x", x, len(params.bias), "units")
    pairs = num_pairs(len(params.bias), params.edges)
    if params.coupling.shape != (pairs,):
        raise ValueError(
            f"params must have one coupling for each of {pairs} pairs, "
            f"got shape {params.coupling.shape}"
        )
