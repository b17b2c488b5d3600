"""Contrastive divergence, and maximum likelihood by sampling.

The gradient of -log p is the gradient of E at the data minus its mean over the model.
Both objectives estimate this mean from a few states x',

    loss = mean over rows of E(x) - mean of E(x'),    x' held fixed.

Only the gradient of the loss is meaningful. Its value is not, and for fixed x' the loss
must not be minimised. Use a first-order optimizer with many rounds of one step each:

    fit(key, objective, params, data, optimizer=optax.sgd(1e-2), num_rounds=1000,
        steps_per_round=1)

In contrastive divergence (CD-k), x' are the states after `num_moves` steps of a sampler
that starts at the data. The persistent form keeps particles, which continue from round
to round; with many moves in a round it is maximum likelihood by sampling.

Reference: Hinton, Neural Computation 14, 1771 (2002); Tieleman, ICML 2008; thesis,
introduction, "Contrastive Divergence", whose sum is over all states.
"""

import jax.numpy as jnp

from probjax.checks import check_count
from probjax.interfaces import Objective, Sampler
from probjax.objectives.particles import (
    PersistentParticles,
    check_resumable,
    energies,
    move_particles,
    prepare_rows,
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

REASON = "contrastive divergence needs complete rows"


@recipe
class ContrastiveDivergence(Objective):
    """CD-k: rows against states after k = `num_moves` steps of a sampler from them.

    The context of a row is the last state of its chain.

    Args:
        energy: `energy(params, x)` of one state.
        sampler: sampler of the chains.
        num_moves: number of steps of each chain.

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
        return prepare_rows(self.energy, self.sampler, params, data, REASON)

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
    """Rows against `num_particles` chains, which continue from round to round.

    The chains start at rows drawn from the data. With many moves in a round and small
    steps of the optimizer they follow the model, and the fit is maximum likelihood. The
    shared context is a `PersistentParticles`, whose `describe()` reports their health.

    Args:
        energy: `energy(params, x)` of one state.
        sampler: sampler of the chains; it must be `resumable`.
        num_particles: number of chains.
        num_moves: number of steps of the sampler in a round.
        target: acceptance rate to which the step size is adapted; None for the
            sampler's `target_acceptance`.
        adapt: whether to adapt the step size, if the sampler has a target acceptance.

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
        check_resumable(self.sampler)
        return prepare_rows(self.energy, self.sampler, params, data, REASON)

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
