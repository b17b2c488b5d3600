"""The probability flow itself, on spaces small enough to write it down as a matrix.

    dp/dt = Gamma p,   Gamma_ij = g_ij exp((E_j - E_i) / 2) for i != j,   Gamma_jj = -sum_i Gamma_ij

with g the symmetric connectivity; column j is the flow out of state j. The flow obeys
detailed balance, so with V = diag(exp(-E / 2)) the matrix B = V^-1 Gamma V is symmetric:
B_ij = g_ij off the diagonal, Gamma_jj on it. Its eigenvalues 0 = l_1 >= l_2 >= ... are those
of Gamma, its first eigenvector is sqrt(p), and p(t) = V exp(Bt) V^-1 p(0).

Reference: thesis, "Dynamics", "Detailed Balance" and the appendix "Lower Bound on Log
Likelihood Using MPF".
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.exact import enumeration
from probjax.types import Array, Connectivity, Energy, Float, Params, Scalar, is_concrete

LIMIT = 2**12


class Spectrum(NamedTuple):
    """The flow as modes that decay independently."""

    values: Float[Array, " state"]
    """Eigenvalues of Gamma in decreasing order; the first is 0."""
    vectors: Float[Array, "state state"]
    """Orthonormal eigenvectors of V^-1 Gamma V, in columns; the first is sqrt(p)."""
    log_p: Float[Array, " state"]
    """Log probabilities of the model, to which the flow tends."""
    diagonal: Float[Array, " state"]
    """Gamma_ii, minus the rate at which probability leaves each state."""


def flow_matrix(
    energy: Energy,
    params: Params,
    connectivity: Connectivity,
    size: int,
    *,
    num_states: int = 2,
) -> Float[Array, "state state"]:
    """Gamma, in the order of `exact.states`; its columns sum to 0.

    Args:
        connectivity: one without random moves; a neighbour of weight w and log ratio r
            counts g = w exp(r / 2), and states are not their own neighbours.
    """
    log_p = _log_probs(energy, params, size, num_states)
    connections = _connections(connectivity, size, num_states, log_p.dtype)
    return _with_diagonal(_flows(connections, log_p))


def spectrum(
    energy: Energy,
    params: Params,
    connectivity: Connectivity,
    size: int,
    *,
    num_states: int = 2,
) -> Spectrum:
    """The eigenvalues and eigenvectors of the flow, by its symmetric form.

    Arguments are those of `flow_matrix`.
    """
    log_p = _log_probs(energy, params, size, num_states)
    connections = _connections(connectivity, size, num_states, log_p.dtype)
    _check_symmetric(connections)
    diagonal = -_flows(connections, log_p).sum(axis=0)
    stationary = jnp.exp(log_p / 2)
    # The known eigenvector is moved below all others (none is under 2 min_i Gamma_ii), so
    # that it does not mix with near ones, and is put back exactly.
    below = 1 - 3 * diagonal.min()
    moved = jnp.outer(stationary, below * stationary)
    values, vectors = jnp.linalg.eigh(connections + jnp.diag(diagonal) - moved)
    values = jnp.minimum(values[:0:-1], 0.0)
    return Spectrum(
        jnp.concatenate([jnp.zeros_like(values[:1]), values]),
        jnp.concatenate([stationary[:, None], vectors[:, :0:-1]], axis=1),
        log_p,
        diagonal,
    )


def evolve(
    flow: Spectrum, p: Float[Array, " state"], t: float | Scalar
) -> Float[Array, " state"]:
    """p(t) = exp(Gamma t) p(0), the distribution after time `t`.

    p(t) = p + V sum_{k > 1} u_k exp(l_k t) u_k' V^-1 p(0), so it is exactly the model's in
    the end. Rounding grows as the square root of the ratio of the largest to the least
    probability in the model: use float64 where that ratio is large.
    """
    root = jnp.exp(flow.log_p / 2)
    modes = flow.vectors[:, 1:]
    amplitudes = jnp.exp(flow.values[1:] * t) * (modes.T @ (p / root))
    return root * (root * p.sum() + modes @ amplitudes)


def log_prob_bound(flow: Spectrum) -> Float[Array, " state"]:
    """A lower bound on the log probability of every state, -inf where it says nothing.

    log p_i >= log max(0, 1 - Gamma_ii / l_2),   as Gamma_ii = sum_k u_ik^2 l_k <= l_2 (1 - p_i)

    It holds for the true l_2, rounded towards 0 by the error of its computation. No bound
    from below may take its place: `second_eigenvalue_bound` gives back, as if bounded, the
    very probabilities that were put into it.

    Reference: thesis, appendix "Lower Bound on Log Likelihood Using MPF"; in this form no
    assumption about flow between data states is needed.
    """
    rounding = jnp.finfo(flow.values.dtype).eps * len(flow.values) * flow.diagonal.min()
    second = flow.values[1] - rounding
    ratio = flow.diagonal / jnp.where(second < 0, second, -1.0)
    return jnp.where(second < 0, jnp.log(jnp.maximum(0.0, 1 - ratio)), -jnp.inf)


def second_eigenvalue_bound(
    diagonal: Float[Array, " state"], log_p: Float[Array, " state"]
) -> Scalar:
    """A lower bound on the second eigenvalue, so an upper one on the rate of convergence.

    l_2 >= max_i Gamma_ii / (1 - p_i)

    It takes no spectrum, holds for any subset of the states, and still holds, less
    tightly, with upper bounds on the probabilities.

    Args:
        diagonal: Gamma_ii, minus the sum of the flows out of each state.
        log_p: log probabilities of these states, or upper bounds on them.

    Reference: thesis, appendix "Lower Bound on Log Likelihood Using MPF".
    """
    complement = -jnp.expm1(log_p) - 4 * jnp.finfo(log_p.dtype).eps
    known = complement > 0
    return jnp.max(jnp.where(known, diagonal / jnp.where(known, complement, 1.0), -jnp.inf))


def _log_probs(energy, params, size, num_states):
    enumeration.num_states_in_space(
        size,
        num_states,
        limit=LIMIT,
        instead="the matrix of the flow has a row and a column for each",
    )
    return enumeration.log_probs(energy, params, size, num_states=num_states)


def _connections(connectivity, size, num_states, dtype):
    """g, dense, with a zero diagonal."""
    x = enumeration.states(size, num_states=num_states).astype(dtype)
    neighbours = jax.vmap(lambda one: connectivity.states(one, ()))(x)
    places = num_states ** np.arange(size)[::-1]
    row = jnp.round(neighbours.x).astype(int) @ places
    column = jnp.broadcast_to(jnp.arange(len(x))[:, None], row.shape)
    weight = neighbours.weight * jnp.exp(neighbours.log_ratio / 2)
    connections = jnp.zeros((len(x), len(x)), dtype).at[row, column].add(weight)
    return jnp.where(jnp.eye(len(x), dtype=bool), 0.0, connections)


def _flows(connections, log_p):
    gap = log_p[:, None] - log_p[None]
    connected = connections > 0
    return jnp.where(
        connected, connections * jnp.exp(jnp.where(connected, gap, 0.0) / 2), 0.0
    )


def _with_diagonal(flows):
    return flows - jnp.diag(flows.sum(axis=0))


def _check_symmetric(connections):
    if not is_concrete(connections):
        return
    apart = np.abs(np.asarray(connections - connections.T))
    if apart.max() > 1e-5 * connections.max():
        i, j = np.unravel_index(apart.argmax(), apart.shape)
        raise ValueError(
            f"connectivity must be symmetric, got {connections[i, j]} from state {j} to "
            f"{i} and {connections[j, i]} back"
        )
