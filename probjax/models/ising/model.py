"""The Ising model, or fully visible Boltzmann machine, over x in {0, 1}^d.

    E(x) = x'Jx = sum_i J_ii x_i + 2 sum_(i<j) J_ij x_i x_j,   J symmetric

Biases are on the diagonal. Parameters hold each J_ij once, so J cannot become
asymmetric, and may be restricted to the edges of a graph.

Reference: thesis, "Ising Model" and appendix "MPF objective function for an Ising
model".
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import holds, is_concrete, is_on_host, namespace
from probjax.data.rows import as_data, mean_of_observed
from probjax.devices import on_host
from probjax.interfaces import Chart
from probjax.potential import closed_form
from probjax.recipe import recipe, static
from probjax.states import binary, is_spin
from probjax.trees import as_array, floating
from probjax.types import Array, ArrayLike, Data, Float, PRNGKeyArray, Scalar

Edges = tuple[tuple[int, int], ...]


@recipe
class Params:
    """One bias per unit and one coupling per pair.

    >>> params = Params(bias=jnp.array([1.0, -2.0]), coupling=jnp.array([0.5]))
    >>> coupling_matrix(params).tolist()
    [[1.0, 0.5], [0.5, -2.0]]
    """

    bias: Float[Array, " unit"]
    """The diagonal of J."""
    coupling: Float[Array, " pair"]
    """J_ij for each pair i < j: of `edges` in their order, or of all in row order."""
    edges: Edges | None = static(default=None)
    """The pairs that may be coupled; None for all."""


class Spins(NamedTuple):
    """The same model over s = 2x - 1, p(s) ~ exp(s'Js / 2 + h's).

    >>> found = to_spins(from_matrix([[0, -2], [-2, 0]]))
    >>> float(found.coupling[0, 1]), found.field.tolist(), float(found.constant)
    (1.0, [1.0, 1.0], -1.0)
    """

    coupling: Float[Array, "unit unit"]
    """Symmetric with zero diagonal: positive where units agree."""
    field: Float[Array, " unit"]
    """Positive where a unit is mostly on."""
    constant: Scalar
    """E(x) = constant - s'Js / 2 - h's, so log Z of the two forms differs by it."""


def init(
    key: PRNGKeyArray,
    size: int,
    *,
    edges: Iterable[tuple[int, int]] | None = None,
    scale: float = 0.01,
) -> Params:
    """Independent normal couplings of standard deviation `scale` and no biases.

    Args:
        size: number of units.
        edges: pairs of units that may be coupled; all pairs if None.

    >>> init(jax.random.key(0), 3, edges=[(0, 1), (2, 1)]).edges
    ((0, 1), (1, 2))
    """
    edges = checked_edges(edges, size)
    pairs, _ = pair_indices(size, edges)
    return Params(jnp.zeros(size), scale * jax.random.normal(key, pairs.shape), edges)


def from_matrix(
    matrix: Float[ArrayLike, "unit unit"],
    *,
    edges: Iterable[tuple[int, int]] | None = None,
) -> Params:
    """The parameters of a symmetric J. Entries outside `edges` must be zero.

    >>> params = from_matrix([[1.0, 0.5], [0.5, -2.0]])
    >>> params.bias.tolist(), params.coupling.tolist()
    ([1.0, -2.0], [0.5])
    """
    matrix = floating(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"J must be a square matrix, got shape {matrix.shape}")
    edges = checked_edges(edges, len(matrix))
    rows, columns = pair_indices(len(matrix), edges)
    if not is_concrete(matrix):
        return Params(jnp.diagonal(matrix), matrix[rows, columns], edges)
    # By NumPy, which compiles nothing.
    known = on_host(matrix)
    bias, coupling = known.diagonal(), known[rows, columns]
    symmetric = np.diag(bias)
    symmetric[rows, columns] = symmetric[columns, rows] = coupling
    _check_matrix(known, symmetric)
    return Params(as_array(bias), as_array(coupling), edges)


def coupling_matrix(params: Params) -> Float[Array, "unit unit"]:
    """The symmetric J of E = x'Jx, biases on its diagonal.

    >>> chain = Params(jnp.zeros(3), jnp.array([1.0, 2.0]), edges=((0, 1), (1, 2)))
    >>> coupling_matrix(chain).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 2.0], [0.0, 2.0, 0.0]]
    """
    return _pair_matrix(params) + jnp.diag(params.bias)


def flip_gaps(params: Params, x: Float[Array, " unit"]) -> Float[Array, " unit"]:
    """E(x) - E(x with unit n flipped) = (2 x_n - 1) (J_nn + 2 sum_(m != n) J_nm x_m).

    The sum is over the others alone, so that in the gradient one array serves both the
    couplings and the biases.

    >>> params = from_matrix([[1.0, 0.5], [0.5, -2.0]])
    >>> flip_gaps(params, jnp.array([1.0, 1.0])).tolist()  # E is 0, and -2 or 1
    [2.0, -1.0]
    """
    _check_size(params, x)
    return (2 * x - 1) * (params.bias + 2 * _pair_matrix(params) @ x)


def mirror_gap(params: Params, x: Float[Array, " unit"]) -> Scalar:
    """E(x) - E(1 - x) = 2 1'Jx - 1'J1.

    >>> params = from_matrix([[1.0, 0.5], [0.5, -2.0]])
    >>> float(mirror_gap(params, jnp.array([1.0, 0.0])))  # E is 1, and -2
    3.0
    """
    _check_size(params, x)
    columns = coupling_matrix(params).sum(0)
    return 2 * columns @ x - columns.sum()


def flip_gap(params: Params) -> Callable[[Float[Array, " unit"], Array], Scalar]:
    """A function of a state and one unit: the unit's entry of `flip_gaps`.

    >>> gap = flip_gap(from_matrix([[1.0, 0.5], [0.5, -2.0]]))
    >>> float(gap(jnp.array([1.0, 1.0]), 1))
    -1.0
    """
    pairs = _pair_matrix(params)

    def gap(x, unit):
        # In this order: under nested vmap the row times x is twice as slow.
        return (2 * x[unit] - 1) * (params.bias[unit] + x @ (2 * pairs[unit]))

    return gap


def unbounded(params: Params, data: Data) -> str:
    """Which units never change, or pairs lack a joint state, in words; "" if none.

    The likelihood and its kin then rise for ever as a bias or a coupling goes to
    infinity. Pairs that were never observed together are not among them.

    >>> params, rows = init(jax.random.key(0), 2), jnp.array([[0.0, 1.0], [0.0, 0.0]])
    >>> unbounded(params, Data(rows)).split(", so")[0]
    '1 of 2 units never change (unit 0 is always off)'
    """
    readable = is_on_host(data)
    # By NumPy where it can read the data: a check should not compile anything.
    counts = (
        _joint_counts(jax.tree.map(np.asarray, data))
        if readable
        else (np.asarray(_compiled_counts(data)))
    )
    on, off = np.diagonal(counts[0]), np.diagonal(counts[3])
    constant = np.flatnonzero((on == 0) | (off == 0))
    if constant.size:
        first = constant[0]
        return (
            f"{constant.size} of {len(on)} units never change (unit {first} is always "
            f"{'off' if on[first] == 0 else 'on'}), so their biases have no finite "
            "estimate"
        )
    first, second = pair_indices(len(params.bias), params.edges)
    counts = counts[:, first, second]
    missing = (counts == 0) & (counts.sum(0) > 0)[None]
    pairs = np.flatnonzero(missing.any(0))
    if not pairs.size:
        return ""
    worst = pairs[0]
    state = ("both on", "on and off", "off and on", "both off")
    seen = state[int(np.argmax(missing[:, worst]))]
    return (
        f"{pairs.size} of {len(first)} pairs of units lack one of their four joint "
        f"states (units {first[worst]} and {second[worst]} are never {seen}), so their "
        "couplings have no finite estimate"
    )


def _joint_counts(data):
    """In how many rows two units are both on, on and off, off and on, and both off."""
    x, xp = data.x, namespace(data.x)
    # Whether a row has weight matters, and not how much: sums stay exact.
    has = xp.ones(len(x)) if data.weights is None else data.weights > 0
    has = has.astype(x.dtype)[:, None]
    seen = has if data.mask is None else has * data.mask
    both_on = (seen * x).T @ (seen * x)
    if data.mask is None:
        on = xp.broadcast_to(xp.diagonal(both_on)[:, None], both_on.shape)
        total = xp.sum(has)
    else:
        on, total = (seen * x).T @ seen, seen.T @ seen
    return xp.stack(
        [both_on, on - both_on, on.T - both_on, total - on - on.T + both_on]
    )


_compiled_counts = jax.jit(_joint_counts)


@closed_form(
    flip_gaps=flip_gaps,
    mirror_gap=mirror_gap,
    flip_gap=flip_gap,
    unbounded=unbounded,
)
def energy(params: Params, x: Float[Array, " unit"]) -> Scalar:
    """The energy x'Jx of one state of 0s and 1s.

    >>> params = from_matrix([[1.0, 0.5], [0.5, -2.0]])
    >>> float(energy(params, jnp.array([1.0, 1.0])))  # 1 - 2 + 2 * 0.5
    0.0
    """
    _check_size(params, x)
    return x @ coupling_matrix(params) @ x


def from_spins(
    coupling: Float[ArrayLike, "unit unit"],
    field: Float[ArrayLike, " unit"],
    *,
    edges: Iterable[tuple[int, int]] | None = None,
) -> Params:
    """The parameters of p(s) ~ exp(s'Js / 2 + h's) over spins s = 2x - 1.

    Each pair is counted once there, as s'Js / 2 counts it twice. The diagonal of
    `coupling` has no meaning and must be zero.

    >>> params = from_spins([[0, 1], [1, 0]], [0, 0])
    >>> [float(energy(params, x)) for x in jnp.array([[0.0, 0], [0, 1], [1, 1]])]
    [0.0, 2.0, 0.0]
    """
    coupling, field = floating(coupling), floating(field)
    if coupling.shape != (*field.shape, *field.shape):
        raise ValueError(
            f"spins need one field and one row of couplings each, got shapes "
            f"{field.shape} and {coupling.shape}"
        )
    if not holds(_has_zero_diagonal, coupling):
        raise ValueError("the coupling of spins must have a zero diagonal")
    bias = 2 * coupling.sum(1) - 2 * field
    return from_matrix(jnp.diag(bias) - 2 * coupling, edges=edges)


def to_spins(params: Params) -> Spins:
    """The same model written over spins s = 2x - 1; see `Spins` for the signs.

    >>> params, x = from_matrix([[0.5, -1.0], [-1.0, 0.25]]), jnp.array([1.0, 0.0])
    >>> found, s = to_spins(params), spins(x)
    >>> float(found.constant - s @ found.coupling @ s / 2 - found.field @ s)
    0.5
    >>> float(energy(params, x))
    0.5
    """
    coupling = -_pair_matrix(params) / 2
    field = coupling.sum(1) - params.bias / 2
    return Spins(coupling, field, params.bias.sum() / 2 - coupling.sum() / 2)


def spins(bits: ArrayLike) -> Array:
    """0 and 1 to -1 and 1, as floats. (On unsigned integers 2x - 1 would wrap.)

    >>> spins([0, 1, 1]).tolist()
    [-1.0, 1.0, 1.0]
    """
    return 2 * jnp.asarray(bits, float) - 1


def bits(spins: ArrayLike) -> Array:
    """-1 and 1 to 0 and 1, as floats.

    >>> bits([-1, 1, 1]).tolist()
    [0.0, 1.0, 1.0]
    """
    spins = jnp.asarray(spins, float)
    if not holds(is_spin, spins):
        raise ValueError("spins must be -1 or 1")
    return (spins + 1) / 2


def couplings_only(params: Params) -> Params:
    """Weights for a penalty that spares the biases: 1 on couplings, 0 on biases.

    >>> from probjax import L2
    >>> params = from_matrix([[5.0, 2.0], [2.0, 5.0]])
    >>> float(L2(0.5, weights=couplings_only(params)).value(params))
    2.0
    """
    return Params(
        jnp.zeros_like(params.bias), jnp.ones_like(params.coupling), params.edges
    )


def symmetrised(of_units: Params) -> Params:
    """One model from fits of its units on their own, as `fit_nodes` returns them.

    The bias of a unit is from its own fit, a coupling the mean of those of its two
    units; leaves of `of_units` have a leading axis of units.

    >>> bias = jnp.array([[1.0, 9.0], [9.0, 2.0]])
    >>> of_units = Params(bias, coupling=jnp.array([[0.5], [1.5]]))
    >>> coupling_matrix(symmetrised(of_units)).tolist()
    [[1.0, 1.0], [1.0, 2.0]]
    """
    size = len(of_units.bias)
    first, second = pair_indices(size, of_units.edges)
    pairs = jnp.arange(len(first))
    both = of_units.coupling[first, pairs] + of_units.coupling[second, pairs]
    return Params(jnp.diagonal(of_units.bias), both / 2, of_units.edges)


@recipe
class CentredIsing(Chart):
    """Coordinates of an Ising model over y = (x - mean) / scale.

    E(x) = a'y + sum_(i<j) c_ij y_i y_j + constant, with c_ij = 2 J_ij s_i s_j and
    a_i = s_i (J_ii + 2 sum_j J_ij mean_j). Descent in (a, c) is well conditioned where
    descent in J is not: the statistics y_i and y_i y_j have about unit variance and are
    nearly uncorrelated.

    >>> chart = CentredIsing(mean=jnp.array([0.5, 0.5]), scale=jnp.array([0.5, 0.5]))
    >>> coordinates = chart.forward(from_matrix([[0, 2], [2, 0]]))
    >>> coordinates.bias.tolist(), coordinates.coupling.tolist()
    ([1.0, 1.0], [1.0])
    >>> coupling_matrix(chart.inverse(coordinates)).tolist()
    [[0.0, 2.0], [2.0, 0.0]]
    """

    mean: Float[Array, " unit"]
    scale: Float[Array, " unit"]

    def forward(self, params: Params) -> Params:
        if params.bias.shape != self.mean.shape:
            raise ValueError(
                f"the chart is of {len(self.mean)} units, params of {len(params.bias)}"
            )
        first, second = pair_indices(len(self.mean), params.edges)
        coupling = 2 * params.coupling * (self.scale[first] * self.scale[second])
        bias = self.scale * (params.bias + 2 * self._pull(params))
        return Params(bias, coupling, params.edges)

    def inverse(self, coordinates: Params) -> Params:
        first, second = pair_indices(len(self.mean), coordinates.edges)
        coupling = coordinates.coupling / (2 * self.scale[first] * self.scale[second])
        params = Params(coordinates.bias / self.scale, coupling, coordinates.edges)
        return Params(params.bias - 2 * self._pull(params), coupling, params.edges)

    def _pull(self, params):
        return _pair_matrix(params) @ self.mean


def centred(data: ArrayLike | Data) -> CentredIsing:
    """The chart of centred and scaled units, by the (weighted) moments of `data`.

    A unit that never changes is given the scale of one that changed once.

    >>> chart = centred(np.array([[0, 1], [1, 1], [0, 1], [1, 1]]))
    >>> chart.mean.tolist(), chart.scale.tolist()
    ([0.5, 1.0], [0.5, 0.5])
    """
    data = as_data(data)
    x = binary(data.x)
    mean = mean_of_observed(data._replace(x=x))
    return centred_at(mean, len(x) if data.weights is None else data.weights.sum())


def centred_at(mean: Float[Array, " n"], weight: ArrayLike) -> CentredIsing:
    """The chart of `centred`, by what is known of the data.

    Args:
        mean: of every unit, as `blocks.moments` finds it of rows that do not fit.
        weight: of all rows; without weights, their number.

    >>> centred_at(jnp.array([0.5, 1.0]), 16).scale.tolist()
    [0.5, 0.25]
    """
    return CentredIsing(mean, jnp.sqrt(jnp.maximum(mean * (1 - mean), 1 / weight)))


def _pair_matrix(params):
    """J with a diagonal of zeros."""
    size = len(params.bias)
    half = jnp.zeros((size, size), params.coupling.dtype)
    half = half.at[pair_indices(size, params.edges)].set(
        params.coupling, unique_indices=True
    )
    return half + half.T


@cache
def pair_indices(size: int, edges: Edges | None) -> tuple[np.ndarray, np.ndarray]:
    """The first and the second unit of every pair that may be coupled.

    >>> first, second = pair_indices(3, None)
    >>> first.tolist(), second.tolist()
    ([0, 0, 1], [1, 2, 2])
    """
    if edges is None:
        first, second = np.triu_indices(size, 1)
    else:
        first, second = np.asarray(edges, int).reshape(-1, 2).T
    # Of one kind whether or not 64 bits are enabled, as jax remembers such constants.
    return first.astype(np.int32), second.astype(np.int32)


def checked_edges(edges: Iterable[tuple[int, int]] | None, size: int) -> Edges | None:
    """`edges` as sorted pairs; refused if they are not pairs of different units."""
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if edges is None:
        return None
    edges = tuple((min(int(i), int(j)), max(int(i), int(j))) for i, j in edges)
    for i, j in edges:
        if not 0 <= i < j < size:
            raise ValueError(
                f"edges must join two different units of 0 to {size - 1}, got {(i, j)}"
            )
    if len(set(edges)) < len(edges):
        twice = next(edge for edge in edges if edges.count(edge) > 1)
        raise ValueError(f"edges must not repeat, got {twice} twice")
    return edges


def _has_zero_diagonal(matrix):
    return matrix.diagonal() == 0


def _check_matrix(matrix, symmetric):
    if not np.isfinite(matrix).all():
        raise ValueError("J must be finite, got NaN or infinity")
    if not np.allclose(matrix, matrix.T, rtol=1e-5, atol=1e-6):
        i, j = np.unravel_index(np.abs(matrix - matrix.T).argmax(), matrix.shape)
        raise ValueError(
            f"J must be symmetric, got J[{i}, {j}]={matrix[i, j]} "
            f"and J[{j}, {i}]={matrix[j, i]}"
        )
    if not np.allclose(matrix, symmetric, rtol=1e-5, atol=1e-6):
        i, j = np.unravel_index(np.abs(matrix - symmetric).argmax(), matrix.shape)
        raise ValueError(
            f"J must be zero outside edges, got J[{i}, {j}]={matrix[i, j]}"
        )


def _check_size(params, x):
    if x.shape != params.bias.shape:
        raise ValueError(
            f"x must have the {len(params.bias)} units of params, got shape {x.shape}"
        )
    pairs, _ = pair_indices(len(params.bias), params.edges)
    if params.coupling.shape != pairs.shape:
        raise ValueError(
            f"params must have one coupling for each of {len(pairs)} pairs, "
            f"got shape {params.coupling.shape}"
        )
