"""Exact sums over all states of a small discrete space.

    log Z = log sum_x exp(-E(x)),   p(x) = exp(-E(x) - log Z),   x in {0, ..., q-1}^d

State number i consists of the digits of i in base q, with site 0 the most significant,
so tables of all q^d states have the order of `itertools.product`. The sums visit states
in blocks and keep running sums only, also in reverse-mode differentiation, so memory is
bounded. At most 2^22 states are allowed. Energies and statistics are static arguments
of compiled functions: pass module-level functions, so that new `params` do not
recompile.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import logsumexp

from probjax.data.rows import as_data, refuse_mask
from probjax.exact.enumeration_blocks import (
    blocks,
    count_states,
    digits,
    energies,
    weighted_sums,
)
from probjax.states import letters
from probjax.trees import float_dtype
from probjax.types import (
    Array,
    ArrayLike,
    Data,
    Energy,
    Float,
    Params,
    PRNGKeyArray,
    PyTree,
    Scalar,
)


class Moments(NamedTuple):
    """First and second moments of a distribution over states.

    >>> def independent(bias, x):
    ...     return bias @ x
    >>> both = moments(independent, jnp.zeros(2), 2)
    >>> both.mean.tolist(), both.second.tolist()
    ([0.5, 0.5], [[0.5, 0.25], [0.25, 0.5]])
    """

    mean: Float[Array, " site"]
    """E[x_i]."""
    second: Float[Array, "site site"]
    """E[x_i x_j]."""


def states(
    size: int, *, num_states: int = 2, start: int = 0, count: int | None = None
) -> Float[Array, "count size"]:
    """Return states number `start` to `start + count - 1`.

    Args:
        size: number of sites.
        num_states: number of values of each site.
        start: number of the first state.
        count: how many states to return; None for all from `start` on.

    >>> states(2).tolist()
    [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    total = count_states(size, num_states)
    count = total - start if count is None else count
    if start < 0 or count < 1 or start + count > total:
        raise ValueError(
            f"start and count must select some of the states 0 to {total - 1}, got "
            f"start={start} and count={count}"
        )
    dtype = jnp.result_type(float)
    return digits(start + jnp.arange(count), size, num_states, dtype)


def log_z(energy: Energy, params: Params, size: int, *, num_states: int = 2) -> Scalar:
    """Compute the log partition function, log sum_x exp(-E(x)).

    It is differentiable in `params`, with the gradient d log Z = -E[dE].

    >>> def independent(bias, x):
    ...     return bias @ x
    >>> float(jnp.exp(log_z(independent, jnp.zeros(3), 3)))
    8.0

    Args:
        energy: module-level function of `(params, x)` with `x` one state `(size,)`.
        size: number of sites.
        num_states: number of values of each site, which are 0, ..., num_states - 1.
    """
    count_states(size, num_states)
    return _log_z(energy, params, size, num_states)


def log_probs(
    energy: Energy, params: Params, size: int, *, num_states: int = 2
) -> Float[Array, " state"]:
    """Return the table of log p(x) = -E(x) - log Z, in the order of `states`.

    >>> def independent(bias, x):
    ...     return bias @ x
    >>> table = log_probs(independent, jnp.log(jnp.array([3.0, 1.0])), 2)
    >>> [round(float(p), 3) for p in jnp.exp(table)]  # p(x_0 = 1) = 1/4
    [0.375, 0.375, 0.125, 0.125]
    """
    count_states(size, num_states)
    return _log_probs(energy, params, size, num_states)


def log_likelihood(
    energy: Energy, params: Params, data: ArrayLike | Data, *, num_states: int = 2
) -> Scalar:
    """Compute the mean of log p(x) over rows, in nats per row.

    It is differentiable in `params`.

    >>> def independent(bias, x):
    ...     return bias @ x
    >>> odds = -jnp.log(jnp.array([3.0, 1.0]))  # p(x_i = 1) = 3/4 and 1/2
    >>> p = jnp.exp(log_likelihood(independent, odds, jnp.array([[1, 0]])))
    >>> round(float(p), 4)
    0.375

    Args:
        data: complete rows `(row, site)`, with weights as `Data`.
        num_states: number of values of each site, as for `log_z`.
    """
    data = as_data(data)
    refuse_mask(data, "log p is computed for complete rows only")
    shape = jax.tree.map(jnp.shape, data.x)
    if getattr(data.x, "ndim", None) != 2:
        raise ValueError(f"data must be (row, site), got shape {shape}")
    x = letters(data.x, num_states=num_states)
    count_states(x.shape[1], num_states)
    return _log_likelihood(energy, params, x, data.weights, num_states)


def expectation(
    energy: Energy,
    statistic: Callable[[Array], PyTree],
    params: Params,
    size: int,
    *,
    num_states: int = 2,
) -> PyTree:
    """Compute the expectation of a statistic, sum_x p(x) f(x).

    It is differentiable in `params`.

    Args:
        statistic: module-level function f of one state that returns a pytree of arrays.

    >>> def independent(bias, x):
    ...     return bias @ x
    >>> float(expectation(independent, jnp.sum, jnp.zeros(3), 3))  # mean number of ones
    1.5
    """
    count_states(size, num_states)
    return _expectation(energy, statistic, params, size, num_states)


def moments(
    energy: Energy, params: Params, size: int, *, num_states: int = 2
) -> Moments:
    """Compute E[x_i] and E[x_i x_j] under the model.

    >>> def independent(bias, x):
    ...     return bias @ x
    >>> moments(independent, jnp.zeros(2), 2).second.tolist()
    [[0.5, 0.25], [0.25, 0.5]]
    """
    count_states(size, num_states)
    return _moments(energy, params, size, num_states)


def sample(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    size: int,
    *,
    num_draws: int,
    num_states: int = 2,
) -> Float[Array, "num_draws size"]:
    """Draw exact independent states, site after site from p(x_k | x_0, ..., x_{k-1}).

    The probability of the first k digits is a sum of neighbouring entries of the table,
    so a pyramid of partial sums contains every conditional. Each site has its own
    random number, so states of small probability are not lost to the resolution of a
    single one.

    >>> def independent(bias, x):
    ...     return bias @ x
    >>> bias = jnp.array([50.0, -50.0])
    >>> sample(jax.random.key(0), independent, bias, 2, num_draws=3).tolist()
    [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    """
    count_states(size, num_states)
    if num_draws < 1:
        raise ValueError(f"num_draws must be at least 1, got {num_draws}")
    return _sample(key, energy, params, size, num_draws, num_states)


def entropy(log_p: Float[Array, " state"]) -> Scalar:
    """Compute the entropy -sum_x p(x) log p(x) in nats, with 0 log 0 = 0.

    Args:
        log_p: table of log probabilities.

    >>> round(float(entropy(jnp.log(jnp.array([0.5, 0.5, 0.0])))), 4)  # log 2
    0.6931
    """
    return -jnp.sum(jnp.exp(log_p) * jnp.where(log_p > -jnp.inf, log_p, 0.0))


def kl(log_p: Float[Array, " state"], log_q: Float[Array, " state"]) -> Scalar:
    """Compute KL(p||q) = sum_x p(x) log(p(x) / q(x)) in nats.

    States with p(x) = 0 contribute 0. The result is infinite if q(x) = 0 for a state
    with p(x) > 0. If p is close to q, the terms of this sum cancel. The terms
    q - p - p log(q / p) are never negative and have the same sum, because q - p adds up
    to 0, so the function sums these.

    Args:
        log_p: table of normalised log probabilities.
        log_q: table for the same states.

    >>> p, q = jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5])
    >>> round(float(kl(jnp.log(p), jnp.log(q))), 4)  # log 2
    0.6931
    """
    if log_p.shape != log_q.shape:
        raise ValueError(
            "log_p and log_q must be tables of the same states, "
            f"got shapes {log_p.shape} and {log_q.shape}"
        )
    p, q = jnp.exp(log_p), jnp.exp(log_q)
    possible = p > 0
    log_ratio = jnp.where(possible, log_q - jnp.where(possible, log_p, 0.0), 0.0)
    near = jnp.abs(log_ratio) < 1
    small = jnp.where(near, log_ratio, 0.0)
    terms = jnp.where(near, p * (jnp.expm1(small) - small), q - p - p * log_ratio)
    return jnp.sum(jnp.where(possible, terms, q))


_sum = partial(jnp.tensordot, axes=1, precision="highest")
_compiled = partial(jax.jit, static_argnames=("energy", "size", "num_states"))


@_compiled
def _log_z(energy, params, size, num_states):
    largest, weight_sum, _ = weighted_sums(
        energy, lambda weight, x: (), params, size, num_states
    )
    return largest + jnp.log(weight_sum)


@partial(jax.jit, static_argnames=("energy", "num_states"))
def _log_likelihood(energy, params, x, weights, num_states):
    mean = jnp.average(energies(energy, params, x), weights=weights)
    return -mean - _log_z(energy, params, x.shape[1], num_states)


@_compiled
def _log_probs(energy, params, size, num_states):
    block, heads = blocks(size, num_states, float_dtype(params))
    log_weights = jax.checkpoint(lambda head: -energies(energy, params, block(head)))
    log_weight = jax.lax.map(log_weights, heads).reshape(-1)
    return log_weight - logsumexp(log_weight)


@partial(jax.jit, static_argnames=("energy", "statistic", "size", "num_states"))
def _expectation(energy, statistic, params, size, num_states):
    def reduce(weight, x):
        def mean(leaf: Any):
            return _sum(weight, leaf.astype(weight.dtype))

        return jax.tree.map(mean, jax.vmap(statistic)(x))

    _, weight_sum, sums = weighted_sums(energy, reduce, params, size, num_states)
    return jax.tree.map(lambda leaf: leaf / weight_sum, sums)


@_compiled
def _moments(energy, params, size, num_states):
    def reduce(weight, x):
        return Moments(_sum(weight, x), _sum((weight[:, None] * x).T, x))

    _, weight_sum, sums = weighted_sums(energy, reduce, params, size, num_states)
    return jax.tree.map(lambda leaf: leaf / weight_sum, sums)


@partial(jax.jit, static_argnames=("energy", "size", "num_draws", "num_states"))
def _sample(key, energy, params, size, num_draws, num_states):
    # Level i has one row for every prefix of i sites: the log marginal of site i.
    levels = [_log_probs(energy, params, size, num_states).reshape(-1, num_states)]
    for _ in range(size - 1):
        levels.append(logsumexp(levels[-1], axis=1).reshape(-1, num_states))
    levels.reverse()
    rows = jnp.concatenate(levels)
    first_rows = np.cumsum([0, *map(len, levels)])[:-1]

    def draw_site(prefix, site):
        site_key, first_row = site
        digit = jax.random.categorical(site_key, rows[first_row + prefix])
        return num_states * prefix + digit, None

    sites = jax.random.split(key, size), first_rows
    states, _ = jax.lax.scan(draw_site, jnp.zeros(num_draws, int), sites)
    return digits(states, size, num_states, float_dtype(params))
