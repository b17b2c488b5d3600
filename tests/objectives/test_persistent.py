import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import all_states, drawn_from, flat_ising, random_ising

from probjax import (
    HMC,
    Data,
    HeatBath,
    MaximumLikelihood,
    PersistentMPF,
    Sampler,
    Watch,
    experts,
    fit,
    ica,
    ising,
    loss,
    recipe,
)
from probjax.fitting import GradientNorm, charts, uncertainty
from probjax.samplers import Tempered
from probjax.trees import as_array
from probjax.types import Info

SIZE = 3
FEW = all_states(SIZE)[[0, 3, 3, 5]].astype(float)


def begun(objective, key, params, data):
    return _begun(objective, key, params, objective.prepare(params, data))


@jax.jit
def _begun(objective, key, params, data):
    return objective.refresh(key, params, data, objective.init(key, params, data))


@jax.jit
def slopes(params, x):
    """Of the energy at every state."""
    return jax.vmap(jax.grad(ising.energy), (None, 0))(params, x)


@jax.jit
def energies(params, x):
    return jax.vmap(ising.energy, (None, 0))(params, x)


def value(objective, params, data, context):
    rows = jax.vmap(objective.row, (None, 0, 0))(params, data.x, context.rows)
    weights = jnp.ones_like(rows) if data.weights is None else data.weights
    return objective.reduce(rows, weights) + objective.rest(params, context.shared)


value_of = jax.jit(value)
value_and_slope = jax.jit(jax.value_and_grad(value, 1))


def test_at_the_reference_the_flow_is_one_and_its_gradient_half_of_the_difference(
    x64, key
):
    """Log K = 0, and exactly half of dE at the data less dE at the particles."""
    params, x = random_ising(0, SIZE), FEW
    data = Data(x, np.array([1.0, 0.5, 2, 1]))
    objective = PersistentMPF(ising.energy, sampler=HeatBath(), num_particles=7)
    context = begun(objective, key, params, data)
    found, slope = value_and_slope(objective, params, data, context)
    assert abs(float(found)) < 1e-14
    at_data = jax.tree.map(
        lambda leaf: np.average(leaf, 0, data.weights), slopes(params, x)
    )
    at_particles = jax.tree.map(
        lambda leaf: np.asarray(leaf).mean(0), slopes(params, context.shared.x)
    )
    half = jax.tree.map(lambda a, b: (np.asarray(a) - b) / 2, at_data, at_particles)
    chex.assert_trees_all_close(slope, half, atol=1e-14)


def test_away_from_it_the_flow_is_the_product_of_its_two_means(x64, key):
    first, second = random_ising(0, SIZE), random_ising(1, SIZE)
    data = Data(all_states(SIZE)[1:6].astype(float))
    objective = PersistentMPF(ising.energy, sampler=HeatBath(), num_particles=7)
    context = begun(objective, key, first, data)

    def rise(x):
        return np.subtract(energies(second, x), energies(first, x))

    out = np.exp(rise(data.x) / 2).mean()
    back = np.exp(-rise(context.shared.x) / 2).mean()
    found = value_of(objective, second, data, context)
    np.testing.assert_allclose(found, np.log(out * back), rtol=1e-12)
    flat = np.concatenate(jax.tree.leaves(second))

    def at(flat):
        params = ising.Params(flat[:SIZE], flat[SIZE:])
        return float(value_of(objective, params, data, context))

    nudges = 1e-4 * np.eye(len(flat))
    expected = [(at(flat + nudge) - at(flat - nudge)) / 2e-4 for nudge in nudges]
    _, slope = value_and_slope(objective, second, data, context)
    slope = np.concatenate(jax.tree.leaves(slope))
    np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-8)


def test_with_draws_of_the_model_it_is_half_the_likelihood_gradient(key):
    params = random_ising(2, SIZE)
    data = Data(FEW)
    count = 20_000
    sampler = HeatBath()
    objective = PersistentMPF(
        ising.energy, sampler=sampler, num_particles=count, num_moves=20
    )
    context = begun(objective, key, params, data)
    _, slope = value_and_slope(objective, params, data, context)
    exactly = MaximumLikelihood(ising.energy)
    start = exactly.init(key, params, data)
    _, expected = value_and_slope(exactly, params, data, start)
    each = slopes(params, context.shared.x)
    for leaves in zip(*map(jax.tree.leaves, (slope, expected, each)), strict=True):
        mine, theirs, draws = map(np.asarray, leaves)
        error = draws.std(0) / 2 / np.sqrt(count)
        z = (mine - theirs / 2) / error
        assert np.abs(z).max() < 5
        assert np.abs((mine - theirs) / error).max() > 20, "the half is no accident"


TRUTH = random_ising(3, SIZE, scale=0.5)


def behind(params, x, weights):
    """How far the likelihood of rows is below its maximum, by counts of states."""
    numbers = (x @ [4, 2, 1]).astype(int)
    counts = np.bincount(numbers, weights, minlength=2**SIZE)
    data, exactly = Data(all_states(SIZE), counts), MaximumLikelihood(ising.energy)
    key = jax.random.key(0)
    best = fit(key, exactly, flat_ising(SIZE), data)
    return float(loss(key, exactly, params, data)) - float(best.loss)


def test_fits_of_bits_come_to_the_maximum_of_the_likelihood(key):
    x = drawn_from(0, TRUTH, 2000)
    objective = PersistentMPF(ising.energy, sampler=HeatBath(), num_moves=3)
    seen = []
    found = fit(
        key,
        objective,
        flat_ising(SIZE),
        x,
        num_rounds=40,
        steps_per_round=3,
        watch=Watch(lambda progress: seen.append(progress.shared), every=1),
    )
    # Particles are as many as rows: that is the noise of the likelihood itself.
    assert 0 <= behind(found.params, x, np.ones(2000)) < 10 / 2000
    particles = found.context.shared
    assert float(particles.accept) == 1
    assert particles.step_size is None
    assert abs(float(seen[0].ess) - 2000) < 0.1
    assert 1500 < float(particles.ess) < 2000
    assert 3 * 10 < float(particles.age) < 3 * 40


@jax.jit
def some_experts(key):
    return experts.init(key, 4)


@pytest.mark.statistics
def test_a_model_of_continuous_states_comes_close_to_maximum_likelihood(key):
    """Laplace experts, whose log Z is known; a step far too long comes to its size."""
    truth, start = some_experts(key), some_experts(jax.random.key(5))
    noise = np.random.default_rng(0).laplace(size=(2000, 4))
    x = np.linalg.solve(truth.filters, noise.T).T
    chart = charts.Frozen(start, experts.Params(True, False))
    exactly = MaximumLikelihood(experts.laplace, log_z=experts.laplace_log_z)
    best = fit(key, exactly, truth, x, chart=chart, stop=GradientNorm(5e-3))
    found = fit(
        key,
        PersistentMPF(experts.laplace, sampler=HMC(20.0, num_steps=3)),
        start,
        x,
        chart=chart,
        num_rounds=40,
        steps_per_round=10,
    )
    assert float(loss(key, exactly, start, x)) - float(best.loss) > 1
    assert float(loss(key, exactly, found.params, x)) - float(best.loss) < 0.02
    particles = found.context.shared
    assert particles.x.shape == (2000, 4)
    assert 0.7 < float(particles.accept) < 0.9
    assert 0.1 < float(particles.step_size) < 2


def test_batches_and_weights_serve_as_well(key):
    """With rows counted twice by weight, and a first-order method on batches."""
    x = drawn_from(0, TRUTH, 2000)
    data = Data(x, np.where(x[:, 0] > 0, 2.0, 1.0))
    found = fit(
        key,
        PersistentMPF(
            ising.energy, sampler=HeatBath(), num_particles=1000, num_moves=1
        ),
        flat_ising(SIZE),
        data,
        optimizer=optax.adam(optax.cosine_decay_schedule(0.05, 200)),
        batch_size=500,
        num_rounds=200,
        steps_per_round=1,
    )
    assert behind(found.params, x, data.weights) < 0.01


def test_particles_tell_how_they_do(key):
    """Effective number and age by hand, for a model that changes between rounds."""
    first, second = (random_ising(seed, SIZE) for seed in (0, 1))
    data = Data(FEW)
    objective = PersistentMPF(
        ising.energy, sampler=HeatBath(), num_particles=50, num_moves=4
    )
    before = begun(objective, key, first, data)
    old = before.shared
    refresh = jax.jit(objective.refresh)
    new = refresh(key, second, data, before).shared
    at_old = [energies(params, old.x) for params in (first, second)]
    np.testing.assert_allclose(old.reference, at_old[0], rtol=1e-5)
    weights = np.exp(np.subtract(*at_old))
    ess = weights.sum() ** 2 / (weights**2).sum()
    assert 1 < ess < 45
    np.testing.assert_allclose(new.ess, ess, rtol=1e-4)
    np.testing.assert_allclose(new.age, 4 * ess / 50 + 4, rtol=1e-4)
    assert "50 particles effective" in new.describe()
    assert "fewer steps_per_round" in new._replace(ess=3.0).describe()
    reference = np.append(np.inf, np.asarray(old.reference)[1:])
    lost = old._replace(reference=as_array(reference))
    again = refresh(key, first, data, before._replace(shared=lost))
    np.testing.assert_allclose(again.shared.ess, 49, rtol=1e-4)
    assert np.isfinite(again.shared.age)


class Walk(NamedTuple):
    x: jax.Array


@recipe
class RandomWalk(Sampler):
    """A sampler with a step size that tells no more than `Info` has."""

    step_size: float

    @property
    def target_acceptance(self):
        return 0.4

    def init(self, key, potential, x):
        return Walk(x)

    def step(self, key, potential, state):
        walk_key, key = jax.random.split(key)
        there = state.x + self.step_size * jax.random.normal(walk_key, state.x.shape)
        fall = potential(state.x) - potential(there)
        accept = jax.random.uniform(key) < jnp.exp(jnp.minimum(fall, 0))
        return Walk(jnp.where(accept, there, state.x)), Info(accept.astype(float))


def test_any_sampler_with_a_target_acceptance_is_adapted(key):
    x = np.random.default_rng(0).normal(size=(500, 2))
    objective = PersistentMPF(experts.laplace, sampler=RandomWalk(50.0), num_moves=60)
    params = experts.Params(as_array([[1.0, 0.4], [-0.3, 0.8]]), as_array(np.ones(2)))
    shared = begun(objective, key, params, Data(x)).shared
    assert 0.3 < float(shared.step_size) < 10
    fixed = dataclasses.replace(objective, adapt=False)
    assert begun(fixed, key, params, Data(x)).shared.step_size is None


def test_what_particles_cannot_do_is_refused(key):
    x = np.random.default_rng(0).normal(size=(5, 3))
    singular = ica.Params(as_array(np.ones((3, 3))))
    with pytest.raises(ValueError, match="no partition function"):
        fit(key, PersistentMPF(ica.energy, sampler=HMC(0.1)), singular, x)
    params, bits = random_ising(0, SIZE), all_states(SIZE)
    hot = Tempered(HeatBath(), as_array([1.0, 0.5]))
    with pytest.raises(ValueError, match="resumable, got Tempered"):
        fit(key, PersistentMPF(ising.energy, sampler=hot), params, bits)
    objective = PersistentMPF(ising.energy, sampler=HeatBath())
    found = fit(key, objective, params, bits, num_rounds=2, steps_per_round=1)
    with pytest.raises(ValueError, match="a loss value, .* got PersistentMPF"):
        uncertainty(objective, found, bits)


def test_bad_knobs_are_refused():
    with pytest.raises(ValueError, match="num_moves must be .* of at least 1, got 0"):
        PersistentMPF(ising.energy, sampler=HeatBath(), num_moves=0)
    with pytest.raises(ValueError, match="num_particles must be .* got 0"):
        PersistentMPF(ising.energy, sampler=HeatBath(), num_particles=0)
    with pytest.raises(ValueError, match="target must be between 0 and 1, got 2.0"):
        PersistentMPF(ising.energy, sampler=HeatBath(), target=2.0)
