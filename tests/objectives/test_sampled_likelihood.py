"""Maximum likelihood by sampling against exact maxima."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import drawn_from, flat_ising, random_ising

from probjax import HMC, L2, HeatBath, MaximumLikelihood, fit, ising, loss
from probjax.fitting import ConvergenceWarning, GradientNorm

SIZE = 5
SAMPLED = MaximumLikelihood(ising.energy, sampler=HeatBath())
EXACT = MaximumLikelihood(ising.energy)


@pytest.fixture(scope="module")
def rows():
    return drawn_from(3, random_ising(1, SIZE, scale=0.5), 5000)


def own_energy(params, x):
    return params["field"] @ x + x @ params["pairs"] @ x / 2


@pytest.mark.parametrize("penalty", [None, L2(0.01)])
def test_sampled_fits_are_within_noise_of_the_exact_maximum(rows, penalty, key):
    found = fit(key, SAMPLED, flat_ising(SIZE), rows, penalty=penalty)
    assert found.converged
    assert 0 < float(found.distance) < 0.3
    options = dict(penalty=penalty, stop=GradientNorm())
    best = fit(key, EXACT, flat_ising(SIZE), rows, **options)
    start = np.asarray(found.penalty.value(found.params)) if penalty else 0.0
    least = np.asarray(best.penalty.value(best.params)) if penalty else 0.0
    losses = [float(loss(key, EXACT, each.params, rows)) for each in (found, best)]
    excess = losses[0] + start - losses[1] - least
    # 0.3 standard errors, rms over 15 directions, with a margin for their own error.
    assert -1e-5 < excess < 15 * 0.5**2 / (2 * len(rows))


def test_energies_of_a_user_are_learned(rows, key):
    start = {"field": jnp.zeros(SIZE), "pairs": jnp.zeros((SIZE, SIZE))}
    sampled = MaximumLikelihood(own_energy, sampler=HeatBath())
    found = fit(key, sampled, start, rows, penalty=L2(1e-3))
    x = np.asarray(rows)
    exact = MaximumLikelihood(own_energy)
    slope = jax.grad(lambda params: loss(key, exact, params, x))(found.params)
    # The remaining difference of mean activities, in standard errors of the data.
    error = x.std(0) / np.sqrt(len(x))
    assert np.abs(np.asarray(slope["field"]) / error).max() < 2.5


def test_continuous_energies_are_learned_by_hmc(key):
    def energy(params, x):
        return jnp.exp(params[1]) * (x[0] - params[0]) ** 2 / 2

    x = np.random.default_rng(0).normal(1.5, 0.5, (2000, 1)).astype("f4")
    sampled = MaximumLikelihood(energy, sampler=HMC(0.3, num_steps=3))
    found = fit(key, sampled, jnp.zeros(2), x)
    assert found.converged
    mean, log_precision = np.asarray(found.params)
    assert abs(mean - x.mean()) < 0.5 * x.std() / np.sqrt(len(x))
    assert abs(log_precision + 2 * np.log(x.std())) < 0.5 * np.sqrt(2 / len(x))


def test_fits_that_end_early_say_how_far_they_are(rows, key):
    with pytest.warns(ConvergenceWarning, match="standard errors from the minimum"):
        found = fit(key, SAMPLED, flat_ising(SIZE), rows, steps_per_round=20)
    assert not found.converged
