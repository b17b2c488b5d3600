"""Probability of modes far from the data."""

import jax.numpy as jnp
import numpy as np
import pytest
from small_models import all_states

from probjax import HeatBath, check_fit
from probjax.fitting.check_modes import LEAST_STATES, FarModes, far_modes
from probjax.fitting.check_statistics import are_far
from probjax.trees import as_array

SIZE, ROWS, FULL = 10, 2000, 8
IMPROBABLE, PROBABLE = 15.0, 23.0


def energy(depth, x):
    """Rare units, and a mode in which at least `FULL` of them are active."""
    count = jnp.sum(x)
    return 3 * count - depth * (count >= FULL)


def states_of(depth):
    """Rows of the mode near silence, and the log odds of states far from them."""
    states = all_states(SIZE)
    counts = states.sum(1)
    p = np.exp(-3 * counts + depth * (counts >= FULL))
    silent = np.where(counts < FULL, p, 0)
    random = np.random.default_rng(0)
    rows = states[random.choice(len(p), ROWS, p=silent / silent.sum())]
    rows = rows.astype(np.float32)
    far = are_far(states, rows, np.ones(ROWS))
    return rows, np.log(p[far].sum() / p[~far].sum())


@pytest.mark.parametrize("depth", [IMPROBABLE, PROBABLE])
def test_odds_are_those_of_all_states(depth, key):
    params = as_array(depth)
    rows, log_odds = states_of(float(params))
    starts = np.random.default_rng(1).integers(0, 2, (2000, SIZE)).astype(np.float32)
    sample = rows, np.ones(ROWS)
    args = key, energy, params, HeatBath(), starts, sample
    found = far_modes(*args, num_steps=200)
    assert abs(found.log_odds - log_odds) < 4 * found.stderr
    assert found.stderr < 0.2
    assert found.is_probable == (log_odds > 0)


def test_a_probable_mode_that_chains_do_not_reach_fails(key):
    params = as_array(PROBABLE)
    rows, log_odds = states_of(float(params))
    assert log_odds > 1
    found = check_fit(key, energy, params, rows, num_chains=100, num_steps=400)
    assert not found.passed
    assert (
        "a mode far from all rows, with a probability of about 0.9" in found.describe()
    )


def test_an_improbable_mode_passes(key):
    params = as_array(IMPROBABLE)
    rows, log_odds = states_of(float(params))
    assert log_odds < np.log(0.01)
    found = check_fit(key, energy, params, rows, num_chains=100, num_steps=400)
    assert found.passed, found


def test_few_states_on_one_side_determine_nothing():
    nan = float("nan")
    few = FarModes(nan, nan, num_far=LEAST_STATES - 1, num_states=100)
    assert "too few" in few.describe()
    assert not few.is_probable
    every = FarModes(nan, nan, num_far=100, num_states=100)
    assert every.describe() == "whose probability is not known"
