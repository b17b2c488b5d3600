"""One unit at a time: interaction screening, and pseudolikelihood without tying.

With gap = E(x) - E(x with unit n flipped), the loss of unit n is

    RISE: mean exp(gap / 2)
    logRISE: log mean exp(gap / 2)
    logistic: mean softplus(gap)

over rows. A unit's loss involves its own couplings alone, so each unit is fitted on its
own, all of them at once under `vmap`; a coupling comes out twice, once from either end,
and `ising.symmetrised` takes the mean. Tying the two from the start, as `MPF` (the sum
of all RISE losses) and `PseudoLikelihood` do, makes better use of the data.

Reference: Vuffray, Misra, Lokhov and Chertkov, NeurIPS 2016; Lokhov, Vuffray, Misra and
Chertkov, Science Advances 4, e1700791 (2018), whose penalty has the strength
c sqrt(log(p^2 / .05) / n).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from probjax.connectivity.flips import OneFlip, num_sites
from probjax.data import as_data
from probjax.fitting import Fit, fit
from probjax.objectives.flow import MPF
from probjax.objectives.gaps import GapObjective
from probjax.objectives.local import log_conditionals
from probjax.objectives.reduce import mean
from probjax.types import (
    Array,
    ArrayLike,
    Data,
    Energy,
    Params,
    Penalty,
    PRNGKeyArray,
    PyTree,
)


def RISE(energy: Energy, node: ArrayLike) -> GapObjective:
    """Mean over rows of exp(gap / 2) of one unit; overflows far from the minimum."""
    return GapObjective(energy, OneFlip(node), _rate, mean)


def LogRISE(energy: Energy, node: ArrayLike) -> GapObjective:
    """Logarithm of the mean over rows of exp(gap / 2): the flow of one unit's flips."""
    return MPF(energy, connectivity=OneFlip(node))


def NodeLikelihood(energy: Energy, node: ArrayLike) -> GapObjective:
    """Mean over rows of -log p(x_n | the other units) of one unit n."""
    return GapObjective(energy, OneFlip(node), log_conditionals, mean)


def fit_nodes(
    key: PRNGKeyArray,
    make: Callable[[Energy, Array], GapObjective],
    energy: Energy,
    params: Params,
    data: PyTree | Data,
    *,
    penalty: Penalty | None = None,
    steps_per_round: int = 2000,
    tolerance: float | None = None,
) -> Fit:
    """Fit the loss of every unit on its own.

    Args:
        make: `RISE`, `LogRISE` or `NodeLikelihood`.
        params: where each of the fits starts.

    Returns:
        A `Fit` whose leaves have a leading axis of units; of its `params`, those that a
        unit's own loss depends on have meaning.
    """
    data = as_data(data)
    # The door's checks once, with values to look at: under vmap there are none.
    make(energy, jnp.asarray(0)).prepare(params, data)

    @jax.vmap
    def one(node):
        return fit(
            key,
            make(energy, node),
            params,
            data,
            penalty=penalty,
            steps_per_round=steps_per_round,
            tolerance=tolerance,
        )

    return one(jnp.arange(num_sites(data.x)))


def screening_strength(num_units: int, num_rows: float, *, constant: float) -> float:
    """Constant * sqrt(log(num_units^2 / .05) / num_rows), per coupling of spins.

    Published constants: .4 for `RISE`, .8 for `LogRISE`, .2 for `NodeLikelihood`. A
    coupling of spins is -J / 2, so give `L1` half of it as the strength per J.
    """
    return float(constant * jnp.sqrt(jnp.log(num_units**2 / 0.05) / num_rows))


def _rate(gaps):
    return jnp.sum(gaps.weight * jnp.exp(gaps.gap / 2))
