from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampler_checks import assert_drawn_from, codes, frequencies
from small_models import (
    all_states,
    cubic_energy,
    cubic_params,
    log_probs_of,
    random_ising,
)

from probjax import ising, samplers
from probjax.connectivity import (
    AllFlips,
    BitFlips,
    GaussianSteps,
    Joined,
    Listed,
    Proposal,
    RandomFlips,
    SiteChanges,
)
from probjax.potential import potential
from probjax.trees import as_array

SIZE = 3


def uneven(x):
    """States with one bit on have two neighbours more, each other, by rotation."""
    one_on = jnp.sum(x) == 1
    turned = jnp.stack([jnp.roll(x, 1), jnp.roll(x, 2)])
    return jnp.where(one_on, turned, x[None])


def chances(x):
    return jax.nn.softmax(jnp.arange(SIZE) * (x - 0.3) + x[0])


def flip_one(key, args, x):
    bit = jax.random.categorical(key, jnp.log(chances(x)))
    return x.at[bit].set(1 - x[bit])


def log_chance(args, x_new, x):
    return jnp.log(chances(x) @ jnp.abs(x_new - x))


CONNECTIVITIES = {
    "flips": BitFlips(),
    "radius 2": BitFlips(radius=2),
    "joined": Joined((BitFlips(), AllFlips(), Listed(uneven))),
    "letters": SiteChanges(3),
}


@partial(jax.jit, static_argnums=0)
def listed(energy, params, connectivity, states):
    """Energies and neighbours of all states."""
    near = jax.vmap(lambda x: connectivity.states(x, ()))(states)
    return jax.vmap(energy, (None, 0))(params, states), near


def matrix_of(connectivity, energy, params, num_states):
    """The model and its transition matrix by definition, for neighbours all listed."""
    states = all_states(SIZE, num_states).astype(np.float32)
    found = listed(energy, params, connectivity, states)
    energies, near = jax.tree.map(np.asarray, found)
    there = codes(near.x, num_states)
    propose = np.zeros((len(states), len(states)))
    rows = np.repeat(np.arange(len(states)), there.shape[1])
    np.add.at(propose, (rows, there.ravel()), near.weight.ravel())
    propose /= propose.sum(1, keepdims=True)
    odds = np.exp(energies[:, None] - energies[None]) * propose.T
    accept = np.minimum(1, np.divide(odds, propose, where=propose > 0, out=0 * odds))
    matrix = propose * accept
    p = np.exp(energies.min() - energies)
    return p / p.sum(), matrix + np.diag(1 - matrix.sum(1))


@pytest.mark.parametrize("name", CONNECTIVITIES)
def test_a_step_is_the_transition_that_leaves_the_model_unchanged(name):
    connectivity = CONNECTIVITIES[name]
    num_states = 3 if name == "letters" else 2
    weight, bias = cubic_params(0, SIZE)
    params = as_array(0.4 * np.asarray(weight)), as_array(0.4 * np.asarray(bias))
    p, matrix = matrix_of(connectivity, cubic_energy, params, num_states)
    np.testing.assert_allclose(p @ matrix, p, rtol=1e-4)
    for number in (1, 4):
        found = frequencies(
            samplers.Metropolis(connectivity),
            cubic_energy,
            params,
            all_states(SIZE, num_states)[number],
            num_states=num_states,
        )
        assert_drawn_from(found, matrix[number])


@pytest.mark.statistics
@pytest.mark.parametrize("name", ["random", "proposal"])
def test_drawn_neighbours_are_accepted_by_their_ratio(name):
    """From the model's own distribution one step leads back to it."""
    connectivity = {
        "random": RandomFlips(2),
        "proposal": Proposal(flip_one, log_chance, num_draws=2),
    }[name]
    params = random_ising(0, SIZE, scale=0.7)
    sampler = samplers.Metropolis(connectivity, num_moves=3)
    p = np.exp(log_probs_of(params))
    found = sum(
        p[i] * frequencies(sampler, ising.energy, params, x, count=20_000)
        for i, x in enumerate(all_states(SIZE))
    )
    error = np.sqrt(np.sum(p**2) / 20_000 / 4)
    assert np.all(np.abs(found - p) < 5 * error)


def test_cached_energies_are_those_of_the_state(key):
    """At other weights of the potential too, as along an annealing path."""
    model = potential(cubic_energy, cubic_params(0, SIZE))
    sampler = samplers.Metropolis(GaussianSteps(0.5), num_moves=20)

    @jax.jit
    def stepped(key, model, x):
        state, info = sampler.step(key, model, sampler.init(key, model, x))
        return state, info, model.terms(state.x)

    state, info, terms = stepped(key, model, as_array(np.zeros(SIZE, np.float32)))
    assert 0.2 < info.accept < 1
    np.testing.assert_allclose(state.terms, terms, rtol=1e-5)


def nowhere(params, x):
    return jnp.where(x[0] > 0.5, jnp.nan, jnp.sum(x**2))


def test_an_energy_that_is_no_number_is_rejected(key):
    draws = samplers.sample(
        key,
        nowhere,
        np.zeros(1),
        np.zeros((4, 2)),
        sampler=samplers.Metropolis(GaussianSteps(1.0)),
        num_draws=200,
    )
    x = np.asarray(draws.x)
    assert x[..., 0].max() <= 0.5
    assert x[..., 0].std() > 0, "all were rejected"
    assert np.isfinite(x).all()


def test_no_moves_are_refused():
    with pytest.raises(ValueError, match="num_moves must be .* of at least 1, got 0"):
        samplers.Metropolis(BitFlips(), num_moves=0)
