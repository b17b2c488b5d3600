"""Independent fits of all units, in batches under `vmap`.

The losses are in `probjax.objectives.nodes`. Each unit has its own parameters, so that
every coupling is estimated twice, once from each of its two units; `ising.symmetrised`
returns the mean of the two estimates.

If the energy has the closed forms `unit_params` and `unit_energy`, the fit of a unit
moves only the parameters of that unit: d numbers for d units and not d (d + 1) / 2.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax import random
from probjax.checks import check_count, is_concrete, warn
from probjax.data.rows import as_data, num_rows, refuse_inputs
from probjax.fitting.chunk_size import CACHED_ROWS
from probjax.fitting.fit import fit
from probjax.fitting.history import without_pairs
from probjax.fitting.result import ConvergenceWarning, Fit, warn_of_unbounded
from probjax.fitting.stopping import GradientNorm, StoppingRule, rule_for_strength
from probjax.interfaces import Penalty
from probjax.objectives.gaps import GapObjective
from probjax.objectives.missing import draw_from_others
from probjax.objectives.penalty import L1, L2, GroupL1, PenaltySum
from probjax.potential import closed_forms, potential
from probjax.states import num_sites
from probjax.types import Array, Data, Energy, Params, PRNGKeyArray, PyTree

# Numbers in the fit of a unit, per parameter (mostly the history of L-BFGS) and per row
# of a chunk; and the most in a batch of units.
_STATES_PER_UNIT, _GAPS_PER_ROW, _MAX_NUMBERS = 60, 10, 2**26


def fit_nodes(
    key: PRNGKeyArray,
    make: Callable[[Energy, Array], GapObjective],
    energy: Energy,
    params: Params,
    data: PyTree | Data,
    *,
    penalty: Penalty | None = None,
    steps_per_round: int = 2000,
    stop: StoppingRule | None = None,
    num_rounds: int = 20,
) -> Fit:
    """Fit the loss of every unit separately.

    Args:
        make: objective of one unit, `make(energy, unit)`: `RISE`, `LogRISE` or
            `NodeLikelihood`.
        params: initial parameters of each fit.
        penalty: as for `fit`.
        steps_per_round: as for `fit`.
        stop: as for `fit`. If None, `GradientNorm`, and with `L1` or `GroupL1` as for
            `fit_path`.
        num_rounds: number of times that missing entries are imputed, at least 2. The
            entries of a unit are drawn from the conditional distribution that its own
            fit has found; see `probjax.objectives.missing`. Ignored if nothing is
            missing.

    Returns:
        A `Fit` whose leaves have a leading axis of units, without the history of the
        optimisation method. `params` are the parameters of each unit, such as
        `ising.UnitParams`. If the energy has no closed form for them, every unit has
        all parameters, and only those on which its loss depends are meaningful. A
        `ConvergenceWarning` names the units whose fits have not converged.

    >>> from probjax import exact, ising
    >>> from probjax.objectives import LogRISE
    >>> truth = ising.from_matrix([[0.5, -1.0], [-1.0, 0.25]])
    >>> chances = jnp.exp(exact.log_probs(ising.energy, truth, 2))
    >>> start, rows = ising.init(jax.random.key(0), 2), Data(exact.states(2), chances)
    >>> found = fit_nodes(jax.random.key(1), LogRISE, ising.energy, start, rows)
    >>> ising.coupling_matrix(ising.symmetrised(found.params)).round(3).tolist()
    [[0.5, -1.0], [-1.0, 0.25]]
    """
    # Check the data here, because under vmap their values cannot be read.
    objective = make(energy, jnp.asarray(0))
    refuse_inputs(data.x if isinstance(data, Data) else data, "fit_nodes takes states")
    data = objective.prepare(params, as_data(data))
    if stop is None and isinstance(penalty, L1 | GroupL1):
        stop = rule_for_strength(params, penalty.strength)
    elif stop is None:
        stop = GradientNorm()
    if penalty is None and stop.needs_minimum:
        warn_of_unbounded(objective, params, data)
    units = _units(energy, params, penalty, num_sites(data.x))

    def fit_all(starts, x, weights):
        def fit_one(unit):
            number, start = unit
            own = weights if observed is None else weights * observed[:, number]
            found = fit(
                key,
                make(units.energy, number),
                start,
                Data(x, own),
                penalty=units.penalty(number),
                steps_per_round=steps_per_round,
                stop=stop,
                # Of every unit of a batch at the same time, see `_map_units`.
                chunk_size=CACHED_ROWS,
            )
            return found._replace(opt_state=without_pairs(found.opt_state)[0])

        numbers = jnp.arange(num_sites(data.x))
        return _map_units(fit_one, (numbers, starts), num_rows(data))

    observed = None
    if data.mask is None:
        return _with_warning(fit_all(units.params, data.x, data.weights))
    check_count("num_rounds", num_rounds, least=2)
    # For each unit, only rows in which it was observed have weight.
    weights = jnp.ones(num_rows(data)) if data.weights is None else data.weights
    observed = jax.vmap(lambda mask: ravel_pytree(mask)[0])(data.mask)
    fill_key, sweep_key = jax.random.split(key)
    x = draw_from_others(fill_key, data)
    found = fit_all(units.params, x, weights)
    for number in range(1, num_rounds):
        round_key = jax.random.fold_in(sweep_key, number)
        x = _impute(round_key, units.energy, found.params, x, observed)
        found = fit_all(found.params, x, weights)
    return _with_warning(found)


class _Units(NamedTuple):
    """Parts of the fits of single units."""

    energy: Energy
    """Energy of the parameters of one unit."""
    params: Params
    """Initial parameters of every unit, with a leading axis of units."""
    penalty: Callable[[Array], Penalty | None]
    """Penalty on the parameters of one unit."""


def _units(energy, params, penalty, num_units):
    """Split the parameters and the penalty into parts of units, if that is possible."""
    forms = closed_forms(energy)
    if "unit_params" not in forms or not _is_separable(penalty):
        stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_units), params)
        return _Units(energy, stacked, lambda unit: penalty)
    if penalty is not None:
        # Raise for wrong weights before they are split.
        jax.eval_shape(penalty.value, params)

    def own(tree, unit):
        whole = jax.tree.map(
            lambda p, w: jnp.broadcast_to(w, jnp.shape(p)), params, tree
        )
        return forms["unit_params"](whole, unit)

    starts = jax.vmap(own, (None, 0))(params, jnp.arange(num_units))
    own_penalty = partial(_own_penalty, own, penalty)
    return _Units(forms["unit_energy"], starts, own_penalty)


def _is_separable(penalty):
    """Whether a penalty is a sum over parameters that `_own_penalty` can split."""
    if isinstance(penalty, PenaltySum):
        return _is_separable(penalty.first) and _is_separable(penalty.second)
    return penalty is None or isinstance(penalty, L1 | L2 | GroupL1)


def _own_penalty(own, penalty, unit):
    if isinstance(penalty, PenaltySum):
        parts = (penalty.first, penalty.second)
        return PenaltySum(*(_own_penalty(own, part, unit) for part in parts))
    if penalty is None or penalty.weights is None:
        return penalty
    return dataclasses.replace(penalty, weights=own(penalty.weights, unit))


def _map_units(fit_one, units, num_rows):
    """Map over units, in batches whose states and gaps have at most 2^26 numbers."""
    numbers, starts = units
    size = sum(leaf.size for leaf in jax.tree.leaves(starts)) // len(numbers)
    per_unit = _STATES_PER_UNIT * size + _GAPS_PER_ROW * min(num_rows, CACHED_ROWS)
    batch_size = max(1, _MAX_NUMBERS // per_unit)
    if batch_size >= len(numbers):
        return jax.vmap(fit_one)(units)
    return jax.lax.map(fit_one, units, batch_size=batch_size)


def _with_warning(found):
    if not is_concrete(found.converged) or np.all(found.converged):
        return found
    failed = np.flatnonzero(~np.asarray(found.converged))
    shown = ", ".join(map(str, failed[:10])) + (", ..." if len(failed) > 10 else "")
    worst = np.max(np.asarray(found.gradient_norm)[failed])
    warn(
        f"the fits of {len(failed)} of {len(found.converged)} units have not converged "
        f"(units {shown}; largest gradient norm {worst:.2g}); try more "
        "steps_per_round, float64, or a stronger penalty",
        ConvergenceWarning,
    )
    return found


@partial(jax.jit, static_argnums=1)
def _impute(key, energy, unit_params, x, observed):
    """Redraw missing entries one after the other, each from its unit's conditional."""

    def impute_row(key, x, observed):
        flat, unravel = ravel_pytree(x)
        uniforms = random.uniform(key, flat.shape, flat.dtype)

        def redraw(flat, visit):
            unit, uniform = visit
            params = jax.tree.map(lambda leaf: leaf[unit], unit_params)
            gap = potential(energy, params).flip_gap()(unravel(flat), unit)
            flips = ~observed[unit] & (uniform < jax.nn.sigmoid(gap))
            return flat.at[unit].set(jnp.where(flips, 1 - flat[unit], flat[unit])), None

        visits = (jnp.arange(flat.size), uniforms)
        return unravel(jax.lax.scan(redraw, flat, visits)[0])

    keys = jax.random.split(key, len(observed))
    return jax.vmap(impute_row)(keys, x, observed)
