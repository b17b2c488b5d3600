"""Neighbours on a lattice, and the biases and couplings of its rows.

    x'Jx = sum over sites of  J_ii x_i + 2 J_ij x_i x_j (right) + 2 J_ik x_i x_k (below)

with j the neighbour to the right of site i and k the one below it. Rows run along the
shorter side of the lattice, because the cost of a sum over rows is exponential in their
length. The functions of arrays accept both NumPy and JAX arrays.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from probjax.checks import is_concrete
from probjax.types import Array

MAX_WIDTH = 12

Shape = tuple[int, int]
Edges = tuple[tuple[int, int], ...]


class Graph(NamedTuple):
    """Neighbours of every site; all fields are `(row, column)`."""

    site: np.ndarray
    """Number of the site."""
    right: np.ndarray
    """Number of the next site in the row, with periodic boundaries."""
    below: np.ndarray
    """Number of the site in the next row, with periodic boundaries."""
    has_right: np.ndarray
    """Whether `site` and `right` are neighbours."""
    has_below: np.ndarray
    """Whether `site` and `below` are neighbours."""


class Terms(NamedTuple):
    """Biases and couplings of every site; all fields are `(row, column)`."""

    bias: Array | np.ndarray
    """Bias J_ii."""
    right: Array | np.ndarray
    """Coupling 2 J_ij to the neighbour on the right; 0 if there is none."""
    below: Array | np.ndarray
    """Coupling 2 J_ij to the neighbour below; 0 if there is none."""


def graph(shape: Shape, periodic: bool) -> Graph:
    """Return the neighbours on a lattice, whose rows are its shorter side."""
    site = np.arange(shape[0] * shape[1]).reshape(shape)
    site = site.T if shape[0] < shape[1] else site
    height, width = site.shape
    row, column = np.indices(site.shape)
    # On a side of two, the neighbour across the boundary is the same site.
    return Graph(
        site,
        np.roll(site, -1, axis=1),
        np.roll(site, -1, axis=0),
        (column < width - 1) | (periodic and width > 2),
        (row < height - 1) | (periodic and height > 2),
    )


def pairs(lattice: Graph) -> np.ndarray:
    """Return all neighbours (i, j) with i < j, each pair once, sorted, `(pair, 2)`."""
    across = lattice.site[lattice.has_right], lattice.right[lattice.has_right]
    down = lattice.site[lattice.has_below], lattice.below[lattice.has_below]
    both = np.sort(np.concatenate([across, down], axis=1), axis=0)
    return both[:, np.lexsort(both[::-1])].T


def terms(matrix: Array | np.ndarray, lattice: Graph) -> Terms:
    """Return the biases and couplings of `matrix`, from both J_ij and J_ji."""

    def coupling(other, exists):
        return (matrix[lattice.site, other] + matrix[other, lattice.site]) * exists

    return Terms(
        matrix[lattice.site, lattice.site],
        coupling(lattice.right, lattice.has_right),
        coupling(lattice.below, lattice.has_below),
    )


def row_states(width: int) -> np.ndarray:
    """Return all states of a row, `(state, column)`, first unit most significant."""
    return (np.arange(2**width)[:, None] >> np.arange(width)[::-1] & 1).astype(float)


def log_weights(within: Terms, states: np.ndarray) -> Array:
    """Compute minus the energy of every row alone in every state, `(row, state)`."""
    products = states * np.roll(states, -1, axis=1)
    energy = (
        within.bias[:, None] * states[None] + within.right[:, None] * products[None]
    )
    return -energy.sum(axis=-1)


def check_shape(shape: Shape) -> Shape:
    """Return `shape` as two integers; raise if it is not the shape of a lattice."""
    height, width = (int(side) for side in shape)
    if min(height, width) < 1:
        raise ValueError(f"shape must be two sides of at least 1, got {tuple(shape)}")
    return height, width


def check(matrix: Array, shape: Shape, periodic: bool) -> None:
    """Raise if `matrix` does not fit the lattice, or the lattice is too wide to sum."""
    size = shape[0] * shape[1]
    if min(shape) > MAX_WIDTH:
        raise ValueError(
            f"shape must have a side of at most {MAX_WIDTH} to be summed exactly, "
            f"got {shape}; try ais, which estimates log Z of any model"
        )
    if jnp.shape(matrix) != (size, size):
        raise ValueError(
            f"matrix must be {size} x {size} for shape {shape}, "
            f"got shape {jnp.shape(matrix)}"
        )
    if is_concrete(matrix):
        _check_values(np.asarray(matrix, float), shape, periodic)


def _check_values(matrix, shape, periodic):
    """Raise if `matrix` is not finite and symmetric with couplings of neighbours."""
    if not np.isfinite(matrix).all():
        raise ValueError("matrix must be finite, got NaN or infinity")
    difference = np.abs(matrix - matrix.T)
    if difference.max() > 1e-5 * np.abs(matrix).max():
        i, j = np.unravel_index(difference.argmax(), difference.shape)
        raise ValueError(
            f"matrix must be symmetric, got {matrix[i, j]} at ({i}, {j}) "
            f"and {matrix[j, i]} at ({j}, {i})"
        )
    allowed = np.eye(len(matrix), dtype=bool)
    first, second = pairs(graph(shape, periodic)).T
    allowed[first, second] = allowed[second, first] = True
    stray = np.argwhere((matrix != 0) & ~allowed)
    if len(stray):
        i, j = stray[0]
        kind = "torus" if periodic else "open lattice"
        raise ValueError(
            f"matrix must couple only neighbours on the {shape[0]} x {shape[1]} "
            f"{kind}, got {matrix[i, j]} between sites {i} and {j}"
        )
