"""Rows of data with weights, checked once at the door.

Every driver takes an array of rows, a pytree of such arrays, or a `Data`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from probjax.types import ArrayLike, Data, PyTree, holds


def as_data(data: PyTree | Data) -> Data:
    """`data` as a checked `Data` of jax arrays; trouble is one `ValueError`."""
    data = data if isinstance(data, Data) else Data(data)
    x = jax.tree.map(jnp.asarray, data.x)
    rows = _count_rows(x)
    if not holds(jnp.isfinite, x):
        raise ValueError("data must be finite, got NaN or infinity")
    if data.weights is None:
        return Data(x)
    return Data(x, _checked_weights(data.weights, rows))


def num_rows(data: Data) -> int:
    """How many rows there are."""
    return len(jax.tree.leaves(data.x)[0])


def unique_rows(data: ArrayLike | Data) -> Data:
    """The distinct rows, sorted, each weighing as much as its copies did together.

    Losses and gradients are the same as with the rows repeated, at the cost of the
    distinct rows only. Works on the host.

    >>> unique_rows(np.array([[0, 1], [1, 1], [0, 1]])).weights.tolist()
    [2.0, 1.0]
    """
    data = as_data(data)
    if not isinstance(data.x, jax.Array):
        raise ValueError("unique_rows needs data of one array, got a tree")
    rows = np.asarray(data.x)
    unique, inverse = np.unique(rows, axis=0, return_inverse=True)
    weights = None if data.weights is None else np.asarray(data.weights)
    counts = np.bincount(inverse.ravel(), weights, minlength=len(unique))
    return Data(jnp.asarray(unique), jnp.asarray(counts, jnp.result_type(float)))


def _count_rows(x):
    leaves = jax.tree.leaves(x)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves):
        raise ValueError("data must be arrays with a leading axis of rows")
    counts = {len(leaf) for leaf in leaves}
    if len(counts) > 1:
        raise ValueError(f"all of data must have the same rows, got {sorted(counts)}")
    (rows,) = counts
    if rows == 0 or any(leaf.size == 0 for leaf in leaves):
        raise ValueError(f"data must not be empty, got shape {leaves[0].shape}")
    return rows


def _checked_weights(weights, rows):
    weights = jnp.asarray(weights, jnp.result_type(float))
    if weights.shape != (rows,):
        raise ValueError(
            f"weights must have one entry for each of {rows} rows, "
            f"got shape {weights.shape}"
        )
    if not holds(_is_weight, weights):
        raise ValueError(f"weights must not be negative, got {weights.min()}")
    if not holds(jnp.any, weights):
        raise ValueError("weights must not all be zero")
    return weights


def _is_weight(value):
    return jnp.isfinite(value) & (value >= 0)
