"""Minibatches: which rows each round and each step of a fit sees.

A round is dealt the rows that its steps will visit, so that only their context need be
refreshed: a few batches where rounds are short, all rows where they are long. Rows with
weights are dealt in proportion to them, and then count equally.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.types import Array, Float, PRNGKeyArray

Weights = Float[Array, " row"] | None


class Batches(NamedTuple):
    """Rows dealt out like cards: to each round a hand, to each of its steps a batch."""

    deck: Array
    """Rows in shuffled order."""
    dealt: Array
    """How many of them rounds have had since it was shuffled."""
    hand: Array
    """The rows this round visits."""

    @property
    def whole(self) -> bool:
        """Whether rounds are long enough to visit every row."""
        return len(self.hand) == len(self.deck)


def shuffle(key: PRNGKeyArray, weights: Weights, count: int) -> Array:
    """`count` rows in random order: each once, or as often as its weight asks."""
    order_key, offset_key, deck_key = jax.random.split(key, 3)
    order = jax.random.permutation(order_key, count)
    if weights is None:
        return order
    # A comb of equal steps over the weights laid end to end: no row strays from its
    # share by more than one. Laid in random order, lest the comb meet a pattern.
    comb = (jax.random.uniform(offset_key) + jnp.arange(count)) / count
    shares = jnp.cumsum(weights[order]) / weights.sum()
    places = jnp.minimum(jnp.searchsorted(shares, comb, side="right"), count - 1)
    return jax.random.permutation(deck_key, order[places])


def rows_per_round(count: int, *, size: int, steps: int) -> int:
    """Number of `count` rows that a round of `steps` batches of `size` visits."""
    return steps * size if steps <= count // size else count


def new_deck(count: int, hand: int) -> Batches:
    """`count` rows for rounds that visit `hand` of them, to be shuffled at once."""
    deck = jnp.arange(count)
    return Batches(deck, jnp.asarray(count), deck[:hand])


def deal(key: PRNGKeyArray, weights: Weights, batches: Batches) -> Batches:
    """The next round's hand, from the deck or, if too few are left, a new one."""
    deck, dealt, hand = batches
    short = dealt + len(hand) > len(deck)
    deck = jax.lax.cond(short, lambda: shuffle(key, weights, len(deck)), lambda: deck)
    dealt = jnp.where(short, 0, dealt)
    hand = jax.lax.dynamic_slice_in_dim(deck, dealt, len(hand))
    return Batches(deck, dealt + len(hand), hand)


def next_batch(
    key: PRNGKeyArray, weights: Weights, batches: Batches, step: Array, *, size: int
) -> tuple[Batches, Array]:
    """The step's batch; the hand is shuffled anew for every pass over it."""
    place = step % (len(batches.hand) // size)
    again = (place == 0) & (step > 0)
    key = jax.random.fold_in(key, step)

    def mixed():
        if batches.whole:
            return shuffle(key, weights, len(batches.deck))
        return jax.random.permutation(key, batches.hand)

    hand = jax.lax.cond(again, mixed, lambda: batches.hand)
    batch = jax.lax.dynamic_slice_in_dim(hand, place * size, size)
    return batches._replace(hand=hand), batch
