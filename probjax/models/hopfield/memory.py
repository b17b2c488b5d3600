"""How well a Hopfield network remembers: capacity, recovery, basins.

Every measure is a mean over random trials, compiled for all of them at once.
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
    """How many of random patterns a rule stores.

    >>> found = Capacity(np.array([1, 5, 9]), np.ones(3), np.array([1.0, 0.8, 0.1]))
    >>> int(found.num_patterns[found.complete > 0.5].max())
    5
    """

    num_patterns: Array
    """m, one entry each below."""
    patterns: Float[Array, " m"]
    """The share of patterns made fixed points."""
    complete: Float[Array, " m"]
    """The share of trials in which all were."""


class Recovery(NamedTuple):
    """What becomes of patterns of which bits are flipped.

    >>> from probjax.models import hopfield
    >>> patterns = jnp.array([[1, 1, 1, 1, 0, 0, 0, 0]])
    >>> params = hopfield.outer_product(patterns).params
    >>> found = recovery(jax.random.key(0), params, patterns, [1, 8])
    >>> found.num_flips.tolist(), found.exact.tolist(), found.bits.tolist()
    ([1, 8], [1.0, 0.0], [1.0, 0.0])
    """

    num_flips: Array
    """One entry each below."""
    exact: Float[Array, " flips"]
    """The share that the dynamics bring back to the last bit."""
    bits: Float[Array, " flips"]
    """The share of bits that are right in the end."""


def capacity(
    key: PRNGKeyArray,
    rule: Callable[[PRNGKeyArray, Data], Learned],
    size: int,
    num_patterns: Sequence[int],
    *,
    num_trials: int = 20,
) -> Capacity:
    """The share of random patterns that a rule stores, for several numbers of them.

    Args:
        rule: of a key and patterns with weights; `hopfield.flow`, or for others
            `lambda key, patterns: hopfield.perceptron(patterns)`. Compiled for every
            function it is given: make one once.
        size: units of the network.

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
    # Those of weight 0 are said to be stored.
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
    """How often patterns come back from so many flipped bits.

    Args:
        num_trials: corrupted versions of each pattern.

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
    """Of each pattern, the most flipped bits from which it still comes back.

    That is in `share` of the trials, for this number of bits and for all fewer; -1 for
    a pattern that is no fixed point.

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
    alive = np.ones(len(patterns), bool)
    for flips in range(patterns.shape[1] // 2 + 1):
        exact, _ = _recovered(key, params, patterns, flips, num_trials, max_sweeps)
        alive &= np.asarray(exact) >= share
        if not alive.any():
            break
        radius[alive] = flips
    return jnp.asarray(radius)


def overlap(x: ArrayLike, patterns: ArrayLike) -> Float[Array, "row pattern"]:
    """How alike states and patterns are: 1 if equal, -1 if opposite, 0 by chance.

    >>> overlap([[1, 1, 0, 0]], [[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]]).tolist()
    [[1.0, -1.0, 0.0]]
    """
    first, second = (2 * binary(jnp.asarray(part)) - 1 for part in (x, patterns))
    return first @ second.T / first.shape[-1]


def _recovered(key, params, patterns, flips, num_trials, max_sweeps):
    key = jax.random.fold_in(key, flips)
    many = jnp.repeat(patterns[None], num_trials, axis=0)
    start = _flip_some(key, many, flips)
    right = recall(params, start, max_sweeps=max_sweeps).x == many
    return right.all(-1).mean(0), right.mean((0, 2))


_flip_some = jax.jit(flip_some)


def _rows(patterns: ArrayLike) -> Array:
    rows = jnp.asarray(binary(jnp.asarray(patterns)))
    if rows.ndim != 2:
        raise ValueError(f"patterns must be rows of units, got shape {rows.shape}")
    return rows


def _check_counts(name, counts, *, least, most=None):
    if not len(counts):
        raise ValueError(f"{name} must have an entry, got {counts}")
    for count in counts:
        check_count(name, count, least=least)
        if most is not None and count > most:
            raise ValueError(f"{name} must be at most the {most} bits, got {count}")
