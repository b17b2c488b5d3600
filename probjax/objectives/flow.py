"""Minimum probability flow: learning without the partition function.

Consider dynamics that transform the data distribution into that of the model. The loss
is the initial flow of probability out of the data,

    K = (1/|D|) sum_(x in D) sum_(x' ~ x) exp((E(x) - E(x') + log_ratio) / 2),

summed over rows with multiplicity and over the neighbours x' of each row. `MPF`
minimises log K, which has the same minimiser, is convex too if the energy is linear in
its parameters, and does not overflow. Flow between rows of the data is included by
default. Its gradient cancels in pairs at the true parameters, so the estimator is
consistent.

In continuous spaces local neighbours are less efficient. `PersistentMPF` uses a flow to
all states, where x' is drawn from the model at reference parameters r. This flow
factors into a mean over the data and a mean over particles from that model:

    log K = log mean over data x of exp((E(x) - E(x; r)) / 2)
          + log mean over particles s of exp((E(s; r) - E(s)) / 2).

At r, log K is 0, and its gradient is half that of -log p, up to the noise of the
particles. log K has no lower bound if some parameters separate the data from the
particles, so rounds must be short.

Reference: thesis, chapter "Minimum Probability Flow", eqs. Kfinal and PMPF cont;
Sohl-Dickstein, Battaglino and DeWeese, PRL 107, 220601 (2011).
"""

from dataclasses import KW_ONLY

import jax
import jax.numpy as jnp

from probjax.checks import check_count
from probjax.connectivity import BitFlips
from probjax.data.rows import as_data, refuse_mask
from probjax.interfaces import Connectivity, Objective, Sampler
from probjax.objectives.gaps import GapObjective
from probjax.objectives.particles import (
    PersistentParticles,
    check_resumable,
    energies,
    move_particles,
    prepare_rows,
    start_particles,
)
from probjax.objectives.reduce import log_mean_exp, log_sum_exp
from probjax.recipe import recipe, static
from probjax.samplers.adaptation import check_acceptance
from probjax.types import (
    Array,
    Context,
    Data,
    Energy,
    Gaps,
    Params,
    PRNGKeyArray,
    Scalar,
    State,
)


def MPF(
    energy: Energy,
    *,
    connectivity: Connectivity = BitFlips(),
    exclude_data: bool = False,
) -> GapObjective:
    """Minimum probability flow: log K, to be minimised by `fit`.

    If there are parameters that store all data as strict minima (few or separable
    states), the infimum of K is 0 at infinity and log K has no lower bound. Then pass a
    penalty or a stopping rule to `fit`.

    Args:
        energy: `energy(params, x)` of one state.
        connectivity: the neighbours of a state. A random connectivity draws new
            neighbours in every round of `fit`.
        exclude_data: whether to leave out the flow between rows of the data, as in the
            thesis. That estimator is not consistent. It raises if every neighbour of
            every row was observed, because no flow is left.

    >>> from probjax import exact, fit, ising
    >>> truth = ising.from_matrix([[0.5, -1.0], [-1.0, 0.25]])
    >>> chances = jnp.exp(exact.log_probs(ising.energy, truth, 2))
    >>> start = ising.init(jax.random.key(0), 2)
    >>> rows = Data(exact.states(2), chances)
    >>> found = fit(jax.random.key(1), MPF(ising.energy), start, rows).params
    >>> ising.coupling_matrix(found).round(3).tolist()
    [[0.5, -1.0], [-1.0, 0.25]]
    """
    return GapObjective(
        energy, connectivity, log_flow, log_mean_exp, exclude_data, separable=True
    )


def log_flow(gaps: Gaps) -> Scalar:
    """Compute the log flow out of one state, log sum_k weight_k exp(gap_k / 2)."""
    return log_sum_exp(gaps.gap.ravel() / 2, gaps.weight.ravel())


def flow(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    data: Data,
    *,
    connectivity: Connectivity = BitFlips(),
    exclude_data: bool = False,
) -> Scalar:
    """Compute K, the mean over rows of the summed flow to their neighbours.

    K can overflow where log K, the loss of `MPF`, does not.

    With equal energies the flow to each neighbour is 1:

    >>> from probjax import ising
    >>> flat = ising.from_matrix(jnp.zeros((3, 3)))
    >>> float(flow(jax.random.key(0), ising.energy, flat, jnp.eye(3)))
    3.0
    """
    data = as_data(data)
    refuse_mask(data, "the flow needs complete rows")
    objective = MPF(energy, connectivity=connectivity, exclude_data=exclude_data)
    return _flow(key, objective, params, objective.prepare(params, data))


@jax.jit
def _flow(key, objective, params, data):
    context = objective.refresh(key, params, data, objective.init(key, params, data))
    rows = jax.vmap(objective.row, (None, 0, 0))(params, data.x, context.rows)
    weights = jnp.ones_like(rows) if data.weights is None else data.weights
    return jnp.exp(objective.reduce(rows, weights))


@recipe
class PersistentMPF(Objective):
    """Minimum probability flow between rows and particles of the model.

    Pass many rounds of few steps to `fit`: once per round the particles are moved and
    the current parameters become the reference. Values of different rounds cannot be
    compared, because each round begins at 0. The shared context is a
    `PersistentParticles`, whose `describe()` reports their health; the context of a row
    is its energy at the reference.

    Args:
        energy: `energy(params, x)` of one state.
        sampler: sampler of the particles; it must be `resumable`.
        num_particles: number of particles, which start at rows drawn from the data
            according to the weights. None for as many particles as rows; without
            weights one then starts at each row.
        num_moves: number of steps of the sampler in a round.
        target: acceptance rate to which the step size is adapted; None for the
            sampler's `target_acceptance`.
        adapt: whether to adapt the step size, if the sampler has a target acceptance.
            Set it to False if there are only a few particles.

    >>> from probjax import HeatBath, fit, ising
    >>> rows = [[0.0, 1], [1, 0], [1, 0], [1, 1], [0, 0]]
    >>> data = jnp.tile(jnp.array(rows), (100, 1))
    >>> objective = PersistentMPF(ising.energy, sampler=HeatBath(), num_particles=1000)
    >>> start, key = ising.init(jax.random.key(0), 2), jax.random.key(1)
    >>> found = fit(key, objective, start, data, num_rounds=50, steps_per_round=3)
    >>> bool(found.params.bias[0] < found.params.bias[1])
    True
    """

    energy: Energy = static()
    _: KW_ONLY
    sampler: Sampler
    num_particles: int | None = static(default=None)
    num_moves: int = static(default=10)
    target: float | None = None
    adapt: bool = static(default=True)

    @property
    def has_value(self) -> bool:
        return False

    def __post_init__(self):
        check_count("num_moves", self.num_moves)
        if self.num_particles is not None:
            check_count("num_particles", self.num_particles)
        check_acceptance(self.target)

    def prepare(self, params: Params, data: Data) -> Data:
        check_resumable(self.sampler)
        reason = "persistent flow needs complete rows"
        return prepare_rows(self.energy, self.sampler, params, data, reason)

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        particles = start_particles(key, self, params, data)
        return Context(energies(self.energy, params, data.x), particles)

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        particles = move_particles(key, self, params, context.shared)
        return Context(energies(self.energy, params, data.x), particles)

    def row(self, params: Params, x: State, context: Scalar) -> Scalar:
        return (self.energy(params, x) - context) / 2

    def reduce(self, values: Array, weights: Array) -> Scalar:
        return log_mean_exp(values, weights)

    def rest(self, params: Params, shared: PersistentParticles) -> Scalar:
        values = (shared.reference - energies(self.energy, params, shared.x)) / 2
        return log_mean_exp(values, jnp.ones_like(values))
