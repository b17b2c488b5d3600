"""Matrix products and convolutions ask for full float32 precision on every platform."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import export
from small_models import random_ising

from probjax import (
    HMC,
    MPF,
    Bernoulli,
    Gaussian,
    HeatBath,
    PersistentDivergence,
    PseudoLikelihood,
    ScoreMatching,
    ais,
    annealing,
    fit,
    gaussian_rbm,
    ising,
    log_likelihood,
    loss,
    natural,
    natural_gradient,
    potts,
    rbm,
    sample,
    samplers,
    sandwich,
)
from probjax.connectivity import BitFlips
from probjax.fitting import uncertainty
from probjax.natural import energy_scores
from probjax.trees import as_array

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
PRODUCTS = ("dot_general", "dot", "convolution")


def images(params, x):
    """An energy of one's own, with a convolution, a product and an einsum."""
    kernel, weight = params
    seen = jax.lax.conv(x.reshape(1, 1, 4, 4), kernel, (1, 1), "SAME").ravel()
    return jnp.sum(jnp.tanh(weight @ seen) ** 2) + jnp.einsum("i,i", x, x) / 2


PARAMS = (as_array(np.ones((1, 1, 2, 2))), as_array(np.ones((3, 16))))
X = as_array(np.ones((5, 16)) / 3)
NATURAL = optax.chain(natural_gradient(energy_scores(ising.energy)), optax.sgd(1.0))


def products(function, *args):
    """The lines of a lowered program that have a product or a convolution."""
    program = export.export(jax.jit(function), platforms=PLATFORMS)(*args)
    text = program.mlir_module()
    assert "bf16" not in text
    named = re.compile(rf"stablehlo\.({'|'.join(PRODUCTS)})\b")
    return [line for line in text.splitlines() if named.search(line)]


def is_full(line):
    return line.count("HIGHEST") == 2


def fitted(key, params, x):
    steps = dict(optimizer=optax.sgd(0.1), steps_per_round=2)
    return fit(key, ScoreMatching(images), params, x, **steps).params


def flow(key, params, x):
    return fit(key, MPF(ising.energy, connectivity=BitFlips()), params, x).params


def descended(key, params, x):
    return fit(key, MPF(ising.energy), params, x, optimizer=NATURAL).params


def value(key, params, x):
    return loss(key, ScoreMatching(images), params, x)


def errors(key, params, x):
    objective = MPF(ising.energy)
    return uncertainty(objective, fit(key, objective, params, x), x).covariance


def drawn(key, params, x):
    return sample(key, images, params, x, sampler=HMC(0.1), num_draws=2).x


def swept(key, params, x):
    return sample(key, ising.energy, params, x, sampler=HeatBath(), num_draws=2).x


def annealed(key, params, x):
    run = dict(sampler=HMC(0.1), num_steps=3, num_particles=4)
    found = ais(key, images, params, Gaussian(16), **run)
    return log_likelihood(images, params, x, found).value


def bracketed(key, params, x):
    run = dict(sampler=HMC(0.1), num_steps=3, pilot=None)
    return sandwich(key, images, params, Gaussian(16), x, **run).upper


def tuned(key, params, x):
    return samplers.tune(key, images, params, x, sampler=HMC(0.1), num_steps=320).x


def machine(params):
    """An RBM with a hidden unit for every visible one."""
    bias = params.bias
    return rbm.Params(bias[:, None] * bias[None], bias, bias)


def fitted_machine(key, params, x):
    return fit(key, MPF(rbm.energy), machine(params), x).params


def fitted_by_chains(key, params, x):
    objective = PersistentDivergence(rbm.energy, rbm.BlockGibbs(), num_particles=4)
    steps = dict(optimizer=optax.sgd(0.1), num_rounds=2, steps_per_round=2)
    return fit(key, objective, machine(params), x, **steps).params


def fitted_reals(key, params, x):
    bias = params.bias
    weight, zeros = bias[:, None] * bias[None], jnp.zeros_like(bias)
    start = gaussian_rbm.Params(weight, bias, bias, zeros)
    return fit(key, ScoreMatching(gaussian_rbm.energy), start, x).params


def fitted_letters(key, params, x):
    sites = len(params.bias)
    pairs = sites * (sites - 1) // 2
    start = potts.Params(jnp.zeros((sites, 3)), jnp.zeros((pairs, 3, 3)))
    return fit(key, PseudoLikelihood(potts.energy, num_states=3), start, x).params


def whitened(key, params, x):
    chart = natural.whitened(energy_scores(ising.energy), params, x)
    return fit(key, MPF(ising.energy), params, x, chart=chart).params


def annealed_machine(key, params, x):
    run = dict(sampler=rbm.BlockGibbs(), num_steps=3, num_particles=4, pilot=None)
    start = jax.tree.map(jnp.zeros_like, machine(params))
    args = key, rbm.energy, machine(params), Bernoulli(4)
    return ais(*args, path=annealing.Straight(start), **run).log_z


OWN = [fitted, value, drawn, annealed, bracketed, tuned]
DRIVERS = [*OWN, flow, descended, errors, swept, fitted_machine, fitted_by_chains]
DRIVERS += [fitted_reals, fitted_letters, whitened, annealed_machine]
# Two that are traced soon, of one's own energy and of ours, stand for the others.
FEW = [value, flow]


@pytest.mark.parametrize(
    "driver",
    [
        pytest.param(driver, marks=[] if driver in FEW else pytest.mark.platforms)
        for driver in DRIVERS
    ],
)
def test_every_product_asks_for_full_precision(driver, key):
    ising_args = random_ising(0, 4), as_array(np.eye(4))
    args = (PARAMS, X) if driver in OWN else ising_args
    found = products(driver, key, *args)
    assert found
    assert [line for line in found if not is_full(line)] == []
    if driver in OWN:
        assert any("stablehlo.convolution" in line for line in found)


def test_what_the_user_has_set_is_left_alone(key):
    with jax.default_matmul_precision("default"):
        found = products(value, key, PARAMS, X)
    assert found
    assert not any(map(is_full, found))


def test_the_library_leaves_the_configuration_alone(key):
    before = jax.config.jax_default_matmul_precision
    value(key, PARAMS, X)
    assert jax.config.jax_default_matmul_precision == before
    assert not any(map(is_full, products(jnp.matmul, np.eye(2), np.eye(2))))
