import jax
import pytest


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
