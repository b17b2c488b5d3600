"""Probability flow between the states of a small space, as a matrix.

    dp/dt = Gamma p,  Gamma_ij = g_ij exp((E_j - E_i) / 2),  Gamma_jj = -sum_i Gamma_ij

with i != j and g the symmetric connectivity; column j is the flow out of state j. The
flow obeys detailed balance, so with V = diag(exp(-E / 2)) the matrix B = V^-1 Gamma V
is symmetric: B_ij = g_ij off the diagonal, Gamma_jj on it. Its eigenvalues
0 = l_1 >= l_2 >= ... are those of Gamma, its first eigenvector is sqrt(p), and
p(t) = V exp(B t) V^-1 p(0).

Reference: thesis, "Dynamics", "Detailed Balance" and the appendix "Lower Bound on Log
Likelihood Using MPF".
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import is_concrete
from probjax.exact import enumeration
from probjax.exact.enumeration_blocks import count_states
from probjax.interfaces import Connectivity
from probjax.types import Array, Energy, Float, Params, Scalar

LIMIT = 2**12


class Spectrum(NamedTuple):
    """Eigenvalues and eigenvectors of the flow: modes that decay independently.

    >>> from probjax import ising
    >>> from probjax.connectivity import BitFlips
    >>> flow = spectrum(ising.energy, ising.from_matrix([[0.0]]), BitFlips(), 1)
    >>> flow.values.round().tolist(), flow.diagonal.round().tolist()
    ([0.0, -2.0], [-1.0, -1.0])
    """

    values: Float[Array, " state"]
    """Eigenvalues of Gamma in decreasing order; the first is 0."""
    vectors: Float[Array, "state state"]
    """Orthonormal eigenvectors of V^-1 Gamma V, in columns; the first is sqrt(p)."""
    log_p: Float[Array, " state"]
    """Log probabilities of the model, which is the stationary distribution."""
    diagonal: Float[Array, " state"]
    """Gamma_ii: minus the rate at which probability leaves each state."""


def flow_matrix(
    energy: Energy,
    params: Params,
    connectivity: Connectivity,
    size: int,
    *,
    num_states: int = 2,
) -> Float[Array, "state state"]:
    """Return Gamma, with states in the order of `exact.states`. Its columns sum to 0.

    Args:
        connectivity: connectivity without random moves. A neighbour of weight w and log
            ratio r has g = w exp(r / 2). A state is never its own neighbour.
        size: number of sites.
        num_states: number of values of each site.

    >>> from probjax import ising
    >>> from probjax.connectivity import BitFlips
    >>> flat = ising.from_matrix([[0.0]])
    >>> flow_matrix(ising.energy, flat, BitFlips(), 1).tolist()
    [[-1.0, 1.0], [1.0, -1.0]]
    """
    log_p = _log_probs(energy, params, size, num_states)
    return _flow_matrix(_connections(connectivity, log_p, size, num_states), log_p)


def spectrum(
    energy: Energy,
    params: Params,
    connectivity: Connectivity,
    size: int,
    *,
    num_states: int = 2,
) -> Spectrum:
    """Compute the eigenvalues and eigenvectors of the flow, from its symmetric form.

    The arguments are those of `flow_matrix`.

    >>> from probjax import ising
    >>> from probjax.connectivity import BitFlips
    >>> flow = spectrum(ising.energy, ising.from_matrix([[0.0]]), BitFlips(), 1)
    >>> flow.values.round().tolist()
    [0.0, -2.0]
    """
    log_p = _log_probs(energy, params, size, num_states)
    connections = _connections(connectivity, log_p, size, num_states)
    _check_symmetric(connections)
    return _spectrum(connections, log_p)


def evolve(
    flow: Spectrum, p: Float[Array, " state"], t: float | Scalar
) -> Float[Array, " state"]:
    """Compute the distribution after time `t`, p(t) = exp(Gamma t) p(0).

    p(t) = p + V sum_{k > 1} u_k exp(l_k t) u_k' V^-1 p(0)

    For any `t`, rounding errors are amplified by the square root of a ratio: the
    model's largest probability divided by its probability of the states where p(0)
    starts. Use float64, and do not start from states with a probability below 1e-16.

    Args:
        p: p(0), the distribution at time 0.

    >>> from probjax import ising
    >>> from probjax.connectivity import BitFlips
    >>> flow = spectrum(ising.energy, ising.from_matrix([[0.0]]), BitFlips(), 1)
    >>> p = evolve(flow, jnp.array([1.0, 0.0]), jnp.log(2.0) / 2)  # exp(-2 t) is a half
    >>> [round(float(value), 3) for value in p]
    [0.75, 0.25]
    """
    root = jnp.exp(flow.log_p / 2)
    modes = flow.vectors[:, 1:]
    amplitudes = jnp.exp(flow.values[1:] * t) * (modes.T @ (p / root))
    return root * (root * p.sum() + modes @ amplitudes)


def log_prob_bound(flow: Spectrum) -> Float[Array, " state"]:
    """Compute a lower bound on the log probability of every state.

    log p_i >= log max(0, 1 - Gamma_ii / l_2)

    because Gamma_ii = sum_k u_ik^2 l_k <= l_2 (1 - p_i). Where the bound on p_i is not
    positive, the result is -inf. The bound requires the true l_2, which is moved
    towards 0 by its possible rounding error. `second_eigenvalue_bound` cannot replace
    l_2: it is computed from upper bounds on the probabilities, and these would be
    returned as lower bounds.

    Reference: thesis, appendix "Lower Bound on Log Likelihood Using MPF". This form of
    the bound does not require an assumption about the flow between data states.

    >>> from probjax import ising
    >>> from probjax.connectivity import BitFlips
    >>> flow = spectrum(ising.energy, ising.from_matrix([[0.0]]), BitFlips(), 1)
    >>> [round(float(p), 3) for p in jnp.exp(log_prob_bound(flow))]
    [0.5, 0.5]
    """
    rounding = jnp.finfo(flow.values.dtype).eps * len(flow.values) * flow.diagonal.min()
    second = flow.values[1] - rounding
    ratio = flow.diagonal / jnp.where(second < 0, second, -1.0)
    return jnp.where(second < 0, jnp.log(jnp.maximum(0.0, 1 - ratio)), -jnp.inf)


def second_eigenvalue_bound(
    diagonal: Float[Array, " state"], log_p: Float[Array, " state"]
) -> Scalar:
    """Compute a lower bound on l_2, which is an upper bound on the convergence rate.

    l_2 >= max_i Gamma_ii / (1 - p_i)

    The bound does not require a spectrum. It holds for any subset of the states, and
    also, less tightly, with upper bounds on the probabilities.

    Args:
        diagonal: Gamma_ii for some states: minus the sum of the flows out of each.
        log_p: log probabilities of these states, or upper bounds on them.

    Reference: thesis, appendix "Lower Bound on Log Likelihood Using MPF".

    >>> diagonal, log_p = jnp.array([-1.0, -1.0]), jnp.log(jnp.array([0.5, 0.5]))
    >>> round(float(second_eigenvalue_bound(diagonal, log_p)), 3)
    -2.0
    """
    complement = -jnp.expm1(log_p) - 4 * jnp.finfo(log_p.dtype).eps
    known = complement > 0
    bounds = diagonal / jnp.where(known, complement, 1.0)
    return jnp.max(jnp.where(known, bounds, -jnp.inf))


def _log_probs(energy, params, size, num_states):
    count_states(
        size,
        num_states,
        limit=LIMIT,
        instead="the flow is a matrix with a row and a column for each state",
    )
    return enumeration.log_probs(energy, params, size, num_states=num_states)


@partial(jax.jit, static_argnames=("size", "num_states"))
def _connections(connectivity, log_p, size, num_states):
    """Return g as a dense matrix with a zero diagonal."""
    x = enumeration.states(size, num_states=num_states).astype(log_p.dtype)
    neighbours = jax.vmap(lambda one: connectivity.states(one, ()))(x)
    places = num_states ** np.arange(size)[::-1]
    row = jnp.round(neighbours.x).astype(int) @ places
    column = jnp.broadcast_to(jnp.arange(len(x))[:, None], row.shape)
    weight = neighbours.weight * jnp.exp(neighbours.log_ratio / 2)
    connections = jnp.zeros((len(x), len(x)), log_p.dtype).at[row, column].add(weight)
    return jnp.where(jnp.eye(len(x), dtype=bool), 0.0, connections)


@jax.jit
def _flow_matrix(connections, log_p):
    gap = jnp.where(connections > 0, log_p[:, None] - log_p[None], 0.0)
    flows = connections * jnp.exp(gap / 2)
    return flows - jnp.diag(flows.sum(axis=0))


@jax.jit
def _spectrum(connections, log_p):
    diagonal = jnp.diag(_flow_matrix(connections, log_p))
    stationary = jnp.exp(log_p / 2)
    # The known eigenvector sqrt(p) gets an eigenvalue below all others, which are at
    # least 2 min_i Gamma_ii, so that rounding cannot mix it with eigenvectors of
    # similar eigenvalues. Afterwards it is replaced by its exact value.
    shift = 1 - 3 * diagonal.min()
    shifted = jnp.outer(stationary, shift * stationary)
    values, vectors = jnp.linalg.eigh(connections + jnp.diag(diagonal) - shifted)
    values = jnp.minimum(values[:0:-1], 0.0)
    return Spectrum(
        jnp.concatenate([jnp.zeros_like(values[:1]), values]),
        jnp.concatenate([stationary[:, None], vectors[:, :0:-1]], axis=1),
        log_p,
        diagonal,
    )


def _check_symmetric(connections):
    if not is_concrete(connections):
        return
    difference = np.abs(np.asarray(connections - connections.T))
    if difference.max() > 1e-5 * connections.max():
        i, j = np.unravel_index(difference.argmax(), difference.shape)
        raise ValueError(
            f"connectivity must be symmetric, got {connections[i, j]} from state {j} "
            f"to {i} and {connections[j, i]} back"
        )
