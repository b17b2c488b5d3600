"""The natural gradient, G^-1 times the gradient, as an optax transformation.

Its steps do not depend on how a model is parametrised, and descent is not slow along
directions that change the model little. It is used in a chain of transformations:

    optax.chain(natural_gradient(energy_scores(energy)), optax.sgd(0.5))

With momentum m and damping d, the direction u minimises the squared distance, measured
by G, from G^-1 times the gradient, plus d |u - m u_previous|^2 (SPRING):

    (G + d) u = gradient + d m u_previous.

Any positive definite matrix in place of G^-1 gives a descent direction, if steps are
short enough: a metric estimated from few rows needs more damping, or clipping. Line
searches need true gradients; use them in the whitened coordinates of
`probjax.natural.whitening`.

Reference: thesis, "The natural gradient in theta"; Goldshlager, Abrahamsen and Lin,
J. Comput. Phys. 516, 113351 (2024) for the momentum. W'W: Amari, Cichocki and Yang,
NIPS 8 (1996).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from probjax import exact
from probjax.checks import check_count
from probjax.data.rows import as_data, refuse_inputs
from probjax.data.rows import num_rows as count_rows
from probjax.interfaces import Sampler
from probjax.natural.factors import Report
from probjax.natural.metrics import metric_operator
from probjax.natural.operators import RowTable
from probjax.natural.regularisers import Regulariser, Ridge, as_regulariser
from probjax.natural.scores import MetricSource, as_scores
from probjax.natural.structures import Dense, Structure
from probjax.potential import potential
from probjax.samplers.adaptation import move_chains
from probjax.trees import first_row, float_dtype
from probjax.types import (
    Array,
    Data,
    Energy,
    Params,
    PRNGKeyArray,
    PyTree,
    map_states,
    split_inputs,
)

Rows = Callable[[PRNGKeyArray, Params, Data], PyTree | Data]
"""Function of a key, parameters and data that returns the rows of a metric."""


class NaturalState(NamedTuple):
    """State of `natural_gradient` between steps.

    >>> from probjax.natural import Metric
    >>> def ours(params, data):
    ...     return jnp.diag(jnp.array([1.0, 4.0]))
    >>> transform = natural_gradient(Metric(ours), damping=0.0)
    >>> params = jnp.zeros(2)
    >>> _, state = transform.update(params, transform.init(params), params, data=params)
    >>> int(state.step), round(float(state.report.condition), 3)
    (1, 4.0)
    """

    step: Array
    """Number of steps so far."""
    factor: PyTree
    """Inverse of the metric, if it is reused for several steps; otherwise None."""
    direction: PyTree
    """Natural gradient of the previous step; None without momentum."""
    report: Report
    """Rank and condition number of the last metric that was inverted."""


def natural_gradient(
    scores: MetricSource | Callable[[Params, Data], Array],
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
    """Return a transformation that multiplies gradients by the inverse metric G^-1.

    In `fit(..., optimizer=optax.chain(natural_gradient(...), optax.sgd(0.5)))`, it
    receives the rows of each step; elsewhere call `update(..., data=rows)`.

    Args:
        scores: definition of G: `energy_scores(energy)`, or a function of params and
            data that returns the scores `(row, n)`.
        damping: fraction of the mean diagonal of G that is added to the diagonal, or a
            schedule of such fractions; or a `Regulariser` such as `Robust()` or
            `PseudoInverse()`.
        centred: whether the mean score is subtracted; None for the default of `scores`,
            which is True for energies and for functions of params and data.
        solve: part of G that is inverted, and the algorithm: `Dense()`,
            `BlockDiagonal()`, `Diagonal()`, `LowRank()`, `ConjugateGradient()`, or a
            user's `Structure`.
        momentum: fraction of the previous direction that is kept where the metric is
            small compared with its damping, such as 0.9; from 0 to below 1.
        every: number of steps for which a metric is used.
        rows: function `rows(key, params, data)` that returns the rows over which G is
            averaged, in place of the data: `states_of(energy)`,
            `draws_of(energy, sampler, num_steps=10)`, or a user's function. It is
            called for every metric.
        num_rows: number of rows of the data that are used, or passed to `rows`: evenly
            spaced rows, or rows selected in proportion to their weights. None for all.
        chunk_size: rows whose scores are computed at a time; None for as many as need
            moderate memory, with `LowRank()` up to 2^27 numbers.
        key: for `rows`; required with it.

    >>> from probjax.natural import Metric
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
    if not isinstance(solve, Structure):
        raise ValueError(
            "solve must be an instance of a class that inherits from "
            f"natural.Structure, got {solve!r}; try Dense() or LowRank()"
        )
    schedule = _schedule(damping)
    regulariser = as_regulariser(damping) if schedule is None else Ridge()
    check_count("every", every)
    if num_rows is not None:
        check_count("num_rows", num_rows)
    _check_options(scores, regulariser, solve, momentum, every, num_rows, rows, key)

    def factor(params, data, step, to_params):
        # With a chart, `params` are coordinates.
        model_params = params if to_params is None else to_params(params)
        data = _selected_rows(as_data(data), num_rows)
        if rows is not None and key is not None:
            data = as_data(rows(jax.random.fold_in(key, step), model_params, data))
        source = scores if to_params is None else _in_coordinates(scores, to_params)
        current = regulariser if schedule is None else Ridge(schedule(step))
        if solve.needs_full_rank and current.is_exact():
            _check_rank(source, params, data)
        linear = metric_operator(source, params, data, chunk_size=chunk_size)
        return solve.factor(linear, params, current)

    def init(params):
        unknown = jnp.zeros((), float_dtype(params))
        return NaturalState(
            jnp.zeros((), int),
            _template(solve, regulariser, params, num_rows) if every > 1 else None,
            jax.tree.map(jnp.zeros_like, params) if momentum else None,
            Report(unknown, unknown),
        )

    def update(updates, state, params=None, *, data=None, to_params=None, **extra):
        del extra
        _check_update(updates, params, data)
        new_factor = partial(factor, params, data, state.step, to_params)
        if every == 1:
            inverse = new_factor()
        else:
            _check_shapes(jax.eval_shape(new_factor), state.factor)
            is_due = state.step % every == 0
            inverse = jax.lax.cond(is_due, new_factor, lambda: state.factor)
        if momentum:
            pull = inverse.damped(state.direction)
            updates = jax.tree.map(lambda g, p: g + momentum * p, updates, pull)
        direction = inverse.solve(updates)
        dtype = state.report.rank.dtype
        return direction, NaturalState(
            state.step + 1,
            inverse if every > 1 else None,
            direction if momentum else None,
            Report(*[jnp.asarray(value, dtype) for value in inverse.report]),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def relative_gradient() -> optax.GradientTransformation:
    """Return a transformation of gradients of square matrices W to gradient W'W.

    Gradients of vectors and numbers are not changed. The metric is invariant under
    multiplication of W from the right by any regular matrix, and costs two products
    instead of an inverse. It is meant for ICA.

    >>> transform, params = relative_gradient(), jnp.array([[2.0, 0.0], [0.0, 3.0]])
    >>> updates, _ = transform.update(jnp.eye(2), transform.init(params), params)
    >>> updates.tolist()
    [[4.0, 0.0], [0.0, 9.0]]
    """

    def update(updates, state, params=None):
        if params is None:
            raise ValueError(
                "relative_gradient needs the parameters, got None; try "
                "update(gradient, state, params)"
            )
        return jax.tree.map(_relative, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def states_of(energy: Energy, *, num_states: int = 2) -> Rows:
    """Return rows for `natural_gradient`: all states of a small model.

    Each state is weighted by its probability, so that the metric is exact.

    Args:
        num_states: number of values of each site, 0 to num_states - 1.

    >>> from probjax import ising
    >>> rows, flat = states_of(ising.energy), ising.from_matrix([[0, 0], [0, 0]])
    >>> found = rows(jax.random.key(0), flat, Data(jnp.zeros((1, 2))))
    >>> found.x.shape, [round(float(p), 3) for p in found.weights]
    ((4, 2), [0.25, 0.25, 0.25, 0.25])
    """

    def rows(key, params, data):
        refuse_inputs(data.x, "states are enumerated without inputs")
        size = jax.tree.leaves(data.x)[0].shape[1]
        states = exact.states(size, num_states=num_states)
        log_p = exact.log_probs(energy, params, size, num_states=num_states)
        return Data(states, jnp.exp(log_p))

    return rows


def draws_of(energy: Energy, sampler: Sampler, *, num_steps: int) -> Rows:
    """Return rows for `natural_gradient`: states of Markov chains.

    Each chain starts at a row of the data. With few steps, its distribution is between
    those of the data and of the model, which is sufficient for a metric.

    Args:
        sampler: a sampler of the states of the model.
        num_steps: number of steps of each chain.

    >>> from probjax import HeatBath, ising
    >>> rows = draws_of(ising.energy, HeatBath(), num_steps=2)
    >>> params = ising.from_matrix([[50, 0], [0, -50]])
    >>> rows(jax.random.key(0), params, Data(jnp.zeros((3, 2)))).x.tolist()
    [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    """
    check_count("num_steps", num_steps)

    def rows(key, params, data):
        model = potential(energy, params, first_row(split_inputs(data.x)[1]))
        x = map_states(partial(sampler.prepare, model), data.x)
        found = move_chains(
            key, energy, params, x, sampler=sampler, num_steps=num_steps
        )
        return data._replace(x=found.x)

    return rows


def _schedule(damping) -> Callable[[Array], Any] | None:
    """Return the damping if it is a schedule, otherwise None."""
    if isinstance(damping, (Regulariser, type)) or not callable(damping):
        return None
    return damping


def _in_coordinates(scores, to_params):
    """Return the scores in the coordinates of a chart."""
    found = scores.in_coordinates(to_params)
    if found is None:
        raise ValueError(
            "scores must be derivatives of a function of one row if fit has a chart, "
            f"got {scores!r}; try energy_scores(energy), or chart=None"
        )
    return found


def _selected_rows(data, count):
    """Return `count` rows, evenly spaced or in proportion to their weights."""
    total = count_rows(data)
    if count is None or count == total:
        return data
    if count > total:
        raise ValueError(
            f"num_rows must be at most the {total} rows, got {count}; try None for all"
        )
    if data.weights is None:
        places = np.arange(count) * total // count
        return jax.tree.map(lambda leaf: leaf[places.astype(np.int32)], data)
    # Systematic sampling: the selected rows count equally.
    ends = jnp.cumsum(data.weights)
    levels = (jnp.arange(count) + 0.5) / count * ends[-1]
    places = jnp.searchsorted(ends, levels, side="right")
    mask = None if data.mask is None else jax.tree.map(lambda m: m[places], data.mask)
    return Data(jax.tree.map(lambda leaf: leaf[places], data.x), mask=mask)


def _template(solve, regulariser, params, num_rows):
    """Return zeros with the shapes and dtypes of a factor that is reused."""

    def factor():
        count = num_rows or 1
        rows = jax.tree.map(lambda p: jnp.zeros((count, *p.shape), p.dtype), params)
        return solve.factor(RowTable(rows), params, regulariser)

    return jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(factor)
    )


def _relative(gradient, matrix):
    """Return gradient W'W for a matrix W."""
    if jnp.ndim(matrix) < 2:
        return gradient
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            "relative_gradient needs vectors or square matrices, got shape "
            f"{matrix.shape}"
        )
    return gradient @ matrix.T @ matrix


def _check_options(scores, regulariser, solve, momentum, every, num_rows, rows, key):
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be from 0 to below 1, got {momentum}; try 0.9")
    if momentum and jax.eval_shape(regulariser.shift, np.ones(())) is None:
        raise ValueError(
            "damping must be a number with momentum, because momentum acts through the "
            f"damping, got {regulariser!r}; try damping=0.01, or momentum=0"
        )
    if solve.keeps_rows and not scores.has_rows:
        raise ValueError(
            f"scores must be scores of rows for {solve!r}, got a metric that is a "
            "matrix; try Dense()"
        )
    if rows is not None and key is None:
        raise ValueError(
            "key must be given with rows, which may be random, got None; try "
            "key=jax.random.key(0)"
        )
    if every == 1:
        return
    if not solve.reusable:
        raise ValueError(
            f"every must be 1 for {solve!r}, which stores no inverse, got {every}; try "
            "every=1 or Dense()"
        )
    if solve.keeps_rows and num_rows is None:
        raise ValueError(
            f"num_rows must be given for {solve!r} if every is above 1, because the "
            "scores of these rows are stored, got None; try num_rows=100"
        )


def _check_update(updates, params, data):
    if params is None or data is None:
        raise ValueError(
            "natural_gradient needs parameters and rows, got None; try "
            "update(gradient, state, params, data=rows), or fit with rows in memory"
        )
    forms = [jax.tree.structure(tree) for tree in (updates, params)]
    shapes = [list(map(jnp.shape, jax.tree.leaves(tree))) for tree in (updates, params)]
    if forms[0] != forms[1] or shapes[0] != shapes[1]:
        raise ValueError(
            f"the gradient must be a tree like the parameters, {forms[1]} of shapes "
            f"{shapes[1]}, got {forms[0]} of shapes {shapes[0]}"
        )


def _check_rank(scores, params, data):
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    if scores.max_rank(params, data) < size:
        raise ValueError(
            f"the metric must not be singular without damping, got {size} parameters "
            f"and {count_rows(data)} rows; try damping=0.01 or PseudoInverse()"
        )


def _check_shapes(new, stored):
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (new, stored)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "a metric for several steps must keep its shapes, got shapes that differ "
            "from those of num_rows rows; try num_rows equal to the number of rows, a "
            "function of scores that returns a number, chunk_size=None, or every=1"
        )
