import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from probjax import random

SHAPES = [(), (1,), (36,), (5, 7)]


@pytest.fixture
def keys(key):
    return jax.random.split(key, 50)


@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_those_of_jax(shape, key, keys):
    for draw in (random.uniform, jax.vmap(random.uniform, (0, None))):
        theirs = jax.random.uniform
        if draw is not random.uniform:
            theirs = jax.vmap(theirs, (0, None))
            key = keys
        np.testing.assert_array_equal(draw(key, shape), theirs(key, shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_normals_come_in_any_shape_from_one_key_or_many(shape, keys):
    many = jax.vmap(random.normal, (0, None))(keys, shape)
    assert many.shape == (50, *shape)
    assert many.dtype == np.float32
    one = random.normal(keys[3], shape)
    np.testing.assert_allclose(many[3], one, rtol=1e-6, atol=1e-7)


def test_normals_are_normal_and_independent(key):
    count = 4_000_000
    draws = np.sort(np.asarray(random.normal(key, (count,)), np.float64))
    ranks = (np.arange(count) + 0.5) / count
    gap = np.abs(scipy.stats.norm.cdf(draws) - ranks).max()
    assert gap < 1.9 / np.sqrt(count), "Kolmogorov and Smirnov: one key in 700"
    for power, moment in ((2, 1), (4, 3), (6, 15), (8, 105)):
        values = draws**power
        away = (values.mean() - moment) / (values.std() / np.sqrt(count))
        assert abs(away) < 4, power
    assert np.abs(draws).max() > 4.9, "tails"
    pairs = np.asarray(random.normal(key, (2, count // 2)), np.float64)
    for first, second in (pairs, pairs**2, pairs**3):
        assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(count / 2)


def test_polynomials_are_a_sine_and_a_cosine():
    turn = np.linspace(-0.25, 0.25, 10_001)
    for ours, truth in (
        (turn * np.polyval(random.SINE, turn**2), np.sin(2 * np.pi * turn)),
        (np.polyval(random.COSINE, turn**2), np.cos(2 * np.pi * turn)),
    ):
        np.testing.assert_allclose(ours, truth, atol=6e-8)


def test_keys_are_those_of_jax(key):
    for number in (0, 1, 2**31 - 1, jnp.asarray(7)):
        np.testing.assert_array_equal(
            jax.random.key_data(random.fold_in(key, number)),
            jax.random.key_data(jax.random.fold_in(key, number)),
        )
    for ours, theirs in zip(
        random.split(key, 3), jax.random.split(key, 3), strict=True
    ):
        assert ours == theirs


def test_streams_are_others_and_as_good(key):
    draws = np.stack([random.normal(key, (100_000,), stream=i) for i in range(4)])
    np.testing.assert_array_equal(draws[0], random.normal(key, (100_000,)))
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 5 / np.sqrt(1e5)
    assert np.abs(draws.mean(1)).max() < 5 / np.sqrt(1e5)
    with jax.enable_x64(True):
        wide = [random.normal(key, (3,), float, stream=i) for i in range(2)]
    assert not np.any(wide[0] == wide[1])


def test_other_keys_and_kinds_are_left_to_jax(key, x64):
    np.testing.assert_array_equal(
        random.normal(key, (4,), float), jax.random.normal(key, (4,), float)
    )
    other = jax.random.key(3, impl="rbg")
    np.testing.assert_array_equal(
        random.uniform(random.fold_in(other, 5), (4,), np.float32),
        jax.random.uniform(jax.random.fold_in(other, 5), (4,), np.float32),
    )
