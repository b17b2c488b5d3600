"""History of quasi-Newton methods: recent steps and changes of the gradient.

With the pairs s_i = x_(i+1) - x_i and y_i = g_(i+1) - g_i, the inverse Hessian H is
approximated by the one that satisfies H y_i = s_i for the newest pair and changes least
from pair to pair. The history is the largest part of the state of a fit, so it is
written in place and never copied. Its arrays have an axis of length 1 between pairs and
parameters: a TPU stores the last two axes in tiles of 8 x 128, in which the vectors of
eight pairs would be interleaved.

Reference: Nocedal, "Updating quasi-Newton matrices with limited storage" (1980).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax.types import Array, Float, PyTree, Scalar

Vector = Float[Array, " n"]

# Fewest and most pairs of a memory, and the most numbers in all of them.
_FEWEST_PAIRS, _MOST_PAIRS, _MAX_NUMBERS = 5, 20, 2**26


class Memory(NamedTuple):
    """The last `m` pairs of a step and a change of gradient, as a ring buffer.

    A new pair overwrites the oldest one in place. A slot whose curvature is zero is
    empty.
    """

    steps: Float[Array, "m 1 n"]
    changes: Float[Array, "m 1 n"]
    curvature: Float[Array, " m"]
    """Products steps_i . changes_i, zero for an empty slot."""
    newest: Array | int = -1
    """Slot of the newest pair. Older pairs are in the slots before it, cyclically."""

    @property
    def newest_curvature(self) -> Scalar:
        """Curvature of the newest pair, zero if the memory is empty."""
        return self.curvature[self.newest % len(self.curvature)]


def num_pairs(size: int) -> int:
    """Return the number of pairs for `size` parameters: 20 for up to 1.7 million.

    The memory of more parameters has 2^26 numbers (256 MB in float32), but at least 5
    pairs.

    >>> [num_pairs(size) for size in (100, 2_000_000, 8_800_000)]
    [20, 16, 5]
    """
    return max(_FEWEST_PAIRS, min(_MOST_PAIRS, _MAX_NUMBERS // (2 * max(size, 1))))


def empty_memory(size: int, point: Vector) -> Memory:
    """Return a memory of `size` empty slots."""
    slots = jnp.zeros((size, 1, len(point)), point.dtype)
    return Memory(slots, slots, jnp.zeros(size, point.dtype), jnp.asarray(-1))


def initial_memory(size: int | None, point: Vector, state: Any) -> Memory:
    """Return an empty memory: that of the previous round's `state` if there is one."""
    if state is not None:
        return cleared(state.memory)
    return empty_memory(num_pairs(len(point)) if size is None else size, point)


def cleared(memory: Memory, *, where: Array | bool = True) -> Memory:
    """Return the memory with all of its slots empty if `where` holds."""
    return memory._replace(curvature=jnp.where(where, 0, memory.curvature))


def with_pair(
    memory: Memory, step: Vector, change: Vector, *, where: Array | bool = True
) -> Memory:
    """Return the memory with one more pair, unless its curvature is not positive.

    Args:
        where: whether to add the pair.
    """
    curvature = step @ change
    tiny = jnp.finfo(step.dtype).eps * jnp.linalg.norm(step) * jnp.linalg.norm(change)
    is_added = where & (curvature > tiny)
    slot = (memory.newest + 1) % len(memory.curvature)

    def push(slots, new):
        # Only one slot is selected and written, so that no copy of the others is made.
        return slots.at[slot].set(jnp.where(is_added, new, slots[slot]))

    return Memory(
        push(memory.steps, step),
        push(memory.changes, change),
        push(memory.curvature, curvature),
        jnp.where(is_added, slot, memory.newest),
    )


def inverse_hessian(memory: Memory, vector: Vector) -> Vector:
    """Multiply the approximate inverse Hessian by `vector` (two-loop recursion)."""
    size = len(memory.curvature)
    inverse = jnp.where(memory.curvature > 0, 1 / memory.curvature, 0)
    inverse = jnp.where(jnp.isfinite(inverse), inverse, 0)

    def weighted(slot, pair, vector):
        # An empty slot may hold an old pair, and 0 times its product may be NaN.
        rho = inverse[slot]
        return jnp.where(rho > 0, rho * jnp.sum(pair[slot] * vector), 0)

    def backward(vector, slot):
        amount = weighted(slot, memory.steps, vector)
        return vector - amount * memory.changes[slot], amount

    def forward(vector, visit):
        slot, amount = visit
        excess = amount - weighted(slot, memory.changes, vector)
        return vector + excess * memory.steps[slot], None

    oldest_first = (memory.newest + 1 + jnp.arange(size)) % size
    row, amounts = jax.lax.scan(backward, vector[None], oldest_first, reverse=True)
    change = memory.changes[memory.newest % size]
    curvature = memory.newest_curvature
    scale = jnp.where(curvature > 0, curvature / jnp.sum(change**2), 1)
    return jax.lax.scan(forward, scale * row, (oldest_first, amounts))[0][0]


Pairs = list[tuple[Array, Array]]
"""Steps and changes of each memory in a tree."""


def without_pairs(tree: PyTree) -> tuple[PyTree, Pairs]:
    """Return a tree whose memories have no pairs, and the pairs.

    The branches of a conditional copy everything that they return. The pairs are large
    and pass around it, see `with_pairs`; the curvatures remain in the tree.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_memory)
    pairs = [(leaf.steps, leaf.changes) for leaf in leaves if _is_memory(leaf)]
    light = [
        leaf._replace(steps=(), changes=()) if _is_memory(leaf) else leaf
        for leaf in leaves
    ]
    return structure.unflatten(light), pairs


def with_pairs(tree: PyTree, pairs: Pairs) -> PyTree:
    """Return the tree with the pairs that `without_pairs` has taken out."""
    remaining = iter(pairs)

    def restore(leaf):
        if not _is_memory(leaf):
            return leaf
        steps, changes = next(remaining)
        return leaf._replace(steps=steps, changes=changes)

    return jax.tree.map(restore, tree, is_leaf=_is_memory)


def _is_memory(node):
    return isinstance(node, Memory)
