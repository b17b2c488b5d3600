"""Result of a fit, and the warnings about it.

A fit that stops too early, or whose data do not determine all parameters, still returns
a `Fit`. The warnings state the reason and a remedy.
"""

from typing import NamedTuple

import numpy as np

from probjax.checks import eager_evaluation, is_concrete, warn
from probjax.fitting.plan import RoundsPlan
from probjax.fitting.rounds import Run, progress
from probjax.interfaces import Objective
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


def fit_of(run: Run, losses: Array) -> Fit:
    """Return the result of a run, with the losses of its steps."""
    return Fit(
        params=run.params,
        loss=run.method.value,
        losses=losses,
        converged=run.met,
        gradient_norm=run.gradient_norm,
        context=run.context,
        opt_state=run.method,
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
    remedy = (
        "rounding errors prevent further progress; try float64, or better coordinates "
        "(chart=...)"
        if run.method.stalled
        else "try more steps_per_round, or better coordinates (chart=...)"
    )
    return (
        f"fit has not converged: after {int(run.step)} steps "
        f"{plan.stop.shortfall(progress(run))}; {remedy}. If the loss has no lower "
        "bound (separable data), add a penalty or another stopping rule"
    )
