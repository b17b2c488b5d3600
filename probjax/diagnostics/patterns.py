"""Distinct states of discrete data, their counts, and their probabilities in a model.

Reference: Schneidman, Berry, Segev and Bialek, Nature 440, 1007 (2006), for words of
spikes.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from probjax.data.rows import as_data, refuse_mask
from probjax.diagnostics.goodness import Comparison
from probjax.trees import as_array
from probjax.types import ArrayLike, Data, Float


class Patterns(NamedTuple):
    """Distinct rows, the most frequent first; `patterns` finds them.

    >>> found = patterns(np.array([[0, 1], [1, 1], [0, 1]]))
    >>> found.x.tolist(), found.counts.tolist(), found.of_row.tolist()
    ([[0, 1], [1, 1]], [2, 1], [0, 1, 0])
    """

    x: np.ndarray
    """Distinct rows, `(pattern, site)`; evaluate a model at them."""
    counts: np.ndarray
    """Number of times that each pattern occurs."""
    of_row: np.ndarray
    """Pattern of each row of the data whose weight is not 0."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.counts.sum())


def patterns(data: ArrayLike | Data) -> Patterns:
    """Find the distinct rows of discrete data, and count them.

    Args:
        data: complete rows `(row, site)` of bits or letters. Weights are whole numbers
            of rows.

    >>> patterns(Data(np.array([[0, 1], [1, 1]]), np.array([1.0, 5.0]))).counts.tolist()
    [5, 1]
    """
    data = as_data(data)
    refuse_mask(data, "patterns are complete rows")
    x = np.asarray(data.x)
    if x.ndim != 2 or not (x == np.round(x)).all():
        raise ValueError(
            "data must be bits or letters, (row, site), got "
            + (f"shape {x.shape}" if x.ndim != 2 else "numbers that are not whole")
        )
    weights = np.ones(len(x)) if data.weights is None else np.asarray(data.weights)
    if not (weights == np.round(weights)).all():
        raise ValueError("weights must be whole numbers of rows, got others")
    x, weights = x[weights > 0].astype(np.int32), weights[weights > 0]
    states, index = np.unique(x, axis=0, return_inverse=True)
    counts = np.bincount(index.ravel(), weights).astype(int)
    order = np.argsort(-counts, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return Patterns(states[order], counts[order], place[index.ravel()])


def pattern_frequencies(
    found: Patterns, log_probs: Float[ArrayLike, " pattern"]
) -> Comparison:
    """Compare the frequencies of patterns with their probabilities in a model.

    The standard error is that of frequencies under the model, without the error of
    fitted parameters or of an estimate of log Z.

    Args:
        log_probs: log p of `found.x` in the model.

    >>> found = patterns(np.array([[0], [1], [1], [1]]))
    >>> compared = pattern_frequencies(found, np.log([0.5, 0.5]))
    >>> compared.observed.tolist(), compared.z.tolist()
    ([0.75, 0.25], [1.0, -1.0])
    """
    log_probs = np.asarray(log_probs, float)
    if log_probs.shape != found.counts.shape:
        raise ValueError(
            f"log_probs must have one entry for each of {len(found.counts)} patterns, "
            f"got shape {log_probs.shape}"
        )
    expected = np.exp(log_probs)
    if not (expected <= 1 + 1e-6).all():
        raise ValueError(
            "log_probs must be at most 0, got positive ones; subtract log Z from "
            "minus the energy"
        )
    observed = found.counts / found.num_rows
    variance = np.maximum(expected * (1 - expected), 0) / found.num_rows
    stderr = np.sqrt(variance)
    difference = observed - expected
    z = np.where(stderr > 0, difference / np.where(stderr > 0, stderr, 1), 0)
    parts = (observed, expected, stderr, z)
    return Comparison(*(as_array(part, jnp.result_type(float)) for part in parts))
