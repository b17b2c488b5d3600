"""Models small enough to enumerate, asymmetric so that a wrong sign cannot hide."""

import jax
import jax.numpy as jnp

from probjax import ising
from probjax.types import Context


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


class Linear:
    """The loss is the mean over rows of params . x.

    Rows count how often they were refreshed; shared are the last two random draws.
    """

    reduce = staticmethod(lambda values, weights: weights @ values / weights.sum())

    def prepare(self, params, data):
        return data

    def init(self, key, params, data):
        return Context(jnp.zeros(len(data.x)), jnp.zeros(2))

    def refresh(self, key, params, data, context):
        draws = jnp.stack([context.shared[1], jax.random.uniform(key)])
        return Context(context.rows + 1, draws)

    def row(self, params, x, context):
        return params @ x

    def rest(self, params, shared):
        return 0.0


jax.tree_util.register_static(Linear)
LINEAR = Linear()
