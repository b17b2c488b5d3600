"""Annealing schedules: inverse temperatures from 0 to 1, and the sampler's settings.

    0 = beta_0 <= beta_1 <= ... <= beta_N = 1

A `Schedule` holds values of beta at equal distances along the run. beta_k is their
linear interpolation at the fraction k / N, and is exactly 0 and 1 at the ends. The
number of distributions N is then a value and not a shape, so another N compiles
nothing.

Equal steps suit targets with light tails. If the target has heavier tails than the
base, particles reach the tails only as beta approaches 1, and the steps should shrink
with 1 - beta.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count, is_concrete
from probjax.interfaces import Sampler
from probjax.trees import as_array
from probjax.types import Array, ArrayLike, Float, Scalar

SMALLEST_STEP = 1e-6


class Schedule(NamedTuple):
    """Values of beta along a run, and the settings of the sampler at each of them.

    >>> from probjax import HMC
    >>> knots, log_step = jnp.array([0.0, 1.0]), jnp.log(jnp.array([1.0, 4.0]))
    >>> table = jnp.array([0.0, 1.0])
    >>> schedule = Schedule(table, knots, log_step, metric=None, num_steps=4)
    >>> schedule.betas.tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    >>> round(float(schedule.sampler(HMC(1.0), jnp.asarray(0.5)).step_size), 4)
    2.0
    """

    table: Any
    """Values of beta at equal distances along the run, from 0 to 1."""
    knots: Float[Array, " knot"] | None = None
    """Values of beta at which the sampler was adapted; None if it was not adapted."""
    log_step: Float[Array, " knot"] | None = None
    """Logarithm of the step size at each knot."""
    metric: Float[Array, "knot ..."] | None = None
    """Metric at each knot; None to keep the sampler's own metric."""
    num_steps: Any = None
    """Number of distributions N; None if the entries of the table are the schedule."""

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
        # NumPy, because jax would compile a program for every N.
        table = np.asarray(self.table)
        cell, rest = np.divmod(numbers * (len(table) - 1), max(int(self.length), 1))
        low, high = table[cell], table[np.minimum(cell + 1, len(table) - 1)]
        fraction = (rest / int(self.length)).astype(table.dtype)
        return as_array(low + fraction * (high - low))

    def beta(self, number: Any, kind: Any) -> Scalar:
        """Compute beta_k for k = `number`, from 0 to N, as an array of dtype `kind`."""
        cells, length = len(self.table) - 1, jnp.asarray(self.length)
        cell, rest = cell_of(number, length, cells)
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
        fraction = (beta - knots[low]) / jnp.where(width > 0, width, 1)
        fraction = jnp.clip(fraction, 0, 1)

        def interpolate(values):
            return (1 - fraction) * values[low] + fraction * values[low + 1]

        metric = None if self.metric is None else interpolate(self.metric)
        return interpolate(self.log_step), metric

    def sampler(self, sampler: Sampler, beta: Scalar) -> Sampler:
        """Return `sampler` with the step size and the metric at `beta`."""
        log_step, metric = self.settings(beta)
        if log_step is None:
            return sampler
        return sampler.adapted(jnp.exp(log_step), metric)


def cell_of(number: Any, length: Array, num_cells: int) -> tuple[Array, Array]:
    """Return the quotient and the remainder of number * num_cells / length.

    The quotient is the cell of distribution `number` of 0 to `length`, if the run is
    divided into equal cells. The product may overflow.

    >>> cell, rest = cell_of(1_999_999_999, jnp.asarray(2_000_000_000), 50)
    >>> int(cell), int(rest)
    (49, 1999999950)
    """
    number = jnp.asarray(number, length.dtype)
    guess = number.astype(jnp.float32) * (num_cells / length.astype(jnp.float32))
    cell = jnp.floor(guess).astype(length.dtype)
    # Exact even if both products overflow, because their difference does not.
    rest = number * num_cells - cell * length
    return cell + rest // length, rest % length


def linear(num_steps: int) -> Float[Array, " beta"]:
    """Return a schedule with equal steps.

    >>> linear(4).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    check_count("num_steps", num_steps)
    return as_array(np.linspace(0, 1, num_steps + 1))


def sigmoid(num_steps: int, *, slope: float = 4.0) -> Float[Array, " beta"]:
    """Return a schedule with short steps at both ends.

    It is 1 / (1 + exp(-slope t)) for t from -1 to 1, rescaled to run from 0 to 1.

    >>> [round(float(beta), 2) for beta in sigmoid(4)]
    [0.0, 0.1, 0.5, 0.9, 1.0]
    """
    check_count("num_steps", num_steps)
    raw = np.tanh(slope / 2 * np.linspace(-1, 1, num_steps + 1))
    return as_array((raw / raw[-1] + 1) / 2)


def towards_one(num_steps: int) -> Float[Array, " beta"]:
    """Return a schedule for targets with heavier tails than their base.

    Half of its values are equally spaced. For the other half 1 - beta falls
    geometrically to 1e-6.

    >>> [round(float(beta), 3) for beta in towards_one(4)]
    [0.0, 0.5, 0.999, 1.0, 1.0]
    """
    check_count("num_steps", num_steps)
    return as_array(spaced_towards_one(num_steps))


def spaced_towards_one(num_steps: int) -> np.ndarray:
    """Return the schedule `towards_one` as a NumPy array."""
    num_equal = num_steps // 2
    log_spaced = 1 - np.geomspace(1, SMALLEST_STEP, num_steps - num_equal + 1)
    equal = np.linspace(0, 1, num_equal + 1)[1:]
    betas = np.sort(np.concatenate([log_spaced, equal]))
    betas[-1] = 1
    return betas


def check_schedule(betas: ArrayLike | None, num_steps: int) -> Array | None:
    """Return `betas` as an array; raise if they are not a schedule of N = `num_steps`.

    None, for a schedule that is not given, is returned as it is.
    """
    if betas is None:
        return None
    betas = check_betas(betas)
    if len(betas) != num_steps + 1:
        raise ValueError(
            f"betas must be num_steps + 1 = {num_steps + 1} numbers, got {len(betas)}; "
            f"try num_steps={len(betas) - 1}"
        )
    return betas


def check_betas(betas: ArrayLike) -> Float[Array, " beta"]:
    """Return `betas` as an array; raise if they do not rise from 0 to 1."""
    betas = as_array(betas, jnp.result_type(float))
    if betas.ndim != 1 or len(betas) < 2:
        raise ValueError(
            f"betas must be one axis of at least two numbers, got shape {betas.shape}; "
            "try annealing.linear(num_steps)"
        )
    if not is_concrete(betas):
        return betas
    for index, end in ((0, 0), (-1, 1)):
        if betas[index] != end:
            raise ValueError(
                f"betas must rise from 0 to 1, got betas[{index}]={betas[index]}"
            )
    descents = np.flatnonzero(~(np.diff(np.asarray(betas)) >= 0))
    if len(descents):
        k = int(descents[0])
        raise ValueError(
            f"betas must rise from 0 to 1, got betas[{k}]={betas[k]} before "
            f"betas[{k + 1}]={betas[k + 1]}"
        )
    return betas
