from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sampler_checks import site_matrix
from small_models import random_ising

from probjax import (
    ContrastiveDivergence,
    Data,
    MaximumLikelihood,
    PersistentDivergence,
    exact,
    fit,
    ising,
    potential,
)
from probjax.samplers import HeatBath

SIZE = 3
SGD = optax.sgd(0.3)


def sweep_matrix(params):
    model = potential(ising.energy, params)
    sites = [site_matrix(HeatBath(), model, site, SIZE, 2) for site in range(SIZE)]
    return np.linalg.multi_dot(sites)


@pytest.mark.parametrize("num_moves", [1, 3])
def test_the_expected_update_is_that_of_its_definition(num_moves, key):
    """dE at the data less dE where k sweeps lead, over all states they lead to."""
    params, copies = random_ising(0, SIZE), 20_000
    data = jnp.repeat(exact.states(SIZE)[jnp.array([1, 6])], copies, axis=0)
    objective = ContrastiveDivergence(ising.energy, HeatBath(), num_moves)
    prepared = objective.prepare(params, Data(data))
    context = objective.refresh(
        key, params, prepared, objective.init(key, params, prepared)
    )
    slope = jax.jit(jax.vmap(jax.grad(objective.row), (None, 0, 0)))
    found = slope(params, data, context.rows)
    there = np.linalg.matrix_power(sweep_matrix(params), num_moves)
    of_state = jax.vmap(jax.grad(ising.energy), (None, 0))(params, exact.states(SIZE))
    for part, all_states in zip(
        jax.tree.leaves(found), jax.tree.leaves(of_state), strict=True
    ):
        expected = (all_states - there @ all_states)[np.array([1, 6])].mean(0)
        error = part.reshape(2, copies, -1).std(1).mean(0) / np.sqrt(2 * copies)
        assert jnp.all(jnp.abs(part.mean(0) - expected) < 5 * error + 1e-6)


def test_the_truth_is_a_fixed_point_of_contrastive_divergence(x64):
    """Under exact weights the sweeps lead nowhere new: the expected update is zero."""
    params = jax.tree.map(lambda leaf: leaf.astype(float), random_ising(1, SIZE))
    p = np.exp(exact.log_probs(ising.energy, params, SIZE))
    of_state = jax.vmap(jax.grad(ising.energy), (None, 0))(params, exact.states(SIZE))
    for leaf in jax.tree.leaves(of_state):
        np.testing.assert_allclose(
            p @ (leaf - sweep_matrix(params) @ leaf), 0, atol=1e-12
        )


def test_particles_persist_and_give_the_likelihood_gradient(key):
    """With many particles the gradient is that of the exact likelihood."""
    params = random_ising(2, SIZE)
    data = exact.states(SIZE)[jnp.array([0, 3, 3, 5])]
    particles = 20_000
    objective = PersistentDivergence(ising.energy, HeatBath(), particles, num_moves=20)
    context = objective.init(key, params, Data(data))
    assert {tuple(x) for x in np.asarray(context.shared.x)} == {
        tuple(x) for x in np.asarray(data)
    }
    context = objective.refresh(key, params, Data(data), context)

    def loss(params):
        rows = jax.vmap(objective.row, (None, 0, None))(params, data, ())
        return rows.mean() + objective.rest(params, context.shared)

    exactly = MaximumLikelihood(ising.energy)
    found = jax.grad(loss)(params)
    space = exactly.init(key, params, Data(data)).shared
    expected = jax.grad(
        lambda p: (
            jax.vmap(ising.energy, (None, 0))(p, data).mean() + exactly.rest(p, space)
        )
    )(params)
    for mine, theirs in zip(
        jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=5 * 2 * 0.5 / np.sqrt(particles))


@pytest.mark.parametrize("name", ["contrastive", "persistent"])
def test_fits_come_close_to_the_truth(name, key):
    truth = random_ising(3, SIZE, scale=0.5)
    x = exact.sample(key, ising.energy, truth, SIZE, num_draws=4000)
    make = {
        "contrastive": partial(ContrastiveDivergence, num_moves=2),
        "persistent": partial(PersistentDivergence, num_particles=1000),
    }[name]
    found = fit(
        key,
        make(ising.energy, HeatBath()),
        ising.init(key, SIZE),
        x,
        optimizer=SGD,
        num_rounds=400,
        steps_per_round=1,
    )
    log_p = exact.log_probs(ising.energy, truth, SIZE)
    learned = exact.log_probs(ising.energy, found.params, SIZE)
    assert exact.kl(log_p, learned) < 0.01


def test_counts_of_none_are_refused():
    with pytest.raises(ValueError, match="num_moves must be .* of at least 1, got 0"):
        ContrastiveDivergence(ising.energy, HeatBath(), 0)
    with pytest.raises(
        ValueError, match="num_particles must be .* of at least 1, got 0"
    ):
        PersistentDivergence(ising.energy, HeatBath(), 0)
