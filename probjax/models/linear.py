"""Linear generative models: data are a weighted sum of basis functions, plus noise.

    x = B a + sigma n,    n normal,
    a normal (`gaussian`, principal components) or Laplace (`laplace`, sparse coding)

With M sites and L latents the joint energies are -log p(x, a), with all constants:

    gaussian:  |x - Ba|^2 / (2 sigma^2) + M log(sigma sqrt(2 pi))
               + |a|^2 / 2 + L log(2 pi) / 2
    laplace:   |x - Ba|^2 / (2 sigma^2) + M log(sigma sqrt(2 pi))
               + sum_l |a_l| + L log 2

(the thesis prints 2 for 2^L). So log p(x) is the log Z of the joint energy as an energy
of `a`. To estimate it by annealing, use the prior as the base: `gaussian_prior(params)`
or `laplace_prior(params)`. With a normal prior log p(x) is known, because x is normal
with covariance BB' + sigma^2 I.

The data do not determine the order and the signs of the basis functions. They determine
their lengths, because the priors have scale 1. With a normal prior they do not
determine rotations of the latents either, only BB'. `laplace_canonical` fixes order and
signs, `gaussian_canonical` also the rotation. In the thesis sigma is fixed at 0.1.
`chart` fixes it at its current value; with `charts.Positive` on the noise instead, it
is fitted and stays positive.

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
from probjax.models.checks import check_positive
from probjax.models.symmetries import longest_first, signs
from probjax.types import Array, Float, PRNGKeyArray, Scalar


class Params(NamedTuple):
    """Basis functions, and the standard deviation of the noise.

    >>> params = Params(basis=jnp.array([[1.0], [2.0]]), noise=jnp.array(0.5))
    >>> (params.basis @ jnp.array([3.0])).tolist()  # contribution of a latent of 3
    [3.0, 6.0]
    """

    basis: Float[Array, "site latent"]
    """B: column l is the contribution of a latent a_l = 1 to the data."""
    noise: Scalar
    """sigma, the standard deviation of the noise at each site."""


def init(
    key: PRNGKeyArray, size: int, num_latents: int, *, noise: float = 0.1
) -> Params:
    """Return independent normal basis functions of length about 1.

    Args:
        size: number of sites.
        num_latents: number of basis functions.
        noise: sigma, positive.

    >>> params = init(jax.random.key(0), 4, 3, noise=0.5)
    >>> params.basis.shape, float(params.noise)
    ((4, 3), 0.5)
    """
    check_count("size", size)
    check_count("num_latents", num_latents)
    check_positive("noise", noise)
    basis = random.normal(key, (size, num_latents)) / math.sqrt(size)
    return Params(basis, jnp.asarray(noise, basis.dtype))


def gaussian(
    params: Params, x: Float[Array, " site"], a: Float[Array, " latent"]
) -> Scalar:
    """Joint energy -log p(x, a) with a normal prior.

    >>> params, x = Params(jnp.array([[2.0]]), jnp.array(1.0)), jnp.array([2.0])
    >>> round(float(gaussian(params, x, jnp.ones(1))), 4)  # log(2 pi) + 1/2
    2.3379
    """
    prior = jnp.sum(a**2) / 2 + len(a) * math.log(2 * math.pi) / 2
    return _residual_energy(params, x, a) + prior


def laplace(
    params: Params, x: Float[Array, " site"], a: Float[Array, " latent"]
) -> Scalar:
    """Joint energy -log p(x, a) with a Laplace prior.

    >>> params, x = Params(jnp.array([[2.0]]), jnp.array(1.0)), jnp.array([2.0])
    >>> round(float(laplace(params, x, jnp.ones(1))), 4)  # log(2 pi) / 2 + 1 + log 2
    2.6121
    """
    prior = jnp.sum(jnp.abs(a)) + len(a) * math.log(2)
    return _residual_energy(params, x, a) + prior


def gaussian_log_likelihood(params: Params, x: Float[Array, " site"]) -> Scalar:
    """Log p(x) with a normal prior, where x has covariance BB' + sigma^2 I.

    >>> params = Params(jnp.array([[0.0]]), jnp.array(1.0))
    >>> round(float(gaussian_log_likelihood(params, jnp.zeros(1))), 4)  # -log(2 pi) / 2
    -0.9189
    """
    basis, noise = params
    _check(params, x, basis[0])
    noise_covariance = noise**2 * jnp.eye(len(x), dtype=basis.dtype)
    factor = jnp.linalg.cholesky(basis @ basis.T + noise_covariance)
    whitened = solve_triangular(factor, x, lower=True)
    log_scales = jnp.sum(jnp.log(jnp.diagonal(factor)))
    return -jnp.sum(whitened**2) / 2 - log_scales - len(x) * math.log(2 * math.pi) / 2


def gaussian_posterior_sample(
    key: PRNGKeyArray, params: Params, x: Float[Array, " site"]
) -> Float[Array, " latent"]:
    """Draw `a` from its exact posterior given `x`, with a normal prior.

    The posterior is normal with precision Q = I + B'B / sigma^2 and mean
    Q^-1 B'x / sigma^2.

    >>> params = Params(2 * jnp.eye(2), jnp.array(1e-3))
    >>> x = jnp.array([2.0, 6.0])
    >>> gaussian_posterior_sample(jax.random.key(0), params, x).round().tolist()
    [1.0, 3.0]
    """
    basis, noise = params
    _check(params, x, basis[0])
    latents = basis.shape[1]
    identity = jnp.eye(latents, dtype=basis.dtype)
    factor = jnp.linalg.cholesky(identity + basis.T @ basis / noise**2)
    mean = cho_solve((factor, True), basis.T @ x / noise**2)
    normals = random.normal(key, (latents,), basis.dtype)
    return mean + solve_triangular(factor, normals, trans="T", lower=True)


def sample_gaussian(
    key: PRNGKeyArray, params: Params, *, num_draws: int
) -> tuple[Float[Array, "draw site"], Float[Array, "draw latent"]]:
    """Return `num_draws` draws of `(x, a)` with a normal prior.

    >>> params = init(jax.random.key(0), 4, 3)
    >>> x, a = sample_gaussian(jax.random.key(1), params, num_draws=5)
    >>> x.shape, a.shape
    ((5, 4), (5, 3))
    """
    return _generate(key, params, num_draws, random.normal)


def sample_laplace(
    key: PRNGKeyArray, params: Params, *, num_draws: int
) -> tuple[Float[Array, "draw site"], Float[Array, "draw latent"]]:
    """Return `num_draws` draws of `(x, a)` with a Laplace prior.

    >>> params = init(jax.random.key(0), 4, 3)
    >>> x, a = sample_laplace(jax.random.key(1), params, num_draws=5)
    >>> x.shape, a.shape
    ((5, 4), (5, 3))
    """
    return _generate(key, params, num_draws, jax.random.laplace)


def gaussian_prior(params: Params) -> Gaussian:
    """Normal prior of the latents, as a base.

    >>> prior = gaussian_prior(init(jax.random.key(0), 4, 3))
    >>> float(prior.energy(jnp.ones(3)))
    1.5
    """
    return Gaussian(params.basis.shape[1])


def laplace_prior(params: Params) -> Laplace:
    """Laplace prior of the latents, as a base.

    >>> prior = laplace_prior(init(jax.random.key(0), 4, 3))
    >>> float(prior.energy(jnp.ones(3)))
    3.0
    """
    return Laplace(params.basis.shape[1])


def chart(params: Params) -> Frozen:
    """Chart for `fit` that fixes the noise at its current value.

    >>> params = Params(jnp.eye(2), jnp.array(0.5))
    >>> found = chart(params).inverse(Params(2 * jnp.eye(2), jnp.array(7.0)))
    >>> found.basis.tolist(), float(found.noise)
    ([[2.0, 0.0], [0.0, 2.0]], 0.5)
    """
    return Frozen(params, Params._make([True, False]))


def laplace_canonical(params: Params) -> Params:
    """Parameters of the same model with ordered basis functions and fixed signs.

    The longest basis function comes first. The entry of largest magnitude of each is
    positive.

    >>> params = Params(jnp.array([[1.0, 2.0], [0.5, -3.0]]), jnp.array(0.1))
    >>> laplace_canonical(params).basis.tolist()
    [[-2.0, 1.0], [3.0, 0.5]]
    """
    rows = params.basis.T * signs(params.basis.T)[:, None]
    return params._replace(basis=rows[longest_first(rows)].T)


def gaussian_canonical(params: Params) -> Params:
    """Parameters with orthogonal basis functions and the same log p(x).

    This holds for a normal prior. The basis functions are the principal axes of BB',
    each with the standard deviation along it as its length. If there are more latents
    than sites, the remaining basis functions are zero.

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


def noise_energy(residual: Float[Array, " site"], noise: Scalar) -> Scalar:
    """-log of the density of normal noise with standard deviation `noise`.

    Args:
        residual: difference between the data and their mean at each site.

    >>> round(float(noise_energy(jnp.zeros(1), jnp.array(1.0))), 4)  # log(2 pi) / 2
    0.9189
    """
    log_width = jnp.log(noise) + math.log(2 * math.pi) / 2
    return jnp.sum((residual / noise) ** 2) / 2 + len(residual) * log_width


def _residual_energy(params, x, a):
    _check(params, x, a)
    return noise_energy(x - params.basis @ a, params.noise)


def _check(params, x, a):
    size, latents = params.basis.shape
    if x.shape != (size,) or a.shape != (latents,):
        raise ValueError(
            f"x and a must have the {size} sites and {latents} latents of params, got "
            f"shapes {x.shape} and {a.shape}"
        )
