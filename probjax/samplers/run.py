"""Drivers of samplers: many chains, warm-up, thinning, draws or running means.

A chain has one key; step t uses the key folded with t. Chains are vmapped inside a scan
over steps, and parameters are arguments, so moving them compiles nothing anew.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.checkpoint import NOT_KEPT, Checkpoint, kept_by
from probjax.data import num_rows
from probjax.devices import driver, each
from probjax.potential import Potential, check_energy, potential
from probjax.samplers.pieces import Adding, Pieces, room_for
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
    check_key,
    check_role,
    floating,
    holds,
    is_concrete,
)


class Draws(NamedTuple):
    """The outcome of `sample`.

    >>> from probjax import HeatBath, ising
    >>> flat, x = ising.from_matrix(jnp.zeros((2, 2))), jnp.zeros((3, 2))
    >>> options = dict(sampler=HeatBath(), num_draws=4)
    >>> draws = sample(jax.random.key(0), ising.energy, flat, x, **options)
    >>> draws.x.shape, int(draws.step)
    ((3, 4, 2), 4)
    """

    x: State
    """States, leaves `(chain, draw, ...)`."""
    info: Any
    """What the steps told, leaves `(chain, draw)`: the mean over the steps between."""
    state: Any
    """The sampler's last states, leaves `(chain, ...)`; their `x` can start a run."""
    step: Array
    """How many steps every chain has taken by then; `resume` goes on from there."""


class Means(NamedTuple):
    """The outcome of `sample_mean`.

    >>> from probjax import HeatBath, ising
    >>> args = jax.random.key(0), ising.energy, ising.from_matrix(jnp.zeros((2, 2)))
    >>> options = dict(statistic=jnp.prod, sampler=HeatBath(), num_draws=1000)
    >>> means = sample_mean(*args, jnp.zeros((20, 2)), **options)
    >>> bool(abs(means.mean - 1 / 4) < 5 * means.stderr), bool(means.stderr < 0.01)
    (True, True)
    """

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
    step: Array
    """How many steps every chain has taken by then."""
    running: "Running"
    """The same of every chain by itself, to which more can be added."""


class Running(NamedTuple):
    """Of the statistic along each chain, leaves `(chain, ...)`."""

    num_draws: Array
    """Draws so far."""
    mean: PyTree
    """Their mean."""
    spread: PyTree
    """The sum of squares about it."""
    info: Any
    """The mean of what the steps told."""


@driver
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
    checkpoint: Checkpoint | None = None,
) -> Draws:
    """Draw from exp(-energy) by Markov chains, one from each row of `x`.

    Args:
        x: starting states with a leading axis of chains; `spread` them over devices to
            have each run its own.
        num_draws: states to keep of each chain.
        num_warmup: steps to take and forget before the first.
        thin: steps from one state that is kept to the next.
        callback: called on the host with the last `callback_every` draws, as
            `draws_bar(num_draws)`, or to save them; the run ends if it returns True.
        checkpoint: where to keep the run between calls back, draws and all, so that
            this same call goes on, to the bit, if it was killed.

    >>> from probjax import HMC
    >>> def energy(scale, x):
    ...     return jnp.sum((x / scale) ** 2) / 2
    >>> x, sampler = jnp.zeros((50, 2)), HMC(1.0, num_steps=3)
    >>> options = dict(sampler=sampler, num_draws=100)
    >>> draws = sample(jax.random.key(0), energy, 2.0, x, **options)
    >>> draws.x.shape, round(float(draws.x.std()))
    ((50, 100, 2), 2)
    """
    check_key(key)
    x = _at_door(sampler, energy, params, x, num_draws, num_warmup, thin)
    go_on = partial(_go_on, key, energy, params, sampler, thin)
    if callback is None and checkpoint is None:
        states, step = _begin(key, energy, params, x, sampler, num_warmup)
        return go_on(num_draws, states, step)
    asked = dict(key=key, energy=energy, params=params, x=x, sampler=sampler)
    asked |= dict(num_draws=num_draws, num_warmup=num_warmup, thin=thin)
    kept = kept_by(checkpoint, "sample", **asked)
    warm = partial(_warm, key, energy, params, sampler)

    def begin():
        states, step = _begin(key, energy, params, x, sampler, 0)
        return room_for(num_draws, go_on, states, step)

    pieces = Pieces("sample", callback, callback_every, kept)
    now = pieces.begin(begin)
    now = pieces.warmed(warm, now, num_warmup)
    return Draws(*pieces.drawn(go_on, now, num_draws))


@driver
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
    its callback, or what the callback saved was loaded again. With other parameters
    there is nothing to resume: `sample` from `draws.state.x`.

    >>> from probjax import HeatBath, ising
    >>> flat, sampler = ising.from_matrix(jnp.zeros((2, 2))), HeatBath()
    >>> args, x = (jax.random.key(0), ising.energy, flat), jnp.zeros((3, 2))
    >>> whole = sample(*args, x, sampler=sampler, num_draws=8)
    >>> part = sample(*args, x, sampler=sampler, num_draws=4)
    >>> rest = resume(*args, part, sampler=sampler, num_draws=4)
    >>> bool((rest.x == whole.x[:, 4:]).all())
    True
    """
    check_count("num_draws", num_draws)
    check_count("thin", thin)
    _check_same(energy, params, draws.state)
    go_on = partial(_go_on, key, energy, params, sampler, thin)
    if callback is None:
        return go_on(num_draws, draws.state, draws.step)
    pieces = Pieces("resume", callback, callback_every, NOT_KEPT)
    now = room_for(num_draws, go_on, draws.state, draws.step)
    return Draws(*pieces.drawn(go_on, now, num_draws))


@driver
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
    callback: Callable[[Means], Any] | None = None,
    callback_every: int = 1000,
    checkpoint: Checkpoint | None = None,
) -> Means:
    """The mean of a statistic along the chains, without keeping their states.

    Args:
        statistic: a function of one state, module-level as an energy is.
        callback: called on the host after every `callback_every` draws with the means
            so far; the run ends if it returns True.
        checkpoint: where to keep the run between calls back, so that this same call
            goes on, to the bit, if it was killed.

    >>> from probjax import HeatBath, ising
    >>> coupled = ising.from_matrix([[1.4, -1.4], [-1.4, 1.4]])
    >>> options = dict(statistic=jnp.prod, sampler=HeatBath(), num_draws=1000)
    >>> x = jnp.zeros((20, 2))
    >>> means = sample_mean(jax.random.key(0), ising.energy, coupled, x, **options)
    >>> round(float(means.mean), 1)  # 1 / (2 + 2 exp(-1.4))
    0.4
    """
    x = _at_door(sampler, energy, params, x, num_draws, num_warmup, thin)
    add = partial(_add, key, energy, params, sampler, statistic, thin)
    if callback is None and checkpoint is None:
        states, step = _begin(key, energy, params, x, sampler, num_warmup)
        running = _nothing(energy, params, sampler, statistic, states)
        return _over_chains(*add(num_draws, running, states, step))
    asked = dict(key=key, energy=energy, params=params, x=x, statistic=statistic)
    asked |= dict(num_draws=num_draws, num_warmup=num_warmup, thin=thin)
    kept = kept_by(checkpoint, "sample_mean", sampler=sampler, **asked)
    warm = partial(_warm, key, energy, params, sampler)

    def begin():
        states, step = _begin(key, energy, params, x, sampler, 0)
        return Adding(
            _nothing(energy, params, sampler, statistic, states), states, step
        )

    pieces = Pieces("sample_mean", callback, callback_every, kept)
    now = pieces.begin(begin)
    now = pieces.warmed(warm, now, num_warmup)
    return pieces.added(add, _over_chains, now, num_draws)


@driver
def resume_mean(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    means: Means,
    *,
    statistic: Callable[[State], PyTree],
    sampler: Sampler,
    num_draws: int,
    thin: int = 1,
    callback: Callable[[Means], Any] | None = None,
    callback_every: int = 1000,
) -> Means:
    """`means` with as many draws again added as if the run had not ended.

    >>> from probjax import HeatBath, ising
    >>> args = jax.random.key(0), ising.energy, ising.from_matrix(jnp.zeros((2, 2)))
    >>> options = dict(statistic=jnp.prod, sampler=HeatBath(), num_draws=1000)
    >>> means = sample_mean(*args, jnp.zeros((20, 2)), **options)
    >>> more = resume_mean(*args, means, **options)
    >>> int(more.running.num_draws), bool(more.stderr < means.stderr)
    (2000, True)
    """
    check_count("num_draws", num_draws)
    check_count("thin", thin)
    _check_same(energy, params, means.state)
    add = partial(_add, key, energy, params, sampler, statistic, thin)
    now = Adding(means.running, means.state, means.step)
    if callback is None:
        return _over_chains(*add(num_draws, *now))
    pieces = Pieces("resume_mean", callback, callback_every, NOT_KEPT)
    total = int(means.running.num_draws) + num_draws
    return pieces.added(add, _over_chains, now, total)


def _at_door(sampler, energy, params, x, num_draws, num_warmup, thin):
    check_role("sampler", sampler, "step", "HeatBath() or HMC(0.1)")
    check_count("num_draws", num_draws)
    check_count("num_warmup", num_warmup, least=0)
    check_count("thin", thin)
    x = _starts(x)
    check_energy(energy, params, jax.tree.map(lambda rows: floating(rows[0]), x))
    return sampler.prepare(potential(energy, params), x)


def _starts(x):
    x = jax.tree.map(jnp.asarray, x)
    leaves = jax.tree.leaves(x)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves):
        raise ValueError("x must be starting states with a leading axis of chains")
    if len({len(leaf) for leaf in leaves}) > 1 or leaves[0].size == 0:
        shapes = jax.tree.map(jnp.shape, x)
        raise ValueError(f"x must have a start for each chain, got shape {shapes}")
    if not holds(jnp.isfinite, x):
        raise ValueError("chains must start at finite states, got NaN or infinity in x")
    return x


def _check_same(energy, params, state):
    """Refuse states whose energies are those of other parameters."""
    kept = getattr(state, "terms", None)
    if kept is None or not is_concrete((params, state)):
        return
    if not _are_terms(energy, params, state.x, kept):
        raise ValueError(
            "a run can only be resumed with its own energy and params: with others, "
            "sample from x=draws.state.x"
        )


@partial(jax.jit, static_argnums=0)
def _are_terms(energy, params, x, kept):
    now = jax.vmap(potential(energy, params).terms)(x)
    return jnp.allclose(now, kept, rtol=1e-3, atol=1e-3)


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
        state, info = sampler.step(random.fold_in(key, first + i), model, state)
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
        return each(self.sampler.init, (0, None, 0))(keys, self.model, x)

    def advance(self, states, num_steps, first):
        def one(key, state):
            return move(
                key, self.sampler, self.model, state, num_steps=num_steps, first=first
            )

        return each(one)(self.keys, states)


def _chains(key, energy, params, x, sampler, num_warmup):
    keys = jax.random.split(key, num_rows(Data(x)))
    chains = _Chains(keys, sampler, potential(energy, params))
    states = chains.start(x)
    if num_warmup:
        states, _ = chains.advance(states, num_warmup, 0)
    return chains, states


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


@partial(jax.jit, static_argnums=1)
def _warm(key, energy, params, sampler, states, step, count):
    keys = jax.random.split(key, len(jax.tree.leaves(states)[0]))
    chains = _Chains(keys, sampler, potential(energy, params))
    return chains.advance(states, count, step)[0], step + count


@partial(jax.jit, static_argnums=(0, 3))
def _nothing(energy, params, sampler, statistic, states):
    def seen(state):
        key = jax.random.key(0)
        _, info = sampler.step(key, potential(energy, params), state)
        return _observed(statistic, state.x), info

    def nothing(state):
        shapes = jax.eval_shape(seen, state)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    values, info = each(nothing)(states)
    return Running(jnp.zeros((), int), values, values, info)


def _observed(statistic, x):
    return jax.tree.map(floating, statistic(x))


@partial(jax.jit, static_argnums=(1, 4, 5))
def _add(
    key, energy, params, sampler, statistic, thin, num_draws, running, states, step
):
    keys = jax.random.split(key, len(jax.tree.leaves(states)[0]))
    chains = _Chains(keys, sampler, potential(energy, params))

    def add(number, carry):
        states, (count, mean, spread, info) = carry
        states, new = chains.advance(states, thin, step + number * thin)
        values = jax.vmap(partial(_observed, statistic))(states.x)
        count = count + 1
        # Welford: sums of squares of what is far from zero would lose its digits.
        change = jax.tree.map(jnp.subtract, values, mean)
        mean = jax.tree.map(lambda m, c: m + c / count, mean, change)
        spread = jax.tree.map(
            lambda s, c, v, m: s + c * (v - m), spread, change, values, mean
        )
        info = jax.tree.map(lambda i, n: i + (n - i) / count, info, new)
        return states, Running(count, mean, spread, info)

    states, running = jax.lax.fori_loop(0, num_draws, add, (states, running))
    return running, states, step + num_draws * thin


@jax.jit
def _over_chains(running, states, step):
    def of_leaf(mean, spread):
        overall = mean.mean(0)
        stderr = mean.std(0, ddof=1) / jnp.sqrt(len(mean))
        return overall, stderr, spread.mean(0) / running.num_draws + mean.var(0)

    form = jax.tree.structure(running.mean)
    leaves = zip(
        jax.tree.leaves(running.mean), jax.tree.leaves(running.spread), strict=True
    )
    parts = [of_leaf(*pair) for pair in leaves]
    mean, stderr, variance = (form.unflatten(part) for part in zip(*parts, strict=True))
    return Means(mean, stderr, variance, running.info, states, step, running)
