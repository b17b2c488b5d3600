from functools import partial

import jax
import numpy as np
import optax
import pytest
from small_models import all_states, drawn_from, flat_ising, log_probs_of, random_ising

from probjax import (
    ContrastiveDivergence,
    Data,
    MaximumLikelihood,
    PersistentDivergence,
    fit,
    ising,
)
from probjax.potential import potential
from probjax.samplers import HeatBath

SIZE = 3
SGD = optax.sgd(0.3)


@jax.jit
def slopes(params):
    """Of the energy at every state."""
    states = all_states(SIZE).astype(float)
    return jax.vmap(jax.grad(ising.energy), (None, 0))(params, states)


@jax.jit
def conditionals(params):
    """Chances of the two letters of each site at every state, as the sampler has it."""
    chances = HeatBath().conditional(potential(ising.energy, params))
    states = all_states(SIZE).astype(float)
    return [jax.vmap(chances, (0, None))(states, site) for site in range(SIZE)]


def sweep_matrix(params):
    states, sites = all_states(SIZE), []
    for site, chances in enumerate(conditionals(params)):
        matrix = np.zeros((len(states), len(states)))
        for letter in range(2):
            there = states.copy()
            there[:, site] = letter
            places = np.arange(len(states)), there @ [4, 2, 1]
            matrix[places] = np.asarray(chances)[:, letter]
        sites.append(matrix)
    return np.linalg.multi_dot(sites)


@pytest.mark.parametrize("num_moves", [1, 3])
def test_the_expected_update_is_that_of_its_definition(num_moves, key):
    """dE at the data less dE where k sweeps lead, over all states they lead to."""
    params, copies = random_ising(0, SIZE), 5000
    data = np.repeat(all_states(SIZE)[[1, 6]], copies, axis=0).astype(float)
    objective = ContrastiveDivergence(ising.energy, HeatBath(), num_moves)

    @jax.jit
    def slope(params, data):
        data = objective.prepare(params, data)
        context = objective.init(key, params, data)
        context = objective.refresh(key, params, data, context)
        slope = jax.vmap(jax.grad(objective.row), (None, 0, 0))
        return slope(params, data.x, context.rows)

    found = slope(params, Data(data))
    there = np.linalg.matrix_power(sweep_matrix(params), num_moves)
    for leaves in zip(*map(jax.tree.leaves, (found, slopes(params))), strict=True):
        part, at_states = map(np.asarray, leaves)
        expected = (at_states - there @ at_states)[[1, 6]].mean(0)
        error = part.reshape(2, copies, -1).std(1).mean(0) / np.sqrt(2 * copies)
        assert np.all(np.abs(part.mean(0) - expected) < 5 * error + 1e-6)


def test_the_truth_is_a_fixed_point_of_contrastive_divergence(x64):
    """Under exact weights the sweeps lead nowhere new: the expected update is zero."""
    params = random_ising(1, SIZE)
    p, there = np.exp(log_probs_of(params)), sweep_matrix(params)
    for leaf in map(np.asarray, jax.tree.leaves(slopes(params))):
        np.testing.assert_allclose(p @ (leaf - there @ leaf), 0, atol=1e-12)


def test_particles_persist_and_give_the_likelihood_gradient(key):
    """With many particles the gradient is that of the exact likelihood."""
    params = random_ising(2, SIZE)
    data = all_states(SIZE)[[0, 3, 3, 5]].astype(np.float32)
    particles = 20_000
    objective = PersistentDivergence(ising.energy, HeatBath(), particles, num_moves=20)
    first = jax.jit(objective.init)(key, params, Data(data))
    begun = {tuple(x) for x in np.asarray(first.shared.x)}
    assert begun == {tuple(x) for x in data}
    context = jax.jit(objective.refresh)(key, params, Data(data), first)

    @jax.jit
    @jax.grad
    def slope(params):
        rows = jax.vmap(objective.row, (None, 0, None))(params, data, ())
        return rows.mean() + objective.rest(params, context.shared)

    exactly = MaximumLikelihood(ising.energy)

    @jax.jit
    @jax.grad
    def exact_slope(params):
        space = exactly.init(key, params, Data(data)).shared
        energies = jax.vmap(ising.energy, (None, 0))(params, data)
        return energies.mean() + exactly.rest(params, space)

    found, expected = slope(params), exact_slope(params)
    for mine, theirs in zip(
        jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=5 * 2 * 0.5 / np.sqrt(particles))


@pytest.mark.statistics
@pytest.mark.parametrize("name", ["contrastive", "persistent"])
def test_fits_come_close_to_the_truth(name, key):
    truth = random_ising(3, SIZE, scale=0.5)
    x = drawn_from(0, truth, 4000)
    make = {
        "contrastive": partial(ContrastiveDivergence, num_moves=2),
        "persistent": partial(PersistentDivergence, num_particles=1000),
    }[name]
    found = fit(
        key,
        make(ising.energy, HeatBath()),
        flat_ising(SIZE),
        x,
        optimizer=SGD,
        num_rounds=400,
        steps_per_round=1,
    )
    log_p, learned = log_probs_of(truth), log_probs_of(found.params)
    assert np.exp(log_p) @ (log_p - learned) < 0.01


def test_counts_of_none_are_refused():
    with pytest.raises(ValueError, match="num_moves must be .* of at least 1, got 0"):
        ContrastiveDivergence(ising.energy, HeatBath(), 0)
    with pytest.raises(
        ValueError, match="num_particles must be .* of at least 1, got 0"
    ):
        PersistentDivergence(ising.energy, HeatBath(), 0)
