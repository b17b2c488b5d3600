"""Whitening: of data by their covariance, of parameters by their metric.

A signal of covariance S is white as y = S^(-1/2) (x - mean): cov(y) = 1. A metric G is
to parameters what S^-1 is to a signal, and p = G^(1/2) theta are white ones: a step of
length 1 changes the model as much in every direction, and steepest descent in p is
natural descent in theta. As p is a chart like others, any optimizer can descend in it,
L-BFGS with its line search above all, which wants true gradients.

G changes as parameters do. `fit_whitened` descends for a while in p, returns to theta,
and goes on in the p of there.

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
from probjax.data.rows import as_data, num_rows, refuse_mask
from probjax.devices import on_host
from probjax.fitting.fit import Fit, fit_job
from probjax.fitting.rounds import RoundsPlan
from probjax.fitting.stopping import GradientNorm, StoppingRule
from probjax.interfaces import Chart, Objective, Penalty
from probjax.natural.factors import eigen, refuse_singular, report_of
from probjax.natural.metrics import metric
from probjax.natural.regularisers import as_regulariser
from probjax.natural.scores import MetricSource
from probjax.recipe import recipe
from probjax.runs.driver import Watch, driver, full_precision, run_in_turn
from probjax.trees import as_array, floating
from probjax.types import Array, Data, Float, Params, PRNGKeyArray, PyTree


@recipe
class WhitenedCoordinates(Chart):
    """y = W (x - centre), and back; a chart, where x are parameters.

    Build one with `whitening` for data, with `whitened` for parameters.

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
    """A tree like what is whitened."""

    def forward(self, params: Params) -> Float[Array, " n"]:
        """What is white of parameters, or of one state."""
        away = jax.tree.map(jnp.subtract, params, self.centre)
        return self.matrix @ ravel_pytree(away)[0]

    def inverse(self, coordinates: Float[Array, " n"]) -> Params:
        """And back."""
        away = ravel_pytree(self.centre)[1](self.inverse_matrix @ coordinates)
        return jax.tree.map(jnp.add, away, self.centre)


def whitening(data: PyTree | Data, *, damping: Any = 1e-6) -> WhitenedCoordinates:
    """Of data: centred, uncorrelated, of unit variance, in their own orientation.

    `jax.vmap(whitening(x).forward)(x)` is the white data.

    Args:
        damping: a share of the mean variance to add; or `PseudoInverse()`, which
            leaves out directions without variance.

    >>> x = jnp.array([[0.0, 1.0], [4.0, 1.0], [0.0, 3.0], [4.0, 3.0]])
    >>> white = jax.vmap(whitening(x).forward)(x)
    >>> bool(jnp.allclose(jnp.cov(white.T, ddof=0), jnp.eye(2), atol=1e-3))
    True
    """
    data = as_data(data)
    refuse_mask(data, "covariances are of complete rows")
    data = data._replace(x=jax.tree.map(floating, data.x))
    return _of_data(data, as_regulariser(damping))


@jax.jit
def _of_data(data, regulariser):
    x = data.x
    rows = jax.vmap(lambda row: ravel_pytree(row)[0])(x)
    weights = data.weights
    weights = jnp.ones(num_rows(data), rows.dtype) if weights is None else weights
    weights = (weights / weights.sum()).astype(rows.dtype)
    mean = weights @ rows
    away = (rows - mean[None]) * jnp.sqrt(weights)[:, None]
    values, vectors = eigen(away.T @ away)
    inverse = regulariser.inverse(values, values.mean())
    row = jax.tree.map(lambda leaf: leaf[0], x)
    return _whitening(vectors, _inverted(inverse), ravel_pytree(row)[1](mean))


@full_precision()
def whitened(
    scores: MetricSource | Callable[[Params, Data], Array],
    params: Params,
    data: PyTree | Data,
    *,
    damping: Any = 1e-2,
    centred: bool | None = None,
) -> WhitenedCoordinates:
    """White parameters, a chart for `fit`: their damped metric at `params` is 1.

    They are 0 at `params`. Directions that `PseudoInverse()` leaves out stay as they
    are, and do not count towards convergence. What the metric is made of is told as for
    `natural_gradient`.

    Args:
        damping: a share of the mean diagonal to add to the metric.

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
    chart, report = _of_metric(found, regulariser, params)
    refuse_singular(regulariser, report, len(found))
    return chart


@jax.jit
def _of_metric(matrix, regulariser, params):
    values, vectors = eigen(matrix)
    spread = regulariser.inverse(values, values.mean())
    return _whitening(vectors, spread, params), report_of(values, spread)


@driver
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
    """Fit in whitened parameters, which are computed again at each turn.

    The metric is specified as for `natural_gradient`.

    Args:
        num_turns: largest number of turns; a fit that has converged ends.
        optimizer: as for `fit`, and so are all that follow, for each turn.
            `steps_per_round=100` is a good choice. A turn that a rule of one's own or
            a callback ends is the last.

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
    asked = dict(locals())
    check_count("num_turns", num_turns)
    if not is_concrete((params, data)):
        raise ValueError(
            "fit_whitened must be called outside jit and vmap, as it inspects results "
            "between turns; try fit with chart=whitened(...)"
        )

    def next_job(results):
        turn = len(results)
        if turn == num_turns or (results and results[-1].converged):
            return None
        here = results[-1].params if results else params
        row_key, fit_key = random.split(random.fold_in(key, turn), 2)
        used = as_data(data)
        used = used if rows is None else as_data(rows(row_key, here, used))
        plan = RoundsPlan(
            objective=objective,
            penalty=penalty,
            chart=whitened(scores, here, used, damping=damping, centred=centred),
            stop=stop,
            optimizer=optimizer,
            num_rounds=num_rounds,
            steps_per_round=steps_per_round,
            batch_size=batch_size,
            chunk_size=chunk_size,
        )
        # Turns before the last need not converge.
        is_last = turn == num_turns - 1
        return fit_job(fit_key, plan, here, data, watch, is_last=is_last)[0]

    turns = run_in_turn("fit_whitened", asked, next_job, watch)
    losses = np.concatenate([on_host(turn.losses) for turn in turns])
    return turns[-1]._replace(losses=as_array(losses))


def _whitening(vectors, spread, centre) -> WhitenedCoordinates:
    """By a covariance, or the inverse of a metric, in its eigenvectors."""
    root = jnp.sqrt(spread)
    return WhitenedCoordinates(
        (vectors * _inverted(root)[None]) @ vectors.T,
        (vectors * root[None]) @ vectors.T,
        centre,
    )


def _inverted(values):
    """Where they are not 0."""
    return jnp.where(values > 0, 1 / jnp.where(values > 0, values, 1), 0)
