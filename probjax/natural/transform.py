"""The natural gradient, G^-1 times the gradient, as an optax transformation.

Steps of it do not depend on how a model is parametrised, and directions in which the
model hardly changes are taken as far as others. It stands in a chain like any other:

    optax.chain(natural_gradient(energy_scores(energy)), optax.sgd(0.5))

With momentum, the direction u minimises its distance in G from the plain solution and,
by the damping, from m times the one before (SPRING):

    (G + d) u = gradient + d m u_before.

Any positive definite matrix in place of G^-1 leads downhill, if steps are short enough:
a metric of few rows wants more damping, or clipping. Line searches want true gradients,
and belong into the whitened coordinates of `probjax.natural.whitening`.

Reference: thesis, "The natural gradient in theta"; Goldshlager, Abrahamsen and Lin,
J. Comput. Phys. 516, 113351 (2024) for the momentum. W'W: Amari, Cichocki and Yang,
NIPS 8 (1996).
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from probjax import exact
from probjax.data import as_data
from probjax.data import num_rows as count_rows
from probjax.natural.linear import Table, linearised
from probjax.natural.scores import AnyScores, Metric, Scores, as_scores
from probjax.natural.solves import (
    ConjugateGradient,
    Dense,
    LowRank,
    Report,
    Ridge,
    Structure,
    as_regulariser,
)
from probjax.potential import potential
from probjax.types import (
    Array,
    Data,
    Energy,
    Params,
    PRNGKeyArray,
    PyTree,
    Sampler,
    check_count,
    float_dtype,
    is_concrete,
)

Rows = Callable[[PRNGKeyArray, Params, Data], PyTree | Data]


class NaturalState(NamedTuple):
    """What `natural_gradient` keeps from step to step.

    >>> def ours(params, data):
    ...     return jnp.diag(jnp.array([1.0, 4.0]))
    >>> transform = natural_gradient(Metric(ours), damping=0.0)
    >>> params = jnp.zeros(2)
    >>> _, state = transform.update(params, transform.init(params), params, data=params)
    >>> int(state.step), round(float(state.report.condition), 3)
    (1, 4.0)
    """

    step: Array
    """How many there were."""
    factor: PyTree
    """The inverse of the metric, where it serves several steps."""
    direction: PyTree
    """The natural gradient of the step before, for momentum."""
    report: Report
    """Rank and condition of the last metric that was inverted."""


def natural_gradient(
    scores: AnyScores | Callable[[Params, Data], Array],
    *,
    damping: Any = 1e-2,
    centred: bool | None = None,
    solve: Structure = Dense(),
    momentum: float = 0.0,
    every: int = 1,
    rows: Rows | None = None,
    num_rows: int | None = None,
    chunk_size: int | None = None,
    key: PRNGKeyArray | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Replace gradients by G^-1 times them.

    `fit(..., optimizer=optax.chain(natural_gradient(...), optax.sgd(0.5)))` gives it
    the rows of each step; elsewhere call `update(..., data=rows)`.

    Args:
        scores: what G is made of: `energy_scores(energy)`, or a function of params and
            data that returns `(row, n)`.
        damping: a share of the mean diagonal of G to add to it, or a schedule of it;
            or `Robust()` or `PseudoInverse()`.
        centred: whether the mean score is taken off; None as `scores` have it, which is
            so for energies and functions.
        solve: `Dense()`, `Blocks()`, `Diagonal()`, `LowRank()`, `ConjugateGradient()`.
        momentum: how much of the direction before is kept where G says little, as 0.9.
        every: how many steps a metric serves.
        rows: `rows(key, params, data)`, what G is averaged over in place of the data:
            `states_of(energy)`, `draws_of(energy, sampler, num_steps=10)`, or one's
            own. Fresh draws at every step.
        num_rows: only this many of the rows that are given, evenly spaced, or where
            their weights are.
        chunk_size: rows whose scores are held at a time; None for as many as need not
            much memory, with `LowRank()` up to 2^27 numbers.
        key: for `rows`.

    >>> def ours(params, data):
    ...     return jnp.diag(jnp.array([1.0, 4.0]))
    >>> transform = natural_gradient(Metric(ours), damping=0.0)
    >>> params, gradient = jnp.zeros(2), jnp.array([1.0, 8.0])
    >>> state = transform.init(params)
    >>> natural, _ = transform.update(gradient, state, params, data=jnp.zeros((1, 2)))
    >>> natural.round().tolist()
    [1.0, 2.0]
    """
    scores = as_scores(scores, centred)
    if isinstance(solve, type) or not hasattr(solve, "factor"):
        raise ValueError(f"solve must be as Dense() or LowRank(), got {solve}")
    schedule: Any = damping if callable(damping) else None
    regulariser = Ridge() if schedule is not None else as_regulariser(damping)
    check_count("every", every)
    if num_rows is not None:
        check_count("num_rows", num_rows)
    _check_options(scores, regulariser, solve, momentum, every, num_rows, rows, key)

    def factor(params, data, step, to_params):
        here = params if to_params is None else to_params(params)
        data = _thinned(as_data(data), num_rows)
        if rows is not None and key is not None:
            data = as_data(rows(jax.random.fold_in(key, step), here, data))
        mine = scores if to_params is None else _in_coordinates(scores, to_params)
        tamed = regulariser if schedule is None else Ridge(schedule(step))
        if isinstance(solve, Dense):
            _check_rank(mine, tamed, params, data)
        linear = linearised(mine, params, data, chunk_size=chunk_size)
        return solve.factor(linear, params, tamed)

    def init(params):
        unknown = jnp.full((), jnp.nan, float_dtype(params))
        return NaturalState(
            jnp.zeros((), int),
            _template(solve, regulariser, params, num_rows) if every > 1 else None,
            jax.tree.map(jnp.zeros_like, params) if momentum else None,
            Report(unknown, unknown),
        )

    def update(updates, state, params=None, *, data=None, to_params=None, **extra):
        del extra
        _check_update(updates, params, data)
        fresh = partial(factor, params, data, state.step, to_params)
        if every == 1:
            now = fresh()
        else:
            _check_kept(jax.eval_shape(fresh), state.factor)
            due = state.step % every == 0
            now = jax.lax.cond(due, fresh, lambda: state.factor)
        if momentum:
            pull = now.damped(state.direction)
            updates = jax.tree.map(lambda g, p: g + momentum * p, updates, pull)
        direction = now.solve(updates)
        return direction, NaturalState(
            state.step + 1,
            now if every > 1 else None,
            direction if momentum else None,
            now.report,
        )

    return optax.GradientTransformationExtraArgs(init, update)


def relative_gradient() -> optax.GradientTransformation:
    """Gradients of square matrices W times W'W; those of vectors are left alone.

    The metric is the one that multiplying W by any regular matrix from the right does
    not change, and costs two products in place of an inverse. Made for ICA.

    >>> transform, params = relative_gradient(), jnp.array([[2.0, 0.0], [0.0, 3.0]])
    >>> updates, _ = transform.update(jnp.eye(2), transform.init(params), params)
    >>> updates.tolist()
    [[4.0, 0.0], [0.0, 9.0]]
    """

    def update(updates, state, params=None):
        if params is None:
            raise ValueError(
                "relative_gradient needs the parameters: update(.., params)"
            )
        return jax.tree.map(_relative, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def states_of(energy: Energy, *, num_states: int = 2) -> Rows:
    """Rows for `natural_gradient`: every state of a small model, by its probability.

    >>> from probjax import ising
    >>> rows, flat = states_of(ising.energy), ising.from_matrix([[0, 0], [0, 0]])
    >>> found = rows(jax.random.key(0), flat, Data(jnp.zeros((1, 2))))
    >>> found.x.shape, [round(float(p), 3) for p in found.weights]
    ((4, 2), [0.25, 0.25, 0.25, 0.25])
    """

    def rows(key, params, data):
        size = jax.tree.leaves(data.x)[0].shape[1]
        states = exact.states(size, num_states=num_states)
        log_p = exact.log_probs(energy, params, size, num_states=num_states)
        return Data(states, jnp.exp(log_p))

    return rows


def draws_of(energy: Energy, sampler: Sampler, *, num_steps: int) -> Rows:
    """Rows for `natural_gradient`: chains of a sampler, each from a row of the data.

    With few steps they are between data and model, which is good enough for a metric.

    >>> from probjax import HeatBath, ising
    >>> rows = draws_of(ising.energy, HeatBath(), num_steps=2)
    >>> params = ising.from_matrix([[50, 0], [0, -50]])
    >>> rows(jax.random.key(0), params, Data(jnp.zeros((3, 2)))).x.tolist()
    [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    """
    check_count("num_steps", num_steps)

    def rows(key, params, data):
        model = potential(energy, params)
        x = sampler.prepare(model, data.x)

        def chain(key, x):
            def step(k, state):
                return sampler.step(jax.random.fold_in(key, k), model, state)[0]

            start = sampler.init(jax.random.fold_in(key, num_steps), model, x)
            return jax.lax.fori_loop(0, num_steps, step, start).x

        keys = jax.random.split(key, count_rows(data))
        return data._replace(x=jax.vmap(chain)(keys, x))

    return rows


def _in_coordinates(scores, to_params):
    """The scores of a fit that descends in the coordinates of a chart."""
    if not isinstance(scores, Scores):
        raise ValueError(
            "scores that are given for all rows know nothing of a chart: use "
            "energy_scores, or no chart"
        )

    def function(point, x):
        return scores.function(to_params(point), x)

    return dataclasses.replace(scores, function=function)


def _thinned(data, count):
    total = count_rows(data)
    if count is None or count == total:
        return data
    if count > total:
        raise ValueError(f"num_rows must be at most the {total} rows, got {count}")
    if data.weights is None:
        places = np.arange(count) * total // count
        return jax.tree.map(lambda leaf: leaf[places.astype(np.int32)], data)
    # As often as they weigh, and all alike.
    ends = jnp.cumsum(data.weights)
    levels = (jnp.arange(count) + 0.5) / count * ends[-1]
    places = jnp.searchsorted(ends, levels, side="right")
    mask = None if data.mask is None else jax.tree.map(lambda m: m[places], data.mask)
    return Data(jax.tree.map(lambda leaf: leaf[places], data.x), mask=mask)


def _template(solve, regulariser, params, num_rows):
    """Zeros of the form that a kept factor has."""

    def factor():
        count = num_rows or 1
        rows = jax.tree.map(lambda p: jnp.zeros((count, *p.shape), p.dtype), params)
        return solve.factor(Table(rows), params, regulariser)

    return jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(factor)
    )


def _relative(gradient, matrix):
    if jnp.ndim(matrix) < 2:
        return gradient
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"relative_gradient is for square matrices, got shape {matrix.shape}"
        )
    return gradient @ matrix.T @ matrix


def _check_options(scores, regulariser, solve, momentum, every, num_rows, rows, key):
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be from 0 to below 1, got {momentum}")
    if momentum and not isinstance(regulariser, Ridge):
        raise ValueError("momentum acts by the damping: give a number for damping")
    if isinstance(scores, Metric) and isinstance(solve, LowRank):
        raise ValueError("a metric given as a matrix has no rows: use Dense()")
    if rows is not None and key is None:
        raise ValueError("rows are drawn anew at each step: give a key")
    if every == 1:
        return
    if isinstance(solve, ConjugateGradient):
        raise ValueError(
            "conjugate gradients keep no inverse that could serve several steps: "
            "leave every=1, or use another structure"
        )
    if isinstance(solve, LowRank) and num_rows is None:
        raise ValueError(
            "LowRank keeps the scores of its rows for several steps: say how many by "
            "num_rows"
        )


def _check_update(updates, params, data):
    if params is None or data is None:
        raise ValueError(
            "natural_gradient needs parameters and rows: update(gradient, state, "
            "params, data=rows), as fit does"
        )
    forms = [jax.tree.structure(tree) for tree in (updates, params)]
    shapes = [list(map(jnp.shape, jax.tree.leaves(tree))) for tree in (updates, params)]
    if forms[0] != forms[1] or shapes[0] != shapes[1]:
        raise ValueError(
            f"the gradient must be a tree like the parameters, {forms[1]} of shapes "
            f"{shapes[1]}, got {forms[0]} of shapes {shapes[0]}"
        )


def _check_rank(scores, regulariser, params, data):
    if isinstance(scores, Metric) or not isinstance(regulariser, Ridge):
        return
    if not is_concrete(regulariser.damping) or regulariser.damping > 0:
        return
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    outputs = 1
    if isinstance(scores, Scores):
        outputs = sum(scores.shape(params, data.x)) or 1
    rank = count_rows(data) * outputs - (1 if scores.centred else 0)
    if rank < size:
        raise ValueError(
            f"a metric of {size} parameters from {count_rows(data)} rows is singular: "
            "give damping, or PseudoInverse()"
        )


def _check_kept(new, kept):
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (new, kept)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "a metric that serves several steps must keep its form: num_rows must be "
            "that of the rows, whose scores must be numbers and few enough to be held"
        )
