"""`check_fit`: correct models pass, and models with a spurious mode fail."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy import stats

from probjax import Data, MaximumLikelihood, check_fit, fit, ising
from probjax.fitting.check import _student_quantile
from probjax.fitting.check_statistics import (
    SampleMoments,
    are_far,
    compare_means,
    compared_entries,
    entry_name,
)

SIZE, ROWS = 6, 1000
STATES = (np.arange(2**SIZE)[:, None] >> np.arange(SIZE) & 1).astype(np.float32)


def simulated(seed):
    """Rows of a random pairwise model, drawn exactly."""
    random = np.random.default_rng(seed)
    matrix = 0.5 * random.normal(size=(SIZE, SIZE)) + np.diag(np.full(SIZE, 1.0))
    matrix = (matrix + matrix.T) / 2
    p = np.exp(-np.einsum("ri,ij,rj->r", STATES, matrix, STATES))
    return STATES[random.choice(len(p), ROWS, p=p / p.sum())]


def fitted(seed):
    x = simulated(seed)
    key = jax.random.key(seed)
    start = ising.init(key, SIZE, scale=0.0)
    found = fit(key, MaximumLikelihood(ising.energy), start, x, chart=ising.centred(x))
    return found.params, x


def checked(seed, params, x):
    key = jax.random.key(1000 + seed)
    return check_fit(key, ising.energy, params, x, num_chains=100, num_steps=200)


def with_mode(params):
    """Add an attraction between all pairs, whose mode is the state of all ones."""
    matrix = np.array(ising.coupling_matrix(params))
    return ising.from_matrix(matrix - 0.7 * (1 - np.eye(SIZE)))


def test_residuals_are_those_of_a_regression():
    covariance = np.array([[2.0, 1.0], [1.0, 3.0]])
    data = SampleMoments(np.zeros(2), covariance, covariance / 100, 100.0, 0.0)
    model = data._replace(mean=np.array([1.0, 0.5]), error=0 * covariance, rows=1e9)
    z = compare_means(data, model, 1)
    np.testing.assert_allclose(z, [1 / np.sqrt(2 / 100), 0], atol=1e-4)
    z = compare_means(data, model._replace(mean=np.array([0.0, 1.0])), 1)
    np.testing.assert_allclose(z[1], 1 / np.sqrt((3 - 1 / 2) / 100), rtol=1e-4)


def test_small_leaves_are_compared_as_a_whole():
    params = {"bias": np.zeros(3), "weight": np.zeros((50, 2))}
    chosen = compared_entries(np.random.default_rng(0), params, most=20)
    assert len(np.unique(chosen)) == 20
    assert chosen[:3].tolist() == [0, 1, 2]
    assert entry_name(params, int(chosen[3])).startswith("params['weight'][")
    every = compared_entries(np.random.default_rng(0), params, most=200)
    assert every.tolist() == list(range(103))


def test_thresholds_are_quantiles_of_students_t():
    for chance in (0.05, 1e-5):
        for freedom in (19, 399):
            exact = stats.t.isf(chance / 2, freedom)
            assert _student_quantile(chance, freedom) == pytest.approx(exact, rel=1e-3)


def test_an_exact_fit_passes_and_a_spurious_mode_fails():
    params, x = fitted(0)
    assert checked(0, params, x).passed
    found = checked(0, with_mode(params), x)
    assert not found.passed
    assert "times as active as the data" in found.describe()


def test_chains_end_early_where_the_difference_is_clear():
    params, x = fitted(0)
    key, biased = jax.random.key(0), replace(params, bias=params.bias - 3)
    steps = {"num_chains": 100, "num_steps": 640}
    right = check_fit(key, ising.energy, params, x, **steps)
    wrong = check_fit(key, ising.energy, biased, x, **steps)
    assert (right.num_steps, right.passed) == (640, True)
    assert (wrong.num_steps, wrong.passed) == (80, False)
    first, second = np.triu_indices(SIZE, 1)
    means = {
        f"params.{leaf}[{i}]": value
        for leaf, values in (("bias", x), ("coupling", 2 * x[:, first] * x[:, second]))
        for i, value in enumerate(values.mean(axis=0))
    }
    np.testing.assert_allclose(wrong.worst_means[0], means[wrong.worst], rtol=1e-5)
    assert wrong.worst_means[1] > wrong.worst_means[0] + 0.1


def test_few_rows_do_not_make_their_neighbours_far():
    # Rows differ from each other in two sites. A state that differs in one is near.
    rows = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], np.float32)
    x = np.array([[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 1]], np.float32)
    assert are_far(x, rows, np.ones(3)).tolist() == [False, True, False, False]
    repeated = are_far(x, rows, np.full(3, 2.0))
    assert repeated.tolist() == [True, True, False, True]


def test_weights_count_as_repeated_rows():
    params, x = fitted(0)
    rows, counts = np.unique(x, axis=0, return_counts=True)
    weighted = checked(0, params, Data(rows, counts.astype(np.float32)))
    np.testing.assert_allclose(weighted.observed, checked(0, params, x).observed, 1e-4)
    assert weighted.passed


def test_bad_arguments_raise():
    params, x = fitted(0)
    with pytest.raises(ValueError, match="false_alarms must be between 0 and 1"):
        check_fit(jax.random.key(0), ising.energy, params, x, false_alarms=2.0)


@pytest.mark.statistics
def test_at_most_5_of_100_correct_models_fail():
    assert sum(not checked(seed, *fitted(seed)).passed for seed in range(100)) <= 5


@pytest.mark.statistics
def test_50_of_50_spurious_modes_are_found():
    for seed in range(50):
        params, x = fitted(seed)
        assert not checked(seed, with_mode(params), x).passed
