"""Binary versions of rows: bits that are flipped, or drawn from grey levels.

    FixedFlips          exactly so many of the n bits of each state are flipped;
    IndependentFlips    each bit is, with a probability;
    GreyLevels          each bit is on with the probability that the row says.

The first is what the thesis does, and a memory can tell: a unit that sees how many of
the others are wrong knows something of itself. The second knows of no such thing.

Both leave most bits as they were. With half of them flipped nothing is left of a state
to learn from, and with more it is its opposite that would be learned.
"""

from abc import ABC, abstractmethod

import jax
import jax.numpy as jnp

from probjax.checks import check_count, holds
from probjax.data.preprocessing import binarise_randomly
from probjax.recipe import recipe, static
from probjax.states import binary
from probjax.types import Array, ArrayLike, Float, PRNGKeyArray


class Corruption(ABC):
    """`corruption(key, x)`: a binary version of a state, or of each of many rows.

    It raises if it cannot be applied to the rows.

    >>> @recipe
    ... class Losses(Corruption):  # of half of the bits that are on
    ...     def __call__(self, key, x):
    ...         return x * jax.random.bernoulli(key, 0.5, x.shape)
    >>> left = Losses()(jax.random.key(0), jnp.ones((100, 100)))
    >>> bool(abs(left.mean() - 0.5) < 0.02)
    True
    """

    @abstractmethod
    def __call__(self, key: PRNGKeyArray, x: ArrayLike) -> Float[Array, "*row unit"]:
        """Draw a binary version of `x`."""


@recipe
class FixedFlips(Corruption):
    """So many bits of each state, chosen at random, are flipped.

    >>> FixedFlips(2)(jax.random.key(0), jnp.zeros((3, 8))).sum(axis=1).tolist()
    [2.0, 2.0, 2.0]
    """

    num_flips: int = static()

    def __post_init__(self):
        check_count("num_flips", self.num_flips)

    def __call__(self, key: PRNGKeyArray, x: ArrayLike) -> Float[Array, "*row unit"]:
        x = jnp.asarray(binary(jnp.asarray(x)))
        if 2 * self.num_flips >= x.shape[-1]:
            raise ValueError(
                f"num_flips must be below half of the {x.shape[-1]} bits, "
                f"got {self.num_flips}"
            )
        return flip_some(key, x, self.num_flips)


@recipe
class IndependentFlips(Corruption):
    """Each bit is flipped with this probability, whatever becomes of the others.

    >>> rows = IndependentFlips(0.1)(jax.random.key(0), jnp.zeros((1000, 8)))
    >>> round(float(rows.mean()), 1)
    0.1
    """

    probability: float

    def __post_init__(self):
        if not holds(_is_minority, self.probability):
            raise ValueError(
                "probability must be above 0 and below 1/2, where nothing of a state "
                f"is left, got {self.probability}"
            )

    def __call__(self, key: PRNGKeyArray, x: ArrayLike) -> Float[Array, "*row unit"]:
        x = jnp.asarray(binary(jnp.asarray(x)))
        flips = jax.random.bernoulli(key, self.probability, x.shape)
        return jnp.where(flips, 1 - x, x)


@recipe
class GreyLevels(Corruption):
    """Each bit is on with the probability that the row says: `binarise_randomly`.

    >>> GreyLevels()(jax.random.key(0), jnp.array([0.0, 1.0])).tolist()
    [0.0, 1.0]
    """

    def __call__(self, key: PRNGKeyArray, x: ArrayLike) -> Float[Array, "*row unit"]:
        return binarise_randomly(key, x)


def flip_some(
    key: PRNGKeyArray, x: Float[Array, "*row unit"], num_flips: int | Array
) -> Float[Array, "*row unit"]:
    """States with any number of their bits flipped, from none to all."""
    # The lowest levels, of which no two are alike: their last digits are the place.
    places = jax.lax.broadcasted_iota(jnp.uint32, x.shape, x.ndim - 1)
    digits = (x.shape[-1] - 1).bit_length()
    levels = jax.random.bits(key, x.shape, jnp.uint32) >> digits << digits | places
    highest = jnp.take(jnp.sort(levels, axis=-1), num_flips - 1, axis=-1, mode="clip")
    chosen = (levels <= highest[..., None]) & (num_flips > 0)
    return jnp.where(chosen, 1 - x, x)


def _is_minority(probability):
    return (probability > 0) & (probability < 0.5)
