from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sampler_checks import assert_drawn_from, codes, frequencies
from small_models import (
    all_states,
    cubic_energy,
    cubic_params,
    drawn_from,
    flat_ising,
    log_probs_of,
    plain_energy,
    random_ising,
)

from probjax import (
    MaximumLikelihood,
    PersistentDivergence,
    PersistentMPF,
    ais,
    bases,
    exact,
    fit,
    ising,
    loss,
    potts,
    rbm,
    sample,
    sample_mean,
    samplers,
    sandwich,
)
from probjax.potential import Potential, closed_form, potential
from probjax.samplers import DiscreteLangevin, GibbsWithGradients
from probjax.samplers.adaptation import move_chains
from probjax.states import one_hot
from probjax.trees import as_array

METRIC = (0.5, 1.0, 1.7)
SAMPLERS = {
    "one change": GibbsWithGradients(),
    "one change, barker": GibbsWithGradients(balance=samplers.barker),
    "all sites": DiscreteLangevin(0.6, balance=samplers.square_root),
    "all sites, barker": DiscreteLangevin(1.0),
    "all sites, metric": DiscreteLangevin(0.6, metric=as_array(METRIC)),
    "one letter": GibbsWithGradients(3),
    "one letter, barker": GibbsWithGradients(3, balance=samplers.barker),
    "all letters": DiscreteLangevin(0.6, num_states=3, balance=samplers.square_root),
    "all letters, metric": DiscreteLangevin(0.6, num_states=3, metric=as_array(METRIC)),
}
every_sampler = pytest.mark.parametrize("name", SAMPLERS)
every_two = pytest.mark.parametrize(
    "sampler", [GibbsWithGradients(), DiscreteLangevin(0.5)], ids=["one", "all"]
)
SIZE = 3


def cubic(scale=0.5):
    return jax.tree.map(lambda leaf: scale * np.asarray(leaf), cubic_params(0, SIZE))


def gaps_of(sampler, params, states):
    """Gaps by definition, (state, site, letter), and the energies of all states."""
    evaluated = jax.jit(jax.vmap(jax.value_and_grad(cubic_energy, 1), (None, 0)))
    energies, slopes = map(np.asarray, evaluated(params, states.astype(float)))
    letters = np.arange(sampler.num_states)
    if sampler.num_states == 2:
        change = states[:, :, None] - letters[None, None]
        return slopes[:, :, None] * change, energies
    gaps = np.zeros((*states.shape, len(letters)))
    for site in range(SIZE):
        for letter in letters:
            there = states.copy()
            there[:, site] = letter
            gaps[:, site, letter] = energies - energies[codes(there, len(letters))]
    return gaps, energies


def proposals_of(sampler, params, states):
    """Matrix of proposal probabilities by definition, and the model."""
    gaps, energies = gaps_of(sampler, params, states)
    ratio = np.exp(gaps)
    is_barker = sampler.balance is samplers.barker
    weights = ratio / (1 + ratio) if is_barker else np.sqrt(ratio)
    different = states[:, :, None] != np.arange(sampler.num_states)[None, None]
    p = np.exp(-energies)
    matrix = np.ones((len(states), len(states)))
    if isinstance(sampler, GibbsWithGradients):
        weights = weights * different
        weights /= weights.sum((1, 2), keepdims=True)
        for i, x in enumerate(states):
            for j, y in enumerate(states):
                moved = np.flatnonzero(x != y)
                matrix[i, j] = weights[i, moved[0], y[moved[0]]] if len(moved) else 0
                matrix[i, j] *= len(moved) == 1
        return matrix, p / p.sum()
    factor = sampler.step_size * np.ones(SIZE)
    if sampler.metric is not None:
        factor = factor * np.asarray(sampler.metric)
    weights = weights * np.where(different, factor[None, :, None], 1)
    weights /= weights.sum(2, keepdims=True)
    for j, y in enumerate(states):
        matrix[:, j] = weights[:, np.arange(SIZE), y].prod(1)
    return matrix, p / p.sum()


@partial(jax.jit, static_argnums=2)
def stepped(sampler, params, count, states):
    """Steps of all states, `(state, try)`: where they lead, and their reports."""
    model = potential(cubic_energy, params)

    def one(key, x):
        state, info = sampler.step(key, model, sampler.init(key, model, x))
        return state.x, info

    keys = jax.random.split(jax.random.key(3), (len(states), count))
    return jax.vmap(jax.vmap(one, (0, None)))(keys, states)


def observed(sampler, params, states, count=6000):
    """Acceptance probabilities of pairs of states; NaN where no step led."""
    x, info = stepped(sampler, params, count, states.astype(float))
    there, chance = codes(np.asarray(x), sampler.num_states), np.asarray(info.chance)
    found = np.full((len(states), len(states)), np.nan)
    here = np.broadcast_to(np.arange(len(states))[:, None], there.shape)
    moved = there != here
    found[here[moved], there[moved]] = chance[moved]
    return found


@every_sampler
def test_steps_are_reversible(name, x64):
    """Flows between states are equal, with proposals by their definition."""
    sampler, params = SAMPLERS[name], jax.tree.map(as_array, cubic(0.2))
    states = all_states(SIZE, sampler.num_states)
    proposals, p = proposals_of(sampler, params, states)
    np.testing.assert_allclose(
        proposals.sum(1), 1, rtol=1e-6, err_msg="not probabilities"
    )
    chance = observed(sampler, params, states)
    flow = p[:, None] * proposals * chance
    both = np.isfinite(flow + flow.T)
    # What was never seen is rare.
    rare = p[:, None] * np.where(both | (np.eye(len(states)) == 1), 0, proposals)
    assert rare.sum() < 0.02
    assert np.nanmin(chance) < 0.9
    np.testing.assert_allclose(flow[both], flow.T[both], rtol=1e-6)


@every_sampler
def test_a_step_draws_from_its_proposals(name):
    sampler, params = SAMPLERS[name], cubic()
    states = all_states(SIZE, sampler.num_states)
    proposals, p = proposals_of(sampler, params, states)
    odds = p[None] * proposals.T / np.maximum(p[:, None] * proposals, 1e-30)
    matrix = proposals * np.minimum(1, odds)
    np.fill_diagonal(matrix, 0)
    matrix += np.diag(1 - matrix.sum(1))
    np.testing.assert_allclose(p @ matrix, p, rtol=1e-4)
    for number in (1, 5):
        found = frequencies(
            sampler,
            cubic_energy,
            jax.tree.map(as_array, params),
            states[number],
            num_states=sampler.num_states,
        )
        assert_drawn_from(found, matrix[number])


def test_closed_forms_replace_gradients():
    """Half of the energy through them, half by gradients, which are exact here."""
    params = random_ising(0, 4)
    args = (params, random_ising(1, 4))
    both = Potential((ising.energy, plain_energy), args, as_array([0.5, 0.5]))
    x = as_array(np.array([0.0, 1.0, 1.0, 0.0]))
    found = jax.jit(GibbsWithGradients().init)(jax.random.key(0), both, x)
    exact_gaps = jax.jit(both.flip_gaps)(x)
    slopes = np.asarray(jax.grad(plain_energy, 1)(args[1], x)) * (2 * np.asarray(x) - 1)
    assert np.abs(slopes - exact_gaps).max() > 0.1
    closed = potential(ising.energy, params)
    np.testing.assert_allclose(found.gaps[0], jax.jit(closed.flip_gaps)(x), rtol=1e-5)
    np.testing.assert_allclose(found.gaps[1], slopes, rtol=1e-5)
    np.testing.assert_allclose(found.terms, both.terms(x), rtol=1e-5)


def of_one_hot(params, hot):
    return jnp.sum(jnp.tanh(params @ hot.ravel()) ** 2)


def one_hot_proposals(params, x):
    return samplers.one_hot_gaps(of_one_hot, params, x, 3)


@closed_form(proposal_gaps=one_hot_proposals)
def hot_energy(params, x):
    return of_one_hot(params, one_hot(x, 3))


@pytest.mark.parametrize("name", ["one letter", "all letters"])
def test_gradients_of_one_hot_states_are_proposals_of_letters(name, key):
    """A declared form is used, and the chain stays exact though it is inexact."""
    params = 1.5 * np.random.default_rng(0).normal(size=(4, 9))
    states = all_states(SIZE, 3).astype(float)
    model = potential(hot_energy, as_array(params))
    start = jax.jit(SAMPLERS[name].init)(key, model, as_array(states[5]))
    exact_gaps = jax.jit(partial(model.site_gaps, num_states=3))(as_array(states[5]))
    assert np.abs(start.gaps[0] - exact_gaps).max() > 0.1
    draws = sample(
        key,
        hot_energy,
        as_array(params),
        np.zeros((200, SIZE)),
        sampler=SAMPLERS[name],
        num_draws=500,
        num_warmup=50,
    )
    numbers = codes(np.asarray(draws.x).reshape(-1, SIZE), 3)
    found = np.bincount(numbers, minlength=27) / len(numbers)
    energies = np.asarray(jax.vmap(hot_energy, (None, 0))(params, states))
    p = np.exp(-energies) / np.exp(-energies).sum()
    np.testing.assert_allclose(found, p, atol=0.01)


def test_machines_propose_by_gradients(key):
    """Their closed form of flips costs several times as much."""
    params = rbm.init(key, 5, 3, scale=1.0)
    x = as_array(np.array([0.0, 1.0, 1.0, 0.0, 1.0]))
    found = jax.jit(DiscreteLangevin(0.5).init)(key, potential(rbm.energy, params), x)
    slopes = (2 * x - 1) * jax.grad(rbm.energy, 1)(params, x)
    np.testing.assert_allclose(found.gaps[0], slopes, rtol=1e-5)


def counting(log, params, x):
    jax.debug.callback(log.append, x.sum())
    return params @ x + jnp.sum(x) ** 2


@pytest.mark.parametrize(
    ("sampler", "num_moves"),
    [(GibbsWithGradients(num_moves=3), 3), (DiscreteLangevin(0.5), 1)],
)
def test_a_proposal_costs_one_value_and_gradient(sampler, num_moves, key):
    log = []
    model = potential(partial(counting, log), as_array(np.ones(3)))
    state = sampler.init(key, model, as_array(np.zeros(3)))
    jax.effects_barrier()
    assert len(log) == 1
    sampler.step(key, model, state)
    jax.effects_barrier()
    assert len(log) == 1 + num_moves


@pytest.mark.parametrize("name", ["all sites", "one change", "all letters"])
def test_caches_are_those_of_the_state_at_any_weight(name, key):
    """Also after the weights of the potential have changed, as in annealing."""
    sampler = SAMPLERS[name]
    args = jax.tree.map(as_array, (cubic(), cubic(0.2)))
    energies = (cubic_energy, cubic_energy)

    @jax.jit
    def moved(keys, x):
        state = sampler.init(keys[0], Potential(energies, args, jnp.ones(2)), x)

        def step(state, key):
            weights = jax.random.normal(jax.random.fold_in(key, 1), (2,))
            return sampler.step(key, Potential(energies, args, weights), state)

        state, info = jax.lax.scan(step, state, keys)
        model = Potential(energies, args, jnp.zeros(2))
        return state, sampler.init(keys[0], model, state.x), info

    x = as_array(np.zeros(SIZE))
    found, again, info = moved(jax.random.split(key, 20), x)
    assert 0 < info.accept.mean() <= 1
    for leaf, other in zip(found, again, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-5, atol=1e-6)


def close(found, log_z):
    return abs(float(found.log_z) - log_z) < 4 * float(found.stderr)


@pytest.mark.parametrize("name", ["one change", "all sites", "all sites, barker"])
def test_annealing_estimates_log_z_of_bits(name, key):
    params = random_ising(0, 6, scale=0.7)
    log_z = -log_probs_of(params)[0]
    # An energy without closed forms, whose gaps are of first order and inexact.
    args = key, plain_energy, params, bases.Bernoulli(6, 0.4)
    run = dict(sampler=SAMPLERS[name], num_particles=500, num_steps=100)
    found = ais(*args, **run)
    assert found.stderr < 0.1
    assert close(found, log_z)


def test_annealing_is_unbiased_for_few_distributions(key):
    """Caches are combined at the new weights, or Z would be biased."""
    params = random_ising(0, 4)
    log_z = -log_probs_of(params)[0]
    for sampler in (GibbsWithGradients(), DiscreteLangevin(0.5)):
        found = ais(
            key,
            plain_energy,
            params,
            bases.Bernoulli(4),
            sampler=sampler,
            num_particles=100_000,
            num_steps=3,
            pilot=None,
        )
        assert found.stderr < 0.02
        assert close(found, log_z)


def test_annealing_estimates_log_z_of_letters(key):
    params = potts.init(key, 3, 3)
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: as_array(generator.normal(size=np.shape(leaf))), params
    )
    log_z = float(exact.log_z(potts.energy, params, 3, num_states=3))
    for name in ("one letter", "all letters"):
        args = key, potts.energy, params, bases.Categorical(3, 3)
        found = ais(*args, sampler=SAMPLERS[name], num_particles=500, num_steps=100)
        assert found.stderr < 0.1
        assert close(found, log_z)


def test_a_sandwich_and_tempering_work(key):
    params = random_ising(0, 4)
    log_z = -log_probs_of(params)[0]
    args, starts = (key, plain_energy, params), np.zeros((64, 4))
    sampler = DiscreteLangevin(0.5)
    tempered = samplers.Tempered(sampler, as_array(0.5 ** np.arange(3)))
    draws = sample(*args, starts, sampler=tempered, num_draws=200, num_warmup=50)
    truth = np.exp(log_probs_of(params)) @ all_states(4)
    np.testing.assert_allclose(np.asarray(draws.x).mean((0, 1)), truth, atol=0.03)
    rows = np.asarray(draws.x)[:, -1]
    both = sandwich(*args, bases.Bernoulli(4), rows, sampler=sampler, num_steps=50)
    assert both.lower - 0.1 < log_z < both.upper + 0.1


def network(params, x):
    return params[1] @ jnp.tanh(params[0] @ x)


def wide_network(size=40, seed=0):
    generator = np.random.default_rng(seed)
    weight = 2 * generator.normal(size=(30, size)) / np.sqrt(size)
    return as_array(weight), as_array(2 * generator.normal(size=30))


@pytest.mark.parametrize("step_size", [1e-4, 1.0])
def test_tuning_reaches_the_acceptance(step_size, key):
    params, x = wide_network(), np.zeros((20, 40))
    sampler = DiscreteLangevin(step_size)
    found = samplers.tune(key, network, params, x, sampler=sampler)
    assert abs(found.accept - 0.574) < 0.05
    assert sampler.metrics == ()
    draws = sample(key, network, params, found.x, sampler=found.sampler, num_draws=300)
    assert abs(draws.info.accept.mean() - 0.574) < 0.05


def test_a_step_size_is_not_adapted_beyond_1(key):
    """Flat models accept everything, at which a step size would grow forever."""
    sampler, x = DiscreteLangevin(0.1), np.zeros((10, 4))
    args = key, plain_energy, flat_ising(4)
    found = samplers.tune(*args, x, sampler=sampler, num_steps=320)
    assert found.accept == 1
    assert 0.9 < found.sampler.step_size <= 1
    run = dict(sampler=sampler, num_steps=50, num_particles=100)
    annealed = ais(*args, bases.Bernoulli(4), **run)
    np.testing.assert_allclose(annealed.schedule.log_step, 0, atol=1e-6)
    moved = move_chains(
        *args, x, sampler=sampler, num_steps=100, step_size=jnp.asarray(0.1)
    )
    np.testing.assert_allclose(moved.step_size, 1)


@pytest.mark.statistics
@pytest.mark.parametrize(
    "sampler", [GibbsWithGradients(num_moves=4), DiscreteLangevin(0.5)]
)
def test_fits_come_to_the_maximum_of_the_likelihood(sampler, key):
    truth = random_ising(3, SIZE, scale=0.5)
    x = drawn_from(0, truth, 2000)
    exactly = MaximumLikelihood(plain_energy)
    best = fit(key, exactly, flat_ising(SIZE), x)
    for objective in (
        PersistentMPF(plain_energy, sampler=sampler, num_moves=5),
        PersistentDivergence(plain_energy, sampler, 2000, num_moves=2),
    ):
        found = fit(
            key,
            objective,
            flat_ising(SIZE),
            x,
            optimizer=optax.adam(optax.cosine_decay_schedule(0.05, 200)),
            num_rounds=200,
            steps_per_round=1,
        )
        behind = loss(key, exactly, found.params, x) - best.loss
        assert 0 <= float(behind) < 0.01
    # With the closed form of flips, and with no more than a gradient.
    for energy in (ising.energy, plain_energy):
        objective = MaximumLikelihood(energy, sampler=sampler, num_chains=500)
        found = fit(key, objective, flat_ising(SIZE), x)
        assert float(loss(key, exactly, found.params, x) - best.loss) < 0.01


def test_the_mean_gap_needs_a_closed_form():
    params = random_ising(0, 4)
    x = as_array(np.array([0.0, 1.0, 1.0, 0.0]))
    for sampler in (GibbsWithGradients(), DiscreteLangevin(0.5)):
        assert sampler.mean_gap(potential(plain_energy, params), x) is None
        model = potential(ising.energy, params)
        expected = samplers.HeatBath().mean_gap(model, x)
        np.testing.assert_allclose(sampler.mean_gap(model, x), expected)


def rooted(params, x):
    return jnp.linalg.norm(params * x)


def barred(params, x):
    return jnp.where(x[0] > 0.5, jnp.inf, params @ x)


def test_bad_starts_are_refused(key):
    args, starts = (key, rooted, np.ones(2)), np.zeros((3, 2))
    for sampler in (GibbsWithGradients(), DiscreteLangevin(0.5)):
        options = dict(sampler=sampler, num_draws=1)
        with pytest.raises(ValueError, match="the gaps of the energy are finite"):
            sample(*args, starts, **options)
        with pytest.raises(ValueError, match="must start at a finite energy"):
            sample(key, barred, np.ones(2), starts + 1, **options)
        with pytest.raises(ValueError, match="states of bits must be 0 or 1"):
            sample(*args, starts + 2, **options)
        letters = replace(sampler, num_states=3)
        with pytest.raises(ValueError, match="letters must be 0 to 2"):
            sample(*args, starts + 3, sampler=letters, num_draws=1)


@every_two
def test_excluded_states_are_rejected(sampler, key):
    """A state of infinite energy, whose gradient is not a number."""
    draws = sample(
        key,
        barred,
        as_array([1.0, 0.5]),
        np.zeros((20, 2)),
        sampler=sampler,
        num_draws=100,
    )
    x = np.asarray(draws.x)
    assert x[..., 0].max() == 0
    assert 0.2 < x[..., 1].mean() < 0.6


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="step_size must be at most 1, got 1.5"):
        DiscreteLangevin(1.5)
    with pytest.raises(ValueError, match="step_size must be positive and finite"):
        DiscreteLangevin(0.0)
    with pytest.raises(ValueError, match="num_moves must be .* at least 1, got 0"):
        GibbsWithGradients(num_moves=0)
    for sampler in (GibbsWithGradients, partial(DiscreteLangevin, 0.5)):
        with pytest.raises(ValueError, match="num_states must be .* at least 2"):
            sampler(num_states=1)
        with pytest.raises(ValueError, match="balance must be a function, got 'sqrt'"):
            sampler(balance="sqrt")
    model, x = potential(plain_energy, random_ising(0, 4)), np.zeros((2, 4))
    with pytest.raises(ValueError, match="metric must have one factor for each of 4"):
        DiscreteLangevin(0.5, metric=np.ones(3)).prepare(model, x)
    with pytest.raises(ValueError, match="metric must be positive and finite"):
        DiscreteLangevin(0.5, metric=np.zeros(4)).prepare(model, x)


@every_two
def test_sample_mean_agrees_with_the_model(sampler, key):
    params = random_ising(0, 4)
    truth = np.exp(log_probs_of(params)) @ all_states(4)
    means = sample_mean(
        key,
        plain_energy,
        params,
        np.zeros((50, 4)),
        statistic=identity,
        sampler=sampler,
        num_draws=500,
        num_warmup=50,
    )
    z = (np.asarray(means.mean) - truth) / np.asarray(means.stderr)
    assert np.abs(z).max() < 4


def identity(x):
    return x
