"""Covariance of the gradient of a loss over repeated samples of its rows.

    V = sum_r w_r u_r u_r',    u_r = d gradient / d w_r,

where u_r is the change of the gradient if one more copy of row r is added. If rows of
one cluster are correlated, and the C clusters are independent,

    V = C / (C - 1) sum_c U_c U_c',    U_c = sum over rows r of cluster c of w_r u_r.

For many parameters, V is represented by a matrix R with V = RR'.

Reference: Liang and Zeger, Biometrika 73, 13 (1986), for clusters.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.data.chunks import cut_chunk, take
from probjax.data.rows import num_rows
from probjax.types import Array, Data, Float, PyTree, Scalar

SAMPLE_ROWS = 4096
"""Number of rows that represent all rows, if there are many parameters."""
# Largest number of entries of the row gradients that are computed at a time.
_MAX_GRADIENT_ENTRIES = 2**22


class RowLoss(NamedTuple):
    """Loss of one row, and the reduction over all rows at one point."""

    row: Callable[[Float[Array, " n"], PyTree, PyTree], Scalar]
    """Value of a row at a point, given the state and the row's context."""
    reduce: Callable[[Array, Array], Scalar]
    """Reduction of the values of rows, given their weights; see `Objective.reduce`."""
    point: Float[Array, " n"]
    """Parameters as a vector."""
    value: Scalar
    """Reduction over all rows at `point`."""
    gradient: Float[Array, " n"]
    """Its gradient."""
    total: Scalar
    """Weight of all rows."""

    def influence(self, x: PyTree, context: PyTree) -> Float[Array, " n"]:
        """Compute u_r of one row."""
        both = jax.value_and_grad(self.row)(self.point, x, context)
        row_value, row_gradient = both

        def factors(added):
            """Factors of both gradients if this row is added with the weight `added`.

            See `Objective.reduce`.
            """
            values = jnp.stack([self.value, row_value])
            return jax.grad(self.reduce)(values, jnp.stack([self.total, added]))

        # Derivative near the weight 0, at which reductions leave the row out.
        tiny = self.total * jnp.finfo(self.total.dtype).eps ** 2
        _, change = jax.jvp(factors, (tiny,), (jnp.ones_like(tiny),))
        return change[0] * self.gradient + change[1] * row_gradient


def noise_matrix(loss: RowLoss, data: Data, context: PyTree) -> Float[Array, "n n"]:
    """Compute V of independent rows."""

    def add(matrix, influences, weights, _):
        weighted = jnp.sqrt(weights)[:, None] * influences
        return matrix + weighted.T @ weighted

    zeros = jnp.zeros((loss.point.size, loss.point.size), loss.point.dtype)
    return _over_chunks(loss, data, context, add, zeros)


def noise_roots(loss: RowLoss, data: Data, context: PyTree) -> Float[Array, "n row"]:
    """Compute R of independent rows: of all, or of `SAMPLE_ROWS` at equal distances.

    The columns are scaled so that the diagonal of RR' is that of V of all rows, which
    the sampled rows know badly for pairs of units that are seldom on together.
    """
    count = num_rows(data)
    chosen = jnp.round(jnp.linspace(0, count - 1, min(count, SAMPLE_ROWS))).astype(int)
    x, rows, weights = take((data.x, context, _weights(loss, data)), chosen)
    size = _chunk_size(loss, len(chosen))
    roots = jax.lax.map(lambda row: loss.influence(*row), (x, rows), batch_size=size)
    roots = jnp.sqrt(weights)[:, None] * roots
    if len(chosen) == count:
        return roots.T

    def add(diagonal, influences, weights, _):
        return diagonal + weights @ influences**2

    diagonal = _over_chunks(loss, data, context, add, jnp.zeros_like(loss.point))
    own = jnp.sum(roots**2, axis=0)
    varies = own > 0
    scale = jnp.where(varies, jnp.sqrt(diagonal / jnp.where(varies, own, 1)), 0)
    return (scale[None] * roots).T


def cluster_roots(
    loss: RowLoss, data: Data, context: PyTree, labels: Array, num_clusters: int
) -> Float[Array, "n cluster"]:
    """Compute R of clusters of rows.

    Args:
        labels: number of the cluster of each row, below `num_clusters`.
    """

    def add(sums, influences, weights, labels):
        return sums.at[labels].add(weights[:, None] * influences)

    zeros = jnp.zeros((num_clusters, loss.point.size), loss.point.dtype)
    sums = _over_chunks(loss, data, context, add, zeros, labels)
    return jnp.sqrt(num_clusters / (num_clusters - 1)) * sums.T


def _over_chunks(loss, data, context, add, total, labels=()):
    """Add up a function of the influences of rows, of their weights and labels."""
    count, weights = num_rows(data), _weights(loss, data)
    size = _chunk_size(loss, count)

    def add_chunk(i, total):
        rows = (data.x, context, labels)
        (x, rows, labels_of_chunk), counted = cut_chunk(i, size, rows, weights)
        influences = jax.vmap(loss.influence)(x, rows)
        return add(total, influences, counted, labels_of_chunk)

    return jax.lax.fori_loop(0, -(-count // size), add_chunk, total)


def _chunk_size(loss, count):
    return max(1, min(count, _MAX_GRADIENT_ENTRIES // loss.point.size))


def _weights(loss, data):
    if data.weights is not None:
        return data.weights
    return jnp.ones(num_rows(data), loss.point.dtype)
