"""Two-dimensional lattices of binary units, summed row by row.

    p(x) = exp(-x'Jx) / Z,   x in {0, 1}^d,   d = height * width,   site = row * width + column

J is symmetric, biases on its diagonal, and couples nearest neighbours only, so the rows
form a chain: with phi_r(s) the weight of state s of row r by itself and V_r(s, t) that of
its meeting the row below in state t,

    Z = sum over s_0, ..., s_{H-1} of phi_0(s_0) V_0(s_0, s_1) phi_1(s_1) V_1(s_1, s_2) ...

V_r is a product over columns, so one row is summed out column by column at a cost of
w 2^w, not 4^w, for rows of w units. On a torus the last row meets the first, and the sum
is carried for every state of the first row. Rows run along the shorter side.

Reference: thesis, "Two Dimensional Ising Spin Glass" (the model); the sums are textbook.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import logsumexp

from probjax.exact import transfer
from probjax.exact.enumeration import Moments
from probjax.types import Array, Float, PRNGKeyArray, Scalar, is_concrete

WIDEST = 12

Shape = tuple[int, int]
Edges = tuple[tuple[int, int], ...]


def edges(shape: Shape, *, periodic: bool = False) -> Edges:
    """The pairs i < j of neighbouring sites, each once, in order.

    >>> edges((2, 2), periodic=True)
    ((0, 1), (0, 2), (1, 3), (2, 3))
    """
    graph = _graph(_checked_shape(shape), periodic)
    pairs = [
        (graph.site[mask], other[mask])
        for other, mask in (
            (graph.right, graph.has_right),
            (graph.below, graph.has_below),
        )
    ]
    both = np.sort(np.concatenate(pairs, axis=1), axis=0)
    return tuple(sorted(map(tuple, both.T.tolist())))


def spin_glass(
    key: PRNGKeyArray, shape: Shape, *, variance: float, periodic: bool = True
) -> Float[Array, "site site"]:
    """A random J: normal couplings of neighbours, and columns that sum to 0.

    J_ij = J_ji ~ N(0, variance) for neighbours, J_ii = -sum_{j != i} J_ij, so that every
    unit is on half the time.

    Reference: thesis, "Two Dimensional Ising Spin Glass".
    """
    if is_concrete(variance) and not variance >= 0:
        raise ValueError(f"variance must not be negative, got {variance}")
    pairs = np.array(edges(shape, periodic=periodic), int).reshape(-1, 2)
    size = shape[0] * shape[1]
    couplings = jnp.sqrt(variance) * jax.random.normal(key, (len(pairs),))
    upper = jnp.zeros((size, size)).at[pairs[:, 0], pairs[:, 1]].set(couplings)
    matrix = upper + upper.T
    return matrix - jnp.diag(matrix.sum(axis=0))


def log_z(
    matrix: Float[Array, "site site"], shape: Shape, *, periodic: bool = False
) -> Scalar:
    """Log sum_x exp(-x'Jx), differentiable in J.

    The gradient is -E[x_i x_j] on the diagonal and on the edges, 0 elsewhere. Every sum is
    of logarithms, so no coupling is too strong.

    Args:
        matrix: J, symmetric, biases on the diagonal; couplings of neighbours only.
        shape: height and width; the shorter side at most 12.
        periodic: whether both sides close on themselves, to a torus.
    """
    shape = _checked(matrix, shape, periodic)
    return _log_z(jnp.asarray(matrix), shape, periodic)


def moments(
    matrix: Float[Array, "site site"], shape: Shape, *, periodic: bool = False
) -> Moments:
    """E[x_i] and E[x_i x_j] for all pairs of sites, computed on the host in float64.

    Each row in turn is held in each of its states u, and the means of all others follow
    from the sums above and below: E[x_i x_j] = sum_u p(u) u_i E[x_j | u].

    Args:
        matrix: as for `log_z`, but concrete.
    """
    rows, sites = _host_rows(matrix, shape, periodic)
    mean, second = transfer.moments(rows)
    order = np.argsort(sites.ravel())
    return Moments(jnp.asarray(mean[order]), jnp.asarray(second[np.ix_(order, order)]))


def sample(
    key: PRNGKeyArray,
    matrix: Float[Array, "site site"],
    shape: Shape,
    *,
    num_draws: int,
    periodic: bool = False,
) -> Float[Array, "num_draws site"]:
    """Exact independent draws, row after row, computed on the host in float64.

    Args:
        matrix: as for `log_z`, but concrete.
    """
    if num_draws < 1:
        raise ValueError(f"num_draws must be at least 1, got {num_draws}")
    rows, sites = _host_rows(matrix, shape, periodic)
    bits = jax.random.bits(key, (num_draws, len(sites)), "uint32")
    uniforms = (np.asarray(bits, float) + 0.5) / 2**32
    draws = transfer.sample(rows, uniforms).reshape(num_draws, -1)
    return jnp.asarray(draws[:, np.argsort(sites.ravel())])


class _Graph(NamedTuple):
    """The sites, row by row of the shorter side, and which neighbours they have."""

    site: np.ndarray
    right: np.ndarray
    below: np.ndarray
    has_right: np.ndarray
    has_below: np.ndarray


def _graph(shape, periodic):
    site = np.arange(shape[0] * shape[1]).reshape(shape)
    if shape[0] < shape[1]:
        site = site.T
    right, below = np.roll(site, -1, axis=1), np.roll(site, -1, axis=0)
    row, column = np.indices(site.shape)
    height, width = site.shape
    # On a side of two the way around leads to the same neighbour, which is counted once.
    has_right = (column < width - 1) | (periodic and width > 2)
    has_below = (row < height - 1) | (periodic and height > 2)
    return _Graph(site, right, below, has_right, has_below)


class _Terms(NamedTuple):
    """x'Jx = sum of bias x + right x x_right + below x x_below, each `(row, column)`."""

    bias: Array
    right: Array
    below: Array


def _terms(matrix, graph):
    def coupling(other, exists):
        return (matrix[graph.site, other] + matrix[other, graph.site]) * exists

    return _Terms(
        matrix[graph.site, graph.site],
        coupling(graph.right, graph.has_right),
        coupling(graph.below, graph.has_below),
    )


def _log_weights(terms, states):
    """Log phi_r(s) for every row and every state of a row."""
    pairs = states * np.roll(states, -1, axis=1)
    energy = terms.bias[:, None] * states[None] + terms.right[:, None] * pairs[None]
    return -energy.sum(axis=-1)


@partial(jax.jit, static_argnames=("shape", "periodic"))
def _log_z(matrix, shape, periodic):
    graph = _graph(shape, periodic)
    terms = _terms(matrix, graph)
    states = transfer.row_states(graph.site.shape[1]).astype(matrix.dtype)
    log_weights = _log_weights(terms, states)
    if not graph.has_below[-1, 0]:
        return _sum_rows(log_weights[0][:, None], log_weights[1:], terms.below[:-1])

    def meet(coupling, first):
        return -jnp.matmul(states * coupling[None], first.T, precision="highest")

    @jax.checkpoint
    def held(block):
        first, log_first = block
        table = meet(terms.below[0], first) + log_weights[1][:, None] + log_first[None]
        last = meet(terms.below[-1], first)
        return _sum_rows(table, log_weights[2:], terms.below[1:-1], last)

    size = transfer.block_size(len(states))
    blocks = (
        jnp.asarray(states).reshape(-1, size, states.shape[1]),
        log_weights[0].reshape(-1, size),
    )
    return logsumexp(jax.lax.map(held, blocks))


def _sum_rows(table, log_weights, below, last=0.0):
    """Log sum over the remaining rows, of which `table` (state, held) is the first."""

    def next_row(table, row):
        log_weight, couplings = row
        # Kept near 0, where float32 is finest; a constant, as no derivative needs it.
        peak = jax.lax.stop_gradient(table.max())
        table = table - peak
        for coupling in couplings:
            off, on = table.reshape(2, -1, table.shape[-1])
            pair = [_log_add(off, on), _log_add(off, on - coupling)]
            table = jnp.stack(pair, axis=1).reshape(table.shape)
        return table + log_weight[:, None], peak

    table, peaks = jax.lax.scan(next_row, table, (log_weights, below))
    return logsumexp(table + last) + peaks.sum()


@jax.custom_jvp
def _log_add(a, b):
    return jnp.maximum(a, b) + jnp.log1p(jnp.exp(-jnp.abs(a - b)))


@_log_add.defjvp
def _log_add_jvp(primals, tangents):
    # One sigmoid, where the derivative of jnp.logaddexp takes two exponentials.
    (a, b), (da, db) = primals, tangents
    return _log_add(a, b), da + (db - da) * jax.nn.sigmoid(b - a)


def _host_rows(matrix, shape, periodic):
    if not is_concrete(matrix):
        raise ValueError(
            "matrix must be concrete, as this works on the host, got a traced array"
        )
    graph = _graph(_checked(matrix, shape, periodic), periodic)
    terms = _terms(np.asarray(matrix, float), graph)
    # st = (2s - 1)(2t - 1) / 4 + s / 2 + t / 2 - 1/4: fields move into the rows, and
    # meetings are left with the narrowest range of weights.
    fields = (terms.below + np.roll(terms.below, 1, axis=0)) / 2
    terms = terms._replace(bias=terms.bias + fields)
    states = transfer.row_states(graph.site.shape[1])
    rows = transfer.Rows(_log_weights(terms, states), terms.below, states)
    transfer.check(rows)
    return rows, graph.site


def _checked_shape(shape):
    height, width = (int(side) for side in shape)
    if min(height, width) < 1:
        raise ValueError(f"shape must be two sides of at least 1, got {shape}")
    return height, width


def _checked(matrix, shape, periodic):
    height, width = shape = _checked_shape(shape)
    size = height * width
    if min(shape) > WIDEST:
        raise ValueError(f"shape must have a side of at most {WIDEST}, got {shape}")
    if jnp.shape(matrix) != (size, size):
        raise ValueError(
            f"matrix must be {size} x {size} for shape {shape}, "
            f"got shape {jnp.shape(matrix)}"
        )
    if is_concrete(matrix):
        _check_values(np.asarray(matrix, float), shape, periodic)
    return shape


def _check_values(matrix, shape, periodic):
    if not np.isfinite(matrix).all():
        raise ValueError("matrix must be finite, got NaN or infinity")
    apart = np.abs(matrix - matrix.T)
    if apart.max() > 1e-5 * np.abs(matrix).max():
        i, j = np.unravel_index(apart.argmax(), apart.shape)
        raise ValueError(
            f"matrix must be symmetric, got {matrix[i, j]} at ({i}, {j}) "
            f"and {matrix[j, i]} at ({j}, {i})"
        )
    allowed = np.eye(len(matrix), dtype=bool)
    for i, j in edges(shape, periodic=periodic):
        allowed[i, j] = allowed[j, i] = True
    stray = np.argwhere((matrix != 0) & ~allowed)
    if len(stray):
        i, j = stray[0]
        kind = "torus" if periodic else "open lattice"
        raise ValueError(
            f"matrix must couple only neighbours on the {shape[0]} x {shape[1]} {kind}, "
            f"got {matrix[i, j]} between sites {i} and {j}"
        )
