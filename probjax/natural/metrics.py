"""Metric of a model at some parameters, as a matrix or as a linear operator.

    G = scale <s s'>,    s = score, minus the mean score <s> if scores are centred,

averaged over weighted rows. `probjax.natural.scores` defines the scores.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from probjax.data.rows import as_data, refuse_mask
from probjax.natural.operators import MetricOperator, check_matrix_size
from probjax.natural.scores import MetricSource, as_scores
from probjax.runs.driver import full_precision
from probjax.types import Array, Data, Float, Params, PyTree


@full_precision()
def metric(
    scores: MetricSource | Callable[[Params, Data], Array],
    params: Params,
    data: PyTree | Data,
    *,
    centred: bool | None = None,
    chunk_size: int | None = None,
) -> Float[Array, "n n"]:
    """Compute the metric as a matrix, in the order of `ravel_pytree(params)`.

    Args:
        scores: definition of the metric: `energy_scores(energy)`, `Metric(function)`,
            or a function of params and data that returns the scores.
        data: rows to average over, as an array or a `Data` with weights: data, draws
            from the model, or all of its states weighted by their probabilities.
        centred: whether the mean score is subtracted; None for the default of `scores`.
        chunk_size: number of rows at a time; None for as many as need moderate memory.

    >>> from probjax import exact, ising
    >>> from probjax.natural import energy_scores
    >>> flat = ising.from_matrix([[0.0, 0.0], [0.0, 0.0]])
    >>> found = metric(energy_scores(ising.energy), flat, exact.states(2))
    >>> bool(jnp.allclose(found.diagonal(), jnp.array([0.25, 0.25, 0.75]), atol=1e-4))
    True
    """
    scores, data = as_scores(scores, centred), as_data(data)
    refuse_mask(data, "scores are computed from complete rows")
    check_matrix_size(sum(jnp.size(leaf) for leaf in jax.tree.leaves(params)))
    return _metric(scores, params, data, chunk_size)


@partial(jax.jit, static_argnums=3)
def _metric(scores, params, data, chunk_size):
    linear = metric_operator(scores, params, data, chunk_size=chunk_size)
    (whole,) = linear.blocks((tuple(range(len(jax.tree.leaves(params)))),))
    return whole


def metric_operator(
    scores: MetricSource | Callable[[Params, Data], Array],
    params: Params,
    data: PyTree | Data,
    *,
    chunk_size: int | None = None,
) -> MetricOperator:
    """Return the metric at `params`, averaged over the rows of `data`."""
    scores, data = as_scores(scores), as_data(data)
    refuse_mask(data, "scores are computed from complete rows")
    return scores.linear(params, data, chunk_size)
