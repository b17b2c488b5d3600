import resource
from pathlib import Path

import jax
import pytest

MOST_MEMORY = 3e9
# A script for version 0.1.0, which wrote the files there.
collect_ignore = ["version_0_1_0"]


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Forget compiled programs when they fill the memory."""
    yield
    if _memory_used() > MOST_MEMORY:
        jax.clear_caches()


def _memory_used():
    pages = Path("/proc/self/statm")
    # Elsewhere than on Linux only the most that was ever used is known.
    if not pages.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(pages.read_text().split()[1]) * resource.getpagesize()


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def key():
    return jax.random.key(20120501)


@pytest.fixture(params=["cpu", "default"])
def branch(request, monkeypatch):
    """Run the form of a computation for CPUs, or that for all other platforms."""

    def chosen(*args, **forms):
        return forms[request.param](*args)

    monkeypatch.setattr(jax.lax, "platform_dependent", chosen)
