"""Default numbers of rows per chunk."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from small_models import AfterSteps, random_ising

from probjax import Data, Objective, PseudoLikelihood, fit, ising, loss, recipe
from probjax.data import Blocks
from probjax.fitting import chunk_size
from probjax.fitting.chunk_size import CACHED_ROWS, default_chunk_size, kept_bytes

SIZE = 10
KEY = jax.random.key(0)
OBJECTIVE = PseudoLikelihood(ising.energy)


def rows(count, size=SIZE):
    return Data(jax.ShapeDtypeStruct((count, size), np.float32))


def default(platform, count, *, size=SIZE, **options):
    with jax.default_device(platform):
        params = jax.eval_shape(lambda: random_ising(0, size))
        return default_chunk_size(OBJECTIVE, params, rows(count, size), **options)


@pytest.mark.parametrize("count", [10, 100_000_000])
def test_chunks_fit_into_the_cache_of_a_cpu(count):
    assert default("cpu", count) == CACHED_ROWS


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_all_rows_of_small_data_are_one_chunk_on_accelerators(platform):
    assert default(platform, 100_000) >= 100_000


def test_chunks_of_accelerators_have_bounded_memory():
    params = random_ising(0, SIZE)
    many = default("tpu", 10**9)
    assert CACHED_ROWS < many < 10**8
    kept = kept_bytes(OBJECTIVE, params, rows(many))
    assert 0.9 * chunk_size.KEPT_BYTES < kept <= 1.1 * chunk_size.KEPT_BYTES
    # Chunks do not depend on the number of rows, except through the parameters.
    assert abs(default("tpu", 10**10) / many - 1) < 0.01
    assert abs(default("tpu", 10**9, num_copies=32) * 32 / many - 1) < 0.01
    assert default("tpu", 10**9, size=1000, num_copies=32) == CACHED_ROWS


def test_all_that_a_gradient_keeps_is_counted():
    """The gradient of sin(scale x) in the scale keeps the cosine and x of each row."""

    def kept(count):
        return kept_bytes(ScoreOfSine(), np.float32(2), rows(count))

    assert kept(20) - kept(10) == 10 * 2 * 4 * SIZE


TRACED = []


@recipe
class ScoreOfSine(Objective):
    """Mean of a sine, as simple as an objective can be."""

    def prepare(self, params, data):
        return data

    def row(self, params, x, context):
        TRACED.append(x)
        return jnp.sum(jnp.sin(params * x))


def test_the_size_of_a_chunk_is_traced_once_for_each_shape():
    before = len(TRACED)
    for count in (77, 77, 78):
        kept_bytes(ScoreOfSine(), np.float32(2), rows(count))
    assert len(TRACED) == before + 2


def test_a_loss_is_cut_for_the_platform_of_its_program():
    """All rows are one chunk for an accelerator, so that the program has no loop."""
    start, many = random_ising(0, SIZE), rows(3 * CACHED_ROWS).x

    def program(x):
        return str(jax.make_jaxpr(partial(loss, KEY, OBJECTIVE, start))(x))

    assert "scan" in program(many)
    with jax.default_device("tpu"):
        assert "scan" not in program(many)


def test_blocks_are_cut_into_chunks_after_they_are_decoded(monkeypatch):
    """What is stored has other shapes than the rows of which gradients are computed."""
    monkeypatch.setattr(chunk_size, "platform", lambda tree: "tpu")
    x = np.random.default_rng(0).integers(0, 2, (40, SIZE)).astype(np.float32)
    packed = np.packbits(x.astype(bool), axis=1)
    blocks = Blocks(lambda: [packed[:20], packed[20:]], decode=unpacked)
    start, stop = random_ising(0, SIZE), AfterSteps(2)
    found, expected = (
        fit(KEY, OBJECTIVE, start, data, stop=stop) for data in (blocks, x)
    )
    assert_allclose(found.losses, expected.losses, rtol=1e-5)


def unpacked(x):
    return jnp.unpackbits(x, axis=1, count=SIZE).astype(jnp.float32)
