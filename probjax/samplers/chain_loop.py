"""Compiled loop over the steps of many chains.

Each chain has one key, and step t uses this key folded with t. So chains continue
exactly where they were interrupted. Chains are vmapped inside a loop over steps, and an
observer accumulates the draws or their mean (see `probjax.samplers.observers`).
Parameters are arguments of the compiled programs, so new parameters compile nothing.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.checks import is_eager
from probjax.devices import shard_rows, sharded_vmap
from probjax.interfaces import Sampler
from probjax.potential import Potential, potential
from probjax.recipe import recipe, static
from probjax.samplers.observers import Observer
from probjax.types import (
    Array,
    Energy,
    Info,
    Params,
    PRNGKeyArray,
    PyTree,
    State,
    check_info,
    with_inputs,
)


@jax.jit
def _step_of_chain(sampler, key, model, state):
    # Compiled, so that it is traced only once for all the programs that call it.
    state, info = sampler.step(key, model, state)
    return state, check_info(info)


@recipe
class Chains:
    """Chains of a run, which differ by their keys and starting states."""

    energy: Energy = static()
    key: PRNGKeyArray
    params: Params
    sampler: Sampler
    inputs: PyTree = None
    """Inputs of every chain, leaves `(chain, ...)`; None if the states have none."""

    def model(self, inputs: PyTree) -> Potential:
        """Return the potential that a chain with these inputs samples."""
        return potential(self.energy, self.params, inputs)

    def init(self, x: State) -> Any:
        """Create the sampler's states of all chains at `x`."""

        def one(key, inputs, x):
            # Steps are numbered from 0, so no step has this number.
            key = jax.random.fold_in(key, 2**31 - 1)
            return self.sampler.init(key, self.model(inputs), x)

        return sharded_vmap(one)(self._keys(x), self.inputs, x)

    def rows(self, states: Any) -> State:
        """Return the states of the model, with their inputs."""
        return with_inputs(states.x, self.inputs)

    def step(self, states: Any, number: Array | int) -> tuple[Any, Info]:
        """Take step `number` with all chains."""

        def one(key, inputs, state):
            key = random.fold_in(key, number)
            return _step_of_chain(self.sampler, key, self.model(inputs), state)

        return sharded_vmap(one)(self._keys(states), self.inputs, states)

    def info_shapes(self, states: Any) -> Info:
        """Return shapes and dtypes of the infos of a step of all chains."""
        return jax.eval_shape(self.step, states, 0)[1]

    def _keys(self, rows):
        return jax.random.split(self.key, len(jax.tree.leaves(rows)[0]))


class Counts(NamedTuple):
    """Length of a run."""

    warmup: int
    """Number of steps before the first draw."""
    draws: int
    """Number of draws to be made by this run."""
    total: Any
    """Number of draws by the end of this run, those of earlier runs included."""
    thin: int
    """Number of steps from one draw to the next."""


class RunState(NamedTuple):
    """State of a run between compiled pieces."""

    states: Any
    """States of the sampler, leaves `(chain, ...)`."""
    step: Array
    """Number of steps that every chain has taken."""
    made: Array
    """Number of draws made."""
    before: Array
    """Number of draws made before the last piece."""
    accumulator: Any
    """Draws or means that the observer has accumulated."""


@jax.jit
def start_run(chains: Chains, observer: Observer, x: State) -> RunState:
    """Create the state of a run with chains that start at `x`."""
    return continue_run(chains, observer, chains.init(x), jnp.zeros((), int))


@jax.jit
def continue_run(
    chains: Chains, observer: Observer, states: Any, step: Array
) -> RunState:
    """Create the state of a run that continues chains from `states`, without draws."""
    zero = jnp.zeros((), int)
    accumulator = observer.start(chains.rows(states), chains.info_shapes(states))
    return RunState(states, step, zero, zero, accumulator)


def advance(
    chains: Chains, observer: Observer, counts: Counts, now: RunState, limit: int | None
) -> RunState:
    """Take at most `limit` steps of the warm-up, or make at most `limit` draws.

    With a limit of None the run advances to its end.
    """
    run = run_steps if is_eager((chains, now)) else run_steps_static
    warmup, draws, total, thin = counts
    if limit is None:
        return run(chains, observer, now, warmup, draws, thin)
    left = 0 if int(now.made) else warmup - int(now.step)
    if left > 0:
        return run(chains, observer, now, min(limit, left), 0, thin)
    draws = min(limit, int(total) - int(now.made))
    return run(chains, observer, now, 0, draws, thin)


class _LoopState(NamedTuple):
    """Variables of the loop over steps."""

    states: Any
    totals: Info
    """Sums of the infos since the last draw."""
    accumulator: Any


class _Position(NamedTuple):
    """Position of a step among the draws."""

    draw: Array
    """Index of the next draw, counted from 0."""
    since: Array
    """Number of steps taken since the previous draw."""
    is_draw: Array
    """Whether the state after this step is the draw."""


def _run_steps(chains, observer, now, num_warmup, num_draws, thin):
    """Take `num_warmup` steps, then make `num_draws` draws, one every `thin` steps.

    There is one loop over all steps, because an inner loop would cost as much as a step
    of a small model.
    """

    def step(number, loop):
        index = jnp.maximum(number - num_warmup, 0)
        since = index % thin
        is_draw = (number >= num_warmup) & (since == thin - 1)
        position = _Position(now.made + index // thin, since, is_draw)
        return _observed_step(chains, observer, loop, now.step + number, position)

    infos = chains.info_shapes(now.states)
    totals = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), infos)
    first = _LoopState(now.states, shard_rows(totals), now.accumulator)
    num_steps = num_warmup + num_draws * thin
    states, _, accumulator = jax.lax.fori_loop(0, num_steps, step, first)
    made = now.made + num_draws
    return RunState(states, now.step + num_steps, made, now.made, accumulator)


def _observed_step(chains, observer, loop, number, position):
    """Take step `number` and pass its result to the observer."""
    states, info = chains.step(loop.states, number)
    is_first, count = position.since == 0, position.since + 1

    def add(total, info):
        return jnp.where(is_first, info, total + info)

    totals = jax.tree.map(add, loop.totals, info)
    means = jax.tree.map(lambda leaf: leaf / count.astype(leaf.dtype), totals)
    accumulator = observer.add(
        loop.accumulator, position.draw, chains.rows(states), means, position.is_draw
    )
    return _LoopState(states, totals, accumulator)


# With traced counts a whole run and its pieces are one program, so their results are
# equal bit by bit. It overwrites the state, which holds all draws. Inside of a user's
# trace the counts are static, because derivatives in reverse mode require it.
run_steps = jax.jit(_run_steps, donate_argnums=2)
run_steps_static = jax.jit(_run_steps, static_argnums=(3, 4, 5))
