import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import HMC, Data, Watch
from probjax.annealing import (
    Estimate,
    Gaussian,
    Laplace,
    ais,
    compare,
    log_likelihood,
    marginal_log_likelihood,
    sandwich,
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
    assert found.ess.shape == (10,)
    assert found.common == 0


def test_rows_are_told_as_they_are_done(key):
    params, x = model(key)
    told = []

    def evaluate(callback):
        return marginal_log_likelihood(
            key,
            linear.gaussian,
            params,
            Gaussian(4),
            x,
            sampler=HMC(0.2),
            num_particles=5,
            num_steps=9,
            pilot=None,
            chunk_size=4,
            watch=Watch(callback, every=5),
        )

    found = evaluate(told.append)
    np.testing.assert_allclose([rows.num_done for rows in told], [2, 4, 6, 8, 9, 10])
    assert [len(rows.per_row) for rows in told] == [0, 4, 4, 8, 8, 10]
    np.testing.assert_array_equal(told[-1].per_row, found.per_row)
    np.testing.assert_array_equal(evaluate(None).per_row, found.per_row)
    with pytest.raises(ValueError, match="no result before its end: its callback"):
        evaluate(lambda rows: True)


def test_rows_of_few_particles_are_told(key):
    """In one step from the prior, where rows far out have hardly any."""
    params, x = model(key, noise=0.05)
    params = params._replace(basis=params.basis.at[:, 0].set(1.0))
    options = dict(sampler=HMC(0.2), num_particles=50, pilot=None)
    args = (key, linear.gaussian, params, Gaussian(4), x)
    short = marginal_log_likelihood(*args, num_steps=1, **options)
    few = int(np.sum(np.asarray(short.ess) < 5))
    assert few > 5
    assert f"{few} of 10 rows have fewer than 5 effective" in short.describe()
    easy = (key, linear.gaussian, params._replace(noise=jnp.asarray(9.0)))
    enough = marginal_log_likelihood(*easy, Gaussian(4), x, num_steps=1, **options)
    assert np.all(enough.ess > 40)
    assert "trusted" not in enough.describe()


def square(params, x):
    return params * x @ x / 2


def test_a_log_z_of_few_particles_is_told(key):
    x = jnp.zeros((3, 4))
    run = dict(sampler=HMC(0.1), num_steps=1)
    args = (key, square, 1e4, Gaussian(4))
    poor = log_likelihood(square, 1e4, x, ais(*args, num_particles=20, **run))
    assert poor.ess < 5
    assert "log Z is not to be trusted" in poor.describe()
    draws = 0.01 * jax.random.normal(key, (20, 4))
    both = log_likelihood(square, 1e4, x, sandwich(*args, draws, **run))
    assert "trust the interval alone" in both.describe()
    near = (key, square, 1.1, Gaussian(4))
    fine = log_likelihood(square, 1.1, x, ais(*near, num_particles=20, **run))
    assert fine.ess > 10
    assert "trust" not in fine.describe()


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
    """Of rows whose error is that of one log Z."""
    per_row, stderr = jnp.asarray(per_row), jnp.asarray(stderr)
    value = jnp.average(per_row, weights=weights)
    return Estimate(value, stderr, value, value, per_row, weights, stderr)


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


def analysis_pair(key):
    """Two normal models with a log Z of few particles each, on rows drawn anew."""
    data_key, *keys = jax.random.split(key, 3)
    x = jax.random.normal(data_key, (50, 1))

    def of_model(key, precision):
        annealed = ais(
            key,
            square,
            precision,
            Gaussian(1),
            sampler=HMC(0.3),
            num_particles=20,
            num_steps=1,
        )
        return log_likelihood(square, precision, x, annealed)

    return of_model(keys[0], 1.3), of_model(keys[1], 1.8)


def generative_pair(key):
    """One linear model twice, with few particles a row, on rows drawn anew."""
    data_key, *keys = jax.random.split(key, 3)
    params = linear.Params(jnp.array([[1.0], [0.5], [-0.7]]), jnp.asarray(0.8))
    x, _ = linear.sample_gaussian(data_key, params, num_draws=20)

    def of_model(key):
        return marginal_log_likelihood(
            key,
            linear.gaussian,
            params,
            Gaussian(1),
            x,
            sampler=HMC(0.3),
            num_particles=30,
            num_steps=1,
        )

    return of_model(keys[0]), of_model(keys[1])


@pytest.mark.parametrize("pair", [analysis_pair, generative_pair])
def test_differences_scatter_by_the_error_that_is_claimed(pair, key):
    """An error too few or one too many, as by taking all of both, would be seen."""
    first, second = jax.jit(jax.vmap(pair))(jax.random.split(key, 2000))
    found = jax.vmap(compare)(first, second)
    scatter = np.std(found.value)
    claimed = np.mean(np.square(found.stderr))
    np.testing.assert_allclose(np.sqrt(claimed), scatter, rtol=0.15)
    both = np.mean(np.square(first.stderr) + np.square(second.stderr))
    sign = -1 if pair is analysis_pair else 1
    twin = np.sqrt(claimed + sign * both)
    assert abs(twin / scatter - 1) > 0.15
