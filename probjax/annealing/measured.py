"""Numbers with errors, and errors of functions of draws by leaving out chains."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from probjax.samplers.draws import Draws
from probjax.types import State

NUM_BATCHES = 20


class Measured(NamedTuple):
    """A number with its standard error and an interval.

    >>> Measured(1.5, 0.1, 1.3, 1.7).describe()
    '1.5 +- 0.1, between 1.3 and 1.7'
    """

    value: float
    """Estimate."""
    stderr: float
    """Standard error; NaN if there are not enough chains to tell."""
    lower: float
    """Lower end of the interval, two standard errors below or lower."""
    upper: float
    """Upper end of the interval, two standard errors above or higher."""

    def describe(self) -> str:
        """Describe the number."""
        ends = f"between {self.lower:.6g} and {self.upper:.6g}"
        return f"{self.value:.6g} +- {self.stderr:.2g}, {ends}"


def with_error(value: Any, stderr: Any) -> Measured:
    """Return a number whose interval extends two standard errors to both sides."""
    value, stderr = float(value), float(stderr)
    return Measured(value, stderr, value - 2 * stderr, value + 2 * stderr)


def states_of(draws: Draws | State) -> State:
    """Return states `(chain, draw, ...)` of draws."""
    return draws.x if isinstance(draws, Draws) else draws


def chain_batches(num_chains: int) -> np.ndarray:
    """Return the number of the batch of each chain, at most `NUM_BATCHES`."""
    return np.arange(num_chains) * min(NUM_BATCHES, num_chains) // num_chains


def jackknife(
    function: Callable[[np.ndarray], np.ndarray], num_batches: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a function of all batches, and its standard errors.

    The error is the spread of the values without one of the batches. It is NaN for a
    single batch.

    Args:
        function: function of which batches are included, whose value is an array.

    >>> x = np.arange(5.0)
    >>> mean, stderr = jackknife(lambda batches: x[batches].mean(keepdims=True), 5)
    >>> float(mean[0]), round(float(stderr[0] / (x.std(ddof=1) / 5**0.5)), 6)
    (2.0, 1.0)
    """
    every = np.ones(num_batches, bool)
    whole = function(every)
    if num_batches < 2:
        return whole, np.full_like(whole, np.nan)
    others = []
    for batch in range(num_batches):
        included = every.copy()
        included[batch] = False
        others.append(function(included))
    spread = np.sum((np.stack(others) - np.mean(others, axis=0)) ** 2, axis=0)
    return whole, np.sqrt(spread * (num_batches - 1) / num_batches)
