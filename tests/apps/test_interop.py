import sys
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import random_ising

from probjax import diagnostics, interop, ising, sample, samplers
from probjax.apps.interop import Blackjax, to_arviz, to_blackjax
from probjax.potential import Potential, potential
from probjax.types import Info

PRECISION = jnp.array([[2.0, 0.6], [0.6, 1.0]])
CENTRE = jnp.array([1.0, -2.0])


def gaussian(params, x):
    apart = x - params
    return apart @ PRECISION @ apart / 2


def quartic(params, x):
    return params * jnp.sum(x**4)


def drawn(x, info):
    rest = dict.fromkeys(samplers.Draws._fields)
    return samplers.Draws(**{**rest, "x": x, "info": info})


@pytest.fixture(scope="module")
def arviz():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "\nArviZ is undergoing", FutureWarning)
        return pytest.importorskip("arviz")


@pytest.fixture(scope="module")
def blackjax():
    return pytest.importorskip("blackjax")


@pytest.fixture(scope="module")
def hmc(blackjax):
    return Blackjax(
        blackjax.hmc.init,
        blackjax.hmc.build_kernel(),
        {
            "step_size": 0.4,
            "inverse_mass_matrix": jnp.array([0.5, 1.0]),
            "num_integration_steps": 4,
        },
    )


def test_arviz_has_states_by_name_and_what_steps_told(arviz):
    a, b = np.arange(24.0).reshape(2, 6, 2), np.arange(12.0).reshape(2, 6)
    accept, diverged = np.full((2, 6), 0.5), (b % 5 == 0) / 3
    info = Info(accept, diverged=diverged)
    found = to_arviz(drawn({"a": a, "b": b}, info))
    np.testing.assert_array_equal(found["posterior"]["a"], a)
    np.testing.assert_array_equal(found["posterior"]["b"], b)
    assert found["posterior"]["a"].dims[:2] == ("chain", "draw")
    stats = found["sample_stats"]
    np.testing.assert_array_equal(stats["acceptance_rate"], accept)
    np.testing.assert_array_equal(stats["diverging"], b % 5 == 0)
    assert stats["diverging"].dtype == bool
    told = Info(accept, diverged=diverged, energy=b)
    np.testing.assert_array_equal(to_arviz(drawn(a, told))["sample_stats"]["energy"], b)
    plain = to_arviz(drawn(a, Info(accept)))
    np.testing.assert_array_equal(plain["posterior"]["x"], a)
    assert "diverging" not in plain["sample_stats"]


@pytest.mark.parametrize("name", ["arviz", "blackjax"])
def test_what_is_not_installed_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    call = {
        "arviz": partial(to_arviz, None),
        "blackjax": partial(to_blackjax, samplers.HeatBath(), ising.energy, None),
    }
    with pytest.raises(ImportError, match=f"pip install {name}"):
        call[name]()


def test_step_is_that_of_the_kernel_on_minus_the_potential(blackjax, hmc):
    key, model = jax.random.key(1), potential(gaussian, CENTRE)

    @jax.jit
    def both(x):
        state, info = hmc.step(key, model, hmc.init(key, model, x))
        plain = blackjax.hmc(lambda x: -gaussian(CENTRE, x), **hmc.parameters)
        theirs, told = plain.step(jax.random.split(key)[1], plain.init(x))
        return (state.x, info.accept), (theirs.position, told.acceptance_rate)

    ours, theirs = both(jnp.array([0.3, 0.7]))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), ours, theirs)
    assert 0 < ours[1] <= 1


def test_state_holds_for_all_weights(hmc):
    """Of one energy and of two, the second of weight 0 where the state is made."""
    key, x = jax.random.key(2), jnp.array([0.3, 0.7])
    one = (gaussian,), (CENTRE,)
    two = (gaussian, quartic), (CENTRE, jnp.array(0.5))

    @partial(jax.jit, static_argnums=0)
    def densities(energies, args, before, after):
        state = hmc.init(key, Potential(energies, args, before), x)
        model = Potential(energies, args, after)
        return hmc._reweighted(key, model, state), hmc.init(key, model, x).inner

    for (energies, args), before, after in [
        (one, jnp.array([2.0]), jnp.array([0.3])),
        (one, jnp.array([0.0]), jnp.array([0.3])),
        (two, jnp.array([1.0, 0.0]), jnp.array([0.4, 0.6])),
    ]:
        found, fresh = densities(energies, args, before, after)
        assert found._fields == ("position", "logdensity", "logdensity_grad")
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), found, fresh)


def test_moving_parameters_of_a_kernel_compiles_nothing(hmc):
    traces = []

    def energy(params, x):
        traces.append(1)
        return gaussian(params, x)

    def run(step_size):
        parameters = {**hmc.parameters, "step_size": step_size}
        sampler = Blackjax(hmc.start, hmc.kernel, parameters)
        x = jnp.zeros((2, 2))
        return sample(
            jax.random.key(3), energy, CENTRE, x, sampler=sampler, num_draws=2
        ).x

    first, before = run(0.1), len(traces)
    second = run(0.5)
    # The driver's own check of the shape is one.
    assert len(traces) <= before + 1
    assert not np.allclose(first, second)


@pytest.mark.statistics
@pytest.mark.parametrize("name", ["nuts", "ghmc"])
def test_kernels_draw_from_the_model(blackjax, name):
    """Within 5 standard errors; over 100 keys the largest of 4 was 3.3 of them."""
    module = getattr(blackjax, name)
    parameters = {
        "nuts": {"step_size": 0.7, "inverse_mass_matrix": jnp.ones(2)},
        "ghmc": {
            "step_size": 0.4,
            "momentum_inverse_scale": jnp.ones(2),
            "alpha": 0.3,
            "delta": 0.1,
        },
    }[name]
    sampler = Blackjax(module.init, module.build_kernel(), parameters)
    draws = sample(
        jax.random.key(4),
        gaussian,
        CENTRE,
        jnp.tile(CENTRE[None], (16, 1)),
        sampler=sampler,
        num_draws=500,
        num_warmup=50,
    )
    apart = draws.x - CENTRE[None, None]
    values = jnp.concatenate([apart, apart[..., :1] * apart], axis=-1)
    covariance = jnp.linalg.inv(PRECISION)
    truth = jnp.concatenate([jnp.zeros(2), covariance[0]])
    error = diagnostics.mcse(values)
    assert jnp.all(jnp.abs(values.mean((0, 1)) - truth) < 5 * error)
    assert jnp.all(error < 0.05)
    assert draws.info.diverged.sum() == 0
    assert 0.7 < draws.info.accept.mean() < 1
    assert (draws.info.num_leaps.mean() > 1) == (name == "nuts")


def test_sampler_steps_the_same_in_blackjax(blackjax):
    params, key = random_ising(0, 4), jax.random.key(5)
    sampler, model = samplers.HeatBath(), potential(ising.energy, params)
    algorithm = to_blackjax(sampler, ising.energy, params)
    assert isinstance(algorithm, blackjax.SamplingAlgorithm)
    state = algorithm.init(np.array([False, True, True, False]), key)
    assert state.x.dtype == jnp.float32
    final, (states, infos) = blackjax.util.run_inference_algorithm(
        key, algorithm, num_steps=5, initial_state=state
    )

    @jax.jit
    def by_hand(state):
        for step_key in jax.random.split(key, 5):
            state, _ = sampler.step(step_key, model, state)
        return state.x

    np.testing.assert_array_equal(final.x, by_hand(state))
    np.testing.assert_array_equal(infos.accept, np.ones(5))
    assert states.x.shape == (5, 4)
    with pytest.raises(ValueError, match="states of bits must be 0 or 1, got spins"):
        algorithm.init(np.array([-1, 1, 1, -1]), key)


def test_recipe_compares_by_kernel_and_parameters(hmc):
    assert Blackjax(hmc.start, hmc.kernel, dict(hmc.parameters)) == hmc
    assert Blackjax(hmc.start, hmc.kernel, {"step_size": 1.0}) != hmc
    assert interop.Blackjax(hmc.start, print, hmc.parameters) != hmc
