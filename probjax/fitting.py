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

from probjax.blocks import Blocks, survey
from probjax.checkpoint import Checkpoint, kept_by
from probjax.data import as_data, num_rows, refuse_mask
from probjax.devices import driver, on_host
from probjax.passes import check_context, run_over_blocks
from probjax.rounds import Plan, Progress, run_compiled, run_in_pieces
from probjax.rows import default_chunk_size, loss_over_rows
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
    check_count,
    check_key,
    check_role,
    float_dtype,
    holds,
    is_concrete,
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
    """Whether `gradient_norm` is below the tolerance; with minibatches, False."""
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
    num_rounds: int = 1,
    steps_per_round: int = 2000,
    tolerance: float | Scalar | None = None,
    batch_size: int | None = None,
    chunk_size: int | None = None,
    stop: Callable[[Progress, Data], Array] | None = None,
    callback: Callable[[Progress], Any] | None = None,
    callback_every: int = 50,
    checkpoint: Checkpoint | None = None,
) -> Fit:
    """Minimise `objective` over `data`, starting from `params`.

    By default L-BFGS descends until `gradient_norm` is below `tolerance`, and begins
    anew in every round. Such a fit warns in words if its only round ends short of that,
    or if the data leave parameters of a known model without a finite estimate; any fit
    does if its loss is not finite in the end.

    Args:
        data: rows, or a `Data` of rows with weights or with a mask of what was
            observed, which takes many rounds: see `probjax.missing`. Rows may be spread
            over devices and processes: see `probjax.devices`. Or `Blocks` of rows,
            which are read in passes; of those, objectives and rules that look at data
            themselves see the first one.
        optimizer: an optax optimizer in place of L-BFGS; build it once, as optax
            transformations compare by identity. It keeps its state across rounds.
        penalty: a term to add. With one that is not smooth the default becomes a
            proximal quasi-Newton method, and zeros are exact zeros.
        chart: the coordinates in which descent happens, as `ising.centred(data)`.
        num_rounds: how often the objective is refreshed.
        steps_per_round: the most steps between refreshes.
        tolerance: 1e-5 in float32 and 1e-8 in float64 if None.
        batch_size: rows per step, for an `optimizer`. A round deals out the rows that
            its steps will visit, in proportion to their weights, refreshes the context
            of those alone, and passes over them in shuffled batches. Gradients of a
            loss that is a logarithm, as that of `MPF`, are then biased by order
            1 / batch_size: finish on large batches. Of rows that are spread over
            devices a batch is put together by one sum over all of them; each computes
            its part of it if batch_size is a multiple of their number, else all of it.
        chunk_size: rows whose gradients are computed at a time, which bounds memory and
            changes nothing but rounding; of rows that are spread, on each device. If
            None, 4096 on a CPU, where such chunks stay in its cache, and all rows on
            accelerators.
        stop: `stop(progress, data) -> bool`, compiled and asked after every step; like
            an optimizer, build it once.
        callback: called with a `Progress` on the host every `callback_every` steps and
            at the end of each round; the fit ends if it returns True.
        checkpoint: where to keep the fit between calls back, so that this same call
            goes on, to the bit, if it was killed.

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
    check_key(key)
    check_role("objective", objective, "prepare", "MPF(energy)")
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
    _check_params(params)
    known = survey(data, objective, params) if isinstance(data, Blocks) else None
    data = at_door(objective, params, data) if known is None else Data(*known.first)
    if batch_size is not None and not 1 <= batch_size <= num_rows(data):
        of_what = "rows" if known is None else "rows of a block"
        raise ValueError(
            f"batch_size must be from 1 to the {num_rows(data)} {of_what}, "
            f"got {batch_size}"
        )
    if data.mask is not None and num_rounds == 1:
        raise ValueError(
            "missing entries are filled from the model, once in every round, so that "
            "one round knows too little: give num_rounds=20"
        )
    if known is not None:
        check_context(key, objective, params, known)
    elif penalty is None and optimizer is None and stop is None:
        warn_of_unbounded(objective, params, data)
    to_the_end = optimizer is None and num_rounds == 1
    if to_the_end and not getattr(objective, "minimised", True):
        raise ValueError(
            f"{type(objective).__name__} compares rows with states of the model that "
            "are renewed once in every round, so that one round ends at a model they "
            "are not of: give num_rounds=50, and a small steps_per_round"
        )
    kind = float_dtype(params)
    # All numbers of one kind, so that knobs given otherwise are the same program.
    params, objective, penalty, chart = of_kind(
        kind, (params, objective, penalty, chart)
    )
    if chart is not None:
        _check_chart(chart, params)
    plan = Plan(
        objective=objective,
        penalty=penalty,
        chart=chart,
        tolerance=of_kind(
            kind, default_tolerance(params) if tolerance is None else tolerance
        ),
        optimizer=optimizer,
        stop=stop,
        num_rounds=num_rounds,
        steps_per_round=steps_per_round,
        batch_size=batch_size,
        chunk_size=chunk_size or default_chunk_size(data),
    )
    in_pieces = callback is not None or checkpoint is not None or known is not None
    if not in_pieces:
        return _finish(plan, *run_compiled(plan, key, params, data))
    if not is_concrete((key, params, data, plan)):
        raise ValueError("a fit inside jit or vmap cannot call back: use stop instead")
    rows = data
    if known is not None and checkpoint is not None:
        rows = (known.digest(), known.source.decode)
    asked = {"key": key, "params": params, "data": rows, **vars(plan)}
    kept = kept_by(checkpoint, "fit", **asked)
    if known is None:
        outcome = run_in_pieces(plan, key, params, data, callback, callback_every, kept)
    else:
        outcome = run_over_blocks(
            plan, key, params, known, callback, callback_every, kept
        )
    return _finish(plan, *outcome)


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
    if isinstance(data, Blocks):
        raise ValueError("a loss is of rows in memory, got Blocks")
    data = at_door(objective, params, data)
    refuse_mask(data, "a loss is of complete rows")
    if chunk_size is not None:
        check_count("chunk_size", chunk_size)
    params, objective = of_kind(float_dtype(params), (params, objective))
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


def _finish(plan, run, found):
    calm = (run.gradient_norm < plan.tolerance) & jnp.isfinite(run.method.value)
    converged = calm & (plan.batch_size is None)
    losses = run.losses
    if is_concrete(run):
        # Cut on the host: a slice of jax would be compiled for every length.
        losses = jax.device_put(on_host(losses)[: int(run.step)])
        meant_to = plan.num_rounds == 1 and plan.optimizer is None
        short = meant_to and not (converged or run.stopped)
        value = float(run.method.value)
        # A batch of which `exclude_data` leaves nothing has the loss log 0.
        empty = plan.batch_size is not None and value == -np.inf
        if short or not (np.isfinite(value) or empty):
            warnings.warn(_shortfall(plan, run), ConvergenceWarning, stacklevel=4)
    return Fit(
        params=found,
        loss=run.method.value,
        losses=losses,
        converged=converged,
        gradient_norm=run.gradient_norm,
        context=run.context,
        opt_state=run.method,
    )


class ConvergenceWarning(UserWarning):
    """A fit ended before its gradient was small.

    Where a fit is cut short on purpose, it can be told by `converged` instead:

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

    >>> from probjax import PseudoLikelihood, ising
    >>> start, rows = ising.init(jax.random.key(0), 2), jnp.array([[0, 0], [1, 0]])
    >>> args = jax.random.key(1), PseudoLikelihood(ising.energy), start, rows
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", UnboundedWarning)
    ...     fit(*args)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    probjax.fitting.UnboundedWarning: 1 of 2 units never change...
    """


def warn_of_unbounded(objective: Objective, params: Params, data: Data) -> None:
    """Warn if the objective knows parameters that these data leave without estimate."""
    told = getattr(objective, "unbounded", None)
    if told is not None and is_concrete((params, data)):
        with jax.ensure_compile_time_eval():
            trouble = told(params, data)
        if trouble:
            advice = "add a penalty, as penalty=L2(1e-4)"
            warnings.warn(f"{trouble}: {advice}", UnboundedWarning, stacklevel=4)


def _shortfall(plan, run):
    norm, limit = float(run.gradient_norm), float(plan.tolerance)
    if not jnp.isfinite(run.method.value):
        return (
            f"fit has not converged: after {int(run.step)} steps the loss is not "
            f"finite, {float(run.method.value)}: check the energy and the start"
        )
    short = (
        f"fit has not converged: after {int(run.step)} steps the gradient norm is "
        f"{norm:.2g}, above the tolerance {limit:.2g}; "
    )
    advice = (
        "rounding lets it fall no further: use float64, or better coordinates (chart)"
        if run.method.stalled
        else "allow more steps_per_round, or descend in better coordinates (chart)"
    )
    return (
        f"{short}{advice}; or, if the loss has no lower bound (separable data), add a "
        "penalty or a stop rule"
    )


def at_door(objective: Objective, params: Params, data: PyTree | Data) -> Data:
    """`data` as the objective wants them, all checks passed."""
    data = as_data(data)
    _check_params(params)
    return of_kind(float_dtype(params), objective.prepare(params, data))


def _check_params(params):
    if not jax.tree.leaves(params):
        raise ValueError("params must hold at least one array, got none")
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(f"params must be floating, got {jnp.result_type(leaf)}")
    if not holds(jnp.isfinite, params):
        raise ValueError("params must be finite, got NaN or infinity")


def default_tolerance(params: Params) -> float:
    """The gradient norm a fit ends at, unless told otherwise."""
    return 1e-8 if float_dtype(params) == jnp.float64 else 1e-5


def _check_chart(chart, params):
    if not holds(jnp.isfinite, _coordinates(chart, params)):
        # Outside of compiled code the chart can look at values, and may say more.
        chart.forward(params)
        raise ValueError("params are outside the chart: coordinates must be finite")


@jax.jit
def _coordinates(chart, params):
    return chart.forward(params)


def of_kind(kind: np.dtype, tree: PyTree) -> PyTree:
    """`tree` with every floating number of dtype `kind`."""

    def convert(leaf):
        floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return jnp.asarray(leaf, kind) if floating else leaf

    return jax.tree.map(convert, tree)


def _check(optimizer, penalty, chart, tolerance, batch_size, **counts):
    if penalty is not None:
        check_role("penalty", penalty, "smooth", "L2(1e-4)")
    if optimizer is not None:
        check_role("optimizer", optimizer, "update", "optax.adam(1e-3)")
    for name, count in counts.items():
        if count is not None:
            check_count(name, count)
    if batch_size is not None and optimizer is None:
        raise ValueError(
            "batch_size needs a first-order optimizer such as optax.adam(1e-3): the "
            "line searches of L-BFGS are not sound on changing batches"
        )
    if tolerance is not None and is_concrete(tolerance) and tolerance < 0:
        raise ValueError(f"tolerance must not be negative, got {tolerance}")
    sharp = penalty is not None and not penalty.smooth
    if sharp and (optimizer is not None or chart is not None):
        raise ValueError(
            "a penalty that is not smooth needs the default optimizer and no chart"
        )
