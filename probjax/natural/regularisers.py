"""Regularisation of an inverse metric: functions f of its eigenvalues g.

A natural gradient is f(G) times a gradient, where f(g) replaces 1 / g. Eigenvalues are
measured relative to the mean s of the diagonal of G, so that a regulariser does not
depend on the units of the parameters:

    Ridge            f(g) = 1 / (g + d s)
    Robust           f(g) = g / (g^2 + e s^2), the thesis' (G'G + e I)^-1 G'
    PseudoInverse    f(g) = 1 / g, or 0 below a fraction of the largest eigenvalue

Reference: thesis, "Regularization"; Boyd and Vandenberghe, Convex Optimization (2004),
6.4.1.
"""

import abc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import is_concrete
from probjax.recipe import recipe
from probjax.trees import scaled
from probjax.types import Array, PyTree, Scalar

Operator = Callable[[PyTree], PyTree]


class Regulariser(abc.ABC):
    """Function of the eigenvalues of a metric that replaces their inverses.

    Only `inverse` is required. A regulariser that adds a multiple of the identity to
    the metric should also define `shift`: Cholesky factors and momentum need it, and
    conjugate gradients need either `shift` or `system`.

    >>> class SquareRoot(Regulariser):
    ...     def inverse(self, values, scale):
    ...         return 1 / jnp.sqrt(values * scale + scale**2)
    >>> SquareRoot().inverse(jnp.array([0.0, 3.0]), scale=jnp.array(1.0)).tolist()
    [1.0, 0.5]
    """

    @abc.abstractmethod
    def inverse(self, values: Array, scale: Scalar) -> Array:
        """Return the regularised inverse, 0 or above, of each eigenvalue.

        Args:
            values: eigenvalues of a metric or a covariance, 0 or above.
            scale: mean of all eigenvalues, including zeros that `values` may omit.
        """

    def shift(self, scale: Scalar) -> Scalar | None:
        """Return c if `inverse` is 1 / (g + c) for all eigenvalues g, otherwise None.

        Whether the result is None must not depend on the value of `scale`.
        """
        return None

    def system(
        self, times: Operator, scale: Scalar
    ) -> tuple[Operator, Operator] | None:
        """Return functions such that u = f(G) g solves left(u) = right(g).

        Args:
            times: multiplies the metric G by a tree.
            scale: mean eigenvalue of G.

        Returns:
            The functions `left`, which is linear, symmetric and positive definite, and
            `right`. None if there are no such functions; then `ConjugateGradient`
            raises an error.
        """
        shift = self.shift(scale)
        if shift is None:
            return None

        def left(tree):
            return jax.tree.map(jnp.add, times(tree), scaled(shift, tree))

        return left, lambda tree: tree

    def is_exact(self) -> bool:
        """Return whether `inverse` is 1 / g, so that G must not be singular."""
        return False


@recipe
class Ridge(Regulariser):
    """Inverse 1 / (g + d s) of an eigenvalue g, where s is the mean eigenvalue.

    Args:
        damping: the number d, 0 or above, relative to the mean eigenvalue.

    >>> Ridge(1.0).inverse(jnp.array([0.0, 3.0]), scale=jnp.array(1.0)).tolist()
    [1.0, 0.25]
    """

    damping: float = 1e-2

    def __post_init__(self):
        valid = not is_concrete(self.damping) or self.damping >= 0
        if not valid:
            raise ValueError(
                f"damping must be 0 or above, got {self.damping}; try 0.01"
            )

    def inverse(self, values: Array, scale: Scalar) -> Array:
        # Without this limit, tiny damping would magnify directions of eigenvalue 0.
        return inverse_above(values + self.shift(scale), eigenvalue_rounding(values))

    def shift(self, scale: Scalar) -> Scalar:
        return jnp.asarray(self.damping, scale.dtype) * scale

    def is_exact(self) -> bool:
        return is_concrete(self.damping) and bool(self.damping == 0)


@recipe
class Robust(Regulariser):
    """Inverse g / (g^2 + e s^2), where s is the mean eigenvalue.

    Directions whose eigenvalues are far below s sqrt(e) hardly move.

    Args:
        epsilon: the number e, above 0.

    >>> Robust(1.0).inverse(jnp.array([0.0, 1.0]), scale=jnp.array(1.0)).tolist()
    [0.0, 0.5]
    """

    epsilon: float = 1e-2

    def __post_init__(self):
        _check_positive("epsilon", self.epsilon, "0.01")

    def inverse(self, values: Array, scale: Scalar) -> Array:
        return values / (values**2 + self._square(scale))

    def system(self, times: Operator, scale: Scalar) -> tuple[Operator, Operator]:
        def left(tree):
            square = scaled(self._square(scale), tree)
            return jax.tree.map(jnp.add, times(times(tree)), square)

        return left, times

    def _square(self, scale):
        """Return the number that is added to the square of the metric."""
        return jnp.asarray(self.epsilon, scale.dtype) * scale**2


@recipe
class PseudoInverse(Regulariser):
    """Inverse 1 / g, or 0 if g is below a fraction of the largest eigenvalue.

    Args:
        cut: the fraction, above 0.

    >>> PseudoInverse().inverse(jnp.array([0.0, 2.0]), scale=jnp.array(1.0)).tolist()
    [0.0, 0.5]
    """

    cut: float = 1e-6

    def __post_init__(self):
        _check_positive("cut", self.cut, "1e-6")

    def inverse(self, values: Array, scale: Scalar) -> Array:
        cut = jnp.maximum(self.cut * values.max(), eigenvalue_rounding(values))
        return inverse_above(values, cut)


def as_regulariser(damping: Any) -> Regulariser:
    """Return `damping` if it is a `Regulariser`, and `Ridge(damping)` for a number."""
    if isinstance(damping, Regulariser):
        return damping
    numbers = (int, float, np.number, np.ndarray, jax.Array)
    if not isinstance(damping, numbers) or jnp.ndim(damping) != 0:
        raise ValueError(
            "damping must be a number or an instance of a class that inherits from "
            f"natural.Regulariser, got {damping!r}; try damping=0.01"
        )
    return Ridge(damping)  # pyright: ignore[reportArgumentType]


def inverse_above(values: Array, least: Array | float) -> Array:
    """Return 1 / value for values above `least`, 0 for others, and NaN for NaN."""
    dropped = values <= least
    return jnp.where(dropped, 0, 1 / jnp.where(dropped, 1, values))


def eigenvalue_rounding(values: Array) -> Scalar:
    """Return the rounding error of the eigenvalues of a symmetric matrix."""
    return values.size * jnp.finfo(values.dtype).eps * values.max()


def _check_positive(name, value, example):
    if is_concrete(value) and not value > 0:
        raise ValueError(f"{name} must be above 0, got {value}; try {example}")
