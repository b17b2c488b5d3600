"""`fit`: minimise an objective over rows of data.

A fit consists of `num_rounds` rounds. A round refreshes the objective, which redraws
its random parts, and then takes up to `steps_per_round` optimisation steps. Between
refreshes the loss

    reduce over weighted rows of row(params, x) + rest(params) + penalty(params)

is a fixed function of the parameters, so that line searches are valid. Weights, chunks
of rows and minibatches are handled here for all objectives.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from probjax.checks import check_count, check_interface, check_key, is_eager
from probjax.data.blocks import Blocks, Surveyed
from probjax.data.rows import refuse_mask
from probjax.devices import on_host
from probjax.fitting.arguments import prepared_data, validated
from probjax.fitting.chunk_size import default_chunk_size
from probjax.fitting.loss import value_over_rows
from probjax.fitting.out_of_core import out_of_core_run
from probjax.fitting.plan import RoundsPlan
from probjax.fitting.result import Fit, fit_of, warn_of_early_end
from probjax.fitting.rounds import (
    Run,
    advance_compiled,
    is_over_on_host,
    progress,
    run_rounds,
    start_compiled,
)
from probjax.fitting.stochastic import MAX_STEPS
from probjax.fitting.stopping import GradientNorm, StandardErrors, StoppingRule
from probjax.interfaces import Chart, Objective, Penalty
from probjax.runs.driver import Job, Watch, driver, run, undifferentiable
from probjax.trees import cast_floats, copied, float_dtype
from probjax.types import Data, Params, PRNGKeyArray, PyTree, Scalar

NO_GRADIENT = (
    "it iterates until it converges; try jax.lax.stop_gradient on its arguments, or "
    "differentiate probjax.loss"
)

_STEPS_BETWEEN_REPORTS = 50


@driver
@undifferentiable(NO_GRADIENT)
def fit(
    key: PRNGKeyArray,
    objective: Objective,
    params: Params,
    data: PyTree | Data | Blocks,
    *,
    optimizer: optax.GradientTransformation | None = None,
    penalty: Penalty | None = None,
    chart: Chart | None = None,
    stop: StoppingRule | None = None,
    num_rounds: int = 1,
    steps_per_round: int | None = None,
    batch_size: int | None = None,
    chunk_size: int | None = None,
    watch: Watch | None = None,
) -> Fit:
    """Minimise `objective` over `data`, starting from `params`.

    By default L-BFGS descends until `stop` is met, and restarts in every round. A
    likelihood by sampling (`MaximumLikelihood` with a `sampler`) is descended by
    stochastic approximation instead, see `probjax.fitting.stochastic`; its chains move
    before every step, and its loss has a gradient but no meaningful value. A fit of one
    round that ends before `stop` is met issues a `ConvergenceWarning`. If the data do
    not determine all parameters of a built-in model, it issues an `UnboundedWarning`.
    Any fit warns if the final loss is not finite, and one with an `optimizer` and
    without minibatches if its loss rises.

    Args:
        data: rows in memory; or a `Data` of rows with weights or with a mask of
            observed entries (which needs several rounds, see
            `probjax.objectives.missing`); or out-of-core `Blocks` of rows, which are
            read on every pass. Rows in memory may be distributed over devices and
            processes, see `probjax.devices`. With `Blocks`, objectives and stopping
            rules that inspect the data receive only the first block.
        optimizer: an optax optimizer that replaces L-BFGS. It keeps its state across
            rounds.
        penalty: a term that is added to the loss. If it is not smooth, the default
            method is a proximal quasi-Newton method, and zeros are exact. A penalty
            without weights, such as `L2(0.01)`, applies to couplings only if the energy
            declares its couplings, as built-in models do. Biases and fields then have
            a faint prior, `L2(0.01 / rows)`, which keeps those of silent units finite,
            see `probjax.objectives.penalty`. `L2(0.01, weights=1.0)` penalises all
            parameters. The result contains the penalty with its weights.
        chart: coordinates in which the optimisation takes place, such as
            `charts.Positive()`. If None, L-BFGS and the proximal method use those that
            the energy provides for the data: centred and scaled for pairwise and Potts
            models, centred for RBMs. They do not move the minimum;
            `charts.Affine()` stands for plain coordinates. With an `optimizer`, or if
            a penalty that is not smooth does not separate in them, coordinates are
            plain.
        stop: stopping rule: `StandardErrors(0.05)`, `GradientNorm(1e-5)`, or a user's
            `StoppingRule`. If None, the distance from the minimum must be below 0.05
            standard errors, or below 0.3 for a likelihood by sampling. With an
            `optimizer`, or if the objective has no value, `GradientNorm()` is used.
        num_rounds: number of times that the objective is refreshed.
        steps_per_round: largest number of steps between refreshes. If None, 2,000, or
            10,000 for a likelihood by sampling.
        batch_size: rows per step; requires an `optimizer`, or a likelihood by sampling.
            It is ignored if the energy of such a likelihood is linear in the
            parameters, because then one pass over the rows suffices. A round selects
            the rows that its steps will visit, with probability proportional to their
            weights, refreshes only their context, and passes over them in shuffled
            batches. For losses that are a logarithm of a mean over rows, such as `MPF`,
            gradients of batches have a bias of order 1 / batch_size; use large batches
            at the end.
            If rows are distributed over devices, a batch is gathered by one sum over
            all devices. Each device then computes its share of the batch if batch_size
            is a multiple of the number of devices, and the whole batch otherwise.
        chunk_size: number of rows whose gradients are computed at a time, on each
            device if rows are distributed. It bounds memory and changes only rounding.
            If None, 4096 on a CPU, where such chunks fit into the cache. On
            accelerators, as many rows as keep 256 MB for their gradient, but at least
            4096; see `probjax.fitting.chunk_size`.
        watch: callback and checkpoint. The callback receives a `Progress`, by default
            every 50 steps and at the end.

    Returns:
        A `Fit`. `losses` has one entry per step taken; inside `jit` or `vmap`, one per
        step allowed, infinite for steps that were not taken.

    >>> import jax.numpy as jnp
    >>> from probjax import ScoreMatching
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / 2
    >>> rows = jnp.array([[0.0, 2.0], [2.0, 4.0]])
    >>> found = fit(jax.random.key(0), ScoreMatching(energy), jnp.zeros(2), rows)
    >>> found.params.round(4).tolist()
    [1.0, 3.0]
    """
    arguments = dict(locals())
    check_interface("objective", objective, Objective, "MPF(energy)")
    is_stochastic = optimizer is None and objective.num_groups > 0
    if stop is None and is_stochastic:
        stop = StandardErrors(0.3)
    elif stop is None:
        converges = optimizer is None and objective.has_value
        stop = StandardErrors() if converges else GradientNorm()
    if steps_per_round is None:
        steps_per_round = MAX_STEPS if is_stochastic else 2000
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
    job, final = fit_job(key, plan, params, data, watch)
    return run("fit", arguments | final, job, watch)


def fit_job(
    key: PRNGKeyArray,
    plan: RoundsPlan,
    params: Params,
    data: PyTree | Data | Blocks,
    watch: Watch | None,
    *,
    must_converge: bool = True,
) -> tuple[Job, dict[str, Any]]:
    """Check the arguments of a fit, and describe the fit as a `Job`.

    Args:
        must_converge: whether the fit warns if it does not converge.

    Returns:
        The job, and the arguments of the fit in their final form, by which a checkpoint
        is recognised.
    """
    plan, params, rows = validated(key, plan, params, data)
    final = {"params": params, "data": rows, **vars(plan)}
    for derived in ("rows_per_round", "rough", "is_linear", "metric", "total_rows"):
        del final[derived]
    if isinstance(rows, Surveyed):
        start, advance = out_of_core_run(plan, key, params, rows)
        is_saved = watch is not None and watch.checkpoint is not None
        final["data"] = (rows.digest() if is_saved else "", rows.source.decode)
    else:
        start = partial(start_compiled, plan, key, params, rows)
        advance = partial(_advance_in_memory, plan, key, params, rows)
    if is_eager((key, plan, params, rows)):
        max_steps = plan.num_rounds * plan.steps_per_round
        job = Job(
            begin=lambda: _State(start(), np.zeros(max_steps, float_dtype(params))),
            advance=partial(_advance, plan, advance),
            is_over=lambda state: is_over_on_host(plan, state.run),
            report=lambda state: progress(state.run),
            finish=partial(_finish, plan, must_converge),
            every=_STEPS_BETWEEN_REPORTS,
        )
    else:
        job = _traced_job(plan, key, params, rows)
    return job, final


class _State(NamedTuple):
    """State of a fit on the host."""

    run: Run
    losses: np.ndarray
    """Losses of all steps that are allowed, filled in place up to `run.step`."""


def _advance_in_memory(plan, key, params, data, run, limit):
    return advance_compiled(plan, key, run, params, data, limit)


def _advance(plan, advance, state, every):
    """Advance to the next multiple of `every` steps, or to the end, piece by piece."""
    run, losses = state.run, state.losses
    if not (isinstance(losses, np.ndarray) and losses.flags.writeable):
        # Arrays that were read from a checkpoint are not writeable.
        losses = np.array(losses)
    step = int(run.step)
    last = None if every is None else (step // every + 1) * every
    while True:
        limit = step + len(run.losses)
        run = advance(run, limit if last is None else min(limit, last))
        step, first = int(run.step), int(run.first)
        losses[first:step] = on_host(run.losses)[: step - first]
        # A copy, because no array can be overwritten twice.
        run = run._replace(first=copied(run.step))
        if step == last or is_over_on_host(plan, run):
            return _State(run, losses)


def _finish(plan, must_converge, state, stopped):
    """Return the result of a fit, with a warning if it ended too early."""
    run = state.run
    ended_as_meant = bool(run.met) or stopped or not must_converge
    losses = state.losses[: int(run.step)]
    warn_of_early_end(plan, run, losses, ended_as_meant=ended_as_meant)
    return fit_of(plan, run, jax.device_put(losses))


def _traced_job(plan, key, params, data):
    """Return the job of a fit inside `jit` or `vmap`: one program with all losses."""
    max_steps = plan.num_rounds * plan.steps_per_round
    return Job(
        begin=partial(run_rounds, plan, key, params, data, max_steps),
        advance=lambda run, every: run,
        is_over=lambda run: True,
        report=progress,
        finish=lambda run, stopped: fit_of(plan, run, run.losses),
    )


@driver
def loss(
    key: PRNGKeyArray,
    objective: Objective,
    params: Params,
    data: PyTree | Data,
    *,
    chunk_size: int | None = None,
) -> Scalar:
    """Compute the value of `objective` at `params`, for example on held-out data.

    Args:
        key: for the random parts of the objective.
        chunk_size: as for `fit`.

    Its gradient is the one that `fit` descends: particles, reference energies and other
    parts of the context are constant.

    >>> import jax.numpy as jnp
    >>> from probjax import PseudoLikelihood, ising
    >>> flat, rows = ising.from_matrix(jnp.zeros((2, 2))), jnp.eye(2)
    >>> objective = PseudoLikelihood(ising.energy)
    >>> round(float(loss(jax.random.key(0), objective, flat, rows)), 4)  # 2 log 2
    1.3863
    """
    check_key(key)
    check_interface("objective", objective, Objective, "MPF(energy)")
    if isinstance(data, Blocks):
        raise ValueError(
            "data must be rows in memory for a loss, got Blocks; try an array of rows"
        )
    data = prepared_data(objective, params, data)
    refuse_mask(data, "a loss is computed from complete rows")
    if chunk_size is not None:
        check_count("chunk_size", chunk_size)
    params, objective = cast_floats(float_dtype(params), (params, objective))
    size = chunk_size or default_chunk_size(objective, params, data)
    return _loss(key, objective, params, data, chunk_size=size)


@partial(jax.jit, static_argnames="chunk_size")
def _loss(key, objective, params, data, *, chunk_size):
    init_key, refresh_key = jax.random.split(key)
    # Constant in the gradient, as in the rounds of `fit`.
    frozen = jax.lax.stop_gradient((params, data))
    context = objective.init(init_key, *frozen)
    context = objective.refresh(refresh_key, *frozen, context)
    context = jax.lax.stop_gradient(context)
    value = value_over_rows(
        objective, params, data, context.rows, chunk_size=chunk_size
    )
    return value + objective.rest(params, context.shared)
