"""Versions of states with some of their bits flipped."""

import jax
import numpy as np
import optax
import pytest
from small_models import flat_ising, matrix_of

from probjax import MPF, Data, PseudoLikelihood, fit, ising
from probjax.data import FixedFlips, GreyLevels, IndependentFlips
from probjax.data.corruption import flip_some
from probjax.objectives import Corrupted
from probjax.random import fold_in
from probjax.trees import as_array

SIZE, ROWS = 10, 4000


def drawn(corruption, key):
    x = np.random.default_rng(1).binomial(1, 0.5, (ROWS, SIZE)).astype(float)
    return np.asarray(jax.jit(corruption.__call__)(key, x)) != x


def test_so_many_bits_are_flipped_any_as_often_as_others(key):
    flips = drawn(FixedFlips(3), key)
    assert np.all(flips.sum(1) == 3)
    error = np.sqrt(0.3 * 0.7 / ROWS)
    assert np.all(np.abs(flips.mean(0) - 0.3) < 5 * error)
    # Two at once as often as without putting back: 3/10 of 2/9.
    both = (flips[:, :, None] & flips[:, None, :]).mean(0)[np.triu_indices(SIZE, 1)]
    assert np.all(np.abs(both - 6 / 90) < 5 * np.sqrt(6 / 90 / ROWS))


def test_bits_are_flipped_each_for_itself(key):
    flips = drawn(IndependentFlips(0.3), key)
    error = np.sqrt(0.3 * 0.7 / ROWS)
    assert np.all(np.abs(flips.mean(0) - 0.3) < 5 * error)
    both = (flips[:, :, None] & flips[:, None, :]).mean(0)[np.triu_indices(SIZE, 1)]
    assert np.all(np.abs(both - 0.09) < 5 * np.sqrt(0.09 / ROWS))
    # How many are flipped is binomial.
    assert abs(flips.sum(1).var() / 2.1 - 1) < 5 * np.sqrt(2 / ROWS)


def test_grey_levels_are_chances_drawn_anew_in_every_round(key):
    levels = np.array([0.0, 0.2, 0.7, 1.0], np.float32)
    rows = np.tile(levels, (ROWS, 1))
    objective = Corrupted(MPF(ising.energy), GreyLevels())
    params = flat_ising(4)
    data = objective.prepare(params, Data(as_array(rows)))
    np.testing.assert_array_equal(data.x, rows)
    context = jax.jit(objective.init)(jax.random.key(1), params, data)
    versions, refresh = [np.asarray(context.rows[0])], jax.jit(objective.refresh)
    for number in range(2):
        context = refresh(fold_in(key, number), params, data, context)
        versions.append(np.asarray(context.rows[0]))
    error = np.sqrt(levels * (1 - levels) / ROWS)
    for version in versions:
        assert np.all(np.abs(version.mean(0) - levels) <= 5 * error)
        assert set(np.unique(version)) == {0, 1}
    changed = [np.mean(a != b, 0) for a, b in zip(versions, versions[1:], strict=False)]
    expected = 2 * levels * (1 - levels)
    np.testing.assert_allclose(changed, [expected, expected], atol=0.04)


def test_a_model_of_grey_rows_has_their_means(key):
    levels = np.array([0.2, 0.7])
    rows = np.tile(levels, (200, 1))
    objective = Corrupted(PseudoLikelihood(ising.energy), GreyLevels())
    found = fit(
        key,
        objective,
        flat_ising(2),
        rows,
        optimizer=optax.sgd(optax.linear_schedule(0.5, 0.0, 2000)),
        num_rounds=2000,
        steps_per_round=1,
    )
    odds = -np.diag(matrix_of(found.params))
    np.testing.assert_allclose(1 / (1 + np.exp(-odds)), levels, atol=0.02)


def test_one_state_is_corrupted_as_rows_are(key):
    x = as_array(np.zeros(SIZE))

    @jax.jit
    def corrupted(key, x):
        flipped = [FixedFlips(4)(key, x), flip_some(key, x, 0), flip_some(key, x, SIZE)]
        return flipped, IndependentFlips(0.4)(key, x == 1)

    flipped, independent = corrupted(key, x)
    assert [int(np.asarray(each).sum()) for each in flipped] == [4, 0, SIZE]
    assert independent.shape == x.shape


def test_a_probability_is_traced():
    count = 0

    @jax.jit
    def corrupt(corruption, key, x):
        nonlocal count
        count += 1
        return corruption(key, x)

    for probability in (0.1, 0.2, 1 / 3):
        corrupt(IndependentFlips(probability), jax.random.key(0), np.zeros(3))
    assert count == 1


def test_what_leaves_nothing_of_a_state_is_refused(key):
    x = as_array(np.zeros((4, 6)))
    with pytest.raises(ValueError, match="num_flips must be an integer of at least 1"):
        FixedFlips(0)
    with pytest.raises(ValueError, match="below half of the 6 bits, got 3"):
        FixedFlips(3)(key, x)
    with pytest.raises(ValueError, match="spins of -1 and 1"):
        FixedFlips(2)(key, as_array(-np.ones((4, 6))))
    for probability in (0, 0.5, 0.7, -0.1, np.nan):
        with pytest.raises(ValueError, match="probability must be above 0 and below"):
            IndependentFlips(probability)


def test_data_that_cannot_be_corrupted_are_refused(key):
    objective = Corrupted(MPF(ising.energy), FixedFlips(1))
    start, x = flat_ising(6), np.zeros((4, 6))
    with pytest.raises(ValueError, match="below half of the 6 bits, got 3"):
        fit(key, Corrupted(MPF(ising.energy), FixedFlips(3)), start, x)
    with pytest.raises(ValueError, match="corruptions need complete rows"):
        fit(key, objective, start, Data(x, mask=x == 0))
    with pytest.raises(ValueError, match="states of bits must be 0 or 1"):
        fit(key, objective, start, x + 0.5)
    with pytest.raises(ValueError, match="x must be between 0 and 1"):
        fit(key, Corrupted(MPF(ising.energy), GreyLevels()), start, x + 2)
    # Whose flips would be counted line by line.
    with pytest.raises(
        ValueError, match=r"one array of shape .row, unit., got shapes \[\(4, 2, 3"
    ):
        fit(key, objective, start, x.reshape(4, 2, 3))
