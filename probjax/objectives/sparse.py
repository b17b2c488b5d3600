"""Any objective of a model with hidden units, with a cost on how often they are on.

With q_h the mean over rows of the probability that hidden unit h is on,

    loss = objective + strength * sum_h KL(p || q_h),
    KL(p || q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q)),

for a target p. The slope of a term in a unit's log odds is the mean over rows of
(q - p) s (1 - s) / (q (1 - q)), s being its probability in a row. A unit that is always
on or always off is still told the way back.

A penalty knows the parameters alone, while q is of the data. It is a function of a mean
and not a mean over rows, so that it can stand neither inside a row's value (which holds
every row near p, and inside the logarithm of MPF is no sum either) nor be frozen at a
refresh (which is wrong after the first step). `fit` takes it as what it is, over the
rows that each step sees: exact with all rows, in whatever chunks. The q of a minibatch
is noisy, which biases its gradient by order 1 / batch_size.

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
    """`objective` with hidden units held near a share of rows in which they are on.

    Around `Corrupted` it counts the rows as they are; inside it is refused.

    Args:
        objective: any of a model with hidden bits, as `MPF(rbm.energy)`.
        log_odds: `log_odds(params, x)`, of each hidden unit given one row, as
            `rbm.hidden_log_odds`.
        target: p, the share of rows, or one for each unit.
        strength: nats of loss for each nat of divergence from it.

    >>> from probjax import MPF, exact, fit, rbm
    >>> objective = Sparse(
    ...     MPF(rbm.energy), rbm.hidden_log_odds, target=0.1, strength=10
    ... )
    >>> data, start = exact.states(4)[5:], rbm.init(jax.random.key(0), 4, 2)
    >>> found = fit(jax.random.key(1), objective, start, data).params
    >>> on = jax.vmap(rbm.hidden_means, (None, 0))(found, data).mean(0)
    >>> [round(float(share), 2) for share in on]
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
        refuse_mask(data, "hidden units are of complete rows")
        check_interface("objective", self.objective, Objective, "MPF(energy)")
        data = self.objective.prepare(params, data)
        if has_statistic(self.objective, params, data.x):
            raise ValueError(
                "Sparse around Sparse would lose the inner cost: give one log_odds, "
                "and a target for each unit"
            )
        return data

    def statistic(self, params: Params, x: State) -> Float[Array, " two_hidden"]:
        """Probabilities of each hidden unit to be on, and then of each to be off."""
        odds = self.log_odds(params, x)
        # Off is not 1 - on, which rounds to 0 where a unit is all but always on.
        return jax.nn.sigmoid(jnp.concatenate([odds, -odds]))

    def of_mean(self, mean: Float[Array, " two_hidden"]) -> Scalar:
        """Cost of the units by their mean `statistic`."""
        tiny = jnp.finfo(mean.dtype).tiny
        on, off = jnp.split(jnp.log(jnp.maximum(mean, tiny)), 2)
        p = jnp.broadcast_to(jnp.asarray(self.target, on.dtype), on.shape)
        divergences = p * (jnp.log(p) - on) + (1 - p) * (jnp.log1p(-p) - off)
        return self.strength * jnp.sum(divergences)


def _is_share(value):
    return (value > 0) & (value < 1)


def _is_strength(value):
    return value >= 0
