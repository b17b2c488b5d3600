"""`fit`: minimise any objective over rows of data.

A fit is `num_rounds` of *refresh, then up to `steps_per_round` steps down*. Refreshing
redraws whatever is random in the objective; in between, the loss

    reduce over weighted rows of row(params, x) + rest(params) + penalty(params)

is a fixed function of the parameters, so line searches are sound. Rows, weights, chunks
and minibatches are dealt with here, once, for every objective.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from probjax.checks import (
    check_count,
    check_interface,
    check_key,
    eager_evaluation,
    holds,
    is_concrete,
    is_eager,
    is_finite,
    warn,
)
from probjax.data.blocks import Blocks, Surveyed, survey
from probjax.data.rows import as_data, num_rows, refuse_mask
from probjax.devices import on_host
from probjax.fitting.loss import default_chunk_size, loss_over_rows
from probjax.fitting.minibatches import rows_per_round
from probjax.fitting.out_of_core import check_context, out_of_core
from probjax.fitting.rounds import (
    RoundsPlan,
    Run,
    advance_compiled,
    has_ended,
    progress,
    run_rounds,
    start_compiled,
)
from probjax.fitting.stopping import GradientNorm, StoppingRule
from probjax.interfaces import Chart, Objective, Penalty
from probjax.runs.driver import Job, Watch, driver, run
from probjax.trees import cast_floats, float_dtype
from probjax.types import (
    Array,
    Context,
    Data,
    Float,
    Params,
    PRNGKeyArray,
    PyTree,
    Scalar,
)


class Fit(NamedTuple):
    """The outcome of `fit`.

    >>> from probjax import ScoreMatching
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / 2
    >>> rows = jnp.array([[0.0, 2.0], [2.0, 4.0]])
    >>> found = fit(jax.random.key(0), ScoreMatching(energy), jnp.zeros(2), rows)
    >>> bool(found.converged), round(float(found.loss), 4)  # 1 - 2
    (True, -1.0)
    """

    params: Params
    """The parameters found."""
    loss: Scalar
    """The loss there (for a named optimizer, before its last update)."""
    losses: Float[Array, " step"]
    """The loss at each step (for a named optimizer, before its update)."""
    converged: Array
    """Whether the stopping rule is met; `GradientNorm` never is with minibatches."""
    gradient_norm: Scalar
    """The largest absolute entry of the loss's gradient in the parameters.

    With a penalty that is not smooth, of a subgradient at the parameters found; with
    minibatches, of the last batch."""
    context: Context
    """What the objective kept: particles, moves."""
    opt_state: PyTree
    """The state of the descent; that of a named optimizer is its `inner`."""


@driver
def fit(
    key: PRNGKeyArray,
    objective: Objective,
    params: Params,
    data: PyTree | Data | Blocks,
    *,
    optimizer: optax.GradientTransformation | None = None,
    penalty: Penalty | None = None,
    chart: Chart | None = None,
    stop: StoppingRule = GradientNorm(),
    num_rounds: int = 1,
    steps_per_round: int = 2000,
    batch_size: int | None = None,
    chunk_size: int | None = None,
    watch: Watch | None = None,
) -> Fit:
    """Minimise `objective` over `data`, starting from `params`.

    By default L-BFGS descends until `stop` is met, and restarts in every round. A fit
    of one round that ends before that issues a `ConvergenceWarning`, and if the data do
    not determine all parameters of a built-in model, an `UnboundedWarning`. Any fit
    warns if the final loss is not finite.

    Args:
        data: rows, or a `Data` of rows with weights or with a mask of observed entries,
            which needs many rounds: see `probjax.objectives.missing`. Rows may be
            spread over devices and processes: see `probjax.devices`. Or `Blocks` of
            rows, which are read on every pass; objectives and stopping rules that
            inspect the data see only the first block.
        optimizer: an optax optimizer in place of L-BFGS. It keeps its state across
            rounds.
        penalty: a term to add. With one that is not smooth the default becomes a
            proximal quasi-Newton method, and zeros are exact zeros.
        chart: the coordinates in which descent happens, such as `ising.centred(data)`.
        stop: the stopping rule: `GradientNorm(1e-5)`, or one's own `StoppingRule`.
        num_rounds: number of times that the objective is refreshed.
        steps_per_round: largest number of steps between refreshes.
        batch_size: rows per step, for an `optimizer`. A round selects the rows that its
            steps will visit, in proportion to their weights, refreshes the context of
            those alone, and passes over them in shuffled batches. Gradients of a loss
            that is a logarithm, such as that of `MPF`, are then biased by order
            1 / batch_size: finish on large batches. If rows are spread over devices, a
            batch is assembled by one sum over all of them; each device computes its
            part of it if batch_size is a multiple of their number, else all of it.
        chunk_size: number of rows whose gradients are computed at a time, which bounds
            memory and changes only rounding; on each device, if rows are spread. If
            None, 4096 on a CPU, where such chunks stay in its cache, and all rows on
            accelerators.
        watch: callback and checkpoint. The callback receives a `Progress`, by default
            every 50 steps and at the end.

    Returns:
        A `Fit`. `losses` has one entry per step taken; inside `jit` or `vmap`, one per
        step allowed, NaN where none was taken.

    >>> from probjax import ScoreMatching
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / 2
    >>> rows = jnp.array([[0.0, 2.0], [2.0, 4.0]])
    >>> found = fit(jax.random.key(0), ScoreMatching(energy), jnp.zeros(2), rows)
    >>> found.params.round(4).tolist()
    [1.0, 3.0]
    """
    asked = dict(locals())
    plan = RoundsPlan(
        objective=objective,
        penalty=penalty,
        chart=chart,
        stop=stop,
        optimizer=optimizer,
        num_rounds=num_rounds,
        steps_per_round=steps_per_round,
        batch_size=batch_size,
        chunk_size=chunk_size,
    )
    job, known = fit_job(key, plan, params, data, watch)
    return run("fit", asked | known, job, watch)


def fit_job(
    key: PRNGKeyArray,
    plan: RoundsPlan,
    params: Params,
    data: PyTree | Data | Blocks,
    watch: Watch | None,
    *,
    is_last: bool = True,
) -> tuple[Job, dict[str, Any]]:
    """Check a fit, and describe it to the driver.

    Args:
        is_last: whether the fit is meant to converge, so that it warns if it does not.

    Returns:
        The job, and the arguments of the fit in their final form.
    """
    plan, params, rows = _checked(key, plan, params, data)
    known = {"params": params, "data": rows, **vars(plan)}
    del known["rows_per_round"]
    if isinstance(rows, Surveyed):
        start, advance = out_of_core(plan, key, params, rows)
        saved = watch is not None and watch.checkpoint is not None
        known["data"] = (rows.digest() if saved else "", rows.source.decode)
    else:
        start = partial(start_compiled, plan, key, params, rows)
        advance = partial(_advance_in_memory, plan, key, params, rows)
    if is_eager((key, plan, params, rows)):
        room = plan.num_rounds * plan.steps_per_round
        job = Job(
            begin=lambda: _State(start(), np.zeros(room, float_dtype(params))),
            advance=partial(_advance, plan, advance),
            is_over=lambda now: has_ended(plan, now.run),
            report=lambda now: progress(now.run),
            finish=partial(_finish, plan, is_last),
            every=50,
        )
    else:
        job = _traced_job(plan, key, params, rows)
    return job, known


class _State(NamedTuple):
    """State of a fit on the host."""

    run: Run
    losses: np.ndarray
    """Losses of all steps that are allowed, filled in place up to `run.step`."""


def _advance_in_memory(plan, key, params, data, run, limit):
    return advance_compiled(plan, key, run, params, data, limit)


def _advance(plan, advance, now, every):
    """Advance to the next multiple of `every` steps, or to the end, piece by piece."""
    run, losses = now.run, now.losses
    if not (isinstance(losses, np.ndarray) and losses.flags.writeable):
        # As read from a checkpoint.
        losses = np.array(losses)
    step = int(run.step)
    last = None if every is None else (step // every + 1) * every
    while True:
        limit = step + len(run.losses)
        run = advance(run, limit if last is None else min(limit, last))
        step, first = int(run.step), int(run.first)
        losses[first:step] = on_host(run.losses)[: step - first]
        run = run._replace(first=run.step)
        if step == last or has_ended(plan, run):
            return _State(run, losses)


def _traced_job(plan, key, params, data):
    """Describe a fit inside of `jit` or `vmap`: one program, with all losses in it."""
    room = plan.num_rounds * plan.steps_per_round

    def finish(run, stopped):
        return _fit(run, run.losses)

    return Job(
        begin=partial(run_rounds, plan, key, params, data, room),
        advance=lambda run, every: run,
        is_over=lambda run: True,
        report=progress,
        finish=finish,
    )


def _checked(key, plan, params, data):
    """Return a plan, parameters and rows in their final form, after all checks."""
    check_key(key)
    check_interface("objective", plan.objective, Objective, "MPF(energy)")
    check_interface("stop", plan.stop, StoppingRule, "GradientNorm(1e-5)")
    _check_method(plan)
    check_count("num_rounds", plan.num_rounds)
    check_count("steps_per_round", plan.steps_per_round)
    if plan.chunk_size is not None:
        check_count("chunk_size", plan.chunk_size)
    _check_params(params)
    rows = _checked_rows(plan.objective, params, data)
    first = Data(*rows.first) if isinstance(rows, Surveyed) else rows
    _check_batches(plan, rows, first)
    if isinstance(rows, Surveyed):
        check_context(key, plan.objective, params, rows)
    _check_rounds(plan, first)
    goes_to_minimum = plan.optimizer is None and plan.stop.needs_minimum
    if isinstance(rows, Data) and plan.penalty is None and goes_to_minimum:
        warn_of_unbounded(plan.objective, params, rows)
    # All numbers of one kind, so that knobs given otherwise are the same program.
    params, plan = cast_floats(float_dtype(params), (params, plan))
    if plan.chart is not None:
        _check_chart(plan.chart, params)
    size = plan.chunk_size or default_chunk_size(first)
    plan = dataclasses.replace(
        plan, chunk_size=size, rows_per_round=_rows_per_round(plan, first)
    )
    return plan, params, rows


def _rows_per_round(plan, data):
    if plan.batch_size is None:
        return None
    count, steps = num_rows(data), plan.steps_per_round
    return rows_per_round(count, size=plan.batch_size, steps=steps)


@driver
def loss(
    key: PRNGKeyArray,
    objective: Objective,
    params: Params,
    data: PyTree | Data,
    *,
    chunk_size: int | None = None,
) -> Scalar:
    """The value of `objective` at `params`, as on data that were not fitted.

    `key` is for what is random in the objective; `chunk_size` is as for `fit`.

    >>> from probjax import PseudoLikelihood, ising
    >>> flat, rows = ising.from_matrix(jnp.zeros((2, 2))), jnp.eye(2)
    >>> objective = PseudoLikelihood(ising.energy)
    >>> round(float(loss(jax.random.key(0), objective, flat, rows)), 4)  # 2 log 2
    1.3863
    """
    check_key(key)
    check_interface("objective", objective, Objective, "MPF(energy)")
    if isinstance(data, Blocks):
        raise ValueError("a loss is of rows in memory, got Blocks")
    data = at_door(objective, params, data)
    refuse_mask(data, "a loss is of complete rows")
    if chunk_size is not None:
        check_count("chunk_size", chunk_size)
    params, objective = cast_floats(float_dtype(params), (params, objective))
    size = chunk_size or default_chunk_size(data)
    return _loss(key, objective, params, data, chunk_size=size)


@partial(jax.jit, static_argnames="chunk_size")
def _loss(key, objective, params, data, *, chunk_size):
    init_key, refresh_key = jax.random.split(key)
    context = objective.init(init_key, params, data)
    context = objective.refresh(refresh_key, params, data, context)
    value, _ = loss_over_rows(
        objective, params, data, context.rows, chunk_size=chunk_size
    )
    return value + objective.rest(params, context.shared)


def _finish(plan, is_last, now, stopped):
    """Return the result of a fit, with a warning if it ended too early."""
    run = now.run
    _warn_of_shortfall(plan, run, bool(run.met) or stopped or not is_last)
    return _fit(run, jax.device_put(now.losses[: int(run.step)]))


def _fit(run, losses):
    return Fit(
        params=run.params,
        loss=run.method.value,
        losses=losses,
        converged=run.met,
        gradient_norm=run.gradient_norm,
        context=run.context,
        opt_state=run.method,
    )


def _warn_of_shortfall(plan, now, satisfied):
    meant_to = plan.num_rounds == 1 and plan.optimizer is None
    value = float(now.method.value)
    # A batch of which `exclude_data` leaves nothing has the loss log 0.
    empty = plan.batch_size is not None and value == -np.inf
    if not (np.isfinite(value) or empty):
        warn(_not_finite(now, value), ConvergenceWarning)
    elif meant_to and not satisfied:
        warn(_shortfall(plan, now), ConvergenceWarning)


class ConvergenceWarning(UserWarning):
    """A fit ended before its stopping rule was met.

    Where a fit is cut short on purpose, it can be told by `converged` instead:

    >>> import warnings
    >>> from probjax import ScoreMatching
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
    """Some parameters have no finite estimate: where they end says nothing.

    As of a unit that is never on:

    >>> import warnings
    >>> from probjax import PseudoLikelihood, ising
    >>> start, rows = ising.init(jax.random.key(0), 2), jnp.array([[0, 0], [1, 0]])
    >>> args = jax.random.key(1), PseudoLikelihood(ising.energy), start, rows
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", UnboundedWarning)
    ...     fit(*args)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    probjax.fitting.fit.UnboundedWarning: 1 of 2 units never change...
    """


def warn_of_unbounded(objective: Objective, params: Params, data: Data) -> None:
    """Warn if the data do not determine all parameters of a built-in model."""
    if not is_concrete((params, data)):
        return
    with eager_evaluation():
        trouble = objective.unbounded(params, data)
    if trouble:
        advice = "add a penalty, as penalty=L2(1e-4)"
        warn(f"{trouble}: {advice}", UnboundedWarning)


def _not_finite(now, value):
    return (
        f"fit has not converged: after {int(now.step)} steps the loss is not finite, "
        f"{value}: check the energy and the start"
    )


def _shortfall(plan, now):
    short = (
        f"fit has not converged: after {int(now.step)} steps "
        f"{plan.stop.shortfall(progress(now))}; "
    )
    advice = (
        "rounding lets it fall no further: use float64, or better coordinates (chart)"
        if now.method.stalled
        else "allow more steps_per_round, or descend in better coordinates (chart)"
    )
    return (
        f"{short}{advice}; or, if the loss has no lower bound (separable data), add a "
        "penalty or a stopping rule"
    )


def at_door(objective: Objective, params: Params, data: PyTree | Data) -> Data:
    """`data` as the objective wants them, all checks passed."""
    data = as_data(data)
    _check_params(params)
    return cast_floats(float_dtype(params), objective.prepare(params, data))


def _check_params(params):
    if not jax.tree.leaves(params):
        raise ValueError("params must hold at least one array, got none")
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(f"params must be floating, got {jnp.result_type(leaf)}")
    if not holds(is_finite, params):
        raise ValueError("params must be finite, got NaN or infinity")


def _check_chart(chart, params):
    if not holds(is_finite, _coordinates(chart, params)):
        # Outside of compiled code the chart can look at values, and may say more.
        chart.forward(params)
        raise ValueError("params are outside the chart: coordinates must be finite")


@jax.jit
def _coordinates(chart, params):
    return chart.forward(params)


def _checked_rows(objective, params, data):
    """Return rows in memory as the objective takes them, or surveyed blocks of rows."""
    if isinstance(data, Blocks):
        if not is_concrete(params):
            raise ValueError(
                "data must be rows in memory inside jit or vmap, got Blocks, which are "
                "read by the host"
            )
        return survey(data, objective, params)
    return at_door(objective, params, data)


def _check_method(plan):
    optimizer, penalty, chart = plan.optimizer, plan.penalty, plan.chart
    if penalty is not None:
        check_interface("penalty", penalty, Penalty, "L2(1e-4)")
    if chart is not None:
        check_interface("chart", chart, Chart, "ising.centred(data)")
    if not isinstance(optimizer, optax.GradientTransformation | None):
        raise ValueError(
            f"optimizer must be made by optax, as optax.adam(1e-3), got {optimizer!r}"
        )
    if plan.batch_size is not None and optimizer is None:
        raise ValueError(
            "batch_size needs a first-order optimizer such as optax.adam(1e-3): the "
            "line searches of L-BFGS are not sound on changing batches"
        )
    if penalty is None or penalty.smooth:
        return
    if optimizer is not None or chart is not None:
        raise ValueError(
            "a penalty that is not smooth needs the default optimizer and no chart"
        )
    if type(penalty).prox is Penalty.prox:
        raise ValueError(
            f"penalty must have a proximal map if it is not smooth, got {penalty}; "
            "try defining prox(params, step)"
        )


def _check_batches(plan, rows, first):
    batch_size = plan.batch_size
    if batch_size is not None and not 1 <= batch_size <= num_rows(first):
        of_what = "rows of a block" if isinstance(rows, Surveyed) else "rows"
        raise ValueError(
            f"batch_size must be from 1 to the {num_rows(first)} {of_what}, "
            f"got {batch_size}"
        )


def _check_rounds(plan, data):
    if plan.num_rounds > 1:
        return
    if data.mask is not None:
        raise ValueError(
            "masked data need several rounds, because missing entries are imputed once "
            "per round; try num_rounds=20"
        )
    if plan.optimizer is None and not plan.objective.has_value:
        name = type(plan.objective).__name__
        raise ValueError(
            f"{name} needs many rounds: the states of the model that it compares rows "
            "with are updated once per round, and would no longer represent the model; "
            "try num_rounds=50 and a small steps_per_round"
        )
