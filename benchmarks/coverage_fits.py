"""Trials of `uncertainty`, of means over chains, and of goodness of fit."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from benchmarks.coverage_claims import EXACT, Case, Kind, by_stderr
from probjax import (
    MPF,
    Bernoulli,
    Data,
    HeatBath,
    MaximumLikelihood,
    NoiseContrast,
    PseudoLikelihood,
    diagnostics,
    exact,
    fit,
    goodness,
    ising,
    sample,
    sample_mean,
    uncertainty,
)
from probjax.plots.runs import _normalised_autocovariance

SIZE, NUM_ROWS = 5, 1000
TRUTH = ising.init(jax.random.key(1), SIZE, scale=0.4)
STATES = exact.states(SIZE)
# Sweeps seldom turn all units over.
SLOW = ising.from_fields(
    0.35 * (1 - np.eye(SIZE)), np.linspace(-0.1, 0.2, SIZE), spins=True
)
NUM_CHAINS, RHO = 20, 0.7
OPTIONS: dict[str, Any] = dict(sampler=HeatBath(), num_draws=400)


def triple_energy(params, x):
    """An Ising energy and a term of three units, which no pair describes."""
    return ising.energy(params, x) + x[0] * x[1] * x[2]


def gap(params):
    """Energy by which all units on differ from all units off."""
    on, off = jnp.ones(SIZE), jnp.zeros(SIZE)
    return ising.energy(params, on) - ising.energy(params, off)


def fitted(key, objective, start, truth, energy=ising.energy):
    data_key, key = jax.random.split(key)
    x = exact.sample(data_key, energy, TRUTH, SIZE, num_draws=NUM_ROWS)
    found = fit(key, objective, start, x)
    errors = uncertainty(objective, found, x)
    return (
        found.params,
        errors,
        [
            by_stderr(
                *(
                    ravel_pytree(each)[0]
                    for each in (found.params, errors.stderr, truth)
                )
            )
        ],
    )


def true_model(key, objective):
    params, errors, claims = fitted(key, objective, TRUTH, TRUTH)
    return [*claims, by_stderr(gap(params), errors.of(gap), gap(TRUTH))]


def other_model(key):
    """Rows with a term of three units; the truth is the fit to endless rows."""
    objective = MPF(ising.energy)
    p = jnp.exp(exact.log_probs(triple_energy, TRUTH, SIZE))
    nearest = fit(key, objective, TRUTH, Data(STATES, p)).params
    return fitted(key, objective, TRUTH, nearest, triple_energy)[2]


def normalised(key):
    objective = NoiseContrast(ising.energy, Bernoulli(SIZE), num_noise=2)
    log_z = exact.log_z(ising.energy, TRUTH, SIZE)
    truth = objective.start(TRUTH)._replace(log_z=log_z)
    return fitted(key, objective, truth, truth)[2]


def chains(key):
    """Arguments of chains of dependent draws, which start as draws of the target."""
    x_key, key = jax.random.split(key)
    x = exact.sample(x_key, ising.energy, SLOW, SIZE, num_draws=NUM_CHAINS)
    return key, ising.energy, SLOW, x


def means(key):
    args = chains(key)
    found = sample_mean(*args, statistic=jnp.asarray, **OPTIONS)
    draws = sample(*args, **OPTIONS).x
    truth = exact.moments(ising.energy, SLOW, SIZE).mean
    return [
        by_stderr(found.mean, found.stderr, truth),
        by_stderr(draws.mean((0, 1)), diagnostics.mcse(draws), truth),
        by_stderr(draws[:4].mean((0, 1)), diagnostics.mcse(draws[:4]), truth),
    ]


def comparisons(key, of_model):
    """Rows of a model against the model: all states, draws of chains, or draws."""
    data_key, key = jax.random.split(key)
    draw = partial(exact.sample, energy=ising.energy, params=SLOW, size=SIZE)
    x = draw(data_key, num_draws=NUM_ROWS)
    model = of_model(key, draw)
    tests = (
        partial(goodness.compare, jnp.asarray),
        goodness.pair_frequencies,
        goodness.third_moments,
        goodness.population_count,
    )
    found = [test(x, model) for test in tests]
    return [by_stderr(each.observed - each.expected, each.stderr, 0) for each in found]


def all_states(key, draw):
    return Data(STATES, jnp.exp(exact.log_probs(ising.energy, SLOW, SIZE)))


def chain_draws(key, draw):
    return sample(*chains(key), **OPTIONS).x


def single_sequence(key, draw):
    return draw(key, num_draws=NUM_ROWS)


@jax.jit
def autoregressive(key):
    """Chains of x_t+1 = RHO x_t + noise, of variance 1."""
    noise = jax.random.normal(key, (400, NUM_CHAINS))

    def step(x, noise):
        return RHO * x + jnp.sqrt(1 - RHO**2) * noise, x

    return jax.lax.scan(step, noise[0], noise[1:])[1].T


def band(key):
    lags = np.array([1, 2, 5, 10])
    curve, stderr = _normalised_autocovariance(autoregressive(key))
    return [by_stderr(curve[lags], stderr[lags], RHO**lags)]


FITTED = {"stderr": EXACT, "of(gap)": EXACT}
COMPARED: dict[str, Kind] = dict.fromkeys(
    ("compare", "pair_frequencies", "third_moments", "population_count"), EXACT
)
CASES = {
    "uncertainty, MaximumLikelihood": Case(
        partial(true_model, objective=MaximumLikelihood(ising.energy)), FITTED
    ),
    "uncertainty, MPF": Case(partial(true_model, objective=MPF(ising.energy)), FITTED),
    "uncertainty, PseudoLikelihood": Case(
        partial(true_model, objective=PseudoLikelihood(ising.energy)), FITTED
    ),
    "uncertainty, NoiseContrast with log_z": Case(normalised, {"stderr": EXACT}),
    "uncertainty, MPF, model not true": Case(other_model, {"stderr": EXACT}),
    "chains, tau 9": Case(
        means,
        {
            "sample_mean, 20 chains": Kind(dof=NUM_CHAINS - 1),
            "mcse, 20 chains": EXACT,
            "mcse, 4 chains": EXACT,
        },
    ),
    "goodness, all states": Case(partial(comparisons, of_model=all_states), COMPARED),
    "goodness, 20 chains": Case(partial(comparisons, of_model=chain_draws), COMPARED),
    "goodness, one sequence of draws": Case(
        partial(comparisons, of_model=single_sequence), COMPARED
    ),
    "plots.autocovariance": Case(
        band, {"band": Kind(dof=NUM_CHAINS - 1)}, compiled=False
    ),
}
