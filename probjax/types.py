"""Interfaces, and the records that pass between them.

A **function** is an energy, a score or a rule; a **recipe** has parameters (see
`probjax.recipe`); a **record** holds states and results.

Interfaces are abstract base classes. Required members are abstract; all other members
that a driver uses have a default. Recipes, a user's own included, inherit from them:

    @probjax.recipe
    class Mine(probjax.Sampler):
        def init(self, key, potential, x): ...
        def step(self, key, potential, state): ...
"""

import dataclasses
from abc import ABC, abstractmethod
from typing import (
    Any,
    Literal,
    NamedTuple,
    Protocol,
    Self,
)

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from probjax.trees import floating, weighted_mean

__all__ = [
    "Array",
    "ArrayLike",
    "Base",
    "Bool",
    "Chart",
    "Connectivity",
    "Context",
    "Data",
    "Domain",
    "Energy",
    "Float",
    "Gaps",
    "Info",
    "Neighbours",
    "Objective",
    "Params",
    "Penalty",
    "PRNGKeyArray",
    "PyTree",
    "Sampler",
    "Scalar",
    "State",
]

Params = PyTree
State = PyTree
Moves = PyTree
Scalar = Float[Array, ""]


class Energy(Protocol):
    """`energy(params, x)` of one state; p(x) is proportional to exp(-energy).

    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> float(energy(2.0, jnp.array([1.0, 3.0])))
    10.0
    """

    def __call__(self, params: Params, x: State, /) -> Scalar: ...


class Data(NamedTuple):
    """Observed rows.

    >>> from probjax.bases import fit_gaussian
    >>> rows = Data(jnp.array([[0.0], [4.0]]), weights=jnp.array([3.0, 1.0]))
    >>> fit_gaussian(rows).mean.tolist()
    [1.0]
    """

    x: State
    """The states, with a leading axis of rows."""
    weights: Float[Array, " row"] | None = None
    """How much each row counts; None for equally."""
    mask: PyTree = None
    """Booleans shaped like `x`, true for observed entries; None if all are observed.
    Values of `x` at other entries are ignored: see `probjax.objectives.missing`."""


class Context(NamedTuple):
    """What an objective keeps between the steps of a round.

    >>> from probjax.objectives import HutchinsonScoreMatching
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> objective = HutchinsonScoreMatching(energy, num_draws=5)
    >>> context = objective.init(jax.random.key(0), 1.0, Data(jnp.ones((4, 3))))
    >>> context.rows.shape, context.shared  # five directions for every row
    ((4, 5, 3), ())
    """

    rows: PyTree
    """Leaves with the data's leading axis; they follow the rows into minibatches."""
    shared: PyTree
    """What belongs to no row."""


class Neighbours(NamedTuple):
    """The states one state exchanges probability with.

    >>> from probjax.connectivity import BitFlips
    >>> near = BitFlips().states(jnp.array([0.0, 1.0]), ())
    >>> near.x.tolist(), near.weight.tolist()
    ([[1.0, 1.0], [0.0, 0.0]], [1.0, 1.0])
    """

    x: State
    """Leaves with a leading axis of neighbours."""
    log_ratio: Float[Array, " k"]
    """log g(x|x') - log g(x'|x); zeros if the connectivity is symmetric."""
    weight: Float[Array, " k"]
    """What each counts: 1 where all neighbours are visited, 1/k where k are drawn,
    0 for an entry that is no neighbour."""


class Gaps(NamedTuple):
    """E(x) - E(x') + log_ratio for every neighbour x' of one state x.

    Neighbours are in the order of `Neighbours`; those of a site with several letters,
    which exclude each other, share a row: the shape is `(k,)` or `(site, letter)`.

    >>> from probjax.connectivity import BitFlips
    >>> from probjax.potential import potential
    >>> def energy(bias, x):
    ...     return bias @ x
    >>> model = potential(energy, jnp.array([1.0, 3.0]))
    >>> BitFlips().gaps(model, jnp.array([0.0, 1.0]), ()).gap.tolist()
    [-1.0, 3.0]
    """

    gap: Float[Array, "..."]
    """Positive where the neighbour is likelier than the state."""
    weight: Float[Array, "..."]
    """As in `Neighbours`."""


Domain = Literal["any", "bits", "letters", "reals", "mixed"]
"""Kinds of states: entries 0 and 1, entries 0 to q - 1, floating numbers, or several
of these; "any" for what is not known or does not matter."""


class Connectivity(ABC):
    """Rule that says which states exchange probability directly with a state.

    >>> from probjax.connectivity import AllFlips
    >>> flips = AllFlips()
    >>> x = flips.prepare(jnp.array([[0, 1]]))[0]
    >>> moves = flips.draw(jax.random.key(0), None, x)
    >>> flips.states(x, moves).x.tolist()
    [[1.0, 0.0]]
    """

    @abstractmethod
    def prepare(self, x: State) -> State:
        """Check data, and return `x` as floating arrays."""

    @abstractmethod
    def states(self, x: State, moves: Moves) -> Neighbours:
        """Return the neighbours of `x`."""

    def draw(self, key: PRNGKeyArray, potential: Any, x: State) -> Moves:
        """Draw the random part of the neighbourhood of `x`; () if there is none."""
        return ()

    def gaps(self, potential: Any, x: State, moves: Moves) -> Gaps:
        """Compute E(x) - E(x') + log_ratio, one energy per neighbour by default."""
        near = self.states(x, moves)
        gap = potential(x) - jax.vmap(potential)(near.x) + near.log_ratio
        return Gaps(gap, near.weight)

    @property
    def domain(self) -> Domain:
        """Kind of states that it connects."""
        return "any"

    def num_letters(self) -> int | None:
        """Return the number of letters of a site; None if states are not letters."""
        return None


class Objective(ABC):
    """A loss to be minimised: `reduce` over weighted rows of `row`, plus `rest`.

    `refresh` holds all randomness, so within a round the loss is a fixed function of
    `params`.

    >>> from probjax import ScoreMatching
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> objective, data = ScoreMatching(energy), Data(jnp.array([[2.0, 0.0]]))
    >>> context = objective.init(jax.random.key(0), 1.0, objective.prepare(1.0, data))
    >>> float(objective.row(1.0, data.x[0], context.rows))  # 4/2 - 2
    0.0
    """

    @abstractmethod
    def prepare(self, params: Params, data: Data) -> Data:
        """Check data, and return them with `x` as floating arrays."""

    @abstractmethod
    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        """Compute the value of one row, given its part of `Context.rows`."""

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        """Create the context before the first round; empty by default."""
        return Context((), ())

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        """Draw whatever is random, at the start of a round; nothing by default."""
        return context

    def rest(self, params: Params, shared: PyTree) -> Scalar:
        """Compute the part of the loss that belongs to no row; 0 by default."""
        return jnp.zeros(())

    def reduce(self, values: Array, weights: Array) -> Scalar:
        """Combine the values of rows, by default into their weighted mean.

        It must be a weighted mean of some transform of the values, so that chunks of
        rows combine: their results are reduced by their total weights.
        """
        return weighted_mean(values, weights)

    @property
    def has_value(self) -> bool:
        """Whether the loss has a meaningful value, and not only a gradient."""
        return True

    @property
    def couples_rows(self) -> bool:
        """Whether the value of a row depends on other rows."""
        return False

    def unbounded(self, params: Params, data: Data) -> str:
        """Describe which parameters have no finite estimate; "" if none is known."""
        return ""

    def statistic(self, params: Params, x: State) -> Float[Array, " statistic"]:
        """Compute a vector of one row, whose mean over rows enters the loss."""
        return jnp.zeros(0)

    def of_mean(self, mean: Float[Array, " statistic"]) -> Scalar:
        """Compute the part of the loss that depends on the mean of `statistic`."""
        return jnp.zeros(())


def has_statistic(objective: Objective, params: Params, x: State) -> bool:
    """Return whether the loss depends on the mean of a statistic over rows `x`."""

    def of_first(x):
        return objective.statistic(params, jax.tree.map(lambda rows: rows[0], x))

    return jax.eval_shape(of_first, x).size > 0


class Info(NamedTuple):
    """Report of one step of a sampler; None for what the sampler does not report.

    >>> steps = Info(accept=jnp.array([1.0, 0.0, 1.0, 1.0]))  # as draws.info of a chain
    >>> float(steps.accept.mean())
    0.75
    """

    accept: Scalar
    """Fraction of proposals that were accepted; 1 if nothing is ever rejected."""
    chance: Scalar | None = None
    """Acceptance probability of the proposal."""
    flip: Scalar | None = None
    """1 if the momentum was negated."""
    diverged: Scalar | None = None
    """1 if the energy rose beyond all bounds or was not a number; never accepted."""
    energy: Scalar | None = None
    """E(x) + v'v / 2 at the end of the step, with the refreshed momentum."""
    evaluations: Scalar | None = None
    """Number of leaps that were evaluated."""
    num_leaps: Scalar | None = None
    """Number of leaps taken, 0 if the state did not move."""
    swap: Float[Array, " pair"] | None = None
    """Swap probability of neighbouring temperatures; 0 if no swap was tried."""
    tried: Float[Array, " pair"] | None = None
    """1 if a swap was tried, else 0: divide means of `swap` by means of it."""

    @property
    def acceptance(self) -> Scalar:
        """Acceptance probability if it is known, else whether it was accepted."""
        return self.accept if self.chance is None else self.chance


def check_info(info: Any) -> Info:
    """Raise if a sampler's report is not an `Info`; return it in floating numbers."""
    if not isinstance(info, Info):
        raise ValueError(
            "a step of a sampler must return a probjax.types.Info, "
            f"got {type(info).__name__}"
        )
    return jax.tree.map(floating, info)


class Sampler(ABC):
    """A Markov chain that leaves exp(-potential) unchanged, one state at a time.

    A sampler's state has the current state as its `x`. It may cache what holds for all
    weights of a potential; after the parameters have changed, call `init` again.

    >>> from probjax import HeatBath, ising
    >>> from probjax.potential import potential
    >>> model = potential(ising.energy, ising.from_matrix([[-99.0]]))
    >>> x = HeatBath().prepare(model, jnp.array([[0]]))[0]
    >>> state = HeatBath().init(jax.random.key(0), model, x)
    >>> state, info = HeatBath().step(jax.random.key(1), model, state)
    >>> state.x.tolist()
    [1.0]
    """

    @abstractmethod
    def init(self, key: PRNGKeyArray, potential: Any, x: State) -> Any:
        """Create the sampler's state at `x`."""

    @abstractmethod
    def step(self, key: PRNGKeyArray, potential: Any, state: Any) -> tuple[Any, Info]:
        """Return the next state of the chain and a report."""

    def prepare(self, potential: Any, x: State) -> State:
        """Check the model and the starts, and return `x` as floating arrays."""
        return jax.tree.map(floating, x)

    @property
    def domain(self) -> Domain:
        """Kind of states that it moves."""
        return "any"

    def num_letters(self) -> int | None:
        """Return the number of letters of a site; None if states are not letters."""
        return None

    @property
    def resumable(self) -> bool:
        """Whether `init` at a draw of the model continues the chain without bias."""
        return True

    def cached_terms(self, state: Any) -> Float[Array, " term"] | None:
        """Return the unweighted energies that a state caches; None if it has none."""
        return None

    @property
    def target_acceptance(self) -> float | None:
        """Acceptance to which drivers adapt `step_size`; None: nothing is adapted."""
        return None

    step_size: Any
    """Knob that is adapted; only read if `target_acceptance` is not None."""
    metric: Any
    """Metric of the states, None for the identity; only read if `metrics` has any."""

    @property
    def metrics(self) -> tuple[Literal["lengths", "matrix"], ...]:
        """Forms of metric that `adapted` accepts, of shapes (n,) and (n, n)."""
        return ()

    def adapted(self, step_size: Scalar, metric: Array | None = None) -> Self:
        """Return the sampler with another step size, and metric unless it is None."""
        return dataclasses.replace(self, step_size=step_size)  # pyright: ignore


class Base(ABC):
    """A distribution p(x) = exp(-energy(x) - log_z) that can be drawn from.

    >>> from probjax import Laplace
    >>> base = Laplace(2, scale=0.5)
    >>> float(base.log_z), float(base.energy(jnp.array([1.0, -1.0])))
    (0.0, 4.0)
    """

    @property
    @abstractmethod
    def log_z(self) -> Scalar:
        """Logarithm of the normalising constant."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray) -> State:
        """Draw one state."""

    @abstractmethod
    def energy(self, x: State) -> Scalar:
        """Compute the energy of one state."""

    def prepare(self, x: State) -> State:
        """Check rows, and return them as floating arrays."""
        return jax.tree.map(floating, x)

    @property
    def domain(self) -> Domain:
        """Kind of states that it draws."""
        return "any"

    def num_letters(self) -> int | None:
        """Return the number of letters of a site; None if states are not letters."""
        return None


class Penalty(ABC):
    """A term added to any loss, with a proximal map if it is not smooth.

    >>> from probjax import recipe
    >>> @recipe
    ... class AboveZero(Penalty):
    ...     @property
    ...     def smooth(self):
    ...         return False
    ...     def value(self, params):
    ...         return jnp.where((params < 0).any(), jnp.inf, 0.0)
    ...     def prox(self, params, step):
    ...         return jnp.maximum(params, 0)
    >>> AboveZero().prox(jnp.array([1.0, -2.0]), 0.1).tolist()
    [1.0, 0.0]
    """

    @abstractmethod
    def value(self, params: Params) -> Scalar:
        """Compute the term."""

    @property
    def smooth(self) -> bool:
        """Whether the term has a gradient everywhere; if not, `prox` is required."""
        return True

    def prox(self, params: Params, step: Scalar) -> Params:
        """Compute the argmin over q of |q - params|^2 / 2 + step * value(q).

        By default one gradient step, which approximates it for smooth penalties.
        """
        slope = jax.grad(self.value)(params)
        return jax.tree.map(lambda p, g: p - step * g, params, slope)

    def with_strength(self, strength: Scalar | float) -> "Penalty | None":
        """Return the penalty with another strength; None if it has no strength."""
        return None

    def vanishing(self, gradient: Params) -> Scalar | None:
        """Compute the least strength that keeps zeros at zero; None if none does.

        `gradient` is that of the loss where all penalised entries are zero.
        """
        return None

    def sparing(self, couplings: Params) -> "Penalty":
        """Return the penalty on couplings alone, if its weights were left open.

        `couplings` is 1 on couplings and 0 on biases. By default nothing changes.
        """
        return self


class Chart(ABC):
    """The coordinates in which descent happens.

    >>> from probjax import recipe
    >>> @recipe
    ... class Cubes(Chart):
    ...     def forward(self, params):
    ...         return jnp.cbrt(params)
    ...     def inverse(self, coordinates):
    ...         return coordinates**3
    >>> Cubes().inverse(jnp.array([1.0, 2.0])).tolist()
    [1.0, 8.0]
    """

    @abstractmethod
    def forward(self, params: Params) -> PyTree:
        """Compute the coordinates of parameters."""

    @abstractmethod
    def inverse(self, coordinates: PyTree) -> Params:
        """Compute the parameters at coordinates."""
