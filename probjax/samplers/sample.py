"""Drivers of samplers: many chains, with warm-up, thinning, draws or running means.

A run is a loop over steps of all chains (`probjax.samplers.chain_loop`), which the
driver advances in compiled pieces. Interrupted chains continue exactly where they were.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

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
from probjax.devices import shard_rows
from probjax.energies import check_energy
from probjax.interfaces import Sampler
from probjax.runs.driver import Job, Watch, driver, run, undifferentiable
from probjax.samplers.chain_loop import (
    Chains,
    Counts,
    RunState,
    advance,
    continue_run,
    start_run,
)
from probjax.samplers.draws import Draws, Means, Running
from probjax.samplers.observers import Average, Store, averaged
from probjax.trees import (
    as_array,
    copied,
    first_row,
)
from probjax.types import (
    Energy,
    Params,
    PRNGKeyArray,
    PyTree,
    State,
    map_states,
    split_inputs,
)

NO_GRADIENT = (
    "moves are accepted or rejected, which has no gradient; try "
    "jax.lax.stop_gradient(params), and differentiate the energy of the draws"
)


@driver
@undifferentiable(NO_GRADIENT)
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
    """Draw from exp(-energy) with Markov chains, one from each row of `x`.

    Args:
        x: starting states with a leading axis of chains; `spread` them over devices to
            distribute the chains. If they are a `Conditioned`, each chain has inputs of
            its own. Or the `Draws` of an earlier run with the same
            arguments, to continue it without another warm-up: the new draws are, bit by
            bit, those that the earlier run would have made next.
        num_draws: number of states to store from each chain.
        num_warmup: number of steps before the first draw.
        thin: number of steps from one draw to the next.
        watch: callback and checkpoint. The callback receives the draws made since the
            previous call; see also `progress_bar`. A checkpoint holds all draws.

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
    arguments = dict(locals())
    _check_counts(num_draws, num_warmup, thin)
    chains = Chains(energy, key, params, sampler, _inputs_of_chains(x))
    observer = Store(_capacity(num_draws) if is_eager((chains, x)) else num_draws)
    if isinstance(x, Draws):
        num_warmup = 0
        begin = partial(continue_run, chains, observer, *_checked_end(chains, x))
    else:
        arguments["x"] = x = _checked_starts(chains, x)
        begin = partial(start_run, chains, observer, split_inputs(x)[0])
    counts = Counts(num_warmup, num_draws, num_draws, thin)
    job = _job(chains, observer, begin, counts)
    job = job._replace(
        report=_newest, finish=lambda now, stopped: _draws(now), every=100
    )
    return run("sample", arguments, job, watch)


@driver
@undifferentiable(NO_GRADIENT)
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
        statistic: function of one state, defined at module level like an energy.
        num_draws: number of states of each chain to average over.
        num_warmup: number of steps before the first draw.
        thin: number of steps from one draw to the next.
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
    arguments = dict(locals())
    _check_counts(num_draws, num_warmup, thin)
    chains = Chains(energy, key, params, sampler, _inputs_of_chains(x))
    observer, total = Average(statistic), num_draws
    if isinstance(x, Means):
        num_warmup = 0
        states, step = _checked_end(chains, x)
        total = x.running.num_draws + num_draws
        begin = partial(_continued, *copied((states, step, x.running)))
    else:
        arguments["x"] = x = _checked_starts(chains, x)
        begin = partial(start_run, chains, observer, split_inputs(x)[0])
    counts = Counts(num_warmup, num_draws, total, thin)
    job = _job(chains, observer, begin, counts)
    return run("sample_mean", arguments, job, watch)


def _job(chains, observer, begin, counts):
    """Describe a run to the driver. It reports and returns means."""
    inputs = chains.inputs
    return Job(
        begin=begin,
        advance=partial(advance, chains, observer, counts),
        is_over=lambda now: int(now.made) >= int(counts.total),
        report=lambda now: _means(now, inputs) if int(now.made) > 0 else None,
        finish=lambda now, stopped: _means(now, inputs),
        every=1000,
    )


def _check_counts(num_draws, num_warmup, thin):
    check_count("num_draws", num_draws)
    check_count("num_warmup", num_warmup, least=0)
    check_count("thin", thin)


def _check_sampler(chains):
    check_key(chains.key)
    check_interface("sampler", chains.sampler, Sampler, "HeatBath() or HMC(0.1)")


def _checked_starts(chains, x):
    """Return the starting states in the form that the sampler requires, checked."""
    _check_sampler(chains)
    x = jax.tree.map(as_array, x)
    leaves = jax.tree.leaves(x)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves):
        found = "scalars" if leaves else "no arrays"
        raise ValueError(
            f"x must be starting states with a leading axis of chains, got {found}"
        )
    if len({len(leaf) for leaf in leaves}) > 1 or leaves[0].size == 0:
        shapes = jax.tree.map(jnp.shape, x)
        raise ValueError(f"x must have a start for each chain, got shape {shapes}")
    if not holds(is_finite, x):
        raise ValueError("chains must start at finite states, got NaN or infinity in x")
    check_energy(chains.energy, chains.params, x)
    model = chains.model(first_row(chains.inputs))
    return map_states(partial(chains.sampler.prepare, model), x)


def _inputs_of_chains(x):
    """Return the inputs of the chains that start or continue at `x`."""
    if isinstance(x, Means):
        return x.inputs
    if isinstance(x, Draws):
        return jax.tree.map(lambda leaf: leaf[:, -1], split_inputs(x.x)[1])
    return jax.tree.map(as_array, split_inputs(x)[1])


def _checked_end(chains, before):
    """Return the states and the step at which an earlier run ended, checked."""
    _check_sampler(chains)
    expected = jax.eval_shape(chains.init, before.state.x)
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
    """Whether `cached` are the energies at `x`."""
    now = jax.vmap(lambda inputs, x: chains.model(inputs).terms(x))(chains.inputs, x)
    return jnp.allclose(now, cached, rtol=1e-3, atol=1e-3)


def _capacity(num_draws):
    """Return the next power of two, so that few programs serve all numbers of draws."""
    return 1 << (num_draws - 1).bit_length()


def _draws(now):
    """Return all draws; fewer than requested if a callback stopped the run."""
    stored = now.accumulator
    made = int(now.made) if is_concrete(now) else len(jax.tree.leaves(stored)[0])
    x, info = _cut(stored, 0, made)
    return Draws(x, info, now.states, now.step)


def _newest(now):
    """Return the draws of the last piece; None during the warm-up."""
    first, made = int(now.before), int(now.made)
    if first == made:
        return None
    x, info = _cut(now.accumulator, first, made - first)
    return Draws(x, info, now.states, now.step)


def _cut(stored, first, count):
    """Return `count` draws from index `first` on, leaves `(chain, draw, ...)`."""
    if not (is_concrete(stored) and is_on_host(stored)):
        return _cut_on_device(stored, first, count)

    def cut(leaf):
        # With NumPy, because JAX would compile a program for every number of draws. The
        # array is read through another one, which does not keep what it has read, and
        # its numbers are copied, so that the next piece can overwrite it.
        draws = np.asarray(leaf.addressable_data(0))[first : first + count]
        return as_array(np.array(draws.swapaxes(0, 1), order="C"))

    return jax.tree.map(cut, stored)


@partial(jax.jit, static_argnums=2)
def _cut_on_device(stored, first, count):
    def cut(leaf):
        return jax.lax.dynamic_slice_in_dim(leaf, first, count).swapaxes(0, 1)

    return shard_rows(jax.tree.map(cut, stored))


@jax.jit
def _means(now, inputs):
    """Combine the moments of all chains."""

    def of_leaf(mean, squares):
        overall, count = mean.mean(0), now.made.astype(mean.dtype)
        stderr = mean.std(0, ddof=1) / jnp.sqrt(len(mean))
        return overall, stderr, squares.mean(0) / count + mean.var(0)

    running = Running(now.made, *now.accumulator)
    means, squares, info = now.accumulator.moments
    structure = jax.tree.structure(means)
    leaves = zip(jax.tree.leaves(means), jax.tree.leaves(squares), strict=True)
    parts = [of_leaf(*pair) for pair in leaves]
    mean, stderr, variance = (
        structure.unflatten(part) for part in zip(*parts, strict=True)
    )
    return Means(mean, stderr, variance, info, now.states, now.step, running, inputs)


@jax.jit
def _continued(states, step, running):
    """Create the state of a run that adds draws to the moments of an earlier one."""
    made, *moments = running
    return RunState(states, step, made, made, averaged(*moments))
