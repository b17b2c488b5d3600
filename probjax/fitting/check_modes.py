"""Probability of modes far from the data, for `check_fit`.

Chains from far states show whether a model has modes there, but not how probable they
are. States that are annealed from uniformly random states to the model, with
importance weights w, show both. With sums over states that ended far from all rows and
over the others,

    odds of far states = sum_far w / sum_near w,

and the variance of its logarithm is the sum of (sum w^2) / (sum w)^2 on both sides,
less 1 / n. The odds are known if enough of the n states ended on either side.

Reference: Neal, Statistics and Computing 11, 125 (2001).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.fitting.check_statistics import are_far
from probjax.interfaces import Sampler
from probjax.samplers.adaptation import move_chains
from probjax.trees import float_dtype
from probjax.types import Energy, Params, PRNGKeyArray, State

LEAST_STATES = 5
"""Number of states that must end near the data, and far from them."""
SMALL = 0.02
"""Probability of far states that a model may have: twice that of the rows."""
_ERRORS = 3.0


class FarModes(NamedTuple):
    """Probability of states far from all rows.

    >>> found = FarModes(log_odds=0.0, stderr=0.1, num_far=30, num_states=100)
    >>> found.probability, found.is_probable
    (0.5, True)
    """

    log_odds: float
    """Logarithm of the odds of far states; NaN if they are not known."""
    stderr: float
    """Standard error of `log_odds`."""
    num_far: int
    """Number of annealed states that ended far from all rows."""
    num_states: int
    """Number of annealed states."""

    @property
    def probability(self) -> float:
        """Probability of far states; NaN if it is not known."""
        return float(1 / (1 + np.exp(-self.log_odds)))

    @property
    def is_probable(self) -> bool:
        """Whether far states are known to have more than a small probability."""
        least = np.log(SMALL / (1 - SMALL))
        return bool(self.log_odds - _ERRORS * self.stderr > least)

    def describe(self) -> str:
        """Describe what is known of the probability of the modes."""
        if np.isfinite(self.log_odds):
            return f"with a probability of about {self.probability:.1g}"
        if self.num_far < LEAST_STATES < self.num_states:
            return (
                f"which {self.num_far} of {self.num_states} states reach that are "
                "annealed from random ones, too few to determine their probability"
            )
        return "whose probability is not known"


UNKNOWN = FarModes(float("nan"), float("nan"), 0, 0)


def far_modes(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    sampler: Sampler,
    starts: State,
    rows: tuple[State, np.ndarray],
    *,
    num_steps: int,
) -> FarModes:
    """Anneal random states to the model, and weigh those that end far from all rows.

    Args:
        starts: uniformly random states, leaves `(state, ...)`.
        rows: a sample of the rows and their weights.
        num_steps: number of inverse temperatures.
    """
    x, log_weights = _annealed(key, energy, params, sampler, starts, num_steps)
    log_weights = np.asarray(log_weights, float)
    far = are_far(jax.tree.map(np.asarray, x), *rows)
    sides = log_weights[far], log_weights[~far]
    counts = int(far.sum()), len(far)
    if min(map(len, sides)) < LEAST_STATES or not np.isfinite(log_weights).all():
        return FarModes(float("nan"), float("nan"), *counts)
    (of_far, far_error), (of_near, near_error) = map(_log_sum, sides)
    stderr = float(np.hypot(far_error, near_error))
    return FarModes(of_far - of_near, stderr, *counts)


def _log_sum(log_weights):
    """Return log sum w, and its standard error."""
    largest = log_weights.max()
    w = np.exp(log_weights - largest)
    relative = np.sum(w**2) / w.sum() ** 2 - 1 / (2 * len(w))
    return float(largest + np.log(w.sum())), float(np.sqrt(relative))


@partial(jax.jit, static_argnums=1)
def _annealed(key, energy, params, sampler, x, num_steps):
    total = jnp.asarray(num_steps, float_dtype(params))

    def step(number, carry):
        x, log_weights = carry
        energies = jax.vmap(energy, (None, 0))(params, x)
        moved = move_chains(
            jax.random.fold_in(key, number),
            energy,
            params,
            x,
            sampler=sampler,
            num_steps=1,
            beta=(number + 1) / total,
        )
        return moved.x, log_weights - energies.astype(total.dtype) / total

    count = len(jax.tree.leaves(x)[0])
    start = (x, jnp.zeros(count, total.dtype))
    return jax.lax.fori_loop(0, num_steps, step, start)
