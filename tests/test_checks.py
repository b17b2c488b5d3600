"""Checks of values compile nothing for values that the host can read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax.checks import holds, is_finite, is_whole
from probjax.trees import as_array, floating


def test_holds_looks_at_concrete_values_also_inside_a_trace():
    unknown = jnp.full(2, jnp.nan)
    seen = []

    @jax.jit
    def inside(x):
        seen.append(holds(is_finite, (x, unknown)))
        seen.append(holds(is_finite, x))
        return x

    inside(jnp.nan)
    assert seen == [False, True]


def num_compilations(call):
    found = []

    def count(event, duration, **details):
        found.append(event == "/jax/core/compile/backend_compile_duration")

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        call()
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    return sum(found)


@pytest.mark.parametrize(
    ("test", "good", "bad"),
    [(is_finite, [[0.0, 1.0]], [[0.0, np.nan]]), (is_whole, [2.0, -3.0], [0.5, 1.0])],
)
def test_values_of_every_kind_are_checked_without_compiling(test, good, bad):
    for make in (np.array, lambda values: jax.device_put(np.array(values))):
        fine, wrong = make(good), make(bad)

        def check(fine=fine, wrong=wrong):
            assert holds(test, (fine, 1.0))
            assert not holds(test, (fine, wrong))

        assert num_compilations(check) == 0


def test_values_that_are_spread_are_checked_on_their_devices_by_one_program():
    mesh = jax.make_mesh((1,), ("rows",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    rows = jax.device_put(np.ones((7, 3), np.float32), where)
    assert holds(is_finite, (rows, rows))
    assert not holds(is_finite, (rows, np.inf))


@pytest.mark.parametrize("values", [[1, 2], [[True, False]], 3, np.eye(2, dtype=int)])
def test_numbers_become_floats_without_compiling(values):
    found = []
    assert num_compilations(lambda: found.append(floating(values))) == 0
    assert found[0].dtype == jnp.result_type(float)
    np.testing.assert_array_equal(found[0], values)


def test_arrays_are_left_alone():
    given = as_array([1.0, 2.0])
    assert as_array(given) is given
    assert floating(given) is given


def test_lists_of_traced_numbers_become_arrays():
    np.testing.assert_array_equal(jax.jit(lambda a: as_array([a, 2 * a]))(3.0), [3, 6])


def test_whole_numbers_become_wide_floats(x64):
    assert floating(as_array(np.uint8([0, 1]))).dtype == np.float64
