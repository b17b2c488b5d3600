"""The compiled core of a fit: rounds of refreshing the objective and descending.

A `RoundsPlan` of `probjax.fitting.plan` holds all arguments of a fit except its
parameters and data, and a `Run` is its state. A fit runs in compiled pieces of at most
`STEPS_PER_PIECE` steps; between two pieces the host copies the losses. The numbers of
rounds and steps are loop bounds and not shapes, so that changing them does not
recompile anything.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax.data.chunks import put, take
from probjax.data.rows import num_rows
from probjax.devices import on_host, shard_rows
from probjax.fitting.distance import (
    Descent,
    RowSample,
    next_descent,
    row_sample,
    start_descent,
)
from probjax.fitting.evaluation import Evaluated, evaluate, moved_states, with_metric
from probjax.fitting.history import Pairs, with_pairs, without_pairs
from probjax.fitting.loss import loss_over_rows
from probjax.fitting.minibatches import (
    Batches,
    initial_batches,
    next_batch,
    next_round,
)
from probjax.fitting.plan import (
    Coordinates,
    RoundsPlan,
    coordinates_of,
    has_distance,
    is_stochastic,
)
from probjax.fitting.stopping import Progress
from probjax.trees import float_dtype
from probjax.types import (
    Array,
    Context,
    Data,
    Params,
    PRNGKeyArray,
    PyTree,
    Scalar,
)

STEPS_PER_PIECE = 1024


class Run(NamedTuple):
    """State of a fit between compiled pieces."""

    method: PyTree
    """State of the optimisation method."""
    params: Params
    """Parameters at the end of the last piece."""
    context: Context
    """Context of the objective."""
    batches: Batches | tuple[()]
    """Minibatch state; () if every step uses all rows."""
    losses: Array
    """Losses of the steps from number `first` on; NaN for steps not yet taken."""
    first: Array
    """Number of steps whose losses the host has copied."""
    round: Array
    """Number of the current round, from 0; -1 before the first."""
    step: Array
    """Number of steps taken in all rounds."""
    round_step: Array
    """Number of steps taken in this round."""
    gradient_norm: Scalar
    """Largest absolute entry of the gradient in the parameters."""
    round_ended: Array
    """Whether the current round is over."""
    met: Array
    """Whether the stopping rule is met."""
    stopped: Array
    """Whether the stopping rule ends the whole fit."""
    descent: Descent | tuple[()]
    """Recent steps; () if the stopping rule does not use the distance from them."""
    distance: Scalar
    """Distance from the minimum in standard errors; infinite if not known."""
    row_gradient: Params | None
    """Gradient over rows of a loss that is linear; None for other losses."""


def run_rounds(
    plan: RoundsPlan, key: PRNGKeyArray, params: Params, data: Data, max_steps: int
) -> Run:
    """Start a fit and run all of its rounds, of at most `max_steps` steps in all."""
    run = start(plan, key, params, data, max_steps)
    return advance(plan, key, run, params, data, None)


def advance(
    plan: RoundsPlan,
    key: PRNGKeyArray,
    run: Run,
    params: Params,
    data: Data,
    limit: Array | int | None,
) -> Run:
    """Run rounds until the fit is over or `limit` steps have been taken in all.

    Args:
        params: initial parameters, for their shapes; `run` has the current point.
        limit: number of steps, counted from the start of the fit; None for no limit.
    """

    def busy(run):
        more = True if limit is None else run.step < limit
        return ~is_over(plan, run) & more

    def one_round(run):
        begin = partial(begin_round, plan, key, params=params, data=data)
        if limit is None:
            run = begin(run)
        else:
            # A piece may start in the middle of a round.
            light, pairs = without_pairs(run)
            light = jax.lax.cond(run.round_ended, begin, lambda run: run, light)
            run = with_pairs(light, pairs)
        return _descend(plan, key, run, params, data, limit)

    run = jax.lax.while_loop(busy, one_round, run)
    return finish_piece(coordinates_of(plan, params), run)


def finish_piece(coordinates: Coordinates, run: Run) -> Run:
    """Update the fields that the host reads between pieces."""
    return run._replace(
        params=coordinates.params(run.method.point),
        met=run.met & jnp.isfinite(run.method.value),
    )


def is_over(plan: RoundsPlan, run: Run) -> Any:
    """Return whether the fit is over."""
    is_last = run.round + 1 == plan.num_rounds
    return run.stopped | (is_last & run.round_ended)


def is_over_on_host(plan: RoundsPlan, run: Run) -> bool:
    """Return whether the fit is over, computed by NumPy without compiling anything."""
    copied = run._replace(
        round=on_host(run.round),
        round_ended=on_host(run.round_ended),
        stopped=on_host(run.stopped),
    )
    return bool(is_over(plan, copied))


def progress(run: Run) -> Progress:
    """Return the report that a callback receives."""
    return Progress(
        run.round,
        run.step,
        run.method.value,
        run.gradient_norm,
        run.params,
        run.context.shared,
        run.distance,
    )


def start(
    plan: RoundsPlan,
    key: PRNGKeyArray,
    params: Params,
    data: Data,
    max_steps: int = STEPS_PER_PIECE,
) -> Run:
    """Create the state of a fit before its first round.

    Args:
        max_steps: number of steps whose losses the state can store.
    """
    coordinates = coordinates_of(plan, params)
    dtype = float_dtype(params)
    zero, false = jnp.asarray(0), jnp.asarray(False)
    batches = ()
    init_key = jax.random.fold_in(key, 0)
    if plan.rows_per_round is not None:
        batches = initial_batches(num_rows(data), plan.rows_per_round)
    return Run(
        method=coordinates.method.start(coordinates.point(params)),
        params=params,
        context=_distributed(plan.objective.init(init_key, params, data)),
        batches=batches,
        losses=jnp.full(max_steps, jnp.inf, dtype),
        first=zero,
        round=zero - 1,
        step=zero,
        round_step=zero,
        gradient_norm=jnp.full((), jnp.inf, dtype),
        round_ended=~false,
        met=false,
        stopped=false,
        descent=_start_descent(plan, coordinates.point(params)),
        distance=jnp.full((), jnp.inf, dtype),
        row_gradient=_row_gradient(plan, params, data) if plan.is_linear else None,
    )


def _row_gradient(plan, params, data):
    """Compute the gradient over rows of a loss that is linear."""
    size = plan.chunk_size
    return loss_over_rows(plan.objective, params, data, (), chunk_size=size)[1]


def _start_descent(plan, point):
    return start_descent(point) if has_distance(plan) else ()


def begin_round(
    plan: RoundsPlan, key: PRNGKeyArray, run: Run, params: Params, data: Data
) -> Run:
    """Refresh the objective and restart the optimisation method."""
    coordinates = coordinates_of(plan, params)
    number = run.round + 1
    select_key, refresh_key, _ = _round_keys(key, number)
    current = coordinates.params(run.method.point)
    refresh = partial(plan.objective.refresh, refresh_key, current)
    batches: Any = run.batches
    if plan.batch_size is not None:
        batches = next_round(select_key, data.weights, batches)
    if plan.objective.num_groups:
        # It is refreshed before every evaluation.
        context = run.context
    elif plan.batch_size is None or batches.covers_all:
        context = refresh(data, run.context)
    else:
        rows = batches.round_rows
        old = run.context._replace(rows=take(run.context.rows, rows))
        new = refresh(Data(take(data.x, rows), mask=take(data.mask, rows)), old)
        context = Context(put(run.context.rows, rows, new.rows), new.shared)
    return run._replace(
        method=coordinates.method.start(run.method.point, run.method),
        context=_distributed(context),
        batches=batches,
        round=number,
        round_step=jnp.zeros_like(run.round_step),
        round_ended=jnp.asarray(False),
        descent=_start_descent(plan, run.method.point),
        distance=jnp.full_like(run.distance, jnp.inf),
    )


def _distributed(context):
    return context._replace(rows=shard_rows(context.rows))


def _descend(plan, key, run, params, data, limit):
    """Descend until the round ends or the fit has taken `limit` steps."""
    coordinates = coordinates_of(plan, params)
    _, _, shuffle_key = _round_keys(key, run.round)
    sample = row_sample(data, run.context.rows) if has_distance(plan) else None

    def busy(run):
        more = True if limit is None else run.step < limit
        return ~(run.round_ended | run.stopped) & more

    def evaluate_once(run):
        rows, context, batches, chosen = data, run.context, run.batches, None
        if plan.batch_size is not None:
            batches, chosen = next_batch(
                shuffle_key,
                data.weights,
                batches,
                run.round_step,
                size=plan.batch_size,
            )
            rows = Data(take(data.x, chosen), mask=take(data.mask, chosen))
            context = context._replace(rows=take(context.rows, chosen))
        point, key_now = coordinates.method.ask(run.method), step_key(key, run)
        context = moved_states(plan, coordinates, key_now, point, rows, context)
        found = evaluate(plan, coordinates, rows, context, point, run.row_gradient)
        if plan.objective.num_groups:
            if chosen is not None:
                after = put(run.context.rows, chosen, context.rows)
                context = context._replace(rows=after)
            run = run._replace(context=context)
        run = run._replace(batches=batches)
        if is_stochastic(plan):
            of_rows = partial(row_sample, data, run.context.rows)
            found = with_metric(plan, coordinates, key_now, of_rows, found)
        return tell(plan, coordinates, run, data, sample, found)

    return jax.lax.while_loop(busy, evaluate_once, run)


def tell(
    plan: RoundsPlan,
    coordinates: Coordinates,
    run: Run,
    data: Data,
    sample: RowSample | None,
    evaluated: Evaluated,
) -> Run:
    """Return the run after the loss was evaluated at the point that `ask` returned.

    Args:
        data: rows that the stopping rule receives.
        sample: rows from which the distance from the minimum is estimated; None if the
            stopping rule does not use it.
    """
    method = coordinates.method.tell(
        evaluated.problem, run.method, evaluated.value, evaluated.gradient
    )
    descent: Any = run.descent
    if sample is not None:
        descent = next_descent(
            plan.objective, coordinates, sample, descent, run.method, method
        )
    norm = coordinates.gradient_norm(method)
    num_new = jnp.where(method.accepted, 1, 0)
    place = jnp.where(method.accepted, run.step - run.first, len(run.losses))
    step, round_step = run.step + num_new, run.round_step + num_new
    params = coordinates.params(method.point)
    distance = coordinates.method.distance(method)
    distance = descent.distance if descent else jnp.asarray(distance, norm.dtype)
    shared = run.context.shared
    report = Progress(run.round, step, method.value, norm, params, shared, distance)
    met = stopped = jnp.asarray(False)
    takes_all = plan.batch_size is None or is_stochastic(plan)
    rule = plan.stop if takes_all else plan.stop.on_batches()
    if rule is not None:
        # The initial parameters may be a minimum; other rules need a step.
        applies = (step > 0) | rule.needs_minimum
        met = applies & rule.is_met(report, data)
        stopped = applies & rule.ends_fit(report, data)
    is_last_step = round_step >= plan.steps_per_round
    return run._replace(
        method=method,
        losses=run.losses.at[place].set(method.value, mode="drop"),
        step=step,
        round_step=round_step,
        gradient_norm=norm,
        round_ended=met | is_last_step | method.stalled,
        met=met,
        stopped=stopped,
        descent=descent,
        distance=distance,
    )


def _round_keys(key, number):
    """Return the keys of a round: to select rows, to refresh, to shuffle batches."""
    return jax.random.split(jax.random.fold_in(key, number + 1), 3)


def step_key(key: PRNGKeyArray, run: Run) -> PRNGKeyArray:
    """Return the key of the next evaluation, with which states of the model move."""
    return jax.random.fold_in(_round_keys(key, run.round)[1], run.round_step)


start_compiled = jax.jit(start)


def advance_compiled(
    plan: RoundsPlan,
    key: PRNGKeyArray,
    run: Run,
    params: Params,
    data: Data,
    limit: int,
) -> Run:
    """Compute `advance` in one compiled program, which overwrites the arrays of `run`.

    The history of L-BFGS, particles and the moments of an optimizer are larger than the
    parameters, so that a second copy would dominate the memory of a fit.
    """
    light, pairs = without_pairs(run)
    return advance_in_place(plan, key, pairs, light, params, data, limit)


@partial(jax.jit, donate_argnums=(2, 3))
def advance_in_place(
    plan: RoundsPlan,
    key: PRNGKeyArray,
    pairs: Pairs,
    run: Run,
    params: Params,
    data: Data,
    limit: Array | int,
) -> Run:
    """Compute `advance` of a run without its history `pairs`; both are donated."""
    return advance(plan, key, with_pairs(run, pairs), params, data, limit)
