"""Minibatches: the rows that each round and each step of a fit uses.

A round selects the rows that its steps will visit, so that only their context has to be
refreshed: a few batches if rounds are short, all rows if rounds are long. Rows with
weights are selected in proportion to their weights and then count equally.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.types import Array, Float, PRNGKeyArray

Weights = Float[Array, " row"] | None


class Batches(NamedTuple):
    """Minibatch state: a shuffled order of the rows, and the rows of this round."""

    order: Array
    """Indices of all rows in shuffled order."""
    num_used: Array
    """Number of rows that rounds have used since `order` was shuffled."""
    round_rows: Array
    """Indices of the rows that this round visits."""

    @property
    def covers_all(self) -> bool:
        """Whether a round is long enough to visit every row."""
        return len(self.round_rows) == len(self.order)


def shuffle(key: PRNGKeyArray, weights: Weights, count: int) -> Array:
    """Return `count` row indices in random order.

    Each row occurs once, or in proportion to its weight.
    """
    order_key, offset_key, shuffle_key = jax.random.split(key, 3)
    order = jax.random.permutation(order_key, count)
    if weights is None:
        return order
    # Systematic sampling: the number of copies of a row differs from its share by less
    # than one. Rows are shuffled first, lest equal steps meet a regular pattern.
    levels = (jax.random.uniform(offset_key) + jnp.arange(count)) / count
    shares = jnp.cumsum(weights[order]) / weights.sum()
    places = jnp.minimum(jnp.searchsorted(shares, levels, side="right"), count - 1)
    return jax.random.permutation(shuffle_key, order[places])


def rows_per_round(count: int, *, size: int, steps: int) -> int:
    """Return how many of `count` rows a round of `steps` batches of `size` visits."""
    return steps * size if steps <= count // size else count


def initial_batches(count: int, num_round_rows: int) -> Batches:
    """Return the state before the first round, which shuffles all `count` rows."""
    order = jnp.arange(count)
    return Batches(order, jnp.asarray(count), order[:num_round_rows])


def next_round(key: PRNGKeyArray, weights: Weights, batches: Batches) -> Batches:
    """Select the rows of the next round; shuffle all rows if too few are left.

    `next_batch` shuffles the rows of a round that covers all of them.
    """
    if batches.covers_all:
        return batches
    order, num_used, round_rows = batches
    too_few = num_used + len(round_rows) > len(order)
    order = jax.lax.cond(
        too_few, lambda: shuffle(key, weights, len(order)), lambda: order
    )
    num_used = jnp.where(too_few, 0, num_used)
    round_rows = jax.lax.dynamic_slice_in_dim(order, num_used, len(round_rows))
    return Batches(order, num_used + len(round_rows), round_rows)


def next_batch(
    key: PRNGKeyArray, weights: Weights, batches: Batches, step: Array, *, size: int
) -> tuple[Batches, Array]:
    """Return the batch of a step.

    A round that covers all rows may pass over them many times, and shuffles them before
    each pass. Any other round is one pass over rows that `next_round` has shuffled.

    Args:
        step: number of the step in its round.
        size: rows per batch.
    """
    place = step % (len(batches.round_rows) // size)
    if batches.covers_all:
        shuffled = partial(
            shuffle, jax.random.fold_in(key, step), weights, len(batches.order)
        )
        round_rows = jax.lax.cond(place == 0, shuffled, lambda: batches.round_rows)
        batches = batches._replace(round_rows=round_rows)
    batch = jax.lax.dynamic_slice_in_dim(batches.round_rows, place * size, size)
    return batches, batch
