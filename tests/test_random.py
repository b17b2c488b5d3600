import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erfinv

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
def test_normals_are_those_of_jax_within_rounding(shape, keys):
    ours = jax.vmap(random.normal, (0, None))(keys, shape)
    theirs = jax.vmap(jax.random.normal, (0, None))(keys, shape)
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-7)


def test_inverse_holds_out_to_the_last_number_below_one():
    x = np.float32(1) - np.float32(2) ** -np.arange(1, 25, dtype=np.float32)
    with jax.enable_x64(True):
        truth = np.asarray(erfinv(jnp.asarray(x, np.float64)))
    for side in (-1, 1):
        np.testing.assert_allclose(random._erf_inv(side * x), side * truth, rtol=1e-6)


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
