"""Checks of energies: one state, parameters of 32 bits, and a finite log Z."""

from functools import partial

import jax
import jax.numpy as jnp

from probjax.checks import is_concrete
from probjax.potential import closed_forms
from probjax.types import Energy, Params, State, map_states


def check_energy(energy: Energy, params: Params, rows: State) -> None:
    """Raise if `energy` does not return a scalar for one of `rows`."""
    check_precision(params)

    def one(leaf):
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

    def of_floats(leaf):
        is_floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        dtype = leaf.dtype if is_floating else jnp.result_type(float)
        return jax.ShapeDtypeStruct(leaf.shape, dtype)

    x = map_states(partial(jax.tree.map, of_floats), jax.tree.map(one, rows))
    if not callable(energy):
        raise ValueError(f"energy must be a function energy(params, x), got {energy!r}")
    try:
        value = jax.eval_shape(energy, params, x)
    except (TypeError, ValueError, IndexError) as error:
        shapes = jax.tree.map(lambda leaf: leaf.shape, x)
        advice = "the leading axis of x indexes rows or chains"
        if _accepts_columns(energy, params, rows):
            advice += ", did you mean data.T?"
        raise ValueError(
            f"energy(params, x) must accept one state of shape {shapes}, got an error: "
            f"{error}; {advice}"
        ) from error
    leaves = jax.tree.leaves(value)
    if len(leaves) != 1:
        raise ValueError(f"energy must return a scalar, got {value}")
    if leaves[0].shape != ():
        raise ValueError(f"energy must return a scalar, got shape {leaves[0].shape}")


def check_precision(params: Params) -> None:
    """Raise if a parameter has fewer than 32 bits, for states would be rounded too."""
    for leaf in jax.tree.leaves(params):
        dtype = jnp.result_type(leaf)
        if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4:
            raise ValueError(
                f"params must be float32 or float64, got {dtype}; try "
                "jax.tree.map(jnp.float32, params)"
            )


def _accepts_columns(energy, params, rows):
    """Whether the energy accepts a column of a table: it may be transposed."""
    leaves = jax.tree.leaves(rows)
    if len(leaves) != 1 or leaves[0].ndim != 2:
        return False
    column = jax.ShapeDtypeStruct(leaves[0].shape[:1], jnp.result_type(float))
    try:
        jax.eval_shape(energy, params, column)
    except (TypeError, ValueError, IndexError):
        return False
    return True


def check_normalisable(energy: Energy, params: Params) -> None:
    """Raise if the closed form `unnormalisable` reports an infinite integral."""
    form = closed_forms(energy).get("unnormalisable")
    if form is not None and is_concrete(params) and (reason := form(params)):
        raise ValueError(f"the model has no partition function: {reason}")
