import jax
import jax.numpy as jnp
import numpy as np
import pytest
from annealing_models import GAUSSIAN, PARAMS, crooked, crooked_log_z

from probjax import HMC
from probjax.annealing import (
    Geometric,
    Pilot,
    Straight,
    ais,
    linear,
    sigmoid,
    towards_one,
)
from probjax.annealing.schedule import check_betas
from probjax.bases import Exponential, Gaussian
from probjax.samplers import Bounds


@pytest.mark.statistics
@pytest.mark.parametrize("path", [Geometric(), Straight((jnp.ones(()), jnp.zeros(())))])
def test_runs_with_a_pilot_find_log_z(path, key):
    found = ais(
        key,
        crooked,
        PARAMS,
        GAUSSIAN,
        sampler=HMC(5.0),
        num_particles=500,
        num_steps=400,
        path=path,
    )
    assert abs(found.log_z - crooked_log_z(PARAMS)) < 5 * found.stderr < 0.3
    assert float(np.nanmin(found.accept)) > 0.8
    assert found.schedule.betas[0] == 0
    assert found.schedule.betas[-1] == 1
    assert np.all(np.diff(found.schedule.betas) >= 0)


def test_bounds_hold_all_the_way(key):
    """exp(-x) above 0, whose integral is 1."""
    found = ais(
        key,
        slope,
        1.0,
        Exponential(1, 3.0),
        sampler=HMC(0.5, bounds=Bounds(0.0)),
        num_particles=2000,
        num_steps=200,
    )
    assert found.x.min() >= 0
    assert abs(found.log_z) < 5 * found.stderr < 0.05


def slope(params, x):
    return params * x[0]


def test_new_parameters_bases_and_knobs_compile_nothing_anew():
    traces = []

    def energy(params, x):
        traces.append(1)
        return params * jnp.sum(x**4)

    for seed in range(3):
        ais(
            jax.random.key(seed),
            energy,
            1.0 + seed,
            Gaussian(2, scale=1.0 + seed),
            sampler=HMC(0.1 + 0.1 * seed),
            num_particles=10,
            num_steps=20,
        )
        if seed == 0:
            count = len(traces)
    # One more each, which looks at the shape of what the energy returns.
    assert len(traces) <= count + 2


@pytest.mark.parametrize("schedule", [linear, sigmoid, towards_one])
def test_schedules_rise_from_0_to_1(schedule):
    for count in (1, 2, 7, 1000):
        betas = check_betas(schedule(count))
        assert len(betas) == count + 1


def test_a_target_that_is_no_share_is_refused():
    with pytest.raises(ValueError, match="target must be between 0 and 1, got 1.0"):
        Pilot(target=1.0)
