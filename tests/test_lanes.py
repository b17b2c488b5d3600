import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax.lanes import if_any, lazily


def work(scale, x):
    return {"square": scale * x**2, "sum": jnp.sum(x)}


each_lane = jax.jit(jax.vmap(lambda needed, x: lazily(work, needed, 2.0, x)))


@pytest.mark.parametrize("count", [1, 5, 16, 37])
def test_lanes_in_need_get_their_own_and_others_zeros(count):
    generator = np.random.default_rng(count)
    x = generator.normal(size=(count, 3)).astype(np.float32)
    for share in (0.0, 0.3, 1.0):
        needed = generator.random(count) < share
        found = each_lane(needed, x)
        squares, sums = needed[:, None] * 2 * x**2, needed * x.sum(1)
        np.testing.assert_allclose(found["square"], squares, rtol=1e-6)
        np.testing.assert_allclose(found["sum"], sums, rtol=1e-5, atol=1e-6)


def test_one_state_and_batches_of_batches_agree():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4, 6, 3)).astype(np.float32)
    scale = np.arange(1.0, 5.0, dtype=np.float32)
    needed = generator.random((4, 6)) < 0.5

    def one(needed, scale, x):
        return lazily(work, needed, scale, x)["sum"] + scale

    both = jax.jit(jax.vmap(jax.vmap(one, (0, None, 0))))(needed, scale, x)
    alone = jax.jit(one)
    for i, j in np.ndindex(4, 6):
        found = alone(needed[i, j], scale[i], x[i, j])
        np.testing.assert_allclose(np.asarray(both)[i, j], found, rtol=1e-5)


def test_only_lanes_in_need_are_worked_on():
    """Iterations of a loop in the work are counted by how long its lanes run."""
    blocks = []

    def slow(x):
        jax.debug.callback(lambda _: blocks.append(1), x)
        return x

    needed = np.arange(160) < 35
    found = jax.jit(jax.vmap(lambda n, x: lazily(slow, n, x)))(needed, np.ones(160))
    found.block_until_ready()
    jax.effects_barrier()
    np.testing.assert_array_equal(found, needed)
    # Blocks of 10 lanes: four of them, not sixteen.
    assert len(blocks) == 40


def test_together_is_all_lanes_or_none_in_any_number_of_vmaps():
    calls = []

    def counted(x, shift):
        jax.debug.callback(lambda x: calls.append(x), x)
        return x + shift

    def one(needed, x):
        return if_any(counted, needed, x, 1.0)

    x = np.arange(6.0).reshape(2, 3)
    twice = jax.jit(jax.vmap(jax.vmap(one)))
    some = x == 5
    np.testing.assert_array_equal(twice(some, x), x + 1)
    jax.effects_barrier()
    assert len(calls) == 6
    np.testing.assert_array_equal(twice(np.zeros((2, 3), bool), x), 0 * x)
    jax.effects_barrier()
    assert len(calls) == 6
