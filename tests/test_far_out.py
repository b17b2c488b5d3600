"""Energies, gaps and gradients of large magnitude in float32, against float64.

The error is compared with the sum of the magnitudes of all terms, which rounding of the
terms allows.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import all_states

from probjax import (
    HMC,
    Gaussian,
    ais,
    experts,
    gaussian_rbm,
    ising,
    mcrbm,
    potts,
    rbm,
    sample,
)
from probjax.connectivity import BitFlips, SiteChanges
from probjax.potential import potential
from probjax.trees import as_array

RNG = np.random.default_rng(0)
SIZE, HIDDEN, LETTERS = 6, 4, 3
# Rounding of a sum of up to 40 terms, each of which is a product or a logarithm.
RTOL = 5e-6
FAR = [10.0**power for power in (0, 3, 9, 17)]


def both(function, *args):
    """The results of a compiled function in float32 and in float64."""
    args = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), args)
    single = jax.jit(function)(*args)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: as_array(leaf.astype(float)), args)
        double = jax.jit(function)(*wide)
    for leaf in jax.tree.leaves(single):
        assert leaf.dtype == np.float32
    return jax.tree.map(np.asarray, (single, double))


def assert_close(single, double, scale):
    """Finite, close, and of the same sign if the number is not a rounding error."""
    assert np.isfinite(single).all()
    error = np.abs(single.astype(float) - double)
    assert np.all(error <= RTOL * scale)
    clear = np.abs(double) > RTOL * scale
    np.testing.assert_array_equal(np.sign(single)[clear], np.sign(double)[clear])


FILTERS = RNG.normal(size=(SIZE, SIZE))
EXPERTS = experts.Params(FILTERS, np.linspace(0.7, 2, SIZE))
DIRECTION = RNG.normal(size=SIZE)
REALS = gaussian_rbm.Params(
    RNG.normal(size=(SIZE, HIDDEN)),
    RNG.normal(size=SIZE),
    RNG.normal(size=HIDDEN),
    RNG.normal(size=SIZE) / 3,
)
COVARIANCE = jax.tree.map(
    np.asarray,
    mcrbm.init(
        jax.random.key(0), SIZE, num_factors=5, num_covariance=3, num_mean=HIDDEN
    ),
)
CONTINUOUS = {
    "student_t": (experts.student_t, EXPERTS),
    "laplace": (experts.laplace, EXPERTS),
    "gaussian_rbm": (gaussian_rbm.energy, REALS),
    "mcrbm": (mcrbm.energy, COVARIANCE),
    "mcrbm_by_mean_square": (mcrbm.energy_by_mean_square, COVARIANCE),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_energies_and_gradients_of_far_states(name):
    energy, params = CONTINUOUS[name]
    states = np.outer(FAR, DIRECTION)
    function = jax.vmap(jax.value_and_grad(energy, 1), (None, 0))
    (value, slope), (true_value, true_slope) = both(function, params, states)
    # Terms of both signs are at most a few times as large as their sum out there.
    scale = 10 + 10 * np.abs(true_value)
    assert_close(value, true_value, scale)
    lengths = np.linalg.norm(true_slope, axis=1, keepdims=True)
    assert_close(slope, true_slope, 10 * lengths)


@pytest.mark.parametrize("scale", FAR)
def test_gaps_of_an_ising_model_with_large_couplings(scale):
    pairs = SIZE * (SIZE - 1) // 2
    bias, coupling = RNG.normal(size=SIZE), RNG.normal(size=pairs)
    params = ising.Params(scale * bias, scale * coupling)
    states = all_states(SIZE)

    def functions(params, x):
        gaps = [
            ising.flip_gaps(params, x),
            jax.vmap(lambda n: ising.flip_gap(params)(x, n))(jnp.arange(SIZE)),
        ]
        return ising.energy(params, x), jnp.stack(gaps), ising.mirror_gap(params, x)

    single, double = both(jax.vmap(functions, (None, 0)), params, states)
    total = 2 * scale * (np.abs(bias).sum() + np.abs(coupling).sum())
    for one, other in zip(single, double, strict=True):
        assert_close(one, other, total)


@pytest.mark.parametrize("scale", FAR)
def test_gaps_of_a_potts_model_with_large_couplings(scale):
    pairs = SIZE * (SIZE - 1) // 2
    field = scale * RNG.normal(size=(SIZE, LETTERS))
    coupling = scale * RNG.normal(size=(pairs, LETTERS, LETTERS))
    states = RNG.integers(LETTERS, size=(20, SIZE)).astype(float)

    def functions(params, x):
        model, connectivity = potential(potts.energy, params), SiteChanges(LETTERS)
        return model(x), connectivity.gaps(model, x, ()).gap

    params = potts.Params(field, coupling)
    single, double = both(jax.vmap(functions, (None, 0)), params, states)
    total = np.abs(field).sum() + np.abs(coupling).sum()
    for one, other in zip(single, double, strict=True):
        assert_close(one, other, total)


@pytest.mark.parametrize("scale", [0.1, 3, 30, 100])
def test_gaps_of_an_rbm_with_saturated_weights(scale):
    weight = scale * RNG.normal(size=(SIZE, HIDDEN))
    # Units that cancel, and units far from where they turn on.
    weight[1], weight[2] = -weight[0], scale
    params = rbm.Params(weight, RNG.normal(size=SIZE), RNG.normal(size=HIDDEN) * scale)
    states = all_states(SIZE)
    near = (states[:, None] + np.eye(SIZE)[None]) % 2

    def functions(params, x, near):
        def summed(params):
            return jnp.sum(jnp.logaddexp(rbm.flip_gaps(params, x), 0))

        value = rbm.energy(params, x)
        generic = value - jax.vmap(rbm.energy, (None, 0))(params, near)
        gaps = BitFlips().gaps(potential(rbm.energy, params), x, ()).gap
        return value, gaps, generic, jax.grad(summed)(params)

    mapped = jax.vmap(functions, (None, 0, 0))
    (value, gaps, _, slope), exact = both(mapped, params, states, near)
    total = 5 * np.abs(weight).sum()
    assert_close(value, exact[0], total)
    assert_close(gaps, exact[1], total)
    # Gaps of float64 are those of the energy, so that both are not wrong alike.
    np.testing.assert_allclose(exact[1], exact[2], atol=1e-9 * total)
    for one, other in zip(slope, exact[3], strict=True):
        assert np.isfinite(one).all()
        # A slope is a product of chances, whose log odds are rounded.
        np.testing.assert_allclose(one, other, atol=RTOL * total, rtol=RTOL * total)


def quartic(params, x):
    return jnp.sum(params * x**4)


@pytest.mark.parametrize("far", [1e3, 1e8])
def test_leaps_that_overflow_are_rejected(far, key):
    x = np.full((20, 3), far, np.float32)
    args = key, quartic, as_array(1.0, np.float32), x
    draws = sample(*args, sampler=HMC(0.1, num_steps=3), num_draws=5)
    np.testing.assert_array_equal(draws.info.accept, 0)
    np.testing.assert_array_equal(draws.info.diverged, 1)
    np.testing.assert_array_equal(draws.x, np.broadcast_to(far, draws.x.shape))
    assert np.isfinite(draws.state.phase.v).all()


@pytest.mark.parametrize("wide", [1e3, 1e8, 1e12])
def test_particles_from_far_out_have_weights_that_are_numbers(wide, key):
    base = Gaussian(3, scale=wide)
    run = dict(sampler=HMC(0.1), num_particles=20, num_steps=50, pilot=None)
    found = ais(key, quartic, as_array(1.0, np.float32), base, **run)
    log_weights = np.asarray(found.log_weights)
    assert not np.isnan(log_weights).any()
    assert np.isfinite(found.x).all()
    assert np.isfinite(log_weights).all() == (wide < 1e12)
    assert not np.isnan(found.log_z)
