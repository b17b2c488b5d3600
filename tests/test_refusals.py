"""Arguments of the wrong kind are refused in one sentence."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from probjax import (
    HMC,
    L2,
    MPF,
    Bernoulli,
    Gaussian,
    HeatBath,
    PersistentMPF,
    ais,
    fit,
    ising,
    log_likelihood,
    sample,
)

KEY = jax.random.key(0)
PARAMS = ising.from_matrix(np.zeros((3, 3)))
BITS = np.eye(3)


def fitting(key=KEY, objective=MPF(ising.energy), **options):
    return lambda: fit(key, objective, PARAMS, BITS, **options)


def sampling(key=KEY, x=BITS, sampler=HeatBath()):
    return lambda: sample(key, ising.energy, PARAMS, x, sampler=sampler, num_draws=1)


def annealing(key=KEY, base=Bernoulli(3), sampler=HeatBath()):
    options = dict(sampler=sampler, num_particles=2, num_steps=2)
    return lambda: ais(key, ising.energy, PARAMS, base, **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            fitting(objective=ising.energy),
            r"objective must inherit .* MPF\(energy\) does",
        ),
        (fitting(objective=MPF), r"objective must inherit .* got <function MPF"),
        (fitting(penalty=0.1), r"penalty must inherit .* L2\(1e-4\) does, got 0.1"),
        (fitting(penalty=L2), r"penalty must inherit .* got the class L2"),
        (fitting(optimizer="adam"), r"optax optimizer, got 'adam'; try optax.adam"),
        (fitting(optimizer=optax.adam), "optax optimizer, got <function"),
        (
            fitting(objective=PersistentMPF(ising.energy, sampler=HeatBath())),
            "PersistentMPF needs many rounds: .* try num_rounds=50",
        ),
        (fitting(key=0), r"key must be a random key, got 0; try jax.random.key\(0\)"),
        (sampling(key=np.random.default_rng(0)), r"key must be a random key, got"),
        (sampling(sampler=HeatBath), "HMC.0.1. does, got the class HeatBath"),
        (sampling(x=BITS + 0.5), "not whole; .* and HMC to sample"),
        (sampling(x=BITS.astype(int), sampler=HMC(0.1)), "x of int.*; try .* HeatBath"),
        (annealing(key=1), r"key must be a random key, got 1; try jax.random.key\(0\)"),
        (
            annealing(base=Gaussian),
            "base must inherit .* got the class Gaussian",
        ),
        (annealing(sampler=HMC), "got the class HMC"),
        (
            lambda: log_likelihood(ising.energy, PARAMS, jnp.asarray(BITS), 2.0),
            r"annealed must be the result of ais\(...\) or sandwich\(...\), got 2.0",
        ),
    ],
)
def test_what_stands_in_the_wrong_place_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
