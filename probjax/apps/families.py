"""Model families of the command line and the estimators.

A `Family` contains everything that both use of a kind of model. An entry of `FAMILIES`
adds it to the command line; an estimator also needs a class in `estimators`, whose
signature scikit-learn inspects. Module `fitted_models` fits, normalises and samples the
models of any family.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax import exact
from probjax.annealing.paths import Path
from probjax.apps.couplings import (
    Couplings,
    hopfield_couplings,
    ising_couplings,
    potts_couplings,
    rbm_couplings,
)
from probjax.bases import Bernoulli, Categorical
from probjax.connectivity import BitFlips, SiteChanges
from probjax.interfaces import Objective, Sampler
from probjax.models import hopfield, ising, potts, rbm
from probjax.objectives.flow import MPF
from probjax.objectives.gaps import GapObjective
from probjax.objectives.likelihood import MaximumLikelihood
from probjax.objectives.pseudolikelihood import PseudoLikelihood
from probjax.samplers import HeatBath
from probjax.types import Data, Energy, Params, PRNGKeyArray, Scalar

Independent = Bernoulli | Categorical


class StateSpace(NamedTuple):
    """Shape of the states of a discrete model."""

    size: int
    """Number of sites of a state."""
    num_states: int
    """Number of letters of a site."""


class Family(NamedTuple):
    """Everything that the command line and the estimators use of a kind of model."""

    energy: Energy
    params_class: type
    """Class of the parameters."""
    is_binary: bool
    """Whether states are bits. Otherwise they are letters, whose number is a knob."""
    has_hidden: bool
    """Whether there are hidden units, whose number is a knob."""
    space: Callable[[Params], StateSpace]
    """Shape of the states of a model with these parameters."""
    init: Callable[[PRNGKeyArray, Data, int, int], Params]
    """Initial parameters of a fit: `init(key, data, num_states, num_hidden)`."""
    objectives: Mapping[str, Callable[..., Objective]]
    """Choices of `--estimator`, each called as `(energy, num_states=...)`; the first is
    the default."""
    strength: float
    """Default strength of the penalty on couplings."""
    couplings: Callable[[Params, str], Couplings]
    """Couplings for tables and figures, given the name of the letter 1."""
    log2_terms: Callable[[Params], float]
    """Base-2 logarithm of the number of terms in the sum for the partition function."""
    log_z: Callable[[Params], Scalar]
    """Exact log partition function, computed by that sum."""
    sampler: Callable[[Params], Sampler]
    path: Callable[[Params, Independent], Path | None]
    """Annealing path from independent sites; None for the geometric path."""


def SiteFlow(energy: Energy, *, num_states: int) -> GapObjective:
    """`MPF` over all changes of a single site, for bits or for more letters."""
    sites = BitFlips() if num_states == 2 else SiteChanges(num_states)
    return MPF(energy, connectivity=sites)


_OBJECTIVES: Mapping[str, Callable[..., Objective]] = {
    "mpf": SiteFlow,
    "pseudolikelihood": PseudoLikelihood,
    "likelihood": MaximumLikelihood,
}
# The flow of Potts models needs weaker penalties, and then often has spurious modes.
_POTTS_OBJECTIVES = {
    name: _OBJECTIVES[name] for name in ("pseudolikelihood", "mpf", "likelihood")
}


def _enumerated(
    *,
    energy: Energy,
    params_class: type,
    is_binary: bool,
    space: Callable[[Params], StateSpace],
    init: Callable[[PRNGKeyArray, Data, int, int], Params],
    couplings: Callable[[Params, str], Couplings],
    strength: float,
    objectives: Mapping[str, Callable[..., Objective]] = _OBJECTIVES,
) -> Family:
    """Return a family without hidden units, whose log Z is a sum over all states."""

    def log2_terms(params):
        size, num_states = space(params)
        return size * math.log2(num_states)

    def log_z(params):
        size, num_states = space(params)
        return exact.log_z(energy, params, size, num_states=num_states)

    return Family(
        energy=energy,
        params_class=params_class,
        is_binary=is_binary,
        has_hidden=False,
        space=space,
        init=init,
        objectives=objectives,
        strength=strength,
        couplings=couplings,
        log2_terms=log2_terms,
        log_z=log_z,
        sampler=lambda params: HeatBath(space(params).num_states),
        path=lambda params, base: None,
    )


def _init_rbm(key, data: Data, num_states: int, num_hidden: int) -> rbm.Params:
    return rbm.init(key, data.x.shape[1], num_hidden, scale=0.1, data=data)


def _rbm_path(params: rbm.Params, base: Independent) -> rbm.Growth:
    """Path from independent units of both layers.

    Hidden units start with their log odds at the mean state of the visible units.
    """
    visible = jnp.broadcast_to(jnp.asarray(base.log_odds), params.visible_bias.shape)
    return rbm.Growth(visible, rbm.hidden_log_odds(params, jax.nn.sigmoid(visible)))


FAMILIES: dict[str, Family] = {
    "ising": _enumerated(
        energy=ising.energy,
        params_class=ising.Params,
        is_binary=True,
        space=lambda params: StateSpace(len(params.bias), 2),
        init=lambda key, data, *_: ising.init(key, data.x.shape[1], scale=0.0),
        couplings=ising_couplings,
        strength=1e-4,
    ),
    "potts": _enumerated(
        energy=potts.energy,
        params_class=potts.Params,
        is_binary=False,
        space=lambda params: StateSpace(*params.field.shape),
        init=lambda key, data, num_states, _: potts.init(
            key, data.x.shape[1], num_states, scale=0.0
        ),
        couplings=potts_couplings,
        strength=1e-2,
        objectives=_POTTS_OBJECTIVES,
    ),
    "rbm": Family(
        energy=rbm.energy,
        params_class=rbm.Params,
        is_binary=True,
        has_hidden=True,
        space=lambda params: StateSpace(len(params.visible_bias), 2),
        init=_init_rbm,
        # The flow of an RBM may have no minimum, so it is not the default.
        objectives={
            "pseudolikelihood": PseudoLikelihood,
            "mpf": SiteFlow,
            "likelihood": partial(MaximumLikelihood, log_z=rbm.log_z),
        },
        strength=1e-4,
        couplings=rbm_couplings,
        # log Z is a sum over the states of the smaller layer.
        log2_terms=lambda params: min(params.weight.shape),
        log_z=rbm.log_z,
        sampler=lambda params: rbm.BlockGibbs(),
        path=_rbm_path,
    ),
    "hopfield": _enumerated(
        energy=hopfield.energy,
        params_class=hopfield.Params,
        is_binary=True,
        space=lambda params: StateSpace(len(params.threshold), 2),
        init=lambda key, data, *_: hopfield.init(key, data.x.shape[1]),
        couplings=hopfield_couplings,
        strength=2e-5,
    ),
}
"""Model families by the name that `probjax fit --model` and saved models use."""
