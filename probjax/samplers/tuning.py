"""Warm-up that adapts the step size and the metric of a sampler.

All chains take steps together. Dual averaging adapts the step size e to their mean
acceptance,

    log e_t = m - sqrt(t) / gamma  mean over s <= t of (target - accept_s),

and the result is a weighted mean of log e_t. The metric is estimated from the spread of
the chains in one stage and used in the next; stages double in length. The result is a
sampler with fixed numbers. States visited during the adaptation are not samples of the
model, so they are discarded.

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
from probjax.energies import check_energy
from probjax.interfaces import Sampler
from probjax.potential import potential
from probjax.runs.driver import driver, undifferentiable
from probjax.samplers.adaptation import limited
from probjax.samplers.sample import NO_GRADIENT
from probjax.states import num_sites
from probjax.trees import first_row, float_dtype
from probjax.types import (
    Array,
    Data,
    Energy,
    Params,
    PRNGKeyArray,
    Scalar,
    State,
    check_info,
    split_inputs,
    with_inputs,
)

NUM_STAGES = 5
# GAMMA is ten times the usual value for one chain, so that the step size changes more
# gently: the mean acceptance of many chains has little noise.
GAMMA, KAPPA, DELAY = 0.5, 0.75, 10


class Spread(NamedTuple):
    """Rule that computes a metric from the (co)variance of the draws of a stage."""

    form: Literal["lengths", "matrix"]
    """Form of the metric, one of `Sampler.metrics`."""
    square: Callable[[Array], Array]
    """Square or outer product of a deviation from the mean, whose average is the
    variance or covariance."""
    metric: Callable[[Array], Array]
    """Metric as a function of that average."""
    unit: Callable[[int], Array]
    """Value of that average for n independent coordinates of unit variance."""


def _cholesky(covariance):
    # A function of this module can be pickled, unlike the one of jax.numpy.
    return jnp.linalg.cholesky(covariance)


def _outer(deviation):
    return jnp.outer(deviation, deviation)


LENGTHS = Spread("lengths", jnp.square, jnp.sqrt, jnp.ones)
"""One length for each coordinate: its standard deviation."""
MATRIX = Spread("matrix", _outer, _cholesky, jnp.eye)
"""A matrix A with AA' the covariance, for correlated coordinates."""


class Tuned(NamedTuple):
    """Result of `tune`."""

    sampler: Any
    """Sampler with the adapted step size and metric."""
    x: State
    """Last states of the chains, leaves `(chain, ...)`, from which to start `sample`.
    """
    accept: Scalar
    """Mean acceptance in the last stage."""


@driver
@undifferentiable(NO_GRADIENT)
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
    """Adapt the step size and the metric of a sampler in a warm-up.

    Args:
        x: starting states with a leading axis of chains. With more chains, fewer steps
            suffice to estimate the metric.
        sampler: sampler with a `target_acceptance`, such as `HMC`; its step size and
            metric are the initial ones.
        num_steps: total number of steps, at least 320.
        target: mean acceptance to reach; None for the sampler's `target_acceptance`.
        spread: form of the metric: `LENGTHS`, `MATRIX`, or None to keep the sampler's
            metric. For a sampler without a metric only the step size is adapted.

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
            "sampler must have a target_acceptance, to which its step size can be "
            f"adapted, got {sampler}; try HMC(0.1)"
        )
    target = sampler.target_acceptance if target is None else target
    spread = spread if sampler.metrics else None
    check_count("num_steps", num_steps, least=10 * 2**NUM_STAGES)
    if not 0 < target < 1:
        raise ValueError(f"target must be between 0 and 1, got {target}")
    x = as_data(x).x
    check_energy(energy, params, x)
    x, inputs = split_inputs(x)
    x = sampler.prepare(potential(energy, params, first_row(inputs)), x)
    size, dtype = num_sites(x), float_dtype(x)
    # Stages return arrays of this dtype: a number would compile a second program.
    metric = None
    if spread is not None and sampler.metric is None:
        metric = spread.metric(spread.unit(size)).astype(dtype)
    sampler = sampler.adapted(jnp.asarray(sampler.step_size, dtype), metric)
    accept = jnp.zeros((), dtype)
    for stage, count in enumerate(_stage_lengths(num_steps)):
        last = stage == NUM_STAGES - 1
        stage_key = jax.random.fold_in(key, stage)
        # In the first stage the chains may not have moved far enough to estimate the
        # metric; in the last, only the step size is adapted to the metric.
        estimated = None if stage == 0 or last else spread
        sampler, x, accept = _stage(
            stage_key, energy, params, inputs, x, sampler, target, count, estimated
        )
    return Tuned(sampler, with_inputs(x, inputs), accept)


def _stage_lengths(num_steps):
    """Return the number of steps of each stage; it doubles from one to the next."""
    shares = 2.0 ** np.arange(NUM_STAGES)
    return np.diff(np.round(num_steps * np.cumsum(shares) / shares.sum()), prepend=0)


class _Averaging(NamedTuple):
    """Dual averaging of the logarithm of the step size."""

    steps: Scalar
    """Number of steps of the stage so far."""
    shortfall: Scalar
    """Mean of (target - acceptance)."""
    log_step: Scalar
    mean_log_step: Scalar
    """Weighted mean of `log_step`."""
    accept: Scalar
    """Mean acceptance."""


class _Moments(NamedTuple):
    """Moments of all draws of a stage."""

    total: Scalar
    """Number of draws."""
    mean: Array
    square: Array
    """Variance or covariance, according to `Spread.square`."""


@partial(jax.jit, static_argnums=(1, 8))
def _stage(key, energy, params, inputs, x, sampler, target, num_steps, spread):
    """Run one stage and return the adapted sampler, the states and the acceptance."""
    dtype = float_dtype(x)
    first = jnp.log(jnp.asarray(sampler.step_size, dtype))
    keys = jax.random.split(key, num_rows(Data(x)))

    def step(number, carry):
        states, averaging, moments = carry
        current = sampler.adapted(jnp.exp(averaging.log_step))
        step_keys = jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)

        def one(key, inputs, state):
            return current.step(key, potential(energy, params, inputs), state)

        states, info = jax.vmap(one)(step_keys, inputs, states)
        accept = check_info(info).acceptance.mean()
        averaging = _averaged(first, averaging, accept, target, sampler.max_step_size)
        if spread is not None:
            moments = _merged(spread, moments, _moments(spread, states.x))
        return states, averaging, moments

    def start(key, inputs, x):
        return sampler.init(key, potential(energy, params, inputs), x)

    # Steps are numbered from 0, so no step has this number.
    init_keys = jax.vmap(lambda key: jax.random.fold_in(key, 2**31 - 1))(keys)
    states = jax.vmap(start)(init_keys, inputs, x)
    zero = jnp.zeros((), dtype)
    averaging = _Averaging(zero, zero, first, first, zero)
    moments = ()
    if spread is not None:
        moments = jax.tree.map(jnp.zeros_like, _moments(spread, x))
    count = jnp.asarray(num_steps, int)
    carry = (states, averaging, moments)
    states, averaging, moments = jax.lax.fori_loop(0, count, step, carry)
    metric = None
    if spread is not None:
        metric = spread.metric(_shrunk(spread, moments)).astype(dtype)
        # Chains that rejected too much have not moved enough to estimate a metric.
        moved = averaging.accept > target / 2
        metric = jnp.where(moved, metric, sampler.metric)
    adapted = sampler.adapted(jnp.exp(averaging.mean_log_step), metric)
    return adapted, states.x, averaging.accept


def _averaged(first, averaging, accept, target, max_step_size):
    """Update the dual averaging after a step with mean acceptance `accept`."""
    count = averaging.steps + 1
    weight = 1 / (count + DELAY)
    shortfall = (1 - weight) * averaging.shortfall + weight * (target - accept)
    log_step = limited(first - jnp.sqrt(count) / GAMMA * shortfall, max_step_size)
    weight = count**-KAPPA
    mean = weight * log_step + (1 - weight) * averaging.mean_log_step
    mean_accept = averaging.accept + (accept - averaging.accept) / count
    return _Averaging(count, shortfall, log_step, mean, mean_accept)


def _moments(spread, x):
    """Compute the moments of one state of every chain."""
    rows = jax.vmap(lambda row: ravel_pytree(row)[0])(x)
    mean = rows.mean(0)
    square = jax.vmap(spread.square)(rows - mean[None]).mean(0)
    return _Moments(jnp.asarray(len(rows), rows.dtype), mean, square)


def _merged(spread, first, second):
    """Combine the moments of two sets of draws."""
    total = first.total + second.total
    share = second.total / total
    change = second.mean - first.mean
    within = first.square + share * (second.square - first.square)
    square = within + share * (1 - share) * spread.square(change)
    return _Moments(total, first.mean + share * change, square)


def _shrunk(spread, moments):
    """Shrink covariances towards zero, less so with more draws."""
    size = len(moments.mean)
    unit = spread.unit(size).astype(moments.square.dtype)
    weight = moments.total / (moments.total + size + 5)
    mixed = weight * moments.square + (1 - weight) * unit * moments.square
    # A coordinate that never moved gets a tiny variance, because a metric must be
    # positive.
    return mixed + unit * jnp.finfo(mixed.dtype).tiny
