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


def compensated_sum(
    total: Array, rounding: Array, increment: Array
) -> tuple[Array, Array]:
    """Add to a number that is stored as a sum, `total + rounding`, and return both.

    The rounding error of each addition is kept and added with the next increment. So a
    sum of many small increments is accurate to about twice as many digits.

    >>> one, tiny = jnp.float32(1), jnp.float32(1e-8)
    >>> total, rounding = compensated_sum(one, jnp.zeros(()), tiny)
    >>> float(total), float(rounding) == float(tiny)
    (1.0, True)
    """
    added = rounding + increment
    new = total + added
    # Knuth's two-sum, whose error is exact whichever of the two is larger.
    kept = new - total
    error = (total - (new - kept)) + (added - kept)
    return new, jnp.where(jnp.isfinite(new), error, 0)


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


def copied(tree: PyTree) -> PyTree:
    """Copy the arrays of a tree, so that compiled programs may overwrite the originals.

    Nothing is compiled, except for arrays that are spread over several processes.
    """
    leaves, structure = jax.tree.flatten(tree)
    arrays = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}
    if all(leaf.is_fully_addressable for leaf in arrays.values()):
        copies = jax.device_put(arrays, may_alias=False)
    else:
        copies = {i: leaf.copy() for i, leaf in arrays.items()}
    return structure.unflatten(copies.get(i, leaf) for i, leaf in enumerate(leaves))


def zeros_of(shapes: PyTree) -> PyTree:
    """Return zeros of the shapes and dtypes that `jax.eval_shape` returned."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def known_values(values: Any) -> np.ndarray | None:
    """Return an array as a NumPy array; None if its values cannot be read.

    Values of traced arrays, of deleted arrays, of arrays on other processes and of
    abstract shapes cannot be read.

    >>> known_values(jnp.arange(2)).tolist()
    [0, 1]
    >>> known_values(jax.ShapeDtypeStruct((2,), jnp.float32)) is None
    True
    """
    if not is_concrete(values):
        return None
    if isinstance(values, jax.Array):
        is_local = values.is_fully_addressable or values.is_fully_replicated
        return np.asarray(values) if is_local and not values.is_deleted() else None
    is_number = isinstance(values, np.ndarray | np.generic | bool | int | float)
    return np.asarray(values) if is_number else None


def describe_range(values: Any) -> str:
    """Describe the range of an array: one number if all are equal, "unknown" if traced.

    >>> describe_range(0.25), describe_range(np.array([0.5, 2.0]))
    ('0.25', '0.5 to 2')
    >>> describe_range(jax.ShapeDtypeStruct((2,), jnp.float32))
    'unknown'
    """
    known = known_values(values)
    if known is None:
        return "unknown"
    if known.size == 0:
        return "none"
    low, high = f"{known.min():.5g}", f"{known.max():.5g}"
    return low if low == high else f"{low} to {high}"


def describe_shapes(tree: PyTree, *, most: int = 6) -> str:
    """Describe the names and shapes of the arrays of a tree, without their values.

    Args:
        most: number of arrays that are listed; the others are counted.

    >>> describe_shapes({"bias": np.zeros(3), "weight": np.zeros((3, 2))})
    'bias (3,), weight (3, 2)'
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = [(_path_name(path), np.shape(leaf)) for path, leaf in leaves]
    listed = [f"{name} {shape}".strip() for name, shape in named[:most]]
    if len(named) > most:
        listed.append(f"and {len(named) - most} more arrays")
    return ", ".join(listed) or "none"


def _path_name(path):
    """Return the path to a leaf as names that are joined by dots; "" at the root."""
    return jax.tree_util.keystr(path, simple=True, separator=".")
