import os
import subprocess
import sys

import jax
import pytest

# Nearly all of a run is compiling programs that are run once, so they are compiled
# quickly instead of well. Run with XLA_FLAGS= of your own, or empty, for others.
QUICKLY = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false"
)

jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_configure():
    """Set the flags, for workers and programs started by tests too."""
    if "XLA_FLAGS" not in os.environ and _are_known(QUICKLY):
        os.environ["XLA_FLAGS"] = QUICKLY


def _are_known(flags):
    """Whether this XLA has them: an unknown one ends the process that uses it."""
    trial = [sys.executable, "-c", "import jax; jax.devices()"]
    environment = {**os.environ, "XLA_FLAGS": flags}
    return not subprocess.run(trial, env=environment, capture_output=True).returncode


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Programs of one file are of no use to the next, and fill the memory."""
    yield
    jax.clear_caches()


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def key():
    return jax.random.key(20120501)
