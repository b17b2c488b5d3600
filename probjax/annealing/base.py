"""Distributions that can be drawn from and normalised: what others start from.

    p(x) = exp(-energy(x) - log_z)

A base is a recipe with a known `log_z`. Noise-contrastive estimation tells data from
its draws.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import softplus

from probjax.connectivity.flips import binary
from probjax.data import as_data, num_rows, refuse_mask
from probjax.types import (
    Array,
    ArrayLike,
    Data,
    Float,
    PRNGKeyArray,
    Scalar,
    check_count,
    floating,
    holds,
    recipe,
    static,
)


@recipe
class Gaussian:
    """Independent normal entries.

    Args:
        size: number of entries of a state.
        mean: of each entry, or of all.
        scale: standard deviations, likewise.
    """

    size: int = static()
    mean: ArrayLike = 0.0
    scale: ArrayLike = 1.0

    def __post_init__(self):
        _check("mean", self.mean, self.size)
        _check("scale", self.scale, self.size)
        if not holds(_is_positive, self.scale):
            raise ValueError(f"scale must be positive, got {self.scale}")

    @property
    def log_z(self) -> Scalar:
        scales = jnp.broadcast_to(jnp.asarray(self.scale, float), (self.size,))
        return self.size / 2 * jnp.log(2 * jnp.pi) + jnp.sum(jnp.log(scales))

    def prepare(self, x: Float[Array, "row site"]) -> Float[Array, "row site"]:
        return _of_size(floating(x), self.size)

    def sample(self, key: PRNGKeyArray) -> Float[Array, " site"]:
        noise = jax.random.normal(key, (self.size,))
        return jnp.asarray(self.mean) + jnp.asarray(self.scale) * noise

    def energy(self, x: Float[Array, " site"]) -> Scalar:
        return jnp.sum(((x - self.mean) / self.scale) ** 2) / 2


@recipe
class Bernoulli:
    """Independent bits.

    Args:
        size: number of bits of a state.
        log_odds: of each bit to be on, or of all.
    """

    size: int = static()
    log_odds: ArrayLike = 0.0

    def __post_init__(self):
        _check("log_odds", self.log_odds, self.size)

    @property
    def log_z(self) -> Scalar:
        odds = jnp.broadcast_to(jnp.asarray(self.log_odds, float), (self.size,))
        return jnp.sum(softplus(odds))

    def prepare(self, x: Float[Array, "row site"]) -> Float[Array, "row site"]:
        return _of_size(binary(x), self.size)

    def sample(self, key: PRNGKeyArray) -> Float[Array, " site"]:
        chances = jax.nn.sigmoid(jnp.asarray(self.log_odds, float))
        return jax.random.bernoulli(key, chances, (self.size,)).astype(float)

    def energy(self, x: Float[Array, " site"]) -> Scalar:
        return -jnp.sum(self.log_odds * x)


def fit_gaussian(data: ArrayLike | Data) -> Gaussian:
    """Independent normal entries with the means and variances of the data."""
    data = as_data(data)
    refuse_mask(data, "variances are taken of complete rows")
    x = floating(data.x)
    mean = jnp.average(x, 0, data.weights)
    scale = jnp.sqrt(jnp.average((x - mean[None]) ** 2, 0, data.weights))
    return Gaussian(x.shape[1], mean, scale)


def fit_bernoulli(data: ArrayLike | Data) -> Bernoulli:
    """Independent bits with the means of the data, to which one row of halves is added.

    So a bit that never changes keeps finite odds.
    """
    data = as_data(data)
    refuse_mask(data, "means are taken of complete rows")
    x = binary(data.x)
    mean = jnp.average(x, 0, data.weights)
    count = num_rows(data) if data.weights is None else data.weights.sum()
    mean = (count * mean + 0.5) / (count + 1)
    return Bernoulli(x.shape[1], jax.scipy.special.logit(mean))


def _check(name, values, size):
    check_count("size", size)
    if np.shape(values) not in ((), (size,)):
        raise ValueError(
            f"{name} must be one number or one for each of {size} entries, got shape "
            f"{np.shape(values)}"
        )


def _of_size(x, size):
    if x.shape[1:] != (size,):
        raise ValueError(
            f"data must have the {size} entries of the base, got rows of shape "
            f"{x.shape[1:]}"
        )
    return x


def _is_positive(value):
    return value > 0
