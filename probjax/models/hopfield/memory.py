"""How well a Hopfield network remembers: capacity, recovery, basins.

Every measure is a mean over random trials, compiled for all of them at once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.connectivity.flips import binary
from probjax.models.hopfield.network import Params, recall
from probjax.models.hopfield.rules import Learned
from probjax.objectives.corrupted import corrupted
from probjax.types import (
    Array,
    ArrayLike,
    Data,
    Float,
    PRNGKeyArray,
    check_count,
)


class Capacity(NamedTuple):
    """How many of random patterns a rule stores."""

    num_patterns: Array
    """m, one entry each below."""
    patterns: Float[Array, " m"]
    """The share of patterns made fixed points."""
    complete: Float[Array, " m"]
    """The share of trials in which all were."""


class Recovery(NamedTuple):
    """What becomes of patterns of which bits are flipped."""

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
            `lambda key, patterns: hopfield.perceptron(patterns)`.
        size: units of the network.
    """
    check_count("size", size)
    check_count("num_trials", num_trials)
    most = max(num_patterns)
    key, draw_key = jax.random.split(key)
    x = jax.random.bernoulli(draw_key, 0.5, (num_trials, most, size)).astype(float)
    keys = jax.random.split(key, num_trials)

    @jax.jit
    def learn(count):
        weights = (jnp.arange(most) < count).astype(x.dtype)
        learned = jax.vmap(lambda key, x: rule(key, Data(x, weights)))(keys, x)
        left_out = jnp.sum(learned.stored & (weights == 0)[None], axis=1)
        share = (learned.stored.sum(1) - left_out) / count
        return share.mean(), learned.stored.all(1).mean()

    found = [learn(jnp.asarray(count)) for count in num_patterns]
    patterns, complete = map(jnp.stack, zip(*found, strict=True))
    return Capacity(jnp.asarray(num_patterns), patterns, complete)


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
    """
    check_count("num_trials", num_trials)
    patterns = binary(jnp.asarray(patterns))
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
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}")
    patterns = jnp.asarray(binary(jnp.asarray(patterns)))
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
    """How alike states and patterns are: 1 if equal, -1 if opposite, 0 by chance."""
    first, second = (2 * binary(jnp.asarray(part)) - 1 for part in (x, patterns))
    return first @ second.T / first.shape[-1]


def _recovered(key, params, patterns, flips, num_trials, max_sweeps):
    key = jax.random.fold_in(key, flips)
    many = jnp.repeat(patterns[None], num_trials, axis=0)
    start = _corrupt(key, many, flips)
    right = recall(params, start, max_sweeps=max_sweeps).x == many
    return right.all(-1).mean(0), right.mean((0, 2))


_corrupt = jax.jit(corrupted, static_argnums=2)
