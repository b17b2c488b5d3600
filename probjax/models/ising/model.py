"""The Ising model, or fully visible Boltzmann machine, over x in {0, 1}^d.

    E(x) = x'Jx = sum_i J_ii x_i + 2 sum_(i<j) J_ij x_i x_j,   J symmetric

The diagonal of J holds the biases. Flipping unit n changes the energy by

    E(x) - E(x') = (2 x_n - 1) (J_nn + 2 sum_(m != n) J_nm x_m).

Reference: thesis, "Ising Model" and appendix "MPF objective function for an Ising
model".
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import is_on_host, namespace
from probjax.models.checks import check_size
from probjax.models.ising.centring import data_chart
from probjax.models.ising.parameters import (
    Params,
    UnitParams,
    coupling_matrix,
    couplings_only,
    pair_matrix,
    unit_params,
)
from probjax.models.pairs import coupled_sites, pair_indices, pairwise_block
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
    return (2 * x - 1) * (params.bias + 2 * pair_matrix(params) @ x)


def mirror_gap(params: Params, x: Float[Array, " unit"]) -> Scalar:
    """E(x) - E(1 - x) = 2 1'Jx - 1'J1.

    >>> from probjax import ising
    >>> params = ising.from_matrix([[1.0, 0.5], [0.5, -2.0]])
    >>> float(mirror_gap(params, jnp.array([1.0, 0.0])))  # E is 1, and -2
    3.0
    """
    _check_state(params, x)
    columns = coupling_matrix(params).sum(0)
    return 2 * columns @ x - columns.sum()


def flip_gap(params: Params) -> Callable[[Float[Array, " unit"], Array], Scalar]:
    """Return a function of a state and one unit: that unit's entry of `flip_gaps`.

    >>> from probjax import ising
    >>> gap = flip_gap(ising.from_matrix([[1.0, 0.5], [0.5, -2.0]]))
    >>> float(gap(jnp.array([1.0, 1.0]), 1))
    -1.0
    """
    pairs = pair_matrix(params)

    def gap(x, unit):
        # Under nested vmap, the row times x is twice as slow as x times the row.
        return (2 * x[unit] - 1) * (params.bias[unit] + x @ (2 * pairs[unit]))

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
    return pairwise_block(-params.bias, -2 * pair_matrix(params))


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
    coupled = jnp.asarray(coupled_sites(len(params.coupling), params.edges))

    def gap(x, unit):
        coupling = jnp.where(coupled[unit], 2 * params.coupling, 0)
        return (2 * x[unit] - 1) * (params.bias + x @ coupling)

    return gap


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
    counts = _known_counts(data)
    constant = np.flatnonzero(_is_constant(counts))
    if constant.size:
        first, size = constant[0], counts.shape[1]
        return (
            f"{constant.size} of {size} units never change (unit {first} is always "
            f"{'off' if counts[0, first, first] == 0 else 'on'}), so their biases have "
            "no finite estimate"
        )
    first, second = pair_indices(len(params.bias), params.edges)
    missing = _missing_states(counts)[:, first, second]
    pairs = np.flatnonzero(missing.any(0))
    if not pairs.size:
        return ""
    example = pairs[0]
    states = ("both on", "on and off", "off and on", "both off")
    never = states[int(np.argmax(missing[:, example]))]
    return (
        f"{pairs.size} of {len(first)} pairs of units lack one of their four joint "
        f"states (units {first[example]} and {second[example]} are never {never}), so "
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
    counts = _known_counts(data)
    constant = _is_constant(counts)
    first, second = pair_indices(len(params.bias), params.edges)
    missing = _missing_states(counts)
    of_bias = (missing[1] | missing[3]) & coupled_sites(len(constant), params.edges)
    of_coupling = missing[:, first, second].any(0)
    return Params(
        constant | of_bias.any(1),
        of_coupling | constant[first] | constant[second],
        params.edges,
    )  # pyright: ignore[reportReturnType]


def _is_constant(counts):
    on, off = counts[0].diagonal(), counts[3].diagonal()
    return (on == 0) | (off == 0)


def _missing_states(counts):
    """Whether each joint state of two units never occurs, if the pair was observed."""
    return (counts == 0) & (counts.sum(0) > 0)[None]


def _known_counts(data):
    """Joint counts as a NumPy array."""
    # NumPy, if it can read the data: a check should not compile anything.
    if is_on_host(data):
        return _joint_counts(jax.tree.map(np.asarray, data))
    return np.asarray(_compiled_counts(data))


def _joint_counts(data):
    """Numbers of rows in each joint state of two units, of shape (4, unit, unit).

    The states are both on, on and off, off and on, and both off.
    """
    x, xp = data.x, namespace(data.x)
    # Only whether a row has weight matters. So sums are of integers, and exact.
    counted = xp.ones(len(x)) if data.weights is None else data.weights > 0
    counted = counted.astype(x.dtype)[:, None]
    observed = counted if data.mask is None else counted * data.mask
    both_on = (observed * x).T @ (observed * x)
    if data.mask is None:
        on = xp.broadcast_to(xp.diagonal(both_on)[:, None], both_on.shape)
        total = xp.sum(counted)
    else:
        on, total = (observed * x).T @ observed, observed.T @ observed
    return xp.stack(
        [both_on, on - both_on, on.T - both_on, total - on - on.T + both_on]
    )


_compiled_counts = jax.jit(_joint_counts)


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
    return x @ coupling_matrix(params) @ x


def _check_state(params, x):
    check_size("x", x, len(params.bias), "units")
    pairs, _ = pair_indices(len(params.bias), params.edges)
    if params.coupling.shape != pairs.shape:
        raise ValueError(
            f"params must have one coupling for each of {len(pairs)} pairs, "
            f"got shape {params.coupling.shape}"
        )
