"""Runs of chains in pieces, with the host in between: to be called, and to keep them.

However steps are divided among pieces, they are the same.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax.checkpoint import Kept
from probjax.types import Array, State, check_count, is_concrete


class Drawing(NamedTuple):
    """A run under way that keeps its draws."""

    states: Any
    step: Array
    """How many steps every chain has taken."""
    made: Array
    """How many draws there are yet."""
    x: State
    """Room for all of them."""
    info: Any


class Adding(NamedTuple):
    """A run under way that keeps running means."""

    running: Any
    states: Any
    step: Array


def room_for(
    num_draws: int, go_on: Callable[..., Any], states: Any, step: Array
) -> Drawing:
    """A run at its beginning, with room for all draws that `go_on` will make."""
    shapes = jax.eval_shape(partial(go_on, num_draws), states, step)
    room = (shapes.x, shapes.info)
    x, info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), room)
    return Drawing(states, step, jnp.zeros((), int), x, info)


class Pieces(NamedTuple):
    """How a driver goes about it."""

    driver: str
    callback: Callable[[Any], Any] | None
    every: int
    kept: Kept

    def begin(self, start: Callable[[], Any]) -> Any:
        """Where the run is, on disk or else at its start."""
        return self.kept.begin(start)

    def warmed(self, warm: Callable[..., Any], now: Any, num_warmup: int) -> Any:
        """The run at the end of its warm-up."""
        self._check(now)
        while int(now.step) < num_warmup:
            count = min(self.every, num_warmup - int(now.step))
            states, step = warm(now.states, now.step, count)
            now = now._replace(states=states, step=step)
            self.kept.keep(now)
        return now

    def drawn(
        self, go_on: Callable[..., Any], now: Drawing, num_draws: int
    ) -> tuple[State, Any, Any, Array]:
        """The draws, what the steps told, the last states, and the steps taken."""
        self._check(now)
        ended = False
        while not ended and (made := int(now.made)) < num_draws:
            part = go_on(min(self.every, num_draws - made), now.states, now.step)
            now = _put(now, part)
            ended = self._called(part)
            self.kept.keep(now)
        self.kept.keep(now, last=True)
        made = int(now.made)
        x, info = jax.tree.map(lambda leaf: leaf[:, :made], (now.x, now.info))
        return x, info, now.states, now.step

    def added(
        self,
        add: Callable[..., Any],
        summed_up: Callable[..., Any],
        now: Adding,
        num_draws: int,
    ) -> Any:
        """What `num_draws` draws of each chain sum up to."""
        self._check(now)
        ended = False
        while not ended:
            left = num_draws - int(now.running.num_draws)
            now = Adding(*add(min(self.every, left), *now))
            ended = self._called(summed_up(*now)) or left <= self.every
            self.kept.keep(now, last=ended)
        return summed_up(*now)

    def _called(self, told):
        return bool(self.callback is not None and self.callback(told))

    def _check(self, now):
        check_count("callback_every", self.every)
        if not is_concrete(now):
            raise ValueError(f"{self.driver} inside jit or vmap cannot call back")


@jax.jit
def _put(now, part):
    def put(room, new):
        return jax.lax.dynamic_update_slice_in_dim(room, new, now.made, axis=1)

    x, info = jax.tree.map(put, (now.x, now.info), (part.x, part.info))
    made = now.made + len(jax.tree.leaves(part.x)[0][0])
    return Drawing(part.state, part.step, made, x, info)
