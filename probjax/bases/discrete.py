"""Normalised distributions of discrete states: independent bits and letters.

    p(x) = exp(-energy(x) - log_z)

Their closed forms give the energy differences of single changes without evaluating the
energy.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import sigmoid, softplus
from jax.scipy.special import logsumexp

from probjax import random
from probjax.bases.continuous import check_entries, check_size, per_entry
from probjax.checks import check_count, holds, is_finite
from probjax.interfaces import Base
from probjax.potential import closed_form
from probjax.recipe import recipe, static
from probjax.states import binary, letters, one_hot
from probjax.types import (
    Array,
    ArrayLike,
    Domain,
    Float,
    PRNGKeyArray,
    Scalar,
    SiteBlock,
)


def _bit_gaps(base: "Bernoulli", x: Array) -> Array:
    return jnp.asarray(base.log_odds) * (1 - 2 * x)


def _bit_mirror_gap(base: "Bernoulli", x: Array) -> Array:
    return jnp.sum(_bit_gaps(base, x))


def _bit_site_gaps(base: "Bernoulli", x: Array) -> Array:
    odds = jnp.asarray(base.log_odds)
    return jnp.stack([-odds * x, odds * (1 - x)], axis=1)


def _bit_gap(base: "Bernoulli") -> Callable[[Array, Array], Array]:
    odds = jnp.broadcast_to(base.log_odds, (base.size,))
    return lambda x, bit: odds[bit] * (1 - 2 * x[bit])


def _bit_site_gap(base: "Bernoulli") -> Callable[[Array, Array], Array]:
    odds = jnp.broadcast_to(base.log_odds, (base.size,))
    return lambda x, bit: odds[bit] * jnp.stack([-x[bit], 1 - x[bit]])


def _bit_block(base: "Bernoulli") -> Callable[[Array, Array, int], SiteBlock]:
    return _independent_sites(jnp.broadcast_to(base.log_odds, (base.size,)))


def _independent_sites(field):
    """Return a function of `(x, first, size)`: the block of independent sites."""

    def block(x, first, size):
        part = jax.lax.dynamic_slice_in_dim(field, first, size)
        return SiteBlock(part, jnp.zeros(part.shape + part.shape, part.dtype))

    return block


@recipe
class Bernoulli(Base):
    """Independent bits.

    Args:
        size: number of bits of a state.
        log_odds: log odds of each bit being 1, or one number for all bits.

    >>> round(float(Bernoulli(3).log_z), 4)  # log 8
    2.0794
    >>> Bernoulli(2, jnp.array([-50.0, 50.0])).sample(jax.random.key(0)).tolist()
    [0.0, 1.0]
    """

    size: int = static()
    log_odds: ArrayLike = 0.0

    def __post_init__(self):
        check_entries("log_odds", self.log_odds, self.size)

    @property
    def domain(self) -> Domain:
        return "bits"

    def num_letters(self) -> int:
        return 2

    @property
    def log_z(self) -> Scalar:
        return jnp.sum(softplus(per_entry(self.log_odds, self.size)))

    def prepare(self, x: Float[Array, "row site"]) -> Float[Array, "row site"]:
        return check_size(binary(x), self.size)

    def sample(self, key: PRNGKeyArray) -> Float[Array, " site"]:
        chances = sigmoid(per_entry(self.log_odds, self.size))
        return (random.uniform(key, (self.size,)) < chances).astype(float)

    @closed_form(
        flip_gaps=_bit_gaps,
        flip_gap=_bit_gap,
        bit_block=_bit_block,
        mirror_gap=_bit_mirror_gap,
        site_gaps=_bit_site_gaps,
        site_gap=_bit_site_gap,
    )
    def energy(self, x: Float[Array, " site"]) -> Scalar:
        return -jnp.sum(self.log_odds * x)


def _letter_gaps(base: "Categorical", x: Array) -> Array:
    own = one_hot(x, base.num_states) * base.table
    return base.table - jnp.sum(own, axis=1, keepdims=True)


def _letter_gap(base: "Categorical") -> Callable[[Array, Array], Array]:
    table = base.table
    return lambda x, site: table[site] - table[site, x[site].astype(int)]


def _letter_block(base: "Categorical") -> Callable[[Array, Array, int], SiteBlock]:
    return _independent_sites(base.table)


@recipe
class Categorical(Base):
    """Independent letters, which are the floats 0 to `num_states` - 1.

    Args:
        size: number of sites of a state.
        num_states: number of letters of each site.
        log_odds: log probability of each letter, `(letter,)` or `(site, letter)`, up to
            a constant for each site. One number makes all letters equally likely.

    >>> round(float(Categorical(2, 3).log_z), 4)  # log 9
    2.1972
    >>> base = Categorical(2, 3, log_odds=jnp.array([0.0, 1.0, 2.0]))
    >>> float(base.energy(jnp.array([0.0, 2.0])))
    -2.0
    """

    size: int = static()
    num_states: int = static()
    log_odds: ArrayLike = 0.0

    def __post_init__(self):
        check_count("size", self.size)
        check_count("num_states", self.num_states, least=2)
        whole = (self.size, self.num_states)
        if np.shape(self.log_odds) not in ((), whole[1:], whole):
            raise ValueError(
                f"log_odds must be one number, one for each of {self.num_states} "
                f"letters, or an array of shape {whole}, got shape "
                f"{np.shape(self.log_odds)}"
            )
        if not holds(is_finite, self.log_odds):
            raise ValueError(f"log_odds must be finite, got {self.log_odds}")

    @property
    def table(self) -> Float[Array, "site letter"]:
        """Log odds of every letter at every site."""
        return jnp.broadcast_to(self.log_odds, (self.size, self.num_states))

    @property
    def domain(self) -> Domain:
        return "bits" if self.num_states == 2 else "letters"

    def num_letters(self) -> int:
        return self.num_states

    @property
    def log_z(self) -> Scalar:
        return jnp.sum(logsumexp(self.table.astype(float), axis=1))

    def prepare(self, x: Float[Array, "row site"]) -> Float[Array, "row site"]:
        return check_size(letters(x, num_states=self.num_states), self.size)

    def sample(self, key: PRNGKeyArray) -> Float[Array, " site"]:
        chosen = jax.random.categorical(key, self.table.astype(float), axis=1)
        return chosen.astype(float)

    @closed_form(
        site_gaps=_letter_gaps, site_gap=_letter_gap, letter_block=_letter_block
    )
    def energy(self, x: Float[Array, " site"]) -> Scalar:
        return -jnp.sum(one_hot(x, self.num_states) * self.table)
