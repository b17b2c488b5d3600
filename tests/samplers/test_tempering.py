from itertools import product
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampler_checks import assert_drawn_from, codes
from small_models import all_states, log_probs_of, matrix_of, random_ising

from probjax import Sampler, exact, ising, samplers
from probjax.connectivity import RandomFlips
from probjax.models.ising import clusters
from probjax.potential import Potential, potential
from probjax.random import split_array
from probjax.recipe import recipe
from probjax.samplers import tempering
from probjax.types import Info

RING = ((0, 1), (1, 2), (2, 3), (0, 3))
INNER = [
    samplers.HeatBath(),
    samplers.Metropolis(RandomFlips(1), num_moves=4),
    samplers.ColourGibbs(samplers.colours(RING, 4)),
    clusters.SwendsenWang(),
]


def name(sampler):
    return type(sampler).__name__


def probabilities(params, betas):
    """p(x) on every rung, `(rung, state)`."""
    scaled = [
        jax.tree.map(lambda leaf, b=b: b * np.asarray(leaf, float), params)
        for b in betas
    ]
    return np.exp([log_probs_of(each) for each in scaled])


def energies(params):
    x = all_states(len(params.bias))
    return np.sum(x @ matrix_of(params) * x, axis=1)


class Where(NamedTuple):
    x: jax.Array


@recipe
class Still(Sampler):
    """Stays, so that a tempered step is its swaps alone."""

    def init(self, key, potential, x):
        return Where(x)

    def step(self, key, potential, state):
        return state, Info(jnp.ones(()))


@recipe
class Perfect(Sampler):
    """Draws anew from the potential, by enumeration."""

    def prepare(self, potential, x):
        return x

    def init(self, key, potential, x):
        return Where(x)

    def step(self, key, potential, state):
        states = exact.states(state.x.size)
        choice = jax.random.categorical(key, -jax.vmap(potential)(states))
        return Where(states[choice]), Info(jnp.ones(()))


def swap_matrix(betas, energy, odd):
    """By the stated chances; joint states count with the first rung's digit first."""
    rungs, count = len(betas), len(energy)
    joint = np.array(list(product(range(count), repeat=rungs)))
    swaps = np.array(list(product([False, True], repeat=rungs - 1)))
    tried = tempering.tried_pairs(rungs, odd)
    chances = jax.jit(jax.vmap(tempering.swap_chances, (None, 0)))(betas, energy[joint])
    chances = np.where(tried, chances, 0)[:, None]
    shares = np.where(swaps, chances, 1 - chances).prod(2)
    orders = np.zeros((len(swaps), rungs), int)
    orders[:] = jax.jit(jax.vmap(tempering.swapped_rungs))(swaps)
    # Neighbouring pairs never swap both, and what has no share leads anywhere.
    orders[shares.max(0) == 0] = 0
    there = joint[:, orders] @ count ** np.arange(rungs)[::-1]
    matrix = np.zeros((len(joint), len(joint)))
    np.add.at(matrix, (np.arange(len(joint))[:, None], there), shares)
    return matrix


LADDERS = {"three": (2, [1.0, 0.7, 0.2]), "four": (1, [1.0, 0.8, 0.5, 0.1])}


@pytest.mark.parametrize("ladder", LADDERS)
def test_swaps_leave_the_product_of_all_rungs_unchanged(ladder, x64, key):
    size, betas = LADDERS[ladder]
    params = random_ising(0, size, 2.0)
    rungs, count = len(betas), 40_000
    together = np.ones(1)
    for p in probabilities(params, betas):
        together = np.kron(together, p)
    sampler = tempering.Tempered(Still(), np.array(betas))
    model = potential(ising.energy, params)
    step = jax.jit(jax.vmap(sampler.step, (0, None, None)))
    # States that differ from rung to rung, the likelier ones first: chances below 1.
    numbers = np.argsort(energies(params))[np.arange(rungs) % 2**size]
    x = all_states(size)[numbers].astype(float)
    for odd in (False, True):
        matrix = swap_matrix(np.array(betas), energies(params), odd)
        np.testing.assert_allclose(matrix.sum(1), 1, rtol=1e-12)
        np.testing.assert_allclose(together @ matrix, together, rtol=1e-12)
        assert np.trace(matrix) < len(matrix)

        state = tempering.TemperedState(x[0], Where(x), np.array(odd))
        after, info = step(split_array(key, count), model, state)
        after = jax.tree.map(np.asarray, after)
        found = codes(after.replicas.x.reshape(count, -1))
        found = np.bincount(found, minlength=len(matrix)) / count
        assert_drawn_from(found, matrix[codes(x.reshape(-1))], count)
        np.testing.assert_array_equal(after.x, after.replicas.x[:, 0])
        tried = np.asarray(info.tried)[0]
        np.testing.assert_array_equal(tried, np.arange(rungs - 1) % 2 == odd)
        assert np.all(after.odd != odd)


@pytest.mark.parametrize("betas", [[1.0], [1.0, 0.6, 0.3, 0.1]], ids=len)
def test_rungs_are_drawn_at_their_temperatures_and_swap_at_the_exact_rates(betas, key):
    params, chains = random_ising(3, 3, 1.5), 4000
    draws = samplers.sample(
        key,
        ising.energy,
        params,
        np.zeros((chains, 3)),
        sampler=tempering.Tempered(Perfect(), betas),
        num_draws=3,
        thin=3,
    )
    draws = jax.tree.map(np.asarray, draws)
    p, energy = probabilities(params, betas), energies(params)
    for rung, exactly in enumerate(p):
        numbers = codes(draws.state.replicas.x[:, rung])
        assert_drawn_from(np.bincount(numbers, minlength=8) / chains, exactly, chains)
    np.testing.assert_array_equal(draws.state.x, draws.x[:, -1])

    falls = -np.diff(betas)[:, None, None]
    chances = np.exp(np.minimum(0, falls * (energy[:, None] - energy)))
    expected = np.einsum("ki,kj,kij->k", p[:-1], p[1:], chances)
    by_chain = draws.info.swap.sum(1) / draws.info.tried.sum(1)
    error = by_chain.std(0) / np.sqrt(chains)
    rates = tempering.swap_rates(draws.info)
    assert rates.shape == (len(betas) - 1,)
    assert np.all(np.abs(np.asarray(rates) - expected) < 5 * error)
    assert np.all((expected > 0.1) & (expected < 0.95) & (error < 0.01))


@pytest.mark.parametrize("inner", INNER[1:], ids=name)
def test_every_sampler_may_be_tempered(inner, key):
    params, chains = random_ising(1, 4, 1.5, edges=RING), 4000
    draws = samplers.sample(
        key,
        ising.energy,
        params,
        np.zeros((chains, 4)),
        sampler=tempering.Tempered(inner, np.array([1.0, 0.5, 0.2])),
        num_draws=1,
        thin=30,
    )
    found = np.bincount(codes(np.asarray(draws.x)[:, 0]), minlength=16) / chains
    assert_drawn_from(found, probabilities(params, [1.0])[0], chains)
    # What a sampler keeps of its state has been swapped with it.
    replicas, model = draws.state.replicas, potential(ising.energy, params)
    fresh = jax.vmap(jax.vmap(lambda x: inner.init(key, model, x)))
    fresh = jax.jit(fresh)(replicas.x)
    chex.assert_trees_all_close(replicas, fresh, atol=1e-4)


@pytest.mark.statistics
def test_tempering_weighs_two_deep_modes_that_a_heat_bath_alone_does_not_leave(key):
    size, chains = 10, 1000
    upper = np.triu(np.random.default_rng(0).normal(0.5, 0.05, (size, size)), 1)
    params = ising.from_fields(upper + upper.T, np.full(size, 0.05), spins=True)
    truth = probabilities(params, [1.0])[0] @ (all_states(size).mean(1) > 0.5)
    assert 0.6 < truth < 0.8

    def run(sampler):
        draws = samplers.sample(
            key,
            ising.energy,
            params,
            np.zeros((chains, size)),
            sampler=sampler,
            num_draws=1,
            thin=200,
        )
        return (np.asarray(draws.x) > 0.5).mean(-1).round().mean(), draws.info

    share, info = run(tempering.Tempered(samplers.HeatBath(), 0.65 ** np.arange(6)))
    assert_drawn_from(share, truth, chains)
    assert np.all(tempering.swap_rates(info) > 0.2)
    assert run(samplers.HeatBath())[0] == 0


def test_ladders_of_one_length_are_one_program_and_may_be_mapped_over(key):
    params, x, traces = random_ising(1, 4), np.zeros(4, np.float32), []

    @jax.jit
    def step(betas, params):
        traces.append(0)
        sampler = tempering.Tempered(Perfect(), betas)
        model = potential(ising.energy, params)
        return sampler.step(key, model, sampler.init(key, model, x))

    ladders = np.array([[1.0, 0.5, 0.2], [1.0, 0.1, 0.05]], np.float32)
    alone = [step(betas, params) for betas in ladders]
    assert len(traces) == 1
    together = jax.vmap(step, (0, None))(ladders, params)
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *alone)
    chex.assert_trees_all_close(together, expected, rtol=1e-5)
    assert not np.allclose(*together[1].swap)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("inner", INNER, ids=name)
def test_a_step_keeps_the_kind_of_its_state(inner, dtype, x64, key):
    params = random_ising(1, 4, edges=RING)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    model = Potential((ising.energy,), (params,), jnp.ones(1, dtype))
    sampler = tempering.Tempered(inner, [1.0, 0.5])
    state = jax.eval_shape(sampler.init, key, model, jnp.zeros(4, dtype))
    after, info = jax.eval_shape(sampler.step, key, model, state)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    assert {leaf.dtype for leaf in jax.tree.leaves(info)} == {jnp.dtype(dtype)}


def test_a_ladder_of_reals_stays_above_zero(key):
    sampler = tempering.Tempered(samplers.HMC(0.1), [1.0, 0.5, 0.0])
    starts, options = np.full((2, 3), 0.5), {"sampler": sampler, "num_draws": 1}
    with pytest.raises(ValueError, match="of bits and letters the last may be 0"):
        samplers.sample(key, _gaussian, 1.0, starts, **options)


def _gaussian(precision, x):
    return precision * x @ x / 2


@pytest.mark.parametrize(
    "betas",
    [[], [0.9, 0.5], [1, 1], [1, 0.5, 0.7], [1, 0, -1], [1, np.nan], 1.0, [[1.0]]],
)
def test_ladders_that_do_not_fall_from_one_are_refused(betas, key):
    sampler = tempering.Tempered(samplers.HeatBath(), betas)
    with pytest.raises(
        ValueError, match="betas must decrease from 1 and stay above 0 .*, got"
    ):
        samplers.sample(
            key,
            ising.energy,
            random_ising(0, 3),
            np.zeros((1, 3)),
            sampler=sampler,
            num_draws=1,
        )
