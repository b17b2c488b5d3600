"""Targets of known log Z, asymmetric, and the test of a mean weight."""

import jax
import jax.numpy as jnp
import numpy as np
from small_models import random_ising

from probjax import rbm
from probjax.annealing import Gaussian

GAUSSIAN = Gaussian(2, jnp.array([0.4, -0.3]), jnp.array([1.3, 0.8]))


def crooked(params, x):
    """Asymmetric, and not a product; of known integral."""
    scale, shift = params
    return (x[0] / scale - shift) ** 2 / 2 + (x[1] - 0.5 * x[0]) ** 4 + jnp.abs(x[0])


def crooked_log_z(params):
    """By quadrature: the second integral does not depend on the first coordinate."""
    scale, shift = (np.float64(value) for value in params)
    x = np.linspace(-30, 30, 2_000_001)
    first = np.sum(np.exp(-((x / scale - shift) ** 2) / 2 - np.abs(x))) * (x[1] - x[0])
    second = np.sum(np.exp(-(x**4))) * (x[1] - x[0])
    return np.log(first * second)


PARAMS = (jnp.asarray(0.8), jnp.asarray(0.5))
SPINS = random_ising(3, 4)
MACHINE = rbm.init(jax.random.key(2), 6, 3, scale=1.0)._replace(
    visible_bias=jnp.linspace(1, -2, 6), hidden_bias=jnp.array([-1.0, 0.5, 1.0])
)
UNCOUPLED = rbm.Params(
    jnp.zeros((6, 3)), jnp.linspace(-1, 1, 6), jnp.array([0.3, 0.0, -0.7])
)


def assert_mean_is(log_weights, log_z, most=4):
    weights = np.exp(np.asarray(log_weights, float) - log_z)
    away = (weights.mean() - 1) / (weights.std() / np.sqrt(len(weights)))
    assert abs(away) < most, f"{away:.1f} standard errors off"
    # Weights that hardly differ would pass whatever is done to them.
    assert weights.std() > 0.05
