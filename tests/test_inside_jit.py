"""Drivers inside of `jit`, with arguments that are traced or known, agree."""

from functools import partial

import chex
import jax
import numpy as np
import pytest
from small_models import drawn_from, random_ising

from probjax import (
    MPF,
    Bernoulli,
    HeatBath,
    ais,
    fit,
    ising,
    loss,
    sample,
    sample_mean,
    sandwich,
)

KEY = jax.random.key(3)
PARAMS = random_ising(0, 4, scale=0.5)
ROWS = drawn_from(1, PARAMS, 64)
BASE = Bernoulli(4)
SWEEP = dict(sampler=HeatBath())


def mean(x):
    return x.mean()


CALLS = {
    "fit": lambda key, params: (
        fit(key, MPF(ising.energy), params, ROWS, steps_per_round=9).params
    ),
    "loss": lambda key, params: loss(key, MPF(ising.energy), params, ROWS),
    "sample": lambda key, params: (
        sample(key, ising.energy, params, ROWS[:4], num_draws=5, thin=2, **SWEEP).x
    ),
    "sample_mean": lambda key, params: (
        sample_mean(
            key, ising.energy, params, ROWS[:4], statistic=mean, num_draws=5, **SWEEP
        ).mean
    ),
    "ais": lambda key, params: (
        ais(
            key, ising.energy, params, BASE, num_particles=100, num_steps=9, **SWEEP
        ).log_z
    ),
    "sandwich": lambda key, params: (
        sandwich(key, ising.energy, params, BASE, ROWS, num_steps=9, **SWEEP).upper
    ),
}


@pytest.mark.filterwarnings("ignore:fit has not converged")
@pytest.mark.parametrize("name", CALLS)
def test_drivers_agree_with_themselves_inside_of_jit(name):
    call = CALLS[name]
    outside = jax.tree.map(np.asarray, call(KEY, PARAMS))
    traced = jax.jit(call)(KEY, PARAMS)
    known = jax.jit(partial(call, KEY, PARAMS))()
    for inside in (traced, known):
        chex.assert_trees_all_equal_shapes(inside, outside)
        chex.assert_trees_all_close(inside, outside, rtol=1e-4, atol=1e-5)
