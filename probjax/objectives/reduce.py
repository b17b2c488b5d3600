"""How the values of rows become one loss.

A reduction is a weighted mean of a transform of the values (the identity, for
`weighted_mean`, or exp), so a reduction of blocks by their total weights equals the
reduction of all their rows.
That is what lets `fit` cut data into chunks with exact gradients.
"""

import jax
import jax.numpy as jnp

from probjax.types import Array, Float, Scalar


def log_mean_exp(values: Float[Array, " row"], weights: Float[Array, " row"]) -> Scalar:
    """log(sum_r w_r exp(v_r) / sum_r w_r), and 0 if nothing has weight."""
    total = weights.sum()
    average = weights / jnp.where(total > 0, total, 1)
    return jnp.where(total > 0, log_sum_exp(values, average), 0)


def log_sum_exp(values: Float[Array, " k"], weights: Float[Array, " k"]) -> Scalar:
    """log(sum_k w_k exp(v_k)), finite for values of any size, -inf if all w are 0."""
    counted = weights > 0
    top = jax.lax.stop_gradient(jnp.max(jnp.where(counted, values, -jnp.inf)))
    top = jnp.where(jnp.isfinite(top), top, 0)
    # What has no weight may be too large for exp: it must not become 0 * inf.
    shifted = jnp.where(counted, values - top, 0)
    total = jnp.sum(weights * jnp.exp(shifted))
    return jnp.where(total > 0, jnp.log(jnp.where(total > 0, total, 1)) + top, -jnp.inf)
