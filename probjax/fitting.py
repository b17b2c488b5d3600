"""`fit`: minimise any objective over rows of data.

A fit is `num_rounds` of *refresh, then up to `steps_per_round` steps down*. Refreshing
redraws whatever is random in the objective; in between, the loss

    reduce over weighted rows of row(params, x) + rest(params) + penalty(params)

is a fixed function of the parameters, so line searches are sound. Rows, weights, chunks
and minibatches are dealt with here, once, for every objective.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from probjax.batches import Batches, deal, next_batch, put, shuffle, take
from probjax.data import as_data, num_rows
from probjax.descent import Optax, Problem, QuasiNewton
from probjax.proximal import Proximal
from probjax.rows import default_chunk_size, loss_over_rows, scaled
from probjax.types import (
    Array,
    Chart,
    Context,
    Data,
    Float,
    Objective,
    Params,
    Penalty,
    PRNGKeyArray,
    PyTree,
    Scalar,
    float_dtype,
    holds,
    is_concrete,
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


class Fit(NamedTuple):
    """The outcome of `fit`."""

    params: Params
    """The parameters found."""
    losses: Float[Array, " step"]
    """The loss at each step (for a named optimizer, before its update)."""
    converged: Array
    """Whether `gradient_norm` is below the tolerance."""
    gradient_norm: Scalar
    """The largest absolute entry of the loss's gradient in the parameters.

    With a penalty that is not smooth, of a subgradient at the parameters found."""
    context: Context
    """What the objective kept: particles, moves."""
    opt_state: PyTree
    """What the optimizer kept."""


def fit(
    key: PRNGKeyArray,
    objective: Objective,
    params: Params,
    data: PyTree | Data,
    *,
    optimizer: optax.GradientTransformation | None = None,
    penalty: Penalty | None = None,
    chart: Chart | None = None,
    num_rounds: int = 1,
    steps_per_round: int = 2000,
    tolerance: float | None = None,
    batch_size: int | None = None,
    chunk_size: int | None = None,
    stop: Callable[[Progress, Data], Array] | None = None,
    callback: Callable[[Progress], Any] | None = None,
    callback_every: int = 50,
) -> Fit:
    """Minimise `objective` over `data`, starting from `params`.

    By default L-BFGS descends until `gradient_norm` is below `tolerance`, and begins
    anew in every round. A fit of one round that ends short of it warns in words.

    Args:
        data: rows, or a `Data` of rows with weights.
        optimizer: an optax optimizer in place of L-BFGS; build it once, as optax
            transformations compare by identity. It keeps its state across rounds.
        penalty: a term to add. With one that is not smooth the default becomes a
            proximal quasi-Newton method, and zeros are exact zeros.
        chart: the coordinates in which descent happens, as `ising.centred(data)`.
        num_rounds: how often the objective is refreshed.
        steps_per_round: the most steps between refreshes.
        tolerance: 1e-5 in float32 and 1e-8 in float64 if None.
        batch_size: rows per step, for an `optimizer`. A round deals out the rows that
            its steps will visit, refreshes the context of those alone, and passes over
            them in shuffled batches.
        chunk_size: rows whose gradients are computed at a time, which bounds memory and
            changes nothing but rounding. If None, 4096 on a CPU, where such chunks stay
            in its cache, and all rows on accelerators or more than one device.
        stop: `stop(progress, data) -> bool`, compiled and asked after every step; like
            an optimizer, build it once.
        callback: called with a `Progress` on the host every `callback_every` steps and
            at the end of each round; the fit ends if it returns True.

    Returns:
        A `Fit`. `losses` has one entry per step taken; inside `jit` or `vmap`, one per
        step allowed, NaN where none was taken.
    """
    data = _at_door(objective, params, data)
    _check(
        optimizer,
        penalty,
        chart,
        tolerance,
        batch_size,
        num_rounds=num_rounds,
        steps_per_round=steps_per_round,
        chunk_size=chunk_size,
        callback_every=callback_every,
    )
    if batch_size is not None and not 1 <= batch_size <= num_rows(data):
        raise ValueError(
            f"batch_size must be from 1 to the {num_rows(data)} rows, got {batch_size}"
        )
    params = jax.tree.map(jnp.asarray, params)
    chunk_size = chunk_size or default_chunk_size(data)
    if tolerance is None:
        tolerance = 1e-5 if float_dtype(params) != jnp.float64 else 1e-8
    plan = Plan(
        objective, penalty, chart, float(tolerance), optimizer, stop,
        num_rounds, steps_per_round, batch_size, chunk_size,
    )  # fmt: skip
    if callback is None:
        return _finish(plan, *_run_jit(plan, key, params, data))
    if not is_concrete((key, params, data)):
        raise ValueError("a fit inside jit or vmap cannot call back: use stop instead")
    run = _run_with_callback(plan, key, params, data, callback, callback_every)
    return _finish(plan, run, _progress_jit(plan, run, params).params)


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


def _run(plan, key, params, data):
    def one_round(run):
        run = _begin_round(plan, key, run, params, data)
        return _advance(plan, key, run, params, data, plan.steps_per_round)

    def unless_stopped(_, run):
        return jax.lax.cond(run.stopped, lambda: run, lambda: one_round(run))

    run = _start(plan, key, params, data)
    run = jax.lax.fori_loop(0, plan.num_rounds, unless_stopped, run)
    return run, _progress(plan, run, params).params


def _run_with_callback(plan, key, params, data, callback, every):
    run = _start_jit(plan, key, params, data)
    while int(run.round) + 1 < plan.num_rounds and not run.stopped:
        run = _begin_round_jit(plan, key, run, params, data)
        while not (run.ended or run.stopped):
            limit = run.round_step + every
            run = _advance_jit(plan, key, run, params, data, limit)
            if callback(_progress_jit(plan, run, params)):
                run = run._replace(stopped=jnp.asarray(True))
    return run


def _start(plan, key, params, data):
    space = _space(plan, params)
    count = plan.num_rounds * plan.steps_per_round
    kind = float_dtype(params)
    zero, no = jnp.asarray(0), jnp.asarray(False)
    batches = ()
    init_key, deck_key = jax.random.split(jax.random.fold_in(key, 0))
    if plan.batch_size is not None:
        batches = shuffle(
            deck_key, num_rows(data), plan.batch_size, plan.steps_per_round
        )
    return Run(
        method=space.method.start(space.point(params)),
        context=plan.objective.init(init_key, params, data),
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
    if plan.batch_size is None:
        context = refresh(data, run.context)
    else:
        batches = deal(deal_key, batches)
        mine = take(run.context.rows, batches.rows)
        new = refresh(take(data, batches.rows), run.context._replace(rows=mine))
        rows = put(run.context.rows, batches.rows, new.rows)
        context = Context(rows, new.shared)
    return run._replace(
        method=space.method.start(run.method.point, run.method),
        context=context,
        batches=batches,
        round=number,
        round_step=jnp.zeros_like(run.round_step),
        ended=jnp.asarray(False),
    )


def _advance(plan, key, run, params, data, limit):
    """Descend until the round ends or has taken `limit` steps."""
    space = _space(plan, params)
    _, _, shuffle_key = _round_keys(key, run.round)

    def busy(run):
        return ~run.ended & ~run.stopped & (run.round_step < limit)

    def tick(run):
        rows, context, batches = data, run.context, run.batches
        if plan.batch_size is not None:
            batches, chosen = next_batch(shuffle_key, batches, run.round_step)
            rows = take(data, chosen)
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
        return jnp.max(jnp.abs(ravel_pytree(gradient)[0]))


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
    return Problem(evaluate, loss, data)


def _progress(plan, run, params):
    found = _space(plan, params).params(run.method.point)
    return Progress(run.round, run.step, run.method.value, run.gradient_norm, found)


_run_jit = jax.jit(_run)
_start_jit = jax.jit(_start)
_begin_round_jit = jax.jit(_begin_round)
_advance_jit = jax.jit(_advance)
_progress_jit = jax.jit(_progress)


def _finish(plan, run, found):
    converged = run.gradient_norm < plan.tolerance
    losses = run.losses
    if is_concrete(run):
        # Cut on the host: a slice of jax would be compiled for every length.
        losses = jnp.asarray(np.asarray(losses)[: int(run.step)])
        meant_to = plan.num_rounds == 1 and plan.optimizer is None
        if meant_to and not (converged or run.stopped):
            warnings.warn(_shortfall(plan, run), ConvergenceWarning, stacklevel=3)
    norm = run.gradient_norm
    return Fit(found, losses, converged, norm, run.context, run.method)


class ConvergenceWarning(UserWarning):
    """A fit ended before its gradient was small."""


def _shortfall(plan, run):
    short = (
        f"fit has not converged: after {int(run.step)} steps the gradient norm is "
        f"{float(run.gradient_norm):.2g}, above the tolerance {plan.tolerance:.2g}; "
    )
    if not jnp.isfinite(run.method.value):
        return short + "the loss is not finite: check the energy and the starting point"
    if run.method.stalled:
        return short + "rounding lets it fall no further: use float64, or a chart"
    return (
        short + "allow more steps_per_round, or descend in better coordinates (chart)"
    )


def _at_door(objective, params, data):
    data = as_data(data)
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(f"params must be floating, got {jnp.result_type(leaf)}")
    if not holds(jnp.isfinite, params):
        raise ValueError("params must be finite, got NaN or infinity")
    data = objective.prepare(params, data)
    kind = float_dtype(params)

    def convert(leaf):
        return leaf.astype(kind) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(convert, data)


def _check(optimizer, penalty, chart, tolerance, batch_size, **counts):
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if batch_size is not None and optimizer is None:
        raise ValueError(
            "batch_size needs a first-order optimizer such as optax.adam(1e-3): the "
            "line searches of L-BFGS are not sound on changing batches"
        )
    if tolerance is not None and tolerance < 0:
        raise ValueError(f"tolerance must not be negative, got {tolerance}")
    sharp = penalty is not None and not penalty.smooth
    if sharp and (optimizer is not None or chart is not None):
        raise ValueError(
            "a penalty that is not smooth needs the default optimizer and no chart"
        )
