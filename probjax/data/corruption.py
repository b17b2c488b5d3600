"""Random binary versions of rows: flipped bits, or bits drawn from grey levels.

    FixedFlips          a fixed number of the bits of each state is flipped;
    IndependentFlips    each bit is flipped with a given probability;
    GreyLevels          each bit is 1 with the probability that the row contains.

`FixedFlips` is the corruption of the thesis. Its flips are not independent: a unit that
detects how many other units are wrong gains information about itself. Flips of
`IndependentFlips` carry no such information.

Both require that fewer than half of the bits are flipped. With half of them flipped,
nothing of the state is left to learn; with more, its complement would be learned.
"""

from abc import ABC, abstractmethod

import jax
import jax.numpy as jnp

from probjax import random
from probjax.checks import check_count, holds
from probjax.data.preprocessing import binarise_randomly
from probjax.recipe import recipe, static
from probjax.states import binary
from probjax.types import Array, ArrayLike, Float, PRNGKeyArray


class Corruption(ABC):
    """Random map `corruption(key, x)` from a state, or rows of states, to bits.

    It raises an error if it cannot be applied to the rows.

    >>> @recipe
    ... class Losses(Corruption):  # sets half of the ones to 0
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
    """Flip `num_flips` random bits of each state.

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
    """Flip each bit independently with the given `probability`, below 1/2.

    >>> rows = IndependentFlips(0.1)(jax.random.key(0), jnp.zeros((1000, 8)))
    >>> round(float(rows.mean()), 1)
    0.1
    """

    probability: float

    def __post_init__(self):
        if not holds(_is_minority, self.probability):
            raise ValueError(
                "probability must be above 0 and below 1/2, got "
                f"{self.probability}; with 1/2, nothing of a state is left"
            )

    def __call__(self, key: PRNGKeyArray, x: ArrayLike) -> Float[Array, "*row unit"]:
        x = jnp.asarray(binary(jnp.asarray(x)))
        flips = random.uniform(key, x.shape) < self.probability
        return jnp.where(flips, 1 - x, x)


@recipe
class GreyLevels(Corruption):
    """Draw each bit with the probability that the row contains: `binarise_randomly`.

    >>> GreyLevels()(jax.random.key(0), jnp.array([0.0, 1.0])).tolist()
    [0.0, 1.0]
    """

    def __call__(self, key: PRNGKeyArray, x: ArrayLike) -> Float[Array, "*row unit"]:
        return binarise_randomly(key, x)


def flip_some(
    key: PRNGKeyArray, x: Float[Array, "*row unit"], num_flips: int | Array
) -> Float[Array, "*row unit"]:
    """Flip `num_flips` random bits of each state, from 0 to all of them."""
    # Bits with the smallest random numbers are flipped. The last binary digits of a
    # number are its index, so that no two numbers are equal.
    indices = jax.lax.broadcasted_iota(jnp.uint32, x.shape, x.ndim - 1)
    digits = (x.shape[-1] - 1).bit_length()
    numbers = jax.random.bits(key, x.shape, jnp.uint32) >> digits << digits | indices
    largest = jnp.take(jnp.sort(numbers, axis=-1), num_flips - 1, axis=-1, mode="clip")
    chosen = (numbers <= largest[..., None]) & (num_flips > 0)
    return jnp.where(chosen, 1 - x, x)


def _is_minority(probability):
    return (probability > 0) & (probability < 0.5)
