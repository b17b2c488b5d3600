"""How tests and the examples in docstrings run."""

import os
import subprocess
import sys

import jax
import pytest

# Nearly all of a run is compiling programs that are run once, so they are compiled
# quickly instead of well. Set XLA_FLAGS, be it to nothing, for others.
QUICKLY = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false"
)

jax.config.update("jax_numpy_rank_promotion", "raise")
os.environ.setdefault("MPLBACKEND", "Agg")


def pytest_configure():
    """Set the flags, for workers and programs started by tests too."""
    if "XLA_FLAGS" not in os.environ and _are_known(QUICKLY):
        os.environ["XLA_FLAGS"] = QUICKLY


def _are_known(flags):
    """Whether this XLA has them: an unknown one ends the process that uses it."""
    trial = [sys.executable, "-c", "import jax; jax.devices()"]
    environment = {**os.environ, "XLA_FLAGS": flags}
    return not subprocess.run(trial, env=environment, capture_output=True).returncode


@pytest.fixture(autouse=True)
def close_figures():
    """Examples in docstrings open figures, and should not have to close them."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
