"""One unit at a time: interaction screening, and pseudolikelihood without tying.

With gap = E(x) - E(x with unit n flipped), the loss of unit n is

    RISE: mean exp(gap / 2)    logRISE: log mean exp(gap / 2)    logistic: mean
    softplus(gap)

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

from probjax.connectivity.flips import binary, num_sites
from probjax.data import as_data
from probjax.fitting import Fit, fit
from probjax.objectives.reduce import log_mean_exp, mean
from probjax.potential import check_energy, potential
from probjax.types import (
    Array,
    ArrayLike,
    Context,
    Data,
    Energy,
    Params,
    Penalty,
    PRNGKeyArray,
    PyTree,
    Scalar,
    State,
    recipe,
    static,
)


@recipe
class NodeObjective:
    """`reduce` over rows of `score` of the gap of one unit."""

    energy: Energy = static()
    node: ArrayLike
    score: Callable[[Scalar], Scalar] = static()
    reduce: Callable[[Array, Array], Scalar] = static()

    def prepare(self, params: Params, data: Data) -> Data:
        x = binary(data.x)
        check_energy(self.energy, params, jax.tree.map(lambda rows: rows[0], x))
        return data._replace(x=x)

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        return Context((), ())

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        return context

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        return self.score(
            potential(self.energy, params).flip_gap()(x, jnp.asarray(self.node))
        )

    def rest(self, params: Params, shared: PyTree) -> Scalar:
        return jnp.zeros(())


def RISE(energy: Energy, node: ArrayLike) -> NodeObjective:
    """Mean over rows of exp(gap / 2) of one unit; overflows far from the minimum."""
    return NodeObjective(energy, node, _exp_half, mean)


def LogRISE(energy: Energy, node: ArrayLike) -> NodeObjective:
    """Logarithm of the mean over rows of exp(gap / 2) of one unit."""
    return NodeObjective(energy, node, _half, log_mean_exp)


def NodeLikelihood(energy: Energy, node: ArrayLike) -> NodeObjective:
    """Mean over rows of -log p(x_n | the other units) of one unit n."""
    return NodeObjective(energy, node, jax.nn.softplus, mean)


def fit_nodes(
    key: PRNGKeyArray,
    make: Callable[[Energy, Array], NodeObjective],
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


def _half(gap):
    return gap / 2


def _exp_half(gap):
    return jnp.exp(gap / 2)
