"""Explorers of a sampled likelihood: weights, replaced chains, and modes found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import all_states, matrix_of, random_ising

from probjax import (
    HMC,
    HeatBath,
    MaximumLikelihood,
    PersistentDivergence,
    fit,
    ising,
)
from probjax.models import population, sums
from probjax.objectives.explorers import (
    CYCLE,
    Explorers,
    move_explorers,
    replace_chains,
    start_explorers,
)
from probjax.trees import as_array

SIZE, GROUPS = 5, 4


def chains(count):
    return PersistentDivergence(ising.energy, HeatBath(), num_particles=count)


@jax.jit
def cycle(key, first, last, explorers):
    """Move explorers through a cycle in which the parameters change half way."""

    def move(step, explorers):
        late = step >= CYCLE // 2
        params = jax.tree.map(lambda a, b: jnp.where(late, b, a), first, last)
        step_key = jax.random.fold_in(key, step)
        return move_explorers(step_key, chains(1), params, explorers)

    return jax.lax.fori_loop(0, CYCLE, move, explorers)


def test_weights_have_the_mean_z_also_if_parameters_change(key):
    first, last = (random_ising(seed, SIZE, scale=1.5) for seed in (1, 2))
    objective, x = chains(20_000), jnp.zeros((1, SIZE))
    started = start_explorers(key, objective, first, x, num_groups=1)
    found = cycle(key, first, last, started)
    weights = np.exp(np.asarray(found.log_weight, float))
    states = all_states(SIZE)
    p = np.exp(-np.sum(states @ matrix_of(last) * states, axis=1))
    error = weights.std() / np.sqrt(len(weights))
    assert abs(weights.mean() - p.mean()) < 4 * error
    assert error < 0.05 * p.mean()
    mean = weights @ np.asarray(found.x, float) / weights.sum()
    np.testing.assert_allclose(mean, p @ states / p.sum(), atol=0.05)


def test_explorers_replace_chains_of_their_group_by_weight(key):
    # Two explorers in each of four groups; one of the two has all the weight.
    number = jnp.arange(8.0)
    explorers = Explorers(
        x=number[:, None],
        energy=10 * number,
        log_weight=jnp.where(number % 2 == 0, 0.0, -jnp.inf),
        step=jnp.asarray(CYCLE),
        num_cycles=jnp.asarray(1),
    )
    own = -jnp.ones((20, 1)), -jnp.ones(20)
    args = key, chains(20), explorers, own
    started, (x, energy) = replace_chains(*args, num_groups=GROUPS)
    groups = np.asarray(x).reshape(GROUPS, 5)
    # The second cycle replaces the third and the fourth chain.
    for group, states in enumerate(groups):
        assert states.tolist() == [-1, -1, 2 * group, 2 * group, -1]
    np.testing.assert_array_equal(energy[x[:, 0] >= 0], 10 * x[x >= 0])
    assert (int(started.step), int(started.num_cycles)) == (0, 2)
    assert set(np.unique(started.x)) <= {0.0, 1.0}


def test_real_numbers_and_few_chains_have_no_explorers(key):
    params, x = random_ising(0, SIZE), jnp.zeros((1, SIZE))
    assert start_explorers(key, chains(9), params, x, num_groups=1) is None
    moved = PersistentDivergence(ising.energy, HMC(0.1), num_particles=100)
    assert start_explorers(key, moved, params, x, num_groups=1) is None


UNITS, LAST, ROWS = 12, 8, 4000
K_PAIRWISE = sums.add(ising.energy, population.energy)


def far_probability(params):
    """Probability that at least `LAST` units are active."""
    states = all_states(UNITS)
    counts = states.sum(1).astype(int)
    table = np.asarray(population.potential(params[1], UNITS), float)
    minus = -np.sum(states @ matrix_of(params[0]) * states, axis=1) - table[counts]
    p = np.exp(minus - np.logaddexp.reduce(minus))
    return p[counts >= LAST].sum()


@pytest.mark.filterwarnings("ignore:.*never occur")
def test_a_mode_far_from_the_data_is_found_and_removed(key):
    # Rare, independent units. In a mode of the start, all units are active, and chains
    # from the data do not reach it.
    random = np.random.default_rng(0)
    x = (random.random((ROWS, UNITS)) < 0.03).astype(np.float32)
    bias = np.log(0.97 / 0.03) * np.eye(UNITS)
    values = np.zeros(LAST, np.float32)
    values[-1] = -60
    start = ising.from_matrix(bias), population.Params(as_array(values), 1)
    objective = MaximumLikelihood(K_PAIRWISE, sampler=HeatBath())
    assert far_probability(start) > 0.999
    found = fit(key, objective, start, x)
    assert far_probability(found.params) < 2 / ROWS
