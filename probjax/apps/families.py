"""Models as people ask for them: fitted, normalised and drawn from in one call each.

A `Family` says of a kind of model what these take beyond its energy. Its partition
function is summed where that takes at most 2^20 states, and else annealed from
independent units as the data have them. It is what `estimators` and the command line
are made of, so that both say the same of the same model.
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
from probjax.annealing.bounds import FEW
from probjax.annealing.paths import Path
from probjax.bases import Bernoulli, Categorical, fit_bernoulli, fit_categorical
from probjax.checks import check_count
from probjax.connectivity import BitFlips, SiteChanges
from probjax.exact.enumeration_blocks import digits
from probjax.fitting.fit import Fit, fit
from probjax.interfaces import Chart, Objective, Penalty, Sampler
from probjax.models import hopfield, ising, potts, rbm
from probjax.objectives.flow import MPF
from probjax.objectives.gaps import GapObjective
from probjax.samplers import Draws, HeatBath, sample
from probjax.types import Array, Data, Energy, Params, PRNGKeyArray, Scalar

LOG2_MOST = 20
NUM_PARTICLES, NUM_CHAINS, NUM_WARMUP, THIN, BLOCK = 200, 200, 1000, 10, 256

Independent = Bernoulli | Categorical


class StateSpace(NamedTuple):
    """The states of a model."""

    size: int
    """Sites of a state."""
    num_states: int
    """Letters of a site."""


class Family(NamedTuple):
    """A kind of model."""

    energy: Energy
    space: Callable[[Params], StateSpace]
    """Where its states are."""
    log2_terms: Callable[[Params], float]
    """The logarithm of how many terms its partition function is summed by."""
    log_z: Callable[[Params], Scalar]
    """That sum."""
    sampler: Callable[[Params], Sampler]
    path: Callable[[Params, Independent], Path | None]
    """The way from independent units; None for the geometric one."""
    chart: Callable[[Params, Data], Chart | None]
    """Good coordinates to descend in, for penalties that are smooth."""
    couplings_only: Callable[[Params], Params]
    """Weights of a penalty: 1 on what couples, 0 on biases."""


class Model(NamedTuple):
    """A fitted model: what `storage` keeps of it."""

    family: str
    """Its name among `FAMILIES`."""
    params: Params
    base: Independent
    """Independent units as in the data: where annealing and chains begin."""
    alphabet: tuple[str, ...] = ()
    """What the letters 0, 1, ... are called in files; () if just that."""
    names: tuple[str, ...] = ()
    """What the sites are called, as in the header of a file; () if nothing."""


class Normaliser(NamedTuple):
    """The log Z of a model, and how well it is known."""

    log_z: float
    stderr: float
    """0 if it was summed."""
    lower: float
    """Below which it is not, nor..."""
    upper: float
    """...above; NaN where a side was not bounded."""
    trusted: bool
    """Whether enough particles count."""
    said: str
    """How it was found, in words."""


def SiteFlow(energy: Energy, *, num_states: int) -> GapObjective:
    """`MPF` over all changes of one site, of two letters or of more."""
    sites = BitFlips() if num_states == 2 else SiteChanges(num_states)
    return MPF(energy, connectivity=sites)


def counted(x: np.ndarray, weights: np.ndarray | None = None) -> Data:
    """The distinct rows of bits or letters, with what they weigh, for any `fit`.

    Rows of weight 0 are left out, so that weights are the same as repeated rows to the
    last bit. Their number is made a power of two, as data of many sizes then are runs
    of few programs; what is added weighs nothing.
    """
    weights = np.ones(len(x)) if weights is None else np.asarray(weights, float)
    if not weights.any():
        raise ValueError("weights must not all be zero")
    kept = weights > 0
    small = np.asarray(x)[kept].astype(np.uint16)
    rows, inverse = np.unique(small, axis=0, return_inverse=True)
    counts = np.bincount(inverse.ravel(), weights[kept], minlength=len(rows))
    more = max(64, 2 ** math.ceil(math.log2(len(rows)))) - len(rows)
    rows = np.concatenate([rows, np.repeat(rows[:1], more, axis=0)])
    counts = np.concatenate([counts, np.zeros(more)])
    kind = jnp.result_type(float)
    return Data(jnp.asarray(rows, kind), jnp.asarray(counts, kind))


def learn(
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

    A penalty that leaves zeros, and has no weights of its own, is on couplings alone.
    """
    if not objective.has_value:
        raise ValueError(
            f"{type(objective).__name__} is no loss to be minimised: fit it with an "
            "optimizer, by probjax.fit"
        )
    kind = FAMILIES[family]
    smooth = penalty is None or penalty.smooth
    if penalty is not None and not smooth:
        penalty = penalty.sparing(kind.couplings_only(start))
    found = fit(
        key,
        objective,
        start,
        data,
        penalty=penalty,
        chart=kind.chart(start, data) if smooth else None,
        steps_per_round=max_steps,
    )
    num_states = kind.space(start).num_states
    base = fit_bernoulli(data) if num_states == 2 else fit_categorical(data, num_states)
    return Model(family, found.params, base), found


def can_sum(model: Model) -> bool:
    """Whether the partition function can be summed."""
    return FAMILIES[model.family].log2_terms(model.params) <= LOG2_MOST


def from_below(key: PRNGKeyArray, model: Model, *, num_steps: int) -> Normaliser:
    """The log Z: its sum, or an estimate by `ais`, which is biased low."""
    if can_sum(model):
        return _summed(model)
    annealed = _anneal(ais, key, model, num_steps=num_steps)(
        num_particles=NUM_PARTICLES
    )
    return Normaliser(
        log_z=float(annealed.log_z),
        stderr=float(annealed.stderr),
        lower=math.nan,
        upper=math.nan,
        trusted=_enough(annealed),
        said=f"annealed from below: {annealed.describe()}",
    )


def from_both_sides(key: PRNGKeyArray, model: Model, *, num_steps: int) -> Normaliser:
    """The log Z: its sum, or an interval by `sandwich`, back from ends of chains."""
    if can_sum(model):
        return _summed(model)
    chain_key, key = jax.random.split(key)
    ends = run_chains(chain_key, model, NUM_PARTICLES).x[:, -1]
    both: Bracket = _anneal(sandwich, key, model, num_steps=num_steps)(x=ends)
    return Normaliser(
        log_z=float(both.log_z),
        stderr=float(both.stderr),
        lower=float(both.lower),
        upper=float(both.upper),
        trusted=bool(both.lower <= both.upper) and _enough(both.forward),
        said=_in_short(both),
    )


def energies(model: Model, x: np.ndarray) -> np.ndarray:
    """The energy of each row."""
    energy = FAMILIES[model.family].energy
    return in_blocks(partial(_energies, energy, model.params), x)


def independent_energies(base: Independent, x: np.ndarray) -> np.ndarray:
    """The energy of each row under independent units."""
    return in_blocks(partial(_energies, type(base).energy, base), x)


def in_blocks(function: Callable[[Array], Array], x: np.ndarray) -> np.ndarray:
    """A compiled `function` of rows, by blocks of one size: a row is always the same.

    Whatever its company, to the last bit; and one program serves any number of rows.
    """
    found = []
    for first in range(0, len(x), BLOCK):
        rows = np.asarray(x[first : first + BLOCK])
        whole = np.zeros((BLOCK, *rows.shape[1:]), rows.dtype)
        whole[: len(rows)] = rows
        values = function(jnp.asarray(whole, jnp.result_type(float)))
        found.append(np.asarray(values, np.float64)[: len(rows)])
    return np.concatenate(found)


def draw(key: PRNGKeyArray, model: Model, num_draws: int) -> np.ndarray:
    """Rows of the model: independent ones if its states can be listed, else of chains.

    Chains start at independent units, and are kept after 1,000 steps at every tenth.
    """
    check_count("num_draws", num_draws)
    space = FAMILIES[model.family].space(model.params)
    if space.size * math.log2(space.num_states) <= LOG2_MOST:
        return _listed(key, model, space, num_draws)
    chains = run_chains(key, model, num_draws).x
    # Draws of all chains side by side, so that the first few are of different ones.
    rows = np.asarray(jnp.swapaxes(chains, 0, 1)).reshape(-1, space.size)
    return rows[:num_draws]


def run_chains(key: PRNGKeyArray, model: Model, num_draws: int) -> Draws:
    """At least so many draws of the model, of 200 chains at most."""
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


def _listed(key, model, space, num_draws) -> np.ndarray:
    energy = FAMILIES[model.family].energy
    log_p = exact.log_probs(
        energy, model.params, space.size, num_states=space.num_states
    )
    # On the host in 64 bits, lest rare states fall between numbers of 32.
    chances = np.exp(np.asarray(log_p, np.float64))
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    chosen = random.choice(len(chances), num_draws, p=chances / chances.sum())
    return np.asarray(digits(chosen, space.size, space.num_states, np.float64))


def _summed(model: Model) -> Normaliser:
    family = FAMILIES[model.family]
    log_z = float(family.log_z(model.params))
    count = round(2 ** family.log2_terms(model.params))
    said = f"exact, a sum over {count:,} states"
    return Normaliser(log_z, 0.0, log_z, log_z, True, said)


def _anneal(anneal, key, model, *, num_steps):
    """`anneal` with all that the model decides."""
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


def _in_short(both: Bracket) -> str:
    if not both.lower <= both.upper:
        return f"annealed, but {both.describe()}"
    return (
        f"annealed from both sides: {float(both.lower):.6g} to {float(both.upper):.6g},"
        f" {float(both.forward.ess):.0f} of {NUM_PARTICLES} particles count"
    )


def _enough(annealed: Annealed) -> bool:
    return bool(annealed.ess >= FEW)


@partial(jax.jit, static_argnums=0)
def _energies(energy, params, x):
    return jax.vmap(energy, (None, 0))(params, x)


def _ising_space(params: ising.Params) -> StateSpace:
    return StateSpace(len(params.bias), 2)


def _hopfield_space(params: hopfield.Params) -> StateSpace:
    return StateSpace(len(params.threshold), 2)


def _potts_space(params: potts.Params) -> StateSpace:
    return StateSpace(*params.field.shape)


def _rbm_space(params: rbm.Params) -> StateSpace:
    return StateSpace(len(params.visible_bias), 2)


def _smaller_layer(params: rbm.Params) -> float:
    return min(params.weight.shape)


def _grown(params: rbm.Params, base: Independent) -> rbm.Growth:
    """Hidden units start as the means of the visible ones have them."""
    visible = jnp.broadcast_to(jnp.asarray(base.log_odds), params.visible_bias.shape)
    return rbm.Growth(visible, rbm.hidden_log_odds(params, jax.nn.sigmoid(visible)))


def _weights_only(params: hopfield.Params) -> hopfield.Params:
    return hopfield.Params(
        jnp.ones_like(params.weight), jnp.zeros_like(params.threshold)
    )


def _by_states(
    energy: Energy, space: Callable, chart: Callable, couplings_only: Callable
) -> Family:
    """A family of which every state is summed, and every site redrawn."""

    def log2_terms(params):
        size, num_states = space(params)
        return size * math.log2(num_states)

    def log_z(params):
        size, num_states = space(params)
        return exact.log_z(energy, params, size, num_states=num_states)

    return Family(
        energy=energy,
        space=space,
        log2_terms=log2_terms,
        log_z=log_z,
        sampler=lambda params: HeatBath(space(params).num_states),
        path=lambda params, base: None,
        chart=chart,
        couplings_only=couplings_only,
    )


FAMILIES: dict[str, Family] = {
    "ising": _by_states(
        ising.energy,
        _ising_space,
        lambda start, data: ising.centred(data),
        ising.couplings_only,
    ),
    "potts": _by_states(
        potts.energy, _potts_space, lambda start, data: None, potts.couplings_only
    ),
    "hopfield": _by_states(
        hopfield.energy, _hopfield_space, lambda start, data: None, _weights_only
    ),
    "rbm": Family(
        energy=rbm.energy,
        space=_rbm_space,
        log2_terms=_smaller_layer,
        log_z=rbm.log_z,
        sampler=lambda params: rbm.BlockGibbs(),
        path=_grown,
        chart=rbm.centred,
        couplings_only=rbm.weights_only,
    ),
}
"""The kinds of models, by name."""
