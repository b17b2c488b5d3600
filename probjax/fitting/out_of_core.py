"""Out-of-core fits: `probjax.fitting.rounds`, evaluated by passes over blocks.

The descent asks for the loss at a point, and a pass over all blocks adds it up exactly
with its gradient (see `probjax.fitting.loss`): the steps are those with the rows in
memory, except for rounding. The next block is read while one is being evaluated. On the
mesh of the context (see `probjax.devices`) each device has its part of a block.

Minibatches are cut from one block after the other, and each batch begins where the last
one ended. Blocks come in their own order, the rows of each in a random order that is
drawn again in every pass, each row as often as its weight requires.
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
from probjax.fitting.descent import Problem
from probjax.fitting.loss import loss_over_rows, merged, no_rows
from probjax.fitting.rounds import (
    RoundsPlan,
    Run,
    at_rest,
    begin_round,
    has_ended,
    problem_of,
    space_of,
    start,
    tell,
    to_params,
    with_the_rest,
)
from probjax.interfaces import Objective, has_statistic
from probjax.trees import float_dtype
from probjax.types import Data, Params, PRNGKeyArray, PyTree


def out_of_core(
    plan: RoundsPlan, key: PRNGKeyArray, params: Params, known: Surveyed
) -> tuple[Callable[[], Run], Callable[[Run, int], Run]]:
    """Return what starts a fit over blocks of rows, and what advances it to a step."""
    decode, first = known.source.decode, known.first
    batches = _Batches(plan, key, known)

    def step(now):
        if plan.batch_size is None:
            return _full_step(plan, params, known, now)
        return _step(decode, plan, now, params, first, batches.at(int(now.step)))

    def advance(now, limit):
        while not (has_ended(plan, now) or int(now.step) >= limit):
            if now.ended:
                now = _begin_round(decode, plan, key, now, params, first)
            now = step(now)
        return now

    return partial(_start, decode, plan, key, params, first), advance


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
    first = jax.eval_shape(
        lambda block: prepared(objective, params, known.source.decode, block),
        known.first,
    )
    if has_statistic(objective, params, first.x):
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


def _of_all_rows(plan: RoundsPlan) -> RoundsPlan:
    """The plan without minibatches, which are not dealt from one deck here."""
    return dataclasses.replace(plan, batch_size=None, rows_per_round=None)


def _full_step(plan, params, known, run):
    """Evaluate the loss on all blocks, and tell the descent."""
    decode = known.source.decode
    here = _asked(plan, run, params)
    total = no_rows(here, float_dtype(here))
    for block in same_blocks(known):
        mine = put_rows(block)
        before, total = total, _add(decode, plan, here, run.context, mine, total)
        # At most two at a time, or all blocks would wait in memory.
        jax.block_until_ready(before)
    return _told(decode, plan, run, params, known.first, total)


@jax.jit
def _asked(plan, run, params):
    space = space_of(plan, params)
    return space.params(space.method.ask(run.method))


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
    point = space.method.ask(run.method)
    shared = run.context.shared
    value, gradient = with_the_rest(plan, space, shared, point, lambda _: total[:2])
    problem = Problem(_not_at_hand, None, to_params(plan, space))
    data = prepared(plan.objective, params, decode, first)
    return at_rest(
        space, tell(plan, space, run, params, data, problem, value, gradient)
    )


def _not_at_hand(point: PyTree) -> NoReturn:
    raise ValueError(
        "an optimizer that searches along lines needs all rows in memory: leave it out "
        "for L-BFGS, which does not"
    )


class _Batches:
    """Minibatches by the number of their step, read as one stream.

    The stream is opened where it is first asked for and again wherever it is not asked
    for the next one, so that it depends on the step alone.
    """

    def __init__(self, plan, key, known):
        self.plan, self.key, self.known = plan, key, known
        self.next, self.stream = None, iter(())

    def at(self, step):
        if step != self.next:
            self.stream = _batches(self.plan, self.key, self.known, step)
        self.next = step + 1
        return next(self.stream)


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
    value, gradient = evaluate(space.method.ask(run.method))
    data = prepared(plan.objective, params, decode, first)
    return at_rest(
        space, tell(plan, space, run, params, data, problem, value, gradient)
    )
