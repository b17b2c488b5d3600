"""Warm-up that finds the step and the metric of a sampler, and then leaves them alone.

All chains take steps together. The step size follows their mean acceptance by dual
averaging,

    log e_t = m - sqrt(t) / gamma  mean over s <= t of (target - accept_s),

of which a weighted mean is kept; the metric is the spread of the chains over one stage,
used in the next. Stages double in length. What comes out is a plain recipe with numbers
in it: draws made while they move are no draws of the model, and are forgotten.

Reference: Hoffman and Gelman, JMLR 15, 1593 (2014); Nesterov, Math. Program. 120, 221
(2009); windows after Stan's reference manual.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count, check_interface
from probjax.data.rows import as_data, num_rows
from probjax.interfaces import Sampler
from probjax.potential import check_energy, potential
from probjax.runs.driver import driver
from probjax.states import num_sites
from probjax.trees import float_dtype
from probjax.types import (
    Array,
    Data,
    Energy,
    Params,
    PRNGKeyArray,
    Scalar,
    State,
    check_info,
)

NUM_STAGES = 5
# Gentler than for one chain, whose acceptance is noise: that of many is a signal.
GAMMA, KAPPA, DELAY = 0.5, 0.75, 10


class Spread(NamedTuple):
    """How a metric is made of the draws of a stage."""

    form: Literal["lengths", "matrix"]
    """Form of the metric, one of `Sampler.metrics`."""
    square: Callable[[Array], Array]
    """What is averaged, of how far a draw is from the mean."""
    metric: Callable[[Array], Array]
    """The metric, of that average."""
    unit: Callable[[int], Array]
    """What the average is of independent coordinates of unit variance."""


def _outer(away):
    return jnp.outer(away, away)


LENGTHS = Spread("lengths", jnp.square, jnp.sqrt, jnp.ones)
"""One length for each coordinate: their standard deviations."""
MATRIX = Spread("matrix", _outer, jnp.linalg.cholesky, jnp.eye)
"""A matrix A with AA' the covariance, for coordinates that hang together."""


class Tuned(NamedTuple):
    """The outcome of `tune`."""

    sampler: Any
    """The sampler with its step size, and its metric, found."""
    x: State
    """Where the chains are, leaves `(chain, ...)`: start from there."""
    accept: Scalar
    """The mean acceptance in the last stage."""


@driver
def tune(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    x: State,
    *,
    sampler: Sampler,
    num_steps: int = 1000,
    target: float | None = None,
    spread: Spread | None = LENGTHS,
) -> Tuned:
    """Find the step size, and the metric, of a sampler by running it.

    Args:
        x: starting states with a leading axis of chains; the more there are, the
            sooner their spread is known.
        sampler: a sampler with a `target_acceptance`, such as `HMC`; its step size and
            metric are the first to be tried.
        num_steps: total number of steps.
        target: mean acceptance to reach; None for the sampler's `target_acceptance`.
        spread: `LENGTHS`, `MATRIX`, or None to leave the metric as it is. A sampler
            without a metric has only its step size adapted.

    >>> from probjax import HMC, Gaussian
    >>> target, x = Gaussian(2, scale=10.0), jnp.zeros((50, 2))
    >>> args = jax.random.key(0), Gaussian.energy, target, x
    >>> found = tune(*args, sampler=HMC(1.0), num_steps=320, spread=None)
    >>> bool(abs(found.accept - 0.9) < 0.1), bool(found.sampler.step_size > 5)
    (True, True)
    """
    check_interface("sampler", sampler, Sampler, "HMC(0.1)")
    if sampler.target_acceptance is None:
        raise ValueError(
            "sampler must have a target_acceptance to be tuned to, as HMC has, got "
            f"{sampler}"
        )
    target = sampler.target_acceptance if target is None else target
    spread = spread if sampler.metrics else None
    check_count("num_steps", num_steps, least=10 * 2**NUM_STAGES)
    if not 0 < target < 1:
        raise ValueError(f"target must be between 0 and 1, got {target}")
    x = as_data(x).x
    check_energy(energy, params, x)
    x = sampler.prepare(potential(energy, params), x)
    size, kind = num_sites(x), float_dtype(x)
    # Of the type that stages return: a plain number would compile the first one twice.
    metric = None
    if spread is not None and sampler.metric is None:
        metric = spread.metric(spread.unit(size)).astype(kind)
    sampler = sampler.adapted(jnp.asarray(sampler.step_size, kind), metric)
    accept = jnp.asarray(jnp.nan)
    for stage, count in enumerate(_stage_lengths(num_steps)):
        last = stage == NUM_STAGES - 1
        stage_key = jax.random.fold_in(key, stage)
        # Not of the first: until steps have the right size, chains have no spread.
        learned = None if stage == 0 or last else spread
        sampler, x, accept = _stage(
            stage_key, energy, params, x, sampler, target, count, learned
        )
    return Tuned(sampler, x, accept)


def _stage_lengths(num_steps):
    """Each twice the one before."""
    shares = 2.0 ** np.arange(NUM_STAGES)
    return np.diff(np.round(num_steps * np.cumsum(shares) / shares.sum()), prepend=0)


class _Averaging(NamedTuple):
    """Dual averaging of the logarithm of the step size."""

    steps: Scalar
    miss: Scalar
    log_step: Scalar
    mean_log_step: Scalar
    accept: Scalar


class _Moments(NamedTuple):
    """Of all draws of a stage."""

    total: Scalar
    mean: Array
    square: Array


@partial(jax.jit, static_argnums=(1, 7))
def _stage(key, energy, params, x, sampler, target, num_steps, spread):
    model, kind = potential(energy, params), float_dtype(x)
    first = jnp.log(jnp.asarray(sampler.step_size, kind))
    keys = jax.random.split(key, num_rows(Data(x)))

    def step(number, carry):
        states, averaging, moments = carry
        current = sampler.adapted(jnp.exp(averaging.log_step))
        now = jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
        states, info = jax.vmap(current.step, (0, None, 0))(now, model, states)
        accept = check_info(info).acceptance.mean()
        averaging = _follow(first, averaging, accept, target)
        if spread is not None:
            moments = _merged(spread, moments, _moments(spread, states.x))
        return states, averaging, moments

    # Steps are numbered from 0, so no step has this number.
    now = jax.vmap(lambda key: jax.random.fold_in(key, 2**31 - 1))(keys)
    states = jax.vmap(sampler.init, (0, None, 0))(now, model, x)
    zero = jnp.zeros((), kind)
    averaging = _Averaging(zero, zero, first, first, zero)
    moments = ()
    if spread is not None:
        moments = jax.tree.map(jnp.zeros_like, _moments(spread, x))
    count = jnp.asarray(num_steps, int)
    carry = (states, averaging, moments)
    states, averaging, moments = jax.lax.fori_loop(0, count, step, carry)
    metric = None
    if spread is not None:
        metric = spread.metric(_shrunk(spread, moments)).astype(kind)
        moved = averaging.accept > target / 2
        metric = jnp.where(moved, metric, sampler.metric)
    found = sampler.adapted(jnp.exp(averaging.mean_log_step), metric)
    return found, states.x, averaging.accept


def _follow(first, averaging, accept, target):
    count = averaging.steps + 1
    share = 1 / (count + DELAY)
    miss = (1 - share) * averaging.miss + share * (target - accept)
    log_step = first - jnp.sqrt(count) / GAMMA * miss
    share = count**-KAPPA
    mean = share * log_step + (1 - share) * averaging.mean_log_step
    mean_accept = averaging.accept + (accept - averaging.accept) / count
    return _Averaging(count, miss, log_step, mean, mean_accept)


def _moments(spread, x):
    rows = jax.vmap(lambda row: ravel_pytree(row)[0])(x)
    mean = rows.mean(0)
    square = jax.vmap(spread.square)(rows - mean[None]).mean(0)
    return _Moments(jnp.asarray(len(rows), rows.dtype), mean, square)


def _merged(spread, first, second):
    total = first.total + second.total
    share = second.total / total
    change = second.mean - first.mean
    within = first.square + share * (second.square - first.square)
    square = within + share * (1 - share) * spread.square(change)
    return _Moments(total, first.mean + share * change, square)


def _shrunk(spread, moments):
    """Covariances a little towards none, the less the more draws there are."""
    size = len(moments.mean)
    unit = spread.unit(size).astype(moments.square.dtype)
    weight = moments.total / (moments.total + size + 5)
    mixed = weight * moments.square + (1 - weight) * unit * moments.square
    # What never moved has no length: it is given one that can be divided by.
    return mixed + unit * jnp.finfo(mixed.dtype).tiny
