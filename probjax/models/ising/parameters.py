"""Parameters of an Ising model: biases, and one coupling for each pair of units.

The energy is E(x) = x'Jx with a symmetric J that has the biases on its diagonal.
`Params` holds each J_ij once, so J cannot become asymmetric. The pairs may be
restricted to the edges of a graph.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import is_concrete
from probjax.devices import on_host
from probjax.models.pairs import (
    Edges,
    as_edges,
    checked_edges,
    num_pairs,
    pair_indices,
    pair_values,
    upper_triangle,
)
from probjax.models.sparse_pairs import incidence, layout
from probjax.recipe import recipe, static
from probjax.trees import as_array, floating
from probjax.types import Array, ArrayLike, Float, PRNGKeyArray


@recipe
class Params:
    """One bias per unit and one coupling per pair.

    >>> params = Params(bias=jnp.array([1.0, -2.0]), coupling=jnp.array([0.5]))
    >>> coupling_matrix(params).tolist()
    [[1.0, 0.5], [0.5, -2.0]]
    """

    bias: Float[Array, " unit"]
    """Diagonal of J."""
    coupling: Float[Array, " pair"]
    """J_ij of each pair i < j: in the order of `edges`, or row by row for all pairs."""
    edges: Edges | None = static(default=None)
    """Pairs of units that are coupled; None for all pairs.

    Any iterable of pairs becomes `Edges`.
    """

    def __post_init__(self):
        object.__setattr__(self, "edges", as_edges(self.edges))


def init(
    key: PRNGKeyArray,
    size: int,
    *,
    edges: Iterable[tuple[int, int]] | None = None,
    scale: float = 0.01,
) -> Params:
    """Return independent normal couplings and biases of 0.

    Args:
        size: number of units.
        edges: pairs of units that are coupled; None for all pairs.
        scale: standard deviation of the couplings.

    >>> init(jax.random.key(0), 3, edges=[(0, 1), (2, 1)]).edges
    Edges(((0, 1), (1, 2)))
    """
    edges = checked_edges(edges, size)
    coupling = scale * jax.random.normal(key, (num_pairs(size, edges),))
    return Params(jnp.zeros(size), coupling, edges)


def from_matrix(
    matrix: Float[ArrayLike, "unit unit"],
    *,
    edges: Iterable[tuple[int, int]] | None = None,
) -> Params:
    """Return the parameters of a symmetric J, whose entries outside `edges` are zero.

    >>> params = from_matrix([[1.0, 0.5], [0.5, -2.0]])
    >>> params.bias.tolist(), params.coupling.tolist()
    ([1.0, -2.0], [0.5])
    """
    matrix = floating(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"J must be a square matrix, got shape {matrix.shape}")
    edges = checked_edges(edges, len(matrix))
    if not is_concrete(matrix):
        return Params(jnp.diagonal(matrix), pair_values(matrix, edges), edges)
    rows, columns = pair_indices(len(matrix), edges)
    # NumPy compiles nothing.
    known = on_host(matrix)
    bias, coupling = known.diagonal(), known[rows, columns]
    symmetric = np.diag(bias)
    symmetric[rows, columns] = symmetric[columns, rows] = coupling
    _check_matrix(known, symmetric)
    return Params(as_array(bias), as_array(coupling), edges)


def coupling_matrix(params: Params) -> Float[Array, "unit unit"]:
    """Symmetric matrix J of E = x'Jx, with the biases on its diagonal.

    >>> chain = Params(jnp.zeros(3), jnp.array([1.0, 2.0]), edges=((0, 1), (1, 2)))
    >>> coupling_matrix(chain).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 2.0], [0.0, 2.0, 0.0]]
    """
    return pair_matrix(params) + jnp.diag(params.bias)


def pair_matrix(params: Params) -> Float[Array, "unit unit"]:
    """Symmetric matrix of the couplings, with zeros on its diagonal."""
    half = upper_triangle(params.coupling, len(params.bias), params.edges)
    return half + half.T


def coupled_sums(params: Params, x: Float[Array, " unit"]) -> Float[Array, " unit"]:
    """2 sum_(m != n) J_nm x_m for each unit n.

    >>> chain = Params(jnp.zeros(3), jnp.array([1.0, 2.0]), edges=((0, 1), (1, 2)))
    >>> coupled_sums(chain, jnp.array([1.0, 0.0, 1.0])).tolist()
    [0.0, 6.0, 0.0]
    """
    form = layout(len(params.bias), params.edges)
    if form is None:
        return 2 * pair_matrix(params) @ x
    return 2 * form.sums(params.coupling, x)


def couplings_only(params: Params) -> Params:
    """Weights of a penalty that leaves the biases out: 1 on couplings, 0 on biases.

    Without weights, `fit` uses them too, and adds a faint prior on biases.

    >>> from probjax import L2
    >>> params = from_matrix([[5.0, 2.0], [2.0, 5.0]])
    >>> float(L2(0.5, weights=couplings_only(params)).value(params))
    2.0
    """
    return Params(0.0, 1.0, params.edges)  # pyright: ignore[reportArgumentType]


@recipe
class UnitParams:
    """Parameters on which the conditional distribution of one unit n depends.

    `fit_nodes` returns them with a leading axis of units, and `symmetrised` combines
    them in one model.

    >>> row = UnitParams(jnp.array(-2.0), jnp.array([0.5, 0.0]))
    >>> from probjax.models.ising.model import unit_energy
    >>> float(unit_energy(row, jnp.array([1.0, 0.0])))
    -1.0
    """

    bias: Float[Array, ""]
    """J_nn."""
    coupling: Float[Array, " unit"]
    """J_nm for every unit m; zero, and not used, for n itself and uncoupled units."""
    edges: Edges | None = static(default=None)
    """Pairs of units that are coupled; None for all pairs.

    Any iterable of pairs becomes `Edges`.
    """

    def __post_init__(self):
        object.__setattr__(self, "edges", as_edges(self.edges))


def unit_params(params: Params, unit: Array | int) -> UnitParams:
    """Return the parameters of one unit: its row of J.

    >>> row = unit_params(from_matrix([[1.0, 0.5], [0.5, -2.0]]), 1)
    >>> float(row.bias), row.coupling.tolist()
    (-2.0, [0.5, 0.0])
    """
    size = len(params.bias)
    if layout(size, params.edges) is None:
        row = pair_matrix(params)[unit]
    else:
        near = incidence(size, params.edges).around(unit)
        row = jnp.zeros_like(params.bias)
        row = row.at[near.site].add(near.values(params.coupling))
    return UnitParams(params.bias[unit], row, params.edges)


def symmetrised(of_units: UnitParams | Params) -> Params:
    """Combine separate fits of the units, such as those of `fit_nodes`, in one model.

    A coupling is the mean of its values in the fits of its two units. The bias of a
    unit changes with its couplings, so that over spins 2x - 1 the field of the unit is
    the one of its own fit.

    Args:
        of_units: one fit for each unit, stacked along a leading axis of every leaf. If
            a fit has all `Params`, only those of its own unit are used.

    >>> matrix = jnp.array([[0.0, 0.5], [1.5, 0.0]])
    >>> of_units = UnitParams(jnp.array([1.0, 2.0]), matrix)
    >>> coupling_matrix(symmetrised(of_units)).tolist()
    [[0.5, 1.0], [1.0, 2.5]]
    """
    first, second = pair_indices(len(of_units.bias), of_units.edges)
    if isinstance(of_units, UnitParams):
        bias = of_units.bias
        by_first = of_units.coupling[first, second]
        by_second = of_units.coupling[second, first]
    else:
        bias = jnp.diagonal(of_units.bias)
        pairs = np.arange(len(first))
        by_first = of_units.coupling[first, pairs]
        by_second = of_units.coupling[second, pairs]
    # The field of a unit is -(bias + sum of its couplings) / 2.
    excess = (by_first - by_second) / 2
    bias = bias.at[first].add(excess).at[second].add(-excess)
    return Params(bias, (by_first + by_second) / 2, of_units.edges)


def _check_matrix(matrix, symmetric):
    """Raise if `matrix` is not finite, not symmetric, or not zero outside the edges.

    Args:
        symmetric: the matrix that the biases and couplings of the edges define.
    """
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
