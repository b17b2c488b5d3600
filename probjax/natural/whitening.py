"""Whitening of data by their covariance, and of parameters by their metric.

A signal x with covariance S is whitened by y = S^(-1/2) (x - mean), so that cov(y) = 1.
A metric G of parameters theta corresponds to S^-1, and p = G^(1/2) theta are whitened
parameters: a step of length 1 changes the model equally in every direction, and
steepest descent in p is natural-gradient descent in theta. Because p is a chart, every
optimizer can be used, including L-BFGS, whose line search needs true gradients.

G depends on the parameters. `fit_whitened` therefore works in turns: it descends in p,
returns to theta, and computes new whitened parameters there.

Reference: thesis, "'Whitening' the parameter space" and "Combining the natural gradient
with other techniques using the natural parameter space".
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from probjax import random
from probjax.checks import check_count, is_concrete
from probjax.data.rows import as_data, num_rows, refuse_inputs, refuse_mask
from probjax.devices import on_host
from probjax.fitting.fit import NO_GRADIENT, fit_job
from probjax.fitting.plan import RoundsPlan
from probjax.fitting.result import Fit
from probjax.fitting.stopping import GradientNorm, StoppingRule
from probjax.interfaces import Chart, Objective, Penalty
from probjax.natural.factors import check_nonsingular, eigendecomposition, report_of
from probjax.natural.metrics import metric
from probjax.natural.regularisers import as_regulariser
from probjax.natural.scores import MetricSource
from probjax.recipe import recipe
from probjax.runs.driver import (
    Watch,
    driver,
    full_precision,
    run_in_turn,
    undifferentiable,
)
from probjax.trees import as_array, floating
from probjax.types import Array, Data, Float, Params, PRNGKeyArray, PyTree


@recipe
class WhitenedCoordinates(Chart):
    """Whitened coordinates y = W (x - centre) of parameters or of states.

    `whitening` returns them for data, and `whitened` for parameters.

    Args:
        matrix: the matrix W.
        inverse_matrix: inverse of W, or its pseudo-inverse if directions are left out.
        centre: a tree like `x`.

    >>> centre = jnp.array([1.0, 0.0])
    >>> chart = WhitenedCoordinates(2 * jnp.eye(2), jnp.eye(2) / 2, centre)
    >>> chart.forward(jnp.array([2.0, 3.0])).tolist()
    [2.0, 6.0]
    >>> chart.inverse(jnp.array([2.0, 6.0])).tolist()
    [2.0, 3.0]
    """

    matrix: Float[Array, "n n"]
    inverse_matrix: Float[Array, "n n"]
    centre: Params

    def forward(self, params: Params) -> Float[Array, " n"]:
        """Return the whitened coordinates of parameters, or of one state."""
        centred = jax.tree.map(jnp.subtract, params, self.centre)
        return self.matrix @ ravel_pytree(centred)[0]

    def inverse(self, coordinates: Float[Array, " n"]) -> Params:
        """Return the parameters, or the state, with these coordinates."""
        centred = ravel_pytree(self.centre)[1](self.inverse_matrix @ coordinates)
        return jax.tree.map(jnp.add, centred, self.centre)


def whitening(data: PyTree | Data, *, damping: Any = 1e-6) -> WhitenedCoordinates:
    """Compute coordinates in which data are centred and have covariance 1.

    The matrix W is symmetric (ZCA whitening). `jax.vmap(whitening(x).forward)(x)` are
    the whitened data.

    Args:
        data: rows, as an array or a `Data` with weights.
        damping: fraction of the mean variance that is added to all variances; or a
            `Regulariser`, such as `PseudoInverse()`, which leaves out directions
            without variance.

    >>> x = jnp.array([[0.0, 1.0], [4.0, 1.0], [0.0, 3.0], [4.0, 3.0]])
    >>> white = jax.vmap(whitening(x).forward)(x)
    >>> bool(jnp.allclose(jnp.cov(white.T, ddof=0), jnp.eye(2), atol=1e-3))
    True
    """
    data = as_data(data)
    refuse_mask(data, "covariances are computed from complete rows")
    refuse_inputs(data.x, "coordinates are those of states without inputs")
    data = data._replace(x=jax.tree.map(floating, data.x))
    return _whitening_of_data(data, as_regulariser(damping))


@jax.jit
def _whitening_of_data(data, regulariser):
    x = data.x
    rows = jax.vmap(lambda row: ravel_pytree(row)[0])(x)
    weights = data.weights
    weights = jnp.ones(num_rows(data), rows.dtype) if weights is None else weights
    weights = (weights / weights.sum()).astype(rows.dtype)
    mean = weights @ rows
    centred = (rows - mean[None]) * jnp.sqrt(weights)[:, None]
    values, vectors = eigendecomposition(centred.T @ centred)
    inverse = regulariser.inverse(values, values.mean())
    row = jax.tree.map(lambda leaf: leaf[0], x)
    variances = _inverse_of_positive(inverse)
    return _coordinates(vectors, variances, ravel_pytree(row)[1](mean))


@full_precision()
def whitened(
    scores: MetricSource | Callable[[Params, Data], Array],
    params: Params,
    data: PyTree | Data,
    *,
    damping: Any = 1e-2,
    centred: bool | None = None,
) -> WhitenedCoordinates:
    """Compute whitened parameters, a chart for `fit` with the origin at `params`.

    In these coordinates the damped metric at `params` is the identity. Directions that
    `PseudoInverse()` leaves out do not move, and are not tested for convergence.

    Args:
        scores: definition of the metric, as for `natural_gradient`.
        data: rows over which the metric is averaged.
        damping: fraction of the mean diagonal that is added to the diagonal of the
            metric, or a `Regulariser`.
        centred: whether the mean score is subtracted; None for the default of `scores`.

    >>> from probjax import exact, ising
    >>> from probjax.natural import energy_scores
    >>> flat, away = (ising.from_matrix([[i, 0], [0, 0]]) for i in (0, 1))
    >>> scores, states = energy_scores(ising.energy), exact.states(2)
    >>> moved = whitened(scores, flat, states, damping=0.0).forward(away)
    >>> bool(abs(moved @ moved - 0.25) < 1e-5)  # the variance of a fair bit
    True
    """
    found = metric(scores, params, data, centred=centred)
    regulariser = as_regulariser(damping)
    chart, report = _whitening_of_metric(found, regulariser, params)
    check_nonsingular(regulariser, report, len(found))
    return chart


@jax.jit
def _whitening_of_metric(matrix, regulariser, params):
    values, vectors = eigendecomposition(matrix)
    variances = regulariser.inverse(values, values.mean())
    return _coordinates(vectors, variances, params), report_of(values, variances)


@driver
@undifferentiable(NO_GRADIENT)
def fit_whitened(
    key: PRNGKeyArray,
    objective: Objective,
    params: Params,
    data: PyTree | Data,
    scores: MetricSource | Callable[[Params, Data], Array],
    *,
    num_turns: int = 5,
    damping: Any = 1e-2,
    centred: bool | None = None,
    rows: Callable[[PRNGKeyArray, Params, Data], PyTree | Data] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    penalty: Penalty | None = None,
    stop: StoppingRule = GradientNorm(),
    num_rounds: int = 1,
    steps_per_round: int = 2000,
    batch_size: int | None = None,
    chunk_size: int | None = None,
    watch: Watch | None = None,
) -> Fit:
    """Fit in whitened parameters, which are computed again in each turn.

    Args:
        scores: definition of the metric, as for `natural_gradient`.
        num_turns: largest number of turns. The first turn that converges is the last,
            and so is a turn that a callback stops.
        damping: as for `whitened`, and so is `centred`.
        rows: as for `natural_gradient`.
        optimizer: as for `fit` in each turn, and so are the arguments that follow.
            `steps_per_round=100` is a good choice.

    >>> from probjax import PseudoLikelihood, exact, ising
    >>> from probjax.natural import energy_scores
    >>> truth = ising.from_matrix([[0.5, -1.0], [-1.0, 0.25]])
    >>> chances = jnp.exp(exact.log_probs(ising.energy, truth, 2))
    >>> rows = Data(exact.states(2), chances)
    >>> start = ising.from_matrix([[0, 0], [0, 0]])
    >>> found = fit_whitened(jax.random.key(0), PseudoLikelihood(ising.energy), start,
    ...                      rows, energy_scores(ising.energy)).params
    >>> bool(jnp.allclose(found.coupling, truth.coupling, atol=0.01))
    True
    """
    arguments = dict(locals())
    check_count("num_turns", num_turns)
    if not is_concrete((params, data)):
        raise ValueError(
            "fit_whitened must be called outside jit and vmap, because it inspects "
            "results between turns, got traced params or data; try fit with "
            "chart=whitened(...)"
        )

    def next_job(results):
        turn = len(results)
        if turn == num_turns or (results and results[-1].converged):
            return None
        current = results[-1].params if results else params
        row_key, fit_key = random.split(random.fold_in(key, turn), 2)
        metric_data = as_data(data)
        if rows is not None:
            metric_data = as_data(rows(row_key, current, metric_data))
        chart = whitened(scores, current, metric_data, damping=damping, centred=centred)
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
        # Only the last turn has to converge.
        is_last = turn == num_turns - 1
        return fit_job(fit_key, plan, current, data, watch, must_converge=is_last)[0]

    turns = run_in_turn("fit_whitened", arguments, next_job, watch)
    losses = np.concatenate([on_host(turn.losses) for turn in turns])
    return turns[-1]._replace(losses=as_array(losses))


def _coordinates(vectors, variances, centre) -> WhitenedCoordinates:
    """Return the coordinates that whiten a covariance, or an inverse metric.

    Args:
        vectors: its eigenvectors.
        variances: its eigenvalues.
    """
    lengths = jnp.sqrt(variances)
    return WhitenedCoordinates(
        (vectors * _inverse_of_positive(lengths)[None]) @ vectors.T,
        (vectors * lengths[None]) @ vectors.T,
        centre,
    )


def _inverse_of_positive(values):
    """Return 1 / value for positive values, and 0 for others."""
    return jnp.where(values > 0, 1 / jnp.where(values > 0, values, 1), 0)
