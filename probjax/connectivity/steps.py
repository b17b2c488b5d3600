"""Small symmetric steps in a continuous space.

Let K be the mean flow along steps whose mean square in each coordinate is m. As the
steps shrink, the flow becomes score matching:

    (K - 1) 4 / m  ->  K_SM = mean over rows of |grad E|^2 / 2 - laplacian E.

The moment m is s^2 for Gaussian steps of standard deviation s, e^2 / 12 in a cube of
side e, and r^2 / (d + 2) in a ball of radius r. Every second step is the negative of
the step before it, so that terms that are odd in the step cancel; their noise would
otherwise dominate the limit.

Reference: thesis, "Score Matching" and the appendix "Score Matching (SM) is a special
case of MPF", with the constants corrected.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count
from probjax.interfaces import Connectivity
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.trees import floating
from probjax.types import Array, Domain, Neighbours, PRNGKeyArray, Scalar, State


class Shape(NamedTuple):
    """A distribution of steps, symmetric about 0."""

    draw: Callable[[PRNGKeyArray, int, int, jnp.dtype], Array]
    """`draw(key, num_draws, size, dtype)` returns steps, `(num_draws, size)`."""
    moment: Callable[[int], float]
    """`moment(size)` returns the mean square of one of `size` coordinates."""


@recipe
class Steps(Connectivity):
    """`num_draws` states, each a random step away from a state.

    `GaussianSteps`, `CubeSteps` and `BallSteps` construct it.

    >>> steps = GaussianSteps(0.5, num_draws=4)
    >>> steps.num_draws, float(steps.moment(jnp.zeros(3)))
    (4, 0.25)
    """

    scale: float
    """Factor by which a step of `shape` is multiplied."""
    shape: Shape = static()
    """Distribution of steps of scale 1."""
    num_draws: int = static()
    """Number of steps from each state."""

    def __post_init__(self):
        if isinstance(self.scale, float) and not self.scale > 0:
            raise ValueError(f"scale of steps must be positive, got {self.scale}")
        check_count("num_draws", self.num_draws)

    @property
    def domain(self) -> Domain:
        return "reals"

    def prepare(self, x: State) -> State:
        return jax.tree.map(floating, x)

    def draw(self, key: PRNGKeyArray, potential: Potential, x: State) -> Array:
        flat, _ = ravel_pytree(x)
        half = -(-self.num_draws // 2)
        steps = self.shape.draw(key, half, flat.size, flat.dtype)
        both = jnp.stack([steps, -steps], axis=1).reshape(2 * half, flat.size)
        return both[: self.num_draws]

    def states(self, x: State, moves: Array) -> Neighbours:
        flat, unravel = ravel_pytree(x)
        stepped = jax.vmap(lambda step: unravel(flat + self.scale * step))(moves)
        ratio = jnp.zeros(self.num_draws, flat.dtype)
        return Neighbours(stepped, ratio, jnp.full_like(ratio, 1 / self.num_draws))

    def moment(self, x: State) -> Scalar:
        """Compute the mean square of one coordinate of a step from `x`."""
        return jnp.asarray(self.scale) ** 2 * self.shape.moment(ravel_pytree(x)[0].size)


def GaussianSteps(scale: float, *, num_draws: int = 2) -> Steps:
    """`num_draws` states, each a Gaussian step of standard deviation `scale` away.

    Steps come in pairs of opposite sign:

    >>> steps, x = GaussianSteps(0.1), jnp.ones(3)
    >>> near = steps.states(x, steps.draw(jax.random.key(0), None, x))
    >>> bool(jnp.allclose(near.x.mean(0), x))
    True
    """
    return Steps(scale, GAUSSIAN, num_draws)


def CubeSteps(side: float, *, num_draws: int = 2) -> Steps:
    """`num_draws` states, uniform in the cube of side `side` around a state.

    >>> steps, x = CubeSteps(2.0, num_draws=100), jnp.zeros(3)
    >>> near = steps.states(x, steps.draw(jax.random.key(0), None, x))
    >>> bool((jnp.abs(near.x) <= 1).all())
    True
    """
    return Steps(side, CUBE, num_draws)


def BallSteps(radius: float, *, num_draws: int = 2) -> Steps:
    """`num_draws` states, uniform in the ball of radius `radius` around a state.

    >>> float(BallSteps(2.0).moment(jnp.zeros(2)))  # r^2 / (d + 2)
    1.0
    """
    return Steps(radius, BALL, num_draws)


def _gaussian(key, num_draws, size, dtype):
    return jax.random.normal(key, (num_draws, size), dtype)


def _cube(key, num_draws, size, dtype):
    return jax.random.uniform(key, (num_draws, size), dtype, -0.5, 0.5)


def _ball(key, num_draws, size, dtype):
    return jax.random.ball(key, size, shape=(num_draws,), dtype=dtype)


# Named functions, because lambdas cannot be pickled.
def _gaussian_moment(size):
    return 1.0


def _cube_moment(size):
    return 1 / 12


def _ball_moment(size):
    return 1 / (size + 2)


GAUSSIAN = Shape(_gaussian, _gaussian_moment)
CUBE = Shape(_cube, _cube_moment)
BALL = Shape(_ball, _ball_moment)
