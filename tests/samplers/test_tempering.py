from itertools import product
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import random_ising

from probjax import Potential, RandomFlips, exact, ising, potential, samplers
from probjax.samplers import cluster, tempering
from probjax.types import Info, recipe

RING = ((0, 1), (1, 2), (2, 3), (0, 3))
INNER = [
    samplers.HeatBath(),
    samplers.Metropolis(RandomFlips(1), num_moves=4),
    samplers.ColourGibbs(samplers.colours(RING, 4)),
    cluster.SwendsenWang(),
]


def name(sampler):
    return type(sampler).__name__


def codes(states):
    """The numbers of states, in the order of `exact.states`."""
    return (states @ 2.0 ** jnp.arange(states.shape[-1])[::-1]).astype(int)


def probabilities(params, betas):
    """p(x) on every rung, `(rung, state)`."""
    scaled = [jax.tree.map(lambda leaf, b=b: b * leaf, params) for b in betas]
    size = len(params.bias)
    return np.exp([exact.log_probs(ising.energy, each, size) for each in scaled])


def energies(params):
    states = exact.states(len(params.bias))
    return np.asarray(jax.vmap(ising.energy, (None, 0))(params, states))


def assert_drawn_from(found, expected, count):
    error = np.sqrt(expected * (1 - expected) / count) + 1e-9
    assert np.all(np.abs(found - expected) < 5 * error)


class Where(NamedTuple):
    x: jax.Array


@recipe
class Still:
    """Stays, so that a tempered step is its swaps alone."""

    def init(self, key, potential, x):
        return Where(x)

    def step(self, key, potential, state):
        return state, Info(jnp.ones(()))


@recipe
class Perfect:
    """Draws anew from the potential, by enumeration."""

    def prepare(self, x):
        return x

    def init(self, key, potential, x):
        return Where(x)

    def step(self, key, potential, state):
        states = exact.states(state.x.size)
        choice = jax.random.categorical(key, -jax.vmap(potential)(states))
        return Where(states[choice]), Info(jnp.ones(()))


def swap_matrix(betas, energy, odd):
    """Over joint numbers, the first rung the most significant; by the stated chances."""
    rungs, count = len(betas), len(energy)
    joint = list(product(range(count), repeat=rungs))
    matrix = np.zeros((len(joint), len(joint)))
    tried = np.asarray(tempering.tried_pairs(rungs, odd))
    for row, numbers in zip(matrix, joint, strict=True):
        chances = tempering.swap_chances(jnp.array(betas), energy[jnp.array(numbers)])
        chances = np.where(tried, chances, 0)
        for swaps in product([False, True], repeat=rungs - 1):
            share = np.prod(np.where(swaps, chances, 1 - chances))
            if share > 0:
                there = np.array(numbers)[tempering.swapped(jnp.array(swaps))]
                row[joint.index(tuple(there))] += share
    return matrix


LADDERS = {"three": (2, [1.0, 0.7, 0.2]), "four": (1, [1.0, 0.8, 0.5, 0.1])}


@pytest.mark.parametrize("ladder", LADDERS)
def test_swaps_leave_the_product_of_all_rungs_unchanged(ladder, x64, key):
    size, betas = LADDERS[ladder]
    params = jax.tree.map(lambda leaf: leaf.astype(float), random_ising(0, size, 2.0))
    rungs, count = len(betas), 40_000
    together = np.ones(1)
    for p in probabilities(params, betas):
        together = np.kron(together, p)
    # The first of these joint states has every rung's state worse than the next one's.
    order = np.argsort(-energies(params))
    starts = [order[np.arange(rungs) % len(order)], order[[0] * (rungs - 1) + [1]]]
    sampler = tempering.Tempered(Still(), jnp.array(betas))
    model = potential(ising.energy, params)
    step = jax.jit(jax.vmap(sampler.step, (0, None, None)))
    for odd in (False, True):
        matrix = swap_matrix(betas, jnp.array(energies(params)), odd)
        np.testing.assert_allclose(matrix.sum(1), 1, rtol=1e-12)
        np.testing.assert_allclose(together @ matrix, together, rtol=1e-12)
        assert np.trace(matrix) < len(matrix)
        for numbers in starts:
            x = exact.states(size)[numbers]
            state = tempering.TemperedState(x[0], Where(x), jnp.array(odd))
            after, info = step(jax.random.split(key, count), model, state)
            joint = codes(after.replicas.x.reshape(count, -1))
            found = np.bincount(joint, minlength=len(matrix)) / count
            row = codes(x.reshape(-1))
            assert_drawn_from(found, matrix[row], count)
            np.testing.assert_array_equal(after.x, after.replicas.x[:, 0])
            assert np.all(after.odd != odd)
            np.testing.assert_array_equal(
                info.tried[0], np.arange(rungs - 1) % 2 == odd
            )


def test_rungs_are_drawn_at_their_temperatures_and_swap_at_the_exact_rates(key):
    params, betas = random_ising(3, 3, 1.5), np.array([1.0, 0.6, 0.3, 0.1])
    p, energy = probabilities(params, betas), energies(params)
    chances = np.exp(
        np.minimum(
            0, (energy[:, None] - energy) * (betas[:-1] - betas[1:])[:, None, None]
        )
    )
    expected = np.einsum("ki,kj,kij->k", p[:-1], p[1:], chances)
    chains = 4000
    draws = samplers.sample(
        key,
        ising.energy,
        params,
        jnp.zeros((chains, 3)),
        sampler=tempering.Tempered(Perfect(), betas),
        num_draws=3,
        thin=3,
    )
    rates = tempering.swap_rates(draws.info)
    by_chain = draws.info.swap.sum(1) / draws.info.tried.sum(1)
    error = by_chain.std(0) / np.sqrt(chains)
    assert np.all(np.abs(rates - expected) < 5 * error)
    assert np.all(error < 0.01)
    assert expected.max() < 0.95
    for rung, exactly in enumerate(p):
        numbers = codes(draws.state.replicas.x[:, rung])
        assert_drawn_from(np.bincount(numbers, minlength=8) / chains, exactly, chains)
    np.testing.assert_array_equal(draws.state.x, draws.x[:, -1])


@pytest.mark.parametrize("inner", INNER, ids=name)
def test_every_sampler_may_be_tempered(inner, key):
    params, chains = random_ising(1, 4, 1.5, edges=RING), 10_000
    draws = samplers.sample(
        key,
        ising.energy,
        params,
        jnp.zeros((chains, 4)),
        sampler=tempering.Tempered(inner, jnp.array([1.0, 0.5, 0.2])),
        num_draws=1,
        num_warmup=59,
    )
    found = np.bincount(codes(draws.x[:, 0]), minlength=16) / chains
    assert_drawn_from(found, probabilities(params, [1.0])[0], chains)
    cold = inner.init(key, potential(ising.energy, params), jnp.zeros(4))
    chex.assert_trees_all_equal_dtypes(draws.state.replicas, cold)


def in_the_upper_mode(x):
    return jnp.where(x.mean() > 0.5, 1.0, 0.0)


def test_tempering_weighs_two_deep_modes_that_a_heat_bath_alone_does_not_leave(key):
    size = 10
    coupling = 0.4 + 0.05 * jax.random.normal(key, (size, size))
    coupling = jnp.triu(coupling, 1) + jnp.triu(coupling, 1).T
    params = ising.from_spins(coupling, jnp.full(size, 0.05))
    truth = exact.expectation(ising.energy, in_the_upper_mode, params, size)
    assert 0.6 < truth < 0.8

    def run(sampler):
        return samplers.sample_mean(
            key,
            ising.energy,
            params,
            jnp.zeros((100, size)),
            statistic=in_the_upper_mode,
            sampler=sampler,
            num_draws=1000,
            num_warmup=300,
        )

    found = run(tempering.Tempered(samplers.HeatBath(), 0.7 ** jnp.arange(6)))
    assert abs(found.mean - truth) < 5 * found.stderr
    assert found.stderr < 0.03
    assert np.all(tempering.swap_rates(found.info) > 0.2)
    assert run(samplers.HeatBath()).mean == 0


@pytest.mark.parametrize("betas", [[1.0], jnp.ones(1)])
def test_a_ladder_of_one_rung_is_the_sampler_within(betas, key):
    params, count = random_ising(0, 3), 40_000
    model, x = potential(ising.energy, params), jnp.array([0.0, 1.0, 1.0])
    inner = samplers.HeatBath()
    sweep = np.eye(8)[codes(x)]
    for site in range(3):
        sweep = sweep @ site_matrix(inner.conditional(model), site)
    draws = samplers.sample(
        key,
        ising.energy,
        params,
        jnp.broadcast_to(x, (count, 3)),
        sampler=tempering.Tempered(inner, betas),
        num_draws=1,
    )
    found = np.bincount(codes(draws.x[:, 0]), minlength=8) / count
    assert_drawn_from(found, sweep, count)
    assert tempering.swap_rates(draws.info).shape == (0,)


def site_matrix(conditional, site):
    states = exact.states(3)
    matrix = np.zeros((8, 8))
    for letter, chance in enumerate(jax.vmap(conditional, (0, None))(states, site).T):
        matrix[np.arange(8), codes(states.at[:, site].set(letter))] = chance
    return matrix


def test_ladders_of_one_length_are_one_program_and_may_be_mapped_over(key):
    params = random_ising(1, 4, edges=RING)
    x = jnp.zeros(4)
    traces = []

    @jax.jit
    def run(sampler, params):
        traces.append(0)
        model = potential(ising.energy, params)
        state, _ = sampler.step(key, model, sampler.init(key, model, x))
        return sampler.step(key, model, state)

    ladders = jnp.array([[1.0, 0.5, 0.2], [1.0, 0.9, 0.1]])
    alone = [run(tempering.Tempered(INNER[1], betas), params) for betas in ladders]
    assert len(traces) == 1
    both = jax.vmap(lambda b: run(tempering.Tempered(INNER[1], b), params))(ladders)
    expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    chex.assert_trees_all_close(both, expected, rtol=1e-6)
    assert not np.allclose(alone[0][1].swap, alone[1][1].swap)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_step_keeps_the_kind_of_its_state(dtype, x64, key):
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), random_ising(1, 4))
    model = Potential((ising.energy,), (params,), jnp.ones(1, dtype))
    sampler = tempering.Tempered(INNER[1], [1.0, 0.5])
    state = sampler.init(key, model, jnp.zeros(4, dtype))
    after, info = sampler.step(key, model, state)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    assert {leaf.dtype for leaf in jax.tree.leaves(info)} == {jnp.dtype(dtype)}


@pytest.mark.parametrize(
    "betas", [[], [0.9, 0.5], [1, 1], [1, 0.5, 0.7], [1, 0], [1, np.nan], 1.0, [[1.0]]]
)
def test_ladders_that_do_not_fall_from_one_are_refused(betas, key):
    sampler = tempering.Tempered(samplers.HeatBath(), betas)
    with pytest.raises(
        ValueError, match="betas must fall from 1 and stay above 0, got"
    ):
        samplers.sample(
            key,
            ising.energy,
            random_ising(0, 3),
            jnp.zeros((1, 3)),
            sampler=sampler,
            num_draws=1,
        )
