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
from functools import partial

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.connectivity.flips import OneFlip
from probjax.data.rows import as_data, num_rows
from probjax.fitting.fit import Fit, fit
from probjax.fitting.stopping import GradientNorm, StoppingRule
from probjax.objectives.flow import MPF
from probjax.objectives.gaps import GapObjective
from probjax.objectives.missing import draw_from_others
from probjax.objectives.pseudolikelihood import log_conditionals
from probjax.potential import potential
from probjax.states import num_sites
from probjax.types import (
    Array,
    ArrayLike,
    Data,
    Energy,
    Params,
    Penalty,
    PRNGKeyArray,
    PyTree,
    check_count,
    weighted_mean,
)


def RISE(energy: Energy, node: ArrayLike) -> GapObjective:
    """Mean over rows of exp(gap / 2) of one unit; overflows far from the minimum.

    >>> from probjax import ising, loss
    >>> params = ising.from_matrix([[2.0, 0.0], [0.0, 0.0]])
    >>> args = RISE(ising.energy, 0), params, jnp.array([[1, 0]])
    >>> round(float(loss(jax.random.key(0), *args)), 4)  # exp(2 / 2)
    2.7183
    """
    return GapObjective(energy, OneFlip(node), _rate, weighted_mean)


def LogRISE(energy: Energy, node: ArrayLike) -> GapObjective:
    """Logarithm of the mean over rows of exp(gap / 2): the flow of one unit's flips.

    >>> from probjax import ising, loss
    >>> params = ising.from_matrix([[2.0, 0.0], [0.0, 0.0]])
    >>> args = LogRISE(ising.energy, 0), params, jnp.array([[1, 0]])
    >>> round(float(loss(jax.random.key(0), *args)), 4)  # 2 / 2
    1.0
    """
    return MPF(energy, connectivity=OneFlip(node))


def NodeLikelihood(energy: Energy, node: ArrayLike) -> GapObjective:
    """Mean over rows of -log p(x_n | the other units) of one unit n.

    >>> from probjax import ising, loss
    >>> params = ising.from_matrix([[2.0, 0.0], [0.0, 0.0]])
    >>> args = NodeLikelihood(ising.energy, 0), params, jnp.array([[1, 0]])
    >>> round(float(loss(jax.random.key(0), *args)), 4)  # log(1 + exp(2))
    2.1269
    """
    return GapObjective(energy, OneFlip(node), log_conditionals, weighted_mean)


def fit_nodes(
    key: PRNGKeyArray,
    make: Callable[[Energy, Array], GapObjective],
    energy: Energy,
    params: Params,
    data: PyTree | Data,
    *,
    penalty: Penalty | None = None,
    steps_per_round: int = 2000,
    stop: StoppingRule = GradientNorm(),
    num_rounds: int = 20,
) -> Fit:
    """Fit the loss of every unit on its own.

    Args:
        make: `RISE`, `LogRISE` or `NodeLikelihood`.
        params: where each of the fits starts.
        num_rounds: how often missing entries are filled, each unit's by the conditional
            that its own fit has found; see `probjax.objectives.missing`.

    Returns:
        A `Fit` whose leaves have a leading axis of units; of its `params`, those that a
        unit's own loss depends on have meaning.

    >>> from probjax import exact, ising
    >>> truth = ising.from_matrix([[0.5, -1.0], [-1.0, 0.25]])
    >>> chances = jnp.exp(exact.log_probs(ising.energy, truth, 2))
    >>> start, rows = ising.init(jax.random.key(0), 2), Data(exact.states(2), chances)
    >>> found = fit_nodes(jax.random.key(1), LogRISE, ising.energy, start, rows)
    >>> ising.coupling_matrix(ising.symmetrised(found.params)).round(3).tolist()
    [[0.5, -1.0], [-1.0, 0.25]]
    """
    data = as_data(data)
    # The door's checks once, with values to look at: under vmap there are none.
    data = make(energy, jnp.asarray(0)).prepare(params, data)

    def one(node, start, x, weights):
        return fit(
            key,
            make(energy, node),
            start,
            Data(x, weights),
            penalty=penalty,
            steps_per_round=steps_per_round,
            stop=stop,
        )

    units = jnp.arange(num_sites(data.x))
    if data.mask is None:
        learn = jax.vmap(one, (0, None, None, None))
        return learn(units, params, data.x, data.weights)
    check_count("num_rounds", num_rounds, least=2)
    # A row counts for the units that were observed in it.
    each = jnp.ones(num_rows(data)) if data.weights is None else data.weights
    seen = jax.vmap(lambda mask: ravel_pytree(mask)[0])(data.mask)
    weights = seen.T * each[None]
    learn = jax.vmap(one, (0, 0, None, 0))
    fill_key, sweep_key = jax.random.split(key)
    x = draw_from_others(fill_key, data)
    start = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(units)), params)
    found = learn(units, start, x, weights)
    for number in range(1, num_rounds):
        round_key = jax.random.fold_in(sweep_key, number)
        x = _sweep(round_key, energy, found.params, x, seen)
        found = learn(units, found.params, x, weights)
    return found


@partial(jax.jit, static_argnums=1)
def _sweep(key, energy, of_units, x, seen):
    """Missing entries redrawn one after the other, each by its unit's parameters."""

    def one(key, x, seen):
        flat, unravel = ravel_pytree(x)
        chances = jax.random.uniform(key, flat.shape, flat.dtype)

        def redraw(flat, visit):
            unit, chance = visit
            params = jax.tree.map(lambda leaf: leaf[unit], of_units)
            gap = potential(energy, params).flip_gap()(unravel(flat), unit)
            turns = ~seen[unit] & (chance < jax.nn.sigmoid(gap))
            return flat.at[unit].set(jnp.where(turns, 1 - flat[unit], flat[unit])), None

        return unravel(jax.lax.scan(redraw, flat, (jnp.arange(flat.size), chances))[0])

    return jax.vmap(one)(jax.random.split(key, len(seen)), x, seen)


def screening_strength(num_units: int, num_rows: float, *, constant: float) -> float:
    """Constant * sqrt(log(num_units^2 / .05) / num_rows), per coupling of spins.

    Published constants: .4 for `RISE`, .8 for `LogRISE`, .2 for `NodeLikelihood`. A
    coupling of spins is -J / 2, so give `L1` half of it as the strength per J.

    >>> round(screening_strength(16, 1000, constant=0.4), 4)
    0.037
    """
    return float(constant * jnp.sqrt(jnp.log(num_units**2 / 0.05) / num_rows))


def _rate(gaps):
    return jnp.sum(gaps.weight * jnp.exp(gaps.gap / 2))
