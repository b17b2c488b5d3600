"""Models small enough to enumerate, asymmetric so that a wrong sign cannot hide."""

import jax
import jax.numpy as jnp

from probjax import ising


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
