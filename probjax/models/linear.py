"""Linear generative models: data are a sum of basis functions, and noise.

    x = B a + sigma n,    n normal,
    a normal (`gaussian`, principal components) or Laplace (`laplace`, sparse coding)

With M sites and L latents the joints are -log p(x, a), with all constants:

    gaussian:  |x - Ba|^2 / (2 sigma^2) + M log(sigma sqrt(2 pi))
               + |a|^2 / 2 + L log(2 pi) / 2
    laplace:   |x - Ba|^2 / (2 sigma^2) + M log(sigma sqrt(2 pi))
               + sum_l |a_l| + L log 2

(the thesis prints 2 for 2^L). So log p(x) is the log Z of the joint as an energy of
`a`, whose prior is a base, `gaussian_prior(params)` or `laplace_prior(params)`. It is
known for the first: x is normal with covariance BB' + sigma^2 I.

The order and the signs of the basis functions are open; their lengths are not, as the
priors are of scale 1. With a normal prior so is every rotation of the latents: only BB'
can be known. `laplace_canonical` settles the former, `gaussian_canonical` all. The
thesis holds sigma at 0.1, and so does `chart`; `charts.Positive` on the noise alone
lets it be fitted, above zero.

Reference: thesis, "Hamiltonian Annealed Importance Sampling", linear generative;
Olshausen and Field, Vision Research 37, 3311 (1997).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular

from probjax import random
from probjax.bases.continuous import Gaussian, Laplace
from probjax.checks import check_count
from probjax.fitting.charts import Frozen
from probjax.models.canonical import longest_first, signs
from probjax.types import Array, Float, PRNGKeyArray, Scalar


class Params(NamedTuple):
    """The basis, and how much of the data it leaves unexplained.

    >>> params = Params(basis=jnp.array([[1.0], [2.0]]), noise=jnp.array(0.5))
    >>> (params.basis @ jnp.array([3.0])).tolist()  # what a latent of 3 adds
    [3.0, 6.0]
    """

    basis: Float[Array, "site latent"]
    """Columns are what one latent adds to the data."""
    noise: Scalar
    """sigma, the standard deviation of what is left at each site."""


def init(
    key: PRNGKeyArray, size: int, num_latents: int, *, noise: float = 0.1
) -> Params:
    """Independent normal basis functions, of length 1 on average.

    Args:
        size: number of sites.
        num_latents: number of basis functions.
        noise: sigma.

    >>> params = init(jax.random.key(0), 4, 3, noise=0.5)
    >>> params.basis.shape, float(params.noise)
    ((4, 3), 0.5)
    """
    check_count("size", size)
    check_count("num_latents", num_latents)
    if not 0 < noise < math.inf:
        raise ValueError(f"noise must be positive and finite, got {noise}")
    basis = random.normal(key, (size, num_latents)) / math.sqrt(size)
    return Params(basis, jnp.asarray(noise, basis.dtype))


def gaussian(
    params: Params, x: Float[Array, " site"], a: Float[Array, " latent"]
) -> Scalar:
    """-log p(x, a) with a normal prior.

    >>> params, x = Params(jnp.array([[2.0]]), jnp.array(1.0)), jnp.array([2.0])
    >>> round(float(gaussian(params, x, jnp.ones(1))), 4)  # log(2 pi) + 1/2
    2.3379
    """
    prior = jnp.sum(a**2) / 2 + len(a) * math.log(2 * math.pi) / 2
    return _misfit(params, x, a) + prior


def laplace(
    params: Params, x: Float[Array, " site"], a: Float[Array, " latent"]
) -> Scalar:
    """-log p(x, a) with a Laplace prior.

    >>> params, x = Params(jnp.array([[2.0]]), jnp.array(1.0)), jnp.array([2.0])
    >>> round(float(laplace(params, x, jnp.ones(1))), 4)  # log(2 pi) / 2 + 1 + log 2
    2.6121
    """
    return _misfit(params, x, a) + jnp.sum(jnp.abs(a)) + len(a) * math.log(2)


def gaussian_log_likelihood(params: Params, x: Float[Array, " site"]) -> Scalar:
    """Log p(x) with a normal prior: x is normal with covariance BB' + sigma^2 I.

    >>> params = Params(jnp.array([[0.0]]), jnp.array(1.0))
    >>> round(float(gaussian_log_likelihood(params, jnp.zeros(1))), 4)  # -log(2 pi) / 2
    -0.9189
    """
    basis, noise = params
    _check(params, x, basis[0])
    own = noise**2 * jnp.eye(len(x), dtype=basis.dtype)
    factor = jnp.linalg.cholesky(basis @ basis.T + own)
    scaled = solve_triangular(factor, x, lower=True)
    log_scales = jnp.sum(jnp.log(jnp.diagonal(factor)))
    return -jnp.sum(scaled**2) / 2 - log_scales - len(x) * math.log(2 * math.pi) / 2


def gaussian_posterior_sample(
    key: PRNGKeyArray, params: Params, x: Float[Array, " site"]
) -> Float[Array, " latent"]:
    """An exact draw of `a` given `x`, with a normal prior.

    It is normal with precision I + B'B / sigma^2 and mean (that)^-1 B'x / sigma^2.

    >>> params = Params(2 * jnp.eye(2), jnp.array(1e-3))
    >>> x = jnp.array([2.0, 6.0])
    >>> gaussian_posterior_sample(jax.random.key(0), params, x).round().tolist()
    [1.0, 3.0]
    """
    basis, noise = params
    _check(params, x, basis[0])
    latents = basis.shape[1]
    own = jnp.eye(latents, dtype=basis.dtype)
    factor = jnp.linalg.cholesky(own + basis.T @ basis / noise**2)
    mean = cho_solve((factor, True), basis.T @ x / noise**2)
    normals = random.normal(key, (latents,), basis.dtype)
    return mean + solve_triangular(factor, normals, trans="T", lower=True)


def sample_gaussian(
    key: PRNGKeyArray, params: Params, *, num_draws: int
) -> tuple[Float[Array, "draw site"], Float[Array, "draw latent"]]:
    """Draws of `(x, a)` with a normal prior.

    >>> params = init(jax.random.key(0), 4, 3)
    >>> x, a = sample_gaussian(jax.random.key(1), params, num_draws=5)
    >>> x.shape, a.shape
    ((5, 4), (5, 3))
    """
    return _generate(key, params, num_draws, random.normal)


def sample_laplace(
    key: PRNGKeyArray, params: Params, *, num_draws: int
) -> tuple[Float[Array, "draw site"], Float[Array, "draw latent"]]:
    """Draws of `(x, a)` with a Laplace prior.

    >>> params = init(jax.random.key(0), 4, 3)
    >>> x, a = sample_laplace(jax.random.key(1), params, num_draws=5)
    >>> x.shape, a.shape
    ((5, 4), (5, 3))
    """
    return _generate(key, params, num_draws, jax.random.laplace)


def gaussian_prior(params: Params) -> Gaussian:
    """The normal prior of the latents, as a base.

    >>> prior = gaussian_prior(init(jax.random.key(0), 4, 3))
    >>> float(prior.energy(jnp.ones(3)))
    1.5
    """
    return Gaussian(params.basis.shape[1])


def laplace_prior(params: Params) -> Laplace:
    """The Laplace prior of the latents, as a base.

    >>> prior = laplace_prior(init(jax.random.key(0), 4, 3))
    >>> float(prior.energy(jnp.ones(3)))
    3.0
    """
    return Laplace(params.basis.shape[1])


def chart(params: Params) -> Frozen:
    """A chart for `fit` that holds the noise, and lets the basis move.

    >>> params = Params(jnp.eye(2), jnp.array(0.5))
    >>> found = chart(params).inverse(Params(2 * jnp.eye(2), jnp.array(7.0)))
    >>> found.basis.tolist(), float(found.noise)
    ([[2.0, 0.0], [0.0, 2.0]], 0.5)
    """
    return Frozen(params, Params._make([True, False]))


def laplace_canonical(params: Params) -> Params:
    """The same model: the longest basis function first, largest entries above zero.

    >>> params = Params(jnp.array([[1.0, 2.0], [0.5, -3.0]]), jnp.array(0.1))
    >>> laplace_canonical(params).basis.tolist()
    [[-2.0, 1.0], [3.0, 0.5]]
    """
    rows = params.basis.T * signs(params.basis.T)[:, None]
    return params._replace(basis=rows[longest_first(rows)].T)


def gaussian_canonical(params: Params) -> Params:
    """The same log p(x) with a normal prior: orthogonal basis functions.

    They are the principal axes of BB', each as long as the standard deviation along it,
    and zeros where there are more latents than sites.

    >>> params = Params(jnp.array([[3.0, 4.0], [0.0, 0.0]]), jnp.array(0.1))
    >>> found = gaussian_canonical(params).basis
    >>> bool(jnp.allclose(found, jnp.array([[5.0, 0.0], [0.0, 0.0]]), atol=1e-4))
    True
    """
    axes, deviations, _ = jnp.linalg.svd(params.basis, full_matrices=False)
    size, latents = params.basis.shape
    found = jnp.zeros((size, latents), axes.dtype)
    found = found.at[:, : len(deviations)].set(axes * deviations[None])
    return laplace_canonical(params._replace(basis=found))


def _generate(key, params, num_draws, prior):
    check_count("num_draws", num_draws)
    latent_key, noise_key = random.split(key)
    (size, latents), dtype = params.basis.shape, params.basis.dtype
    a = prior(latent_key, (num_draws, latents), dtype)
    noise = random.normal(noise_key, (num_draws, size), dtype)
    return a @ params.basis.T + params.noise * noise, a


def _misfit(params, x, a):
    _check(params, x, a)
    apart = (x - params.basis @ a) / params.noise
    each = jnp.log(params.noise) + math.log(2 * math.pi) / 2
    return jnp.sum(apart**2) / 2 + len(x) * each


def _check(params, x, a):
    size, latents = params.basis.shape
    if x.shape != (size,) or a.shape != (latents,):
        raise ValueError(
            f"params are of {size} sites and {latents} latents, got x of shape "
            f"{x.shape} and a of shape {a.shape}"
        )
