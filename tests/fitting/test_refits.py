"""Errors from refits: bootstrap of rows and clusters, simulated and shuffled data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import drawn_from, flat_ising, random_ising

from probjax import Data, PseudoLikelihood, exact, fit, ising
from probjax.data import spikes
from probjax.fitting import Refits, refit_many, resampled, uncertainty

SIZE, ROWS = 4, 2000
OBJECTIVE = PseudoLikelihood(ising.energy)


def couplings(key, data):
    return fit(key, OBJECTIVE, flat_ising(SIZE), data).params.coupling


@pytest.fixture(scope="module")
def rows():
    return drawn_from(0, random_ising(1, SIZE, scale=0.5), ROWS)


@pytest.fixture(scope="module")
def fitted(rows):
    return fit(
        jax.random.key(0), OBJECTIVE, flat_ising(SIZE), Data(rows, np.ones(ROWS))
    )


def test_the_bootstrap_agrees_with_the_sandwich(rows, fitted, key):
    found = refit_many(key, couplings, resampled(rows), num_refits=60)
    stderr = np.asarray(uncertainty(OBJECTIVE, fitted, rows).stderr.coupling)
    # A standard deviation over 60 refits is known to 9 %.
    np.testing.assert_allclose(found.stderr, stderr, rtol=0.35)
    low, high = found.interval(0.95)
    assert ((low < fitted.params.coupling) & (fitted.params.coupling < high)).all()


def test_simulated_data_return_the_model(fitted, key):
    def simulated(key):
        args = key, ising.energy, fitted.params, SIZE
        return Data(exact.sample(*args, num_draws=ROWS), np.ones(ROWS))

    found = refit_many(key, couplings, simulated, num_refits=30)
    assert np.abs(found.z(fitted.params.coupling)).max() < 1


def test_couplings_stand_out_from_shuffled_data(rows, fitted, key):
    words = spikes.words_from_counts(rows.astype(int))

    def shuffled(key):
        return Data(spikes.shuffled(key, words).x, np.ones(ROWS))

    found = refit_many(key, couplings, shuffled, num_refits=30)
    z, true = found.z(fitted.params.coupling), random_ising(1, SIZE, scale=0.5).coupling
    largest = int(np.argmax(np.abs(true)))
    assert abs(z[largest]) > 4
    assert found.p_value(fitted.params.coupling)[largest] == 1 / 31
    assert found.p_value(found.mean).min() > 0.3


def mean(key, data):
    return jnp.average(data.x, axis=0, weights=data.weights)


def test_clusters_are_drawn_as_a_whole(key):
    clusters = np.repeat(np.arange(50), 20)
    x = np.random.default_rng(0).normal(size=50)[clusters, None]
    alone = refit_many(key, mean, resampled(x), num_refits=200)
    found = refit_many(key, mean, resampled(x, clusters=clusters), num_refits=200)
    expected = x[::20].std() / np.sqrt(50)
    np.testing.assert_allclose(found.stderr, expected, rtol=0.2)
    np.testing.assert_allclose(alone.stderr, expected / np.sqrt(20), rtol=0.2)


def test_weights_are_numbers_of_rows(key):
    x, counts = np.array([[0.0], [1.0]]), np.array([30.0, 70.0])
    found = refit_many(key, mean, resampled(Data(x, counts)), num_refits=300)
    np.testing.assert_allclose(found.stderr, np.sqrt(0.21 / 100), rtol=0.2)
    drawn = resampled(Data(x, counts))(key)
    assert drawn.weights.sum() == 100


def test_results_may_be_trees(key):
    def refit(key, data):
        return {"mean": mean(key, data), "count": data.weights.max()}

    found = refit_many(key, refit, resampled(np.eye(3)), num_refits=5)
    assert found.values["mean"].shape == (5, 3)
    assert found.stderr["count"].shape == ()
    assert found.describe() == "5 refits of 4 numbers"
    assert isinstance(found, Refits)


def test_bad_arguments_are_refused(key):
    with pytest.raises(ValueError, match="draw must be a function"):
        refit_many(key, mean, np.eye(3))  # pyright: ignore
    with pytest.raises(ValueError, match="weights must be counts"):
        resampled(Data(np.eye(2), np.array([0.5, 0.5])))
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        Refits(np.ones((3, 1))).interval(95)
