"""Minibatches: which rows each round and each step of a fit sees.

A round is dealt the rows that its steps will visit, so that only their context need be
refreshed: one batch where rounds have one step, all rows where they have many.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.types import Array, PRNGKeyArray, PyTree


class Batches(NamedTuple):
    """Rows dealt out like cards: to each round a hand, to each of its steps a batch."""

    deck: Array
    """All rows, in shuffled order."""
    dealt: Array
    """How many of them rounds have had since it was shuffled."""
    hand: Array
    """This round's rows, as `(batch, row)`."""

    @property
    def rows(self) -> Array:
        """The rows this round visits."""
        return self.hand.ravel()


def shuffle(key: PRNGKeyArray, count: int, size: int, steps: int) -> Batches:
    """`count` rows in batches of `size`, for rounds of `steps` steps."""
    deck = jax.random.permutation(key, count)
    batches = min(steps, count // size)
    return Batches(deck, jnp.asarray(0), deck[: batches * size].reshape(-1, size))


def deal(key: PRNGKeyArray, batches: Batches) -> Batches:
    """The next round's hand, from the deck or, if too few are left, a new one."""
    deck, dealt, hand = batches
    short = dealt + hand.size > deck.size
    deck = jax.lax.cond(short, lambda: _shuffled(key, deck), lambda: deck)
    dealt = jnp.where(short, 0, dealt)
    rows = jax.lax.dynamic_slice_in_dim(deck, dealt, hand.size)
    return Batches(deck, dealt + hand.size, rows.reshape(hand.shape))


def next_batch(
    key: PRNGKeyArray, batches: Batches, step: Array
) -> tuple[Batches, Array]:
    """The step's batch; the hand is shuffled anew for every pass over it."""
    place = step % len(batches.hand)
    again = (place == 0) & (step > 0)
    mix = partial(_shuffled, jax.random.fold_in(key, step), batches.hand)
    hand = jax.lax.cond(again, mix, lambda: batches.hand)
    return batches._replace(hand=hand), hand[place]


def _shuffled(key, rows):
    return jax.random.permutation(key, rows.ravel()).reshape(rows.shape)


def take(tree: PyTree, rows: Array) -> PyTree:
    """Those rows of every leaf."""
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def put(tree: PyTree, rows: Array, values: PyTree) -> PyTree:
    """Every leaf with those rows replaced."""
    return jax.tree.map(lambda leaf, value: leaf.at[rows].set(value), tree, values)
