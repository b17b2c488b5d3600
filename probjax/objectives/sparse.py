"""Any objective of a model with hidden units, with a penalty on their mean activity.

With q_h the mean over rows of the probability that hidden unit h is on,

    loss = objective + strength * sum_h KL(p || q_h),
    KL(p || q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q)),

for a target p. With s the probability of a unit in a row, the derivative of a term in
the log odds of the unit is the mean over rows of (q - p) s (1 - s) / (q (1 - q)). It
does not vanish for a unit that is always on or always off.

The term depends on the data through q, so it is not a penalty on the parameters. It is
a function of a mean over rows, and not a mean over rows of a function. It therefore
cannot be part of the value of a row, which would hold the activity in every row near p
(and MPF takes a logarithm of the sum over rows). Nor can q be fixed at a refresh, which
would be wrong after the first step. Instead, `fit` computes q from the rows of each
step: exactly with all rows, also in chunks. With minibatches q is noisy, which biases
the gradient by order 1 / batch_size.

Reference: Hinton, "A practical guide to training restricted Boltzmann machines" (2010),
section 11; Lee, Ekanadham and Ng, NeurIPS 2007, with a squared distance.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY

import jax
import jax.numpy as jnp

from probjax.checks import check_interface, holds
from probjax.data.rows import refuse_mask
from probjax.forwarding import ForwardingObjective
from probjax.interfaces import Objective, has_statistic
from probjax.recipe import recipe, static
from probjax.types import Array, Data, Float, Params, Scalar, State


@recipe
class Sparse(ForwardingObjective):
    """`objective` with a penalty on hidden units whose mean activity differs from p.

    Around `Corrupted`, the activity is computed from the rows themselves; inside
    `Corrupted` it raises an error.

    Args:
        objective: objective of a model with hidden bits, such as `MPF(rbm.energy)`.
        log_odds: `log_odds(params, x)` of each hidden unit given one row, such as
            `rbm.hidden_log_odds`.
        target: p, the fraction of rows in which a unit is on; one number, or one for
            each unit.
        strength: factor of the sum of the KL divergences in the loss.

    >>> from probjax import MPF, exact, fit, rbm
    >>> objective = Sparse(
    ...     MPF(rbm.energy), rbm.hidden_log_odds, target=0.1, strength=10
    ... )
    >>> data, start = exact.states(4)[5:], rbm.init(jax.random.key(0), 4, 2)
    >>> found = fit(jax.random.key(1), objective, start, data).params
    >>> on = jax.vmap(rbm.hidden_means, (None, 0))(found, data).mean(0)
    >>> [round(float(share), 1) for share in on]
    [0.1, 0.1]
    """

    objective: Objective
    log_odds: Callable[[Params, State], Float[Array, " hidden"]] = static()
    _: KW_ONLY
    target: float
    strength: float

    def __post_init__(self):
        if not holds(_is_share, self.target):
            raise ValueError(f"target must be between 0 and 1, got {self.target}")
        if not holds(_is_strength, self.strength):
            raise ValueError(f"strength must not be negative, got {self.strength}")

    def prepare(self, params: Params, data: Data) -> Data:
        refuse_mask(data, "activities of hidden units need complete rows")
        check_interface("objective", self.objective, Objective, "MPF(energy)")
        data = self.objective.prepare(params, data)
        if has_statistic(self.objective, params, data.x):
            raise ValueError(
                "objective must not have a statistic, which Sparse replaces, got "
                f"{type(self.objective).__name__}; try one Sparse with the log_odds of "
                "all units and a target for each"
            )
        return data

    def statistic(self, params: Params, x: State) -> Float[Array, " two_hidden"]:
        """Compute the probabilities of all hidden units to be on, then to be off."""
        odds = self.log_odds(params, x)
        # Not 1 - sigmoid(odds), which rounds to 0 for units that are almost always on.
        return jax.nn.sigmoid(jnp.concatenate([odds, -odds]))

    def of_mean(self, mean: Float[Array, " two_hidden"]) -> Scalar:
        """Compute the penalty from the mean of `statistic`."""
        tiny = jnp.finfo(mean.dtype).tiny
        on, off = jnp.split(jnp.log(jnp.maximum(mean, tiny)), 2)
        p = jnp.broadcast_to(jnp.asarray(self.target, on.dtype), on.shape)
        divergences = p * (jnp.log(p) - on) + (1 - p) * (jnp.log1p(-p) - off)
        return self.strength * jnp.sum(divergences)


def _is_share(value):
    return (value > 0) & (value < 1)


def _is_strength(value):
    return value >= 0
