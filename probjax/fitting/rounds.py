"""The compiled core of a fit: rounds of refreshing and descending.

A `RoundsPlan` is all of a fit except its parameters and data, a `Run` its state. A fit
runs in pieces of at most `ROOM` steps, between which the host takes the losses. Numbers
of rounds and steps are bounds of loops and not shapes, so that others compile nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from probjax.data.chunks import put, take
from probjax.data.rows import num_rows
from probjax.devices import on_host, shard_rows
from probjax.fitting.descent import Optax, Problem, QuasiNewton
from probjax.fitting.loss import loss_over_rows
from probjax.fitting.minibatches import Batches, deal, new_deck, next_batch
from probjax.fitting.proximal import Proximal
from probjax.fitting.stopping import Progress, StoppingRule
from probjax.interfaces import Chart, Objective, Penalty
from probjax.recipe import recipe, static
from probjax.trees import float_dtype, scaled
from probjax.types import Array, Context, Data, Params, PRNGKeyArray, PyTree, Scalar

ROOM = 1024


@recipe
class RoundsPlan:
    """All of a fit but its parameters and data: numbers traced, the rest static."""

    objective: Objective
    penalty: Penalty | None
    chart: Chart | None
    stop: StoppingRule
    optimizer: optax.GradientTransformation | None = static()
    num_rounds: Array | int
    steps_per_round: Array | int
    batch_size: int | None = static()
    chunk_size: int | None = static()
    rows_per_round: int | None = static(default=None)
    """Number of rows that the batches of a round are cut from."""


class Run(NamedTuple):
    """State of a fit between compiled pieces."""

    method: PyTree
    """State of the descent."""
    params: Params
    """Parameters at the end of the last piece."""
    context: Context
    """Context of the objective."""
    batches: Batches | tuple[()]
    """() if every step sees all rows."""
    losses: Array
    """Losses of the steps from `first` on, NaN from `step` on."""
    first: Array
    """Number of steps whose losses the host has taken."""
    round: Array
    """Number of the current round."""
    step: Array
    """Steps taken in all rounds."""
    round_step: Array
    """Steps taken in this round."""
    gradient_norm: Scalar
    """Largest absolute entry of the gradient in the parameters."""
    ended: Array
    """Whether this round has nothing left to do."""
    met: Array
    """Whether the stopping rule is met."""
    stopped: Array
    """Whether the stopping rule ends the fit."""


def run_rounds(
    plan: RoundsPlan, key: PRNGKeyArray, params: Params, data: Data, room: int
) -> Run:
    """Start a fit and run all of its rounds, with room for the losses of all steps."""
    run = start(plan, key, params, data, room)
    return advance(plan, key, run, params, data, None)


def advance(
    plan: RoundsPlan,
    key: PRNGKeyArray,
    run: Run,
    params: Params,
    data: Data,
    limit: Array | int | None,
) -> Run:
    """Run rounds until the fit is over or `limit` steps have been taken in all."""

    def busy(run):
        more = True if limit is None else run.step < limit
        return ~is_over(plan, run) & more

    def one_round(run):
        begin = partial(begin_round, plan, key, params=params, data=data)
        # A piece may begin in the middle of a round; a whole run does not.
        run = (
            begin(run) if limit is None else jax.lax.cond(run.ended, begin, _same, run)
        )
        return _descend(plan, key, run, params, data, limit)

    run = jax.lax.while_loop(busy, one_round, run)
    return at_rest(space_of(plan, params), run)


def at_rest(space: "Coordinates", run: Run) -> Run:
    """Return the run as the host sees it between pieces."""
    return run._replace(
        params=space.params(run.method.point),
        met=run.met & jnp.isfinite(run.method.value),
    )


def is_over(plan: RoundsPlan, run: Run) -> Any:
    """Return whether nothing is left to do."""
    last = run.round + 1 == plan.num_rounds
    return run.stopped | (last & run.ended)


def has_ended(plan: RoundsPlan, run: Run) -> bool:
    """Decide on the host whether nothing is left to do, without compiling anything."""
    flags = (run.round, run.ended, run.stopped)
    number, ended, stopped = map(on_host, flags)
    return bool(is_over(plan, run._replace(round=number, ended=ended, stopped=stopped)))


def progress(run: Run) -> Progress:
    """Return what a callback receives after a piece."""
    return Progress(
        run.round,
        run.step,
        run.method.value,
        run.gradient_norm,
        run.params,
        run.context.shared,
    )


def _same(run):
    return run


def start(
    plan: RoundsPlan, key: PRNGKeyArray, params: Params, data: Data, room: int = ROOM
) -> Run:
    """Create the state of a fit before its first round."""
    space = space_of(plan, params)
    kind = float_dtype(params)
    zero, no = jnp.asarray(0), jnp.asarray(False)
    batches = ()
    init_key = jax.random.fold_in(key, 0)
    if plan.rows_per_round is not None:
        batches = new_deck(num_rows(data), plan.rows_per_round)
    return Run(
        method=space.method.start(space.point(params)),
        params=params,
        context=_apart(plan.objective.init(init_key, params, data)),
        batches=batches,
        losses=jnp.full(room, jnp.nan, kind),
        first=zero,
        round=zero - 1,
        step=zero,
        round_step=zero,
        gradient_norm=jnp.full((), jnp.inf, kind),
        ended=~no,
        met=no,
        stopped=no,
    )


def begin_round(
    plan: RoundsPlan, key: PRNGKeyArray, run: Run, params: Params, data: Data
) -> Run:
    """Refresh the objective and restart the descent."""
    space = space_of(plan, params)
    number = run.round + 1
    deal_key, refresh_key, _ = _round_keys(key, number)
    current = space.params(run.method.point)
    refresh = partial(plan.objective.refresh, refresh_key, current)
    batches: Any = run.batches
    if plan.batch_size is not None:
        batches = deal(deal_key, data.weights, batches)
    if plan.batch_size is None or batches.whole:
        context = refresh(data, run.context)
    else:
        mine = take(run.context.rows, batches.hand)
        hand = Data(take(data.x, batches.hand), mask=take(data.mask, batches.hand))
        new = refresh(hand, run.context._replace(rows=mine))
        rows = put(run.context.rows, batches.hand, new.rows)
        context = Context(rows, new.shared)
    return run._replace(
        method=space.method.start(run.method.point, run.method),
        context=_apart(context),
        batches=batches,
        round=number,
        round_step=jnp.zeros_like(run.round_step),
        ended=jnp.asarray(False),
    )


def _apart(context):
    return context._replace(rows=shard_rows(context.rows))


def _descend(plan, key, run, params, data, limit):
    """Descend until the round ends or the fit has taken `limit` steps."""
    space = space_of(plan, params)
    _, _, shuffle_key = _round_keys(key, run.round)

    def busy(run):
        more = True if limit is None else run.step < limit
        return ~(run.ended | run.stopped) & more

    def tick(run):
        rows, context, batches = data, run.context, run.batches
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
        problem, evaluate = problem_of(plan, space, rows, context)
        value, gradient = evaluate(space.method.ask(run.method))
        run = run._replace(batches=batches)
        return tell(plan, space, run, params, data, problem, value, gradient)

    return jax.lax.while_loop(busy, tick, run)


def tell(
    plan: RoundsPlan,
    space: "Coordinates",
    run: Run,
    params: Params,
    data: Data,
    problem: Problem,
    value: Scalar,
    gradient: PyTree,
) -> Run:
    """Return the run after the loss was evaluated where its method asked for it."""
    method = space.method.tell(problem, run.method, value, gradient)
    norm = space.gradient_norm(method)
    steps = jnp.where(method.accepted, 1, 0)
    place = jnp.where(method.accepted, run.step - run.first, len(run.losses))
    step, round_step = run.step + steps, run.round_step + steps
    found = space.params(method.point)
    now = Progress(run.round, step, method.value, norm, found, run.context.shared)
    met = stopped = jnp.asarray(False)
    rule = plan.stop if plan.batch_size is None else plan.stop.on_batches()
    if rule is not None:
        # A start may be a minimum; other rules apply to steps that were taken.
        begun = (step > 0) | rule.needs_minimum
        met = begun & rule.is_met(now, data)
        stopped = begun & rule.ends_fit(now, data)
    spent = round_step >= plan.steps_per_round
    return run._replace(
        method=method,
        losses=run.losses.at[place].set(method.value, mode="drop"),
        step=step,
        round_step=round_step,
        gradient_norm=norm,
        ended=met | spent | method.stalled,
        met=met,
        stopped=stopped,
    )


def _round_keys(key, number):
    """A round's keys: to deal rows, to refresh, and to shuffle batches."""
    return jax.random.split(jax.random.fold_in(key, number + 1), 3)


class Coordinates(NamedTuple):
    """The coordinates of a fit, and the method that descends in them."""

    method: Any
    point: Callable[[Params], PyTree]
    """From parameters to coordinates."""
    params: Callable[[PyTree], Params]
    """And back."""

    def gradient_norm(self, state: Any) -> Scalar:
        """The largest absolute entry of the gradient, in the parameters."""
        _, pull = jax.vjp(self.point, self.params(state.evaluated))
        (gradient,) = pull(state.gradient)
        leaves = [
            jnp.max(jnp.abs(leaf), initial=0) for leaf in jax.tree.leaves(gradient)
        ]
        return jnp.max(jnp.stack(leaves))


def space_of(plan: RoundsPlan, params: Params) -> Coordinates:
    """The coordinates of a plan, and its method."""
    chart = plan.chart
    forward = _identity if chart is None else chart.forward
    inverse = _identity if chart is None else chart.inverse
    if plan.optimizer is not None:
        return Coordinates(Optax(plan.optimizer), forward, inverse)
    unravel = ravel_pytree(forward(params))[1]
    method = QuasiNewton()
    if plan.penalty is not None and not plan.penalty.smooth:
        method = Proximal(plan.penalty, unravel)
    return Coordinates(
        method,
        lambda params: ravel_pytree(forward(params))[0],
        lambda point: inverse(unravel(point)),
    )


def _identity(params):
    return params


def problem_of(
    plan: RoundsPlan, space: Coordinates, data: Data, context: Context
) -> tuple[Problem, Callable[[PyTree], tuple[Scalar, PyTree]]]:
    """The loss on some rows, and what evaluates it with its gradient at a point."""

    def over_rows(params):
        return loss_over_rows(
            plan.objective, params, data, context.rows, chunk_size=plan.chunk_size
        )

    def evaluate(point):
        return with_the_rest(plan, space, context.shared, point, over_rows)

    @jax.custom_vjp
    def loss(point):
        return evaluate(point)[0]

    loss.defvjp(evaluate, lambda gradient, scale: (scaled(scale, gradient),))
    return Problem(loss, data, to_params(plan, space)), evaluate


def with_the_rest(
    plan: RoundsPlan,
    space: Coordinates,
    shared: PyTree,
    point: PyTree,
    over_rows: Callable[[Params], tuple[Scalar, Params]],
) -> tuple[Scalar, PyTree]:
    """The loss and its gradient in the coordinates, given those over rows in params."""

    def beside(params):
        value = plan.objective.rest(params, shared)
        if plan.penalty is not None and plan.penalty.smooth:
            value = value + plan.penalty.value(params)
        return value

    params, pull = jax.vjp(space.params, point)
    rest = jax.value_and_grad(beside)(params)
    total = jax.tree.map(jnp.add, over_rows(params), rest)
    return total[0].astype(float_dtype(params)), pull(total[1])[0]


def to_params(
    plan: RoundsPlan, space: Coordinates
) -> Callable[[PyTree], Params] | None:
    """From a point to parameters, None without a chart."""
    return None if plan.chart is None else space.params


start_compiled = jax.jit(start)
advance_compiled = jax.jit(advance)
