"""Result of a fit, and the warnings about it.

A fit that stops too early, or whose data do not determine all parameters, still returns
a `Fit`. The warnings state the reason and a remedy.
"""

import math
from typing import NamedTuple

import numpy as np

from probjax.checks import eager_evaluation, is_concrete, warn
from probjax.fitting.lbfgs import gradient_rounding
from probjax.fitting.plan import RoundsPlan, coordinates_of
from probjax.fitting.rounds import Run, progress
from probjax.interfaces import Objective, Penalty
from probjax.trees import describe_range, describe_shapes, known_values
from probjax.types import Array, Context, Data, Float, Params, PyTree, Scalar


class Fit(NamedTuple):
    """Result of `fit`.

    >>> import jax.numpy as jnp
    >>> from probjax import ScoreMatching, fit
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / 2
    >>> rows = jnp.array([[0.0, 2.0], [2.0, 4.0]])
    >>> found = fit(jax.random.key(0), ScoreMatching(energy), jnp.zeros(2), rows)
    >>> bool(found.converged), round(float(found.loss), 4)  # 1 - 2
    (True, -1.0)
    >>> print(found.describe())  # doctest: +ELLIPSIS
    converged after ... steps
    loss: -1
    largest entry of the gradient: ...
    parameters: (2,)
    """

    params: Params
    """Fitted parameters."""
    loss: Scalar
    """Loss at `params` (with an optax optimizer, before its last update)."""
    losses: Float[Array, " step"]
    """Loss after each step (with an optax optimizer, before each update)."""
    converged: Array
    """Whether the stopping rule is met; `GradientNorm` never is with minibatches."""
    gradient_norm: Scalar
    """Largest absolute entry of the gradient of the loss in the parameters.

    With a penalty that is not smooth, the gradient is a subgradient at `params`. With
    minibatches, it is the gradient of the last batch."""
    context: Context
    """Context of the objective, such as particles or sampled moves."""
    opt_state: PyTree
    """State of the optimisation method; its field `inner` is the state of an optax
    optimizer."""
    distance: Scalar | float = math.inf
    """Distance from the minimum in standard errors, estimated as described in
    `probjax.fitting.distance`; infinite if it is not known, for example because the
    stopping rule does not use it."""
    penalty: Penalty | None = None
    """Penalty that was fitted, with the weights that `fit` gave it; None without."""

    def describe(self) -> str:
        """Describe the outcome of the fit in a few lines.

        Values that are traced are described as unknown. Fits that were mapped over a
        leading axis, such as those of `fit_nodes`, are described by their ranges.
        """
        lines = [
            _outcome(self.converged, self.losses),
            f"loss: {describe_range(self.loss)}",
            f"largest entry of the gradient: {describe_range(self.gradient_norm)}",
            f"parameters: {describe_shapes(self.params)}",
        ]
        distance = known_values(self.distance)
        if distance is not None and np.all(np.isfinite(distance)):
            lines.insert(
                1, f"{describe_range(distance)} standard errors from the minimum"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Fit: {self.describe()}"


class ConvergenceWarning(UserWarning):
    """A fit ended before its stopping rule was met.

    If a fit is meant to end early, ignore the warning and read `converged`:

    >>> import warnings
    >>> import jax.numpy as jnp
    >>> from probjax import ScoreMatching, fit
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> args = jax.random.key(0), ScoreMatching(energy), 9.0, jnp.array([[0.5], [2.0]])
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", ConvergenceWarning)
    ...     found = fit(*args, steps_per_round=1)
    >>> bool(found.converged)
    False
    """


class UnboundedWarning(UserWarning):
    """Some parameters have no finite estimate, so their fitted values are arbitrary.

    An example is the bias of a unit that is 0 in all rows:

    >>> import warnings
    >>> import jax.numpy as jnp
    >>> from probjax import PseudoLikelihood, fit, ising
    >>> start, rows = ising.init(jax.random.key(0), 2), jnp.array([[0, 0], [1, 0]])
    >>> args = jax.random.key(1), PseudoLikelihood(ising.energy), start, rows
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", UnboundedWarning)
    ...     fit(*args)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    probjax.fitting.result.UnboundedWarning: 1 of 2 units never change...
    """


def _outcome(converged, losses):
    """Describe how many fits have converged, after how many steps."""
    met, values = known_values(converged), known_values(losses)
    if met is None or values is None:
        return "convergence: unknown"
    # Losses of steps that were not taken are infinite inside `jit`.
    taken = np.sum(~np.isposinf(values), axis=-1)
    steps = f"after {describe_range(taken)} steps"
    if met.ndim:
        return f"{met.sum()} of {met.size} fits converged, {steps}"
    return f"converged {steps}" if met else f"not converged {steps}"


def fit_of(plan: RoundsPlan, run: Run, losses: Array) -> Fit:
    """Return the result of a run, with the losses of its steps."""
    return Fit(
        params=run.params,
        loss=run.method.value,
        losses=losses,
        converged=run.met,
        gradient_norm=run.gradient_norm,
        context=run.context,
        opt_state=run.method,
        distance=run.distance,
        penalty=plan.penalty,
    )


def warn_of_unbounded(objective: Objective, params: Params, data: Data) -> None:
    """Warn if the data do not determine all parameters of a built-in model."""
    if not is_concrete((params, data)):
        return
    with eager_evaluation():
        problem = objective.unbounded(params, data)
    if problem:
        warn(f"{problem}; try a penalty such as penalty=L2(1e-4)", UnboundedWarning)


def warn_of_early_end(
    plan: RoundsPlan, run: Run, losses: np.ndarray, *, ended_as_meant: bool
) -> None:
    """Warn if the loss is not finite or rises, or if a fit of one round fell short.

    Args:
        losses: loss at each step.
        ended_as_meant: whether the fit met its stopping rule, was stopped by a
            callback, or need not converge.
    """
    value = float(run.method.value)
    # A batch in which `exclude_data` leaves no row has the loss log 0.
    is_empty_batch = plan.batch_size is not None and value == -np.inf
    must_converge = plan.num_rounds == 1 and plan.optimizer is None
    if not (np.isfinite(value) or is_empty_batch):
        warn(
            f"fit has not converged: after {int(run.step)} steps the loss is {value}, "
            "which is not finite; check the energy and the initial params",
            ConvergenceWarning,
        )
    elif must_converge and not ended_as_meant:
        warn(_shortfall(plan, run), ConvergenceWarning)
    elif _is_loss_known(plan) and _rises(losses):
        warn(
            f"the loss rose from {losses[0]:.4g} to {losses[-1]:.4g} in {len(losses)} "
            "steps: the steps are too long; try a smaller learning rate, or for "
            "natural_gradient more damping",
            ConvergenceWarning,
        )


def _is_loss_known(plan):
    """Whether an optax optimizer minimises one loss, over all rows."""
    has_loss = plan.batch_size is None and plan.objective.has_value
    return has_loss and plan.optimizer is not None


def _rises(losses):
    """Whether the loss rises by more than it ever fell, and by more than its noise."""
    part = len(losses) // 10
    if not part:
        return False
    highest = losses[:part].max()
    fall = highest - losses.min()
    return losses[-part:].mean() - highest > fall + 1e-3 * abs(highest)


def _shortfall(plan, run):
    rests = float(run.gradient_norm) <= float(gradient_rounding(run.method.value))
    method = coordinates_of(plan, run.params).method
    remedy = method.remedy(run.method)
    if run.method.stalled and rests:
        remedy = "rounding errors prevent further progress; try float64"
    elif run.method.stalled:
        remedy = (
            "no step lowers the loss further; check that the energy is differentiable, "
            "or try float64 or better coordinates (chart=...)"
        )
    return (
        f"fit has not converged: after {int(run.step)} steps "
        f"{plan.stop.shortfall(progress(run))}; {remedy}. If the loss has no lower "
        "bound (separable data), add a penalty or another stopping rule"
    )
