"""Number of rows whose gradients are computed at a time.

Chunks bound memory. On a CPU they also fit into its cache, and they keep float32 sums
accurate, which a CPU adds one term after the other. Accelerators start each operation
at a cost of its own and need many rows to be busy. So chunks are as long there as
memory allows: the values that reverse-mode differentiation keeps of a chunk have at
most `KEPT_BYTES`. Compilers fuse some of them and add others: programs for a TPU v5e
needed from a quarter of that memory (Ising models) to three times as much (RBMs).
"""

import jax

from probjax.checks import is_concrete
from probjax.data.rows import num_rows
from probjax.devices import num_devices, platform
from probjax.interfaces import Objective
from probjax.types import Data, Params

CACHED_ROWS = 4096
"""Rows per chunk on a CPU, whose gradients fit into its cache; the least elsewhere."""
KEPT_BYTES = 2**28
"""Bytes that the gradient of one chunk keeps on an accelerator, unless
`CACHED_ROWS` rows keep more."""


def default_chunk_size(
    objective: Objective, params: Params, data: Data, *, num_copies: int = 1
) -> int:
    """Return the number of rows per chunk, on each device if rows are distributed.

    All rows are one chunk if they are distributed over devices without a mesh in the
    context, because the devices would have to exchange every chunk.

    Args:
        num_copies: number of gradients that are computed at the same time.
    """
    if num_devices() == 1 and any(map(_is_distributed, jax.tree.leaves(data.x))):
        return num_rows(data)
    if platform((params, data)) == "cpu":
        return CACHED_ROWS
    kept = num_copies * kept_bytes(objective, params, data)
    return max(CACHED_ROWS, num_rows(data) * KEPT_BYTES // max(kept, 1))


def kept_bytes(objective: Objective, params: Params, data: Data) -> int:
    """Return the bytes that are kept between the values of all rows and their gradient.

    >>> from probjax import ScoreMatching
    >>> def energy(scale, x):
    ...     return jax.numpy.sum((x / scale) ** 2) / 2
    >>> data = Data(jax.numpy.ones((100, 2)))
    >>> kept_bytes(ScoreMatching(energy), 1.0, data) >= 4 * 100
    True
    """
    leaves = jax.tree.leaves(_kept.eval_shape(objective, params, data))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


# Compiled never, but traced once for each objective and shapes.
@jax.jit
def _kept(objective, params, data):
    """Return what is kept between the values of all rows and their gradient."""
    context = objective.init(jax.random.key(0), params, data)

    def values(params):
        return jax.vmap(objective.row, (None, 0, 0))(params, data.x, context.rows)

    return jax.vjp(values, params)[1]


def _is_distributed(leaf):
    is_array = isinstance(leaf, jax.Array) and is_concrete(leaf)
    return is_array and len(leaf.sharding.device_set) > 1
