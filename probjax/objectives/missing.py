"""Missing entries of discrete data, in objectives over neighbours.

If some entries of a row are missing, only those neighbours count that differ from the
row in observed entries. A gap depends on all entries of a state, so missing entries are
imputed. In the first round of a fit they are copied from other rows, chosen at random.
After that they are drawn from the current model given the row's other entries, by one
heat-bath sweep in each round; pass about 20 rounds to `fit`. Values of `x` at missing
entries are never used. If missingness is independent of the row, completed rows are
draws from the model at the true parameters, and the estimate is consistent. For
neighbours that differ at single sites, missingness may depend on observed entries.

Reference: Rubin, Biometrika 63, 581 (1976); Celeux and Diebolt, Comp. Stat. Quarterly
2, 73 (1985), for the alternation (stochastic EM).
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax import random
from probjax.data.rows import num_rows
from probjax.interfaces import Connectivity
from probjax.potential import potential
from probjax.samplers.gibbs import HeatBath
from probjax.trees import flat_rows
from probjax.types import (
    Array,
    Data,
    Energy,
    Moves,
    Params,
    PRNGKeyArray,
    PyTree,
    State,
    split_inputs,
)

BATCH = 32


def num_letters(connectivity: Connectivity) -> int:
    """Return the number of letters of a site; raise if states are not discrete."""
    count = connectivity.num_letters()
    if count is None:
        raise ValueError(
            "connectivity must be one of bits or letters if entries are missing, got "
            f"{connectivity}; try BitFlips or SiteChanges"
        )
    return count


def draw_from_others(key: PRNGKeyArray, data: Data) -> State:
    """Return the states of `data`, with missing entries imputed from other rows.

    Each missing entry is copied from a row in which it was observed, drawn in
    proportion to the weights.
    """
    count = num_rows(data)
    weights = jnp.ones(count) if data.weights is None else data.weights

    def column(key, x, mask):
        cumulative = jnp.cumsum(jnp.where(mask, weights, 0))
        levels = cumulative[-1] * random.uniform(key, (count,), cumulative.dtype)
        others = jnp.searchsorted(cumulative, levels, side="right")
        return jnp.where(mask, x, x[jnp.minimum(others, count - 1)])

    leaves, form = jax.tree.flatten(split_inputs(data.x)[0])
    masks = jax.tree.leaves(data.mask)
    filled = []
    for i, (x, mask) in enumerate(zip(leaves, masks, strict=True)):
        flat, observed = x.reshape(count, -1), mask.reshape(count, -1)
        keys = jax.random.split(jax.random.fold_in(key, i), flat.shape[1])
        columns = jax.vmap(column, (0, 1, 1), out_axes=1)(keys, flat, observed)
        filled.append(columns.reshape(x.shape))
    return jax.tree.unflatten(form, filled)


def draw_from_model(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    rows: State,
    mask: PyTree,
    num_states: int,
) -> State:
    """Return the states of rows after one heat-bath sweep over missing entries."""
    keys = jax.random.split(key, len(jax.tree.leaves(rows)[0]))
    sampler = HeatBath(num_states)

    def one(key, row, mask):
        x, inputs = split_inputs(row)
        model = potential(energy, params, inputs)
        state = sampler.init(key, model, x)
        held = ravel_pytree(mask)[0]
        return sampler.step(key, model, state, held=held)[0].x

    return jax.vmap(one)(keys, rows, mask)


def observed_moves(
    connectivity: Connectivity, x: State, mask: PyTree, moves: Moves
) -> Array:
    """Whether each neighbour of each row differs from it in observed entries only."""

    def one(row):
        x, mask, moves = row
        observed = ravel_pytree(mask)[0]
        near = flat_rows(connectivity.states(x, moves).x)
        return jnp.all(observed[None] | (near == ravel_pytree(x)[0][None]), axis=1)

    return jax.lax.map(one, (x, mask, moves), batch_size=BATCH)
