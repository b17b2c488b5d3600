"""Regularisation paths: fits for a decreasing sequence of penalty strengths.

    theta(s) = argmin loss(theta) + s * penalty(theta),   s_1 > s_2 > ... > s_n

Each fit starts at the minimum of the previous fit, which is near its own, so that a
whole path costs little more than its last and hardest fits. With a penalty that sets
parameters to zero, parameters become nonzero one after the other as the strength falls.

Reference: Friedman, Hastie and Tibshirani, "Regularization paths for generalized linear
models via coordinate descent", J. Stat. Software 33 (2010).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from probjax.checks import check_count, check_interface, holds, namespace
from probjax.data.rows import as_data, refuse_mask
from probjax.fitting.fit import fit
from probjax.fitting.stopping import StoppingRule, rule_for_strength
from probjax.interfaces import Chart, Objective, Penalty
from probjax.trees import describe_range, describe_shapes, float_dtype, known_values
from probjax.types import Array, ArrayLike, Data, Float, Params, PRNGKeyArray, PyTree

# An optimizer that evaluates the gradient and does not move.
_NO_UPDATE = optax.sgd(0.0)
# The first strength exceeds the one at which all parameters vanish by this factor,
# because the gradient is known only up to tolerance and rounding.
_FIRST_FACTOR = 1.001
# The gradient that determines the first strength has errors below a tenth of this
# share.
_RESOLUTION = 0.01


class RegularisationPath(NamedTuple):
    """Result of `fit_path`, with one entry for each strength.

    >>> strengths, params = jnp.array([1.0, 0.1]), jnp.array([[0.0, 0.0], [0.0, 2.0]])
    >>> losses, num_nonzero = jnp.array([3.0, 2.0]), jnp.array([0, 1])
    >>> path = RegularisationPath(strengths, params, losses, num_nonzero, losses > 0)
    >>> path.at(-1).tolist()
    [0.0, 2.0]
    >>> print(path.describe())
    2 strengths: 0.1 to 1
    nonzero parameters: 0 to 1
    converged: 2 of 2 fits
    parameters, with an axis of strengths: (2, 2)
    """

    strengths: Float[Array, " n"]
    """Strengths of the penalty, in decreasing order."""
    params: Params
    """Fitted parameters; leaves have a leading axis of strengths."""
    losses: Float[Array, " n"]
    """Loss plus penalty at the fitted parameters."""
    num_nonzero: Array
    """Number of penalised entries of the parameters that are not zero."""
    converged: Array
    """Whether each fit met its stopping rule."""

    def at(self, i: int) -> Params:
        """Return the parameters at the i-th strength."""
        if not -len(self.strengths) <= i < len(self.strengths):
            raise IndexError(
                f"i must be an index of the {len(self.strengths)} strengths, got {i}"
            )
        return jax.tree.map(lambda leaf: leaf[i], self.params)

    def describe(self) -> str:
        """Describe the strengths and the fits in a few lines."""
        met = known_values(self.converged)
        count = "unknown" if met is None else f"{met.sum():.0f} of {met.size} fits"
        lines = [
            f"{len(self.strengths)} strengths: {describe_range(self.strengths)}",
            f"nonzero parameters: {describe_range(self.num_nonzero)}",
            f"converged: {count}",
            f"parameters, with an axis of strengths: {describe_shapes(self.params)}",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"RegularisationPath: {self.describe()}"


def fit_path(
    key: PRNGKeyArray,
    objective: Objective,
    params: Params,
    data: PyTree | Data,
    *,
    penalty: Penalty,
    chart: Chart | None = None,
    strengths: Float[ArrayLike, " n"] | None = None,
    num_strengths: int = 30,
    smallest: float = 1e-3,
    steps_per_round: int = 2000,
    stop: StoppingRule | None = None,
    chunk_size: int | None = None,
) -> RegularisationPath:
    """Fit `objective` to `data` at every strength, each time from the previous fit.

    All fits use the same key, so that the random parts of the objective are the same,
    and run one compiled program.

    Args:
        params: initial parameters of the first fit.
        penalty: a penalty with a `strength`, such as `L1`. The strengths of the path
            replace its own. Without weights it spares biases and fields, as in `fit`.
        chart: as for `fit`; requires a smooth penalty.
        strengths: positive numbers in decreasing order. If None, `num_strengths`
            numbers in geometric progression. The first is the smallest strength at
            which all penalised parameters are zero, which `penalty.vanishing` computes
            from a fit of the other parameters.
        num_strengths: number of strengths, if `strengths` is None.
        smallest: ratio of the last strength to the first, between 0 and 1, if
            `strengths` is None.
        steps_per_round: largest number of steps of each fit.
        stop: as for `fit`. If None, `GradientNorm` with its default tolerance or a
            tenth of the strength, whichever is smaller: a parameter becomes nonzero
            when its gradient exceeds the strength, which must not be hidden by the
            tolerance.
        chunk_size: as for `fit`.

    Returns:
        A `RegularisationPath`.

    >>> from probjax import L1, ScoreMatching
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / 2
    >>> rows = jnp.array([[0.0, 2.0], [2.0, 4.0]])  # with mean 1, 3
    >>> args = jax.random.key(0), ScoreMatching(energy), jnp.zeros(2), rows
    >>> path = fit_path(*args, penalty=L1(1.0), strengths=[2.0, 0.5])
    >>> path.params.round(4).tolist()
    [[0.0, 1.0], [0.5, 2.5]]
    """
    _check(penalty, strengths, num_strengths, smallest)
    data = as_data(data)
    refuse_mask(data, "a path has only one round at each strength")

    def fit_at(start, strength, resolution=None):
        resolved = strength if resolution is None else resolution
        return fit(
            key,
            objective,
            start,
            data,
            penalty=penalty.with_strength(strength),
            chart=chart,
            steps_per_round=steps_per_round,
            stop=rule_for_strength(start, resolved) if stop is None else stop,
            chunk_size=chunk_size,
        )

    def first_strength(begin):
        evaluation = fit(
            key,
            objective,
            begin.params,
            data,
            optimizer=_NO_UPDATE,
            steps_per_round=1,
            chunk_size=chunk_size,
        )
        return _first_strength(begin.penalty, evaluation.opt_state.gradient)

    dtype = float_dtype(params)
    if strengths is None:
        largest = jnp.finfo(dtype).max
        begin = fit_at(params, largest)
        first = first_strength(begin)
        # The gradient of the loss may be so small that the first fit has ended early.
        begin = fit_at(begin.params, largest, _RESOLUTION * first)
        params, first = begin.params, first_strength(begin)
        strengths = first * smallest ** jnp.linspace(0, 1, num_strengths)
    strengths = jnp.asarray(strengths, dtype)
    if strengths.ndim != 1 or not len(strengths) or not holds(_decreases, strengths):
        raise ValueError(
            "strengths must be positive, finite and strictly decreasing, got "
            f"{strengths}; try strengths=None"
        )
    members, fitted_penalty = [], None
    for strength in strengths:
        found = fit_at(params, strength)
        params, fitted_penalty = found.params, found.penalty
        members.append((params, found.loss, found.converged))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    all_params, losses, converged = stacked
    return RegularisationPath(
        strengths=strengths,
        params=all_params,
        losses=losses,
        num_nonzero=_num_nonzero(all_params, _penalised(fitted_penalty, params)),
        converged=converged,
    )


def _check(penalty, strengths, num_strengths, smallest):
    check_interface("penalty", penalty, Penalty, "L1(1.0)")
    if penalty.with_strength(1.0) is None:
        raise ValueError(
            f"penalty must have a strength to replace, got {penalty}; try L1(1.0)"
        )
    if strengths is None and penalty.smooth:
        raise ValueError(
            f"strengths must be given for a penalty that sets nothing to zero, got "
            f"{penalty}; try strengths=[1.0, 0.1, 0.01]"
        )
    check_count("num_strengths", num_strengths)
    if not 0 < smallest < 1:
        raise ValueError(f"smallest must be between 0 and 1, got {smallest}; try 1e-3")


def _first_strength(penalty, gradient):
    least = penalty.vanishing(gradient)
    if least is None:
        raise ValueError(
            "strengths must be given for a penalty without the method vanishing, got "
            f"{penalty}; try strengths=[1.0, 0.1, 0.01]"
        )
    return _FIRST_FACTOR * least


def _decreases(strengths):
    xp = namespace(strengths)
    valid = xp.isfinite(strengths) & (strengths > 0)
    return xp.all(valid) & xp.all(xp.diff(strengths) < 0)


def _penalised(penalty, params):
    """Return masks of the entries that the largest strength of a penalty sets to 0."""
    ones = jax.tree.map(jnp.ones_like, params)
    largest = jnp.asarray(jnp.finfo(float_dtype(params)).max)
    shrunk = penalty.with_strength(largest).prox(ones, jnp.ones_like(largest))
    return jax.tree.map(lambda leaf: leaf == 0, shrunk)


@jax.jit
@partial(jax.vmap, in_axes=(0, None))
def _num_nonzero(params, penalised):
    both = jax.tree.map(lambda leaf, mask: (leaf != 0) & mask, params, penalised)
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(both))
