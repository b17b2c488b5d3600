"""Kinetic Ising models: the next word given the words before it.

    log p(x_i = 1 | inputs) / p(x_i = 0 | inputs) = theta_i,
    theta_i = h_i + sum_(l, j) J_lij past_lj + sum_c b_ic covariates_c

for units x_i in {0, 1} that are updated at once, independently given the inputs:
`past_l` is the word l + 1 bins before, and covariates are any numbers of the row, such
as a stimulus. Positive couplings excite. Fields that depend on time are covariates,
too: with `np.eye(count)[words.bin][:, 1:]` each bin of a trial has its own.

In the asynchronous model each unit is updated with a probability `rate` in a bin, and
otherwise keeps its state,

    p(x_i = 1 | inputs) = rate sigmoid(theta_i) + (1 - rate) past_0i,

a sum over unknown times of updates. If they are known, the rate of a unit is 1 in bins
in which it was updated, and 0 in others.

The energy is -log p(x | inputs), whose log Z is 0, so `PseudoLikelihood` of this energy
is the exact likelihood: a logistic regression of each unit if the rate is 1.

Reference: Roudi and Hertz, PRL 106, 048702 (2011); Zeng, Alava, Aurell, Hertz and
Roudi, PRL 110, 210601 (2013), for asynchronous updates.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from probjax.models.checks import check_size
from probjax.models.kinetic_ising.centring import data_chart
from probjax.models.kinetic_ising.parameters import Inputs, Params, drive
from probjax.potential import closed_form
from probjax.types import Array, Conditioned, Data, Float, Scalar


def log_odds(params: Params, inputs: Inputs) -> Float[Array, " unit"]:
    """Log odds of each unit being on, given its inputs.

    They are infinite for a unit whose rate is 0, which keeps its state.

    >>> params = Params(jnp.array([2.0, 3.0]), jnp.zeros((1, 2, 2)))
    >>> log_odds(params, Inputs(jnp.zeros((1, 2)))).round(4).tolist()
    [2.0, 3.0]
    """
    on, off = log_chances(params, inputs)
    return on - off


def flip_gaps(params: Params, row: Conditioned) -> Float[Array, " unit"]:
    """E(x) - E(x with unit n flipped) for every unit n.

    >>> row = Conditioned(jnp.array([1.0, 0.0]), Inputs(jnp.zeros((1, 2))))
    >>> params = Params(jnp.array([2.0, 3.0]), jnp.zeros((1, 2, 2)))
    >>> flip_gaps(params, row).round(4).tolist()
    [-2.0, 3.0]
    """
    _check(params, row)
    odds = log_odds(params, row.inputs)
    return jnp.where(row.x == 1, -odds, odds)


def flip_gap(params: Params) -> Callable[[Conditioned, Array], Scalar]:
    """Return a function of a row and one unit: that unit's entry of `flip_gaps`.

    >>> row = Conditioned(jnp.array([1.0, 0.0]), Inputs(jnp.zeros((1, 2))))
    >>> params = Params(jnp.array([2.0, 3.0]), jnp.zeros((1, 2, 2)))
    >>> float(flip_gap(params)(row, 1))
    3.0
    """

    def gap(row, unit):
        own = Params(
            params.field[unit, None],
            params.coupling[:, unit][:, None],
            None if params.weights is None else params.weights[unit][None],
        )
        past, covariates, rate = row.inputs
        if rate is not None and rate.ndim:
            rate = rate[unit, None]
        on, off = log_chances(own, Inputs(past, covariates, rate), past[0, unit, None])
        return jnp.where(row.x[unit] == 1, off - on, on - off)[0]

    return gap


def unbounded(params: Params, data: Data) -> str:
    """Description of parameters without a finite estimate; "" if none are known.

    >>> from probjax.data.spikes import words_from_counts
    >>> from probjax.models.kinetic_ising import init, rows
    >>> words = words_from_counts([[0, 1], [1, 1], [0, 1], [1, 1], [0, 0]])
    >>> unbounded(init(2), Data(rows(words))).split(", so")[0]
    'units 0 and 0 lack one of their four joint states (4 of 4 such couplings)'
    """
    missing = _missing_states(data)
    units = np.flatnonzero(_is_constant(missing))
    if units.size:
        return (
            f"{units.size} of {len(params.field)} units never change (such as unit "
            f"{units[0]}), so their fields have no finite estimate"
        )
    missing = missing.any(0)
    if not missing.any():
        return ""
    _, unit, source = np.argwhere(missing)[0]
    return (
        f"units {source} and {unit} lack one of their four joint states "
        f"({missing.sum()} of {missing.size} such couplings), so their couplings have "
        "no finite estimate"
    )


def unbounded_entries(params: Params, data: Data) -> Params:
    """Whether each field and coupling has no finite estimate, see `unbounded`.

    A field is the log odds after silence. So it has none if the unit is never on, or
    never off, while another unit was silent.

    >>> from probjax.data.spikes import words_from_counts
    >>> from probjax.models.kinetic_ising import init, rows
    >>> words = words_from_counts([[0, 1], [1, 1], [0, 1], [1, 1], [0, 0], [0, 1]])
    >>> unbounded_entries(init(2), Data(rows(words))).coupling[0].tolist()
    [[True, True], [True, True]]
    """
    missing = _missing_states(data)
    found = jax.tree.map(lambda leaf: np.zeros(leaf.shape, bool), params)
    return dataclasses.replace(
        found,
        field=_is_constant(missing) | missing[2:].any((0, 1, 3)),
        coupling=missing.any(0),
    )


def _missing_states(data):
    """Whether each joint state never occurs, `(state, lag, unit, source)`.

    The states of source and unit are on and on, on and off, off and on, off and off.
    """
    row, weights = jax.tree.map(np.asarray, (data.x, data.weights))
    counted = np.ones(len(row.x)) if weights is None else (weights > 0).astype(float)
    past, on = row.inputs.past, (counted[:, None] * row.x).sum(0)
    both = np.einsum("r,ri,rlj->lij", counted, row.x, past)
    before = np.einsum("r,rlj->lj", counted, past)[:, None]
    states = [both, before - both, on[:, None] - both]
    return np.stack([*states, counted.sum() - sum(states)]) == 0


def _is_constant(missing):
    """Whether each unit is never on, or never off."""
    never_on, never_off = missing[0] & missing[2], missing[1] & missing[3]
    return (never_on | never_off).any((0, 2))


def _couplings_only(params):
    weights = None if params.weights is None else 0.0
    return Params(0.0, 1.0, weights)  # pyright: ignore[reportArgumentType]


@closed_form(
    flip_gaps=flip_gaps,
    flip_gap=flip_gap,
    unbounded=unbounded,
    unbounded_entries=unbounded_entries,
    chart=data_chart,
    couplings=_couplings_only,
)
def energy(params: Params, row: Conditioned) -> Scalar:
    """-log p(x | inputs) of one row, in nats.

    >>> from probjax.models.kinetic_ising import init
    >>> row = Conditioned(jnp.array([1.0, 0.0]), Inputs(jnp.zeros((1, 2))))
    >>> round(float(energy(init(2), row)), 4)  # 2 log 2
    1.3863
    """
    _check(params, row)
    on, off = log_chances(params, row.inputs)
    return -jnp.sum(jnp.where(row.x == 1, on, off))


def log_chances(
    params: Params, inputs: Inputs, previous: Array | None = None
) -> tuple[Float[Array, " unit"], Float[Array, " unit"]]:
    """Compute the logarithms of p(x_i = 1 | inputs) and p(x_i = 0 | inputs).

    Args:
        previous: state of the units one bin before; None for the latest past.

    >>> params = Params(jnp.zeros(2), jnp.zeros((1, 2, 2)))
    >>> on, off = log_chances(params, Inputs(jnp.ones((1, 2)), rate=0.5))
    >>> jnp.exp(on).round(4).tolist(), jnp.exp(off).round(4).tolist()
    ([0.75, 0.75], [0.25, 0.25])
    """
    theta = params.field + drive(params, inputs)
    on, off = jax.nn.log_sigmoid(theta), jax.nn.log_sigmoid(-theta)
    if inputs.rate is None:
        return on, off
    previous = inputs.past[0] if previous is None else previous
    rate = jnp.asarray(inputs.rate, theta.dtype)
    return _mixed(on, rate, previous == 1), _mixed(off, rate, previous == 0)


def _mixed(log_chance, rate, is_kept):
    """Logarithm of rate exp(log_chance) + (1 - rate) is_kept; it may be infinite."""
    updated = jnp.log(rate) + log_chance
    kept = jnp.where(is_kept, jnp.log1p(-rate), -jnp.inf)
    possible = jnp.maximum(updated, kept) > -jnp.inf
    mixed = jnp.logaddexp(jnp.where(possible, updated, 0), jnp.where(possible, kept, 0))
    return jnp.where(possible, mixed, -jnp.inf)


def _check(params, row):
    size, lags = len(params.field), len(params.coupling)
    check_size("x", row.x, size, "units")
    if row.inputs.past.shape != (lags, size):
        raise ValueError(
            f"past must have the {lags} lags and {size} units of params, got shape "
            f"{row.inputs.past.shape}"
        )
    if (params.weights is None) != (row.inputs.covariates is None):
        raise ValueError(
            "rows must have covariates if and only if params have weights for them; "
            "try init(size, num_covariates=...)"
        )
