"""Simulation of kinetic Ising models, one word after the other."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from probjax import random
from probjax.checks import check_count, check_key
from probjax.models.kinetic_ising.model import log_chances
from probjax.models.kinetic_ising.parameters import Inputs, Params
from probjax.trees import floating
from probjax.types import Array, ArrayLike, Float, PRNGKeyArray


def simulate(
    key: PRNGKeyArray,
    params: Params,
    *,
    num_bins: int,
    start: ArrayLike | None = None,
    covariates: ArrayLike | None = None,
    rate: ArrayLike | None = None,
) -> Float[Array, "bin unit"]:
    """Draw the words of one trial; use `jax.vmap` over keys for several.

    Args:
        start: words before the first bin, `(lag, unit)`, the latest first; None for
            silence. The first words remember it.
        covariates: a table `(bin, covariate)`, if the model has covariates.
        rate: probability of an update, one number or a table `(bin, unit)`; None for 1.

    >>> from probjax.models.kinetic_ising import Params
    >>> params = Params(jnp.array([-50.0, 50.0]), 100 * jnp.array([[[0, 1], [0, -1]]]))
    >>> simulate(jax.random.key(0), params, num_bins=4).tolist()
    [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    """
    check_key(key)
    check_count("num_bins", num_bins)
    size, dtype = len(params.field), params.field.dtype
    lags = len(params.coupling)
    past = np.zeros((lags, size)) if start is None else np.asarray(start)
    if past.shape != (lags, size):
        raise ValueError(
            f"start must have shape {(lags, size)}, the lags and units of params, got "
            f"{past.shape}"
        )
    if (covariates is None) != (params.weights is None):
        raise ValueError(
            "covariates must be given if and only if params have weights for them"
        )
    if rate is not None:
        rate = jnp.broadcast_to(jnp.asarray(rate, dtype), (num_bins, size))
    if covariates is not None:
        covariates = floating(covariates).reshape(num_bins, -1)
    return _simulate(key, params, num_bins, jnp.asarray(past, dtype), covariates, rate)


@partial(jax.jit, static_argnums=2)
def _simulate(key, params, num_bins, past, covariates, rate):
    uniforms = random.uniform(key, (num_bins, len(params.field)), past.dtype)

    def step(past, inputs):
        uniform, covariates, rate = inputs
        on, _ = log_chances(params, Inputs(past, covariates, rate))
        x = (jnp.log(uniform) < on).astype(past.dtype)
        return jnp.concatenate([x[None], past[:-1]]), x

    return jax.lax.scan(step, past, (uniforms, covariates, rate))[1]
