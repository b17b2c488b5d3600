"""Penalties: terms added to any loss by `fit(..., penalty=...)`.

    L1: strength * sum_i w_i |theta_i|        L2: strength * sum_i w_i theta_i^2

`weights` is a tree like the parameters, by default ones; `ising.couplings_only(params)`
spares the biases. A parameter shared by two entries of a matrix is counted once.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from probjax.types import Params, PyTree, Scalar, recipe


@recipe
class L2:
    """strength * sum_i w_i theta_i^2: shrinks."""

    strength: float
    weights: PyTree = None
    smooth: ClassVar[bool] = True

    def __post_init__(self):
        _check(self.strength)

    def value(self, params: Params) -> Scalar:
        return self.strength * _total(lambda p, w: w * p**2, params, self.weights)

    def prox(self, params: Params, step: Scalar) -> Params:
        scale = 2 * step * self.strength
        return _each(lambda p, w: p / (1 + scale * w), params, self.weights)


@recipe
class L1:
    """strength * sum_i w_i |theta_i|: shrinks, and leaves exact zeros."""

    strength: float
    weights: PyTree = None
    smooth: ClassVar[bool] = False

    def __post_init__(self):
        _check(self.strength)

    def value(self, params: Params) -> Scalar:
        return self.strength * _total(lambda p, w: w * jnp.abs(p), params, self.weights)

    def prox(self, params: Params, step: Scalar) -> Params:
        def shrink(p, w):
            return jnp.sign(p) * jnp.maximum(jnp.abs(p) - step * self.strength * w, 0)

        return _each(shrink, params, self.weights)


def _check(strength):
    if isinstance(strength, float) and not strength >= 0:
        raise ValueError(f"strength must not be negative, got {strength}")


def _each(function, params, weights):
    if weights is None:
        return jax.tree.map(lambda p: function(p, 1), params)
    return jax.tree.map(function, params, weights)


def _total(function, params, weights):
    leaves = jax.tree.leaves(_each(function, params, weights))
    return jnp.stack([jnp.sum(leaf) for leaf in leaves]).sum()
