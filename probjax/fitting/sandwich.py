"""Sandwich covariance of fitted parameters, from a Hessian and the noise of a gradient.

    covariance = H^-1 V H^-1

H is the Hessian of the loss, see `probjax.fitting.curvature`, and V the covariance of
its gradient, see `probjax.fitting.gradient_noise`. Up to `MAX_DENSE` parameters, H is
inverted by its eigenvectors, so that flat directions are found, and V is that of all
rows. For more, H is inverted by a Cholesky factor unless a direction is flat, and V is
represented by some rows.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.checks import is_concrete
from probjax.data.clusters import Clusters
from probjax.data.rows import num_rows
from probjax.fitting.curvature import (
    curved_factor,
    hessian_by_columns,
    hessian_by_units,
    pseudo_inverse,
)
from probjax.fitting.gradient_noise import (
    RowLoss,
    cluster_roots,
    noise_matrix,
    noise_roots,
)
from probjax.fitting.loss import loss_over_rows
from probjax.fitting.sampled_curvature import hessian_of_log_z
from probjax.interfaces import Chart, Objective, Penalty
from probjax.types import Array, Context, Data, Float, Params

MAX_DENSE = 2048
"""Largest number of parameters of which all rows and eigenvectors are used."""


class FittedLoss(NamedTuple):
    """Everything that the loss of a fit is made of, besides the data."""

    objective: Objective
    params: Params
    """Fitted parameters."""
    context: Context
    penalty: Penalty | None
    chart: Chart | None


def sandwich_covariance(
    loss: FittedLoss, data: Data, clusters: Clusters | None, chunk_size: int
) -> tuple[Float[Array, "n n"], Float[Array, "n k"]]:
    """Compute the covariance, and unit vectors along which the loss is flat."""
    size = ravel_pytree(loss.params)[0].size
    second_order = partial(
        _second_order,
        loss,
        data,
        None if clusters is None else clusters.labels,
        num_clusters=0 if clusters is None else clusters.num_clusters,
        chunk_size=chunk_size,
    )
    if size <= MAX_DENSE or not is_concrete((loss, data)):
        return _dense_sandwich(*second_order(is_dense=True))
    hessian, roots, slopes = second_order(is_dense=False)
    factor = _compiled_factor(hessian)
    if not factor.is_curved:
        return _dense_sandwich(hessian, _outer(roots), slopes)
    covariance = _sandwich_of_factor(factor, roots, slopes)
    return covariance, jnp.zeros((size, 1), covariance.dtype)


@partial(jax.jit, static_argnames=("num_clusters", "chunk_size", "is_dense"))
def _second_order(fitted, data, labels, *, num_clusters, chunk_size, is_dense):
    """Return the Hessian, the noise of the gradient and the slopes of the chart.

    Args:
        is_dense: whether to return the noise as a matrix V, or as R with V = RR'.
    """
    objective, params, context, penalty, chart = fitted
    forward = _identity if chart is None else chart.forward
    inverse = _identity if chart is None else chart.inverse
    point, unravel = ravel_pytree(forward(params))

    def to_params(point):
        return inverse(unravel(point))

    def remaining_terms(point):
        params = to_params(point)
        is_sampled = objective.num_groups > 0
        value = 0.0 if is_sampled else objective.rest(params, context.shared)
        return value if penalty is None else value + penalty.value(params)

    def over_rows(point):
        params, pull_back = jax.vjp(to_params, point)
        value, gradient = loss_over_rows(
            objective, params, data, context.rows, chunk_size=chunk_size
        )
        return value, pull_back(gradient)[0]

    value, gradient = over_rows(point)
    losses = None if chart is not None else objective.unit_losses(params, data)
    if losses is None:
        hessian = hessian_by_columns(lambda point: over_rows(point)[1], point)
    else:
        of_rows = (objective.reduce, params, data, value, gradient)
        hessian = hessian_by_units(losses, *of_rows)
    if penalty is not None or not objective.num_groups:
        hessian += hessian_by_columns(jax.grad(remaining_terms), point)
    if objective.num_groups:
        hessian += hessian_of_log_z(objective, data, context, to_params, point)

    def row(point, x, rows):
        return objective.row(to_params(point), x, rows)

    total = num_rows(data) if data.weights is None else data.weights.sum()
    total = jnp.asarray(total, value.dtype)
    loss = RowLoss(row, objective.reduce, point, value, gradient, total)
    if labels is not None:
        noise = cluster_roots(loss, data, context.rows, labels, num_clusters)
        noise = noise @ noise.T if is_dense else noise
    else:
        noise = (noise_matrix if is_dense else noise_roots)(loss, data, context.rows)
    if chart is None:
        return hessian, noise, None
    slopes = jax.jacfwd(lambda point: ravel_pytree(to_params(point))[0])(point)
    return hessian, noise, slopes


@jax.jit
def _dense_sandwich(hessian, noise, slopes):
    inverse, flat = pseudo_inverse(hessian)
    if slopes is not None:
        inverse, flat = slopes @ inverse, slopes @ flat
    return inverse @ noise @ inverse.T, _normalised(flat)


_compiled_factor = jax.jit(curved_factor)


@jax.jit
def _outer(roots):
    return roots @ roots.T


@jax.jit
def _sandwich_of_factor(factor, roots, slopes):
    half = factor.solve(roots)
    if slopes is not None:
        half = slopes @ half
    return half @ half.T


def _normalised(columns):
    """Scale columns to length 1; columns of zeros are left unchanged."""
    lengths = jnp.sqrt(jnp.sum(columns**2, axis=0))
    return columns / jnp.where(lengths > 0, lengths, 1)[None]


def _identity(params):
    return params
