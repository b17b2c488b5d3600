import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import HMC, Data
from probjax.annealing import (
    Estimate,
    Gaussian,
    Laplace,
    compare,
    marginal_log_likelihood,
)
from probjax.models import linear


def model(key, size=6, num_latents=4, noise=0.3):
    params = linear.init(key, size, num_latents, noise=noise)
    x, _ = linear.sample_gaussian(key, params, num_draws=10)
    return params, x


def test_latents_are_integrated_out_row_by_row(key):
    params, x = model(key)
    truth = jax.vmap(linear.gaussian_log_likelihood, (None, 0))(params, x)
    found = marginal_log_likelihood(
        key,
        linear.gaussian,
        params,
        Gaussian(4),
        x,
        sampler=HMC(0.2),
        num_particles=100,
        num_steps=500,
    )
    np.testing.assert_allclose(found.per_row, truth, atol=0.15)
    assert abs(found.value - truth.mean()) < 5 * found.stderr < 0.1
    assert np.isnan(found.upper)
    assert found.lower < truth.mean()


def test_rows_in_chunks_are_complete_and_weighted(key):
    params, x = model(key)
    weights = jnp.arange(10.0)
    found = marginal_log_likelihood(
        key,
        linear.gaussian,
        params,
        Gaussian(4),
        Data(x, weights),
        sampler=HMC(0.2),
        num_particles=50,
        num_steps=300,
        chunk_size=4,
    )
    truth = jax.vmap(linear.gaussian_log_likelihood, (None, 0))(params, x)
    np.testing.assert_allclose(found.per_row, truth, atol=0.3)
    mean = np.average(found.per_row, weights=weights)
    np.testing.assert_allclose(found.value, mean, rtol=1e-5)


@pytest.mark.parametrize(
    ("joint", "base"), [(linear.gaussian, Gaussian(4)), (linear.laplace, Laplace(4))]
)
def test_without_a_basis_every_particle_has_the_closed_form(joint, base, key, x64):
    params, x = model(key)
    params = params._replace(basis=jnp.zeros((6, 4)))
    x = x.astype(float)
    found = marginal_log_likelihood(
        key,
        joint,
        params,
        base,
        x,
        sampler=HMC(0.2),
        num_particles=3,
        num_steps=20,
    )
    noise = float(params.noise)
    truth = -np.sum(np.square(x), 1) / 2 / noise**2 - 6 * np.log(
        noise * np.sqrt(2 * np.pi)
    )
    np.testing.assert_allclose(found.per_row, truth, rtol=1e-6)
    assert found.stderr < 1e-6


def estimate(per_row, stderr, weights=None):
    per_row = jnp.asarray(per_row)
    value = jnp.average(per_row, weights=weights)
    return Estimate(value, jnp.asarray(stderr), value, value, per_row, weights)


def test_models_are_compared_row_by_row():
    first = estimate([1.0, 2.0, 3.0, 4.0], 0.3)
    second = estimate([0.0, 2.0, 1.0, 3.0], 0.4)
    found = compare(first, second)
    apart = np.array([1.0, 0.0, 2.0, 1.0])
    np.testing.assert_allclose(found.value, apart.mean())
    expected = np.sqrt(apart.var(ddof=1) / 4 + 0.25)
    np.testing.assert_allclose(found.stderr, expected, rtol=1e-6)
    np.testing.assert_allclose([found.lower, found.upper], apart.mean())
    half = estimate([1.0, 2.0, 3.0, 4.0], 0.3)._replace(upper=jnp.asarray(jnp.nan))
    assert np.isnan(compare(half, second).upper)
    assert np.isnan(compare(second, half).lower)
    weighed = estimate([1.0, 2.0, 3.0, 4.0], 0.3, jnp.arange(4.0))
    with pytest.raises(ValueError, match="rows with the same weights"):
        compare(weighed, second)
    with pytest.raises(ValueError, match="both must be of the same rows, got 4 and 2"):
        compare(first, estimate([1.0, 2.0], 0.1))
