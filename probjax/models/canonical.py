"""Forms of parameters for comparison: what they leave open, settled.

Filters and basis functions may change their sign and their order, and often their
length with something else, and the model is the same. Each model says what its own
leave open, and its `canonical(params)` picks one of all those that are the same model,
by what these functions see.
"""

import jax.numpy as jnp

from probjax.types import Array, Float


def signs(rows: Float[Array, "row entry"]) -> Float[Array, " row"]:
    """1 or -1 for each row: the sign of its largest entry, 1 if all are zero."""
    places = jnp.argmax(jnp.abs(rows), axis=1)
    largest = jnp.take_along_axis(rows, places[:, None], axis=1)[:, 0]
    return jnp.where(largest < 0, -1, 1).astype(rows.dtype)


def lengths(rows: Float[Array, "row entry"]) -> Float[Array, " row"]:
    """The length of each row, 1 if it is zero: what it may be divided by."""
    found = jnp.linalg.norm(rows, axis=1)
    return jnp.where(found > 0, found, 1)


def longest_first(rows: Float[Array, "row entry"]) -> Array:
    """The places of the rows, from the longest to the shortest."""
    return jnp.argsort(-jnp.linalg.norm(rows, axis=1))
