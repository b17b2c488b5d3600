import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import Data, exact
from probjax.annealing import Bernoulli, Gaussian, fit_bernoulli, fit_gaussian


def test_bernoulli_sums_to_one_and_draws_its_odds(x64, key):
    base = Bernoulli(3, jnp.array([0.5, -1.0, 2.0]))
    energies = jax.vmap(base.energy)(exact.states(3))
    np.testing.assert_allclose(jnp.sum(jnp.exp(-energies - base.log_z)), 1, rtol=1e-12)
    np.testing.assert_allclose(Bernoulli(3).log_z, 3 * np.log(2), rtol=1e-12)
    draws = jax.vmap(base.sample)(jax.random.split(key, 20_000))
    chances = np.asarray(jax.nn.sigmoid(base.log_odds))
    noise = np.sqrt(chances * (1 - chances) / 20_000)
    assert (np.abs(draws.mean(0) - chances) < 5 * noise).all()


def test_gaussian_integrates_to_one_and_draws_its_moments(x64, key):
    base = Gaussian(2, jnp.array([0.5, -1.0]), jnp.array([0.5, 2.0]))
    grid = np.linspace(-30, 30, 601)
    points = jnp.asarray(np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2))
    total = jnp.sum(jnp.exp(-jax.vmap(base.energy)(points) - base.log_z)) * 0.1**2
    np.testing.assert_allclose(total, 1, rtol=1e-9)
    draws = np.asarray(jax.vmap(base.sample)(jax.random.split(key, 20_000)))
    assert (np.abs(draws.mean(0) - base.mean) < 5 * base.scale / np.sqrt(2e4)).all()
    np.testing.assert_allclose(draws.std(0), base.scale, rtol=5 / np.sqrt(4e4))


def test_fitted_bases_have_the_moments_of_weighted_data(x64):
    x, weights = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]), np.array([1.0, 2.0, 0])
    counted, repeated = Data(x, weights), x[[0, 1, 1]]
    bits = fit_bernoulli(counted)
    assert bits == fit_bernoulli(repeated)
    on = jax.nn.sigmoid(bits.log_odds)
    np.testing.assert_allclose(on, [2.5 / 4, 3.5 / 4], rtol=1e-12)
    y = x + np.arange(3.0)[:, None]
    normal = fit_gaussian(Data(y, weights))
    np.testing.assert_allclose(normal.mean, y[[0, 1, 1]].mean(0))
    np.testing.assert_allclose(normal.scale, y[[0, 1, 1]].std(0))


def test_bad_bases_are_refused():
    with pytest.raises(ValueError, match="scale must be positive, got 0"):
        Gaussian(2, scale=0.0)
    with pytest.raises(ValueError, match="log_odds must be one number or one for each"):
        Bernoulli(2, jnp.zeros(3))
    with pytest.raises(ValueError, match="size must be an integer of at least 1"):
        Bernoulli(0)
    with pytest.raises(ValueError, match="scale must be positive"):
        fit_gaussian(np.ones((3, 2)))
