"""Maximum likelihood, with an exact partition function or by sampling.

    loss = mean over rows of E(x) + log Z,    -log p per row.

log Z is a function of the parameters (a transfer matrix, a closed form) or, for small
state spaces, the sum over all states. Other estimators are compared with this one.

For all other models the gradient of log Z is estimated by chains of a `sampler` that
follow the model, see `probjax.objectives.model_chains`. The loss then has a gradient
but no value. `fit` descends by stochastic approximation, and stops by the distance from
the maximum that it measures, see `probjax.fitting.stochastic`.

Reference: thesis, introduction, "Parameter Estimation Techniques"; Younes, Probability
Theory and Related Fields 82, 625 (1989), for the sampled form.
"""

from collections.abc import Callable

import jax

from probjax import exact
from probjax.checks import check_count
from probjax.data.rows import refuse_mask
from probjax.energies import check_energy, check_normalisable
from probjax.interfaces import Objective, Sampler
from probjax.objectives.divergence import PersistentDivergence
from probjax.objectives.model_chains import (
    NUM_GROUPS,
    ModelChains,
    in_groups,
    mean_energy,
    move_chains_on,
    start_chains,
)
from probjax.objectives.particles import check_resumable, prepare_rows
from probjax.recipe import recipe, static
from probjax.states import binary, letters, num_sites
from probjax.trees import floating
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


@recipe
class Enumeration:
    """Discrete state space that is enumerated."""

    size: int = static()
    """Number of sites."""
    num_states: int = static()
    """Number of letters of a site."""


@recipe
class MaximumLikelihood(Objective):
    """Mean over rows of -log p(x) in nats, with log Z exact or by sampling.

    With a `sampler` no other argument is needed, and no other setting of `fit`: chains
    start at rows of the data, and the fit ends when it is closer to the maximum than
    0.3 standard errors, or warns that it is not. For bits and letters some chains are
    replaced from time to time by states that were annealed from random ones, so that
    modes of the model far from the data are found, see `probjax.objectives.explorers`.
    Check the model with `check_fit`.

    Args:
        energy: `energy(params, x)` of one state.
        log_z: `log_z(params)`, a differentiable function defined at the top level of a
            module, such as `rbm.log_z`; if None, all states of the data's sites are
            enumerated.
        num_states: number of letters of a site, if states are enumerated.
        sampler: sampler of chains that replace the sum over all states, such as
            `HeatBath()`; it must be `resumable`. The loss then has no value.
        num_chains: number of chains, a multiple of 20. The error of the estimate that
            is due to sampling decreases with the number of chains times the number of
            steps, and should be smaller than that of the data.
        num_moves: number of steps of the sampler in a step of the fit.

    >>> import jax.numpy as jnp
    >>> from probjax import HeatBath, fit, ising, loss
    >>> flat, rows = ising.from_matrix([[0, 0], [0, 0]]), exact.states(2)
    >>> objective = MaximumLikelihood(ising.energy)
    >>> round(float(loss(jax.random.key(0), objective, flat, rows)), 4)  # 2 log 2
    1.3863
    >>> objective = MaximumLikelihood(ising.energy, sampler=HeatBath())
    >>> rows = jnp.array([[0, 0], [1, 0], [1, 0], [0, 1], [1, 1]] * 100)
    >>> found = fit(jax.random.key(0), objective, flat, rows)
    >>> bool(found.converged), bool(abs(found.params.bias[0] + jnp.log(2)) < 0.1)
    (True, True)
    """

    energy: Energy = static()
    log_z: Callable[[Params], Scalar] | None = static(default=None)
    num_states: int = static(default=2)
    sampler: Sampler | None = None
    num_chains: int = static(default=1000)
    num_moves: int = static(default=1)

    def __post_init__(self):
        check_count("num_chains", self.num_chains, least=NUM_GROUPS)
        check_count("num_moves", self.num_moves)
        if self.num_chains % NUM_GROUPS:
            raise ValueError(
                f"num_chains must be a multiple of {NUM_GROUPS}, got {self.num_chains}"
                f"; try {-(-self.num_chains // NUM_GROUPS) * NUM_GROUPS}"
            )
        if self.sampler is not None and self.log_z is not None:
            raise ValueError(
                "log_z and sampler exclude each other, because chains replace log_z, "
                "got both; try MaximumLikelihood(energy, log_z)"
            )

    @property
    def num_groups(self) -> int:
        return 0 if self.sampler is None else NUM_GROUPS

    @property
    def has_value(self) -> bool:
        return self.sampler is None

    def num_letters(self) -> int | None:
        return self.num_states if self.sampler is None else self.sampler.num_letters()

    def prepare(self, params: Params, data: Data) -> Data:
        reason = "the likelihood needs complete rows"
        if self.sampler is not None:
            check_resumable(self.sampler)
            return prepare_rows(self.energy, self.sampler, params, data, reason)
        refuse_mask(data, reason)
        if self.log_z is not None:
            x = jax.tree.map(floating, data.x)
        elif self.num_states == 2:
            x = binary(data.x)
        else:
            x = letters(data.x, num_states=self.num_states)
        check_energy(self.energy, params, x)
        check_normalisable(self.energy, params)
        jax.eval_shape(self.rest, params, self._space(x))
        return data._replace(x=x)

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        if self.sampler is not None:
            return Context((), start_chains(key, self._chains(), params, data))
        return Context((), self._space(data.x))

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        if self.sampler is None:
            return context
        shared = move_chains_on(key, self._chains(), params, context.shared)
        return Context((), shared)

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        return self.energy(params, x)

    def rest(self, params: Params, shared: Enumeration | ModelChains) -> Scalar:
        if isinstance(shared, ModelChains):
            return -mean_energy(self._chains(), params, shared)
        if self.log_z is not None:
            return self.log_z(params)
        return exact.log_z(
            self.energy, params, shared.size, num_states=shared.num_states
        )

    def groups(self, shared: ModelChains) -> tuple[PyTree, PyTree]:
        return in_groups(shared)

    def states(self, shared: ModelChains) -> State:
        return shared.particles.x

    def _space(self, x):
        return Enumeration(num_sites(x), self.num_states)

    def _chains(self) -> PersistentDivergence:
        assert self.sampler is not None
        return PersistentDivergence(
            self.energy, self.sampler, self.num_chains, self.num_moves
        )
