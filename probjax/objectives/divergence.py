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

import jax.numpy as jnp

from probjax.checks import check_count
from probjax.interfaces import Objective, Sampler
from probjax.objectives.particles import (
    PersistentParticles,
    energies,
    move_particles,
    prepare_rows,
    refuse_replicas,
    start_particles,
)
from probjax.recipe import recipe, static
from probjax.samplers.adaptation import check_acceptance, move_chains
from probjax.types import (
    Context,
    Data,
    Energy,
    Params,
    PRNGKeyArray,
    PyTree,
    Scalar,
    State,
)

WHOLE = "contrastive divergence compares energies of complete rows"


@recipe
class ContrastiveDivergence(Objective):
    """CD-k: rows against where k = `num_moves` steps of a sampler lead from them.

    A row's context is where its chain ended.

    >>> import jax
    >>> import optax
    >>> from probjax import HeatBath, fit
    >>> def energy(bias, x):
    ...     return bias @ x
    >>> objective = ContrastiveDivergence(energy, HeatBath())
    >>> rows = jnp.tile(jnp.array([[0], [1], [1], [1]]), (100, 1))
    >>> options = dict(optimizer=optax.sgd(1.0), num_rounds=50, steps_per_round=1)
    >>> found = fit(jax.random.key(0), objective, jnp.zeros(1), rows, **options)
    >>> bool(abs(found.params[0] + jnp.log(3)) < 0.5)
    True
    """

    energy: Energy = static()
    sampler: Sampler
    num_moves: int = static(default=1)

    @property
    def has_value(self) -> bool:
        return False

    def __post_init__(self):
        check_count("num_moves", self.num_moves)

    def prepare(self, params: Params, data: Data) -> Data:
        return prepare_rows(self.energy, self.sampler, params, data, WHOLE)

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        return Context(data.x, ())

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        found = move_chains(
            key,
            self.energy,
            params,
            data.x,
            sampler=self.sampler,
            num_steps=self.num_moves,
        )
        return Context(found.x, ())

    def row(self, params: Params, x: State, context: State) -> Scalar:
        return self.energy(params, x) - self.energy(params, context)


@recipe
class PersistentDivergence(Objective):
    """Rows against `num_particles` chains that go on from round to round.

    They start at rows drawn from the data. With many moves in a round and small steps
    of the optimizer they follow the model, and the fit is maximum likelihood. They are
    shared, as `PersistentParticles`, which tell how they do.

    Args:
        target: acceptance to which the step size is adapted; None for the sampler's
            `target_acceptance`.
        adapt: whether the step size of a sampler that has a target is adapted.

    >>> import jax
    >>> import optax
    >>> from probjax import HeatBath, fit
    >>> def energy(bias, x):
    ...     return bias @ x
    >>> objective = PersistentDivergence(energy, HeatBath(), num_particles=400)
    >>> rows = jnp.array([[0], [1], [1], [1]])
    >>> options = dict(optimizer=optax.sgd(1.0), num_rounds=50, steps_per_round=1)
    >>> found = fit(jax.random.key(0), objective, jnp.zeros(1), rows, **options)
    >>> bool(abs(found.params[0] + jnp.log(3)) < 0.5)
    True
    """

    energy: Energy = static()
    sampler: Sampler
    num_particles: int = static()
    num_moves: int = static(default=1)
    target: float | None = None
    adapt: bool = static(default=True)

    @property
    def has_value(self) -> bool:
        return False

    def __post_init__(self):
        check_count("num_moves", self.num_moves)
        check_count("num_particles", self.num_particles)
        check_acceptance(self.target)

    def prepare(self, params: Params, data: Data) -> Data:
        refuse_replicas(self.sampler)
        return prepare_rows(self.energy, self.sampler, params, data, WHOLE)

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        return Context((), start_particles(key, self, params, data))

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        return Context((), move_particles(key, self, params, context.shared))

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        return self.energy(params, x)

    def rest(self, params: Params, shared: PersistentParticles) -> Scalar:
        return -jnp.mean(energies(self.energy, params, shared.x))
