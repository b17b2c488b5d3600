"""A fit over blocks of rows: the rounds of `probjax.rounds`, evaluated by passes.

The descent asks for the loss at a point, a pass over all blocks adds it up with its
gradient exactly (see `probjax.rows`), and the descent is told: the same steps as with
the rows in memory, but for rounding. While one block is worked on the next is read. On
the mesh of the context (see `probjax.devices`) each device has its part of a block.

Minibatches are cut from one block after the other, a batch beginning where the last one
ended. Blocks come in their own order, the rows of each in random order, anew in every
pass, and as often as their weights ask.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

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
        rows = next(batches)
        return _step(known.source.decode, plan, run, params, known.first, rows)

    return step


def _batches(plan, key, known, done) -> Iterator[PyTree]:
    """Rows as they are stored, `batch_size` at a time and without end.

    They are one stream: passes follow each other, and a batch takes up where the last
    one ended, in whatever block that is, so that the first `done` need not be dealt.
    """
    size, count = plan.batch_size, sum(known.counts)
    deal_key = jax.random.fold_in(key, np.uint32(2**32 - 1))
    begun, skipped = divmod(done * size, count)
    left = None
    for number in itertools.count(begun):
        pass_key = jax.random.fold_in(deal_key, number)
        for dealt in _pass(pass_key, known, count, skipped):
            left = dealt if left is None else jax.tree.map(_joined, left, dealt)
            while len(jax.tree.leaves(left)[0]) >= size:
                yield jax.tree.map(lambda leaf: leaf[:size], left)
                left = jax.tree.map(lambda leaf: leaf[size:], left)
        skipped = 0


def _pass(key, known, count, skipped) -> Iterator[PyTree]:
    """`count` rows, each as often as its weight asks, all but the first `skipped`.

    A comb of equal steps over the weights of all blocks laid end to end: no row strays
    from its share by more than one. Those of a block come in random order.
    """
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    offset = np.random.default_rng(seed).random()
    step = sum(known.weights) / count
    first, before = 0, 0.0
    for i, block in enumerate(same_blocks(known)):
        after = before + known.weights[i]
        last = int(np.clip(np.ceil(after / step - offset), first, count))
        last = count if not any(known.weights[i + 1 :]) else last
        if last > max(first, skipped):
            # By its number, so that it is the same whether or not others were skipped.
            generator = np.random.default_rng([*seed, i])
            order = generator.permutation(len(block.weights))
            ends = before + np.cumsum(block.weights[order], dtype=float)
            teeth = (np.arange(first, last) + offset) * step
            # Rounding must not lead beyond the last row of any weight.
            teeth = np.minimum(teeth, np.nextafter(ends[-1], -np.inf))
            chosen = order[np.searchsorted(ends, teeth, side="right")]
            dealt = generator.permutation(chosen)[max(0, skipped - first) :]
            yield jax.tree.map(lambda leaf, dealt=dealt: leaf[dealt], block.x)
        first, before = last, after


def _joined(first, second):
    return np.concatenate([first, second])


@partial(jax.jit, static_argnums=0)
def _step(decode, plan, run, params, first, x):
    space = space_of(plan, params)
    # Dealt in proportion to their weights, so that they count equally.
    rows = prepared(plan.objective, params, decode, Data(x))
    problem, evaluate = problem_of(plan, space, rows, run.context)
    value, gradient = evaluate(space.method.where(run.method))
    data = prepared(plan.objective, params, decode, first)
    return told(plan, space, run, params, data, problem, value, gradient)
