"""Helpers for arrays and trees of arrays: conversions, scaling, weighted means."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from probjax.checks import is_concrete, is_on_host


def floating(values: ArrayLike) -> Array:
    """`values` as an array of floats: as they are if they are, else of the default."""
    values = as_array(values)
    is_floating = jnp.issubdtype(values.dtype, jnp.floating)
    return as_array(values, None if is_floating else jnp.result_type(float))


def as_array(values: ArrayLike, dtype: Any = None) -> Array:
    """`values` as an array of jax, as by `jnp.asarray` but without compiling anything.

    >>> as_array([1, 2]).tolist()
    [1, 2]
    """
    # Not by `in`: None equals the dtype float64.
    if isinstance(values, jax.Array) and (dtype is None or dtype == values.dtype):
        return values
    if is_concrete(values) and is_on_host(values):
        return jax.device_put(np.asarray(values, dtype))
    return jnp.asarray(values, dtype)


def float_dtype(tree: PyTree) -> np.dtype:
    """The floating dtype computations with `tree` are done in."""
    kinds = [jnp.result_type(leaf) for leaf in jax.tree.leaves(tree)]
    kinds = [kind for kind in kinds if jnp.issubdtype(kind, jnp.floating)]
    return jnp.result_type(*kinds) if kinds else jnp.result_type(float)


def weighted_mean(
    values: Float[Array, " row"], weights: Float[Array, " row"]
) -> Float[Array, ""]:
    """sum_r w_r v_r / sum_r w_r, and 0 if nothing has weight."""
    total = weights.sum()
    return weights @ values / jnp.where(total > 0, total, 1)


def of_kind(kind: np.dtype, tree: PyTree) -> PyTree:
    """Convert every floating number in `tree` to the dtype `kind`."""

    def convert(leaf):
        floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return as_array(leaf, kind) if floating else leaf

    return jax.tree.map(convert, tree)


def scaled(scale: Float[Array, ""], tree: PyTree) -> PyTree:
    """Multiply every leaf by `scale`, in the dtype of the leaf."""
    return jax.tree.map(lambda leaf: scale.astype(leaf.dtype) * leaf, tree)
