"""What states may be: bits, spins, letters or reals, with checks of each.

Bits and letters are floating numbers inside, so that energies are functions of floats.
"""

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import (
    at_once,
    check_count,
    holds,
    is_concrete,
    is_on_host,
    is_whole,
)
from probjax.trees import floating
from probjax.types import Array, Float, State


def num_sites(x: State) -> int:
    """How many bits, or letters, a row of `x` has."""
    return sum(int(np.prod(np.shape(leaf)[1:])) for leaf in jax.tree.leaves(x))


def binary(x: State) -> State:
    """`x` as floating 0s and 1s; anything else in it is refused.

    Spins of -1 and 1 are refused too, as they may be a mistake: see `ising.bits`.
    """
    if not holds(is_bit, x):
        raise ValueError(f"a model of bits needs states of 0 and 1, got {_not_bits(x)}")
    return jax.tree.map(floating, x)


def _not_bits(x):
    """What `x` holds in place of bits, and what to do about it."""
    if holds(is_spin, x):
        return "spins of -1 and 1: convert them with ising.bits"
    if holds(is_whole, x):
        return "other whole numbers: for letters use SiteChanges(num_states)"
    return (
        "numbers that are not whole: continuous states are fitted by ScoreMatching, or "
        "by MPF with connectivity=GaussianSteps(size), and drawn by HMC"
    )


def is_bit(value: Array) -> Array:
    """Whether each value is 0 or 1."""
    return (value == 0) | (value == 1)


def is_spin(value: Array) -> Array:
    """Whether each value is -1 or 1."""
    return abs(value) == 1


def one_hot(x: Float[Array, " site"], num_states: int) -> Float[Array, "site letter"]:
    """Each letter as a row with a 1 in its column, and 0 elsewhere."""
    columns = jnp.arange(num_states, dtype=x.dtype)
    return (x[:, None] == columns[None]).astype(x.dtype)


def letters(x: State, *, num_states: int) -> State:
    """`x` as floating letters 0 to `num_states` - 1; anything else in it is refused.

    One-hot states are refused too, as they may be a mistake: see `potts.letters`.
    """
    check_count("num_states", num_states, least=2)
    x = jax.tree.map(floating, x)
    if not holds(is_whole, x):
        raise ValueError("letters must be whole numbers")
    for leaf in jax.tree.leaves(x):
        if not is_concrete(leaf):
            continue
        with at_once():
            values = np.asarray(leaf) if is_on_host(leaf) else leaf
            low, high = int(values.min()), int(values.max())
            hot = values.ndim > 2 and values.shape[-1] == num_states
            hot = hot and bool((values.sum(-1) == 1).all())
        if low < 0 or high >= num_states:
            wrong = low if low < 0 else high
            raise ValueError(
                f"{num_states} states per site are the letters 0 to {num_states - 1}, "
                f"got {wrong}"
            )
        if hot and high <= 1:
            raise ValueError(
                f"data of shape {jnp.shape(leaf)} look one-hot: convert them with "
                "potts.letters"
            )
    return x
