"""Exact sums for two-dimensional lattices of binary units, row by row.

    p(x) = exp(-x'Jx) / Z,   x in {0, 1}^d,   site = row * width + column

J is symmetric, has the biases on its diagonal, and couples nearest neighbours only. So
the rows form a chain. With phi_r(s) the weight of row r alone in state s, and V_r(s, t)
the weight of its interaction with the row below in state t,

    Z = sum over s_0, s_1, ... of phi_0(s_0) V_0(s_0, s_1) phi_1(s_1) V_1(s_1, s_2) ...

V_r is a product over columns, so a row of w units can be summed out column by column at
a cost of w 2^w instead of 4^w. On a torus the last row interacts with the first, and
the sum is computed for every state of the first row. Rows run along the shorter side,
which has at most 12 units.

Reference: thesis, "Two Dimensional Ising Spin Glass", for the model.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import logsumexp

from probjax.checks import is_concrete
from probjax.exact import lattice_graph, transfer_matrix
from probjax.exact.enumeration import Moments
from probjax.exact.lattice_graph import Edges, Shape
from probjax.trees import float_dtype
from probjax.types import Array, Float, PRNGKeyArray, Scalar


def edges(shape: Shape, *, periodic: bool = False) -> Edges:
    """Return the pairs i < j of neighbouring sites, each once, in order.

    Args:
        shape: height and width.
        periodic: whether the lattice is a torus.

    >>> edges((2, 2), periodic=True)
    ((0, 1), (0, 2), (1, 3), (2, 3))
    """
    graph = lattice_graph.graph(lattice_graph.check_shape(shape), periodic)
    return tuple((i, j) for i, j in lattice_graph.pairs(graph).tolist())


def spin_glass(
    key: PRNGKeyArray, shape: Shape, *, variance: float, periodic: bool = True
) -> Float[Array, "site site"]:
    """Draw a random J with normal couplings of neighbours and columns that sum to 0.

    J_ij = J_ji ~ N(0, variance) for neighbours and J_ii = -sum_{j != i} J_ij, so that
    every unit is 1 with probability 1/2.

    Args:
        shape: height and width.
        variance: variance of the couplings.
        periodic: whether the lattice is a torus.

    Reference: thesis, "Two Dimensional Ising Spin Glass".

    >>> matrix = spin_glass(jax.random.key(0), (3, 3), variance=1.0)
    >>> bool(jnp.abs(matrix.sum(0)).max() < 1e-5)
    True
    """
    if is_concrete(variance) and not variance >= 0:
        raise ValueError(f"variance must not be negative, got {variance}")
    shape = lattice_graph.check_shape(shape)
    first, second = lattice_graph.pairs(lattice_graph.graph(shape, periodic)).T
    size = shape[0] * shape[1]
    couplings = jnp.sqrt(variance) * jax.random.normal(key, first.shape)
    upper = jnp.zeros((size, size)).at[first, second].set(couplings)
    matrix = upper + upper.T
    return matrix - jnp.diag(matrix.sum(axis=0))


def log_z(
    matrix: Float[Array, "site site"], shape: Shape, *, periodic: bool = False
) -> Scalar:
    """Compute the log partition function, log sum_x exp(-x'Jx), differentiable in J.

    The gradient is -E[x_i x_j] on the diagonal and on the edges, and 0 elsewhere. The
    computation is in log space, so couplings can be arbitrarily strong.

    Args:
        matrix: J, symmetric, with biases on the diagonal and couplings of neighbours
            only.
        shape: height and width. The shorter side is at most 12.
        periodic: whether the lattice is a torus.

    >>> round(float(log_z(jnp.zeros((4, 4)), (2, 2))), 4)  # log 16
    2.7726
    """
    shape = lattice_graph.check_shape(shape)
    lattice_graph.check(matrix, shape, periodic)
    return _log_z(jnp.asarray(matrix, float_dtype(matrix)), shape, periodic)


def moments(
    matrix: Float[Array, "site site"], shape: Shape, *, periodic: bool = False
) -> Moments:
    """Compute E[x_i] and E[x_i x_j] for all pairs of sites, on the host in float64.

    Each row in turn is fixed in each of its states u. Sums over the rows above and
    below give the conditional means of the other rows, and

        E[x_i x_j] = sum_u p(u) u_i E[x_j | u].

    Args:
        matrix: J, as for `log_z`, but not traced. The sum of |2 J_ij| between two rows
            is at most 1300, because of the range of float64.
        shape: height and width, as for `log_z`.
        periodic: whether the lattice is a torus.

    >>> both = moments(jnp.zeros((4, 4)), (2, 2))
    >>> both.mean.tolist(), both.second[0].tolist()
    ([0.5, 0.5, 0.5, 0.5], [0.5, 0.25, 0.25, 0.25])
    """
    rows, sites = _host_rows(matrix, shape, periodic)
    mean, second = transfer_matrix.moments(rows)
    order = np.argsort(sites.ravel())
    return Moments(jnp.asarray(mean[order]), jnp.asarray(second[np.ix_(order, order)]))


def kl(
    truth: Float[Array, "site site"],
    matrix: Float[Array, "site site"],
    shape: Shape,
    *,
    periodic: bool = False,
) -> Scalar:
    """Compute KL(p||q) of the models with J = `truth` and J = `matrix`, in nats.

        KL = sum_ij (Q_ij - P_ij) E_p[x_i x_j] + log Z_q - log Z_p

    As a difference of log Z, it has the rounding errors of log Z: about 1e-5 nats for
    100 units in float32.

    >>> fair, biased = jnp.zeros((4, 4)), jnp.log(3.0) * jnp.eye(4)
    >>> nats = kl(fair, biased, (2, 2))  # 4 units with p = 1/2 and q = 1/4
    >>> bool(abs(nats - 4 * jnp.log(4 / 3) / 2) < 1e-5)
    True

    Args:
        truth: P, the matrix J of the model p, as for `moments`.
        matrix: Q, the matrix J of the model q, as for `moments`.
        shape: height and width, as for `log_z`.
        periodic: whether the lattice is a torus.
    """
    if np.shape(matrix) != np.shape(truth):
        raise ValueError(
            "truth and matrix must have the same shape, got shapes "
            f"{np.shape(truth)} and {np.shape(matrix)}"
        )
    difference = jnp.asarray(matrix) - jnp.asarray(truth)
    log_ratio = log_z(matrix, shape, periodic=periodic) - log_z(
        truth, shape, periodic=periodic
    )
    second = moments(truth, shape, periodic=periodic).second
    return jnp.sum(difference * second) + log_ratio


def sample(
    key: PRNGKeyArray,
    matrix: Float[Array, "site site"],
    shape: Shape,
    *,
    num_draws: int,
    periodic: bool = False,
) -> Float[Array, "num_draws site"]:
    """Draw exact independent states, row after row, on the host in float64.

    Args:
        matrix: J, as for `moments`.
        shape: height and width, as for `log_z`.
        periodic: whether the lattice is a torus.

    >>> bias = jnp.diag(jnp.array([50.0, -50.0, 50.0, -50.0]))
    >>> sample(jax.random.key(0), bias, (2, 2), num_draws=2).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]]
    """
    if num_draws < 1:
        raise ValueError(f"num_draws must be at least 1, got {num_draws}")
    rows, sites = _host_rows(matrix, shape, periodic)
    bits = jax.random.bits(key, (num_draws, len(sites)), "uint32")
    uniforms = (np.asarray(bits, float) + 0.5) / 2**32
    draws = transfer_matrix.sample(rows, uniforms).reshape(num_draws, -1)
    return jnp.asarray(draws[:, np.argsort(sites.ravel())])


def _host_rows(matrix, shape, periodic):
    """Return the lattice as a chain of rows, in NumPy, and the sites of the rows."""
    shape = lattice_graph.check_shape(shape)
    lattice_graph.check(matrix, shape, periodic)
    if not is_concrete(matrix):
        raise ValueError(
            "matrix must have values, because this runs on the host, got a traced array"
        )
    graph = lattice_graph.graph(shape, periodic)
    terms = lattice_graph.terms(np.asarray(matrix, float), graph)
    # st = (2s - 1)(2t - 1) / 4 + s / 2 + t / 2 - 1/4. The linear terms are added to the
    # biases, so that the weights of interactions have the narrowest range.
    below = np.asarray(terms.below)
    terms = terms._replace(bias=terms.bias + (below + np.roll(below, 1, axis=0)) / 2)
    states = lattice_graph.row_states(graph.site.shape[1])
    weights = np.asarray(lattice_graph.log_weights(terms, states))
    rows = transfer_matrix.Rows(weights, below, states)
    transfer_matrix.check(rows)
    return rows, graph.site


@partial(jax.jit, static_argnames=("shape", "periodic"))
def _log_z(matrix, shape, periodic):
    graph = lattice_graph.graph(shape, periodic)
    terms = lattice_graph.terms(matrix, graph)
    states = lattice_graph.row_states(graph.site.shape[1]).astype(matrix.dtype)
    log_weights = lattice_graph.log_weights(terms, states)
    if not graph.has_below[-1, 0]:
        table = log_weights[0][:, None]
        table, shift = _sum_rows(table, log_weights[1:], terms.below[:-1])
        return logsumexp(table) + shift

    def log_interaction(couplings, first):
        return -jnp.matmul(states * couplings[None], first.T, precision="highest")

    @jax.checkpoint
    def sum_given_first(block):
        first, log_first = block
        table = log_interaction(terms.below[0], first)
        table = table + log_weights[1][:, None] + log_first[None]
        table, shift = _sum_rows(table, log_weights[2:], terms.below[1:-1])
        return logsumexp(table + log_interaction(terms.below[-1], first)) + shift

    size = transfer_matrix.block_size(len(states))
    first = jnp.asarray(states).reshape(-1, size, states.shape[1])
    log_first = log_weights[0].reshape(-1, size)
    return logsumexp(jax.lax.map(sum_given_first, (first, log_first)))


def _sum_rows(table, log_weights, below):
    """Return the table of the last row, and the log of its scale.

    Args:
        table: table of the row before, `(state, state of the first row)`.
        log_weights: log weights of the rows to add, `(row, state)`.
        below: couplings of each row to the row below it, `(row, column)`.
    """

    def next_row(table, row):
        log_weight, couplings = row
        # Entries are kept near 0, where float32 has the best absolute precision. The
        # shift is a constant for derivatives, because the result does not depend on it.
        peak = jax.lax.stop_gradient(table.max())
        table = table - peak
        for coupling in couplings:
            # The leading unit is summed out. Its neighbour below becomes the last unit.
            zero, one = table.reshape(2, -1, table.shape[-1])
            pair = [_log_add(zero, one), _log_add(zero, one - coupling)]
            table = jnp.stack(pair, axis=1).reshape(table.shape)
        return table + log_weight[:, None], peak

    table, peaks = jax.lax.scan(next_row, table, (log_weights, below))
    return table, peaks.sum()


@jax.custom_jvp
def _log_add(a, b):
    return jnp.maximum(a, b) + jnp.log1p(jnp.exp(-jnp.abs(a - b)))


@_log_add.defjvp
def _log_add_jvp(primals, tangents):
    # One sigmoid; the derivative of jnp.logaddexp computes two exponentials.
    (a, b), (da, db) = primals, tangents
    return _log_add(a, b), da + (db - da) * jax.nn.sigmoid(b - a)
