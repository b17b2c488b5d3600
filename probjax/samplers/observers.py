"""Observers: what is remembered of chains while they run.

An observer sees all chains, step after step. `Store` remembers every draw, `Average`
the running mean and variance of a statistic.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax.devices import shard_rows, sharded_vmap
from probjax.recipe import recipe, static
from probjax.trees import floating
from probjax.types import Array, Info, PyTree, State


class Observer(ABC):
    """What is remembered of chains, whose states have leaves `(chain, ...)`."""

    @abstractmethod
    def start(self, x: State, info: Info) -> Any:
        """Return an empty memory for draws and reports like `x` and `info`."""

    @abstractmethod
    def add(
        self, memory: Any, number: Array, x: State, info: Info, is_draw: Array
    ) -> Any:
        """Return the memory after a step on the way to draw `number`, counted from 0.

        It is called for every step, and `is_draw` is true where `x` is the draw.
        """


class Stored(NamedTuple):
    """Draws of all chains, with zeros where none has been made yet.

    Draws come first, so that each is written to one stretch of memory.
    """

    x: State
    """States, leaves `(draw, chain, ...)`."""
    info: Info
    """Mean reports of the steps between draws, leaves `(draw, chain)`."""


@recipe
class Store(Observer):
    """Remember up to `room` draws."""

    room: int = static()

    def start(self, x: State, info: Info) -> Stored:
        def blank(leaf):
            return jnp.zeros((self.room, *leaf.shape), leaf.dtype)

        return shard_rows(jax.tree.map(blank, Stored(x, info)), axis=1)

    def add(
        self, memory: Stored, number: Array, x: State, info: Info, is_draw: Array
    ) -> Stored:
        # Written in every step, until the draw itself stays: a condition would copy it.
        def put(leaf, new):
            return jax.lax.dynamic_update_index_in_dim(leaf, new, number, axis=0)

        return jax.tree.map(put, memory, Stored(x, info))


class Averaged(NamedTuple):
    """Running moments of a statistic along each chain, leaves `(chain, ...)`."""

    mean: PyTree
    """Mean of the statistic."""
    squares: PyTree
    """Sum of the squared differences from the mean."""
    info: Info
    """Mean report of the steps."""


@recipe
class Average(Observer):
    """Remember the mean and the variance of `statistic(x)`."""

    statistic: Callable[[State], PyTree] = static()

    def start(self, x: State, info: Info) -> Averaged:
        values = jax.eval_shape(self._values, x)
        nothing = Averaged(values, values, info)
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), nothing)
        return shard_rows(blank)

    def add(
        self, memory: Averaged, number: Array, x: State, info: Info, is_draw: Array
    ) -> Averaged:
        return jax.lax.cond(
            is_draw, lambda: self._with(memory, number, x, info), lambda: memory
        )

    def _with(self, memory, number, x, info):
        mean, squares, mean_info = memory
        values, count = self._values(x), number + 1
        # Welford: sums of squares of what is far from zero would lose its digits.
        change = jax.tree.map(jnp.subtract, values, mean)
        mean = jax.tree.map(lambda m, c: m + c / count, mean, change)
        squares = jax.tree.map(
            lambda s, c, v, m: s + c * (v - m), squares, change, values, mean
        )
        mean_info = jax.tree.map(lambda i, n: i + (n - i) / count, mean_info, info)
        return Averaged(mean, squares, mean_info)

    def _values(self, x):
        return sharded_vmap(lambda x: jax.tree.map(floating, self.statistic(x)))(x)
