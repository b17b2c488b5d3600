"""Effective sample size of weighted particles."""

import jax.numpy as jnp
from jax.scipy.special import logsumexp

from probjax.trees import floating
from probjax.types import Array, Float, Scalar


def importance_ess(log_weights: Float[Array, " particle"]) -> Scalar:
    """Effective number of particles, (sum w)^2 / sum w^2; 0 if all weights w are 0.

    >>> round(float(importance_ess(jnp.log(jnp.array([2.0, 1.0, 1.0, 0.0])))), 3)
    2.667
    """
    log_weights = floating(log_weights)
    total = logsumexp(log_weights)
    ratio = jnp.exp(2 * total - logsumexp(2 * log_weights))
    return jnp.where(total == -jnp.inf, 0, ratio)
