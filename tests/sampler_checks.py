"""Where one step of a sampler leads, to be compared with its transition matrix."""

import jax
import numpy as np
from small_models import all_states

from probjax import samplers
from probjax.checks import is_concrete

KEY = jax.random.key(5)


def codes(states, num_states=2):
    """The numbers of states, in the order of `exact.states`; NumPy's where it can."""
    if is_concrete(states):
        states = np.asarray(states)
    place = (num_states ** np.arange(states.shape[-1])[::-1]).astype(float)
    return (states @ place).astype(int)


@jax.jit
def conditionals(sampler, model, states, site):
    """The chances of the letters of a site, for each state."""
    return jax.vmap(lambda x: sampler.conditional(model)(x, site))(states)


def site_matrix(sampler, model, site, size, num_states):
    """The transition matrix of redrawing one site, from its stated conditional."""
    states = all_states(size, num_states)
    chances = np.asarray(conditionals(sampler, model, states.astype(float), site))
    matrix = np.zeros((len(states), len(states)))
    for letter in range(num_states):
        there = states.copy()
        there[:, site] = letter
        matrix[np.arange(len(states)), codes(there, num_states)] = chances[:, letter]
    return matrix


def frequencies(sampler, energy, params, x, count=40_000, num_states=2, num_warmup=0):
    """Where one step from `x` leads, by its share of many tries."""
    draws = samplers.sample(
        KEY,
        energy,
        params,
        np.tile(x, (count, 1)),
        sampler=sampler,
        num_draws=1,
        num_warmup=num_warmup,
    )
    numbers = codes(np.asarray(draws.x)[:, 0], num_states)
    return np.bincount(numbers, minlength=num_states ** len(x)) / count


def assert_drawn_from(found, expected, count=40_000):
    error = np.sqrt(expected * (1 - expected) / count) + 1e-9
    assert np.all(np.abs(found - expected) < 5 * error)
