"""What an annealing run will do: its schedule, and the sampler along it.

A schedule is a table of values at equal distances along the run, from which beta_k is
read off at k / N of the way, with 0 and 1 exactly at the ends. The number of
distributions N is then a number and not a shape, so that another N compiles nothing.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import is_concrete
from probjax.interfaces import Sampler
from probjax.trees import as_array
from probjax.types import Array, Float, Scalar


class Schedule(NamedTuple):
    """A schedule, and the settings of a sampler along it.

    >>> from probjax import HMC
    >>> knots, log_step = jnp.array([0.0, 1.0]), jnp.log(jnp.array([1.0, 4.0]))
    >>> shape = jnp.array([0.0, 1.0])
    >>> plan = Schedule(shape, knots, log_step, metric=None, num_steps=4)
    >>> plan.betas.tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    >>> round(float(plan.sampler(HMC(1.0), jnp.asarray(0.5)).step_size), 4)
    2.0
    """

    table: Any
    """Values of beta at equal distances along the run, from 0 to 1."""
    knots: Float[Array, " knot"] | None = None
    """Values of beta at which the sampler was tuned; None for a sampler as it is."""
    log_step: Float[Array, " knot"] | None = None
    """Logarithm of its step size there."""
    metric: Float[Array, "knot ..."] | None = None
    """Its metric there; None for the sampler's own."""
    num_steps: Any = None
    """Number of distributions N; None if they are the entries of the table."""

    @property
    def length(self) -> Any:
        """Number of distributions N, an integer."""
        return len(self.table) - 1 if self.num_steps is None else self.num_steps

    @property
    def betas(self) -> Float[Array, " beta"]:
        """Schedule from beta_0 = 0 to beta_N = 1."""
        numbers = np.arange(int(self.length) + 1)
        if not is_concrete(self.table):
            return jax.vmap(partial(self.beta, kind=self.table.dtype))(numbers)
        # By NumPy: jax would compile this for every N.
        table = np.asarray(self.table)
        cell, rest = np.divmod(numbers * (len(table) - 1), max(int(self.length), 1))
        low, high = table[cell], table[np.minimum(cell + 1, len(table) - 1)]
        share = (rest / int(self.length)).astype(table.dtype)
        return as_array(low + share * (high - low))

    def beta(self, number: Any, kind: Any) -> Scalar:
        """Compute beta of a number from 0 to N, with dtype `kind`."""
        cells, length = len(self.table) - 1, jnp.asarray(self.length)
        number = jnp.asarray(number, length.dtype)
        guess = number.astype(jnp.float32) * (cells / length.astype(jnp.float32))
        cell = jnp.floor(guess).astype(length.dtype)
        # Exact, even if both products overflow, because their difference does not.
        rest = number * cells - cell * length
        cell, rest = cell + rest // length, rest % length
        low, high = self.table[cell], self.table[jnp.minimum(cell + 1, cells)]
        low, high = low.astype(kind), high.astype(kind)
        return low + rest.astype(kind) / length.astype(kind) * (high - low)

    def settings(self, beta: Scalar) -> tuple[Scalar | None, Array | None]:
        """Interpolate the logarithm of the step size, and the metric, at `beta`."""
        if self.knots is None or self.log_step is None:
            return None, None
        knots = self.knots.astype(beta.dtype)
        low = jnp.clip(jnp.sum(knots <= beta) - 1, 0, len(knots) - 2)
        width = knots[low + 1] - knots[low]
        share = (beta - knots[low]) / jnp.where(width > 0, width, 1)
        share = jnp.clip(share, 0, 1)

        def between(values):
            return (1 - share) * values[low] + share * values[low + 1]

        metric = None if self.metric is None else between(self.metric)
        return between(self.log_step), metric

    def sampler(self, sampler: Sampler, beta: Scalar) -> Sampler:
        """Return `sampler` with its settings at `beta`."""
        log_step, metric = self.settings(beta)
        return (
            sampler if log_step is None else sampler.adapted(jnp.exp(log_step), metric)
        )
