"""Out-of-core fits: `probjax.fitting.rounds`, evaluated by passes over blocks of rows.

For each evaluation of the loss, a pass over all blocks adds up its value and gradient
exactly (see `probjax.fitting.loss`), so that the steps are the same as with all rows in
memory, except for rounding. The next block is read while one is evaluated. With a mesh
in the context (see `probjax.devices`) each device evaluates its part of a block.

Minibatches are taken from one block after the other, and each batch starts where the
previous one ended. Blocks come in their own order. The rows of each block come in a
random order, which is drawn again in every pass, and each row occurs in proportion to
its weight.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from probjax.data.blocks import Block, Surveyed, same_blocks
from probjax.devices import put_rows
from probjax.fitting.distance import RowSample, row_sample
from probjax.fitting.evaluation import (
    chart_inverse,
    evaluate,
    evaluate_with,
    linear_loss,
    moved_states,
    with_metric,
)
from probjax.fitting.loss import empty_total, loss_over_rows, merged
from probjax.fitting.optimisers import Problem
from probjax.fitting.plan import (
    RoundsPlan,
    coordinates_of,
    has_distance,
    is_stochastic,
)
from probjax.fitting.rounds import (
    Run,
    begin_round,
    finish_piece,
    is_over_on_host,
    start,
    step_key,
    tell,
)
from probjax.interfaces import Objective, has_statistic
from probjax.trees import float_dtype
from probjax.types import Data, Params, PRNGKeyArray, PyTree

# Number of the key of minibatches, which no round can have.
_BATCH_KEY = np.uint32(2**32 - 1)


def out_of_core_run(
    plan: RoundsPlan, key: PRNGKeyArray, params: Params, rows: Surveyed
) -> tuple[Callable[[], Run], Callable[[Run, int], Run]]:
    """Return functions that start a fit over blocks, and advance it to a step."""
    decode, first = rows.source.decode, rows.first
    batches = _BatchReader(plan, key, rows)

    def evaluate_once(run):
        if plan.batch_size is None:
            return _evaluate_blocks(plan, key, params, rows, run)
        batch = batches.read(int(run.step))
        parts = (first, rows.sample, batch)
        return _evaluate_batch(decode, plan, key, run, params, parts)

    def begin():
        run = _start(decode, plan, key, params, first)
        if not plan.is_linear:
            return run
        _, gradient, _ = _add_blocks(plan, rows, run.params, run.context)
        return run._replace(row_gradient=gradient)

    def advance(run, limit):
        while not (is_over_on_host(plan, run) or int(run.step) >= limit):
            if run.round_ended:
                run = _begin_round(decode, plan, key, run, params, first)
            run = evaluate_once(run)
        return run

    return begin, advance


def prepared_block(
    objective: Objective, params: Params, decode: Any, block: Block | Data
) -> Data:
    """Return the rows of a block for `objective`, in the dtype of the parameters."""
    dtype = float_dtype(params)
    data = objective.prepare(params, Data(decode(block.x), block.weights))

    def convert(leaf):
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(dtype) if floating else leaf

    return jax.tree.map(convert, data)


def check_out_of_core(
    key: PRNGKeyArray, objective: Objective, params: Params, rows: Surveyed
) -> None:
    """Raise if an objective needs all rows at once, or stores something per row."""
    decode = rows.source.decode
    first = jax.eval_shape(
        partial(prepared_block, objective, params, decode), rows.first
    )
    if has_statistic(objective, params, first.x):
        raise ValueError(
            f"{type(objective).__name__} adds a function of all rows together, which "
            "cannot be computed block by block; try rows in memory"
        )

    def context(key):
        data = prepared_block(objective, params, decode, rows.first)
        initial = objective.init(key, params, data)
        return objective.refresh(key, params, data, initial)

    if jax.tree.leaves(jax.eval_shape(context, key).rows):
        raise ValueError(
            f"{type(objective).__name__} stores something for every row, such as "
            "latents, sampled moves or energies, which is not possible for out-of-core "
            "data; try rows in memory, or an objective that stores nothing, such as "
            "PseudoLikelihood or MPF over BitFlips"
        )


@partial(jax.jit, static_argnums=0)
def _start(decode, plan, key, params, first):
    data = prepared_block(plan.objective, params, decode, first)
    return start(_without_batches(plan), key, params, data)


@partial(jax.jit, static_argnums=0, donate_argnums=3)
def _begin_round(decode, plan, key, run, params, first):
    data = prepared_block(plan.objective, params, decode, first)
    return begin_round(_without_batches(plan), key, run, params, data)


def _without_batches(plan: RoundsPlan) -> RoundsPlan:
    """Return the plan without minibatches, which are read from the blocks here."""
    return dataclasses.replace(plan, batch_size=None, rows_per_round=None)


def _evaluate_blocks(plan, key, params, rows, run):
    """Evaluate the loss on all blocks, and continue with the optimisation."""
    decode, total = rows.source.decode, None
    if run.row_gradient is None:
        point = _asked_params(plan, run, params)
        total = _add_blocks(plan, rows, point, run.context)
    parts = (rows.first, rows.sample, np.float64(sum(rows.weights)))
    return _tell_total(decode, plan, key, run, params, parts, total)


def _add_blocks(plan, rows, params, context):
    """Compute the total of all blocks."""
    total = empty_total(params, float_dtype(params))
    for block in same_blocks(rows):
        on_device = put_rows(block)
        # Wait for the previous block, so that at most two are in memory.
        jax.block_until_ready(total)
        total = _add(rows.source.decode, plan, params, context, on_device, total)
    return total


@jax.jit
def _asked_params(plan, run, params):
    """Return the parameters at which the loss is needed next."""
    coordinates = coordinates_of(plan, params)
    return coordinates.params(coordinates.method.ask(run.method))


@partial(jax.jit, static_argnums=0, donate_argnums=5)
def _add(decode, plan, params, context, block, total):
    data = prepared_block(plan.objective, params, decode, block)
    value, gradient = loss_over_rows(
        plan.objective, params, data, context.rows, chunk_size=plan.chunk_size
    )
    new = (value, gradient, block.weights.sum().astype(value.dtype))
    return merged(plan.objective.reduce, total, new)


@partial(jax.jit, static_argnums=0, donate_argnums=3)
def _tell_total(decode, plan, key, run, params, parts, total):
    """Return the run after an evaluation of the loss on all blocks.

    Args:
        parts: first block, sample of the rows of all blocks, and their total weight.
        total: total of all blocks; None if the loss over rows is linear.
    """
    first, sample, weight = parts
    coordinates = coordinates_of(plan, params)
    point, key = coordinates.method.ask(run.method), step_key(key, run)
    data = prepared_block(plan.objective, params, decode, first)
    context = moved_states(plan, coordinates, key, point, data, run.context)
    problem = Problem(_refuse_line_search, None, chart_inverse(plan, coordinates))

    def over_rows(params):
        if total is None:
            return linear_loss(run.row_gradient, params)
        return total[:2]

    found = evaluate_with(plan, coordinates, problem, context, point, over_rows)
    rows = None
    if has_distance(plan) or is_stochastic(plan):
        rows = prepared_block(plan.objective, params, decode, sample)
        rows = RowSample(rows, context.rows, jnp.asarray(weight, found.value.dtype))
    if is_stochastic(plan):
        of_rows: Any = rows
        found = with_metric(plan, coordinates, key, lambda: of_rows, found)
        rows = None
    run = tell(plan, coordinates, run._replace(context=context), data, rows, found)
    return finish_piece(coordinates, run)


def _refuse_line_search(point: PyTree) -> NoReturn:
    raise ValueError(
        "an optimizer with a line search needs all rows in memory, got Blocks; try "
        "optimizer=None for L-BFGS, which works with blocks"
    )


class _BatchReader:
    """Minibatches by the number of their step.

    They are read as one stream, which is opened again if a step other than the next is
    requested, so that a batch depends only on the number of its step.
    """

    def __init__(self, plan, key, rows):
        self.plan, self.key, self.rows = plan, key, rows
        self.next_step, self.stream = None, iter(())

    def read(self, step):
        if step != self.next_step:
            self.stream = _batches(self.plan, self.key, self.rows, step)
        self.next_step = step + 1
        return next(self.stream)


def _batches(plan, key, rows, num_done) -> Iterator[PyTree]:
    """Yield `batch_size` rows at a time, as they are stored, without end.

    Passes over the blocks follow each other in one stream, and a batch starts where the
    previous one ended, in any block. The stream starts after `num_done` batches.
    """
    size, count = plan.batch_size, sum(rows.counts)
    stream_key = jax.random.fold_in(key, _BATCH_KEY)
    first_pass, num_skipped = divmod(num_done * size, count)
    left = None
    for number in itertools.count(first_pass):
        pass_key = jax.random.fold_in(stream_key, number)
        for new in _pass(pass_key, rows, count, num_skipped):
            left = new if left is None else jax.tree.map(_joined, left, new)
            while len(jax.tree.leaves(left)[0]) >= size:
                yield jax.tree.map(lambda leaf: leaf[:size], left)
                left = jax.tree.map(lambda leaf: leaf[size:], left)
        num_skipped = 0


def _pass(key, rows, count, num_skipped) -> Iterator[PyTree]:
    """Yield `count` rows except the first `num_skipped`, a part of each block.

    Rows are selected by systematic sampling over all blocks: the number of copies of a
    row differs from its share of the weight by less than one. The selected rows of a
    block come in random order.
    """
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    offset = np.random.default_rng(seed).random()
    step = sum(rows.weights) / count
    first, before = 0, 0.0
    for i, block in enumerate(same_blocks(rows)):
        after = before + rows.weights[i]
        last = int(np.clip(np.ceil(after / step - offset), first, count))
        last = count if not any(rows.weights[i + 1 :]) else last
        if last > max(first, num_skipped):
            # Seeded by the block's number, so that skipped blocks change nothing.
            generator = np.random.default_rng([*seed, i])
            order = generator.permutation(len(block.weights))
            ends = before + np.cumsum(block.weights[order], dtype=float)
            levels = (np.arange(first, last) + offset) * step
            # Rounding must not lead beyond the last row that has weight.
            levels = np.minimum(levels, np.nextafter(ends[-1], -np.inf))
            chosen = order[np.searchsorted(ends, levels, side="right")]
            new = generator.permutation(chosen)[max(0, num_skipped - first) :]
            yield jax.tree.map(lambda leaf, new=new: leaf[new], block.x)
        first, before = last, after


def _joined(first, second):
    return np.concatenate([first, second])


@partial(jax.jit, static_argnums=0, donate_argnums=3)
def _evaluate_batch(decode, plan, key, run, params, parts):
    """Return the run after an evaluation of the loss on one minibatch.

    Args:
        parts: first block, sample of the rows of all blocks, and states of the batch.
    """
    first, sample, x = parts
    coordinates = coordinates_of(plan, params)
    # Rows were selected in proportion to their weights, so that they count equally.
    batch = prepared_block(plan.objective, params, decode, Data(x))
    point, key = coordinates.method.ask(run.method), step_key(key, run)
    context = moved_states(plan, coordinates, key, point, batch, run.context)
    found = evaluate(plan, coordinates, batch, context, point)
    if is_stochastic(plan):

        def of_rows():
            rows = prepared_block(plan.objective, params, decode, sample)
            return row_sample(rows, context.rows)

        found = with_metric(plan, coordinates, key, of_rows, found)
    data = prepared_block(plan.objective, params, decode, first)
    run = tell(plan, coordinates, run._replace(context=context), data, None, found)
    return finish_piece(coordinates, run)
