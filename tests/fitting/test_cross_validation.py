import numpy as np
import pytest
from small_models import LINEAR, counted_states, flat_ising, log_probs_of

from probjax import (
    L2,
    ContrastiveDivergence,
    Data,
    MaximumLikelihood,
    PseudoLikelihood,
    cross_validate,
    fit,
    ising,
    loss,
)
from probjax.fitting import GradientNorm
from probjax.fitting.cross_validation import (
    Validation,
    _cluster_weights,
    _fold_weights,
)
from probjax.fitting.path import RegularisationPath
from probjax.random import split
from probjax.samplers import HeatBath
from probjax.trees import as_array

SIZE = 5
DATA = counted_states(SIZE)
OBJECTIVE = PseudoLikelihood(ising.energy)
STRENGTHS = [0.1, 0.01, 0.001]


def start():
    return flat_ising(SIZE)


def test_scores_are_losses_on_rows_left_out(x64, key):
    score = MaximumLikelihood(ising.energy)
    exact = dict(stop=GradientNorm())
    options = dict(penalty=L2(1.0), strengths=STRENGTHS, num_folds=3, **exact)
    found = cross_validate(key, OBJECTIVE, start(), DATA, score=score, **options)
    held = np.asarray(_fold_weights(split(key, 3)[0], DATA, 3))
    np.testing.assert_array_equal(held.sum(0), DATA.weights)
    for i, fold in enumerate(held):
        rest = Data(DATA.x, DATA.weights - fold)
        fitted = fit(key, OBJECTIVE, start(), rest, penalty=L2(0.01), **exact)
        log_p = log_probs_of(fitted.params)
        # `counted_states` lists states by their first bit fastest.
        order = np.arange(2**SIZE).reshape((2,) * SIZE).transpose().ravel()
        by_hand = -(fold @ log_p[order]) / fold.sum()
        np.testing.assert_allclose(np.asarray(found.scores)[i, 1], by_hand, rtol=1e-6)
    whole = fit(key, OBJECTIVE, start(), DATA, penalty=L2(0.01), **exact)
    np.testing.assert_allclose(found.path.at(1).bias, whole.params.bias, atol=1e-6)


def test_loss_is_that_of_a_fit(key):
    fitted = fit(key, OBJECTIVE, start(), DATA)
    again = loss(key, OBJECTIVE, fitted.params, DATA, chunk_size=7)
    np.testing.assert_allclose(again, fitted.loss, rtol=1e-5)
    rows = np.array([[1.0, 2.0], [3.0, 5.0]])
    assert float(loss(key, LINEAR, as_array(np.ones(2)), rows)) == 5.5


def test_copies_are_fold_weightst_one_by_one_and_other_rows_whole(key):
    counts = _fold_weights(key, Data(np.ones((2, 1)), np.array([900.0, 0.0])), 3)
    np.testing.assert_array_equal(counts, [[300, 0]] * 3)
    wholes = _fold_weights(key, Data(np.ones((6, 1)), np.full(6, 0.5)), 3)
    np.testing.assert_array_equal(np.sort(wholes, 1), [[0, 0, 0, 0, 0.5, 0.5]] * 3)
    np.testing.assert_array_equal(wholes.sum(0), np.full(6, 0.5))
    some = _fold_weights(
        key, Data(np.ones((8, 1)), np.array([0.5, 0.7, *[0.0] * 6])), 2
    )
    assert (some.sum(1) > 0).all()
    plain = _fold_weights(key, Data(np.ones((5, 1))), 2)
    np.testing.assert_array_equal(plain.sum(0), np.ones(5))
    assert sorted(plain.sum(1)) == [2, 3]


def test_clusters_are_in_one_fold_with_their_weights(key):
    random = np.random.default_rng(0)
    labels, weights = random.integers(7, size=40), random.integers(4, size=40)
    data = Data(np.ones((40, 1)), weights.astype(float))
    folds = _cluster_weights(key, data, 3, labels)
    np.testing.assert_array_equal(folds.sum(0), weights)
    for label in range(7):
        assert np.count_nonzero(folds[:, labels == label].sum(1)) == 1
    assert np.ptp(folds.sum(1)) <= np.bincount(labels, weights).max()
    blocks = np.arange(40) // 5
    folds = _cluster_weights(key, Data(np.ones((40, 1))), 4, blocks)
    np.testing.assert_array_equal(folds.sum(1), [10] * 4)
    other = _cluster_weights(split(key)[0], Data(np.ones((40, 1))), 4, blocks)
    assert not np.array_equal(folds, other)


def test_clusters_protect_against_repeated_rows(key):
    # Every row is repeated twenty times: single rows are predicted by their copies.
    x = np.repeat(np.random.default_rng(0).integers(0, 2, (8, SIZE)), 20, axis=0)
    options = dict(penalty=L2(1.0), strengths=[0.3, 1e-4], num_folds=3)
    naive = cross_validate(key, OBJECTIVE, start(), x, **options)
    clusters = np.repeat(np.arange(8), 20)
    whole = cross_validate(key, OBJECTIVE, start(), x, clusters=clusters, **options)
    assert (naive.best, whole.best) == (1, 0)


def test_simplest_is_the_strongest_within_noise_of_the_best():
    scores = as_array([[5.0, 2.2, 2.0, 3.0], [5.0, 1.9, 2.0, 3.0]])
    found = Validation(scores, RegularisationPath(*[None] * 5))
    assert (found.best, found.simplest) == (2, 1)


def test_bad_folds_are_refused(key):
    with pytest.raises(ValueError, match="num_folds must be an integer of at least 2"):
        cross_validate(key, OBJECTIVE, start(), DATA, penalty=L2(1.0), num_folds=1)
    divergence = ContrastiveDivergence(ising.energy, HeatBath())
    with pytest.raises(
        ValueError, match="must have a loss value .* got ContrastiveDiv"
    ):
        cross_validate(key, OBJECTIVE, start(), DATA, penalty=L2(1.0), score=divergence)
    with pytest.raises(ValueError, match="num_folds must not exceed the 3 rows, got 4"):
        cross_validate(
            key, OBJECTIVE, start(), DATA.x[:3], penalty=L2(1.0), num_folds=4
        )
    with pytest.raises(ValueError, match="clusters must have one entry for each of 3"):
        cross_validate(
            key, OBJECTIVE, start(), DATA.x[:3], penalty=L2(1.0), clusters=[0, 1]
        )
    with pytest.raises(ValueError, match="must not exceed the 2 clusters, got 5"):
        cross_validate(
            key, OBJECTIVE, start(), DATA.x[:3], penalty=L2(1.0), clusters=[0, 1, 1]
        )
    masked = Data(np.ones((3, SIZE)), mask=np.tri(3, SIZE, SIZE - 1, dtype=bool))
    with pytest.raises(ValueError, match="would be imputed by the model that is comp"):
        cross_validate(key, OBJECTIVE, start(), masked, penalty=L2(1.0))
