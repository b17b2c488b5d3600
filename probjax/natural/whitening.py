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

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.data import as_data, num_rows, refuse_mask
from probjax.fitting import ConvergenceWarning, Fit, fit
from probjax.natural.factors import eigen, refuse_singular, report_of
from probjax.natural.metrics import metric
from probjax.natural.regularisers import as_regulariser
from probjax.natural.scores import MetricSource
from probjax.types import (
    Array,
    Data,
    Float,
    Objective,
    Params,
    PRNGKeyArray,
    PyTree,
    check_count,
    floating,
    is_concrete,
    recipe,
)


@recipe
class Whitening:
    """y = W (x - centre), and back; a chart, where x are parameters.

    Build one with `whitening` for data, with `whitened` for parameters.

    >>> chart = Whitening(2 * jnp.eye(2), jnp.eye(2) / 2, centre=jnp.array([1.0, 0.0]))
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


def whitening(data: PyTree | Data, *, damping: Any = 1e-6) -> Whitening:
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
    x = jax.tree.map(floating, data.x)
    rows = jax.vmap(lambda row: ravel_pytree(row)[0])(x)
    weights = data.weights
    weights = jnp.ones(num_rows(data), rows.dtype) if weights is None else weights
    weights = (weights / weights.sum()).astype(rows.dtype)
    mean = weights @ rows
    away = (rows - mean[None]) * jnp.sqrt(weights)[:, None]
    values, vectors = eigen(away.T @ away)
    inverse = as_regulariser(damping).inverse(values, values.mean())
    row = jax.tree.map(lambda leaf: leaf[0], x)
    return _whitening(vectors, _inverted(inverse), ravel_pytree(row)[1](mean))


def whitened(
    scores: MetricSource | Callable[[Params, Data], Array],
    params: Params,
    data: PyTree | Data,
    *,
    damping: Any = 1e-2,
    centred: bool | None = None,
) -> Whitening:
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
    values, vectors = eigen(found)
    regulariser = as_regulariser(damping)
    spread = regulariser.inverse(values, values.mean())
    refuse_singular(regulariser, report_of(values, spread), len(values))
    return _whitening(vectors, spread, params)


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
    **options: Any,
) -> Fit:
    """`fit` in whitened parameters, whitened anew at each turn.

    What the metric is made of is told as for `natural_gradient`.

    Args:
        num_turns: how often at most; a fit that has converged ends.
        options: of `fit`, for each turn. `steps_per_round=100` is a good while. A turn
            that a `stop` or a `callback` ends is the last.

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
    check_count("num_turns", num_turns)
    if not is_concrete((params, data)):
        raise ValueError(
            "fit_whitened looks at what it has found between turns: call it outside "
            "jit and vmap, or fit with chart=whitened(...) inside"
        )
    callback = options.pop("callback", None)
    ended = False

    def call(progress):
        nonlocal ended
        ended = bool(callback(progress))
        return ended

    if callback is not None:
        options["callback"] = call
    if "chart" in options:
        raise ValueError("fit_whitened descends in a chart of its own: give no chart")

    def descend(turn, params):
        row_key, fit_key = jax.random.split(jax.random.fold_in(key, turn))
        used = as_data(data)
        used = used if rows is None else as_data(rows(row_key, params, used))
        chart = whitened(scores, params, used, damping=damping, centred=centred)
        with warnings.catch_warnings():
            if turn < num_turns - 1:
                # A turn that ends before the bottom is what turns are for.
                short = "fit has not converged: .* the gradient norm"
                warnings.filterwarnings("ignore", short, ConvergenceWarning)
            return fit(fit_key, objective, params, data, chart=chart, **options)

    steps = options.get("num_rounds", 1) * options.get("steps_per_round", 2000)
    found = descend(0, params)
    losses = [found.losses]
    for turn in range(1, num_turns):
        stopped = "stop" in options and len(losses[-1]) < steps
        if found.converged or ended or stopped:
            break
        found = descend(turn, found.params)
        losses.append(found.losses)
    return found._replace(losses=jnp.concatenate(losses))


def _whitening(vectors, spread, centre) -> Whitening:
    """By a covariance, or the inverse of a metric, in its eigenvectors."""
    root = jnp.sqrt(spread)
    return Whitening(
        (vectors * _inverted(root)[None]) @ vectors.T,
        (vectors * root[None]) @ vectors.T,
        centre,
    )


def _inverted(values):
    """Where they are not 0."""
    return jnp.where(values > 0, 1 / jnp.where(values > 0, values, 1), 0)
