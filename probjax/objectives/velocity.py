"""Minimum velocity learning: let the data diffuse towards the model, and move least.

Under the diffusion that leads to the model, with mobilities D_i of the coordinates,

    dx = -D grad E dt + sqrt(2 D) dW,

a density p moves with the velocity v = -D (grad E + grad log p), which is zero where p
is the model's. Half its mean square over the data, less what depends on p alone, is

    mean over rows of sum_i D_i^2 ((dE/dx_i)^2 / 2 - d^2E/dx_i^2):

score matching in the coordinates y_i = x_i / D_i, and for D = 1 score matching itself.
Then it is also half the rate at which the divergence falls, to within the same
constant: d KL(p_t||q) / dt = -<|v|^2>.

Reference: Movellan, "A minimum velocity approach to learning", 2008; thesis,
introduction, "Minimum Velocity Learning".
"""

from functools import partial

import jax
import jax.numpy as jnp

from probjax.checks import holds, is_finite
from probjax.interfaces import Objective
from probjax.objectives.score import ScoreMatching
from probjax.recipe import recipe, static
from probjax.types import Data, Energy, Params, PyTree, Scalar, State


@recipe
class MinimumVelocity(Objective):
    """Mean over rows of sum_i D_i^2 ((dE/dx_i)^2 / 2 - d^2E/dx_i^2).

    Args:
        mobility: D, positive: one number, or a tree like one state; a leaf of it is one
            number for the whole leaf of the state, or one for each entry. With the
            scales of the coordinates, the loss does not depend on their units.

    >>> from probjax import loss
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> rows = jnp.array([[2.0, 0.0], [0.0, 1.0]])
    >>> objective = MinimumVelocity(energy, mobility=2.0)
    >>> float(loss(jax.random.key(0), objective, 1.0, rows))  # 4 (5/4 - 2)
    -3.0
    """

    energy: Energy = static()
    mobility: PyTree = 1.0

    def __post_init__(self):
        if not holds(_is_positive, self.mobility):
            raise ValueError(f"mobility must be positive, got {self.mobility}")

    def prepare(self, params: Params, data: Data) -> Data:
        data = ScoreMatching(self.energy).prepare(params, data)
        self._of(jax.tree.map(lambda rows: rows[0], data.x))
        return data

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        moved = ScoreMatching(partial(_moved, self.energy))
        origin = jax.tree.map(jnp.zeros_like, x)
        return moved.row((params, self._of(x), x), origin, context)

    def _of(self, x):
        """The mobility of every entry of `x`."""
        sizes = jax.tree.map(jnp.shape, self.mobility)
        try:
            return jax.tree.map(_filled, jax.tree.broadcast(self.mobility, x), x)
        except ValueError as error:
            raise ValueError(
                f"mobility must be one number or like one state, of shape "
                f"{jax.tree.map(jnp.shape, x)}, got {sizes}"
            ) from error


def _moved(energy, args, step):
    """The energy a step away from x, steps measured in the mobility."""
    params, mobility, x = args
    return energy(params, jax.tree.map(lambda a, d, s: a + d * s, x, mobility, step))


def _filled(mobility, leaf):
    if jnp.shape(mobility) not in ((), leaf.shape):
        raise ValueError
    return jnp.broadcast_to(jnp.asarray(mobility, leaf.dtype), leaf.shape)


def _is_positive(value):
    return is_finite(value) & (value > 0)
