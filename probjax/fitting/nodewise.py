"""Fits of one unit at a time, all of them at once under `vmap`.

The losses are in `probjax.objectives.nodes`. Each unit has parameters of its own, so a
coupling is found twice, once from either end; `ising.symmetrised` takes the mean.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count
from probjax.data.rows import as_data, num_rows
from probjax.fitting.fit import Fit, fit
from probjax.fitting.stopping import GradientNorm, StoppingRule
from probjax.interfaces import Penalty
from probjax.objectives.gaps import GapObjective
from probjax.objectives.missing import draw_from_others
from probjax.potential import potential
from probjax.states import num_sites
from probjax.types import Array, Data, Energy, Params, PRNGKeyArray, PyTree


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
    >>> from probjax.objectives import LogRISE
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
