import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from probjax.data import spikes


def table(rows=60, units=5, trials=4, seed=0):
    """Words of some trials, with different rates of all units."""
    generator = np.random.default_rng(seed)
    x = generator.random((rows, units)) < np.linspace(0.2, 0.7, units)
    return spikes.words_from_counts(x, trial=np.arange(rows) * trials // rows)


def test_shuffling_keeps_the_rates_of_every_trial_and_nothing_else(key):
    words = table(rows=4000)
    x = np.asarray(words.x)
    # A unit that copies another, so that there is a covariance to destroy.
    words = words._replace(x=np.c_[x, x[:, 0]])
    new = spikes.shuffled(key, words)
    for trial in range(4):
        rows = words.trial == trial
        before, after = np.asarray(words.x)[rows], np.asarray(new.x)[rows]
        assert_array_equal(before.sum(0), after.sum(0))
    assert np.corrcoef(words.x.T)[0, 5] > 0.99
    z = np.corrcoef(new.x.T)[np.triu_indices(6, 1)] * np.sqrt(4000)
    assert np.abs(z).max() < 4
    assert np.abs(z).max() > 0.5
    again, other = spikes.shuffled(key, words), table(seed=1)
    assert_array_equal(new.x, again.x)
    assert_array_equal(new.trial, words.trial)
    assert other.x.shape == (60, 5)


def test_rate_matched_words_are_independent_with_the_same_rates(key):
    words = table(rows=4000)
    words = words._replace(x=np.repeat(np.asarray(words.x), 2, axis=1))
    new = np.asarray(spikes.rate_matched(key, words).x)
    rates = np.asarray(words.x).mean(0)
    z = (new.mean(0) - rates) / np.sqrt(rates * (1 - rates) / len(new))
    assert np.abs(z).max() < 4
    z = np.corrcoef(new.T)[np.triu_indices(10, 1)] * np.sqrt(len(new))
    assert np.abs(z).max() < 4.5


def test_a_dichotomised_gaussian_has_the_moments_requested():
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(0)
    x = generator.random((500, 6)) < 0.3
    x[:, 1] |= x[:, 0] & x[:, 3]
    x[:, 2] &= ~x[:, 4] | x[:, 5]
    mean, covariance = x.mean(0), np.cov(x.T, bias=True)
    model = spikes.dichotomised_gaussian(mean, covariance)
    assert model.shift == 0
    assert_allclose(stats.norm.cdf(model.threshold), mean, rtol=1e-12)
    for i, j in itertools.combinations(range(6), 2):
        rho = model.correlation[i, j]
        pair = stats.multivariate_normal([0, 0], [[1, rho], [rho, 1]], True)
        joint = pair.cdf(model.threshold[[i, j]])
        assert_allclose(joint - mean[i] * mean[j], covariance[i, j], atol=1e-9)


def test_correlations_that_are_impossible_together_are_replaced_by_the_nearest(key):
    # Three units of which each pair excludes each other as far as it can.
    mean, covariance = np.full(3, 0.5), np.full((3, 3), -0.2)
    model = spikes.dichotomised_gaussian(mean, covariance)
    # By symmetry, the nearest correlations are all -1/2.
    expected = np.full((3, 3), -0.5) + 1.5 * np.eye(3)
    assert_allclose(model.correlation, expected, atol=1e-6)
    wanted = np.sin(-0.2 * 2 * np.pi)
    assert_allclose(model.shift, abs(wanted + 0.5), atol=1e-6)
    assert_allclose(model.covariance_error, 0.2 - 1 / 12, atol=1e-6)
    assert "not positive semidefinite and changed by 0.45" in model.describe()
    x = np.asarray(spikes.draw_words(key, model, num_draws=100_000))
    assert_allclose(np.cov(x.T)[0, 1], -1 / 12, atol=0.004)


def test_moment_matched_words_have_the_rates_and_covariances(key):
    generator = np.random.default_rng(0)
    x = generator.random((4000, 5)) < 0.3
    x[:, 1:] ^= x[:, :1] & (generator.random((4000, 4)) < 0.5)
    x[:, 4] = True
    words = spikes.words_from_counts(x, trial=np.arange(4000) // 1000)
    new = spikes.moment_matched(key, words)
    assert_array_equal(new.trial, words.trial)
    mean, moments = x.mean(0), x.T.astype(float) @ x / len(x)
    found = np.asarray(new.x, np.float64)
    error = np.sqrt(moments * (1 - moments) / len(x)) + 1e-9
    assert np.abs((found.T @ found / len(x) - moments) / error).max() < 4.5
    assert found[:, 4].all()
    assert mean[4] == 1


def test_moment_matched_words_warn_if_the_moments_are_not_matched(key):
    rows = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
    rows = np.repeat(rows, [33, 33, 33, 1], axis=0)
    with pytest.warns(UserWarning, match="not positive semidefinite"):
        spikes.moment_matched(key, spikes.words_from_counts(rows))


@pytest.mark.parametrize(
    ("mean", "covariance", "message"),
    [
        ([0.5, 1.5], np.zeros((2, 2)), "probabilities, from 0 to 1"),
        ([0.5, np.nan], np.zeros((2, 2)), "probabilities, from 0 to 1"),
        ([0.5], np.zeros((2, 2)), r"got \(1,\) and \(2, 2\)"),
        ([0.5, 0.5], [[0, 0.1], [0.2, 0]], "covariance must be symmetric"),
        ([0.5, 0.1], [[0, 0.1], [0.1, 0]], "units 0 and 1 must be from -0.05 to 0.05"),
    ],
)
def test_impossible_moments_are_refused(mean, covariance, message):
    with pytest.raises(ValueError, match=message):
        spikes.dichotomised_gaussian(mean, covariance)
