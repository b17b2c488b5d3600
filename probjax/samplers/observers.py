"""Observers of chains: `Store` keeps every draw, `Average` a running mean and variance.

The loop over steps calls an observer after every step of all chains
(`probjax.samplers.chain_loop`). The observer returns a new accumulator: an array of
draws, or moments of a statistic.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax.devices import shard_rows, sharded_vmap
from probjax.recipe import recipe, static
from probjax.trees import compensated_sum, floating, zeros_of
from probjax.types import Array, Info, PyTree, State


class Observer(ABC):
    """Rule that accumulates results of chains, whose states are `(chain, ...)`."""

    @abstractmethod
    def start(self, x: State, info: Info) -> Any:
        """Return an empty accumulator for states and infos shaped like `x`, `info`."""

    @abstractmethod
    def add(
        self, accumulator: Any, index: Array, x: State, info: Info, is_draw: Array
    ) -> Any:
        """Return the accumulator after a step.

        It is called for every step, not only for those that end with a draw.

        Args:
            index: index of the next draw, counted from 0.
            x: states after the step.
            info: mean infos of the steps since the previous draw.
            is_draw: whether `x` is the draw.
        """


class Stored(NamedTuple):
    """Draws of all chains, with zeros for draws that have not been made yet.

    The axis of draws is the first, so that each draw is contiguous in memory.
    """

    x: State
    """States, leaves `(draw, chain, ...)`."""
    info: Info
    """Mean infos of the steps between draws, leaves `(draw, chain)`."""


@recipe
class Store(Observer):
    """Store up to `capacity` draws."""

    capacity: int = static()

    def start(self, x: State, info: Info) -> Stored:
        def blank(leaf):
            return jnp.zeros((self.capacity, *leaf.shape), leaf.dtype)

        return shard_rows(jax.tree.map(blank, Stored(x, info)), axis=1)

    def add(
        self, accumulator: Stored, index: Array, x: State, info: Info, is_draw: Array
    ) -> Stored:
        # Every step is written to the place of the next draw, and the draw itself comes
        # last: a condition would copy the array.
        def put(leaf, new):
            return jax.lax.dynamic_update_index_in_dim(leaf, new, index, axis=0)

        return jax.tree.map(put, accumulator, Stored(x, info))


class Averaged(NamedTuple):
    """Running moments of a statistic along each chain, leaves `(chain, ...)`."""

    mean: PyTree
    """Mean of the statistic."""
    squares: PyTree
    """Sum of squared deviations from the mean."""
    info: Info
    """Mean info of the steps."""
    rounding: PyTree
    """Rounding errors of these three, in the same form, to be added to them."""

    @property
    def moments(self) -> tuple[PyTree, PyTree, Info]:
        """Means, sums of squares and infos, with their rounding errors added."""
        return jax.tree.map(jnp.add, self[:3], self.rounding)


def averaged(
    mean: PyTree, squares: PyTree, info: Info, rounding: PyTree | None = None
) -> Averaged:
    """Return moments with their rounding errors, or without any if None are given."""
    moments = mean, squares, info
    if rounding is None:
        rounding = shard_rows(jax.tree.map(jnp.zeros_like, moments))
    return Averaged(*moments, rounding)


@recipe
class Average(Observer):
    """Accumulate the mean and the variance of `statistic(x)`."""

    statistic: Callable[[State], PyTree] = static()

    def start(self, x: State, info: Info) -> Averaged:
        values = jax.eval_shape(self._values, x)
        return averaged(*shard_rows(zeros_of((values, values, info))))

    def add(
        self, accumulator: Averaged, index: Array, x: State, info: Info, is_draw: Array
    ) -> Averaged:
        return jax.lax.cond(
            is_draw,
            lambda: self._updated(accumulator, index, x, info),
            lambda: accumulator,
        )

    def _updated(self, accumulator, index, x, info):
        mean, _, mean_info = old = accumulator[:3]
        count, new = index + 1, (self._values(x), info)

        def part(change):
            return change / count.astype(change.dtype)

        # Welford's update: a sum of plain squares would lose digits if the values are
        # far from zero. Changes of a mean over a million draws are as small as the
        # spacing of float32 numbers, so that a mean without compensation would drift.
        low = accumulator.rounding[0], accumulator.rounding[2]
        change = jax.tree.map(lambda a, b, c: a - b - c, new, (mean, mean_info), low)
        mean_part, info_part = jax.tree.map(part, change)
        squares = jax.tree.map(lambda c, p: c * (c - p), change[0], mean_part)
        trees = old, accumulator.rounding, (mean_part, squares, info_part)
        structure = jax.tree.structure(old)
        sums = map(compensated_sum, *map(jax.tree.leaves, trees))
        (mean, squares, mean_info), rounding = map(
            structure.unflatten, zip(*sums, strict=True)
        )
        return Averaged(mean, squares, mean_info, rounding)

    def _values(self, x):
        return sharded_vmap(lambda x: jax.tree.map(floating, self.statistic(x)))(x)
