"""Results of chains: their draws, or running means of a statistic."""

from typing import Any, NamedTuple

import jax
import numpy as np

from probjax.trees import describe_range, describe_shapes, known_values
from probjax.types import Array, Info, PyTree, State


class Draws(NamedTuple):
    """Result of `sample`.

    >>> from probjax import HeatBath, ising, sample
    >>> flat, x = ising.from_matrix(jnp.zeros((2, 2))), jnp.zeros((3, 2))
    >>> options = dict(sampler=HeatBath(), num_draws=4)
    >>> draws = sample(jax.random.key(0), ising.energy, flat, x, **options)
    >>> draws.x.shape, int(draws.step)
    ((3, 4, 2), 4)
    >>> print(draws.describe())
    3 chains of 4 draws, after 4 steps
    states, with axes of chains and draws: (3, 4, 2)
    acceptance: 1
    """

    x: State
    """States, leaves `(chain, draw, ...)`; a `Conditioned` if the starts are one."""
    info: Any
    """Infos of the steps, leaves `(chain, draw)`: means over the steps since the
    previous draw."""
    state: Any
    """Last states of the sampler, leaves `(chain, ...)`; their `x` can start a run."""
    step: Array
    """Number of steps that every chain has taken; a continued run counts from it."""

    def describe(self) -> str:
        """Describe the size of the run and the acceptance in a few lines.

        Values that are traced are described as unknown. `diagnostics.summary` tests
        whether the chains have mixed.
        """
        leaves = jax.tree.leaves(self.x)
        chains, draws = (*np.shape(leaves[0]), "?", "?")[:2] if leaves else (0, 0)
        steps = describe_range(self.step)
        lines = [
            f"{chains} chains of {draws} draws, after {steps} steps",
            f"states, with axes of chains and draws: {describe_shapes(self.x)}",
            *_info_lines(self.info),
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Draws: {self.describe()}"


def _info_lines(info):
    """Describe the acceptance and the divergent steps that a sampler reported."""
    if not isinstance(info, Info):
        return []
    accept = known_values(info.accept)
    mean = "unknown" if accept is None or not accept.size else f"{accept.mean():.3g}"
    lines = [f"acceptance: {mean}"]
    diverged = known_values(info.diverged)
    if diverged is not None and diverged.any():
        count = f"{np.count_nonzero(diverged):,} of {diverged.size:,}"
        lines.append(f"draws after divergent steps: {count}; reduce the step size")
    return lines


class Means(NamedTuple):
    """Result of `sample_mean`.

    >>> from probjax import HeatBath, ising, sample_mean
    >>> args = jax.random.key(0), ising.energy, ising.from_matrix(jnp.zeros((2, 2)))
    >>> options = dict(statistic=jnp.prod, sampler=HeatBath(), num_draws=1000)
    >>> means = sample_mean(*args, jnp.zeros((20, 2)), **options)
    >>> bool(abs(means.mean - 1 / 4) < 5 * means.stderr), bool(means.stderr < 0.01)
    (True, True)
    """

    mean: PyTree
    """Mean of the statistic over all chains and draws."""
    stderr: PyTree
    """Standard error of `mean`, from the spread of the chains' means; NaN for one
    chain."""
    variance: PyTree
    """Variance of the statistic over all chains and draws."""
    info: Any
    """Mean infos of all steps, leaves `(chain,)`."""
    state: Any
    """Last states of the sampler, leaves `(chain, ...)`."""
    step: Array
    """Number of steps that every chain has taken."""
    running: "Running"
    """Moments of each chain, to which a continued run adds its draws."""
    inputs: PyTree = None
    """Inputs of the chains, leaves `(chain, ...)`; None if the states have none."""


class Running(NamedTuple):
    """Moments of the statistic along each chain, leaves `(chain, ...)`."""

    num_draws: Array
    """Number of draws so far."""
    mean: PyTree
    """Mean of the statistic."""
    spread: PyTree
    """Sum of squared deviations from the mean."""
    info: Any
    """Mean infos of the steps."""
    rounding: Any = None
    """Rounding errors of `(mean, spread, info)`, to be added to them; None for 0."""
