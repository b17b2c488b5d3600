"""Targets of known log Z, asymmetric, and the test of a mean weight."""

import jax.numpy as jnp
import numpy as np
from small_models import all_states, log_probs_of, random_ising

from probjax import rbm
from probjax.bases import Gaussian
from probjax.trees import as_array

GAUSSIAN = Gaussian(2, as_array(np.array([0.4, -0.3])), as_array(np.array([1.3, 0.8])))


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


PARAMS = (as_array(0.8), as_array(0.5))
SPINS = random_ising(3, 4)
MACHINE = rbm.Params(
    as_array(np.random.default_rng(2).normal(size=(6, 3))),
    as_array(np.linspace(1, -2, 6)),
    as_array(np.array([-1.0, 0.5, 1.0])),
)
UNCOUPLED = rbm.Params(
    as_array(np.zeros((6, 3))),
    as_array(np.linspace(-1, 1, 6)),
    as_array(np.array([0.3, 0.0, -0.7])),
)


def spins_log_z(params):
    """Of an Ising model, whose first state has no energy."""
    return -log_probs_of(params)[0]


def machine_draws(seed, params, num_rows):
    """Exact draws of a machine, and its log Z, by enumeration."""
    weight, visible, hidden = (np.asarray(leaf, float) for leaf in params)
    x = all_states(len(visible))
    minus_energy = x @ visible + np.logaddexp(0, x @ weight + hidden).sum(1)
    log_z = np.logaddexp.reduce(minus_energy)
    generator, chances = np.random.default_rng(seed), np.exp(minus_energy - log_z)
    chosen = generator.choice(len(x), size=num_rows, p=chances)
    return x[chosen].astype(np.float32), log_z


def assert_mean_is(log_weights, log_z, most=4):
    weights = np.exp(np.asarray(log_weights, float) - log_z)
    away = (weights.mean() - 1) / (weights.std() / np.sqrt(len(weights)))
    assert abs(away) < most, f"{away:.1f} standard errors off"
    # Weights that hardly differ would pass whatever is done to them.
    assert weights.std() > 0.05
