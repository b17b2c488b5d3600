"""Exclusion of neighbours that are rows of the data themselves.

In the original definition of the flow, probability flows only to states that were not
observed. Rows are sorted by a hash, h(x) = sum_i a_i x_i modulo 2^32 with fixed random
a, so that a state is looked up by bisection. Every row with the same hash is compared
with the state itself, so that a collision costs time but does not change the result.

Reference: thesis, eq. Kfinal: the sum is over states i not in D, the observed states.
"""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import eager_evaluation
from probjax.data.rows import num_rows
from probjax.interfaces import Connectivity
from probjax.trees import flat_rows
from probjax.types import Array, Data, Moves, State

BATCH = 32


class ObservedRows(NamedTuple):
    """Rows of data, sorted by hash."""

    hashes: Array
    """Hash of each row, in ascending order."""
    rows: Array
    """Flat state of each row."""
    counts: Array
    """Whether each row has a positive weight."""


def index_rows(data: Data) -> ObservedRows:
    """Sort the rows of `data` by hash, so that states can be looked up."""
    rows = flat_rows(data.x)
    hashes = _hash(rows)
    order = jnp.argsort(hashes)
    counts = jnp.ones(len(rows), bool) if data.weights is None else data.weights > 0
    return ObservedRows(hashes[order], rows[order], counts[order])


def is_observed(observed: ObservedRows, x: State) -> Array:
    """Whether each state along the leading axis of `x` is one of the rows."""
    states = flat_rows(x)
    hashes = _hash(states)
    last = len(observed.hashes) - 1

    def has_same_hash(row):
        return (row <= last) & (observed.hashes[jnp.minimum(row, last)] == hashes)

    def compare(carry):
        row, searching, found = carry
        inside = jnp.minimum(row, last)
        same = jnp.all(observed.rows[inside] == states, axis=1)
        found = found | (searching & same & observed.counts[inside])
        return row + 1, has_same_hash(row + 1) & ~found, found

    row = jnp.searchsorted(observed.hashes, hashes)
    carry = (row, has_same_hash(row), jnp.zeros(len(states), bool))
    return jax.lax.while_loop(lambda carry: carry[1].any(), compare, carry)[2]


def unobserved_neighbours(
    connectivity: Connectivity, observed: ObservedRows, x: State, moves: Moves
) -> Array:
    """Whether each neighbour of each row of `x` is not a row of the data."""

    def one(row):
        return ~is_observed(observed, connectivity.states(*row).x)

    return jax.lax.map(one, (x, moves), batch_size=BATCH)


def check_excludable(
    connectivity: Connectivity, data: Data, moves: Iterable[Moves]
) -> None:
    """Raise if every neighbour of every row was observed.

    Then K = 0 for all parameters, which would look like a perfect fit. Rows are
    searched, with each of `moves`, until a neighbour is found that was not observed;
    usually one of the first rows has such a neighbour.
    """
    with eager_evaluation():
        observed = index_rows(data)
        for drawn in moves:
            for start in range(0, num_rows(data), BATCH):
                some = jax.tree.map(
                    lambda rows, i=start: rows[i : i + BATCH], (data, drawn)
                )
                if bool(_any_left(connectivity, observed, *some)):
                    return
    raise ValueError(
        "exclude_data=True must leave some neighbours, got data in which every "
        "neighbour of every row was observed; try exclude_data=False, which is "
        "consistent"
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
    # Odd factors, so that a change at one site always changes the hash.
    draws = np.random.default_rng(0).integers(0, 2**31, size, np.uint32)
    return 2 * draws + 1
