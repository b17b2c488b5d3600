"""Regularisation paths: fits for a falling sequence of penalty strengths.

    theta(s) = argmin loss(theta) + s * penalty(theta),   s_1 > s_2 > ... > s_n

Each fit starts where the last ended, which is near its own minimum, so that a whole
path costs little more than its last and hardest fits. With a penalty that leaves zeros,
parameters enter the model one after the other as the strength falls.

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
from probjax.fitting.stopping import GradientNorm, StoppingRule, default_tolerance
from probjax.interfaces import Chart, Objective, Penalty
from probjax.trees import float_dtype
from probjax.types import Array, ArrayLike, Data, Float, Params, PRNGKeyArray, PyTree

_STILL = optax.sgd(0.0)


class RegularisationPath(NamedTuple):
    """The outcome of `fit_path`, one entry for each strength.

    >>> strengths, params = jnp.array([1.0, 0.1]), jnp.array([[0.0, 0.0], [0.0, 2.0]])
    >>> losses, num_nonzero = jnp.array([3.0, 2.0]), jnp.array([0, 1])
    >>> path = RegularisationPath(strengths, params, losses, num_nonzero, losses > 0)
    >>> path.at(-1).tolist()
    [0.0, 2.0]
    """

    strengths: Float[Array, " n"]
    """From the strongest penalty to the weakest."""
    params: Params
    """The parameters found: leaves with a leading axis of strengths."""
    losses: Float[Array, " n"]
    """The loss there, with its penalty."""
    num_nonzero: Array
    """How many of the penalised entries of the parameters are not zero."""
    converged: Array
    """Whether each fit met its stopping rule."""

    def at(self, i: int) -> Params:
        """The parameters of the i-th strength."""
        if not -len(self.strengths) <= i < len(self.strengths):
            raise IndexError(f"the path has {len(self.strengths)} members, got {i}")
        return jax.tree.map(lambda leaf: leaf[i], self.params)


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
    """Fit `objective` to `data` at every strength, each time from the fit before.

    All fits have the same key, so what is random in the objective is the same in all,
    and are runs of one program.

    Args:
        params: where the first fit starts.
        penalty: a recipe with a `strength`, as `L1`; the strengths of the path replace
            its own, which is ignored.
        chart: as for `fit`, with a penalty that is smooth.
        strengths: positive and falling. If None, `num_strengths` in geometric
            progression: from where all that is penalised just vanishes, found by a
            fit without it and `penalty.vanishing`, to `smallest` times as much.
        steps_per_round: the most steps of each fit.
        stop: as for `fit`, and so is `chunk_size`. If None, `GradientNorm` with its
            default tolerance or a tenth of the strength, whichever is less: a gradient
            that must exceed the strength for a parameter to enter has to be seen.

    Returns:
        A `RegularisationPath`.

    >>> from probjax import L1, ScoreMatching
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / 2
    >>> rows = jnp.array([[0.0, 2.0], [2.0, 4.0]])  # of the mean 1, 3
    >>> args = jax.random.key(0), ScoreMatching(energy), jnp.zeros(2), rows
    >>> path = fit_path(*args, penalty=L1(1.0), strengths=[2.0, 0.5])
    >>> path.params.round(4).tolist()
    [[0.0, 1.0], [0.5, 2.5]]
    """
    _check(penalty, strengths, num_strengths, smallest)
    data = as_data(data)
    refuse_mask(data, "a path has one round for each strength")

    def learn(start, strength):
        return fit(
            key,
            objective,
            start,
            data,
            penalty=penalty.with_strength(strength),
            chart=chart,
            steps_per_round=steps_per_round,
            stop=_rule(start, strength) if stop is None else stop,
            chunk_size=chunk_size,
        )

    kind = float_dtype(params)
    if strengths is None:
        params = learn(params, jnp.finfo(kind).max).params
        one_look = fit(
            key,
            objective,
            params,
            data,
            optimizer=_STILL,
            steps_per_round=1,
            chunk_size=chunk_size,
        )
        first = _first_strength(penalty, one_look.opt_state.gradient)
        strengths = first * smallest ** jnp.linspace(0, 1, num_strengths)
    strengths = jnp.asarray(strengths, kind)
    if strengths.ndim != 1 or not len(strengths) or not holds(_falls, strengths):
        raise ValueError(
            f"strengths must be positive, finite and strictly falling, got {strengths}"
        )
    members = []
    for strength in strengths:
        found = learn(params, strength)
        params = found.params
        members.append((params, found.loss, found.converged))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    all_params, losses, converged = stacked
    return RegularisationPath(
        strengths=strengths,
        params=all_params,
        losses=losses,
        num_nonzero=_num_nonzero(all_params, _penalised(penalty, params)),
        converged=converged,
    )


def _check(penalty, strengths, num_strengths, smallest):
    check_interface("penalty", penalty, Penalty, "L1(1.0)")
    if penalty.with_strength(1.0) is None:
        raise ValueError(f"penalty must have a strength to replace, got {penalty}")
    if strengths is None and penalty.smooth:
        raise ValueError(
            f"strengths must be given for a penalty that leaves no zeros, got {penalty}"
        )
    check_count("num_strengths", num_strengths)
    if not 0 < smallest < 1:
        raise ValueError(f"smallest must be between 0 and 1, got {smallest}")


def _rule(params, strength):
    return GradientNorm(
        jnp.minimum(default_tolerance(params), 0.1 * strength)  # pyright: ignore
    )


def _first_strength(penalty, gradient):
    least = penalty.vanishing(gradient)
    if least is None:
        raise ValueError(
            f"strengths must be given for a penalty without `vanishing`, got {penalty}"
        )
    # Raised a little, as the gradient is known to tolerance and rounding only.
    return 1.001 * least


def _falls(strengths):
    xp = namespace(strengths)
    fine = xp.isfinite(strengths) & (strengths > 0)
    return xp.all(fine) & xp.all(xp.diff(strengths) < 0)


def _penalised(penalty, params):
    """Which entries are penalised: those that the longest proximal step leaves at 0."""
    ones = jax.tree.map(jnp.ones_like, params)
    longest = jnp.asarray(jnp.finfo(float_dtype(params)).max)
    left = penalty.with_strength(1.0).prox(ones, longest)
    return jax.tree.map(lambda leaf: leaf == 0, left)


@jax.jit
@partial(jax.vmap, in_axes=(0, None))
def _num_nonzero(params, penalised):
    both = jax.tree.map(lambda leaf, mask: (leaf != 0) & mask, params, penalised)
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(both))
