"""Entropies of data, multi-information and patterns, against exact distributions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from small_models import all_states, log_probs_of, random_ising

from probjax import Data, diagnostics, ising, plots
from probjax.data.spikes import words_from_counts
from probjax.diagnostics import estimate_entropy, multi_information, patterns

SIZE = 6
TRUTH = random_ising(0, SIZE, 0.4)
LOG_P = log_probs_of(TRUTH)
STATES = all_states(SIZE)
CODES = 2 ** np.arange(SIZE)[::-1]


def drawn(seed, count):
    chances = np.exp(LOG_P)
    chosen = np.random.default_rng(seed).choice(len(chances), count, p=chances)
    return STATES[chosen], LOG_P[chosen]


def test_estimates_follow_their_definitions():
    special = pytest.importorskip("scipy.special")
    x, _ = drawn(0, 150)
    counts = np.unique(x, axis=0, return_counts=True)[1].astype(float)
    n, f = counts.sum(), counts / counts.sum()
    found = estimate_entropy(x)
    plugin = -np.sum(f * np.log(f))
    assert_allclose(found.plugin, plugin, rtol=1e-12)
    assert_allclose(found.miller_madow, plugin + (len(counts) - 1) / (2 * n))
    psi = special.digamma
    g = psi(counts) + (-1) ** counts / 2 * (psi((counts + 1) / 2) - psi(counts / 2))
    assert_allclose(found.grassberger, np.log(n) - np.sum(counts * g) / n, rtol=1e-12)
    coverage = 1 - np.sum(counts == 1) / n
    q = coverage * f
    expected = -np.sum(q * np.log(q) / (1 - (1 - q) ** n))
    assert_allclose(found.chao_shen, expected, rtol=1e-12)
    assert_allclose(found.coverage, coverage)

    def entropy_without(row):
        rest = np.delete(x, row, axis=0)
        share = np.unique(rest, axis=0, return_counts=True)[1] / (n - 1)
        return -np.sum(share * np.log(share))

    mean = np.mean([entropy_without(row) for row in range(len(x))])
    assert_allclose(found.jackknife, n * plugin - (n - 1) * mean, rtol=1e-9)


def test_bias_is_smaller_after_correction_and_errors_are_those_of_repeated_data():
    truth = -np.exp(LOG_P) @ LOG_P
    found = [estimate_entropy(drawn(seed, 150)[0]) for seed in range(300)]
    names = ["plugin", "miller_madow", "jackknife", "grassberger", "chao_shen"]
    values = np.array([[getattr(each, name) for name in names] for each in found])
    bias = values.mean(0) - truth
    assert bias[0] < -0.05
    assert np.all(np.abs(bias[1:]) < abs(bias[0]) / 2)
    assert abs(bias[3]) < 0.02
    stderr = np.mean([each.stderr for each in found])
    assert_allclose(stderr, values[:, 3].std(), rtol=0.15)


def test_weights_are_numbers_of_rows():
    x, log_p = drawn(0, 200)
    weights = np.random.default_rng(0).integers(0, 4, 200)
    repeated = np.repeat(x, weights, axis=0)
    assert_allclose(estimate_entropy(Data(x, weights)), estimate_entropy(repeated))
    found = multi_information(Data(x, weights), log_p)
    again = multi_information(repeated, np.repeat(log_p, weights))
    for one, other in zip(found, again, strict=True):
        assert_allclose(one, other, rtol=1e-6)


def test_one_pattern_or_one_row_has_no_entropy():
    same = estimate_entropy(np.ones((7, 2)))
    assert_allclose(same._replace(grassberger=0)[:6], 0, atol=1e-12)
    assert 0 < same.grassberger < 0.2  # its bias is largest here
    single = estimate_entropy(np.ones((1, 2)))
    assert np.isfinite(single).all()
    different = estimate_entropy(np.eye(5))
    assert np.isfinite(different[:6]).all()
    assert "100% of the rows are patterns seen once" in different.describe()


def test_the_fraction_explained_is_exact_for_known_distributions():
    # All states in proportion to a distribution: no sampling.
    chances = np.random.default_rng(0).random(8) ** 2
    counts = np.round(1e6 * chances / chances.sum())
    x, p = all_states(3), counts / counts.sum()
    fitted = np.full(8, 1 / 8)
    found = multi_information(Data(x, counts), np.log(fitted))
    mean = p @ x
    independent = np.prod(np.where(x == 1, mean, 1 - mean), axis=1)
    total = p @ np.log(p / independent)
    assert_allclose(found.total, total, rtol=1e-6)
    assert_allclose(found.explained, total - p @ np.log(p / fitted), rtol=1e-6)
    whole = multi_information(Data(x, counts), np.log(p))
    assert_allclose([whole.fraction, whole.corrected_fraction], 1, atol=1e-3)
    none = multi_information(Data(x, counts), np.log(independent))
    assert_allclose(none.fraction, 0, atol=1e-9)


def test_errors_of_the_fraction_are_those_of_repeated_data():
    # A model that is between independent sites and the truth.
    weak = TRUTH.bias, 0.8 * TRUTH.coupling
    log_q = log_probs_of(ising.Params(*weak))
    found = []
    for seed in range(200):
        x, _ = drawn(seed, 4000)
        found.append(multi_information(x, log_q[(x @ CODES).astype(int)]))
    for name in ("explained", "total", "fraction"):
        values = np.array([getattr(each, name) for each in found])
        stderr = np.mean([getattr(each, f"{name}_stderr") for each in found])
        assert_allclose(stderr, values.std(), rtol=0.2)
    exact_fraction = true_fraction(log_q)
    fractions = np.mean([(e.fraction, e.corrected_fraction) for e in found], axis=0)
    plugin, corrected = np.abs(fractions - exact_fraction)
    assert corrected < plugin / 3
    assert 0.2 < exact_fraction < 0.9
    assert "the model explains" in found[0].describe()


def true_fraction(log_q):
    p = np.exp(LOG_P)
    mean = p @ STATES
    independent = np.sum(np.log(np.where(STATES == 1, mean, 1 - mean)), axis=1)
    return p @ (log_q - independent) / (p @ (LOG_P - independent))


def test_patterns_are_sorted_by_count():
    x, log_p = drawn(0, 500)
    found = patterns(x)
    assert (np.diff(found.counts) <= 0).all()
    assert_array_equal(found.x[found.of_row], x)
    assert found.num_rows == 500
    log_probs = LOG_P[found.x @ CODES]
    compared = diagnostics.pattern_frequencies(found, log_probs)
    assert_allclose(compared.observed, found.counts / 500, rtol=1e-6)
    often = found.counts > 5
    assert np.abs(compared.z[often]).max() < 4
    wrong = diagnostics.pattern_frequencies(found, log_probs[::-1])
    assert np.abs(wrong.z[often]).max() > 6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: patterns(np.ones(3)), r"\(row, site\), got shape \(3,\)"),
        (lambda: patterns(np.full((3, 2), 0.5)), "numbers that are not whole"),
        (
            lambda: patterns(Data(np.ones((2, 1)), np.array([0.5, 1]))),
            "whole numbers of",
        ),
        (
            lambda: patterns(Data(np.ones((2, 1)), mask=np.array([[True], [False]]))),
            "patterns are complete rows",
        ),
        (lambda: multi_information(np.eye(2), np.zeros(3)), "for each of 2 rows"),
        (
            lambda: diagnostics.pattern_frequencies(patterns(np.eye(2)), np.zeros(3)),
            "for each of 2 patterns",
        ),
        (
            lambda: diagnostics.pattern_frequencies(patterns(np.eye(2)), np.ones(2)),
            "must be at most 0, got positive ones; subtract log Z",
        ),
        (
            lambda: plots.pattern_ranks(patterns(np.eye(2)), np.zeros(3)),
            "for each of 2 patterns",
        ),
    ],
)
def test_wrong_data_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_figures_of_patterns_have_logarithmic_axes():
    found = patterns(drawn(0, 500)[0])
    log_probs = LOG_P[found.x @ CODES]
    ax = plots.pattern_ranks(found, log_probs)
    model, data = ax.lines
    assert_allclose(model.get_ydata(), np.exp(log_probs))
    assert_allclose(data.get_ydata(), found.counts / 500)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    ax = plots.pattern_frequencies(diagnostics.pattern_frequencies(found, log_probs))
    points = np.asarray(ax.collections[-1].get_offsets())
    assert_allclose(points[:, 1], found.counts / 500, rtol=1e-6)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("model", "data")


def test_a_raster_marks_active_bins_and_borders_of_trials():
    x = np.random.default_rng(0).random((40, 3)) < 0.5
    words = words_from_counts(x, bin_width=0.1, trial=np.repeat([0, 1], 20))
    words = words._replace(time=words.time + 5 * words.trial, names=("a", "b", "c"))
    ax = plots.raster(words)
    marks = ax.lines[0].get_xydata()
    row, unit = np.nonzero(x)
    assert_allclose(marks, np.c_[words.time[row] + 0.05, unit])
    assert_allclose(ax.lines[1].get_xdata(), 5)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]
