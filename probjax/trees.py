"""Helpers for arrays and trees of arrays: conversions, rows, scaling, means."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from probjax.checks import is_concrete, is_on_host


def floating(values: ArrayLike) -> Array:
    """Convert `values` to a floating array; floating dtypes are kept.

    Other dtypes become the default floating dtype.
    """
    values = as_array(values)
    is_floating = jnp.issubdtype(values.dtype, jnp.floating)
    return as_array(values, None if is_floating else jnp.result_type(float))


def as_array(values: ArrayLike, dtype: Any = None) -> Array:
    """Convert `values` to a jax array like `jnp.asarray`, but compile nothing.

    >>> as_array([1, 2]).tolist()
    [1, 2]
    """
    # Not `dtype in (None, values.dtype)`: None == np.dtype("float64") is True.
    if isinstance(values, jax.Array) and (dtype is None or dtype == values.dtype):
        return values
    if is_concrete(values) and is_on_host(values):
        return jax.device_put(np.asarray(values, dtype))
    return jnp.asarray(values, dtype)


def float_dtype(tree: PyTree) -> np.dtype:
    """Return the promoted dtype of the floating leaves of `tree`.

    Without floating leaves it is the default floating dtype.
    """
    dtypes = [jnp.result_type(leaf) for leaf in jax.tree.leaves(tree)]
    dtypes = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]
    return jnp.result_type(*dtypes) if dtypes else jnp.result_type(float)


def weighted_mean(
    values: Float[Array, " row"], weights: Float[Array, " row"]
) -> Float[Array, ""]:
    """Compute sum_r w_r v_r / sum_r w_r; 0 if all weights are 0."""
    total = weights.sum()
    return weights @ values / jnp.where(total > 0, total, 1)


def cast_floats(dtype: np.dtype, tree: PyTree) -> PyTree:
    """Convert every floating leaf of `tree` to `dtype`."""

    def convert(leaf):
        is_floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return as_array(leaf, dtype) if is_floating else leaf

    return jax.tree.map(convert, tree)


def scaled(scale: Float[Array, ""], tree: PyTree) -> PyTree:
    """Multiply every leaf by `scale`, in the dtype of the leaf."""
    return jax.tree.map(lambda leaf: scale.astype(leaf.dtype) * leaf, tree)


def first_row(rows: PyTree) -> PyTree:
    """Return the first entry of every leaf of `rows` along its leading axis."""
    return jax.tree.map(lambda leaf: leaf[0], rows)


def flat_rows(rows: PyTree) -> Float[Array, "row n"]:
    """Flatten every row of `rows` to a vector, in the order of `ravel_pytree`."""
    return jax.vmap(lambda row: ravel_pytree(row)[0])(rows)


def zeros_of(shapes: PyTree) -> PyTree:
    """Return zeros of the shapes and dtypes that `jax.eval_shape` returned."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
