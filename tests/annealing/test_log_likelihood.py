from functools import partial

import jax
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from probjax import HMC, Data, HeatBath, Watch, ising
from probjax.annealing import (
    Estimate,
    Pilot,
    ais,
    compare,
    log_likelihood,
    marginal_log_likelihood,
    sandwich,
)
from probjax.bases import Bernoulli, Gaussian, Laplace
from probjax.models import linear
from probjax.trees import as_array

NOISE = 0.3


def linear_model(noise=NOISE):
    """A basis of 4 functions on 6 sites, and 10 rows of it."""
    generator = np.random.default_rng(0)
    basis = generator.normal(scale=1 / np.sqrt(6), size=(6, 4))
    x = generator.normal(size=(10, 4)) @ basis.T + noise * generator.normal(
        size=(10, 6)
    )
    return linear.Params(as_array(basis), as_array(noise)), x


PARAMS, X = linear_model()
BASIS = np.asarray(PARAMS.basis, float)
TRUTH = multivariate_normal(cov=BASIS @ BASIS.T + NOISE**2 * np.eye(6)).logpdf(X)
evaluate = partial(
    marginal_log_likelihood, sampler=HMC(0.2), num_particles=50, pilot=None
)


@pytest.mark.statistics
def test_latents_are_integrated_out_row_by_row(key):
    found = evaluate(
        key, linear.gaussian, PARAMS, Gaussian(4), X, num_steps=500, pilot=Pilot()
    )
    truth = TRUTH
    np.testing.assert_allclose(found.per_row, truth, atol=0.15)
    assert abs(found.value - truth.mean()) < 5 * found.stderr < 0.1
    assert np.isnan(found.upper)
    assert found.lower < truth.mean()


def test_rows_in_chunks_are_complete_and_weighted(key):
    weights = np.arange(10.0)
    data = Data(X, weights)
    args, pilot = (linear.gaussian, PARAMS, Gaussian(4)), Pilot()
    found = evaluate(key, *args, data, num_steps=300, chunk_size=4, pilot=pilot)
    np.testing.assert_allclose(found.per_row, TRUTH, atol=0.3)
    mean = np.average(found.per_row, weights=weights)
    np.testing.assert_allclose(found.value, mean, rtol=1e-5)
    assert found.ess.shape == (10,)
    assert found.common == 0


def test_rows_are_told_as_they_are_done(key):
    told = []

    def run(callback):
        watch, args = Watch(callback, every=5), (linear.gaussian, PARAMS, Gaussian(4))
        return evaluate(key, *args, X, num_steps=9, chunk_size=4, watch=watch)

    found = run(told.append)
    np.testing.assert_allclose([rows.num_done for rows in told], [2, 4, 6, 8, 9, 10])
    assert [len(rows.per_row) for rows in told] == [0, 4, 4, 8, 8, 10]
    np.testing.assert_array_equal(told[-1].per_row, found.per_row)
    np.testing.assert_array_equal(run(None).per_row, found.per_row)
    with pytest.raises(ValueError, match="no result before its end, so its callback"):
        run(lambda rows: True)


def test_rows_of_few_particles_are_told(key):
    """In one step from the prior, where rows far out have hardly any."""
    params, x = linear_model(noise=0.05)
    basis = np.array(params.basis)
    basis[:, 0] = 1
    params = params._replace(basis=as_array(basis))
    run = partial(evaluate, key, linear.gaussian, base=Gaussian(4), data=x, num_steps=1)
    short = run(params)
    few = int(np.sum(np.asarray(short.ess) < 5))
    assert few > 5
    assert (
        f"{few} of 10 rows are unreliable: they have fewer than 5" in short.describe()
    )
    enough = run(params._replace(noise=as_array(9.0)))
    assert np.all(np.asarray(enough.ess) > 40)
    assert "unreliable" not in enough.describe()


def square(params, x):
    return params * x @ x / 2


def test_a_log_z_of_few_particles_is_told(key):
    x = np.zeros((3, 4))
    run = dict(sampler=HMC(0.1), num_steps=1)
    args = (key, square, 1e4, Gaussian(4))
    poor = log_likelihood(square, 1e4, x, ais(*args, num_particles=20, **run))
    assert poor.ess < 5
    assert "log Z is unreliable: only" in poor.describe()
    draws = np.random.default_rng(0).normal(scale=0.01, size=(20, 4))
    both = log_likelihood(square, 1e4, x, sandwich(*args, draws, **run))
    assert "use the interval" in both.describe()
    near = (key, square, 1.1, Gaussian(4))
    fine = log_likelihood(square, 1.1, x, ais(*near, num_particles=20, **run))
    assert fine.ess > 10
    assert "unreliable" not in fine.describe()


@pytest.mark.parametrize(
    ("joint", "base"), [(linear.gaussian, Gaussian(4)), (linear.laplace, Laplace(4))]
)
def test_without_a_basis_every_particle_has_the_closed_form(joint, base, key, x64):
    params = linear.Params(np.zeros((6, 4)), np.array(NOISE))
    found = evaluate(key, joint, params, base, X, num_particles=3, num_steps=20)
    truth = -np.sum(np.square(X), 1) / 2 / NOISE**2 - 6 * np.log(
        NOISE * np.sqrt(2 * np.pi)
    )
    np.testing.assert_allclose(found.per_row, truth, rtol=1e-6)
    assert found.stderr < 1e-6


def test_legacy_keys_give_the_same_likelihood():
    found = [
        evaluate(key, linear.gaussian, PARAMS, Gaussian(4), X, num_steps=3)
        for key in (jax.random.key(3), jax.random.PRNGKey(3))
    ]
    np.testing.assert_array_equal(found[0].per_row, found[1].per_row)


def estimate(per_row, stderr, weights=None):
    """Of rows whose error is that of one log Z."""
    per_row, stderr = np.float32(per_row), np.float32(stderr)
    value = np.average(per_row, weights=weights)
    return Estimate(value, stderr, value, value, per_row, weights, stderr)


def test_models_are_compared_row_by_row():
    first = estimate([1.0, 2.0, 3.0, 4.0], 0.3)
    second = estimate([0.0, 2.0, 1.0, 3.0], 0.4)
    found = compare(first, second)
    apart = np.array([1.0, 0.0, 2.0, 1.0])
    np.testing.assert_allclose(found.value, apart.mean())
    expected = np.sqrt(apart.var(ddof=1) / 4 + 0.25)
    np.testing.assert_allclose(found.total_stderr, expected, rtol=1e-6)
    np.testing.assert_allclose([found.lower, found.upper], apart.mean())
    half = estimate([1.0, 2.0, 3.0, 4.0], 0.3)._replace(upper=np.float32(np.nan))
    assert np.isnan(compare(half, second).upper)
    assert np.isnan(compare(second, half).lower)
    weighed = estimate([1.0, 2.0, 3.0, 4.0], 0.3, np.arange(4.0))
    with pytest.raises(ValueError, match="rows with the same weights"):
        compare(weighed, second)
    with pytest.raises(ValueError, match="estimates for the same rows, got 4 and 2"):
        compare(first, estimate([1.0, 2.0], 0.1))


def test_weights_count_as_numbers_of_rows():
    """Rows given several times, or once with their number as the weight."""
    generator = np.random.default_rng(0)
    numbers = generator.integers(1, 6, 40)
    first, second = generator.normal(size=(2, 40))
    repeated = [estimate(np.repeat(each, numbers), 0.1) for each in (first, second)]
    weighted = [estimate(each, 0.1, numbers.astype(float)) for each in (first, second)]
    one, other = compare(*repeated), compare(*weighted)
    assert one.row_stderr > 0.05
    np.testing.assert_allclose(one.row_stderr, other.row_stderr, rtol=1e-4)
    np.testing.assert_allclose(one.value, other.value, rtol=1e-4)
    assert np.isnan(compare(estimate([1.0], 0.1), estimate([2.0], 0.1)).row_stderr)


def test_both_errors_of_a_likelihood_are_reported():
    rows = np.array([[0, 0], [0, 1], [1, 1], [1, 0], [1, 1]], np.float32)
    model = ising.from_matrix([[1.0, -0.5], [-0.5, 0.3]])
    annealed = ais(
        jax.random.key(0),
        ising.energy,
        model,
        Bernoulli(2),
        sampler=HeatBath(),
        num_particles=50,
        num_steps=5,
        pilot=None,
    )
    found = log_likelihood(ising.energy, model, rows, annealed)
    energies = [float(ising.energy(model, x)) for x in rows]
    expected = np.std(energies, ddof=1) / np.sqrt(5)
    np.testing.assert_allclose(found.row_stderr, expected, rtol=1e-5)
    total = np.hypot(expected, annealed.stderr)
    np.testing.assert_allclose(found.total_stderr, total, rtol=1e-5)
    assert "(Monte Carlo)" in found.describe()
    assert f"+- {expected:.2g} (over rows)" in found.describe()
