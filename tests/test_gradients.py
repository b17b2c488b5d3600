"""Derivatives of drivers: those of the formula, or a sentence that refuses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import all_states, random_ising
from test_recipes import CONTINUOUS, OBJECTIVES, name

from probjax import (
    HMC,
    MPF,
    Bernoulli,
    Data,
    Gaussian,
    HeatBath,
    Metropolis,
    NoiseContrast,
    ais,
    annealing,
    fit,
    ising,
    loss,
    marginal_log_likelihood,
    sample,
    sample_mean,
    sandwich,
)
from probjax.connectivity import BitFlips
from probjax.fitting.loss import loss_over_rows
from probjax.natural import energy_scores, fit_whitened
from probjax.samplers import tune
from probjax.trees import as_array

KEY = jax.random.key(0)
BITS = np.random.default_rng(0).binomial(1, 0.5, (7, 4)).astype(np.float32)
REALS = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
START = random_ising(0, 4)


def gradient_of_fit(objective, params, data):
    """The gradient at the first step of a fit: the context is constant."""
    init_key, refresh_key = jax.random.split(KEY)
    context = objective.init(init_key, params, data)
    context = objective.refresh(refresh_key, params, data, context)
    _, rows = loss_over_rows(objective, params, data, context.rows, chunk_size=7)
    rest = jax.grad(objective.rest)(params, context.shared)
    return jax.tree.map(jnp.add, rows, rest)


@pytest.mark.parametrize("objective", [*OBJECTIVES, *CONTINUOUS], ids=name)
def test_the_gradient_of_a_loss_is_the_one_that_fit_descends(objective):
    params = START
    if isinstance(objective, NoiseContrast):
        params = objective.start(params)
    x = REALS if objective in CONTINUOUS else BITS
    data = objective.prepare(params, Data(as_array(x)))
    value = partial(loss, KEY, objective, data=data)
    found = jax.jit(jax.grad(value))(params)
    expected = jax.jit(gradient_of_fit, static_argnums=())(objective, params, data)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    assert largest > 1e-4
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4), found, expected)
    tangents = jax.tree.map(jnp.ones_like, params)
    _, along = jax.jit(lambda p: jax.jvp(value, (p,), (tangents,)))(params)
    total = sum(np.sum(leaf) for leaf in jax.tree.leaves(expected))
    np.testing.assert_allclose(along, total, rtol=1e-3, atol=1e-3)


def test_the_hessian_of_a_loss_is_that_of_finite_differences():
    value = partial(loss, KEY, MPF(ising.energy), data=BITS)

    def along(scale):
        return value(jax.tree.map(lambda leaf: scale * leaf, START))

    slope = jax.jit(jax.grad(along))
    second = jax.jit(jax.hessian(along))(1.0)
    expected = (slope(1.01) - slope(0.99)) / 0.02
    np.testing.assert_allclose(second, expected, rtol=1e-2)


def quadratic(params, x):
    return params * jnp.sum(x**2)


def joint(params, x, a):
    return params * jnp.sum((x - a) ** 2)


ANNEAL = dict(num_steps=4, pilot=None)
DRIVERS = {
    "sample, HeatBath": lambda t: (
        sample(KEY, scaled, t, BITS, sampler=HeatBath(), num_draws=2).x
    ),
    "sample, Metropolis": lambda t: (
        sample(KEY, scaled, t, BITS, sampler=Metropolis(BitFlips()), num_draws=2).x
    ),
    "sample, HMC": lambda t: (
        sample(KEY, quadratic, t, REALS, sampler=HMC(0.3), num_draws=2).x
    ),
    "sample, from x": lambda t: (
        sample(KEY, quadratic, 1.0, t * REALS, sampler=HMC(0.3), num_draws=2).x
    ),
    "sample_mean": lambda t: (
        sample_mean(
            KEY, quadratic, t, REALS, sampler=HMC(0.3), statistic=jnp.sum, num_draws=2
        ).mean
    ),
    "tune": lambda t: (
        tune(KEY, quadratic, t, REALS, sampler=HMC(0.3), num_steps=4).sampler.step_size
    ),
    "ais, HeatBath": lambda t: (
        ais(
            KEY, scaled, t, Bernoulli(4), sampler=HeatBath(), num_particles=3, **ANNEAL
        ).log_z
    ),
    "ais, HMC": lambda t: (
        ais(
            KEY, quadratic, t, Gaussian(4), sampler=HMC(0.3), num_particles=3, **ANNEAL
        ).log_z
    ),
    "reverse_ais": lambda t: (
        annealing.reverse_ais(
            KEY, scaled, t, Bernoulli(4), BITS, sampler=HeatBath(), **ANNEAL
        ).log_z
    ),
    "sandwich": lambda t: (
        sandwich(KEY, scaled, t, Bernoulli(4), BITS, sampler=HeatBath(), **ANNEAL).log_z
    ),
    "marginal_log_likelihood": lambda t: (
        marginal_log_likelihood(
            KEY,
            joint,
            t,
            Gaussian(4),
            REALS,
            sampler=HMC(0.3),
            num_particles=3,
            **ANNEAL,
        ).value
    ),
    "fit": lambda t: jax.tree.leaves(
        fit(KEY, MPF(ising.energy), START, Data(BITS, t * jnp.ones(7))).params
    )[0],
    "fit_whitened": lambda t: jax.tree.leaves(
        fit_whitened(
            KEY,
            MPF(ising.energy),
            START,
            Data(BITS, t * jnp.ones(7)),
            energy_scores(ising.energy),
        ).params
    )[0],
    "an energy that captured it": lambda t: (
        ais(
            KEY,
            lambda params, x: t * jnp.sum(x**2),
            0.0,
            Gaussian(4),
            sampler=HMC(0.3),
            num_particles=3,
            **ANNEAL,
        ).log_z
    ),
}


def scaled(params, x):
    return params * ising.energy(START, x)


@pytest.mark.parametrize("call", DRIVERS.values(), ids=DRIVERS)
def test_drivers_without_a_derivative_say_so(call):
    for transformed in (jax.grad, lambda f: lambda t: jax.jvp(f, (t,), (1.0,))):
        with pytest.raises(ValueError, match="cannot be differentiated: .*try"):
            transformed(lambda t: jnp.sum(call(t)))(1.0)


def test_the_advice_of_a_sampler_gives_the_gradient():
    """d/dt E[x] = -Cov(x, dE/dt), from the draws of parameters that are constant."""

    def surrogate(t):
        rows = np.repeat(BITS, 300, axis=0)
        stopped = jax.lax.stop_gradient(t)
        draws = sample(
            KEY, scaled, stopped, rows, sampler=HeatBath(), num_warmup=50, num_draws=20
        )
        x = draws.x.reshape(-1, 4)
        energies = jax.vmap(scaled, (None, 0))(t, x)
        total = x.sum(-1)
        return -jnp.mean((total - total.mean()) * energies)

    states = all_states(4)
    energies = np.array([ising.energy(START, x) for x in states])

    def exact(t):
        weights = np.exp(-t * energies)
        return np.sum(weights * states.sum(-1)) / weights.sum()

    expected = (exact(1.01) - exact(0.99)) / 0.02
    np.testing.assert_allclose(jax.grad(surrogate)(1.0), expected, atol=0.03)


def test_the_advice_of_annealing_gives_the_gradient():
    """d log Z = -E[dE], over the final particles weighted by their weights."""

    def surrogate(t):
        found = ais(
            KEY,
            scaled,
            jax.lax.stop_gradient(t),
            Bernoulli(4),
            sampler=HeatBath(),
            num_particles=4000,
            num_steps=40,
            pilot=None,
        )
        weights = jax.nn.softmax(found.log_weights)
        return -weights @ jax.vmap(scaled, (None, 0))(t, found.x)

    energies = np.array([ising.energy(START, x) for x in all_states(4)])

    def log_z(t):
        return np.log(np.sum(np.exp(-t * energies)))

    expected = (log_z(1.01) - log_z(0.99)) / 0.02
    np.testing.assert_allclose(jax.grad(surrogate)(1.0), expected, atol=0.05)
