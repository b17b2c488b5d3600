"""Numbers of rows in which two units are on or off, for the pairs of an Ising model."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int

from probjax.checks import is_on_host, namespace
from probjax.types import Data, Float

# Entries of the arrays that hold the rows of several pairs.
MOST_ENTRIES = 2**24
# Products of matrices count all pairs of units in the time in which products of columns
# count one in as many.
PAIRS_PER_COLUMN = 20


class JointCounts(NamedTuple):
    """Numbers of rows with positive weight, by the states of units."""

    on: Float[np.ndarray, " unit"]
    """Rows in which each unit is on."""
    observed: Float[np.ndarray, " unit"]
    """Rows in which each unit was observed."""
    joint: Float[np.ndarray, "4 pair"]
    """Rows in which both units of a pair are on, only the first, only the second, and
    neither."""

    @property
    def is_constant(self) -> Bool[np.ndarray, " unit"]:
        """Whether a unit is always on, or always off."""
        return (self.on == 0) | (self.on == self.observed)

    @property
    def missing(self) -> Bool[np.ndarray, "4 pair"]:
        """Whether each joint state never occurs, if the pair was observed."""
        return (self.joint == 0) & (self.joint.sum(0) > 0)


def joint_counts(
    data: Data, first: Int[np.ndarray, " pair"], second: Int[np.ndarray, " pair"]
) -> JointCounts:
    """Count the rows in each joint state of some pairs of units.

    Args:
        first: first unit of each pair.
        second: second unit of each pair.

    >>> rows = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    >>> joint_counts(Data(rows), np.array([0]), np.array([1])).joint.tolist()
    [[1.0], [0.0], [1.0], [1.0]]
    """
    size = data.x.shape[1]
    # NumPy, if it can read the data: a check should not compile anything.
    on_host = is_on_host(data)
    if on_host:
        data = jax.tree.map(np.asarray, data)
    if len(first) * PAIRS_PER_COLUMN > size**2:
        both = _by_matrices if on_host else _compiled_by_matrices
        counts = [np.asarray(each)[first, second] for each in both(data)]
    else:
        both = _by_columns if on_host else _compiled_by_columns
        counts = both(data, first, second)
    singles = _singles if on_host else _compiled_singles
    on, observed = map(np.asarray, singles(data))
    both_on, first_on, second_on, total = map(np.asarray, counts)
    joint = [
        both_on,
        first_on - both_on,
        second_on - both_on,
        total - first_on - second_on + both_on,
    ]
    return JointCounts(on, observed, np.stack(joint))


def _on_and_observed(data):
    """Whether each entry is on, and whether it was observed, in rows with weight."""
    x, xp = data.x, namespace(data.x)
    # Only whether a row has weight matters. So sums are of integers, and exact.
    counted = xp.ones(len(x)) if data.weights is None else data.weights > 0
    counted = counted.astype(x.dtype)[:, None]
    observed = counted if data.mask is None else counted * data.mask
    observed = xp.broadcast_to(observed, x.shape).astype(x.dtype)
    return observed * x, observed


def _singles(data):
    on, observed = _on_and_observed(data)
    return on.sum(0), observed.sum(0)


def _by_matrices(data):
    """Both on, first on, second on and both observed, as matrices of all pairs."""
    on, observed = _on_and_observed(data)
    both_on = on.T @ on
    if data.mask is None:
        xp = namespace(on)
        first_on = xp.broadcast_to(xp.diagonal(both_on)[:, None], both_on.shape)
        total = xp.broadcast_to(observed[:, 0].sum(), both_on.shape)
    else:
        first_on, total = on.T @ observed, observed.T @ observed
    return both_on, first_on, first_on.T, total


def _by_columns(data, first, second):
    """The counts of `_by_matrices` for some pairs only, in NumPy."""
    on, observed = (np.ascontiguousarray(each.T) for each in _on_and_observed(data))
    size = max(1, MOST_ENTRIES // len(data.x))
    counts = np.empty((4, len(first)), on.dtype)
    for begin in range(0, len(first), size):
        part = slice(begin, begin + size)
        i, j = first[part], second[part]
        for row, (left, right) in enumerate(_products(on, observed)):
            counts[row, part] = np.einsum("er,er->e", left[i], right[j])
    return counts


def _compiled_columns(data, first, second):
    """The counts of `_by_columns` on the device of the data."""
    on, observed = (each.T for each in _on_and_observed(data))

    def of_pair(pair):
        i, j = pair
        return tuple(left[i] @ right[j] for left, right in _products(on, observed))

    size = max(1, MOST_ENTRIES // len(data.x))
    return jax.lax.map(of_pair, (first, second), batch_size=size)


def _products(on, observed):
    return (on, on), (on, observed), (observed, on), (observed, observed)


_compiled_singles = jax.jit(_singles)
_compiled_by_matrices = jax.jit(_by_matrices)
_compiled_by_columns = jax.jit(_compiled_columns)
