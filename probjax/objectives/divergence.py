"""Contrastive divergence, and the likelihood by sampling.

The gradient of -log p is dE at the data less its mean over the model. Both objectives
here estimate that mean by a few states x',

    loss = mean over rows of E(x) - mean of E(x'),    x' held fixed,

so that the loss has that gradient, and only that: its value says nothing, and it is no
function to be minimised for given x'. Fit it with a first-order optimizer, many rounds,
and one step in each:

    fit(key, objective, params, data, optimizer=optax.sgd(1e-2), num_rounds=1000,
        steps_per_round=1)

Contrastive divergence takes x' from `num_moves` steps of a sampler begun at the data
(CD-k). The persistent form keeps particles that go on from round to round; with many
moves a round, that is maximum likelihood by sampling.

Reference: Hinton, Neural Computation 14, 1771 (2002); Tieleman, ICML 2008; thesis,
introduction, "Contrastive Divergence", where the sum is over all states.
"""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from probjax.data import num_rows, refuse_mask
from probjax.objectives.reduce import mean
from probjax.potential import check_energy, potential
from probjax.samplers.run import move
from probjax.types import (
    Array,
    Context,
    Data,
    Energy,
    Params,
    PRNGKeyArray,
    PyTree,
    Sampler,
    Scalar,
    State,
    check_count,
    floating,
    recipe,
    static,
)


@recipe
class ContrastiveDivergence:
    """CD-k: rows against where k = `num_moves` steps of a sampler lead from them.

    A row's context is where its chain ended.
    """

    energy: Energy = static()
    sampler: Sampler
    num_moves: int = static(default=1)
    reduce: Callable[[Array, Array], Scalar] = static(default=mean)
    minimised: ClassVar[bool] = False

    def __post_init__(self):
        check_count("num_moves", self.num_moves)

    def prepare(self, params: Params, data: Data) -> Data:
        return _prepare(self, params, data)

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        return Context(data.x, ())

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        keys = jax.random.split(key, num_rows(data))
        return Context(_moved(self, keys, params, data.x), ())

    def row(self, params: Params, x: State, context: State) -> Scalar:
        return self.energy(params, x) - self.energy(params, context)

    def rest(self, params: Params, shared: PyTree) -> Scalar:
        return jnp.zeros(())


@recipe
class PersistentDivergence:
    """Rows against `num_particles` chains that go on from round to round.

    They start at rows drawn from the data. With many moves in a round and small steps
    of the optimizer they follow the model, and the fit is maximum likelihood.
    """

    energy: Energy = static()
    sampler: Sampler
    num_particles: int = static()
    num_moves: int = static(default=1)
    reduce: Callable[[Array, Array], Scalar] = static(default=mean)
    minimised: ClassVar[bool] = False

    def __post_init__(self):
        check_count("num_moves", self.num_moves)
        check_count("num_particles", self.num_particles)

    def prepare(self, params: Params, data: Data) -> Data:
        return _prepare(self, params, data)

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        chances = None if data.weights is None else data.weights / data.weights.sum()
        shape = (self.num_particles,)
        rows = jax.random.choice(key, num_rows(data), shape, p=chances)
        return Context((), jax.tree.map(lambda leaf: leaf[rows], data.x))

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        keys = jax.random.split(key, self.num_particles)
        return context._replace(shared=_moved(self, keys, params, context.shared))

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        return self.energy(params, x)

    def rest(self, params: Params, shared: State) -> Scalar:
        return -jnp.mean(jax.vmap(self.energy, (None, 0))(params, shared))


def _prepare(objective, params, data):
    refuse_mask(data, "contrastive divergence compares energies of complete rows")
    first = jax.tree.map(lambda rows: floating(rows[0]), data.x)
    check_energy(objective.energy, params, first)
    model = potential(objective.energy, params)
    return data._replace(x=objective.sampler.prepare(model, data.x))


def _moved(objective, keys, params, x):
    """Where chains from `x` are after the moves of a round."""
    model, sampler = potential(objective.energy, params), objective.sampler

    def one(key, x):
        start_key, key = jax.random.split(key)
        state = sampler.init(start_key, model, x)
        return move(key, sampler, model, state, num_steps=objective.num_moves)[0].x

    return jax.lax.stop_gradient(jax.vmap(one)(keys, x))
