"""Parts of rows: chunks that bound memory, and rows by their numbers."""

import jax
import jax.numpy as jnp

from probjax.devices import num_devices, shard_rows
from probjax.types import Array, Float, PyTree


def cut_chunk(
    i: Array, size: int, rows: PyTree, weights: Float[Array, " row"]
) -> tuple[PyTree, Float[Array, " chunk"]]:
    """The i-th `size` of the rows, and their weights.

    The last chunk reaches back over rows already counted, which then weigh nothing. Of
    rows that are spread, every device cuts its share of a chunk out of its own.
    """
    parts = num_parts(len(weights), size)
    width, length = size // parts, len(weights) // parts
    start = jnp.minimum(i * width, length - width)

    def cut(leaf):
        by_part = leaf.reshape(parts, length, *leaf.shape[1:])
        chunk = jax.lax.dynamic_slice_in_dim(by_part, start, width, axis=1)
        return chunk.reshape(size, *leaf.shape[1:])

    new = jnp.tile(start + jnp.arange(width) >= i * width, parts)
    return jax.tree.map(cut, rows), jnp.where(new, cut(weights), 0)


def num_parts(*counts: int) -> int:
    """Number of devices over which rows are spread; 1 if a count does not divide."""
    parts = num_devices()
    return 1 if any(count % parts for count in counts) else parts


def take(tree: PyTree, rows: Array) -> PyTree:
    """Those rows of every leaf."""
    return shard_rows(jax.tree.map(lambda leaf: leaf[rows], tree))


def put(tree: PyTree, rows: Array, values: PyTree) -> PyTree:
    """Every leaf with those rows replaced."""
    return jax.tree.map(lambda leaf, value: leaf.at[rows].set(value), tree, values)
