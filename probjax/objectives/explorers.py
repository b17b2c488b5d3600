"""Explorers: states that are annealed to a model while it is learned.

Chains that start at data stay in the modes around the data. A mode that they never
enter adds nothing to the gradient of a sampled likelihood, however much probability the
model gives it. So some further states of bits or letters, the explorers, start at
uniformly random states and are annealed to the model in cycles of T = `CYCLE` updates.
With E_t the energy at the parameters of update t, they sample p_t ~ exp(-(t / T) E_t)
in turn, and their importance weights are

    log w = sum_t  ((t - 1) / T) E_(t-1)(x_t) - (t / T) E_t(x_t),

where x_t is the state before the move of update t. They are the weights of annealed
importance sampling, which are valid for any sequence of distributions, also if the
parameters change on the way. At the end of a cycle explorers are drawn by weight and
replace a few chains of their group. A mode of the model that random states find thus
gets chains, and the gradient lowers its probability to that in the data.

Reference: Neal, Statistics and Computing 11, 125 (2001), for the weights.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax.objectives.particles import energies
from probjax.samplers.adaptation import move_chains
from probjax.types import Array, Float, Params, PRNGKeyArray, State

CYCLE = 200
"""Number of updates of a cycle."""
CHAINS_PER_EXPLORER = 10
"""Number of chains of a group for each of its explorers."""


class Explorers(NamedTuple):
    """States that are annealed from random states to the model."""

    x: State
    """States, leaves `(group * explorer, ...)`."""
    energy: Float[Array, " explorer"]
    """Energies at the parameters of the last update."""
    log_weight: Float[Array, " explorer"]
    """Logarithms of the importance weights, up to a constant."""
    step: Array
    """Number of updates of this cycle so far."""
    num_cycles: Array
    """Number of cycles that have ended."""


def start_explorers(
    key: PRNGKeyArray, objective: Any, params: Params, x: State, *, num_groups: int
) -> Explorers | None:
    """Start explorers at random states.

    None if states are not bits or letters, or if a group has too few chains.

    Args:
        objective: a `PersistentDivergence`.
        x: states of the chains, leaves `(chain, ...)`.
    """
    count = num_groups * (objective.num_particles // num_groups // CHAINS_PER_EXPLORER)
    letters = objective.sampler.num_letters()
    if not count or letters is None:
        return None
    x = random_states(key, x, count, letters)
    energy = energies(objective.energy, params, x)
    zero = jnp.asarray(0)
    return Explorers(x, energy, jnp.zeros_like(energy), zero, zero)


def random_states(key: PRNGKeyArray, x: State, count: int, letters: int) -> State:
    """Draw states with the shapes and dtypes of a row of `x`, uniform over letters.

    >>> random_states(jax.random.key(0), jnp.zeros((5, 3)), 2, 1).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    leaves, structure = jax.tree.flatten(x)
    keys = jax.random.split(key, len(leaves))
    drawn = [
        jax.random.randint(key, (count, *leaf.shape[1:]), 0, letters).astype(leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, drawn)


def move_explorers(
    key: PRNGKeyArray, objective: Any, params: Params, explorers: Explorers
) -> Explorers:
    """Weight and move the explorers at `params` and the next inverse temperature."""
    before, now = explorers.step / CYCLE, (explorers.step + 1) / CYCLE
    energy = energies(objective.energy, params, explorers.x)
    dtype = energy.dtype
    change = before.astype(dtype) * explorers.energy - now.astype(dtype) * energy
    x = move_chains(
        key,
        objective.energy,
        params,
        explorers.x,
        sampler=objective.sampler,
        num_steps=objective.num_moves,
        beta=now,
    ).x
    return explorers._replace(
        x=x,
        energy=energies(objective.energy, params, x),
        log_weight=explorers.log_weight + change,
        step=explorers.step + 1,
    )


def replace_chains(
    key: PRNGKeyArray,
    objective: Any,
    explorers: Explorers,
    chains: tuple[State, Float[Array, " chain"]],
    *,
    num_groups: int,
) -> tuple[Explorers, tuple[State, Float[Array, " chain"]]]:
    """Put explorers, drawn by weight, in the place of chains, and start others.

    Args:
        chains: states and energies of the chains.
    """
    draw_key, start_key = jax.random.split(key)
    log_weights = explorers.log_weight.reshape(num_groups, -1)
    count = log_weights.shape[1]
    log_weights = jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf)
    drawn = jax.random.categorical(
        draw_key, log_weights[:, None], shape=(num_groups, count)
    )

    def put(own, others):
        own = own.reshape(num_groups, -1, *own.shape[1:])
        others = others.reshape(num_groups, count, *others.shape[1:])
        chosen = jax.vmap(lambda states, index: states[index])(others, drawn)
        # Other chains in every cycle.
        first = explorers.num_cycles * count % own.shape[1]
        own = jax.lax.dynamic_update_slice_in_dim(own, chosen, first, axis=1)
        return own.reshape(-1, *own.shape[2:])

    chains = jax.tree.map(put, chains, (explorers.x, explorers.energy))
    letters, total = objective.sampler.num_letters(), num_groups * count
    x = random_states(start_key, explorers.x, total, letters)
    started = Explorers(
        x,
        # The energy of random states has no weight at the inverse temperature 0.
        energy=jnp.zeros_like(explorers.energy),
        log_weight=jnp.zeros_like(explorers.log_weight),
        step=jnp.zeros_like(explorers.step),
        num_cycles=explorers.num_cycles + 1,
    )
    return started, chains
