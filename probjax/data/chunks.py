"""Subsets of rows: chunks that bound memory, and rows selected by index."""

import jax
import jax.numpy as jnp

from probjax.devices import num_devices, shard_rows
from probjax.types import Array, Float, PyTree


def cut_chunk(
    i: Array, size: int, rows: PyTree, weights: Float[Array, " row"]
) -> tuple[PyTree, Float[Array, " chunk"]]:
    """Return chunk `i` of the rows, of `size` rows, and its weights.

    The last chunk overlaps the previous one if the rows do not divide evenly; its
    repeated rows have weight 0. If rows are spread over devices, each device cuts its
    part of the chunk out of its own rows.
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
    """Number of devices over which rows are spread.

    It is 1 if one of the `counts` is not a multiple of the number of devices.
    """
    parts = num_devices()
    return 1 if any(count % parts for count in counts) else parts


def take(tree: PyTree, rows: Array) -> PyTree:
    """Return the rows with indices `rows` of every leaf."""
    return shard_rows(jax.tree.map(lambda leaf: leaf[rows], tree))


def thinned(tree: PyTree, stride: int) -> PyTree:
    """Return the first of every `stride` rows of every leaf.

    If rows are spread over devices, each device thins its own rows, because an index
    of rows would copy all rows to all devices.
    """

    def thin(leaf):
        by_part = leaf.reshape(num_parts(len(leaf)), -1, *leaf.shape[1:])
        return by_part[:, ::stride].reshape(-1, *leaf.shape[1:])

    return shard_rows(jax.tree.map(thin, tree))


def put(tree: PyTree, rows: Array, values: PyTree) -> PyTree:
    """Replace the rows with indices `rows` of every leaf by `values`."""
    return jax.tree.map(lambda leaf, value: leaf.at[rows].set(value), tree, values)
