"""Runs in several threads or processes give the numbers of a single one."""

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from small_models import flat_of, random_ising

from probjax import L2, MPF, Bernoulli, HeatBath, ais, fit, ising, sample

BITS = np.random.default_rng(0).binomial(1, 0.4, (40, 4))
DRIVERS = {
    "fit": lambda key, energy, params: fit(
        key, MPF(energy), params, BITS, penalty=L2(0.1)
    ),
    "sample": lambda key, energy, params: sample(
        key, energy, params, BITS[:4], sampler=HeatBath(), num_draws=5
    ),
    "ais": lambda key, energy, params: ais(
        *(key, energy, params, Bernoulli(4)),
        **{"sampler": HeatBath(), "num_particles": 8, "num_steps": 4, "pilot": None},
    ),
}


def numbers(seed, wide=False, energy=ising.energy):
    """What each driver finds, the first of them by the seed."""
    names = sorted(DRIVERS)
    with jax.enable_x64(wide):
        params = random_ising(seed, 4)
        found = {
            name: DRIVERS[name](jax.random.key(seed), energy, params)
            for name in names[seed % 3 :] + names[: seed % 3]
        }
        assert params.bias.dtype == (np.float64 if wide else np.float32)
        return {name: flat_of(found[name]) for name in names}


def assert_equal(found, expected):
    for name in DRIVERS:
        assert found[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(found[name], expected[name])


def test_four_threads_find_what_one_finds():
    """All start at once, with an energy for which nothing is compiled yet.

    Precision is a setting of each thread, and must not leak into the others.
    """
    barrier, wide = threading.Barrier(4), [False, True, False, True]

    def energy(params, x):
        return ising.energy(params, x)

    def run(seed):
        barrier.wait(60)
        return numbers(seed, wide[seed], energy)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, range(4)))
    for seed in range(4):
        assert_equal(found[seed], numbers(seed, wide[seed], energy))
    assert not np.array_equal(found[0]["fit"], found[2]["fit"])


@pytest.mark.platforms
def test_two_processes_find_what_one_finds():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(numbers, range(4), chunksize=2)
    for seed in range(4):
        assert_equal(found[seed], numbers(seed))
