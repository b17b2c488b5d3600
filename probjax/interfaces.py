"""Interfaces: the members that drivers use of objectives, samplers and other parts.

Interfaces are abstract base classes. Required members are abstract; all other members
that a driver uses have a default. Recipes, a user's own included, inherit from them:

    @probjax.recipe
    class Mine(probjax.Sampler):
        def init(self, key, potential, x): ...
        def step(self, key, potential, state): ...
"""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp

from probjax.potential import (
    Potential,
    couplings,
    default_chart,
    unbounded,
    unbounded_entries,
)
from probjax.trees import first_row, floating, weighted_mean
from probjax.types import (
    Array,
    Context,
    Data,
    Domain,
    Float,
    Gaps,
    Info,
    Moves,
    Neighbours,
    Params,
    PRNGKeyArray,
    PyTree,
    Scalar,
    State,
    UnitLosses,
)

__all__ = [
    "Base",
    "Chart",
    "Connectivity",
    "Objective",
    "Penalty",
    "Sampler",
]


class Connectivity(ABC):
    """Rule for the neighbours of a state, which exchange probability with it.

    >>> from probjax.connectivity import AllFlips
    >>> flips = AllFlips()
    >>> x = flips.prepare(jnp.array([[0, 1]]))[0]
    >>> moves = flips.draw(jax.random.key(0), None, x)
    >>> flips.states(x, moves).x.tolist()
    [[1.0, 0.0]]
    """

    @abstractmethod
    def prepare(self, x: State) -> State:
        """Check rows `x`, and return them as floating arrays."""

    @abstractmethod
    def states(self, x: State, moves: Moves) -> Neighbours:
        """Return the neighbours of one state, given the moves that `draw` returned."""

    def draw(self, key: PRNGKeyArray, potential: Potential, x: State) -> Moves:
        """Draw the random part of the neighbourhood of `x`; () by default, for none."""
        return ()

    def gaps(self, potential: Potential, x: State, moves: Moves) -> Gaps:
        """Compute E(x) - E(x') + log_ratio; by default one energy per neighbour."""
        near = self.states(x, moves)
        gap = potential(x) - jax.vmap(potential)(near.x) + near.log_ratio
        return Gaps(gap, near.weight)

    @property
    def domain(self) -> Domain:
        """Kind of states that the connectivity applies to."""
        return "any"

    def num_letters(self) -> int | None:
        """Return the number of letters of a site; by default 2 for bits, else None."""
        return 2 if self.domain == "bits" else None


class Objective(ABC):
    """A loss to be minimised: `reduce` over weighted rows of `row`, plus `rest`.

    Only `init` and `refresh` are random, so within a round the loss is a fixed function
    of `params`, unless it contains means over states of the model (`num_groups`).

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
        """Check data, and return the data with `x` as floating arrays."""

    @abstractmethod
    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        """Compute the value of one row `x`, given its entry of `Context.rows`."""

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        """Create the context before the first round, by default with `refresh`."""
        return self.refresh(key, params, data, Context((), ()))

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        """Draw the random parts of the context at the start of a round.

        By default the context does not change.
        """
        return context

    def rest(self, params: Params, shared: PyTree) -> Scalar:
        """Compute the part of the loss that does not depend on rows; 0 by default.

        `shared` is `Context.shared`.
        """
        return jnp.zeros(())

    def reduce(self, values: Array, weights: Array) -> Scalar:
        """Reduce the values of rows to one number, by default their weighted mean.

        The reduction must be a weighted mean of some transform of the values, so that
        data can be cut into chunks: the reduction of the results of chunks, weighted by
        the total weight of each chunk, must equal the reduction of all rows.
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

    @property
    def num_groups(self) -> int:
        """Number of independent groups of states of the model that `rest` averages.

        If it is above 0, `refresh` moves these states before every evaluation of the
        loss, and `groups` splits them. 0, the default, if `rest` is not sampled.
        """
        return 0

    def groups(self, shared: PyTree) -> tuple[PyTree, PyTree]:
        """Split `Context.shared` into `num_groups` groups; only called if it is not 0.

        Returns:
            The shared contexts of all groups, and their axes of groups as `in_axes` of
            `vmap`. The mean over groups of `rest` must be `rest`.
        """
        return shared, None

    def states(self, shared: PyTree) -> State:
        """Return the states of the model, leaves `(state, ...)`.

        They are distributed like exp(-`energy`). Only called if there are groups.
        """
        return ()

    def num_letters(self) -> int | None:
        """Return the number of letters of a site, 2 for bits; None if not known."""
        return None

    energy: Any = None
    """Energy of the model, whose closed forms the next three members return by default;
    None if the objective does not have one."""

    def unbounded(self, params: Params, data: Data) -> str:
        """Describe which parameters have no finite estimate; "" if none are known."""
        return "" if self.energy is None else unbounded(self.energy, params, data)

    def unbounded_entries(self, params: Params, data: Data) -> Params | None:
        """Return a tree like `params`, True for entries without a finite estimate.

        None if they are not known. Error bars of these entries are infinite.
        """
        if self.energy is None:
            return None
        return unbounded_entries(self.energy, params, data)

    def unit_losses(self, params: Params, data: Data) -> UnitLosses | None:
        """Return the parts of a loss that is a sum over units; None if it is not one.

        They make Hessians cheap, see `probjax.fitting.curvature`.
        """
        return None

    def chart(self, params: Params, data: Data) -> "Chart | None":
        """Return the coordinates in which to descend by default; None for plain ones.

        The chart must be a bijection, so that the minimum does not depend on it. `data`
        may be traced.
        """
        return None if self.energy is None else default_chart(self.energy, params, data)

    def couplings(self, params: Params) -> Params | None:
        """Return a tree like `params`, 1 for couplings and 0 for biases.

        Penalties without weights of their own spare the biases. None if the objective
        does not distinguish them. The numbers must not depend on the values of
        `params`.
        """
        return None if self.energy is None else couplings(self.energy, params)

    def statistic(self, params: Params, x: State) -> Float[Array, " statistic"]:
        """Compute a vector for one row; `of_mean` of its mean over rows is a loss term.

        By default the vector is empty, and there is no such term.
        """
        return jnp.zeros(0)

    def of_mean(self, mean: Float[Array, " statistic"]) -> Scalar:
        """Compute the loss term that depends on the mean of `statistic` over rows."""
        return jnp.zeros(())


def has_statistic(objective: Objective, params: Params, x: State) -> bool:
    """Whether the loss depends on the mean over rows `x` of a statistic."""
    shape = jax.eval_shape(lambda x: objective.statistic(params, first_row(x)), x)
    return shape.size > 0


class Sampler(ABC):
    """A Markov chain that leaves exp(-potential) invariant, for one state at a time.

    The sampler's state is a record whose field `x` is the current state of the chain.
    It may cache values that do not depend on the weights of the potential, such as
    unweighted energies. After the parameters have changed, call `init` again.

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
    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> Any:
        """Create the sampler's state at `x`."""

    @abstractmethod
    def step(
        self, key: PRNGKeyArray, potential: Potential, state: Any
    ) -> tuple[Any, Info]:
        """Return the sampler's next state and a report of the step."""

    def prepare(self, potential: Potential, x: State) -> State:
        """Check the model and the initial states, and return these as floats."""
        return jax.tree.map(floating, x)

    @property
    def domain(self) -> Domain:
        """Kind of states that the sampler moves."""
        return "any"

    def num_letters(self) -> int | None:
        """Return the number of letters of a site; by default 2 for bits, else None."""
        return 2 if self.domain == "bits" else None

    def mean_gap(self, potential: Potential, x: State) -> Scalar | None:
        """Compute the mean of E(x) - E(x') if one site is redrawn, summed over sites.

        The probabilities of x' given the other sites are constant in derivatives. The
        gradient of the result in the parameters has a mean of 0 over the model, so that
        it reduces the variance of gradients. None if the sampler does not redraw single
        sites.
        """
        return None

    @property
    def resumable(self) -> bool:
        """Whether `init` at a draw from the model continues the chain without bias."""
        return True

    def cached_terms(self, state: Any) -> Float[Array, " term"] | None:
        """Return unweighted energies that `state` caches; None if it caches none."""
        return None

    @property
    def target_acceptance(self) -> float | None:
        """Acceptance rate to which drivers adapt `step_size`; None: no adaptation."""
        return None

    @property
    def max_step_size(self) -> float | None:
        """Largest step size to which drivers adapt; None if there is no limit."""
        return None

    step_size: Any
    """Step size; only read if `target_acceptance` is not None."""
    metric: Any
    """Metric of the states, None for the identity; only read if `metrics` is not
    empty."""

    @property
    def metrics(self) -> tuple[Literal["lengths", "matrix"], ...]:
        """Forms of metric that `adapted` accepts: lengths (n,) or a matrix (n, n)."""
        return ()

    def adapted(self, step_size: Scalar, metric: Array | None = None) -> Self:
        """Return the sampler with another step size and, if given, another metric."""
        return dataclasses.replace(self, step_size=step_size)  # pyright: ignore


class Base(ABC):
    """A distribution p(x) = exp(-energy(x) - log_z) that can be sampled directly.

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
        """Check rows `x`, and return them as floating arrays."""
        return jax.tree.map(floating, x)

    @property
    def domain(self) -> Domain:
        """Kind of states that `sample` returns."""
        return "any"

    def num_letters(self) -> int | None:
        """Return the number of letters of a site; by default 2 for bits, else None."""
        return 2 if self.domain == "bits" else None


class Penalty(ABC):
    """A term that is added to a loss, with a proximal map if it is not smooth.

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
        """Compute the penalty at `params`."""

    @property
    def smooth(self) -> bool:
        """Whether `value` is differentiable everywhere; if not, `prox` is required."""
        return True

    def prox(self, params: Params, step: Scalar) -> Params:
        """Compute the argmin over q of |q - params|^2 / 2 + step * value(q).

        The default is one gradient step, an approximation for smooth penalties.
        """
        slope = jax.grad(self.value)(params)
        return jax.tree.map(lambda p, g: p - step * g, params, slope)

    def with_strength(self, strength: Scalar | float) -> "Penalty | None":
        """Return the penalty with another strength; None if it has no strength."""
        return None

    def vanishing(self, gradient: Params) -> Scalar | None:
        """Compute the smallest strength at which all penalised entries are zero.

        None if the penalty has no such strength. `gradient` is the gradient of the loss
        at parameters whose penalised entries are zero.
        """
        return None

    def sparing(self, couplings: Params, bias_strength: Scalar | float) -> "Penalty":
        """Return the penalty restricted to couplings, if it has no weights of its own.

        `fit` calls this method with the couplings that the objective declares. By
        default the penalty does not change.

        Args:
            couplings: a tree like the parameters, 1 for couplings and 0 for biases.
            bias_strength: strength of a faint `L2` on biases, which keeps them finite.
        """
        return self

    def parts(self) -> "tuple[Penalty | None, Penalty | None]":
        """Return the smooth part and the part that is not smooth; None if absent.

        Their sum is the penalty.
        """
        return (self, None) if self.smooth else (None, self)

    def in_chart(self, scales: Params) -> "Penalty | None":
        """Return the penalty as a function of coordinates; None if it has another form.

        Args:
            scales: a tree like the parameters, with parameter = scale * coordinate for
                each entry. A leaf is one number or an array like the parameters. The
                Python number 0.0 marks a leaf that is not proportional to its
                coordinates, which the penalty must not contain.
        """
        return None


class Chart(ABC):
    """Coordinates of the parameters, in which a method of descent works.

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
        """Compute the coordinates of `params`."""

    @abstractmethod
    def inverse(self, coordinates: PyTree) -> Params:
        """Compute the parameters at `coordinates`."""

    def scales(self, params: Params) -> PyTree | None:
        """Return factors with params = factor * coordinate, in a tree like `params`.

        The factor 0.0 stands for entries that are not proportional to their coordinate.
        None, the default, means that no entry is known to be. A penalty that is not
        smooth can be used with the chart if its entries are proportional.
        """
        return None

    def curvature(self, params: Params) -> PyTree | None:
        """Return about the second derivative of the loss along each coordinate.

        With it `fit` scales the coordinates of a default chart, in which the curvature
        of the penalty is then added. None, the default: coordinates are not scaled.
        """
        return None
