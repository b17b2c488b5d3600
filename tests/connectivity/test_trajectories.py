"""Hamiltonian trajectories as the connectivity of the flow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import MPF, Data, fit
from probjax.connectivity import Hamiltonian
from probjax.fitting import uncertainty
from probjax.leapfrog import Geometry, kick_drift_kick, phase_at
from probjax.potential import potential

TRUTH = (jnp.asarray(0.7), jnp.asarray(1.8))


def normal(params, x):
    mean, precision = params
    return precision * jnp.sum((x - mean) ** 2) / 2


def drawn(key, count):
    mean, precision = TRUTH
    return mean + jax.random.normal(key, (count, 1)) / jnp.sqrt(precision)


def test_ratio_is_the_kinetic_energy_lost(x64, key):
    """Along fine steps the total energy is kept, and every gap vanishes."""
    model = potential(normal, TRUTH)
    x = jnp.array([0.2])
    coarse, fine = (
        jax.jit(lambda key, s=s, n=n: _gap(Hamiltonian(s, n, 20), key, model, x))(key)
        for s, n in ((0.5, 1), (0.005, 100))
    )
    assert np.abs(fine).max() < 1e-4
    assert np.abs(coarse).max() > 1e-3


def _gap(connectivity, key, model, x):
    return connectivity.gaps(model, x, connectivity.draw(key, model, x)).gap


@pytest.mark.parametrize("num_steps", [1, 4])
def test_flow_along_trajectories_finds_the_truth(num_steps, key):
    data = drawn(key, 4000)
    objective = MPF(normal, connectivity=Hamiltonian(0.4, num_steps, num_draws=4))
    start = (jnp.asarray(0.0), jnp.asarray(1.0))
    fitted = fit(key, objective, start, data, num_rounds=15)
    stderr = uncertainty(objective, fitted, data).stderr
    for found, true, error in zip(fitted.params, TRUTH, stderr, strict=True):
        assert abs(found - true) < 5 * error
        assert error < 0.2


def test_gradient_vanishes_at_the_truth_and_not_without_the_ratio(x64, key):
    """Over a fine grid of x and v, so that nothing is left to chance."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    mean, precision = (float(value) for value in TRUTH)
    x = mean + jnp.asarray(nodes)[:, None] / np.sqrt(precision)
    model = potential(normal, TRUTH)
    both = jnp.asarray(np.outer(weights, weights) / np.sum(weights) ** 2)

    def end(x, v):
        there = kick_drift_kick(Geometry(), model, phase_at(model, x, v), 0.4, 3)
        return there.x, (v @ v - there.v @ there.v) / 2

    ends = jax.vmap(jax.vmap(end, (None, 0)), (0, None))
    there, ratio = ends(x, jnp.asarray(nodes)[:, None])

    def flow(params, keep):
        def rate(x, x_new, ratio):
            return jnp.exp((normal(params, x) - normal(params, x_new) + ratio) / 2)

        rates = jax.vmap(jax.vmap(rate, (None, 0, 0)))(x, there, keep * ratio)
        return jnp.sum(both * rates)

    slope = jax.jit(jax.grad(flow))
    right, wrong = (
        np.abs(np.array(jax.tree.leaves(slope(TRUTH, keep)))).max() for keep in (1, 0)
    )
    assert right < 1e-8
    assert wrong > 1e-3


def test_trajectories_that_diverge_count_for_nothing(key):
    model, x = potential(quartic, 1.0), jnp.array([3.0])
    far = Hamiltonian(1.0, num_steps=4, num_draws=5)
    gaps = far.gaps(model, x, far.draw(key, model, x))
    np.testing.assert_array_equal(gaps.weight, 0)
    assert np.isfinite(gaps.gap).all()
    near = Hamiltonian(0.01, num_draws=5)
    assert near.gaps(model, x, near.draw(key, model, x)).weight.sum() == 1


def quartic(params, x):
    return params * jnp.sum(x**4)


def test_bad_trajectories_are_refused(key):
    with pytest.raises(ValueError, match="positive and finite, got 0.0"):
        Hamiltonian(0)
    with pytest.raises(ValueError, match="num_steps must be an integer of at least 1"):
        Hamiltonian(0.1, 0)
    objective = MPF(normal, connectivity=Hamiltonian(0.1))
    data = Data(jnp.ones((3, 1)), None, np.array([[True], [False], [True]]))
    with pytest.raises(ValueError, match="must be one of bits or letters"):
        fit(key, objective, TRUTH, data)
