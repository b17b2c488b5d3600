"""Models small enough to enumerate, asymmetric so that a wrong sign cannot hide."""

import jax
import jax.numpy as jnp
import numpy as np

from probjax import Data, Objective, StoppingRule, ising, recipe
from probjax.types import Context


@recipe
class AfterSteps(StoppingRule):
    """Stop after a number of steps."""

    most: int

    def is_met(self, progress, data):
        return progress.step >= self.most


def random_ising(seed, size, scale=1.0, edges=None):
    params = ising.init(jax.random.key(seed), size, edges=edges, scale=scale)
    bias = jax.random.normal(jax.random.key(seed + 1000), (size,))
    return ising.Params(scale * bias + 0.3, params.coupling, params.edges)


def plain_energy(params, x):
    """An Ising energy that says nothing of its closed forms."""
    return x @ ising.coupling_matrix(params) @ x


def cubic_energy(params, x):
    """Not quadratic, not linear in its parameters, over a tuple of parameters."""
    weight, bias = params
    return (
        jnp.sum(jnp.log1p((weight @ x) ** 2)) + bias @ x + bias[0] * x[0] * x[1] * x[2]
    )


def cubic_params(seed, size):
    first, second = jax.random.split(jax.random.key(seed))
    return (
        jax.random.normal(first, (size + 1, size)),
        jax.random.normal(second, (size,)),
    )


def counted_states(size):
    """All states of a random Ising model, with their counts among 500 draws."""
    generator = np.random.default_rng(0)
    x = np.arange(2**size)[:, None] >> np.arange(size) & 1
    matrix = generator.normal(scale=0.3, size=(size, size))
    weights = np.exp(-np.sum(x @ matrix * x, axis=1))
    return Data(x, generator.multinomial(500, weights / weights.sum()).astype(float))


@recipe
class Linear(Objective):
    """The loss is the mean over rows of params . x.

    Rows count how often they were refreshed; shared are the last two random draws.
    """

    def prepare(self, params, data):
        return data

    def init(self, key, params, data):
        return Context(jnp.zeros(len(data.x)), jnp.zeros(2))

    def refresh(self, key, params, data, context):
        draws = jnp.stack([context.shared[1], jax.random.uniform(key)])
        return Context(context.rows + 1, draws)

    def row(self, params, x, context):
        return params @ x


LINEAR = Linear()
