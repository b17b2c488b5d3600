"""Minimum velocity learning: minimise the initial velocity of diffusion to the model.

Under a diffusion whose equilibrium is the model, with mobilities D_i of the
coordinates,

    dx = -D grad E dt + sqrt(2 D) dW,

a density p moves with the velocity v = -D (grad E + grad log p), which is zero if p is
the density of the model. Half of the mean square of v over the data, without terms that
depend on p alone, is

    mean over rows of sum_i D_i^2 ((dE/dx_i)^2 / 2 - d^2E/dx_i^2).

This is score matching in the coordinates y_i = x_i / D_i, and score matching itself for
D = 1. Then it is also, up to the same constant, half the rate at which the divergence
decreases: d KL(p_t||q) / dt = -<|v|^2>.

Reference: Movellan, "A minimum velocity approach to learning", 2008; thesis,
introduction, "Minimum Velocity Learning".
"""

import jax
import jax.numpy as jnp

from probjax.checks import holds, is_finite
from probjax.interfaces import Objective
from probjax.objectives.score import ScoreMatching
from probjax.potential import potential
from probjax.recipe import recipe, static
from probjax.trees import first_row
from probjax.types import Data, Energy, Params, PyTree, Scalar, State, split_inputs


@recipe
class MinimumVelocity(Objective):
    """Mean over rows of sum_i D_i^2 ((dE/dx_i)^2 / 2 - d^2E/dx_i^2).

    Args:
        energy: `energy(params, x)` of one state.
        mobility: D, positive: one number, or a tree like one state. Each leaf of the
            tree is one number for the whole leaf of the state, or one for each entry.
            If D is the scale of each coordinate, the loss does not depend on units.

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
        self._mobility(first_row(split_inputs(data.x)[0]))
        return data

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        x, inputs = split_inputs(x)
        model = potential(self.energy, params, inputs)
        origin = jax.tree.map(jnp.zeros_like, x)
        args = model, self._mobility(x), x
        return ScoreMatching(_displaced_energy).row(args, origin, context)

    def _mobility(self, x):
        """Mobility of every entry of `x`."""
        sizes = jax.tree.map(jnp.shape, self.mobility)
        try:
            return jax.tree.map(_broadcast, jax.tree.broadcast(self.mobility, x), x)
        except ValueError as error:
            raise ValueError(
                f"mobility must be one number or like one state, of shape "
                f"{jax.tree.map(jnp.shape, x)}, got shape {sizes}"
            ) from error


def _displaced_energy(args, step):
    """Energy at x + mobility * step, as a function of `step`."""
    model, mobility, x = args
    return model(jax.tree.map(lambda a, d, s: a + d * s, x, mobility, step))


def _broadcast(mobility, leaf):
    if jnp.shape(mobility) not in ((), leaf.shape):
        raise ValueError
    return jnp.broadcast_to(jnp.asarray(mobility, leaf.dtype), leaf.shape)


def _is_positive(value):
    return is_finite(value) & (value > 0)
