"""Drivers of samplers: many chains, warm-up, thinning, draws or running means.

A chain has one key; step t uses the key folded with t. Chains are vmapped inside a scan
over steps, and parameters are arguments, so moving them compiles nothing anew.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax.data import as_data, num_rows
from probjax.potential import Potential, check_energy, potential
from probjax.types import (
    Array,
    Data,
    Energy,
    Params,
    PRNGKeyArray,
    PyTree,
    Sampler,
    State,
    check_count,
    floating,
    is_concrete,
)


class Draws(NamedTuple):
    """The outcome of `sample`."""

    x: State
    """States, leaves `(chain, draw, ...)`."""
    info: Any
    """What the steps told, leaves `(chain, draw)`: the mean over the steps between."""
    state: Any
    """The sampler's last states, leaves `(chain, ...)`; their `x` can start a run."""
    step: Array
    """How many steps every chain has taken by then; `resume` goes on from there."""


class Means(NamedTuple):
    """The outcome of `sample_mean`."""

    mean: PyTree
    """The statistic's mean over all chains and draws."""
    stderr: PyTree
    """Its standard error, from the scatter of the chains' own means; NaN for one."""
    variance: PyTree
    """The statistic's variance over all chains and draws."""
    info: Any
    """What the steps told, leaves `(chain,)`: the mean over all."""
    state: Any
    """The sampler's last states, leaves `(chain, ...)`."""


def sample(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    x: State,
    *,
    sampler: Sampler,
    num_draws: int,
    num_warmup: int = 0,
    thin: int = 1,
    callback: Callable[[Draws], Any] | None = None,
    callback_every: int = 100,
) -> Draws:
    """Draw from exp(-energy) by Markov chains, one from each row of `x`.

    Args:
        x: starting states with a leading axis of chains.
        num_draws: states to keep of each chain.
        num_warmup: steps to take and forget before the first.
        thin: steps from one state that is kept to the next.
        callback: called on the host with the last `callback_every` draws, as
            `draws_bar(num_draws)`, or to save them; the run ends if it returns True.
    """
    x = _at_door(sampler, energy, params, x, num_draws, num_warmup, thin)
    if callback is None:
        return _sample(key, energy, params, x, sampler, num_draws, num_warmup, thin)
    states, step = _begin(key, energy, params, x, sampler, num_warmup)
    go_on = partial(_go_on, key, energy, params, sampler, thin)
    return _in_chunks(go_on, states, step, num_draws, callback, callback_every)


def resume(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    draws: Draws,
    *,
    sampler: Sampler,
    num_draws: int,
    thin: int = 1,
    callback: Callable[[Draws], Any] | None = None,
    callback_every: int = 100,
) -> Draws:
    """The draws that come after `draws`, as if the run had not ended.

    With the arguments of that run they are the same to the bit, whether it was ended by
    its callback, or what the callback saved was loaded again.
    """
    check_count("num_draws", num_draws)
    check_count("thin", thin)
    go_on = partial(_go_on, key, energy, params, sampler, thin)
    if callback is None:
        return go_on(num_draws, draws.state, draws.step)
    every = callback_every
    return _in_chunks(go_on, draws.state, draws.step, num_draws, callback, every)


def sample_mean(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    x: State,
    *,
    statistic: Callable[[State], PyTree],
    sampler: Sampler,
    num_draws: int,
    num_warmup: int = 0,
    thin: int = 1,
) -> Means:
    """The mean of a statistic along the chains, without keeping their states.

    Args:
        statistic: a function of one state, module-level as an energy is.
    """
    x = _at_door(sampler, energy, params, x, num_draws, num_warmup, thin)
    counts = (num_draws, num_warmup, thin)
    return _sample_mean(key, energy, params, x, statistic, sampler, *counts)


def _at_door(sampler, energy, params, x, num_draws, num_warmup, thin):
    check_count("num_draws", num_draws)
    check_count("num_warmup", num_warmup, least=0)
    check_count("thin", thin)
    x = as_data(x).x
    check_energy(energy, params, jax.tree.map(lambda rows: floating(rows[0]), x))
    return sampler.prepare(potential(energy, params), x)


def move(
    key: PRNGKeyArray,
    sampler: Sampler,
    model: Potential,
    state: Any,
    *,
    num_steps: int,
    first: Array | int = 0,
) -> tuple[Any, Any]:
    """Steps number `first` to `first + num_steps - 1` of a chain, and their mean info.

    `key` is the chain's: however steps are divided among calls, they are the same.
    """

    def step(i, carry):
        state, total = carry
        state, info = sampler.step(jax.random.fold_in(key, first + i), model, state)
        return state, jax.tree.map(jnp.add, total, info)

    _, shape = jax.eval_shape(sampler.step, key, model, state)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
    state, total = jax.lax.fori_loop(0, num_steps, step, (state, nothing))
    return state, jax.tree.map(lambda leaf: leaf / num_steps, total)


class _Chains(NamedTuple):
    """Many chains with their keys: the drivers' common ground."""

    keys: Array
    sampler: Sampler
    model: Potential

    def start(self, x):
        # Steps are numbered from 0, so no step has this number.
        keys = jax.vmap(lambda key: jax.random.fold_in(key, 2**31 - 1))(self.keys)
        return jax.vmap(self.sampler.init, (0, None, 0))(keys, self.model, x)

    def advance(self, states, num_steps, first):
        def one(key, state):
            return move(
                key, self.sampler, self.model, state, num_steps=num_steps, first=first
            )

        return jax.vmap(one)(self.keys, states)


def _chains(key, energy, params, x, sampler, num_warmup):
    keys = jax.random.split(key, num_rows(Data(x)))
    chains = _Chains(keys, sampler, potential(energy, params))
    states = chains.start(x)
    if num_warmup:
        states, _ = chains.advance(states, num_warmup, 0)
    return chains, states


@partial(jax.jit, static_argnums=(1, 5, 6, 7))
def _sample(key, energy, params, x, sampler, num_draws, num_warmup, thin):
    chains, states = _chains(key, energy, params, x, sampler, num_warmup)
    return _drawn(chains, states, jnp.asarray(num_warmup), num_draws, thin)


@partial(jax.jit, static_argnums=(1, 5))
def _begin(key, energy, params, x, sampler, num_warmup):
    _, states = _chains(key, energy, params, x, sampler, num_warmup)
    return states, jnp.asarray(num_warmup)


@partial(jax.jit, static_argnums=(1, 4, 5))
def _go_on(key, energy, params, sampler, thin, num_draws, states, step):
    keys = jax.random.split(key, len(jax.tree.leaves(states)[0]))
    chains = _Chains(keys, sampler, potential(energy, params))
    return _drawn(chains, states, step, num_draws, thin)


def _drawn(chains, states, step, num_draws, thin):
    def draw(states, number):
        states, info = chains.advance(states, thin, step + number * thin)
        return states, (states.x, info)

    states, kept = jax.lax.scan(draw, states, jnp.arange(num_draws))
    draws, info = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), kept)
    return Draws(draws, info, states, step + num_draws * thin)


def _in_chunks(go_on, states, step, num_draws, callback, every):
    """Draws a few at a time, with the host in between."""
    check_count("callback_every", every)
    if not is_concrete((states, step)):
        raise ValueError("sample inside jit or vmap cannot call back")
    parts, made = [], 0
    while made < num_draws:
        part = go_on(min(every, num_draws - made), states, step)
        made += len(jax.tree.leaves(part.x)[0][0])
        states, step = part.state, part.step
        parts.append((part.x, part.info))
        if callback(part):
            break
    x, info = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 1), *parts)
    return Draws(x, info, states, step)


@partial(jax.jit, static_argnums=(1, 4, 6, 7, 8))
def _sample_mean(
    key, energy, params, x, statistic, sampler, num_draws, num_warmup, thin
):
    chains, states = _chains(key, energy, params, x, sampler, num_warmup)

    def add(number, carry):
        states, mean, spread, info = carry
        states, new = chains.advance(states, thin, num_warmup + number * thin)
        values = jax.vmap(statistic)(states.x)
        # Welford: sums of squares of what is far from zero would lose its digits.
        change = jax.tree.map(jnp.subtract, values, mean)
        mean = jax.tree.map(lambda m, c: m + c / (number + 1), mean, change)
        spread = jax.tree.map(
            lambda s, c, v, m: s + c * (v - m), spread, change, values, mean
        )
        info = jax.tree.map(lambda i, n: i + (n - i) / (number + 1), info, new)
        return states, mean, spread, info

    shapes = jax.eval_shape(
        lambda s: (jax.vmap(statistic)(s.x), chains.advance(s, 1, 0)[1]), states
    )
    values, info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    carry = (states, values, values, info)
    states, mean, spread, info = jax.lax.fori_loop(0, num_draws, add, carry)

    def over_chains(mean, spread):
        overall = mean.mean(0)
        stderr = mean.std(0, ddof=1) / jnp.sqrt(len(mean))
        return overall, stderr, spread.mean(0) / num_draws + mean.var(0)

    form = jax.tree.structure(mean)
    leaves = zip(jax.tree.leaves(mean), jax.tree.leaves(spread), strict=True)
    parts = [over_chains(*pair) for pair in leaves]
    mean, stderr, variance = (form.unflatten(part) for part in zip(*parts, strict=True))
    return Means(mean, stderr, variance, info, states)
