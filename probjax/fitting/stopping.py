"""Stopping rules: conditions under which a round or a fit ends.

    GradientNorm:    max_i |dL/dtheta_i| < tolerance

A rule is a recipe, which is evaluated inside the compiled fit after every evaluation of
the loss. A user's rule inherits from `StoppingRule`:

    @probjax.recipe
    class AfterSteps(probjax.fitting.StoppingRule):
        most: int

        def is_met(self, progress, data):
            return progress.step >= self.most
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import jax.numpy as jnp

from probjax.checks import check_parts, is_concrete
from probjax.recipe import recipe
from probjax.trees import float_dtype
from probjax.types import Array, Data, Params, PyTree, Scalar

_TOLERANCE_32, _TOLERANCE_64 = 1e-5, 1e-8
_TOLERANCE_PER_STRENGTH = 0.1


class Progress(NamedTuple):
    """Report on a running fit, for stopping rules and callbacks.

    >>> progress = Progress(0, 20, 1.5, jnp.array(5e-3), params=1.0, shared=())
    >>> f"step {progress.step}: loss {progress.loss}"
    'step 20: loss 1.5'
    """

    round: Array
    """Number of the current round, counted from 0."""
    step: Array
    """Number of steps taken in all rounds."""
    loss: Scalar
    """Loss at `params` (with an optax optimizer, before its last update)."""
    gradient_norm: Scalar
    """Largest absolute entry of the gradient of the loss in the parameters."""
    params: Params
    """Current parameters."""
    shared: PyTree
    """Part of the objective's context that belongs to no row, such as particles."""


class StoppingRule(ABC):
    """Condition under which a fit ends.

    >>> import jax
    >>> from probjax import ScoreMatching, fit
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> @recipe
    ... class AfterSteps(StoppingRule):
    ...     most: int
    ...     def is_met(self, progress, data):
    ...         return progress.step >= self.most
    >>> args = jax.random.key(0), ScoreMatching(energy), 10.0, jnp.array([[0.5], [2.0]])
    >>> len(fit(*args, stop=AfterSteps(2)).losses)
    2
    """

    @abstractmethod
    def is_met(self, progress: Progress, data: Data) -> Array:
        """Return whether the rule is met, which ends the round; traced."""

    def ends_fit(self, progress: Progress, data: Data) -> Array:
        """Return whether the rule ends the whole fit, and not only the round."""
        return self.is_met(progress, data)

    def on_batches(self) -> "StoppingRule | None":
        """Return the rule for minibatches; None if it does not apply to them."""
        return self

    @property
    def needs_minimum(self) -> bool:
        """Whether the rule is met only near a minimum, which must then exist."""
        return False

    def shortfall(self, progress: Progress) -> str:
        """Describe how far a fit that ended too early is from meeting the rule."""
        return "the stopping rule is not met"


@recipe
class GradientNorm(StoppingRule):
    """End a round once the largest entry of the gradient is below `tolerance`.

    Args:
        tolerance: bound on the gradient norm, 0 or above; None for 1e-5 in float32 and
            1e-8 in float64.

    >>> import jax
    >>> from probjax import ScoreMatching, fit
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / 2
    >>> rows = jnp.array([[0.0, 2.0], [2.0, 4.0]])
    >>> args = jax.random.key(0), ScoreMatching(energy), jnp.zeros(2), rows
    >>> found = fit(*args, stop=GradientNorm(1e-3))
    >>> bool(found.converged), bool(found.gradient_norm < 1e-3)
    (True, True)
    """

    tolerance: float | None = None

    def __post_init__(self):
        has_value = self.tolerance is not None and is_concrete(self.tolerance)
        if has_value and not self.tolerance >= 0:  # pyright: ignore
            raise ValueError(
                f"tolerance must be 0 or above, got {self.tolerance}; try 1e-5"
            )

    def ends_fit(self, progress: Progress, data: Data) -> Array:
        return jnp.asarray(False)

    def on_batches(self) -> None:
        """Return None: near a minimum the gradient of a batch is mostly noise."""
        return

    @property
    def needs_minimum(self) -> bool:
        return True

    def is_met(self, progress: Progress, data: Data) -> Array:
        return progress.gradient_norm < self.limit(progress.params)

    def limit(self, params: Params) -> Scalar | float:
        """Return the tolerance; its default depends on the dtype of `params`."""
        return default_tolerance(params) if self.tolerance is None else self.tolerance

    def shortfall(self, progress: Progress) -> str:
        return (
            f"the gradient norm is {float(progress.gradient_norm):.2g}, above the "
            f"tolerance {float(self.limit(progress.params)):.2g}"
        )


@recipe
class AnyOf(StoppingRule):
    """Stop as soon as one of several rules is met.

    Args:
        rules: the rules, at least one.

    >>> rule = AnyOf((GradientNorm(1e-3), GradientNorm(1e-2)))
    >>> progress = Progress(0, 5, 1.0, jnp.array(5e-3), params=1.0, shared=())
    >>> bool(rule.is_met(progress, Data(jnp.zeros((1, 1)))))
    True
    """

    rules: tuple[StoppingRule, ...]

    def __post_init__(self):
        check_parts("rules", self.rules, StoppingRule, "GradientNorm()")

    def is_met(self, progress: Progress, data: Data) -> Array:
        return _any([rule.is_met(progress, data) for rule in self.rules])

    def ends_fit(self, progress: Progress, data: Data) -> Array:
        return _any([rule.ends_fit(progress, data) for rule in self.rules])

    def on_batches(self) -> "AnyOf | None":
        rules = tuple(filter(None, (rule.on_batches() for rule in self.rules)))
        return AnyOf(rules) if rules else None

    @property
    def needs_minimum(self) -> bool:
        return all(rule.needs_minimum for rule in self.rules)

    def shortfall(self, progress: Progress) -> str:
        return " and ".join(rule.shortfall(progress) for rule in self.rules)


def _any(values):
    return jnp.any(jnp.stack([jnp.asarray(value) for value in values]))


def default_tolerance(params: Params) -> float:
    """Return the default tolerance of `GradientNorm` for the dtype of `params`."""
    return _TOLERANCE_64 if float_dtype(params) == jnp.float64 else _TOLERANCE_32


def rule_for_strength(params: Params, strength: Scalar | float) -> GradientNorm:
    """Return the rule for a penalty that sets parameters to zero.

    A parameter becomes nonzero when its gradient exceeds the strength of the penalty,
    which must not be hidden by the tolerance: it is a tenth of the strength or the
    default, whichever is smaller.

    >>> rule = rule_for_strength(jnp.zeros(2), 2e-5)
    >>> round(float(rule.tolerance) * 1e6, 3)
    2.0
    """
    tolerance = _TOLERANCE_PER_STRENGTH * strength
    return GradientNorm(
        jnp.minimum(default_tolerance(params), tolerance)  # pyright: ignore
    )
