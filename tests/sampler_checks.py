"""Where one step of a sampler leads, to be compared with its transition matrix."""

import jax
import jax.numpy as jnp
import numpy as np

from probjax import exact, samplers


def codes(states, num_states=2):
    """The numbers of states, in the order of `exact.states`."""
    place = (num_states ** jnp.arange(states.shape[-1])[::-1]).astype(float)
    return (states @ place).astype(int)


def site_matrix(sampler, model, site, size, num_states):
    """The transition matrix of redrawing one site, from its stated conditional."""
    states = exact.states(size, num_states=num_states)
    chances = jax.vmap(lambda x: sampler.conditional(model)(x, site))(states)
    matrix = np.zeros((len(states), len(states)))
    for letter in range(num_states):
        there = codes(states.at[:, site].set(letter), num_states)
        matrix[np.arange(len(states)), there] = chances[:, letter]
    return matrix


def frequencies(sampler, energy, params, x, count=40_000, num_states=2, num_warmup=0):
    """Where one step from `x` leads, by its share of many tries."""
    start = jnp.broadcast_to(x, (count, *x.shape))
    draws = samplers.sample(
        jax.random.key(5),
        energy,
        params,
        start,
        sampler=sampler,
        num_draws=1,
        num_warmup=num_warmup,
    )
    numbers = codes(draws.x[:, 0], num_states)
    return np.bincount(numbers, minlength=num_states ** len(x)) / count


def assert_drawn_from(found, expected, count=40_000):
    error = np.sqrt(expected * (1 - expected) / count) + 1e-9
    assert np.all(np.abs(found - expected) < 5 * error)
