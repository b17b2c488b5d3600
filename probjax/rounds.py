"""The compiled core of a fit: rounds of refreshing and descending.

A `Plan` is all of a fit but its parameters and data, a `Run` its state under way. The
whole run is one program; with a callback or a checkpoint it is the same program in
pieces, with the host in between.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from probjax.batches import Batches, deal, new_deck, next_batch, put, take
from probjax.checkpoint import Kept
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
    """Where a fit is: what a stopping rule and a callback are given.

    >>> from probjax import ScoreMatching, fit
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> def after_two(progress, data):
    ...     return progress.step >= 2
    >>> args = jax.random.key(0), ScoreMatching(energy), 10.0, jnp.array([[0.5], [2.0]])
    >>> len(fit(*args, stop=after_two).losses)
    2
    """

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


def run_in_pieces(
    plan: Plan,
    key: PRNGKeyArray,
    params: Params,
    data: Data,
    callback: Callable[[Progress], Any] | None,
    every: int,
    kept: Kept,
) -> tuple[Run, Params]:
    """The same, `every` so many steps asking `callback` whether to end.

    Pieces end at multiples of `every`, so that a run that was kept on disk goes on
    through the same ones.
    """
    run = kept.begin(lambda: start(plan, key, params, data))
    while not is_over(plan, run):
        if run.ended:
            run = begin_round(plan, key, run, params, data)
        limit = (int(run.round_step) // every + 1) * every
        run = _advance_jit(plan, key, run, params, data, limit)
        run = after_piece(plan, run, params, callback, kept)
    return run, progress(plan, run, params).params


def is_over(plan: Plan, run: Run) -> bool:
    """Whether nothing is left to do."""
    last = int(run.round) + 1 == plan.num_rounds
    return bool(run.stopped) or (last and bool(run.ended))


def after_piece(
    plan: Plan,
    run: Run,
    params: Params,
    callback: Callable[[Progress], Any] | None,
    kept: Kept,
) -> Run:
    """Tell the host how far the run is, and keep it on disk if it is time.

    A callback that ends it ends this call: on disk it is under way, and can go on.
    """
    asked = callback is not None and callback(progress(plan, run, params))
    kept.keep(run, last=bool(asked) or is_over(plan, run))
    return run._replace(stopped=jnp.asarray(True)) if asked else run


def _start(plan, key, params, data):
    space = space_of(plan, params)
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
        ended=~no,
        stopped=no,
    )


def _begin_round(plan, key, run, params, data):
    space = space_of(plan, params)
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
    space = space_of(plan, params)
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
        problem, evaluate = problem_of(plan, space, rows, context)
        value, gradient = evaluate(space.method.where(run.method))
        run = run._replace(batches=batches)
        return told(plan, space, run, params, data, problem, value, gradient)

    return jax.lax.while_loop(busy, tick, run)


def told(
    plan: Plan,
    space: "Space",
    run: Run,
    params: Params,
    data: Data,
    problem: Problem,
    value: Scalar,
    gradient: PyTree,
) -> Run:
    """The run after the loss was evaluated where its method wanted it."""
    method = space.method.told(problem, run.method, value, gradient)
    norm = space.gradient_norm(method)
    steps = jnp.where(method.accepted, 1, 0)
    place = jnp.where(method.accepted, run.step, len(run.losses))
    calm = (norm < plan.tolerance) & (plan.batch_size is None)
    spent = run.round_step + steps >= plan.steps_per_round
    run = run._replace(
        method=method,
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


def space_of(plan: Plan, params: Params) -> Space:
    """The coordinates of a plan, and its method."""
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


def problem_of(
    plan: Plan, space: Space, data: Data, context: Context
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
    plan: Plan,
    space: Space,
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


def to_params(plan: Plan, space: Space) -> Callable[[PyTree], Params] | None:
    """From a point to parameters, None without a chart."""
    return None if plan.chart is None else space.params


def _progress(plan, run, params):
    found = space_of(plan, params).params(run.method.point)
    return Progress(
        run.round,
        run.step,
        run.method.value,
        run.gradient_norm,
        found,
        run.context.shared,
    )


run_compiled = jax.jit(run_rounds)
start = jax.jit(_start)
begin_round = jax.jit(_begin_round)
progress = jax.jit(_progress)
_advance_jit = jax.jit(_advance)
