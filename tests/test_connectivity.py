import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import cubic_energy, cubic_params

from probjax import AllFlips, BitFlips, GaussianSteps, Joined, potential
from probjax.connectivity import binary

X = jnp.array([0.0, 1.0, 1.0])
MODEL = potential(cubic_energy, cubic_params(0, 3))


def test_bit_flips_are_the_states_one_bit_away():
    found = BitFlips().states(X, ())
    np.testing.assert_array_equal(found.x, [[1, 1, 1], [0, 0, 1], [0, 1, 0]])


def test_all_flips_is_the_opposite_state():
    np.testing.assert_array_equal(AllFlips().states(X, ()).x, [[1, 0, 0]])


def test_union_lists_the_neighbours_of_all_members(key):
    joined = Joined((AllFlips(), BitFlips()))
    found = joined.states(X, joined.draw(key, MODEL, X))
    np.testing.assert_array_equal(found.x, [[1, 0, 0], [1, 1, 1], [0, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(found.weight, np.ones(4))


def test_sampled_members_of_a_union_keep_their_own_weights(key):
    joined = Joined((AllFlips(), GaussianSteps(1.0, num_draws=4)))
    found = joined.gaps(MODEL, X, joined.draw(key, MODEL, X))
    np.testing.assert_allclose(found.weight, [1, 0.25, 0.25, 0.25, 0.25])


def test_members_of_a_union_draw_independently(key):
    joined = Joined((GaussianSteps(1.0), GaussianSteps(1.0)))
    first, second = joined.draw(key, MODEL, X)
    assert not jnp.any(first == second)


def test_gaussian_steps_have_the_scale_asked_for(key):
    steps = GaussianSteps(0.3, num_draws=20_000)
    found = steps.states(X, steps.draw(key, MODEL, X)).x - X[None]
    assert jnp.abs(found.mean(0)).max() < 5 * 0.3 / np.sqrt(20_000)
    assert jnp.abs(found.std(0) / 0.3 - 1).max() < 5 / np.sqrt(2 * 20_000)


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float64])
def test_bits_of_any_kind_become_floats(kind):
    rows = np.array([[0, 1], [1, 1]], kind)
    found = binary(rows)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, rows)


def test_other_values_are_refused():
    with pytest.raises(ValueError, match=r"0 and 1, got spins.*ising\.bits"):
        binary(jnp.array([[-1, 1]]))
    with pytest.raises(ValueError, match="0 and 1, got others"):
        BitFlips().prepare(jnp.array([[0, 2]]))
    with pytest.raises(ValueError, match="scale must be positive, got 0.0"):
        GaussianSteps(0)
    with pytest.raises(ValueError, match="num_draws must be at least 1"):
        GaussianSteps(1.0, num_draws=0)


def test_traced_values_are_not_looked_at():
    assert jax.jit(lambda rows: binary(rows))(jnp.array([[3.0]])) == 3
