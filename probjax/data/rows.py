"""Rows of data with weights and missing entries, and their validation.

Every driver accepts an array of rows, a pytree of such arrays, or a `Data`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import holds, is_finite
from probjax.devices import on_host
from probjax.trees import as_array
from probjax.types import (
    ArrayLike,
    Conditioned,
    Data,
    PyTree,
    map_states,
    split_inputs,
)


def as_data(data: PyTree | Data) -> Data:
    """Return `data` as a `Data` of jax arrays; raise a `ValueError` if it is invalid.

    Missing entries are replaced by observed values of the same entry.
    """
    data = data if isinstance(data, Data) else Data(data)
    x = jax.tree.map(lambda leaf: as_array(_numeric(leaf)), data.x)
    rows = _count_rows(x)
    weights, mask = data.weights, data.mask
    if weights is not None:
        weights = _checked_weights(weights, rows)
    if mask is not None:
        mask = _checked_mask(mask, split_inputs(x)[0], weights)
        x = map_states(lambda x: jax.tree.map(_filled, x, mask), x)
    if not holds(is_finite, x):
        advice = (
            "" if mask is not None else "; mark missing entries with Data(x, mask=)"
        )
        raise ValueError(f"data must be finite, got NaN or infinity{advice}")
    return Data(x, weights, mask)


def num_rows(data: Data) -> int:
    """Number of rows."""
    return len(jax.tree.leaves(data.x)[0])


def refuse_mask(data: Data, why: str) -> None:
    """Raise an error that begins with `why` if data have missing entries."""
    if data.mask is not None:
        raise ValueError(
            f"{why}: leave out rows with missing entries. For bits and letters, "
            "PseudoLikelihood and MPF accept them"
        )


def refuse_inputs(rows: PyTree, why: str) -> None:
    """Raise an error that begins with `why` if states have inputs."""
    if isinstance(rows, Conditioned):
        raise ValueError(
            f"{why}, got a Conditioned; try PseudoLikelihood, MPF or "
            "ContrastiveDivergence to fit, and sample, or Conditional(energy) with the "
            "inputs of one row in its parameters, for distributions given inputs"
        )


def mean_of_observed(data: Data) -> PyTree:
    """Compute the weighted mean of every entry over the rows that observed it."""
    weights = data.weights

    def mean(x, observed):
        each = jnp.ones((), x.dtype) if weights is None else _expanded(weights, x)
        counts = jnp.where(observed, each, 0)
        return jnp.sum(counts * x, axis=0) / jnp.sum(counts, axis=0)

    if data.mask is None:
        return jax.tree.map(lambda x: jnp.average(x, 0, weights), data.x)
    return jax.tree.map(mean, data.x, data.mask)


def unique_rows(data: ArrayLike | Data) -> Data:
    """Return the distinct rows, sorted, each with the total weight of its copies.

    Losses and gradients are those of the repeated rows, at the cost of the distinct
    rows, unless the objective draws random numbers for every row. It runs on the host.

    >>> unique_rows(np.array([[0, 1], [1, 1], [0, 1]])).weights.tolist()
    [2.0, 1.0]
    """
    data = as_data(data)
    refuse_mask(data, "rows with missing entries cannot be compared")
    if not isinstance(data.x, jax.Array):
        raise ValueError("data must be one array for unique_rows, got a tree")
    rows = on_host(data.x)
    unique, inverse = np.unique(rows, axis=0, return_inverse=True)
    weights = None if data.weights is None else on_host(data.weights)
    counts = np.bincount(inverse.ravel(), weights, minlength=len(unique))
    return Data(as_array(unique), as_array(counts, jnp.result_type(float)))


def _numeric(leaf):
    """Return an array of real numbers; raise with a remedy for any other table."""
    if isinstance(leaf, jax.Array):
        kind = leaf.dtype.kind
    elif type(leaf).__module__.partition(".")[0] == "scipy":
        raise ValueError(
            "data must be dense, got a scipy.sparse table; try x.toarray()"
        )
    elif np.ma.is_masked(leaf):
        raise ValueError(
            "data must not be a masked array; mark missing entries with Data(x, mask=)"
        )
    else:
        # Tables of other libraries, such as DataFrames.
        leaf = np.asarray(leaf)
        leaf = _from_objects(leaf) if leaf.dtype == object else leaf
        kind = leaf.dtype.kind
    if kind in "USTMmc":
        names = {"c": "complex numbers", "M": "dates", "m": "times"}
        raise ValueError(
            f"data must be real numbers, got {names.get(kind, 'strings')}; convert or "
            "leave out such columns"
        )
    return leaf


def _from_objects(table):
    values = table.ravel().tolist()
    if any(isinstance(value, str) for value in values):
        return table.astype(str)
    try:
        return table.astype(float)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "data must be numbers, got objects that are not, such as missing values; "
            "mark missing entries with Data(x, mask=)"
        ) from error


def _count_rows(x):
    leaves = jax.tree.leaves(x)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves):
        found = "scalars" if leaves else "no arrays"
        raise ValueError(
            f"data must be arrays with a leading axis of rows, got {found}; try "
            "np.array to convert lists"
        )
    counts = {len(leaf) for leaf in leaves}
    if len(counts) > 1:
        raise ValueError(
            "all arrays of data must have the same number of rows, got "
            f"{sorted(counts)}"
        )
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
    if not holds(_has_finite_sum, weights):
        raise ValueError(
            f"weights must have a finite sum in {weights.dtype}, got weights up to "
            f"{weights.max():.3g}; divide them by a constant"
        )
    return weights


def _checked_mask(mask, x, weights):
    mask = jax.tree.map(as_array, mask)
    shapes, mine = jax.tree.map(jnp.shape, x), jax.tree.map(jnp.shape, mask)
    if jax.tree.flatten(shapes) != jax.tree.flatten(mine):
        raise ValueError(f"mask must have the shape of the data, {shapes}, got {mine}")
    for leaf in jax.tree.leaves(mask):
        if leaf.dtype != bool:
            raise ValueError(
                "mask must have boolean entries, True for observed ones, got "
                f"{leaf.dtype}"
            )
    rows = jnp.ones(num_rows(Data(x)), bool) if weights is None else weights > 0
    counted = jax.tree.map(lambda leaf: leaf & _expanded(rows, leaf), mask)
    if not holds(_is_observed, counted):
        raise ValueError(
            "mask must have every entry observed in some row of positive weight, got "
            "entries that are always missing; leave them out"
        )
    return mask


def _expanded(rows, leaf):
    """Append singleton axes to a vector over rows, so that it broadcasts to `leaf`."""
    return rows.reshape(len(rows), *(1,) * (leaf.ndim - 1))


def _is_observed(mask):
    return mask.any(axis=0)


def _filled(x, mask):
    """Replace missing entries by their value in the first row that observed them."""
    first = jnp.argmax(mask, axis=0)
    value = jnp.take_along_axis(x, first[None], axis=0)
    return jnp.where(mask, x, value)


def _is_any(value):
    return value.any()


def _has_finite_sum(value):
    with np.errstate(over="ignore"):
        return is_finite(value.sum())


def _is_weight(value):
    return is_finite(value) & (value >= 0)
