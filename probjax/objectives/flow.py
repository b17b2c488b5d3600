"""Minimum probability flow: learning without the partition function.

Dynamics that would carry the data distribution to the model's are begun and not run:
the loss is the initial flow of probability out of the data,

    K = (1/|D|) sum_(x in D) sum_(x' ~ x) exp((E(x) - E(x') + log_ratio) / 2),

over rows with multiplicity and the neighbours x' of each. What is minimised is log K:
the same minimiser, still convex if the energy is linear in its parameters, and finite
from any start. Flow between data states is kept unless told otherwise: its gradient
cancels in pairs at the truth, so the estimator stays consistent.

Reference: thesis, chapter "Minimum Probability Flow", eq. Kfinal; Sohl-Dickstein,
Battaglino and DeWeese, PRL 107, 220601 (2011).
"""

import jax
import jax.numpy as jnp

from probjax.connectivity import BitFlips
from probjax.data import as_data, refuse_mask
from probjax.objectives.gaps import GapObjective
from probjax.objectives.reduce import log_mean_exp, log_sum_exp
from probjax.types import Connectivity, Data, Energy, Gaps, Params, PRNGKeyArray, Scalar


def MPF(
    energy: Energy,
    *,
    connectivity: Connectivity = BitFlips(),
    exclude_data: bool = False,
) -> GapObjective:
    """Minimum probability flow: log K, to be minimised by `fit`.

    Where parameters exist that store all data as strict minima (few or separable
    states), K has infimum 0 at infinity and log K no lower bound: give `fit` a penalty
    or a stopping rule.

    Args:
        energy: `energy(params, x)` of one state.
        connectivity: which states exchange probability; sampled ones are drawn anew in
            every round of `fit`.
        exclude_data: leave out the flow between rows of the data, as in the thesis.
            That is no longer consistent: where all states have been seen nothing is
            left, and the fit is refused.
    """
    return GapObjective(energy, connectivity, log_flow, log_mean_exp, exclude_data)


def log_flow(gaps: Gaps) -> Scalar:
    """Log of the flow out of one state, log sum_k weight_k exp(gap_k / 2)."""
    return log_sum_exp(gaps.gap.ravel() / 2, gaps.weight.ravel())


def flow(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    data: Data,
    *,
    connectivity: Connectivity = BitFlips(),
    exclude_data: bool = False,
) -> Scalar:
    """K itself: the mean over rows of the summed flow to their neighbours.

    Overflows where log K, the loss of `MPF`, does not.
    """
    data = as_data(data)
    refuse_mask(data, "the flow is that of complete rows")
    objective = MPF(energy, connectivity=connectivity, exclude_data=exclude_data)
    return _flow(key, objective, params, objective.prepare(params, data))


@jax.jit
def _flow(key, objective, params, data):
    context = objective.refresh(key, params, data, objective.init(key, params, data))
    rows = jax.vmap(objective.row, (None, 0, 0))(params, data.x, context.rows)
    weights = jnp.ones_like(rows) if data.weights is None else data.weights
    return jnp.exp(objective.reduce(rows, weights))
