"""Drivers of samplers: many chains, warm-up, thinning, draws or running means.

A chain has one key; step t uses the key folded with t, so that chains continue exactly
wherever they were interrupted. Chains are vmapped inside a loop over steps, in which an
observer remembers what is asked for (see `probjax.samplers.observers`). Parameters are
arguments of compiled programs, so new parameters compile nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax import random
from probjax.checks import (
    check_count,
    check_interface,
    check_key,
    holds,
    is_concrete,
    is_eager,
    is_finite,
    is_on_host,
)
from probjax.devices import shard_rows, sharded_vmap
from probjax.interfaces import Sampler
from probjax.potential import Potential, check_energy, potential
from probjax.recipe import recipe, static
from probjax.runs.driver import Job, Watch, driver, run
from probjax.samplers.observers import Average, Averaged, Observer, Store
from probjax.trees import as_array
from probjax.types import Array, Energy, Params, PRNGKeyArray, PyTree, State, check_info


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
    """Number of steps that every chain has taken; a run is continued from there."""


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
    x: State | Draws,
    *,
    sampler: Sampler,
    num_draws: int,
    num_warmup: int = 0,
    thin: int = 1,
    watch: Watch | None = None,
) -> Draws:
    """Draw from exp(-energy) by Markov chains, one from each row of `x`.

    Args:
        x: starting states with a leading axis of chains; `spread` them over devices to
            run each chain on its own device. Or the `Draws` of a run with the same
            arguments, which is then continued without another warm-up: the new draws
            are those that it would have made next, to the bit.
        num_draws: number of states to store from each chain.
        num_warmup: number of steps before the first draw.
        thin: number of steps from one draw to the next.
        watch: callback and checkpoint. The callback receives the draws made since it
            was last called, and may save them; see also `progress_bar`. A
            checkpoint holds all draws.

    >>> from probjax import HMC
    >>> def energy(scale, x):
    ...     return jnp.sum((x / scale) ** 2) / 2
    >>> x, sampler = jnp.zeros((50, 2)), HMC(1.0, num_steps=3)
    >>> options = dict(sampler=sampler, num_draws=100)
    >>> draws = sample(jax.random.key(0), energy, 2.0, x, **options)
    >>> draws.x.shape, round(float(draws.x.std()))
    ((50, 100, 2), 2)
    >>> more = sample(jax.random.key(0), energy, 2.0, draws, **options)
    >>> int(more.step)
    200
    """
    asked = dict(locals())
    _check_counts(num_draws, num_warmup, thin)
    chains = _Chains(energy, key, params, sampler)
    observer = Store(_room(num_draws) if is_eager((chains, x)) else num_draws)
    if isinstance(x, Draws):
        num_warmup = 0
        begin = partial(_continue, chains, observer, *_last(chains, x))
    else:
        asked["x"] = x = _checked(chains, x)
        begin = partial(_begin, chains, observer, x)
    counts = _Counts(num_warmup, num_draws, num_draws, thin)
    job = _job(chains, observer, begin, counts)
    job = job._replace(
        report=_newest, finish=lambda now, stopped: _draws(now), every=100
    )
    return run("sample", asked, job, watch)


@driver
def sample_mean(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    x: State | Means,
    *,
    statistic: Callable[[State], PyTree],
    sampler: Sampler,
    num_draws: int,
    num_warmup: int = 0,
    thin: int = 1,
    watch: Watch | None = None,
) -> Means:
    """Average a statistic along the chains, without storing their states.

    Args:
        x: starting states with a leading axis of chains, or the `Means` of a run with
            the same arguments, to which `num_draws` draws are added.
        statistic: a function of one state, module-level as an energy is.
        watch: callback and checkpoint; the callback receives the means so far.

    >>> from probjax import HeatBath, ising
    >>> coupled = ising.from_matrix([[1.4, -1.4], [-1.4, 1.4]])
    >>> args = jax.random.key(0), ising.energy, coupled
    >>> options = dict(statistic=jnp.prod, sampler=HeatBath(), num_draws=1000)
    >>> means = sample_mean(*args, jnp.zeros((20, 2)), **options)
    >>> round(float(means.mean), 1)  # 1 / (2 + 2 exp(-1.4))
    0.4
    >>> more = sample_mean(*args, means, **options)
    >>> int(more.running.num_draws), bool(more.stderr < means.stderr)
    (2000, True)
    """
    asked = dict(locals())
    _check_counts(num_draws, num_warmup, thin)
    chains = _Chains(energy, key, params, sampler)
    observer, total = Average(statistic), num_draws
    if isinstance(x, Means):
        num_warmup = 0
        states, step = _last(chains, x)
        made, *memory = x.running
        total = made + num_draws
        first = _Run(states, step, made, made, Averaged(*memory))
        begin = partial(_itself, first)
    else:
        asked["x"] = x = _checked(chains, x)
        begin = partial(_begin, chains, observer, x)
    counts = _Counts(num_warmup, num_draws, total, thin)
    job = _job(chains, observer, begin, counts)
    return run("sample_mean", asked, job, watch)


class _Counts(NamedTuple):
    """Length of a run."""

    warmup: int
    draws: int
    """Draws to be made by this run."""
    total: Any
    """Draws of this run and of those that it continues."""
    thin: int
    """Steps from one draw to the next."""


def _job(chains, observer, begin, counts):
    """Describe a run to the driver; it reports and returns means."""
    return Job(
        begin=begin,
        advance=partial(_advance, chains, observer, counts),
        is_over=lambda now: int(now.made) >= int(counts.total),
        report=lambda now: _means(now) if int(now.made) > 0 else None,
        finish=lambda now, stopped: _means(now),
        every=1000,
    )


def _check_counts(num_draws, num_warmup, thin):
    check_count("num_draws", num_draws)
    check_count("num_warmup", num_warmup, least=0)
    check_count("thin", thin)


def _checked(chains, x):
    """Return the starts as the sampler takes them, after all checks."""
    check_key(chains.key)
    check_interface("sampler", chains.sampler, Sampler, "HeatBath() or HMC(0.1)")
    x = _starts(x)
    check_energy(chains.energy, chains.params, x)
    return chains.sampler.prepare(chains.model, x)


def _starts(x):
    x = jax.tree.map(as_array, x)
    leaves = jax.tree.leaves(x)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves):
        raise ValueError("x must be starting states with a leading axis of chains")
    if len({len(leaf) for leaf in leaves}) > 1 or leaves[0].size == 0:
        shapes = jax.tree.map(jnp.shape, x)
        raise ValueError(f"x must have a start for each chain, got shape {shapes}")
    if not holds(is_finite, x):
        raise ValueError("chains must start at finite states, got NaN or infinity in x")
    return x


def _last(chains, before):
    """Return the states and the step at which an earlier run ended, after checks."""
    check_key(chains.key)
    check_interface("sampler", chains.sampler, Sampler, "HeatBath() or HMC(0.1)")
    expected = jax.eval_shape(chains.start, before.state.x)
    if jax.tree.structure(expected) != jax.tree.structure(before.state):
        name = type(chains.sampler).__name__
        raise ValueError(
            f"x must be a run of {name} to be continued by it; with another sampler, "
            "start from x=draws.state.x"
        )
    cached = chains.sampler.cached_terms(before.state)
    known = cached is not None and is_concrete((chains, before))
    if known and not _are_terms(chains, before.state.x, cached):
        raise ValueError(
            "x must be a run with the same energy and params to be continued; with "
            "others, start from x=draws.state.x"
        )
    return before.state, before.step


@jax.jit
def _are_terms(chains, x, cached):
    now = jax.vmap(chains.model.terms)(x)
    return jnp.allclose(now, cached, rtol=1e-3, atol=1e-3)


@jax.jit
def _step(sampler, key, model, state):
    """Take one step; compiled, so that it is traced once for all places that do."""
    state, info = sampler.step(key, model, state)
    return state, check_info(info)


@recipe
class _Chains:
    """Chains of a run, which differ by their keys and starts."""

    energy: Energy = static()
    key: PRNGKeyArray
    params: Params
    sampler: Sampler

    @property
    def model(self) -> Potential:
        return potential(self.energy, self.params)

    def start(self, x: State) -> Any:
        """Create the states of all chains at `x`."""

        def one(key, model, x):
            # Steps are numbered from 0, so no step has this number.
            return self.sampler.init(jax.random.fold_in(key, 2**31 - 1), model, x)

        return sharded_vmap(one, (0, None, 0))(self._keys(x), self.model, x)

    def observe(
        self, observer: Observer, now: "_Running", number: Array, moment: "_Moment"
    ) -> "_Running":
        """Take step `number` with all chains, and remember it as `moment` says."""
        states, info = self._step(now.states, number)
        is_first, count = moment.since == 0, moment.since + 1

        def sum_of(total, info):
            return jnp.where(is_first, info, total + info)

        totals = jax.tree.map(sum_of, now.totals, info)
        means = jax.tree.map(lambda leaf: leaf / count.astype(leaf.dtype), totals)
        memory = observer.add(now.memory, moment.draw, states.x, means, moment.is_draw)
        return _Running(states, totals, memory)

    def infos(self, states: Any) -> Any:
        """Return shapes and kinds of the reports of a step of all chains."""
        return jax.eval_shape(self._step, states, 0)[1]

    def _step(self, states, number):
        def one(key, state):
            key = random.fold_in(key, number)
            return _step(self.sampler, key, self.model, state)

        return sharded_vmap(one)(self._keys(states), states)

    def _keys(self, rows):
        return jax.random.split(self.key, len(jax.tree.leaves(rows)[0]))


class _Running(NamedTuple):
    """What changes with every step, leaves `(chain, ...)`."""

    states: Any
    """States of the sampler."""
    totals: Any
    """Sums of the reports since the last draw."""
    memory: Any
    """What the observer remembers."""


class _Moment(NamedTuple):
    """Place of a step among the draws."""

    draw: Array
    """Number of the draw that the step leads to."""
    since: Array
    """Number of steps taken since the draw before it."""
    is_draw: Array
    """Whether the step ends at the draw."""


class _Run(NamedTuple):
    """State of a run."""

    states: Any
    """States of the sampler, leaves `(chain, ...)`."""
    step: Array
    """Number of steps that every chain has taken."""
    made: Array
    """Number of draws made."""
    before: Array
    """Number of draws made before the last piece."""
    memory: Any
    """What the observer remembers."""


@jax.jit
def _begin(chains, observer, x):
    return _continue(chains, observer, chains.start(x), jnp.zeros((), int))


@jax.jit
def _continue(chains, observer, states, step):
    zero = jnp.zeros((), int)
    memory = observer.start(states.x, chains.infos(states))
    return _Run(states, step, zero, zero, memory)


def _advance(chains, observer, counts, now, limit):
    """Take at most `limit` steps of the warm-up, or make at most so many draws."""
    observe = _observe if is_eager((chains, now)) else _observe_static
    warmup, draws, total, thin = counts
    if limit is None:
        return observe(chains, observer, now, warmup, draws, thin)
    left = 0 if int(now.made) else warmup - int(now.step)
    if left > 0:
        return observe(chains, observer, now, min(limit, left), 0, thin)
    draws = min(limit, int(total) - int(now.made))
    return observe(chains, observer, now, 0, draws, thin)


def _observed(chains, observer, now, num_warmup, num_draws, thin):
    """Take `num_warmup` steps and then make `num_draws` draws, `thin` steps apart.

    In one loop over all steps: a loop within would cost as much as a step of a small
    model.
    """

    def step(number, running):
        place = jnp.maximum(number - num_warmup, 0)
        since = place % thin
        is_draw = (number >= num_warmup) & (since == thin - 1)
        moment = _Moment(now.made + place // thin, since, is_draw)
        return chains.observe(observer, running, now.step + number, moment)

    infos = chains.infos(now.states)
    totals = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), infos)
    first = _Running(now.states, shard_rows(totals), now.memory)
    num_steps = num_warmup + num_draws * thin
    states, _, memory = jax.lax.fori_loop(0, num_steps, step, first)
    made = now.made + num_draws
    return _Run(states, now.step + num_steps, made, now.made, memory)


# Traced counts make a run and its pieces one program, equal to the bit. Inside of a
# user's trace counts are static, as derivatives in reverse mode require.
_observe = jax.jit(_observed)
_observe_static = jax.jit(_observed, static_argnums=(3, 4, 5))


def _room(num_draws):
    """Return the power of two from `num_draws` on, so that few rooms serve all."""
    return 1 << (num_draws - 1).bit_length()


def _draws(now):
    """Return the draws made, fewer than asked for if a callback stopped the run."""
    made = int(now.made) if is_concrete(now) else len(jax.tree.leaves(now.memory)[0])
    x, info = _cut(now.memory, 0, made)
    return Draws(x, info, now.states, now.step)


def _newest(now):
    """Return the draws of the last piece; None while the chains warm up."""
    first, made = int(now.before), int(now.made)
    if first == made:
        return None
    x, info = _cut(now.memory, first, made - first)
    return Draws(x, info, now.states, now.step)


def _cut(memory, first, count):
    """Return `count` draws from number `first` on, leaves `(chain, draw, ...)`."""
    if not (is_concrete(memory) and is_on_host(memory)):
        return _cut_on_device(memory, first, count)

    def cut(leaf):
        # By NumPy: jax would compile it for every number of draws.
        return as_array(np.asarray(leaf)[first : first + count].swapaxes(0, 1))

    return jax.tree.map(cut, memory)


@partial(jax.jit, static_argnums=2)
def _cut_on_device(memory, first, count):
    def cut(leaf):
        return jax.lax.dynamic_slice_in_dim(leaf, first, count).swapaxes(0, 1)

    return shard_rows(jax.tree.map(cut, memory))


@jax.jit
def _means(now):
    def of_leaf(mean, squares):
        overall = mean.mean(0)
        stderr = mean.std(0, ddof=1) / jnp.sqrt(len(mean))
        return overall, stderr, squares.mean(0) / now.made + mean.var(0)

    running = Running(now.made, *now.memory)
    form = jax.tree.structure(running.mean)
    leaves = zip(
        jax.tree.leaves(running.mean), jax.tree.leaves(running.spread), strict=True
    )
    parts = [of_leaf(*pair) for pair in leaves]
    mean, stderr, variance = (form.unflatten(part) for part in zip(*parts, strict=True))
    return Means(mean, stderr, variance, running.info, now.states, now.step, running)


def _itself(run):
    return run
