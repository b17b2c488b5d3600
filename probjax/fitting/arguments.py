"""Validation of the arguments of a fit, before anything is compiled.

Every rejected argument raises one `ValueError`. Accepted arguments are returned in the
form in which they are compiled: all floating numbers have the dtype of the parameters,
and defaults that depend on the data are filled in.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from probjax.checks import (
    check_count,
    check_interface,
    check_key,
    holds,
    is_concrete,
    is_finite,
    is_on_host,
)
from probjax.data.blocks import Blocks, Surveyed, survey
from probjax.data.rows import as_data, num_rows
from probjax.energies import check_precision
from probjax.fitting.charts import Affine, Composed
from probjax.fitting.chunk_size import default_chunk_size
from probjax.fitting.dependence import depends_on_first
from probjax.fitting.distance import RowSample
from probjax.fitting.metric import metric_of, penalty_curvature
from probjax.fitting.minibatches import rows_per_round
from probjax.fitting.out_of_core import check_out_of_core, prepared_block
from probjax.fitting.plan import (
    RoundsPlan,
    coordinates_of,
    is_stochastic,
    rough_in_chart,
)
from probjax.fitting.result import warn_of_unbounded
from probjax.fitting.stopping import StoppingRule
from probjax.interfaces import Chart, Objective, Penalty, has_statistic
from probjax.objectives.penalty import BIAS_PRIOR
from probjax.trees import cast_floats, first_row, float_dtype
from probjax.types import Data, Params, PRNGKeyArray, PyTree

# Weights with a sum up to 1, but for rounding, are probabilities, and not counts.
_LARGEST_PROBABILITY = 1.001
# Number of rows whose prior on biases they have.
_ROWS_OF_PROBABILITIES = 1e6


def validated(
    key: PRNGKeyArray, plan: RoundsPlan, params: Params, data: PyTree | Data | Blocks
) -> tuple[RoundsPlan, Params, Data | Surveyed]:
    """Check the arguments of a fit and return them in their final form.

    Returns:
        The plan, the parameters, and the rows: in memory as `Data`, or out of core as
        blocks that have been read once and checked.
    """
    check_key(key)
    _check_plan(plan)
    _check_params(params)
    if isinstance(data, Blocks):
        rows = _validated_blocks(key, plan, params, data)
        first = Data(*rows.first)
    else:
        rows = first = _validated_rows(plan, params, data)
    penalty = resolved_penalty(plan.penalty, plan.objective, params, rows)
    plan = dataclasses.replace(plan, penalty=penalty)
    dtype = float_dtype(params)
    params, chart = cast_floats(dtype, (params, plan.chart))
    if chart is not None:
        _check_chart(chart, params)
        _check_diagonal(penalty, chart, params)
    elif plan.optimizer is None:
        chart = _default_chart(plan, params, rows)
    # While weights are Python numbers, because traced weights are not known to be 0.
    rough = rough_in_chart(penalty, chart, params)
    plan = dataclasses.replace(plan, chart=chart, rough=rough)
    if plan.objective.num_groups:
        plan = _with_states_of_model(plan, params, first, _total_rows(rows))
    # All numbers have one dtype, so that Python numbers and arrays share one program.
    plan = cast_floats(dtype, plan)
    plan = dataclasses.replace(
        plan,
        chunk_size=plan.chunk_size or _default_chunk_size(plan, params, rows),
        rows_per_round=_rows_per_round(plan, first),
    )
    if plan.is_linear and is_stochastic(plan):
        plan = dataclasses.replace(plan, metric=_metric(key, plan, params, rows))
    return plan, params, rows


def _default_chunk_size(plan, params, rows):
    if isinstance(rows, Surveyed):
        prepare = partial(prepared_block, plan.objective, params, rows.source.decode)
        rows = jax.eval_shape(prepare, rows.first)
    return default_chunk_size(plan.objective, params, rows)


def _with_states_of_model(plan, params, data, total_rows):
    """Complete the plan of a sampled loss, which may be linear over rows."""
    objective, key = plan.objective, jax.random.key(0)
    context = jax.eval_shape(objective.init, key, params, data)
    # What is stored for a row may change from step to step.
    stores_nothing = not jax.tree.leaves(context.rows)
    is_linear = stores_nothing and not has_statistic(objective, params, data.x)
    if is_linear:
        x, rows = jax.eval_shape(first_row, (data.x, context.rows))
        is_linear = not depends_on_first(jax.grad(objective.row), params, x, rows)
    batch_size = None if is_linear else plan.batch_size
    return dataclasses.replace(
        plan, is_linear=is_linear, batch_size=batch_size, total_rows=total_rows
    )


def _metric(key, plan, params, rows):
    """Estimate the metric of stochastic approximation at the initial parameters."""
    if isinstance(rows, Surveyed):
        return _metric_of_sample(rows.source.decode, key, plan, params, rows.sample)
    return _metric_of_rows(key, plan, params, rows)


@jax.jit
def _metric_of_rows(key, plan, params, data):
    coordinates = coordinates_of(plan, params)
    return metric_of(
        key,
        plan.objective,
        plan.penalty,
        coordinates.params,
        coordinates.point(params),
        RowSample(data, (), plan.total_rows),
        for_steps=True,
    )


@partial(jax.jit, static_argnums=0)
def _metric_of_sample(decode, key, plan, params, sample):
    data = prepared_block(plan.objective, params, decode, sample)
    return _metric_of_rows(key, plan, params, data)


def resolved_penalty(
    penalty: Penalty | None,
    objective: Objective,
    params: Params,
    rows: Data | Surveyed,
) -> Penalty | None:
    """Return the penalty that is fitted: without weights, it spares the biases.

    The weights are numbers that the host can read, unless the penalty or the objective
    has traced ones. See `probjax.objectives.penalty`.
    """
    couplings = None if penalty is None else objective.couplings(params)
    if penalty is None or couplings is None:
        return penalty
    return penalty.sparing(couplings, BIAS_PRIOR / _total_rows(rows))


def _total_rows(rows):
    """Return the number of rows, whose weights are counts.

    Weights that add up to 1 at most are probabilities, which stand for many rows.
    """
    weights = rows.weights
    if weights is None:
        return num_rows(rows)
    if is_concrete(weights) and is_on_host(weights):
        total = float(np.sum(weights))
        return total if total > _LARGEST_PROBABILITY else _ROWS_OF_PROBABILITIES
    total = jnp.sum(weights)
    return jnp.where(total > _LARGEST_PROBABILITY, total, _ROWS_OF_PROBABILITIES)


def prepared_data(objective: Objective, params: Params, data: PyTree | Data) -> Data:
    """Check parameters and rows in memory, and return the rows for `objective`."""
    data = as_data(data)
    _check_params(params)
    return cast_floats(float_dtype(params), objective.prepare(params, data))


def _validated_rows(plan, params, data):
    rows = prepared_data(plan.objective, params, data)
    _check_batch_size(plan, num_rows(rows), "rows")
    _check_rounds(plan, rows)
    needs_minimum = plan.optimizer is None and plan.stop.needs_minimum
    if plan.penalty is None and needs_minimum:
        warn_of_unbounded(plan.objective, params, rows)
    return rows


def _validated_blocks(key, plan, params, blocks):
    if not is_concrete(params):
        raise ValueError(
            "data must be rows in memory inside jit or vmap, got Blocks, which are "
            "read by the host; try calling fit outside jit and vmap"
        )
    rows = survey(blocks, plan.objective, params)
    first = Data(*rows.first)
    _check_batch_size(plan, num_rows(first), "rows of a block")
    check_out_of_core(key, plan.objective, params, rows)
    _check_rounds(plan, first)
    return rows


def _check_plan(plan):
    check_interface("objective", plan.objective, Objective, "MPF(energy)")
    check_interface("stop", plan.stop, StoppingRule, "GradientNorm(1e-5)")
    _check_method(plan)
    check_count("num_rounds", plan.num_rounds)
    check_count("steps_per_round", plan.steps_per_round)
    if plan.chunk_size is not None:
        check_count("chunk_size", plan.chunk_size)


def _check_params(params):
    if not jax.tree.leaves(params):
        raise ValueError("params must hold at least one array, got none")
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(
                f"params must be floating, got {jnp.result_type(leaf)}; try "
                "jax.tree.map(jnp.float32, params)"
            )
    check_precision(params)
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(params) if _has_dtype(leaf)}
    if len(dtypes) > 1:
        names = " and ".join(sorted(map(str, dtypes)))
        raise ValueError(
            f"params must have one dtype, got {names}; try "
            "jax.tree.map(jnp.float32, params)"
        )
    if isinstance(params, Mapping) and "batch_stats" in params:
        raise ValueError(
            "params must hold only what is fitted, got the collection batch_stats of "
            "Flax too; try params=variables['params'], and an energy that contains the "
            "other collections"
        )
    if not holds(is_finite, params):
        raise ValueError("params must be finite, got NaN or infinity")


def _has_dtype(leaf):
    return isinstance(leaf, jax.Array) and not leaf.weak_type


def _check_chart(chart, params):
    if not holds(is_finite, _coordinates(chart, params)):
        # Outside compiled code a chart can read values and raise a more precise error.
        chart.forward(params)
        raise ValueError(
            "params must have finite coordinates in the chart, got NaN or infinity; "
            "try other initial params"
        )


def _check_diagonal(penalty, chart, params):
    if not _is_diagonal(penalty, chart, params):
        raise ValueError(
            "chart must scale each penalised entry by a number of its own if the "
            f"penalty is not smooth, got {type(chart).__name__} and {penalty}; try L2, "
            "or leave out chart"
        )


def _is_diagonal(penalty, chart, params):
    """Whether a penalty that is not smooth separates in the coordinates, too."""
    is_smooth = penalty is None or penalty.smooth
    return is_smooth or rough_in_chart(penalty, chart, params) is not None


def _default_chart(plan, params, rows):
    """Return the chart that the objective provides, if it suits the penalty."""
    smooth, _ = (None, None) if plan.penalty is None else plan.penalty.parts()
    if isinstance(rows, Surveyed):
        decode = rows.source.decode
        chart = _chart_of_sample(decode, plan.objective, smooth, params, rows.sample)
    else:
        chart = _chart_of_rows(plan.objective, smooth, params, rows)
    usable = chart is not None and _is_diagonal(plan.penalty, chart, params)
    return chart if usable else None


@jax.jit
def _chart_of_rows(objective, penalty, params, data):
    return _scaled(objective.chart(params, data), penalty, params)


@partial(jax.jit, static_argnums=0)
def _chart_of_sample(decode, objective, penalty, params, sample):
    data = prepared_block(objective, params, decode, sample)
    return _scaled(objective.chart(params, data), penalty, params)


def _scaled(chart, penalty, params):
    """Scale coordinates of known curvature by that of loss and penalty together."""
    if chart is None or (curvature := chart.curvature(params)) is None:
        return chart
    point, unravel = ravel_pytree(chart.forward(params))

    def to_params(point):
        return chart.inverse(unravel(point))

    added = penalty_curvature(jax.random.key(0), penalty, to_params, point)
    scale = jax.lax.rsqrt(ravel_pytree(curvature)[0] + added)
    return Composed((chart, Affine(scale=unravel(scale))))


@jax.jit
def _coordinates(chart, params):
    return chart.forward(params)


def _check_method(plan):
    optimizer, penalty, chart = plan.optimizer, plan.penalty, plan.chart
    if penalty is not None:
        check_interface("penalty", penalty, Penalty, "L2(1e-4)")
    if chart is not None:
        check_interface("chart", chart, Chart, "ising.centred(data)")
    if not isinstance(optimizer, optax.GradientTransformation | None):
        raise ValueError(
            f"optimizer must be an optax optimizer, got {optimizer!r}; try "
            "optax.adam(1e-3)"
        )
    if plan.batch_size is not None and optimizer is None and not is_stochastic(plan):
        raise ValueError(
            "batch_size needs a first-order optimizer, because the line searches of "
            f"L-BFGS need a fixed loss, got batch_size={plan.batch_size} and "
            "optimizer=None; try optimizer=optax.adam(1e-3)"
        )
    if penalty is not None and not penalty.smooth:
        _check_proximal(penalty, optimizer)
        if plan.objective.num_groups:
            raise ValueError(
                f"penalty must be smooth for a likelihood by sampling, got {penalty}; "
                "try L2"
            )


def _check_proximal(penalty, optimizer):
    if optimizer is not None:
        raise ValueError(
            "optimizer must be None with a penalty that is not smooth, got "
            f"{penalty}; try L2, or leave out optimizer"
        )
    if type(penalty).prox is Penalty.prox:
        raise ValueError(
            f"penalty must have a proximal map if it is not smooth, got {penalty}; "
            "try defining prox(params, step)"
        )


def _check_batch_size(plan, count, what):
    if plan.batch_size is not None and not 1 <= plan.batch_size <= count:
        raise ValueError(
            f"batch_size must be from 1 to the {count} {what}, got {plan.batch_size}"
        )


def _check_rounds(plan, data):
    if plan.num_rounds > 1:
        return
    if data.mask is not None:
        raise ValueError(
            "masked data need several rounds, because missing entries are imputed once "
            "per round; try num_rounds=20"
        )
    has_value = plan.objective.has_value or is_stochastic(plan)
    if plan.optimizer is None and not has_value:
        name = type(plan.objective).__name__
        raise ValueError(
            f"{name} needs many rounds: it compares the rows with states of the model "
            "that are updated once per round, and that would no longer represent the "
            "model; try num_rounds=50 and a small steps_per_round"
        )


def _rows_per_round(plan, data):
    if plan.batch_size is None:
        return None
    count, steps = num_rows(data), plan.steps_per_round
    return rows_per_round(count, size=plan.batch_size, steps=steps)
