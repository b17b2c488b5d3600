"""Reductions of the values of rows to one loss.

A reduction is a weighted mean of a transform of the values: of the values themselves
(`weighted_mean`) or of their exponentials (`log_mean_exp`). Reducing chunks of rows,
and then their results with the total weights of the chunks, gives the same value as
reducing all rows. `fit` can therefore cut data into chunks with exact gradients.
"""

import jax
import jax.numpy as jnp

from probjax.types import Array, Float, Scalar


def log_mean_exp(values: Float[Array, " row"], weights: Float[Array, " row"]) -> Scalar:
    """Compute log(sum_r w_r exp(v_r) / sum_r w_r); 0 if all weights are 0."""
    total = weights.sum()
    average = weights / jnp.where(total > 0, total, 1)
    return jnp.where(total > 0, log_sum_exp(values, average), 0)


def log_sum_exp(values: Float[Array, " k"], weights: Float[Array, " k"]) -> Scalar:
    """Compute log(sum_k w_k exp(v_k)) without overflow; -inf if all weights are 0."""
    counted = weights > 0
    top = jax.lax.stop_gradient(jnp.max(jnp.where(counted, values, -jnp.inf)))
    top = jnp.where(jnp.isfinite(top), top, 0)
    # Values of weight 0 may be too large for exp, and 0 * inf would be nan.
    shifted = jnp.where(counted, values - top, 0)
    total = jnp.sum(weights * jnp.exp(shifted))
    return jnp.where(total > 0, jnp.log(jnp.where(total > 0, total, 1)) + top, -jnp.inf)
