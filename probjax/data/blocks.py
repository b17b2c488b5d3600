"""Data that do not fit: rows that are read a block at a time, in every pass anew.

    fit(key, objective, params, blocks.from_file("bits.npy", decode=PackedBits(200)))

A block goes to the device as it is stored, and becomes rows in compiled code: bits may
stay packed, eight to the byte, until they are needed. All blocks are padded to one size
with rows of no weight, so that one program serves them all.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count
from probjax.data.rows import as_data, mean_of_observed, refuse_mask
from probjax.devices import put_rows
from probjax.interfaces import Objective
from probjax.recipe import recipe, static
from probjax.runs.digest import digest
from probjax.types import Array, Data, Params, PyTree, Scalar, State

ROWS_PER_BLOCK = 2**16


class PackedBits(NamedTuple):
    """Rows of bits out of the bytes that `np.packbits(rows, axis=1)` made of them.

    >>> PackedBits(3)(np.packbits([[1, 0, 1]], axis=1)).tolist()
    [[1, 0, 1]]
    """

    num_bits: int
    """How many bits a row has; what is left of its last byte is not looked at."""

    def __call__(self, x: Array) -> Array:
        width = -(-self.num_bits // 8)
        if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != width:
            raise ValueError(
                f"rows of {self.num_bits} packed bits are {width} bytes, uint8, got "
                f"{x.dtype} of shape {x.shape}"
            )
        return jnp.unpackbits(jnp.asarray(x), axis=1, count=self.num_bits)


def as_stored(x: State) -> State:
    """Rows that need no decoding."""
    return x


@recipe
class Blocks:
    """Rows on the host, of which `fit` sees a block at a time.

    Args:
        read: called at the start of each pass, returns an iterable of its blocks: rows
            or `Data` with weights, the same in every pass. A generator function will
            do, a generator will not, being spent after one.
        rows_per_block: the most rows of a block; those with fewer are padded.
        decode: from the rows of a block as they are stored to states, compiled: as
            `PackedBits(200)`, or a function of a module.

    >>> def read():
    ...     yield np.zeros((3, 2))
    ...     yield np.ones((1, 2))
    >>> moments(Blocks(read, rows_per_block=3)).mean.tolist()
    [0.25, 0.25]
    """

    read: Callable[[], Iterable[PyTree | Data]] = static()
    rows_per_block: int = static(default=ROWS_PER_BLOCK)
    decode: Callable[[Any], State] = static(default=as_stored)

    def __post_init__(self):
        check_count("rows_per_block", self.rows_per_block)
        if not callable(self.read):
            raise ValueError(
                "read must be a function that begins a new pass over the blocks, got "
                f"a {type(self.read).__name__}"
            )


def from_array(
    x: Any,
    *,
    weights: Any = None,
    rows_per_block: int = ROWS_PER_BLOCK,
    decode: Callable[[Any], State] = as_stored,
) -> Blocks:
    """Blocks of an array on the host, as one that is mapped into memory.

    >>> source = from_array(np.eye(3), rows_per_block=2)
    >>> [len(block.x) for block in source.read()]
    [2, 1]
    """
    if np.ndim(x) == 0 or len(x) == 0:
        raise ValueError(f"x must have rows, got shape {np.shape(x)}")
    if weights is not None and np.shape(weights) != (len(x),):
        raise ValueError(
            f"weights must have one entry for each of {len(x)} rows, got shape "
            f"{np.shape(weights)}"
        )
    check_count("rows_per_block", rows_per_block)
    size = min(rows_per_block, len(x))
    return Blocks(partial(_slices, x, weights, size), size, decode)


def _slices(x, weights, size):
    for first in range(0, len(x), size):
        cut = slice(first, first + size)
        yield Data(x[cut], None if weights is None else weights[cut])


def from_file(
    path: str | os.PathLike,
    *,
    weights: Any = None,
    rows_per_block: int = ROWS_PER_BLOCK,
    decode: Callable[[Any], State] = as_stored,
) -> Blocks:
    """Blocks of a NumPy file `.npy` of rows, which is mapped and never read whole.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/rows.npy", np.eye(4))
    ...     moments(from_file(f"{folder}/rows.npy")).mean.tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    try:
        x = np.lib.format.open_memmap(path, mode="r")
        if x.dtype.kind not in "buif":
            raise ValueError(f"it holds {x.dtype}, not numbers")
        if x.ndim < 2 or 0 in x.shape:
            raise ValueError(f"it must be rows, got shape {x.shape}")
    except FileNotFoundError:
        raise
    except Exception as error:
        # A damaged file can fail in any of the parsers: all of it is one trouble.
        raise ValueError(f"{path} cannot be read as rows: {error}") from error
    return from_array(x, weights=weights, rows_per_block=rows_per_block, decode=decode)


class ColumnMoments(NamedTuple):
    """What a pass over rows adds up.

    >>> mean, weight = moments(from_array(np.eye(4)))
    >>> float(weight)
    4.0
    """

    mean: PyTree
    """The weighted mean of every entry."""
    weight: Scalar
    """The weight of all rows; without weights, their number."""


def moments(source: Blocks) -> ColumnMoments:
    """The mean row, in one pass: `ising.centred_at(*blocks.moments(source))`.

    >>> moments(from_array(np.eye(2), weights=[3.0, 1.0])).mean.tolist()
    [0.75, 0.25]
    """
    total = None
    for block in padded(source):
        new = _moments(source.decode, block)
        total = new if total is None else _joined(total, new)
    if total is None:
        raise ValueError("data must not be empty, got no blocks")
    return total


@partial(jax.jit, static_argnums=0)
def _moments(decode, block):
    x = jax.tree.map(lambda leaf: leaf.astype(float), decode(block.x))
    weights = block.weights.astype(float)
    weight = weights.sum()
    # A block of no weight at all has no mean, and must not make one of NaN.
    mean = mean_of_observed(Data(x, weights + (weight == 0)))
    return ColumnMoments(mean, weight)


@jax.jit
def _joined(first, second):
    weight = first.weight + second.weight
    share = second.weight / jnp.where(weight > 0, weight, 1)
    mean = jax.tree.map(lambda a, b: a + share * (b - a), first.mean, second.mean)
    return ColumnMoments(mean, weight)


class Block(NamedTuple):
    """Rows as they are stored, padded with copies of one that weigh nothing."""

    x: PyTree
    weights: Any
    """How much each counts, an array."""


def padded(source: Blocks) -> Iterator[Block]:
    """A pass over the blocks, all of the same size."""
    for block in source.read():
        block = block if isinstance(block, Data) else Data(block)
        refuse_mask(block, "rows on disk must be complete")
        x = jax.tree.map(np.asarray, block.x)
        rows = _rows_of(x)
        if not 0 < rows <= source.rows_per_block:
            raise ValueError(
                f"a block must have from 1 to rows_per_block={source.rows_per_block} "
                f"rows, got {rows}"
            )
        weights = np.ones(rows) if block.weights is None else block.weights
        weights = np.asarray(weights, jnp.result_type(float))
        if weights.shape != (rows,):
            raise ValueError(
                f"weights must have one entry for each of a block's {rows} rows, got "
                f"shape {weights.shape}"
            )
        missing = source.rows_per_block - rows
        x = jax.tree.map(partial(_padded, missing), x)
        yield Block(x, np.pad(weights, (0, missing)))


def _padded(missing, leaf):
    return np.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1), mode="edge")


def _rows_of(x):
    leaves = jax.tree.leaves(x)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves):
        raise ValueError("a block must be arrays with a leading axis of rows")
    counts = {len(leaf) for leaf in leaves}
    if len(counts) > 1:
        raise ValueError(f"a block must have the same rows, got {sorted(counts)}")
    return counts.pop()


class Surveyed(NamedTuple):
    """Blocks that were looked through once, all checks passed."""

    source: Blocks
    first: Block
    """The first block, as it is stored."""
    weights: tuple[float, ...]
    """The weight of each block, by which later passes are known to be the same."""
    counts: tuple[int, ...]
    """How many of its rows weigh something."""

    def digest(self) -> str:
        """Of what all blocks hold, in another pass."""
        return digest([digest(tuple(block)) for block in same_blocks(self)])


def survey(source: Blocks, objective: Objective, params: Params) -> Surveyed:
    """Look through all blocks once, as `fit` does with data in memory.

    Refused is what the objective refuses of rows in memory, too.
    """
    if jax.process_count() > 1:
        raise ValueError(
            "blocks are read by one process, on as many devices as it has, got "
            f"{jax.process_count()} processes: spread rows in memory among them"
        )
    first, weights, counts = None, [], []
    for block in padded(source):
        first = put_rows(block) if first is None else first
        if not np.all(np.isfinite(block.weights) & (block.weights >= 0)):
            raise ValueError("weights must not be negative, infinite or NaN")
        objective.prepare(params, as_data(source.decode(block.x)))
        weights.append(float(block.weights.sum()))
        counts.append(int(np.count_nonzero(block.weights)))
    if first is None or not any(weights):
        raise ValueError(f"data must have rows of weight, got {len(weights)} blocks")
    return Surveyed(source, first, tuple(weights), tuple(counts))


def same_blocks(known: Surveyed) -> Iterator[Block]:
    """Another pass over the blocks, refused if their weights are not those surveyed."""
    count = 0
    for block in padded(known.source):
        if count == len(known.weights) or block.weights.sum() != known.weights[count]:
            break
        count += 1
        yield block
    else:
        if count == len(known.weights):
            return
    raise ValueError(
        f"every pass must read the same {len(known.weights)} blocks, but one differed "
        f"at block {count}: let read begin a new pass each time it is called"
    )
