"""Out-of-core data, read block by block on every pass.

    fit(key, objective, params, blocks.from_file("bits.npy", decode=PackedBits(200)))

Blocks are transferred to the device as they are stored and decoded in compiled code, so
that bits may stay packed, eight in a byte. All blocks are padded to one size with rows
of weight 0, so that one program serves them all.
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
SAMPLE_ROWS = 8192
"""Smallest number of rows that a sample of many rows has."""


class PackedBits(NamedTuple):
    """Decoder of bits that `np.packbits(rows, axis=1)` has packed into bytes.

    >>> PackedBits(3)(np.packbits([[1, 0, 1]], axis=1)).tolist()
    [[1, 0, 1]]
    """

    num_bits: int
    """Number of bits in a row; the rest of its last byte is ignored."""

    def __call__(self, x: Array) -> Array:
        width = -(-self.num_bits // 8)
        if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != width:
            raise ValueError(
                f"rows of {self.num_bits} packed bits must be {width} bytes, uint8, "
                f"got {x.dtype} of shape {x.shape}"
            )
        return jnp.unpackbits(jnp.asarray(x), axis=1, count=self.num_bits)


def as_stored(x: State) -> State:
    """Return rows that need no decoding."""
    return x


@recipe
class Blocks:
    """Rows on the host or on disk, which `fit` reads block by block.

    Args:
        read: function that is called at the start of each pass and returns an iterable
            of blocks: rows, or `Data` with weights. Every pass must return the same
            blocks. It can be a generator function, but not a generator, which is
            exhausted after one pass.
        rows_per_block: largest number of rows in a block; smaller blocks are padded.
        decode: function that converts the stored rows of a block to states, in compiled
            code: `PackedBits(200)`, or a function defined at module level.

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
                "read must be a function that starts a new pass over the blocks, got "
                f"a {type(self.read).__name__}"
            )


def from_array(
    x: Any,
    *,
    weights: Any = None,
    rows_per_block: int = ROWS_PER_BLOCK,
    decode: Callable[[Any], State] = as_stored,
) -> Blocks:
    """Cut an array on the host into blocks; it can be a memory map.

    Args:
        x: rows.
        weights: weight of each row; None for equal weights.
        rows_per_block: number of rows in a block.
        decode: function that converts stored rows to states, as in `Blocks`.

    >>> source = from_array(np.eye(3), rows_per_block=2)
    >>> [len(block.x) for block in source.read()]
    [2, 1]
    """
    if np.ndim(x) == 0 or len(x) == 0:
        raise ValueError(f"x must have at least one row, got shape {np.shape(x)}")
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
    """Cut the rows in a NumPy file `.npy` into blocks, without reading the whole file.

    Args:
        path: file with an array of rows, which is memory-mapped.
        weights: weight of each row; None for equal weights.
        rows_per_block: number of rows in a block.
        decode: function that converts stored rows to states, as in `Blocks`.

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
            raise ValueError(f"it must hold rows, got shape {x.shape}")
    except FileNotFoundError:
        raise
    except Exception as error:
        # A damaged file can fail in any of several parsers.
        raise ValueError(f"{path} cannot be read as rows: {error}") from error
    return from_array(x, weights=weights, rows_per_block=rows_per_block, decode=decode)


class ColumnMoments(NamedTuple):
    """Result of `moments`.

    >>> mean, weight = moments(from_array(np.eye(4)))
    >>> float(weight)
    4.0
    """

    mean: PyTree
    """Weighted mean of every entry over rows."""
    weight: Scalar
    """Total weight of all rows; without weights, their number."""


def moments(source: Blocks) -> ColumnMoments:
    """Compute the mean row in one pass: `ising.centred_at(*blocks.moments(source))`.

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
    # The mean of a block of weight 0 is arbitrary, but it must not be NaN.
    mean = mean_of_observed(Data(x, weights + (weight == 0)))
    return ColumnMoments(mean, weight)


@jax.jit
def _joined(first, second):
    weight = first.weight + second.weight
    share = second.weight / jnp.where(weight > 0, weight, 1)
    mean = jax.tree.map(lambda a, b: a + share * (b - a), first.mean, second.mean)
    return ColumnMoments(mean, weight)


class Block(NamedTuple):
    """Rows as they are stored, padded with rows of weight 0."""

    x: PyTree
    """Rows; the padding repeats the last of them."""
    weights: Any
    """Weight of each row, an array."""


def padded(source: Blocks) -> Iterator[Block]:
    """Read all blocks once, padded to the same size."""
    for block in source.read():
        block = block if isinstance(block, Data) else Data(block)
        refuse_mask(block, "blocks must have complete rows")
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
        found = "scalars" if leaves else "no arrays"
        raise ValueError(
            f"a block must be arrays with a leading axis of rows, got {found}; try "
            "np.array to convert lists"
        )
    counts = {len(leaf) for leaf in leaves}
    if len(counts) > 1:
        raise ValueError(
            "all arrays of a block must have the same number of rows, got "
            f"{sorted(counts)}"
        )
    return counts.pop()


class Surveyed(NamedTuple):
    """Blocks that were read once and passed all checks."""

    source: Blocks
    first: Block
    """First block, as it is stored."""
    sample: Block
    """Rows at equal distances from all blocks, as they are stored."""
    weights: tuple[float, ...]
    """Total weight of each block, with which later passes are compared."""
    counts: tuple[int, ...]
    """Number of rows with a positive weight in each block."""

    def digest(self) -> str:
        """Hash of the contents of all blocks, computed in another pass."""
        return digest([digest(tuple(block)) for block in same_blocks(self)])


def survey(source: Blocks, objective: Objective, params: Params) -> Surveyed:
    """Read all blocks once and apply the checks that `fit` applies to data in memory.

    Rows that the objective rejects in memory raise the same errors.
    """
    if jax.process_count() > 1:
        raise ValueError(
            "blocks must be read by a single process, which may have many devices, "
            f"got {jax.process_count()} processes; try spread(rows) with rows in memory"
        )
    first, weights, counts = None, [], []
    sample = _Sample()
    for block in padded(source):
        sample.add(block)
        first = put_rows(block) if first is None else first
        if not np.all(np.isfinite(block.weights) & (block.weights >= 0)):
            raise ValueError("weights must not be negative, infinite or NaN")
        objective.prepare(params, as_data(source.decode(block.x)))
        weights.append(float(block.weights.sum()))
        counts.append(int(np.count_nonzero(block.weights)))
    if first is None or not any(weights):
        raise ValueError(
            "data must have rows with a positive weight, got none in "
            f"{len(weights)} blocks"
        )
    return Surveyed(source, first, sample.rows(), tuple(weights), tuple(counts))


class _Sample:
    """Every n-th row with a positive weight, where n grows with the number of rows."""

    def __init__(self):
        self.parts, self.count, self.stride, self.offset = [], 0, 1, 0

    def add(self, block):
        weighted = np.flatnonzero(block.weights)
        chosen = weighted[self.offset :: self.stride]
        self.offset = (self.offset - len(weighted)) % self.stride
        self.parts.append(jax.tree.map(lambda leaf: leaf[chosen], block))
        self.count += len(chosen)
        if self.count >= 2 * SAMPLE_ROWS:
            self.offset += self.stride * (self.count % 2)
            joined = jax.tree.map(lambda leaf: leaf[::2], self.rows())
            self.parts, self.count = [joined], len(joined.weights)
            self.stride *= 2

    def rows(self):
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *self.parts)


def same_blocks(known: Surveyed) -> Iterator[Block]:
    """Read the blocks again; raise if their weights differ from the first pass."""
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
        f"every pass must read the same {len(known.weights)} blocks, got a difference "
        f"at block {count}; make read start a new pass each time it is called"
    )
