"""Closed-form estimates of Ising models from means and covariances: mean field, TAP.

Let mu_i be the mean of a unit, m = 2 mu - 1, chi the covariance of the units, and A its
regularised inverse,

    A = (chi'chi + lambda I)^+ chi'

(stochastic robust approximation: eigenvalues x of chi become x / (x^2 + lambda)). The
couplings of E = x'Jx are

    mean field: J_ij = A_ij / 2
    TAP:        J_ij = (1 - sqrt(1 - 2 m_i m_j A_ij)) / (2 m_i m_j)

and the biases are J_ii = -logit mu_i - 2 sum_(j != i) J_ij mu_j. TAP adds the reaction
term 2 (1 - 2 mu_i) sum_(j != i) J_ij^2 mu_j (1 - mu_j) to the biases. The two estimates
are the first and second order of an expansion in small couplings, and fail for strong
correlations.

Reference: Tanaka, PRE 58, 2302 (1998); thesis, "Two Dimensional Ising Spin Glass".
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import holds
from probjax.data.rows import as_data, refuse_mask
from probjax.models.ising.parameters import Params, from_matrix
from probjax.runs.driver import full_precision
from probjax.states import binary
from probjax.types import Array, ArrayLike, Data, Float


def mean_field(data: ArrayLike | Data, *, damping: float = 0.0) -> Params:
    """Estimate an Ising model of all pairs by naive mean field.

    Errors are of second order in J.

    Args:
        data: complete rows of bits.
        damping: lambda >= 0, in units of a squared covariance of bits. For covariances
            of spins, the equivalent value would be 16 times as large.

    >>> from probjax import exact
    >>> rows = Data(exact.states(2), jnp.array([9.0, 3.0, 3.0, 1.0]))
    >>> found = mean_field(rows)  # independent units, on with odds of 1 to 3
    >>> round(float(found.bias[0]), 3), round(abs(float(found.coupling[0])), 3)
    (1.099, 0.0)
    """
    return _solved(_mean_field, data, damping)


def tap(data: ArrayLike | Data, *, damping: float = 0.0) -> Params:
    """Estimate an Ising model of all pairs by mean field with TAP's correction.

    Errors are of third order in J. A coupling is that of `mean_field` if TAP's formula
    has the square root of a negative number, or divides by about zero because the mean
    of a unit is near 1/2.

    Args:
        data: complete rows of bits.
        damping: as for `mean_field`.

    >>> from probjax import exact
    >>> rows = Data(exact.states(2), jnp.array([9.0, 3.0, 3.0, 1.0]))
    >>> found = tap(rows)  # independent units, on with odds of 1 to 3
    >>> round(float(found.bias[0]), 3), round(abs(float(found.coupling[0])), 3)
    (1.099, 0.0)
    """
    return _solved(_tap, data, damping)


def _solved(method: Callable, data: ArrayLike | Data, damping: float) -> Params:
    """Parameters by one of the compiled methods below, for checked data."""
    if damping < 0:
        raise ValueError(f"damping must not be negative, got {damping}")
    data = as_data(data)
    refuse_mask(data, "mean field requires the covariance of complete rows")
    x = binary(data.x)
    weights = np.ones(len(x), x.dtype) if data.weights is None else data.weights
    with full_precision():
        mean, matrix = method(x, weights, damping)
    if not holds(_varies, mean):
        raise ValueError(
            "every unit must be on in some rows and off in others, got a unit that "
            "never changes, whose bias has no finite estimate; try to leave it out"
        )
    return from_matrix(matrix)


@jax.jit
def _mean_field(x, weights, damping):
    mean, inverse = _susceptibility(x, weights, damping)
    return mean, _matrix(mean, inverse / 2, with_reaction=False)


@jax.jit
def _tap(x, weights, damping):
    mean, inverse = _susceptibility(x, weights, damping)
    product = jnp.outer(2 * mean - 1, 2 * mean - 1)
    inside = 1 - 2 * product * inverse
    solvable = (jnp.abs(product) > 1e-4) & (inside >= 0)
    root = jnp.sqrt(jnp.where(solvable, inside, 1))
    coupling = (1 - root) / (2 * jnp.where(solvable, product, 1))
    coupling = jnp.where(solvable, coupling, inverse / 2)
    return mean, _matrix(mean, coupling, with_reaction=True)


def _susceptibility(x, weights, damping):
    """Means, and the regularised inverse of the covariance.

    The covariance itself is factored: its square, in float32, would lose eigenvalues
    below one or two percent of the largest.
    """
    mean = weights @ x / weights.sum()
    deviation = x - mean[None]
    covariance = (deviation * weights[:, None]).T @ deviation / weights.sum()
    values, vectors = jnp.linalg.eigh(covariance)
    rounding = len(mean) * jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values))
    is_kept = (jnp.abs(values) > rounding) | (damping > 0)
    squares = jnp.where(is_kept, values**2 + damping, 1)
    scale = jnp.where(is_kept, values / squares, 0)
    return mean, (vectors * scale[None]) @ vectors.T


def _matrix(mean, coupling, *, with_reaction):
    coupling = jnp.where(jnp.eye(len(mean), dtype=bool), 0, coupling)
    coupling = (coupling + coupling.T) / 2
    bias = -jax.scipy.special.logit(mean) - 2 * coupling @ mean
    if with_reaction:
        bias = bias + 2 * (1 - 2 * mean) * (coupling**2 @ (mean * (1 - mean)))
    return coupling + jnp.diag(bias)


def _varies(mean: Float[Array, " unit"]) -> Array:
    return (mean > 0) & (mean < 1)
