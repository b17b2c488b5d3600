"""Which neighbours of the data are data themselves.

The flow as first written goes only to states that were not observed. To find those
without comparing all with all, rows are sorted by a hash, h(x) = sum_i a_i x_i modulo
2^32 with fixed random a; a state is looked up by bisection, and every row of its hash
is compared with the state itself, so a collision can cost time but not truth.

Reference: thesis, eq. Kfinal, where i is not in D, D being the set of observed states.
"""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax.checks import eager_evaluation
from probjax.data.rows import num_rows
from probjax.interfaces import Connectivity
from probjax.types import Array, Data, Moves, State

BATCH = 32


class Observed(NamedTuple):
    """The rows of some data, sorted by hash."""

    hashes: Array
    rows: Array
    """One flat state each."""
    counts: Array
    """Whether a row has weight."""


def index(data: Data) -> Observed:
    """The rows of `data`, ready to be looked up."""
    rows = jax.vmap(lambda x: ravel_pytree(x)[0])(data.x)
    hashes = _hash(rows)
    order = jnp.argsort(hashes)
    counts = jnp.ones(len(rows), bool) if data.weights is None else data.weights > 0
    return Observed(hashes[order], rows[order], counts[order])


def is_observed(observed: Observed, x: State) -> Array:
    """Whether each state along the leading axis of `x` is one of the rows."""
    states = jax.vmap(lambda state: ravel_pytree(state)[0])(x)
    hashes = _hash(states)
    last = len(observed.hashes) - 1

    def open_at(place):
        return (place <= last) & (observed.hashes[jnp.minimum(place, last)] == hashes)

    def look(carry):
        place, searching, found = carry
        row = jnp.minimum(place, last)
        same = jnp.all(observed.rows[row] == states, axis=1) & observed.counts[row]
        found = found | (searching & same)
        return place + 1, open_at(place + 1) & ~found, found

    place = jnp.searchsorted(observed.hashes, hashes)
    carry = (place, open_at(place), jnp.zeros(len(states), bool))
    return jax.lax.while_loop(lambda carry: carry[1].any(), look, carry)[2]


def unobserved_neighbours(
    connectivity: Connectivity, observed: Observed, x: State, moves: Moves
) -> Array:
    """For each row of `x`, which of its neighbours are no rows of the data."""

    def one(row):
        return ~is_observed(observed, connectivity.states(*row).x)

    return jax.lax.map(one, (x, moves), batch_size=BATCH)


def check_excludable(
    connectivity: Connectivity, data: Data, moves: Iterable[Moves]
) -> None:
    """Refuse data of which every neighbour was observed, as far as can be seen.

    Then K = 0 whatever the parameters, which would look like a perfect fit. Rows are
    tried, with each of `moves`, until a neighbour is found that is none of them: mostly
    the first will do.
    """
    with eager_evaluation():
        observed = index(data)
        for drawn in moves:
            for start in range(0, num_rows(data), BATCH):
                some = jax.tree.map(
                    lambda rows, i=start: rows[i : i + BATCH], (data, drawn)
                )
                if bool(_any_left(connectivity, observed, *some)):
                    return
    raise ValueError(
        "exclude_data leaves nothing: every neighbour of every row was observed, so "
        "keep all neighbours (exclude_data=False), which is consistent"
    )


@jax.jit
def _any_left(connectivity, observed, data, moves):
    left = unobserved_neighbours(connectivity, observed, data.x, moves)
    return jnp.any(left & (True if data.weights is None else data.weights[:, None] > 0))


def _hash(states):
    factors = _factors(states.shape[1])
    whole = states.astype(jnp.int32).astype(jnp.uint32)
    return jnp.sum(whole * factors[None], axis=1, dtype=jnp.uint32)


@cache
def _factors(size: int) -> np.ndarray:
    # Odd, so that a change at one site always changes the hash.
    draws = np.random.default_rng(0).integers(0, 2**31, size, np.uint32)
    return 2 * draws + 1
