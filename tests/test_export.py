"""Programs lower for accelerators, whichever machine the tests run on.

Exporting refuses what has no rule for a platform, and calls into code of one platform.
"""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import export
from small_models import random_ising
from test_recipes import BASES, CONTINUOUS, DYNAMICS, OBJECTIVES, SAMPLERS, name

from probjax import (
    HMC,
    L1,
    MPF,
    Data,
    Gaussian,
    HeatBath,
    NoiseContrast,
    ais,
    bases,
    fit,
    ising,
    linear,
    log_likelihood,
    marginal_log_likelihood,
    natural,
    natural_gradient,
    sample,
    sample_mean,
    sandwich,
)
from probjax.fitting import uncertainty
from probjax.natural import energy_scores
from probjax.samplers import tune

pytestmark = pytest.mark.platforms

PLATFORMS = ("cuda", "rocm", "tpu")
SCORES = energy_scores(ising.energy)
NATURAL = optax.chain(natural_gradient(SCORES), optax.sgd(1.0))


def lowered(function, *args):
    program = export.export(jax.jit(function), platforms=PLATFORMS)(*args)
    assert program.platforms == PLATFORMS


def test_code_of_one_platform_is_refused():
    def foreign(x):
        return jax.ffi.ffi_call("of_one_platform", jax.ShapeDtypeStruct((), x.dtype))(x)

    def on_host(x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), x.dtype), x)

    for function in (foreign, on_host):
        with pytest.raises((ValueError, NotImplementedError)):
            lowered(function, jnp.ones(()))


@pytest.mark.parametrize("objective", [*OBJECTIVES, *CONTINUOUS], ids=name)
def test_objective_lowers_with_its_gradient(objective, key):
    params = random_ising(0, 4)
    if isinstance(objective, NoiseContrast):
        params = objective.start(params)

    def slope(key, params, x):
        return fit(key, objective, params, x, optimizer=SGD, steps_per_round=1).params

    lowered(slope, key, params, jnp.zeros((8, 4)))


SGD = optax.sgd(0.1)


def by_lbfgs(key, params, x):
    return fit(key, MPF(ising.energy), params, x, chart=ising.centred(x))


def by_proximal_steps(key, params, x):
    return fit(key, MPF(ising.energy), params, x, penalty=L1(0.1))


def by_batches(key, params, x):
    objective, data = MPF(ising.energy), Data(x, jnp.ones(8))
    return fit(
        key, objective, params, data, optimizer=SGD, batch_size=2, num_rounds=2
    ).params


def by_natural_gradient(key, params, x):
    return fit(key, MPF(ising.energy), params, x, optimizer=NATURAL).params


def whitened(key, params, x):
    chart = natural.whitened(SCORES, params, x)
    return fit(key, MPF(ising.energy), params, x, chart=chart).params


def with_error_bars(key, params, x):
    objective = MPF(ising.energy)
    found = fit(key, objective, params, x)
    return uncertainty(objective, found, x).covariance


FITS = [by_lbfgs, by_proximal_steps, by_batches, by_natural_gradient]
FITS += [whitened, with_error_bars]


@pytest.mark.parametrize("driver", FITS)
def test_fit_lowers(driver, key):
    lowered(driver, key, random_ising(0, 4), jnp.zeros((8, 4)))


@pytest.mark.parametrize("sampler", [*SAMPLERS, *DYNAMICS], ids=name)
def test_sampling_lowers(sampler, key):
    def draws(key, params, x):
        return sample(key, ising.energy, params, x, sampler=sampler, num_draws=2).x

    lowered(draws, key, random_ising(0, 4), jnp.zeros((8, 4)))


def means(key, params, x):
    plan = {"sampler": HeatBath(), "num_draws": 3, "num_warmup": 2, "thin": 2}
    return sample_mean(key, ising.energy, params, x, statistic=jnp.sum, **plan).stderr


def tuned(key, params, x):
    return tune(key, quadratic, params, x, sampler=HMC(0.1)).x


def quadratic(params, x):
    return jnp.sum(params.bias**2) * jnp.sum(x**2)


def discrete(key, params, x):
    base = bases.Bernoulli(4)
    plan = {"sampler": HeatBath(), "num_particles": 24, "num_steps": 20}
    annealed = ais(key, ising.energy, params, base, resample_below=0.5, **plan)
    return log_likelihood(ising.energy, params, x, annealed).value


def from_both_sides(key, params, x):
    plan = {"sampler": HMC(0.1), "num_steps": 20}
    return sandwich(key, quadratic, params, Gaussian(4), x, **plan).upper


def marginal(key, params, x):
    model = linear.Params(jnp.ones((4, 2)) * params.bias[:, None], jnp.ones(()))
    plan = {"sampler": HMC(0.1), "num_particles": 4, "num_steps": 20}
    base = Gaussian(2)
    return marginal_log_likelihood(key, linear.gaussian, model, base, x, **plan).value


@pytest.mark.parametrize("driver", [means, tuned, discrete, from_both_sides, marginal])
def test_driver_lowers(driver, key):
    lowered(driver, key, random_ising(0, 4), jnp.zeros((8, 4)))


@pytest.mark.parametrize("base", BASES, ids=name)
def test_base_lowers(base, key):
    def both(key):
        x = base.sample(key)
        return x, base.energy(x)

    lowered(both, key)
