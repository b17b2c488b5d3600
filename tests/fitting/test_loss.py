"""The loss over rows in chunks, and its derivatives."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpy.testing import assert_allclose
from small_models import flat_of, random_ising

from probjax import MPF, Data, PseudoLikelihood, ising, loss, rbm
from probjax.objectives import Sparse

SIZE, ROWS = 4, 50
RANDOM = np.random.default_rng(0)
DATA = Data(
    RANDOM.integers(0, 2, (ROWS, SIZE)).astype(np.float32),
    RANDOM.integers(0, 3, ROWS).astype(np.float32),
)
MACHINE = rbm.init(jax.random.key(0), SIZE, 3, scale=0.5)
SPARSE = Sparse(
    PseudoLikelihood(rbm.energy), rbm.hidden_log_odds, target=0.1, strength=1.0
)
CASES = {
    "log of a mean": (MPF(ising.energy), random_ising(0, SIZE)),
    "mean": (PseudoLikelihood(ising.energy), random_ising(0, SIZE)),
    "function of a mean": (SPARSE, MACHINE),
}


def derivatives(objective, params, chunk_size, key):
    """Value, gradient and the product of the Hessian with ones, as one vector."""

    def value(params):
        return loss(key, objective, params, DATA, chunk_size=chunk_size)

    ones = jax.tree.map(np.ones_like, params)

    @jax.jit
    def every(params):
        slope, curvature = jax.jvp(jax.grad(value), (params,), (ones,))
        return value(params), slope, curvature

    return flat_of(every(params))


@pytest.mark.parametrize("name", CASES)
def test_chunks_change_neither_the_loss_nor_its_derivatives(name, key):
    found = partial(derivatives, *CASES[name], key=key)
    assert_allclose(found(chunk_size=7), found(chunk_size=ROWS), rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_agree_in_both_modes(name, key):
    """`jax.hessian` is forward over reverse; the opposite order works, too."""
    objective, params = CASES[name]
    point, unravel = ravel_pytree(params)

    def value(point):
        return loss(key, objective, unravel(point), DATA, chunk_size=7)

    @jax.jit
    def every(point):
        reverse_over_forward = jax.jacrev(jax.jacfwd(value))(point)
        return jax.hessian(value)(point), reverse_over_forward

    first, second = every(point)
    assert_allclose(first, second, rtol=2e-4, atol=1e-5)
    assert_allclose(first, first.T, rtol=2e-4, atol=1e-5)


def test_derivatives_need_the_memory_of_a_chunk(key):
    objective, params = PseudoLikelihood(ising.energy), random_ising(0, 20)
    x = jax.ShapeDtypeStruct((100_000, 20), np.float32)

    def temporary(chunk_size):
        def value(params, x):
            return loss(key, objective, params, x, chunk_size=chunk_size)

        program = jax.jit(jax.grad(value)).lower(params, x).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert temporary(1000) < temporary(100_000) / 4
