"""Distance from the maximum of a sampled likelihood, from independent groups of chains.

The gradients g_1, ..., g_G of the loss, estimated at one point by G groups of chains,
are equal to the gradient g plus independent errors. So

    d^2 = rows / n * mean over i != j of g_i' F^-1 g_j

has the mean rows g'F^-1 g / n: the mean over n directions of the squared distance in
standard errors of the parameters. The products of one group with itself are left out,
because they contain the square of its error.

F is the covariance over rows of data. In some directions the model varies far more than
the data, for example if a chain is in a state in which most bits are on, and the errors
of a few groups then dominate all products. With C the covariance of the mean of the
groups, F is replaced by F + rows C along the directions in which rows C is more than
twice as large, relative to F, as in the median direction of the groups. In place of the
distance along these directions, which the chains do not determine, d^2 contains their
share of the trace of rows F^-1 C: the point was found by chains of the same kind.
"""

import jax.numpy as jnp

from probjax.types import Array, Float, Scalar

_EXCESS = 2.0


def group_distance(
    gram: Float[Array, "group group"], num_directions: Scalar
) -> tuple[Scalar, Scalar]:
    """Return d^2, which may be negative, and its standard error, by the jackknife.

    Args:
        gram: rows * g_i' F^-1 g_j.
        num_directions: n, the number of parameters.

    >>> import jax
    >>> close, error = jax.jit(group_distance)(jnp.full((4, 4), 12.0), 3.0)
    >>> float(close), float(error)
    (4.0, 0.0)
    """
    count = len(gram)
    centring = jnp.eye(count) - 1 / count
    errors = centring @ gram @ centring / (count * (count - 1))
    sizes, directions = jnp.linalg.eigh(errors)
    excess = jnp.maximum(sizes - _EXCESS * jnp.median(sizes), 0)
    share = excess / jnp.maximum(sizes, jnp.finfo(sizes.dtype).tiny)
    # Products of the gradients with the directions v for which F + sum of vv' holds.
    along = gram @ centring @ directions / jnp.sqrt(count * (count - 1.0))
    along = along * jnp.sqrt(share)[None]
    products = gram - (along / (1 + excess)[None]) @ along.T
    products = products / (num_directions - jnp.sum(excess / (1 + excess)))
    everything = _mean_of_pairs(products.sum(), jnp.trace(products), count)
    of_group, own = products.sum(1), jnp.diagonal(products)
    without = _mean_of_pairs(
        products.sum() - 2 * of_group + own, jnp.trace(products) - own, count - 1
    )
    spread = jnp.sum((without - without.mean()) ** 2)
    unresolved = excess.sum() / num_directions
    return everything + unresolved, jnp.sqrt((count - 1) / count * spread)


def _mean_of_pairs(total, diagonal, count):
    return (total - diagonal) / (count * (count - 1))


def correlation(
    first: Float[Array, "group n"],
    second: Float[Array, "group n"],
    weights: Float[Array, " n"],
) -> Scalar:
    """Correlation of the errors of groups at two times, over groups and entries.

    >>> import jax
    >>> x = jnp.array([[1.0, 0.0], [0.0, 2.0]])
    >>> round(float(jax.jit(correlation)(x, 3 * x, jnp.ones(2))), 4)
    1.0
    """
    first = (first - first.mean(0)[None]) * weights[None]
    second = (second - second.mean(0)[None]) * weights[None]
    size = jnp.sqrt(jnp.sum(first**2) * jnp.sum(second**2))
    return jnp.sum(first * second) / jnp.maximum(size, jnp.finfo(size.dtype).tiny)
