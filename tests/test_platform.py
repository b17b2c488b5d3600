"""The platform for which a program is compiled, which need not be that of the host."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from small_models import random_ising

from probjax.devices import platform, spread

CPU = jax.devices("cpu")[0]


def traced_platform(*args):
    seen = []

    def function(x):
        seen.append(platform(x))
        return x

    jax.jit(function).trace(*args)
    return seen


@pytest.fixture
def mesh():
    return jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,), devices=[CPU])


def test_the_default_device_is_that_of_the_backend_unless_it_is_set():
    assert platform() == platform((np.ones(2), 1.0, None)) == jax.default_backend()
    # Named only, because no such device exists here.
    with jax.default_device("tpu"):
        assert platform() == platform(np.ones(2)) == "tpu"
    with jax.default_device(CPU):
        assert platform() == "cpu"


def test_a_committed_array_goes_before_the_default_device():
    params = random_ising(0, 3)
    committed = jax.device_put(params, CPU)
    key = jax.device_put(jax.random.key(0), CPU)
    free = jax.jit(lambda: jax.numpy.ones(3))()
    with jax.default_device("tpu"):
        assert platform(free) == "tpu"
        assert platform((free, committed)) == platform(committed) == "cpu"
        assert platform(key) == "cpu"


def test_a_mesh_in_context_goes_before_the_default_device(mesh):
    x = np.ones(2, np.float32)
    with jax.set_mesh(mesh), jax.default_device("tpu"):
        assert platform() == "cpu"
        assert traced_platform(x) == ["cpu"]


def test_traced_arrays_of_a_mesh_have_its_platform(mesh):
    sharding = NamedSharding(mesh, PartitionSpec())
    x = jax.ShapeDtypeStruct((2,), np.float32, sharding=sharding)
    with jax.default_device("tpu"):
        assert traced_platform(x) == ["cpu"]
        assert traced_platform(jax.ShapeDtypeStruct((2,), np.float32)) == ["tpu"]


def test_a_mesh_without_devices_leaves_the_default():
    nowhere = jax.sharding.AbstractMesh((1,), ("rows",))
    with jax.sharding.use_abstract_mesh(nowhere), jax.default_device("tpu"):
        assert platform() == "tpu"


def test_rows_are_spread_over_devices_of_the_default_platform():
    with jax.default_device("cpu"):
        rows = spread(np.ones((8, 2), np.float32))
    assert rows.sharding.device_set == set(jax.devices("cpu"))
