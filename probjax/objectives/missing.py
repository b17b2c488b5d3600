"""Missing entries of discrete data, in objectives over neighbours.

Where some entries of a row were not observed, only the neighbours count that differ
from it in observed entries: their gaps say what was seen against what was not. But a
gap depends on all of a state, so something has to stand for the rest. In the first
round of a fit it is what other rows have there, at random. From then on it is drawn
from the model as it is, given the row's other entries, one sweep of the heat bath in
each round: give `fit` twenty. What stood where an entry is missing never makes a
difference. If whether entries are missing depends on nothing in the row, completed rows
are draws from the model where it is true, and the estimate is consistent; for moves at
single sites it may depend on what was observed.

Reference: Rubin, Biometrika 63, 581 (1976); Celeux and Diebolt, Comp. Stat. Quarterly
2, 73 (1985), for the alternation (stochastic EM).
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.data.rows import num_rows
from probjax.interfaces import Connectivity
from probjax.potential import Potential
from probjax.samplers.gibbs import HeatBath
from probjax.types import Array, Data, Moves, PRNGKeyArray, PyTree, State

BATCH = 32


def num_letters(connectivity: Connectivity) -> int:
    """How many letters a site has, of which missing ones are drawn."""
    count = connectivity.num_letters()
    if count is None:
        raise ValueError(
            "missing entries are drawn letter by letter, which needs a connectivity of "
            f"bits or letters, as BitFlips or SiteChanges, got {connectivity}"
        )
    return count


def draw_from_others(key: PRNGKeyArray, data: Data) -> State:
    """`data.x` with missing entries as they are in other rows, drawn by weight."""
    count, weights = num_rows(data), data.weights
    each = jnp.ones(count) if weights is None else weights

    def column(key, x, mask):
        below = jnp.cumsum(jnp.where(mask, each, 0))
        chances = below[-1] * jax.random.uniform(key, (count,), below.dtype)
        others = jnp.searchsorted(below, chances, side="right")
        return jnp.where(mask, x, x[jnp.minimum(others, count - 1)])

    leaves, form = jax.tree.flatten(data.x)
    masks = jax.tree.leaves(data.mask)
    filled = []
    for i, (x, mask) in enumerate(zip(leaves, masks, strict=True)):
        flat, seen = x.reshape(count, -1), mask.reshape(count, -1)
        keys = jax.random.split(jax.random.fold_in(key, i), flat.shape[1])
        columns = jax.vmap(column, (0, 1, 1), out_axes=1)(keys, flat, seen)
        filled.append(columns.reshape(x.shape))
    return jax.tree.unflatten(form, filled)


def draw_from_model(
    key: PRNGKeyArray, potential: Potential, x: State, mask: PyTree, num_states: int
) -> State:
    """Rows `x` after one sweep of the heat bath over their missing entries."""
    keys = jax.random.split(key, len(jax.tree.leaves(x)[0]))
    sampler = HeatBath(num_states)

    def one(key, x, mask):
        state = sampler.init(key, potential, x)
        held = ravel_pytree(mask)[0]
        return sampler.step(key, potential, state, held=held)[0].x

    return jax.vmap(one)(keys, x, mask)


def observed_moves(
    connectivity: Connectivity, x: State, mask: PyTree, moves: Moves
) -> Array:
    """For each row, which of its neighbours differ from it in observed entries only."""

    def one(row):
        x, mask, moves = row
        held = ~ravel_pytree(mask)[0]
        states = connectivity.states(x, moves).x
        near = jax.vmap(lambda state: ravel_pytree(state)[0])(states)
        return jnp.all(~held[None] | (near == ravel_pytree(x)[0][None]), axis=1)

    return jax.lax.map(one, (x, mask, moves), batch_size=BATCH)
