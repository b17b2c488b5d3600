"""Fit, normalise and sample a model of any family, in one call each.

The estimators and the command line both use these functions, so that they give the same
numbers for the same model. The partition function is summed exactly if that takes at
most 2^20 terms. Otherwise it is annealed from independent sites with the frequencies of
the data.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax import exact
from probjax.annealing import Annealed, Bracket, ais, sandwich
from probjax.annealing.bounds import MIN_EFFECTIVE
from probjax.apps.couplings import Couplings
from probjax.apps.families import FAMILIES, Independent, StateSpace
from probjax.bases import fit_bernoulli, fit_categorical
from probjax.checks import check_count
from probjax.exact.enumeration_blocks import digits
from probjax.fitting.check import FitCheck, check_fit
from probjax.fitting.fit import fit
from probjax.fitting.result import Fit
from probjax.interfaces import Objective, Penalty
from probjax.random import numpy_generator
from probjax.samplers import Draws, sample
from probjax.types import Array, Data, Params, PRNGKeyArray

MAX_LOG2_TERMS = 20
"""Base-2 logarithm of the largest number of states that is enumerated."""
NUM_PARTICLES = 200
"""Number of particles of annealing."""
NUM_CHAINS, NUM_WARMUP, THIN = 200, 1000, 10
"""Number of Markov chains, of their warmup steps, and of steps between their draws."""
MAX_CHECK_STEPS, MIN_CHECK_STEPS, CHECK_WORK = 2000, 200, 3e8
"""Bounds on the number of steps of a check, and on its product with the number of
parameters, for which a check takes about as long as a fit."""
BLOCK = 256
"""Number of rows that one compiled call evaluates."""


class Model(NamedTuple):
    """A fitted model, as `storage` saves it."""

    family: str
    """Name of the family in `FAMILIES`."""
    params: Params
    base: Independent
    """Independent sites with the frequencies of the data, where annealing and chains
    start."""
    alphabet: tuple[str, ...] = ()
    """Names of the letters 0, 1, ... in files; () if the names are these numbers."""
    names: tuple[str, ...] = ()
    """Names of the sites, such as the header of a file; () if there are none."""


class Normaliser(NamedTuple):
    """Log partition function of a model, with its uncertainty."""

    log_z: float
    stderr: float
    """Standard error; 0 if log Z is an exact sum."""
    lower: float
    """Lower bound on log Z; NaN if there is none."""
    upper: float
    """Upper bound on log Z; NaN if there is none."""
    trusted: bool
    """Whether enough particles are effective for the estimate to be reliable."""
    said: str
    """Description of the method that computed log Z, for a report."""


def distinct_rows(x: np.ndarray, weights: np.ndarray | None = None) -> Data:
    """Return the distinct rows of bits or letters with their total weights, for `fit`.

    Rows of weight 0 are left out, so that weighted rows give bitwise the same data as
    repeated rows. Rows of weight 0 are then added until the number of rows is a power
    of two (at least 64), so that data sets of similar size share compiled programs.

    Args:
        x: letters, `(row, site)`.
        weights: nonnegative weight of each row, `(row,)`; None for 1.
    """
    weights = np.ones(len(x)) if weights is None else np.asarray(weights, float)
    if not weights.any():
        raise ValueError("weights must not all be zero")
    kept = weights > 0
    small = np.asarray(x)[kept].astype(np.uint16)
    rows, inverse = np.unique(small, axis=0, return_inverse=True)
    counts = np.bincount(inverse.ravel(), weights[kept], minlength=len(rows))
    padding = max(64, 2 ** math.ceil(math.log2(len(rows)))) - len(rows)
    rows = np.concatenate([rows, np.repeat(rows[:1], padding, axis=0)])
    counts = np.concatenate([counts, np.zeros(padding)])
    dtype = jnp.result_type(float)
    return Data(jnp.asarray(rows, dtype), jnp.asarray(counts, dtype))


def fit_model(
    key: PRNGKeyArray,
    family: str,
    objective: Objective,
    start: Params,
    data: Data,
    *,
    penalty: Penalty | None,
    max_steps: int,
) -> tuple[Model, Fit]:
    """Fit a model by descent from `start` in the coordinates of its family.

    A penalty without weights of its own applies to couplings only, as in `fit`.
    """
    if not (objective.has_value or objective.num_groups):
        raise ValueError(
            f"objective must have a value to minimise, got {type(objective).__name__}, "
            "which defines only a gradient; use probjax.fit with an optimizer"
        )
    kind = FAMILIES[family]
    found = fit(
        key,
        objective,
        start,
        data,
        penalty=penalty,
        steps_per_round=max_steps,
    )
    num_states = kind.space(start).num_states
    base = fit_bernoulli(data) if num_states == 2 else fit_categorical(data, num_states)
    return Model(family, found.params, base), found


def check_model(key: PRNGKeyArray, model: Model, data: Data) -> FitCheck:
    """Compare a model with data by chains of the sampler of its family.

    Chains of models with many parameters take fewer steps.
    """
    family = FAMILIES[model.family]
    num_params = sum(map(np.size, jax.tree.leaves(model.params)))
    steps = int(np.clip(CHECK_WORK / num_params, MIN_CHECK_STEPS, MAX_CHECK_STEPS))
    return check_fit(
        key,
        family.energy,
        model.params,
        data,
        sampler=family.sampler(model.params),
        num_steps=steps,
    )


def couplings_of(model: Model) -> Couplings:
    """Return the couplings of a model, for tables and figures.

    >>> from probjax import ising
    >>> params = ising.from_matrix([[3.0, 0.5], [0.5, 1.0]])
    >>> couplings_of(Model("ising", params, base=None)).matrix.tolist()
    [[3.0, 0.5], [0.5, 1.0]]
    """
    on = repr(model.alphabet[1]) if len(model.alphabet) > 1 else "on"
    return FAMILIES[model.family].couplings(model.params, on)


def can_sum(model: Model) -> bool:
    """Whether the partition function has few enough terms to be summed exactly."""
    return FAMILIES[model.family].log2_terms(model.params) <= MAX_LOG2_TERMS


def estimate_log_z(key: PRNGKeyArray, model: Model, *, num_steps: int) -> Normaliser:
    """Return log Z as an exact sum, or else as an estimate of `ais`, biased low."""
    if can_sum(model):
        return _exact_normaliser(model)
    annealed = _with_model(ais, key, model, num_steps=num_steps)(
        num_particles=NUM_PARTICLES
    )
    return Normaliser(
        log_z=float(annealed.log_z),
        stderr=float(annealed.stderr),
        lower=math.nan,
        upper=math.nan,
        trusted=_has_enough_particles(annealed),
        said=f"annealed from below: {annealed.describe()}",
    )


def bracket_log_z(key: PRNGKeyArray, model: Model, *, num_steps: int) -> Normaliser:
    """Return log Z as an exact sum, or else with an interval of `sandwich`.

    The reverse runs start from the last states of Markov chains.
    """
    if can_sum(model):
        return _exact_normaliser(model)
    chain_key, key = jax.random.split(key)
    last = run_chains(chain_key, model, NUM_PARTICLES).x[:, -1]
    bracket: Bracket = _with_model(sandwich, key, model, num_steps=num_steps)(x=last)
    return Normaliser(
        log_z=float(bracket.log_z),
        stderr=float(bracket.stderr),
        lower=float(bracket.lower),
        upper=float(bracket.upper),
        trusted=bool(bracket.lower <= bracket.upper)
        and _has_enough_particles(bracket.forward),
        said=_describe_bracket(bracket),
    )


def energies(model: Model, x: np.ndarray) -> np.ndarray:
    """Return the energy of each row."""
    energy = FAMILIES[model.family].energy
    return apply_in_blocks(partial(_energies, energy, model.params), x)


def independent_energies(base: Independent, x: np.ndarray) -> np.ndarray:
    """Return the energy of each row under independent sites."""
    return apply_in_blocks(partial(_energies, type(base).energy, base), x)


def apply_in_blocks(function: Callable[[Array], Array], x: np.ndarray) -> np.ndarray:
    """Apply a compiled function of rows to blocks of a fixed number of rows.

    One program then serves any number of rows, and the value of a row does not depend
    on the other rows, not even in its last bit.
    """
    found = []
    for first in range(0, len(x), BLOCK):
        rows = np.asarray(x[first : first + BLOCK])
        padded = np.zeros((BLOCK, *rows.shape[1:]), rows.dtype)
        padded[: len(rows)] = rows
        values = function(jnp.asarray(padded, jnp.result_type(float)))
        found.append(np.asarray(values, np.float64)[: len(rows)])
    return np.concatenate(found)


def draw(key: PRNGKeyArray, model: Model, num_draws: int) -> np.ndarray:
    """Draw rows from the model, `(row, site)`.

    If there are at most 2^20 states, draws are exact and independent. Otherwise they
    are states of up to 200 Markov chains, which start from independent sites; after
    1,000 warmup steps every tenth state is kept.
    """
    check_count("num_draws", num_draws)
    space = FAMILIES[model.family].space(model.params)
    if space.size * math.log2(space.num_states) <= MAX_LOG2_TERMS:
        return _draw_exactly(key, model, space, num_draws)
    chains = run_chains(key, model, num_draws).x
    # Chains alternate, so that the first few rows come from different chains.
    rows = np.asarray(jnp.swapaxes(chains, 0, 1)).reshape(-1, space.size)
    return rows[:num_draws]


def run_chains(key: PRNGKeyArray, model: Model, num_draws: int) -> Draws:
    """Return at least `num_draws` draws in all, from at most 200 Markov chains."""
    family = FAMILIES[model.family]
    start_key, run_key = jax.random.split(key)
    chains = min(num_draws, NUM_CHAINS)
    x = jax.vmap(model.base.sample)(jax.random.split(start_key, chains))
    return sample(
        run_key,
        family.energy,
        model.params,
        x,
        sampler=family.sampler(model.params),
        num_draws=-(-num_draws // chains),
        num_warmup=NUM_WARMUP,
        thin=THIN,
    )


def _draw_exactly(key, model: Model, space: StateSpace, num_draws) -> np.ndarray:
    energy = FAMILIES[model.family].energy
    log_p = exact.log_probs(
        energy, model.params, space.size, num_states=space.num_states
    )
    # NumPy draws in float64: in float32 the cumulative sum would lose rare states.
    probs = np.exp(np.asarray(log_p, np.float64))
    chosen = numpy_generator(key).choice(len(probs), num_draws, p=probs / probs.sum())
    return np.asarray(digits(chosen, space.size, space.num_states, np.float64))


def _exact_normaliser(model: Model) -> Normaliser:
    family = FAMILIES[model.family]
    log_z = float(family.log_z(model.params))
    count = round(2 ** family.log2_terms(model.params))
    description = f"exact, a sum over {count:,} states"
    return Normaliser(log_z, 0.0, log_z, log_z, True, description)


def _with_model(anneal, key, model: Model, *, num_steps: int):
    """Bind the arguments of `ais` or `sandwich` that the model determines."""
    family = FAMILIES[model.family]
    return partial(
        anneal,
        key,
        family.energy,
        model.params,
        model.base,
        sampler=family.sampler(model.params),
        num_steps=num_steps,
        path=family.path(model.params, model.base),
    )


def _describe_bracket(bracket: Bracket) -> str:
    if not bracket.lower <= bracket.upper:
        return f"annealed, but {bracket.describe()}"
    lower, upper = float(bracket.lower), float(bracket.upper)
    return (
        f"annealed from both sides: {lower:.6g} to {upper:.6g}, "
        f"{float(bracket.forward.ess):.0f} of {NUM_PARTICLES} particles are effective"
    )


def _has_enough_particles(annealed: Annealed) -> bool:
    return bool(annealed.ess >= MIN_EFFECTIVE)


@partial(jax.jit, static_argnums=0)
def _energies(energy, params, x):
    return jax.vmap(energy, (None, 0))(params, x)
