"""A fit over blocks of rows: the rounds of `probjax.rounds`, evaluated by passes.

The descent asks for the loss at a point, a pass over all blocks adds it up with its
gradient exactly (see `probjax.rows`), and the descent is told: the same steps as with
the rows in memory, but for rounding. While one block is worked on the next is read. On
the mesh of the context (see `probjax.devices`) each device has its part of a block.

Minibatches are cut from one block after the other. Blocks come in their own order, the
rows of each are dealt in random order, anew in every pass.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from probjax.batches import shuffle, take
from probjax.blocks import Block, Surveyed, same_blocks
from probjax.checkpoint import Kept
from probjax.descent import Problem
from probjax.devices import placed
from probjax.rounds import (
    Plan,
    Progress,
    Run,
    after_piece,
    begin_round,
    is_over,
    problem_of,
    progress,
    space_of,
    start,
    to_params,
    told,
    with_the_rest,
)
from probjax.rows import loss_over_rows, merged, no_rows
from probjax.types import (
    Array,
    Data,
    Objective,
    Params,
    PRNGKeyArray,
    PyTree,
    float_dtype,
)


def run_over_blocks(
    plan: Plan,
    key: PRNGKeyArray,
    params: Params,
    known: Surveyed,
    callback: Callable[[Progress], Any] | None,
    every: int,
    kept: Kept,
) -> tuple[Run, Params]:
    """All rounds, and the parameters they lead to."""
    decode, first = known.source.decode, known.first
    run = kept.begin(lambda: _start(decode, plan, key, params, first))
    step = _full_steps(plan, params, known)
    if plan.batch_size is not None:
        step = _batch_steps(plan, key, params, known, int(run.step))
    while not is_over(plan, run):
        if run.ended:
            run = _begin_round(decode, plan, key, run, params, first)
        limit = (int(run.round_step) // every + 1) * every
        while not (run.ended or run.stopped or run.round_step >= limit):
            run = step(run)
        run = after_piece(plan, run, params, callback, kept)
    kept.keep(run, last=True)
    return run, progress(plan, run, params).params


def prepared(
    objective: Objective, params: Params, decode: Any, block: Block | Data
) -> Data:
    """Rows of a block as the objective wants them, of the parameters' kind."""
    kind = float_dtype(params)
    data = objective.prepare(params, Data(decode(block.x), block.weights))

    def convert(leaf):
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(kind) if floating else leaf

    return jax.tree.map(convert, data)


def check_context(
    key: PRNGKeyArray, objective: Objective, params: Params, known: Surveyed
) -> None:
    """Refuse an objective that needs to know of all rows at once."""
    if hasattr(objective, "of_mean"):
        raise ValueError(
            f"{type(objective).__name__} adds a function of all rows together, which "
            "rows read in blocks never are: fit it to rows in memory"
        )

    def context(key):
        data = prepared(objective, params, known.source.decode, known.first)
        begun = objective.init(key, params, data)
        return objective.refresh(key, params, data, begun)

    if jax.tree.leaves(jax.eval_shape(context, key).rows):
        raise ValueError(
            f"{type(objective).__name__} as it is keeps something for every row, as "
            "latents, moves that were drawn or energies, which cannot be kept for rows "
            "that do not fit: fit it to rows in memory, or take an objective that "
            "keeps nothing, as MPF over BitFlips or PseudoLikelihood"
        )


@partial(jax.jit, static_argnums=0)
def _start(decode, plan, key, params, first):
    data = prepared(plan.objective, params, decode, first)
    return start(_of_all_rows(plan), key, params, data)


@partial(jax.jit, static_argnums=0)
def _begin_round(decode, plan, key, run, params, first):
    data = prepared(plan.objective, params, decode, first)
    return begin_round(_of_all_rows(plan), key, run, params, data)


def _of_all_rows(plan: Plan) -> Plan:
    """The plan without minibatches, which are not dealt from one deck here."""
    return dataclasses.replace(plan, batch_size=None)


def _full_steps(plan, params, known):
    """What evaluates the loss on all blocks, and tells the run."""
    decode = known.source.decode

    def step(run):
        here = _where(plan, run, params)
        total = no_rows(here, float_dtype(here))
        for block in same_blocks(known):
            mine = placed(block)
            before, total = total, _add(decode, plan, here, run.context, mine, total)
            # No more than two under way, or all blocks would wait in memory.
            jax.block_until_ready(before)
        return _told(decode, plan, run, params, known.first, total)

    return step


@jax.jit
def _where(plan, run, params):
    space = space_of(plan, params)
    return space.params(space.method.where(run.method))


@partial(jax.jit, static_argnums=0)
def _add(decode, plan, params, context, block, total):
    data = prepared(plan.objective, params, decode, block)
    value, gradient = loss_over_rows(
        plan.objective, params, data, context.rows, chunk_size=plan.chunk_size
    )
    new = (value, gradient, block.weights.sum().astype(value.dtype))
    return merged(plan.objective.reduce, total, new)


@partial(jax.jit, static_argnums=0)
def _told(decode, plan, run, params, first, total):
    space = space_of(plan, params)
    point = space.method.where(run.method)
    shared = run.context.shared
    value, gradient = with_the_rest(plan, space, shared, point, lambda _: total[:2])
    problem = Problem(_not_at_hand, None, to_params(plan, space))
    data = prepared(plan.objective, params, decode, first)
    return told(plan, space, run, params, data, problem, value, gradient)


def _not_at_hand(point: PyTree) -> NoReturn:
    raise ValueError(
        "an optimizer that searches along lines needs all rows in memory: leave it out "
        "for L-BFGS, which does not"
    )


def _batch_steps(plan, key, params, known, done):
    """What takes a step on the next minibatch, the first `done` of them passed over."""
    batches = _batches(plan, key, known, done)

    def step(run):
        return _step(known.source.decode, plan, run, params, *next(batches))

    return step


def _batches(plan, key, known, done) -> Iterator[tuple[Block, Array, int]]:
    """Blocks without end, with the rows of each in the order in which they are dealt,
    and the place of the batch among them.
    """
    size = plan.batch_size
    deal_key = jax.random.fold_in(key, np.uint32(2**32 - 1))
    counts = [max(1, rows // size) if rows else 0 for rows in known.counts]
    passes, done = divmod(done, sum(counts))
    for number in itertools.count(passes):
        for i, block in enumerate(same_blocks(known)):
            if done < counts[i]:
                deal = _each_once if _is_plain(block, size) else _by_weight
                dealt = jax.random.fold_in(deal_key, number * len(counts) + i)
                held, order = placed(block), deal(dealt, block.weights)
                for place in range(done, counts[i]):
                    yield held, order, place
            done = max(0, done - counts[i])


def _is_plain(block, size):
    """Whether rows count alike, and are enough for a batch; else some are repeated."""
    there = np.count_nonzero(block.weights)
    return there >= size and np.all(block.weights[block.weights > 0] == 1)


@jax.jit
def _by_weight(key, weights):
    return shuffle(key, weights, len(weights))


@jax.jit
def _each_once(key, weights):
    order = shuffle(key, None, len(weights))
    # What was padded comes last, where no batch begins.
    return order[jnp.argsort(weights[order] == 0, stable=True)]


@partial(jax.jit, static_argnums=0)
def _step(decode, plan, run, params, block, order, place):
    space = space_of(plan, params)
    size = plan.batch_size
    chosen = jax.lax.dynamic_slice_in_dim(order, place * size, size)
    # Dealt in proportion to their weights, so that they count equally.
    batch = Data(take(block.x, chosen))
    rows = prepared(plan.objective, params, decode, batch)
    problem, evaluate = problem_of(plan, space, rows, run.context)
    value, gradient = evaluate(space.method.where(run.method))
    return told(plan, space, run, params, rows, problem, value, gradient)
