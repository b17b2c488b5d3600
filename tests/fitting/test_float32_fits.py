"""Fits of many rows in float32, against float64 and against the distinct rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import drawn_from, flat_ising, matrix_of, random_ising

from probjax import MPF, Data, PseudoLikelihood, fit, ising
from probjax.data import unique_rows
from probjax.fitting import GradientNorm, uncertainty
from probjax.fitting.loss import loss_over_rows, value_over_rows
from probjax.trees import as_array

SIZE, ROWS = 6, 1_000_000
OBJECTIVES = [MPF(ising.energy), PseudoLikelihood(ising.energy)]


def as_name(objective):
    return type(objective).__name__


@pytest.fixture(scope="module")
def rows():
    return drawn_from(1, random_ising(2, SIZE, scale=0.5), ROWS)


@pytest.fixture(scope="module")
def distinct(rows):
    counted, weights = np.unique(rows, axis=0, return_counts=True)
    return counted, weights.astype(float)


def minimum(objective, key, distinct):
    """J at the minimum in float64, and its standard errors."""
    with jax.enable_x64(True):
        data = Data(*map(as_array, (distinct[0].astype(float), distinct[1])))
        found = fit(key, objective, flat_ising(SIZE), data, stop=GradientNorm(1e-11))
        stderr = uncertainty(objective, found, data).of(ising.coupling_matrix)
        return matrix_of(found.params), np.asarray(stderr)


@pytest.mark.statistics
@pytest.mark.parametrize("objective", OBJECTIVES, ids=as_name)
@pytest.mark.parametrize("form", ["distinct", "repeated", "small chunks"])
def test_a_million_rows_have_the_minimum_of_float64(
    objective, form, key, rows, distinct
):
    truth, stderr = minimum(objective, key, distinct)
    data = Data(distinct[0], distinct[1].astype(np.float32))
    if form != "distinct":
        data = Data(rows)
    size = 250 if form == "small chunks" else None
    found = fit(key, objective, flat_ising(SIZE), data, chunk_size=size)
    assert found.params.bias.dtype == np.float32
    away = np.abs(matrix_of(found.params) - truth) / stderr
    # Stopping allows .05, in the direction in which the fit is furthest away.
    assert away.max() < 0.1


@pytest.mark.parametrize("objective", OBJECTIVES, ids=as_name)
def test_weights_beyond_what_float32_counts_change_nothing(objective, distinct):
    x, weights = distinct[0], distinct[1].astype(np.float32)
    params, scale = random_ising(3, SIZE), np.float32(2**20)

    @jax.jit
    def both(weights):
        data = objective.prepare(params, Data(as_array(x), weights))
        return loss_over_rows(objective, params, data, (), chunk_size=7)

    once, often = both(weights), both(scale * weights)
    for one, other in zip(*map(jax.tree.leaves, (once, often)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.statistics
def test_gradients_of_many_small_chunks_lose_no_digits(rows, distinct):
    params = random_ising(3, SIZE)
    objective = OBJECTIVES[0]

    @jax.jit
    def small(x):
        args = objective, params, Data(x), ()
        return loss_over_rows(*args, chunk_size=50), value_over_rows(
            *args, chunk_size=50
        )

    (value, slope), same = small(as_array(rows))
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: as_array(np.asarray(leaf, float)), params)
        data = Data(*map(as_array, (distinct[0].astype(float), distinct[1])))
        true = loss_over_rows(objective, wide, data, (), chunk_size=None)
    # Merged one after the other, chunks give a value that is off by .0002.
    assert abs(float(value) - float(true[0])) < 5e-6
    assert abs(float(same) - float(true[0])) < 5e-6
    for one, other in zip(*map(jax.tree.leaves, (slope, true[1])), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_counts_beyond_2_to_24_lose_no_row():
    x = np.array([[1.0], [0.0], [1.0], [1.0]], np.float32)
    weights = np.array([2**24, 1, 1, 1], np.float32)
    found = unique_rows(Data(x, weights))
    # Sums in float32 would stay at 2^24.
    np.testing.assert_array_equal(found.weights, [1, 2**24 + 2])
    total = np.ones(2**25, np.float32)
    summed = jax.jit(lambda w: (w.sum(), w @ w, jnp.average(w, weights=w)))(total)
    np.testing.assert_array_equal(summed, [2**25, 2**25, 1])
