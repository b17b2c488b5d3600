"""Stopping rules: conditions under which a round or a fit ends.

    StandardErrors:  distance from the minimum in standard errors < tolerance
    GradientNorm:    max_i |dL/dtheta_i| < tolerance

A rule is a recipe, which is evaluated inside the compiled fit after every evaluation of
the loss. A user's rule inherits from `StoppingRule`:

    @probjax.recipe
    class AfterSteps(probjax.fitting.StoppingRule):
        most: int

        def is_met(self, progress, data):
            return progress.step >= self.most
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import jax.numpy as jnp

from probjax.checks import check_parts, is_concrete
from probjax.data.rows import num_rows
from probjax.fitting.lbfgs import gradient_rounding
from probjax.recipe import recipe
from probjax.trees import float_dtype
from probjax.types import Array, Data, Params, PyTree, Scalar

_TOLERANCE_32, _TOLERANCE_64 = 1e-5, 1e-8
_TOLERANCE_PER_STRENGTH = 0.1
# Weights with a sum below this are probabilities, up to rounding.
_PROBABILITIES = 1.01


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
    distance: Scalar | float = math.inf
    """Distance from the minimum in standard errors; infinite if it is not known."""


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

    @property
    def needs_distance(self) -> bool:
        """Whether the rule uses `progress.distance`, which is computed only then."""
        return False

    def shortfall(self, progress: Progress) -> str:
        """Describe how far a fit that ended too early is from meeting the rule."""
        return "the stopping rule is not met"


@recipe
class StandardErrors(StoppingRule):
    """End a round once the minimum is closer than `tolerance` standard errors.

    The distance is estimated by `probjax.fitting.distance`, for L-BFGS and the proximal
    method. Further descent then would not change any conclusion: the sampling error of
    the estimate is 20 times as large as the distance, in most directions, if
    `tolerance` is 0.05. A fit that comes to rest in a few steps ends once its gradient
    is as small as its rounding error.

    The number of rows is the sum of their weights, which must be counts or shares of
    rows, such as `potts.sequence_weights`. Weights that sum to 1 are taken for
    probabilities. They have no sampling error, and `GradientNorm()` replaces the rule.

    Args:
        tolerance: bound on the distance, above 0.
        rows: number of independent rows, if it is not the sum of the weights, such as
            the number of clusters of correlated rows.

    >>> import jax
    >>> from probjax import PseudoLikelihood, fit, ising
    >>> rows = jax.random.bernoulli(jax.random.key(0), 0.4, (500, 3))
    >>> args = PseudoLikelihood(ising.energy), ising.init(jax.random.key(1), 3), rows
    >>> found = fit(jax.random.key(2), *args, stop=StandardErrors(0.01))
    >>> bool(found.converged)
    True
    """

    tolerance: float = 0.05
    rows: float | None = None

    def __post_init__(self):
        for name, value in {"tolerance": self.tolerance, "rows": self.rows}.items():
            if value is not None and is_concrete(value) and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}; try 0.05")

    def ends_fit(self, progress: Progress, data: Data) -> Array:
        return jnp.asarray(False)

    def on_batches(self) -> None:
        """Return None: steps by minibatches do not converge."""
        return

    @property
    def needs_minimum(self) -> bool:
        return True

    @property
    def needs_distance(self) -> bool:
        return True

    def is_met(self, progress: Progress, data: Data) -> Array:
        total = float(num_rows(data)) if data.weights is None else data.weights.sum()
        distance = progress.distance
        if self.rows is not None:
            distance = distance * jnp.sqrt(self.rows / total)
        rests = progress.gradient_norm <= gradient_rounding(progress.loss)
        rests &= jnp.isfinite(progress.loss) & jnp.isinf(distance)
        vanishes = progress.gradient_norm < default_tolerance(progress.params)
        is_near = rests | (distance < self.tolerance)
        return jnp.where(total > _PROBABILITIES, is_near, vanishes)

    def shortfall(self, progress: Progress) -> str:
        distance = float(progress.distance)
        place = f"{distance:.2g}" if math.isfinite(distance) else "an unknown number of"
        return (
            f"the parameters are {place} standard errors from the minimum (gradient "
            f"norm {float(progress.gradient_norm):.2g}), and not below "
            f"{float(self.tolerance):.2g}"
        )


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

    @property
    def needs_distance(self) -> bool:
        return any(rule.needs_distance for rule in self.rules)

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
