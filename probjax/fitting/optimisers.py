"""Interface of optimisation methods (ask and tell), and optax's optimizers behind it.

A method does not evaluate the loss itself: `ask` returns the point at which the loss is
needed next, and `tell` receives its value and gradient there. The caller evaluates them
in a compiled loop, or on the host block of rows by block. One evaluation need not
complete a line search, so that fits in a batch under `vmap` do not wait for the line
searches of the others.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from probjax.recipe import recipe, static
from probjax.trees import float_dtype
from probjax.types import Array, Data, PyTree, Scalar


class Problem(NamedTuple):
    """Optional inputs of an optimisation method."""

    loss: Callable[[PyTree], Scalar]
    """The loss as a function of a point."""
    data: Data | None
    """Rows over which the loss is computed; None if they are not all in memory."""
    to_params: Callable[[PyTree], PyTree] | None = None
    """Map from a point to parameters; None without a chart."""
    groups: Callable[[], Array] | None = None
    """Function that returns the gradients of the loss with independent groups of
    chains; None without chains."""
    metric: Callable[[PyTree], Any] | None = None
    """Function that estimates the `StepMetric` at a point; None without chains."""


class DescentMethod(ABC):
    """An optimisation method that receives the loss at the points it requests.

    Its states have the members `point`, `value`, `gradient`, `evaluated` (the point at
    which `value` and `gradient` were computed), `accepted` (whether the last evaluation
    completed a step) and `stalled` (whether no further progress is possible).
    """

    @abstractmethod
    def start(self, point: PyTree, state: Any = None) -> Any:
        """Create a state at `point`, given the state of the previous round if any."""

    @abstractmethod
    def ask(self, state: Any) -> PyTree:
        """Return the point at which the loss is needed next."""

    @abstractmethod
    def tell(
        self, problem: Problem, state: Any, value: Scalar, gradient: PyTree
    ) -> Any:
        """Return the next state, given the loss and its gradient at that point."""

    def distance(self, state: Any) -> Scalar | float:
        """Return the distance from the minimum that the method measured itself.

        It is in standard errors, and infinite, the default, if it is not known.
        """
        return math.inf

    def remedy(self, state: Any) -> str:
        """Return advice for a fit that ended too early."""
        return "try more steps_per_round, or better coordinates (chart=...)"


class OptaxState(NamedTuple):
    """State of `Optax`."""

    point: PyTree
    evaluated: PyTree
    """Point before the last update, at which `value` and `gradient` were computed."""
    value: Scalar
    gradient: PyTree
    accepted: Array
    stalled: Array
    inner: PyTree
    """State of the optax optimizer, kept across rounds."""


@recipe
class Optax(DescentMethod):
    """An optax optimizer: every evaluation of the loss is one update."""

    optimizer: optax.GradientTransformation = static()

    def start(self, point: PyTree, state: OptaxState | None = None) -> OptaxState:
        inner = self.optimizer.init(point) if state is None else state.inner
        value = jnp.full((), jnp.inf, float_dtype(point))
        false = jnp.asarray(False)
        zeros = jax.tree.map(jnp.zeros_like, point)
        return OptaxState(point, point, value, zeros, false, false, inner)

    def ask(self, state: OptaxState) -> PyTree:
        return state.point

    def tell(
        self, problem: Problem, state: OptaxState, value: Scalar, gradient: PyTree
    ) -> OptaxState:
        # optax's line searches pass all extra arguments of `update` to this function.
        def value_fn(point, data=None, to_params=None):
            return problem.loss(point)

        # Only passed if there is a chart, because few optimizers accept it.
        to_params = problem.to_params
        chart_arguments = {} if to_params is None else {"to_params": to_params}
        update = optax.with_extra_args_support(self.optimizer).update
        updates, inner = update(
            gradient,
            state.inner,
            state.point,
            value=value,
            grad=gradient,
            value_fn=value_fn,
            data=problem.data,
            **chart_arguments,
        )
        point = optax.apply_updates(state.point, updates)
        accepted = jnp.asarray(True)
        # An empty batch has the loss log 0 = -inf, which must not end the fit.
        stalled = ~(value < jnp.inf)
        return OptaxState(point, state.point, value, gradient, accepted, stalled, inner)
