"""The compiled core of a fit: rounds of refreshing and descending.

A `Plan` is all of a fit but its parameters and data, a `Run` its state under way. The
whole run is one program; with a callback it is the same program in pieces, with the
host in between.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from probjax.batches import Batches, deal, new_deck, next_batch, put, take
from probjax.data import num_rows
from probjax.descent import Optax, Problem, QuasiNewton
from probjax.devices import apart
from probjax.proximal import Proximal
from probjax.rows import loss_over_rows, scaled
from probjax.types import (
    Array,
    Chart,
    Context,
    Data,
    Objective,
    Params,
    Penalty,
    PRNGKeyArray,
    PyTree,
    Scalar,
    float_dtype,
    recipe,
    static,
)


class Progress(NamedTuple):
    """Where a fit is: what a stopping rule and a callback are given."""

    round: Array
    """Rounds begun, less one."""
    step: Array
    """Steps taken in all rounds."""
    loss: Scalar
    """The loss at `params` (for a named optimizer, before its last update)."""
    gradient_norm: Scalar
    """The largest absolute entry of the loss's gradient in the parameters."""
    params: Params
    """The parameters."""
    shared: PyTree
    """What the objective keeps that belongs to no row, as particles."""


@recipe
class Plan:
    """All of a fit but its parameters and data: numbers traced, the rest static."""

    objective: Objective
    penalty: Penalty | None
    chart: Chart | None
    tolerance: float
    optimizer: optax.GradientTransformation | None = static()
    stop: Callable | None = static()
    num_rounds: int = static()
    steps_per_round: int = static()
    batch_size: int | None = static()
    chunk_size: int = static()


class Run(NamedTuple):
    """A fit under way: what is carried between compiled chunks."""

    method: PyTree
    """The state of the descent."""
    context: Context
    batches: Batches | tuple[()]
    """() if every step sees all rows."""
    losses: Array
    """NaN from `step` on."""
    round: Array
    """The number of the round begun last."""
    step: Array
    """Steps taken in all rounds."""
    round_step: Array
    """Steps taken in this round."""
    gradient_norm: Scalar
    ended: Array
    """Whether this round has nothing left to do."""
    stopped: Array
    """Whether the stopping rule or the callback ended the fit."""


def run_rounds(
    plan: Plan, key: PRNGKeyArray, params: Params, data: Data
) -> tuple[Run, Params]:
    """All rounds, and the parameters they lead to."""

    def one_round(run):
        run = _begin_round(plan, key, run, params, data)
        return _advance(plan, key, run, params, data, plan.steps_per_round)

    def busy(run):
        return ~run.stopped & (run.round + 1 < plan.num_rounds)

    run = _start(plan, key, params, data)
    run = jax.lax.while_loop(busy, one_round, run)
    return run, _progress(plan, run, params).params


def run_with_callback(
    plan: Plan,
    key: PRNGKeyArray,
    params: Params,
    data: Data,
    callback: Callable[[Progress], Any],
    every: int,
) -> tuple[Run, Params]:
    """The same, asking `callback` every so many steps whether to end."""
    run = _start_jit(plan, key, params, data)
    while int(run.round) + 1 < plan.num_rounds and not run.stopped:
        run = _begin_round_jit(plan, key, run, params, data)
        while not (run.ended or run.stopped):
            limit = run.round_step + every
            run = _advance_jit(plan, key, run, params, data, limit)
            if callback(_progress_jit(plan, run, params)):
                run = run._replace(stopped=jnp.asarray(True))
    return run, _progress_jit(plan, run, params).params


def _start(plan, key, params, data):
    space = _space(plan, params)
    count = plan.num_rounds * plan.steps_per_round
    kind = float_dtype(params)
    zero, no = jnp.asarray(0), jnp.asarray(False)
    batches = ()
    init_key = jax.random.fold_in(key, 0)
    if plan.batch_size is not None:
        batches = new_deck(
            num_rows(data), size=plan.batch_size, steps=plan.steps_per_round
        )
    return Run(
        method=space.method.start(space.point(params)),
        context=_apart(plan.objective.init(init_key, params, data)),
        batches=batches,
        losses=jnp.full(count, jnp.nan, kind),
        round=zero - 1,
        step=zero,
        round_step=zero,
        gradient_norm=jnp.full((), jnp.inf, kind),
        ended=no,
        stopped=no,
    )


def _begin_round(plan, key, run, params, data):
    space = _space(plan, params)
    number = run.round + 1
    deal_key, refresh_key, _ = _round_keys(key, number)
    current = space.params(run.method.point)
    refresh = partial(plan.objective.refresh, refresh_key, current)
    batches = run.batches
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
    return context._replace(rows=apart(context.rows))


def _advance(plan, key, run, params, data, limit):
    """Descend until the round ends or has taken `limit` steps."""
    space = _space(plan, params)
    _, _, shuffle_key = _round_keys(key, run.round)

    def busy(run):
        return ~run.ended & ~run.stopped & (run.round_step < limit)

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
        method = space.method.tick(_problem(plan, space, rows, context), run.method)
        norm = space.gradient_norm(method)
        steps = jnp.where(method.accepted, 1, 0)
        place = jnp.where(method.accepted, run.step, len(run.losses))
        calm = (norm < plan.tolerance) & (plan.batch_size is None)
        spent = run.round_step + steps >= plan.steps_per_round
        run = run._replace(
            method=method,
            batches=batches,
            losses=run.losses.at[place].set(method.value, mode="drop"),
            step=run.step + steps,
            round_step=run.round_step + steps,
            gradient_norm=norm,
            ended=calm | spent | method.stalled,
        )
        if plan.stop is None:
            return run
        rule = jnp.asarray(plan.stop(_progress(plan, run, params), data))
        return run._replace(stopped=method.accepted & rule)

    return jax.lax.while_loop(busy, tick, run)


def _round_keys(key, number):
    """A round's keys: to deal rows, to refresh, and to shuffle batches."""
    return jax.random.split(jax.random.fold_in(key, number + 1), 3)


class Space(NamedTuple):
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


def _space(plan, params):
    chart = plan.chart
    forward = _identity if chart is None else chart.forward
    inverse = _identity if chart is None else chart.inverse
    if plan.optimizer is not None:
        return Space(Optax(plan.optimizer), forward, inverse)
    unravel = ravel_pytree(forward(params))[1]
    method = QuasiNewton()
    if plan.penalty is not None and not plan.penalty.smooth:
        method = Proximal(plan.penalty, unravel)
    return Space(
        method,
        lambda params: ravel_pytree(forward(params))[0],
        lambda point: inverse(unravel(point)),
    )


def _identity(params):
    return params


def _problem(plan, space, data, context):
    """The loss of the coordinates, and its gradient, on some rows."""

    def beside(params):
        value = plan.objective.rest(params, context.shared)
        if plan.penalty is not None and plan.penalty.smooth:
            value = value + plan.penalty.value(params)
        return value

    def evaluate(point):
        params, pull = jax.vjp(space.params, point)
        over_rows = loss_over_rows(
            plan.objective, params, data, context.rows, chunk_size=plan.chunk_size
        )
        total = jax.tree.map(jnp.add, over_rows, jax.value_and_grad(beside)(params))
        return total[0].astype(float_dtype(params)), pull(total[1])[0]

    @jax.custom_vjp
    def loss(point):
        return evaluate(point)[0]

    loss.defvjp(evaluate, lambda gradient, scale: (scaled(scale, gradient),))
    to_params = None if plan.chart is None else space.params
    return Problem(evaluate, loss, data, to_params)


def _progress(plan, run, params):
    found = _space(plan, params).params(run.method.point)
    return Progress(
        run.round,
        run.step,
        run.method.value,
        run.gradient_norm,
        found,
        run.context.shared,
    )


run_compiled = jax.jit(run_rounds)
_start_jit = jax.jit(_start)
_begin_round_jit = jax.jit(_begin_round)
_advance_jit = jax.jit(_advance)
_progress_jit = jax.jit(_progress)
