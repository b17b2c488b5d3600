"""Rows of data with weights, checked once at the door.

Every driver takes an array of rows, a pytree of such arrays, or a `Data`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import holds, is_finite
from probjax.devices import on_host
from probjax.trees import as_array
from probjax.types import ArrayLike, Data, PyTree


def as_data(data: PyTree | Data) -> Data:
    """`data` as a checked `Data` of jax arrays; trouble is one `ValueError`."""
    data = data if isinstance(data, Data) else Data(data)
    x = jax.tree.map(as_array, data.x)
    rows = _count_rows(x)
    weights, mask = data.weights, data.mask
    if weights is not None:
        weights = _checked_weights(weights, rows)
    if mask is not None:
        mask = _checked_mask(mask, x, weights)
        x = jax.tree.map(_covered, x, mask)
    if not holds(is_finite, x):
        missing = "" if mask is not None else "; say what is missing by Data(x, mask=)"
        raise ValueError(f"data must be finite, got NaN or infinity{missing}")
    return Data(x, weights, mask)


def num_rows(data: Data) -> int:
    """How many rows there are."""
    return len(jax.tree.leaves(data.x)[0])


def refuse_mask(data: Data, why: str) -> None:
    """Refuse data with missing entries, saying `why`."""
    if data.mask is not None:
        raise ValueError(
            f"{why}: leave out rows with missing entries. Bits and letters can be "
            "fitted with them, by PseudoLikelihood or MPF"
        )


def mean_of_observed(data: Data) -> PyTree:
    """The weighted mean over rows of every entry, where it was observed."""
    weights = data.weights

    def mean(x, seen):
        each = 1 if weights is None else _along(weights, x)
        counts = jnp.where(seen, each, 0)
        return jnp.sum(counts * x, axis=0) / jnp.sum(counts, axis=0)

    if data.mask is None:
        return jax.tree.map(lambda x: jnp.average(x, 0, weights), data.x)
    return jax.tree.map(mean, data.x, data.mask)


def unique_rows(data: ArrayLike | Data) -> Data:
    """The distinct rows, sorted, each weighing as much as its copies did together.

    Losses and gradients are the same as with the rows repeated, at the cost of the
    distinct rows only, unless something is drawn for every row. Works on the host.

    >>> unique_rows(np.array([[0, 1], [1, 1], [0, 1]])).weights.tolist()
    [2.0, 1.0]
    """
    data = as_data(data)
    refuse_mask(data, "rows that are known in part cannot be told to be alike")
    if not isinstance(data.x, jax.Array):
        raise ValueError("unique_rows needs data of one array, got a tree")
    rows = on_host(data.x)
    unique, inverse = np.unique(rows, axis=0, return_inverse=True)
    weights = None if data.weights is None else on_host(data.weights)
    counts = np.bincount(inverse.ravel(), weights, minlength=len(unique))
    return Data(as_array(unique), as_array(counts, jnp.result_type(float)))


def _count_rows(x):
    leaves = jax.tree.leaves(x)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves):
        raise ValueError(
            "data must be arrays with a leading axis of rows: of lists, np.array makes "
            "one"
        )
    counts = {len(leaf) for leaf in leaves}
    if len(counts) > 1:
        raise ValueError(f"all of data must have the same rows, got {sorted(counts)}")
    (rows,) = counts
    if rows == 0 or any(leaf.size == 0 for leaf in leaves):
        raise ValueError(f"data must not be empty, got shape {leaves[0].shape}")
    return rows


def _checked_weights(weights, rows):
    weights = as_array(weights, jnp.result_type(float))
    if weights.shape != (rows,):
        raise ValueError(
            f"weights must have one entry for each of {rows} rows, "
            f"got shape {weights.shape}"
        )
    if not holds(_is_weight, weights):
        raise ValueError(f"weights must not be negative, got {weights.min()}")
    if not holds(_is_any, weights):
        raise ValueError("weights must not all be zero")
    return weights


def _checked_mask(mask, x, weights):
    mask = jax.tree.map(as_array, mask)
    shapes, mine = jax.tree.map(jnp.shape, x), jax.tree.map(jnp.shape, mask)
    if jax.tree.flatten(shapes) != jax.tree.flatten(mine):
        raise ValueError(f"mask must be shaped like data, {shapes}, got {mine}")
    for leaf in jax.tree.leaves(mask):
        if leaf.dtype != bool:
            raise ValueError(
                f"mask must be of booleans, True where observed, got {leaf.dtype}"
            )
    rows = jnp.ones(num_rows(Data(x)), bool) if weights is None else weights > 0
    counted = jax.tree.map(lambda leaf: leaf & _along(rows, leaf), mask)
    if not holds(_is_seen, counted):
        raise ValueError(
            "mask must leave every entry observed in some row of weight, as nothing "
            "can be learned of one that never was"
        )
    return mask


def _along(rows, leaf):
    """What is known of rows, in the shape of a leaf's."""
    return rows.reshape(len(rows), *(1,) * (leaf.ndim - 1))


def _is_seen(mask):
    return mask.any(axis=0)


def _covered(x, mask):
    """`x` with what an entry is in the first row that has it, where a row has not."""
    first = jnp.argmax(mask, axis=0)
    value = jnp.take_along_axis(x, first[None], axis=0)
    return jnp.where(mask, x, value)


def _is_any(value):
    return value.any()


def _is_weight(value):
    return is_finite(value) & (value >= 0)
