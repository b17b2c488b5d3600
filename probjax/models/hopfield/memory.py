"""Measures of a Hopfield network's memory: capacity, recovery and basins.

Each measure is a mean over random trials, which run as one compiled program.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count
from probjax.data.corruption import flip_some
from probjax.models.hopfield.network import Params, recall
from probjax.models.hopfield.rules import Learned
from probjax.states import binary
from probjax.types import Array, ArrayLike, Data, Float, PRNGKeyArray


class Capacity(NamedTuple):
    """Fraction of random patterns that a learning rule stores.

    >>> found = Capacity(np.array([1, 5, 9]), np.ones(3), np.array([1.0, 0.8, 0.1]))
    >>> int(found.num_patterns[found.complete > 0.5].max())
    5
    """

    num_patterns: Array
    """Numbers of patterns m, for which the other fields have an entry each."""
    patterns: Float[Array, " m"]
    """Fraction of patterns that are fixed points."""
    complete: Float[Array, " m"]
    """Fraction of trials in which all patterns are fixed points."""


class Recovery(NamedTuple):
    """Fraction of patterns and bits that are recovered after bits were flipped.

    >>> from probjax.models import hopfield
    >>> patterns = jnp.array([[1, 1, 1, 1, 0, 0, 0, 0]])
    >>> params = hopfield.outer_product(patterns).params
    >>> found = recovery(jax.random.key(0), params, patterns, [1, 8])
    >>> found.num_flips.tolist(), found.exact.tolist(), found.bits.tolist()
    ([1, 8], [1.0, 0.0], [1.0, 0.0])
    """

    num_flips: Array
    """Numbers of flipped bits, for which the other fields have an entry each."""
    exact: Float[Array, " flips"]
    """Fraction of corrupted patterns for which the dynamics restore all bits."""
    bits: Float[Array, " flips"]
    """Fraction of bits that are right at the end."""


def capacity(
    key: PRNGKeyArray,
    rule: Callable[[PRNGKeyArray, Data], Learned],
    size: int,
    num_patterns: Sequence[int],
    *,
    num_trials: int = 20,
) -> Capacity:
    """Fraction of random patterns that a rule stores, for several numbers of them.

    Args:
        rule: function of a key and of patterns with weights, such as `hopfield.flow` or
            `lambda key, patterns: hopfield.perceptron(patterns)`. Each new function
            object compiles again, so define it once.
        size: number of units of the network.
        num_patterns: numbers of patterns.
        num_trials: number of random sets of patterns.

    >>> from probjax.models import hopfield
    >>> def rule(key, patterns):
    ...     return hopfield.outer_product(patterns)
    >>> found = capacity(jax.random.key(0), rule, 8, [1, 20], num_trials=5)
    >>> found.complete.tolist()
    [1.0, 0.0]
    """
    check_count("size", size)
    check_count("num_trials", num_trials)
    _check_counts("num_patterns", num_patterns, least=1)
    learn_key, draw_key = jax.random.split(key)
    shape = (num_trials, max(num_patterns), size)
    x = jax.random.bernoulli(draw_key, 0.5, shape).astype(float)
    keys = jax.random.split(learn_key, num_trials)
    found = [_stored(rule, keys, x, count) for count in num_patterns]
    patterns, complete = map(jnp.stack, zip(*found, strict=True))
    return Capacity(jnp.asarray(num_patterns), patterns, complete)


@partial(jax.jit, static_argnums=0)
def _stored(rule, keys, x, count):
    weights = (jnp.arange(x.shape[1]) < count).astype(x.dtype)
    learned = jax.vmap(lambda key, x: rule(key, Data(x, weights)))(keys, x)
    # Patterns of weight 0 count as stored.
    missed = jnp.sum(~learned.stored, axis=1)
    return jnp.mean((count - missed) / count), jnp.mean(missed == 0)


def recovery(
    key: PRNGKeyArray,
    params: Params,
    patterns: ArrayLike,
    num_flips: Sequence[int],
    *,
    num_trials: int = 10,
    max_sweeps: int = 100,
) -> Recovery:
    """Fraction of patterns and bits that the dynamics restore after flips of bits.

    Args:
        patterns: rows of bits.
        num_flips: numbers of bits that are flipped in each pattern.
        num_trials: number of corrupted versions of each pattern.
        max_sweeps: limit on the sweeps of `hopfield.recall`.

    >>> from probjax.models import hopfield
    >>> patterns = jnp.array([[1, 1, 1, 1, 0, 0, 0, 0]])
    >>> params = hopfield.outer_product(patterns).params
    >>> recovery(jax.random.key(0), params, patterns, [0, 1, 8]).exact.tolist()
    [1.0, 1.0, 0.0]
    """
    check_count("num_trials", num_trials)
    patterns = _rows(patterns)
    _check_counts("num_flips", num_flips, least=0, most=patterns.shape[1])
    found = [
        jax.tree.map(
            jnp.mean,
            _recovered(key, params, patterns, flips, num_trials, max_sweeps),
        )
        for flips in num_flips
    ]
    exact, bits = map(jnp.stack, zip(*found, strict=True))
    return Recovery(jnp.asarray(num_flips), exact, bits)


def basin_radius(
    key: PRNGKeyArray,
    params: Params,
    patterns: ArrayLike,
    *,
    share: float = 0.5,
    num_trials: int = 20,
    max_sweeps: int = 100,
) -> Array:
    """Largest number of flipped bits after which each pattern is still restored.

    Restored means in at least `share` of the trials, for this number of flips and for
    all smaller ones. It is -1 for a pattern that is not a fixed point.

    Args:
        patterns: rows of bits.
        share: required fraction of trials, above 0 and at most 1.
        num_trials: number of corrupted versions of each pattern.
        max_sweeps: limit on the sweeps of `hopfield.recall`.

    >>> from probjax.models import hopfield
    >>> patterns = jnp.array([[1, 1, 1, 1, 0, 0, 0, 0]])
    >>> params = hopfield.outer_product(patterns).params
    >>> key = jax.random.key(0)
    >>> basin_radius(key, params, patterns, share=1.0, num_trials=10).tolist()
    [3]
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}")
    check_count("num_trials", num_trials)
    patterns = _rows(patterns)
    radius = np.full(len(patterns), -1)
    restored = np.ones(len(patterns), bool)
    for flips in range(patterns.shape[1] // 2 + 1):
        exact, _ = _recovered(key, params, patterns, flips, num_trials, max_sweeps)
        restored &= np.asarray(exact) >= share
        if not restored.any():
            break
        radius[restored] = flips
    return jnp.asarray(radius)


def overlap(x: ArrayLike, patterns: ArrayLike) -> Float[Array, "row pattern"]:
    """Mean product of spins of each state and pattern.

    It is 1 if they are equal, -1 if they are opposite, and about 0 if independent.

    >>> overlap([[1, 1, 0, 0]], [[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]]).tolist()
    [[1.0, -1.0, 0.0]]
    """
    first, second = (2 * binary(jnp.asarray(part)) - 1 for part in (x, patterns))
    return first @ second.T / first.shape[-1]


def _recovered(key, params, patterns, flips, num_trials, max_sweeps):
    """Fractions of trials and of bits that are right, for each pattern."""
    key = jax.random.fold_in(key, flips)
    repeated = jnp.repeat(patterns[None], num_trials, axis=0)
    start = _flip_some(key, repeated, flips)
    right = recall(params, start, max_sweeps=max_sweeps).x == repeated
    return right.all(-1).mean(0), right.mean((0, 2))


_flip_some = jax.jit(flip_some)


def _rows(patterns: ArrayLike) -> Array:
    rows = jnp.asarray(binary(jnp.asarray(patterns)))
    if rows.ndim != 2:
        raise ValueError(f"patterns must be rows of units, got shape {rows.shape}")
    return rows


def _check_counts(name, counts, *, least, most=None):
    if not len(counts):
        raise ValueError(f"{name} must have at least one entry, got {counts}")
    for count in counts:
        check_count(name, count, least=least)
        if most is not None and count > most:
            raise ValueError(f"{name} must be at most {most}, got {count}")
