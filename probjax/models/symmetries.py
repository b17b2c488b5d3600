"""Helpers for canonical parameters: signs, lengths and order of filters.

Many models do not change if a filter or basis function changes its sign or its place
in the order, or if its length is moved to another parameter. Each such model has a
function `canonical(params)`, which returns one representative of all parameters that
define the same model. These representatives can be compared.
"""

import jax.numpy as jnp

from probjax.types import Array, Float


def signs(rows: Float[Array, "row entry"]) -> Float[Array, " row"]:
    """Sign of each row's entry of largest magnitude; 1 for a row of zeros."""
    places = jnp.argmax(jnp.abs(rows), axis=1)
    largest = jnp.take_along_axis(rows, places[:, None], axis=1)[:, 0]
    return jnp.where(largest < 0, -1, 1).astype(rows.dtype)


def lengths(rows: Float[Array, "row entry"]) -> Float[Array, " row"]:
    """Euclidean length of each row; 1 for a row of zeros, so that one can divide."""
    found = jnp.linalg.norm(rows, axis=1)
    return jnp.where(found > 0, found, 1)


def longest_first(rows: Float[Array, "row entry"]) -> Array:
    """Indices of the rows, sorted from the longest row to the shortest."""
    return jnp.argsort(-jnp.linalg.norm(rows, axis=1))
