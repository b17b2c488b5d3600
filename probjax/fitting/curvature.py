"""Hessian of a loss, and its inverse.

The Hessian is computed column by column, as derivatives of the gradient along all axes.
If the loss is a sum over units (`Objective.unit_losses`), it is a sum of small blocks
instead. With v the score of one gap, w_r the share of row r and L the loss,

    H = sum_n sum_r w_r e^(k (v_rn - L)) (v''_rn + k v'_rn^2) d_rn d_rn' - k g g',

where d_rn is the derivative of the gap of unit n, g the gradient, and k is 0 if rows
are reduced to their mean and 1 if they are reduced to the logarithm of their mean
exponential. Gaps must be linear in the parameters.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve

from probjax.data.chunks import cut_chunk
from probjax.fitting.chunk_size import CACHED_ROWS
from probjax.types import Array, Data, Float, Params, Scalar, UnitLosses

Matrix = Float[Array, "n n"]

COLUMNS_AT_A_TIME = 32
"""Columns of the Hessian that are computed at a time."""
# The loss is flat along eigenvectors of the scaled Hessian whose eigenvalues are below
# this number of rounding errors of the largest.
_FLAT_ROUNDING_UNITS = 100
# Steps and vectors of the inverse iteration that finds the smallest eigenvalue.
_INVERSE_STEPS, _INVERSE_VECTORS = 6, 8


def hessian_by_columns(
    gradient: Callable[[Float[Array, " n"]], Float[Array, " n"]],
    point: Float[Array, " n"],
) -> Matrix:
    """Compute the derivative of `gradient` along every axis.

    >>> hessian_by_columns(lambda x: jnp.array([3.0, 4.0]) * x, jnp.ones(2)).tolist()
    [[3.0, 0.0], [0.0, 4.0]]
    """

    def column(axis):
        direction = jnp.zeros_like(point).at[axis].set(1)
        return jax.jvp(gradient, (point,), (direction,))[1]

    return jax.lax.map(column, jnp.arange(point.size), batch_size=COLUMNS_AT_A_TIME)


def hessian_by_units(
    losses: UnitLosses,
    reduce: Callable[[Array, Array], Scalar],
    params: Params,
    data: Data,
    value: Scalar,
    gradient: Float[Array, " n"],
) -> Matrix:
    """Compute the Hessian of the reduction over rows as a sum over units.

    Args:
        reduce: `reduce` of the objective.
        value: loss at `params`, without the terms that do not depend on rows.
        gradient: its gradient.
    """
    flat, unravel = ravel_pytree(params)
    # Entries that `losses.params` adds, and does not copy, keep the number 0.
    numbered = unravel(jnp.arange(1, flat.size + 1, dtype=flat.dtype))
    count = len(jax.tree.leaves(data.x)[0])
    weights = data.weights
    weights = jnp.ones(count, flat.dtype) if weights is None else weights
    shares = weights / weights.sum()
    curve = _curvature_of_reduction(reduce, value)
    size = min(count, CACHED_ROWS)

    def second_factors(gap):
        score, slope, bend = _two_derivatives(losses.score, gap)
        return jnp.exp(curve * (score - value)) * (bend + curve * slope**2)

    def add_unit(unit, hessian):
        own, unravel_own = ravel_pytree(losses.params(params, unit))
        places = ravel_pytree(losses.params(numbered, unit))[0].astype(int)
        places = jnp.where(places > 0, places - 1, flat.size)

        def gap(own, x):
            return losses.gap(unravel_own(own), unit, x)

        def add_chunk(i, block):
            x, share = cut_chunk(i, size, data.x, shares)
            gaps, slopes = jax.vmap(jax.value_and_grad(gap), (None, 0))(own, x)
            factors = share * jax.vmap(second_factors)(gaps)
            return block + slopes.T @ (factors[:, None] * slopes)

        zeros = jnp.zeros((own.size, own.size), own.dtype)
        block = jax.lax.fori_loop(0, -(-count // size), add_chunk, zeros)
        return hessian.at[places[:, None], places[None]].add(block, mode="drop")

    zeros = jnp.zeros((flat.size, flat.size), flat.dtype)
    hessian = jax.lax.fori_loop(0, losses.num_units, add_unit, zeros)
    return hessian - curve * jnp.outer(gradient, gradient)


def _curvature_of_reduction(reduce, value):
    """Return k: 0 for a mean, 1 for the logarithm of a mean exponential."""

    def of_two(first):
        values = jnp.stack([first, value])
        return reduce(values, jnp.ones_like(values))

    return 4 * _two_derivatives(of_two, value)[2]


def _two_derivatives(function, x):
    def with_slope(x):
        return jax.jvp(function, (x,), (jnp.ones_like(x),))

    (value, slope), (_, bend) = jax.jvp(with_slope, (x,), (jnp.ones_like(x),))
    return value, slope, bend


def pseudo_inverse(hessian: Matrix) -> tuple[Matrix, Matrix]:
    """Return the pseudo-inverse of the Hessian, and the directions without curvature.

    The Hessian is scaled to a diagonal of 1, so that the scale of the parameters does
    not matter. Columns of the second matrix are zero for directions with curvature.

    >>> inverse, flat = pseudo_inverse(jnp.diag(jnp.array([4.0, 0.0])))
    >>> inverse.tolist(), flat.tolist()
    ([[0.25, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]])
    """
    scaled, scale = _scaled(hessian)
    values, vectors = jnp.linalg.eigh(scaled)
    curved = values > _threshold(values[-1])
    inverse = (vectors * jnp.where(curved, 1 / values, 0)[None]) @ vectors.T
    flat = scale[:, None] * jnp.where(curved[None], 0, vectors)
    return scale[:, None] * inverse * scale[None], flat


class CurvedFactor(NamedTuple):
    """Cholesky factor of a scaled Hessian."""

    factor: Matrix
    scale: Float[Array, " n"]
    """Factors of the rows and columns of the Hessian."""
    is_curved: Array
    """Whether the loss has curvature in every direction, so that the factor exists."""

    def solve(self, columns: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """Multiply the inverse of the Hessian by `columns`."""
        scaled = self.scale[:, None] * columns
        return self.scale[:, None] * cho_solve((self.factor, True), scaled)


def curved_factor(hessian: Matrix) -> CurvedFactor:
    """Factorise a Hessian, and estimate whether its smallest eigenvalue is positive.

    >>> found = curved_factor(jnp.diag(jnp.array([4.0, 2.0])))
    >>> bool(found.is_curved), found.solve(jnp.eye(2)).round(4).tolist()
    (True, [[0.25, 0.0], [0.0, 0.5]])
    """
    scaled, scale = _scaled(hessian)
    factor = jnp.linalg.cholesky(scaled)
    largest = jnp.linalg.norm(scaled, ord=jnp.inf)
    is_curved = _smallest_eigenvalue(factor) > _threshold(largest)
    return CurvedFactor(factor, scale, is_curved)


def _scaled(hessian):
    hessian = (hessian + hessian.T) / 2
    diagonal = jnp.diagonal(hessian)
    scale = jnp.where(diagonal > 0, jax.lax.rsqrt(jnp.abs(diagonal)), 1)
    return scale[:, None] * hessian * scale[None], scale


def _smallest_eigenvalue(factor):
    """Estimate it by inverse iteration; NaN if the matrix is not positive definite."""
    count = min(len(factor), _INVERSE_VECTORS)
    vectors = jax.random.normal(jax.random.key(0), (len(factor), count), factor.dtype)

    def step(_, vectors):
        return jnp.linalg.qr(cho_solve((factor, True), vectors))[0]

    vectors = jax.lax.fori_loop(0, _INVERSE_STEPS, step, vectors)
    halves = factor.T @ vectors
    return jnp.linalg.eigvalsh(halves.T @ halves)[0]


def _threshold(largest):
    return _FLAT_ROUNDING_UNITS * jnp.finfo(largest.dtype).eps * largest
