"""Kinds of states: checks of bits and letters, and conversion to floats.

Bits and letters are stored as floating numbers, so that energies are functions of
floats.
"""

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import (
    check_count,
    eager_evaluation,
    holds,
    is_concrete,
    is_on_host,
    is_whole,
)
from probjax.trees import floating
from probjax.types import Array, Float, State


def num_sites(x: State) -> int:
    """Return the number of sites (entries) of one row of `x`."""
    return sum(int(np.prod(np.shape(leaf)[1:])) for leaf in jax.tree.leaves(x))


def binary(x: State) -> State:
    """Return `x` as floating arrays; raise if an entry is neither 0 nor 1.

    Spins -1 and 1 also raise: convert them with `ising.bits`.
    """
    if not holds(is_bit, x):
        raise ValueError(f"states of bits must be 0 or 1, got {_not_bits(x)}")
    return jax.tree.map(floating, x)


def _not_bits(x):
    """Describe the entries of `x`, which are not bits, and the remedy."""
    if holds(is_spin, x):
        return "spins of -1 and 1; try ising.bits to convert them"
    if holds(is_whole, x):
        return (
            "other whole numbers; try x > 0 to binarise counts, or "
            "SiteChanges(num_states) for letters"
        )
    return (
        "numbers that are not whole; for continuous states try ScoreMatching, or MPF "
        "with connectivity=GaussianSteps(size), to fit, and HMC to sample"
    )


def is_bit(value: Array) -> Array:
    """Whether each value is 0 or 1."""
    return (value == 0) | (value == 1)


def is_spin(value: Array) -> Array:
    """Whether each value is -1 or 1."""
    return abs(value) == 1


def one_hot(x: Float[Array, " site"], num_states: int) -> Float[Array, "site letter"]:
    """One-hot encoding of the letters of one state."""
    columns = jnp.arange(num_states, dtype=x.dtype)
    return (x[:, None] == columns[None]).astype(x.dtype)


def letters(x: State, *, num_states: int) -> State:
    """Return `x` as floating arrays; raise if an entry is not 0 to `num_states` - 1.

    One-hot states also raise: convert them with `potts.letters`.
    """
    check_count("num_states", num_states, least=2)
    x = jax.tree.map(floating, x)
    if not holds(is_whole, x):
        raise ValueError(
            "letters must be whole numbers, got numbers that are not whole"
        )
    for leaf in jax.tree.leaves(x):
        if not is_concrete(leaf):
            continue
        with eager_evaluation():
            values = np.asarray(leaf) if is_on_host(leaf) else leaf
            low, high = int(values.min()), int(values.max())
            hot = values.ndim > 2 and values.shape[-1] == num_states
            hot = hot and bool((values.sum(-1) == 1).all())
        if low < 0 or high >= num_states:
            wrong = low if low < 0 else high
            raise ValueError(
                f"letters must be 0 to {num_states - 1} for num_states={num_states}, "
                f"got {wrong}"
            )
        if hot and high <= 1:
            raise ValueError(
                f"letters must be whole numbers, got shape {jnp.shape(leaf)}, which "
                "look one-hot; try potts.letters to convert them"
            )
    return x
