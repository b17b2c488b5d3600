"""Normalised distributions of real states, and products of normalised distributions.

    p(x) = exp(-energy(x) - log_z)

A base is a recipe with a known `log_z`. Annealing starts from draws of a base, noise
contrastive estimation uses one as its noise, and the priors of generative models are
bases. The unbound method, such as `Gaussian.energy`, has the signature of a model's
energy, with the base in place of `params`, so it can be a term of a `Potential`.
"""

from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammaln

from probjax import random
from probjax.checks import check_count, holds, is_finite, namespace
from probjax.interfaces import Base
from probjax.recipe import recipe, static
from probjax.trees import floating
from probjax.types import (
    Array,
    ArrayLike,
    Domain,
    Float,
    PRNGKeyArray,
    PyTree,
    Scalar,
    State,
)


@recipe
class Gaussian(Base):
    """Normal entries, independent unless `scale` is a matrix.

    Args:
        size: number of entries of a state.
        mean: mean of each entry, or one number for all entries.
        scale: standard deviation of each entry, or one number for all entries; or a
            lower triangular matrix A with a positive diagonal, for the covariance AA'.

    >>> base = Gaussian(2, mean=1.0, scale=2.0)
    >>> float(base.energy(jnp.array([1.0, 5.0])))
    2.0
    >>> base.sample(jax.random.key(0)).shape
    (2,)
    """

    size: int = static()
    mean: ArrayLike = 0.0
    scale: ArrayLike = 1.0

    def __post_init__(self):
        check_entries("mean", self.mean, self.size)
        if np.ndim(self.scale) == 2:
            _check_factor(self.scale, self.size)
        else:
            check_positive("scale", self.scale, self.size)

    @property
    def domain(self) -> Domain:
        return "reals"

    @property
    def log_z(self) -> Scalar:
        scale = jnp.asarray(self.scale, float)
        scales = jnp.diagonal(scale) if scale.ndim == 2 else per_entry(scale, self.size)
        return self.size / 2 * jnp.log(2 * jnp.pi) + jnp.sum(jnp.log(scales))

    def prepare(self, x: Float[Array, "row site"]) -> Float[Array, "row site"]:
        return check_size(floating(x), self.size)

    def sample(self, key: PRNGKeyArray) -> Float[Array, " site"]:
        noise, scale = random.normal(key, (self.size,)), jnp.asarray(self.scale)
        spread = scale @ noise if scale.ndim == 2 else scale * noise
        return jnp.asarray(self.mean) + spread

    def energy(self, x: Float[Array, " site"]) -> Scalar:
        deviation = x - self.mean
        if np.ndim(self.scale) == 2:
            return jnp.sum(solve_triangular(self.scale, deviation, lower=True) ** 2) / 2
        return jnp.sum((deviation / self.scale) ** 2) / 2


@recipe
class Laplace(Base):
    """Independent entries with densities exp(-|x - mean| / scale) / (2 scale).

    Args:
        size: number of entries of a state.
        mean: mean of each entry, or one number for all entries.
        scale: mean absolute deviation of each entry, or one number for all entries.

    >>> base = Laplace(2, scale=0.5)
    >>> float(base.log_z), float(base.energy(jnp.array([1.0, -1.0])))
    (0.0, 4.0)
    """

    size: int = static()
    mean: ArrayLike = 0.0
    scale: ArrayLike = 1.0

    def __post_init__(self):
        check_entries("mean", self.mean, self.size)
        check_positive("scale", self.scale, self.size)

    @property
    def domain(self) -> Domain:
        return "reals"

    @property
    def log_z(self) -> Scalar:
        return jnp.sum(jnp.log(2 * per_entry(self.scale, self.size)))

    def prepare(self, x: Float[Array, "row site"]) -> Float[Array, "row site"]:
        return check_size(floating(x), self.size)

    def sample(self, key: PRNGKeyArray) -> Float[Array, " site"]:
        noise = jax.random.laplace(key, (self.size,))
        return jnp.asarray(self.mean) + jnp.asarray(self.scale) * noise

    def energy(self, x: Float[Array, " site"]) -> Scalar:
        return jnp.sum(jnp.abs(x - self.mean) / self.scale)


@recipe
class StudentT(Base):
    """Independent entries with Student's t densities, (1 + z^2 / nu)^(-(nu + 1) / 2).

    Here z = (x - mean) / scale. The heavy tails cover any target with lighter tails.

    Args:
        size: number of entries of a state.
        degrees: degrees of freedom nu of each entry, or one number for all entries.
        mean: location of each entry, or one number for all entries. It is the mean if
            nu is above 1.
        scale: scale of each entry, or one number for all entries. The standard
            deviation is scale sqrt(nu / (nu - 2)) if nu is above 2.

    >>> cauchy = StudentT(1, degrees=1.0)
    >>> round(float(cauchy.log_z), 4)  # log pi
    1.1447
    """

    size: int = static()
    degrees: ArrayLike
    mean: ArrayLike = 0.0
    scale: ArrayLike = 1.0

    def __post_init__(self):
        check_positive("degrees", self.degrees, self.size)
        check_entries("mean", self.mean, self.size)
        check_positive("scale", self.scale, self.size)

    @property
    def domain(self) -> Domain:
        return "reals"

    @property
    def log_z(self) -> Scalar:
        degrees, scale = (
            per_entry(self.degrees, self.size),
            per_entry(self.scale, self.size),
        )
        ratio = gammaln(degrees / 2) - gammaln((degrees + 1) / 2)
        return jnp.sum(jnp.log(scale) + jnp.log(degrees * jnp.pi) / 2 + ratio)

    def prepare(self, x: Float[Array, "row site"]) -> Float[Array, "row site"]:
        return check_size(floating(x), self.size)

    def sample(self, key: PRNGKeyArray) -> Float[Array, " site"]:
        normal_key, gamma_key = random.split(key)
        half = per_entry(self.degrees, self.size) / 2
        # Logarithms, because a gamma variable underflows for few degrees of freedom.
        log_ratio = jax.random.loggamma(gamma_key, half) - jnp.log(half)
        noise = random.normal(normal_key, (self.size,)) * jnp.exp(-log_ratio / 2)
        return jnp.asarray(self.mean) + jnp.asarray(self.scale) * noise

    def energy(self, x: Float[Array, " site"]) -> Scalar:
        squares = ((x - self.mean) / self.scale) ** 2
        return jnp.sum((self.degrees + 1) / 2 * jnp.log1p(squares / self.degrees))


@recipe
class Exponential(Base):
    """Independent entries with densities rate exp(-rate (x - lower)) for x >= lower.

    This base is for states with a lower bound. The energy is infinite below the bound.

    Args:
        size: number of entries of a state.
        rate: 1 / (mean - lower) of each entry, or one number for all entries.
        lower: lower bound of each entry, or one number for all entries.

    >>> base = Exponential(1, rate=2.0, lower=1.0)
    >>> float(base.energy(jnp.array([3.0]))), float(base.energy(jnp.array([0.0])))
    (4.0, inf)
    """

    size: int = static()
    rate: ArrayLike = 1.0
    lower: ArrayLike = 0.0

    def __post_init__(self):
        check_positive("rate", self.rate, self.size)
        check_entries("lower", self.lower, self.size)

    @property
    def domain(self) -> Domain:
        return "reals"

    @property
    def log_z(self) -> Scalar:
        return -jnp.sum(jnp.log(per_entry(self.rate, self.size)))

    def prepare(self, x: Float[Array, "row site"]) -> Float[Array, "row site"]:
        x = check_size(floating(x), self.size)
        if not holds(_is_at_least, x, self.lower):
            raise ValueError(
                f"data must be at least lower={self.lower}, got entries down to "
                f"{np.min(np.asarray(x))}"
            )
        return x

    def sample(self, key: PRNGKeyArray) -> Float[Array, " site"]:
        noise = -jnp.log1p(-random.uniform(key, (self.size,)))
        return jnp.asarray(self.lower) + noise / jnp.asarray(self.rate)

    def energy(self, x: Float[Array, " site"]) -> Scalar:
        above = x - self.lower
        return jnp.sum(jnp.where(above >= 0, self.rate * above, jnp.inf))


@recipe
class Product(Base):
    """Independent parts, each with its own base, for states that are pytrees.

    Args:
        parts: pytree of bases. A state is the same pytree with a state for each base.

    >>> base = Product({"contrast": Exponential(2), "shape": Laplace(3)})
    >>> jax.tree.map(jnp.shape, base.sample(jax.random.key(0)))
    {'contrast': (2,), 'shape': (3,)}
    """

    parts: PyTree

    def __post_init__(self):
        leaves = jax.tree.leaves(self.parts, is_leaf=_is_base)
        if not leaves or not all(map(_is_base, leaves)):
            raise ValueError(
                f"parts must be a pytree of bases, got {self.parts}; try "
                "(Bernoulli(3), Gaussian(2))"
            )

    @property
    def domain(self) -> Domain:
        parts = self._flat[0]
        first = parts[0].domain
        return first if all(part.domain == first for part in parts) else "mixed"

    def num_letters(self) -> int | None:
        first, *others = (part.num_letters() for part in self._flat[0])
        return first if all(other == first for other in others) else None

    @property
    def log_z(self) -> Scalar:
        return reduce(add, (part.log_z for part in self._flat[0]))

    def prepare(self, x: State) -> State:
        parts, form = self._flat
        rows = self._states(x)
        return form.unflatten(p.prepare(y) for p, y in zip(parts, rows, strict=True))

    def sample(self, key: PRNGKeyArray) -> State:
        parts, form = self._flat
        keys = random.split(key, len(parts))
        return form.unflatten(p.sample(k) for p, k in zip(parts, keys, strict=True))

    def energy(self, x: State) -> Scalar:
        pairs = zip(self._flat[0], self._states(x), strict=True)
        return reduce(add, (part.energy(y) for part, y in pairs))

    @property
    def _flat(self) -> tuple[list[Base], Any]:
        return jax.tree.flatten(self.parts, is_leaf=_is_base)

    def _states(self, x):
        parts, form = self._flat
        try:
            return form.flatten_up_to(x)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"x must be a pytree like parts, with a state for each of {len(parts)} "
                f"bases, got another structure ({error})"
            ) from error


def _is_base(part):
    return isinstance(part, Base)


def per_entry(values: ArrayLike, size: int) -> Float[Array, " site"]:
    """Broadcast one number for all entries, or one for each, to an array of entries."""
    return jnp.broadcast_to(jnp.asarray(values, float), (size,))


def check_positive(name: str, values: ArrayLike, size: int) -> None:
    """Raise if `values` are not one positive number, or one for each entry."""
    check_entries(name, values, size)
    if not holds(_is_positive, values):
        raise ValueError(f"{name} must be positive, got {values}")


def check_entries(name: str, values: ArrayLike, size: int) -> None:
    """Raise if `values` are not one finite number, or one for each entry."""
    if np.ndim(size):
        raise ValueError(
            "size must be the number of entries of a state, got an array of shape "
            f"{np.shape(size)}; try to pass the array as {name}="
        )
    check_count("size", size)
    if np.shape(values) not in ((), (size,)):
        raise ValueError(
            f"{name} must be one number or one for each of {size} entries, got shape "
            f"{np.shape(values)}"
        )
    if not holds(is_finite, values):
        raise ValueError(f"{name} must be finite, got {values}")


def _check_factor(matrix, size):
    """Raise if `matrix` is not a Cholesky factor of a covariance."""
    if np.shape(matrix) != (size, size):
        raise ValueError(
            f"scale must be one number, one for each of {size} entries, or a {size} x "
            f"{size} matrix, got shape {np.shape(matrix)}"
        )
    if not holds(_is_factor, matrix):
        raise ValueError(
            "scale must be a lower triangular matrix with a positive diagonal, got "
            f"{matrix}; try jnp.linalg.cholesky(covariance)"
        )


def check_size(x: Float[Array, "row site"], size: int) -> Float[Array, "row site"]:
    """Return `x`; raise if its rows do not have `size` entries."""
    if x.shape[1:] != (size,):
        raise ValueError(
            f"data must have the {size} entries of the base, got rows of shape "
            f"{x.shape[1:]}"
        )
    return x


def _is_positive(value):
    return value > 0


def _is_at_least(value, lower):
    return value >= lower


def _is_factor(matrix):
    xp = namespace(matrix)
    lower = xp.isfinite(matrix) & (xp.tril(matrix) == matrix)
    return xp.all(lower) & xp.all(xp.diagonal(matrix) > 0)
