from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax import export
from jax.sharding import AxisType, PartitionSpec

from probjax import random

SHAPES = [(), (1,), (36,), (5, 7)]
NUMBERS = 0, 1, 2**31 - 1
normal = jax.jit(random.normal, static_argnums=(1, 2))


@pytest.fixture
def keys(key):
    return random.split_array(key, 50)


def drawn(draw, shape):
    """One program for the numbers of one key and of many."""
    return jax.jit(lambda key, keys: (draw(key, shape), each(draw, keys, shape)))


def each(draw, keys, shape):
    return jax.vmap(draw, (0, None))(keys, shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_those_of_jax(shape, key, keys):
    ours = drawn(random.uniform, shape)(key, keys)
    theirs = drawn(jax.random.uniform, shape)(key, keys)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, np.asarray(other) + np.float32(2**-24))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_uniform_numbers_are_never_0_or_1(impl):
    """Of 2^26 numbers of `jax.random.uniform`, eight are 0."""
    draw = jax.jit(lambda key: random.uniform(key, (2**26,), np.float32))
    numbers = np.asarray(draw(jax.random.key(0, impl=impl)))
    assert 0 < numbers.min() < 2**-22
    assert 1 - 2**-22 < numbers.max() < 1


@pytest.mark.parametrize("shape", SHAPES)
def test_normals_come_in_any_shape_from_one_key_or_many(shape, key, keys):
    one, many = drawn(random.normal, shape)(random.fold_in(key, 3), keys)
    assert many.shape == (50, *shape)
    assert many.dtype == np.float32
    np.testing.assert_allclose(np.asarray(many)[3], one, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("count", "furthest"),
    [(400_000, 4.3), pytest.param(4_000_000, 4.9, marks=pytest.mark.statistics)],
)
def test_normals_are_normal_and_independent(count, furthest, key):
    draws = np.sort(np.asarray(normal(key, (count,)), np.float64))
    ranks = (np.arange(count) + 0.5) / count
    gap = np.abs(scipy.stats.norm.cdf(draws) - ranks).max()
    assert gap < 1.9 / np.sqrt(count), "Kolmogorov and Smirnov: one key in 700"
    for power, moment in ((2, 1), (4, 3), (6, 15), (8, 105)):
        values = draws**power
        away = (values.mean() - moment) / (values.std() / np.sqrt(count))
        assert abs(away) < 4, power
    assert np.abs(draws).max() > furthest, "tails"
    pairs = np.asarray(normal(key, (2, count // 2)), np.float64)
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
    def words(fold_in, split, key, seven):
        keys = [fold_in(key, number) for number in (*NUMBERS, seven)]
        return [jax.random.key_data(key) for key in (*keys, *split(key, 3))]

    both = random, jax.random
    ours, theirs = jax.jit(
        lambda *args: [words(library.fold_in, library.split, *args) for library in both]
    )(key, 7)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_keys_by_numpy_are_those_of_jax(key):
    @jax.jit
    def theirs(key):
        folded = [jax.random.fold_in(key, number) for number in NUMBERS]
        return jax.tree.map(jax.random.key_data, (folded, jax.random.split(key, 3)))

    folded, parts = theirs(key)
    for number, words in zip(NUMBERS, folded, strict=True):
        found = jax.random.key_data(random.fold_in(key, number))
        np.testing.assert_array_equal(found, words)
    np.testing.assert_array_equal(
        jax.random.key_data(random.split_array(key, 3)), parts
    )
    for part, words in zip(random.split(key, 3), np.asarray(parts), strict=True):
        np.testing.assert_array_equal(jax.random.key_data(part), words)


def test_streams_are_others_and_as_good(key):
    @partial(jax.jit, static_argnums=(1, 2))
    def streams(key, count, kind):
        draws = [random.normal(key, (count,), kind, stream=i) for i in range(4)]
        return draws, random.normal(key, (count,), kind)

    draws, plain = jax.tree.map(np.asarray, streams(key, 100_000, np.float32))
    np.testing.assert_array_equal(draws[0], plain)
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 5 / np.sqrt(1e5)
    assert np.abs(np.mean(draws, axis=1)).max() < 5 / np.sqrt(1e5)
    with jax.enable_x64(True):
        wide, _ = jax.tree.map(np.asarray, streams(key, 3, np.float64))
    assert not np.any(wide[0] == wide[1])


def test_other_keys_and_kinds_are_left_to_jax(key, x64):
    theirs = jax.jit(jax.random.normal, static_argnums=(1, 2))(key, (4,), float)
    np.testing.assert_array_equal(normal(key, (4,), float), theirs)

    @jax.jit
    def drawn_twice(key):
        ours = random.uniform(random.fold_in(key, 5), (4,), np.float32)
        return ours, jax.random.uniform(jax.random.fold_in(key, 5), (4,), np.float32)

    ours, theirs = drawn_twice(jax.random.key(3, impl="rbg"))
    np.testing.assert_array_equal(ours, np.asarray(theirs) + np.float32(2**-24))


def by_form(form, key):
    """Words, uniform numbers, keys and normal numbers from one form of threefry."""
    with mock.patch.object(random, "_hashed", form):
        low = jnp.arange(7, dtype=jnp.uint32)
        words = form(jax.random.key_data(key), low + np.uint32(2**31), low)
        uniforms = [random.uniform(key, shape, stream=2) for shape in SHAPES]
        keys = [jax.random.key_data(random.fold_in(key, i)) for i in NUMBERS]
        return words, uniforms, keys, [random.normal(key, shape) for shape in SHAPES]


def test_both_forms_of_threefry_give_the_same_numbers(keys):
    on_cpu, elsewhere = (
        jax.jit(jax.vmap(partial(by_form, form)))(keys[:3])
        for form in (random._threefry, random._threefry_of_jax)
    )
    jax.tree.map(np.testing.assert_array_equal, on_cpu, elsewhere)


def drawn_in_loops(key):
    def step(total, number):
        each = random.fold_in(key, number)
        return total + random.normal(each, (3,)), random.uniform(each, (3,))

    def body(carry):
        number, total = carry
        return number + 1, step(total, number)[0]

    start = np.int32(0), random.normal(key, (3,))
    looped = jax.lax.while_loop(lambda carry: carry[0] < 4, body, start)[1]
    return looped, *jax.lax.scan(step, start[1], np.arange(4, dtype=np.int32))


@jax.jit
def drawn_in_all_ways(key):
    """The same numbers from a key, a key under `vmap` and a key inside `shard_map`."""
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,))
    many, rows = jax.vmap(drawn_in_loops), PartitionSpec("rows")
    shards = jax.shard_map(many, mesh=mesh, in_specs=rows, out_specs=rows)
    return drawn_in_loops(key), many(key[None]), shards(key[None])


def forms_in(*platforms):
    traced = drawn_in_all_ways.trace(jax.random.key(0))
    text = traced.lower(lowering_platforms=platforms).as_text()
    hashed = [part for part in text.split("func.func") if "@_hashed" in part[:20]]
    marks = {"unrolled": "shift_left", "of JAX": "call @threefry2x32"}
    return {
        form for form, mark in marks.items() if any(mark in part for part in hashed)
    }


def test_a_program_for_one_platform_has_one_form_of_threefry():
    assert forms_in("cpu") == {"unrolled"}
    for platform in ("cuda", "rocm", "tpu"):
        assert forms_in(platform) == {"of JAX"}
    assert forms_in("cpu", "tpu") == {"unrolled", "of JAX"}


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_numbers_do_not_depend_on_where_they_are_drawn(make):
    """In loops, under `vmap`, inside `shard_map`, and exported for all platforms."""
    key = make(3)
    with jax.numpy_dtype_promotion("strict"), jax.debug_nans(True):
        one, many, shards = drawn_in_all_ways(key)
        exported = export.export(drawn_in_all_ways, platforms=("cpu", "cuda", "tpu"))
        again = exported(key).call(key)
    jax.tree.map(np.testing.assert_array_equal, many, shards)
    jax.tree.map(np.testing.assert_array_equal, again, (one, many, shards))
    for alone, batched in zip(one, many, strict=True):
        np.testing.assert_allclose(batched[0], alone, rtol=1e-6, atol=1e-6)
