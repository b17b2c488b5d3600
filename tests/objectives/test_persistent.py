import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from small_models import random_ising

from probjax import (
    HMC,
    Data,
    GradientNorm,
    HeatBath,
    MaximumLikelihood,
    PersistentMPF,
    Sampler,
    Watch,
    charts,
    exact,
    experts,
    fit,
    ica,
    ising,
    loss,
    recipe,
    uncertainty,
)
from probjax.samplers import Tempered
from probjax.types import Info

SIZE = 3


def begun(objective, key, params, data):
    return _begun(objective, key, params, objective.prepare(params, data))


@jax.jit
def _begun(objective, key, params, data):
    return objective.refresh(key, params, data, objective.init(key, params, data))


@jax.jit
def value(objective, params, data, context):
    rows = jax.vmap(objective.row, (None, 0, 0))(params, data.x, context.rows)
    weights = jnp.ones_like(rows) if data.weights is None else data.weights
    return objective.reduce(rows, weights) + objective.rest(params, context.shared)


def test_at_the_reference_the_flow_is_one_and_its_gradient_half_of_the_difference(
    x64, key
):
    """Log K = 0, and exactly half of dE at the data less dE at the particles."""
    params = jax.tree.map(lambda leaf: leaf.astype(float), random_ising(0, SIZE))
    x = exact.states(SIZE)[jnp.array([0, 3, 3, 5])].astype(float)
    data = Data(x, jnp.array([1.0, 0.5, 2, 1]))
    objective = PersistentMPF(ising.energy, sampler=HeatBath(), num_particles=7)
    context = begun(objective, key, params, data)
    found, slope = jax.value_and_grad(value, 1)(objective, params, data, context)
    assert abs(found) < 1e-14
    each = jax.vmap(jax.grad(ising.energy), (None, 0))
    at_data = jax.tree.map(
        lambda leaf: jnp.average(leaf, 0, data.weights), each(params, x)
    )
    at_particles = jax.tree.map(
        lambda leaf: leaf.mean(0), each(params, context.shared.x)
    )
    half = jax.tree.map(lambda a, b: (a - b) / 2, at_data, at_particles)
    chex.assert_trees_all_close(slope, half, atol=1e-14)


def test_away_from_it_the_flow_is_the_product_of_its_two_means(x64, key):
    first, second = (
        jax.tree.map(lambda leaf: leaf.astype(float), random_ising(seed, SIZE))
        for seed in (0, 1)
    )
    data = Data(exact.states(SIZE)[1:6].astype(float))
    objective = PersistentMPF(ising.energy, sampler=HeatBath(), num_particles=9)
    context = begun(objective, key, first, data)

    def rise(x):
        return ising.energy(second, x) - ising.energy(first, x)

    out = np.exp(jax.vmap(rise)(data.x) / 2).mean()
    back = np.exp(-jax.vmap(rise)(context.shared.x) / 2).mean()
    found = value(objective, second, data, context)
    np.testing.assert_allclose(found, np.log(out * back), rtol=1e-12)
    flat, unravel = ravel_pytree(second)
    chex.assert_numerical_grads(
        lambda flat: value(objective, unravel(flat), data, context), (flat,), order=1
    )


def test_with_draws_of_the_model_it_is_half_the_likelihood_gradient(key):
    params = random_ising(2, SIZE)
    data = Data(exact.states(SIZE)[jnp.array([0, 3, 3, 5])])
    count = 20_000
    sampler = HeatBath()
    objective = PersistentMPF(
        ising.energy, sampler=sampler, num_particles=count, num_moves=20
    )
    context = begun(objective, key, params, data)
    slope = jax.grad(value, 1)(objective, params, data, context)
    exactly = MaximumLikelihood(ising.energy)
    expected = jax.grad(
        lambda p: value(exactly, p, data, exactly.init(key, params, data))
    )(params)
    each = jax.vmap(jax.grad(ising.energy), (None, 0))(params, context.shared.x)
    for mine, theirs, draws in zip(
        *map(jax.tree.leaves, (slope, expected, each)), strict=True
    ):
        error = draws.std(0) / 2 / np.sqrt(count)
        z = (mine - theirs / 2) / error
        assert jnp.abs(z).max() < 5
        assert jnp.abs((mine - theirs) / error).max() > 20, "the half is no accident"


def test_fits_of_bits_come_to_the_maximum_of_the_likelihood(key):
    truth = random_ising(3, SIZE, scale=0.5)
    x = exact.sample(key, ising.energy, truth, SIZE, num_draws=4000)
    best = fit(key, MaximumLikelihood(ising.energy), ising.init(key, SIZE), x)
    objective = PersistentMPF(ising.energy, sampler=HeatBath(), num_moves=3)
    seen = []
    found = fit(
        key,
        objective,
        ising.init(key, SIZE),
        x,
        num_rounds=40,
        steps_per_round=3,
        watch=Watch(lambda progress: seen.append(progress.shared), every=1),
    )
    behind = loss(key, MaximumLikelihood(ising.energy), found.params, x) - best.loss
    # Particles are as many as rows: that is the noise of the likelihood itself.
    assert 0 <= behind < 10 / 4000
    particles = found.context.shared
    assert particles.accept == 1
    assert particles.step_size is None
    assert abs(seen[0].ess - 4000) < 0.1
    assert 3000 < particles.ess < 4000
    assert 3 * 10 < particles.age < 3 * 40


def test_a_model_of_continuous_states_comes_close_to_maximum_likelihood(key):
    """Laplace experts, whose log Z is known; a step far too long comes to its size."""
    truth = experts.init(key, 4)
    x = experts.sample_laplace(key, truth, num_draws=2000)
    start = experts.init(jax.random.key(5), 4)
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
    assert loss(key, exactly, start, x) - best.loss > 1
    assert loss(key, exactly, found.params, x) - best.loss < 0.02
    particles = found.context.shared
    assert particles.x.shape == (2000, 4)
    assert 0.7 < particles.accept < 0.9
    assert 0.1 < particles.step_size < 2


def test_batches_and_weights_serve_as_well(key):
    """With rows counted twice by weight, and a first-order method on batches."""
    truth = random_ising(3, SIZE, scale=0.5)
    x = exact.sample(key, ising.energy, truth, SIZE, num_draws=2000)
    data = Data(x, jnp.where(x[:, 0] > 0, 2.0, 1.0))
    best = fit(key, MaximumLikelihood(ising.energy), ising.init(key, SIZE), data)
    found = fit(
        key,
        PersistentMPF(
            ising.energy, sampler=HeatBath(), num_particles=1000, num_moves=1
        ),
        ising.init(key, SIZE),
        data,
        optimizer=optax.adam(optax.cosine_decay_schedule(0.05, 600)),
        batch_size=500,
        num_rounds=600,
        steps_per_round=1,
    )
    exactly = MaximumLikelihood(ising.energy)
    assert loss(key, exactly, found.params, data) - best.loss < 0.01


def test_particles_tell_how_they_do(key):
    """Effective number and age by hand, for a model that changes between rounds."""
    first, second = (random_ising(seed, SIZE) for seed in (0, 1))
    data = Data(exact.states(SIZE)[jnp.array([0, 3, 3, 5])])
    objective = PersistentMPF(
        ising.energy, sampler=HeatBath(), num_particles=50, num_moves=4
    )
    before = begun(objective, key, first, data)
    old = before.shared
    new = jax.jit(objective.refresh)(key, second, data, before).shared
    energies = [jax.vmap(ising.energy, (None, 0))(p, old.x) for p in (first, second)]
    np.testing.assert_allclose(old.reference, energies[0], rtol=1e-5)
    weights = np.exp(np.subtract(*energies))
    ess = weights.sum() ** 2 / (weights**2).sum()
    assert 1 < ess < 45
    np.testing.assert_allclose(new.ess, ess, rtol=1e-4)
    np.testing.assert_allclose(new.age, 4 * ess / 50 + 4, rtol=1e-4)
    assert "50 particles effective" in new.describe()
    assert "fewer steps_per_round" in new._replace(ess=3.0).describe()
    lost = old._replace(reference=old.reference.at[0].set(jnp.inf))
    again = jax.jit(objective.refresh)(key, first, data, before._replace(shared=lost))
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
    x = jax.random.normal(key, (500, 2))
    objective = PersistentMPF(experts.laplace, sampler=RandomWalk(50.0), num_moves=60)
    shared = begun(objective, key, experts.init(key, 2), Data(x)).shared
    assert 0.3 < shared.step_size < 10
    fixed = dataclasses.replace(objective, adapt=False)
    assert begun(fixed, key, experts.init(key, 2), Data(x)).shared.step_size is None


def test_what_particles_cannot_do_is_refused(key):
    x = jax.random.normal(key, (5, 3))
    singular = ica.Params(jnp.ones((3, 3)))
    with pytest.raises(ValueError, match="no partition function"):
        fit(key, PersistentMPF(ica.energy, sampler=HMC(0.1)), singular, x)
    params, bits = random_ising(0, SIZE), exact.states(SIZE)
    hot = Tempered(HeatBath(), jnp.array([1.0, 0.5]))
    with pytest.raises(ValueError, match="Tempered keeps replicas"):
        fit(key, PersistentMPF(ising.energy, sampler=hot), params, bits)
    objective = PersistentMPF(ising.energy, sampler=HeatBath())
    found = fit(key, objective, params, bits, num_rounds=2, steps_per_round=1)
    with pytest.raises(ValueError, match="PersistentMPF is no loss that is minimised"):
        uncertainty(objective, found, bits)


def test_bad_knobs_are_refused():
    with pytest.raises(ValueError, match="num_moves must be .* of at least 1, got 0"):
        PersistentMPF(ising.energy, sampler=HeatBath(), num_moves=0)
    with pytest.raises(ValueError, match="num_particles must be .* got 0"):
        PersistentMPF(ising.energy, sampler=HeatBath(), num_particles=0)
    with pytest.raises(ValueError, match="target must be between 0 and 1, got 2.0"):
        PersistentMPF(ising.energy, sampler=HeatBath(), target=2.0)
