import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax.samplers.lazily import lazily, together


def work(scale, x):
    return {"square": scale * x**2, "sum": jnp.sum(x)}


@pytest.mark.parametrize("count", [1, 5, 16, 37])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_lanes_in_need_get_their_own_and_others_zeros(count, share, key):
    x = jax.random.normal(key, (count, 3))
    needed = jax.random.bernoulli(key, share, (count,))
    found = jax.jit(jax.vmap(lambda n, x: lazily(work, n, 2.0, x)))(needed, x)
    np.testing.assert_allclose(found["square"], needed[:, None] * 2 * x**2, rtol=1e-6)
    np.testing.assert_allclose(found["sum"], needed * x.sum(1), rtol=1e-5, atol=1e-6)


def test_one_state_and_batches_of_batches_agree(key):
    x = jax.random.normal(key, (4, 6, 3))
    scale = jnp.arange(1.0, 5.0)
    needed = jax.random.bernoulli(key, 0.5, (4, 6))

    def one(needed, scale, x):
        return lazily(work, needed, scale, x)["sum"] + scale

    both = jax.vmap(jax.vmap(one, (0, None, 0)))(needed, scale, x)
    for i in range(4):
        for j in range(6):
            alone = one(needed[i, j], scale[i], x[i, j])
            np.testing.assert_allclose(both[i, j], alone, rtol=1e-5)


def test_only_lanes_in_need_are_worked_on(key):
    """Iterations of a loop in the work are counted by how long its lanes run."""
    blocks = []

    def slow(x):
        jax.debug.callback(lambda _: blocks.append(1), x)
        return x

    needed = jnp.arange(160) < 35
    found = jax.jit(jax.vmap(lambda n, x: lazily(slow, n, x)))(needed, jnp.ones(160))
    found.block_until_ready()
    jax.effects_barrier()
    assert found.sum() == 35
    # Blocks of 10 lanes: four of them, not sixteen.
    assert len(blocks) == 40


def test_together_is_all_lanes_or_none_in_any_number_of_vmaps(key):
    calls = []

    def counted(x, shift):
        jax.debug.callback(lambda x: calls.append(x), x)
        return x + shift

    def one(needed, x):
        return together(counted, needed, x, 1.0)

    x = jnp.arange(6.0).reshape(2, 3)
    twice = jax.jit(jax.vmap(jax.vmap(one)))
    some = jnp.zeros((2, 3), bool).at[1, 2].set(True)
    np.testing.assert_array_equal(twice(some, x), x + 1)
    jax.effects_barrier()
    assert len(calls) == 6
    np.testing.assert_array_equal(twice(jnp.zeros((2, 3), bool), x), 0 * x)
    jax.effects_barrier()
    assert len(calls) == 6
