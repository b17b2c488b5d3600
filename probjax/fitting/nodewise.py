"""Independent fits of all units, in one `vmap`.

The losses are in `probjax.objectives.nodes`. Each unit has its own parameters, so that
every coupling is estimated twice, once from each of its two units; `ising.symmetrised`
returns the mean of the two estimates.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax import random
from probjax.checks import check_count, is_concrete, warn
from probjax.data.rows import as_data, num_rows
from probjax.fitting.fit import fit
from probjax.fitting.result import ConvergenceWarning, Fit
from probjax.fitting.stopping import GradientNorm, StoppingRule, rule_for_strength
from probjax.interfaces import Penalty
from probjax.objectives.gaps import GapObjective
from probjax.objectives.missing import draw_from_others
from probjax.objectives.penalty import L1, GroupL1
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
        A `Fit` whose leaves have a leading axis of units. For each unit, only the
        parameters on which its loss depends are meaningful. A `ConvergenceWarning`
        names the units whose fits have not converged.

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
    # Check the data here, because under vmap their values cannot be read.
    data = make(energy, jnp.asarray(0)).prepare(params, data)
    if stop is None and isinstance(penalty, L1 | GroupL1):
        stop = rule_for_strength(params, penalty.strength)
    elif stop is None:
        stop = GradientNorm()

    def fit_one(node, start, x, weights):
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
        fit_all = jax.vmap(fit_one, (0, None, None, None))
        return _with_warning(fit_all(units, params, data.x, data.weights))
    check_count("num_rounds", num_rounds, least=2)
    # For each unit, only rows in which it was observed have weight.
    row_weights = jnp.ones(num_rows(data)) if data.weights is None else data.weights
    observed = jax.vmap(lambda mask: ravel_pytree(mask)[0])(data.mask)
    weights = observed.T * row_weights[None]
    fit_all = jax.vmap(fit_one, (0, 0, None, 0))
    fill_key, sweep_key = jax.random.split(key)
    x = draw_from_others(fill_key, data)
    start = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(units)), params)
    found = fit_all(units, start, x, weights)
    for number in range(1, num_rounds):
        round_key = jax.random.fold_in(sweep_key, number)
        x = _impute(round_key, energy, found.params, x, observed)
        found = fit_all(units, found.params, x, weights)
    return _with_warning(found)


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
