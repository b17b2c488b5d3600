"""Rows of kinetic Ising models: words with the words before them."""

import numpy as np

from probjax.data.spikes import Words, complete_history
from probjax.models.kinetic_ising.parameters import Inputs
from probjax.trees import as_array
from probjax.types import ArrayLike, Conditioned


def rows(
    words: Words,
    *,
    num_lags: int = 1,
    covariates: ArrayLike | None = None,
    rate: ArrayLike | None = None,
) -> Conditioned:
    """Return the words of a recording with their inputs, the rows for `fit`.

    The first `num_lags` words of each trial have no complete past and are left out.

    Args:
        covariates: a table `(word, covariate)`, or one number for each word.
        rate: probability of an update; None for 1. One number, or one for each word,
            or a table `(word, unit)`, such as whether each unit was updated.

    >>> from probjax.data.spikes import words_from_counts
    >>> words = words_from_counts([[0, 1], [1, 0], [1, 1], [0, 1]], trial=[0, 0, 0, 1])
    >>> found = rows(words)
    >>> found.x.tolist(), found.inputs.past[:, 0].tolist()
    ([[1.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]])
    """
    index = complete_history(words, num_lags)
    x = np.asarray(words.x)
    past = np.stack([x[index - lag] for lag in range(1, num_lags + 1)], axis=1)
    inputs = Inputs(
        as_array(past),
        _checked_covariates(covariates, x, index),
        _checked_rate(rate, x, index),
    )
    return Conditioned(as_array(x[index]), inputs)


def _checked_covariates(covariates, x, index):
    if covariates is None:
        return None
    table = np.asarray(covariates, x.dtype)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or len(table) != len(x):
        raise ValueError(
            f"covariates must have a row for each of {len(x)} words, got shape "
            f"{np.shape(covariates)}"
        )
    if not np.isfinite(table).all():
        raise ValueError("covariates must be finite, got NaN or infinity")
    return as_array(table[index])


def _checked_rate(rate, x, index):
    if rate is None:
        return None
    rate = np.asarray(rate, x.dtype)
    if rate.shape not in ((), x.shape[:1], x.shape):
        raise ValueError(
            f"rate must be one number, one for each of {len(x)} words, or a table "
            f"{x.shape}, got shape {rate.shape}"
        )
    if not ((rate >= 0) & (rate <= 1)).all():
        raise ValueError("rate must be a probability, from 0 to 1, got others")
    rate = np.broadcast_to(rate[..., None] if rate.ndim == 1 else rate, x.shape)[index]
    if np.any((rate == 0) & (x[index] != x[index - 1])):
        raise ValueError(
            "units whose rate is 0 must keep their state, got a unit that changed"
        )
    return as_array(np.ascontiguousarray(rate))
