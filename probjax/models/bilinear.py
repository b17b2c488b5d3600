"""The bilinear generative model: coefficients are products of two sets of latents.

    x = B a + sigma n,    a = (T c) * (P d),    n normal, c Laplace, d >= 0 exponential

Here B is the basis (Phi in the thesis), T = `linear` (Theta), P = `modulation` (Psi),
and `*` multiplies entry by entry. With M sites and K_c entries of c, the joint energy
is -log p(x, c, d) with all constants,

    |x - Ba|^2 / (2 sigma^2) + M log(sigma sqrt(2 pi)) + sum|c| + K_c log 2 + sum d

(the thesis prints 2 for 2^K_c; the density of d has the constant 1), and infinite if an
entry of d is negative. Log p(x) is the log Z of the joint energy as an energy of the
latents. To estimate it by annealing, use the base `prior(params)` and a sampler with
`bounds(params)`, which keep d at 0 or above.

The model does not change if the lengths of the rows T_l and P_l are moved to the column
B_l, if two of T_l, P_l and B_l change their sign, if a column of T changes its sign (c
is symmetric), or if the coefficients a_l, the entries of c or those of d are reordered.
The signs and the scales of d are fixed by its prior. `canonical` picks one of all these
equivalent parameters. `chart` fixes the noise, as for `linear`.

Reference: thesis, "Hamiltonian Annealed Importance Sampling", bilinear generative;
Culpepper, Sohl-Dickstein and Olshausen, ICCV (2011).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.bases.continuous import Exponential, Laplace, Product
from probjax.checks import check_count
from probjax.fitting.charts import Frozen
from probjax.leapfrog import Bounds
from probjax.models.checks import check_positive
from probjax.models.linear import noise_energy
from probjax.models.symmetries import lengths, longest_first, signs
from probjax.types import Array, Float, PRNGKeyArray, Scalar


class Params(NamedTuple):
    """Basis functions, matrices that make their coefficients, and the noise.

    >>> params = init(jax.random.key(0), 4, 3, num_positive=2)
    >>> params.basis.shape, params.linear.shape, params.modulation.shape
    ((4, 3), (3, 3), (3, 2))
    """

    basis: Float[Array, "site coefficient"]
    """B: column l is the contribution of a coefficient a_l = 1 to the data."""
    linear: Float[Array, "coefficient signed"]
    """T: its product with the signed latents c is the first factor of a."""
    modulation: Float[Array, "coefficient positive"]
    """P: its product with the positive latents d is the second factor of a."""
    noise: Scalar
    """sigma, the standard deviation of the noise at each site."""


class Latents(NamedTuple):
    """Latent variables of one row of data.

    >>> latents = Latents(c=jnp.array([1.0, -2.0, 0.0]), d=jnp.array([0.5, 1.0]))
    >>> params = init(jax.random.key(0), 4, 3, num_positive=2)
    >>> float(prior(params).energy(latents))  # 1 + 2 + 0.5 + 1
    4.5
    """

    c: Float[Array, " signed"]
    """Laplace variables."""
    d: Float[Array, " positive"]
    """Exponential variables, 0 or above."""


def init(
    key: PRNGKeyArray,
    size: int,
    num_coefficients: int,
    *,
    num_signed: int | None = None,
    num_positive: int,
    noise: float = 0.1,
) -> Params:
    """Return random parameters with basis functions of length about 1.

    The entries of B and T are normal. Those of P are uniform and not negative, so that
    P d has a mean of about 1.

    Args:
        size: number of sites.
        num_coefficients: number of basis functions.
        num_signed: number of entries of c; None for `num_coefficients`.
        num_positive: number of entries of d.
        noise: sigma, positive.

    >>> params = init(jax.random.key(0), 4, 3, num_signed=5, num_positive=2, noise=0.5)
    >>> params.linear.shape, float(params.modulation.min()) >= 0, float(params.noise)
    ((3, 5), True, 0.5)
    """
    num_signed = num_coefficients if num_signed is None else num_signed
    check_count("size", size)
    check_count("num_coefficients", num_coefficients)
    check_count("num_signed", num_signed)
    check_count("num_positive", num_positive)
    check_positive("noise", noise)
    keys = random.split(key, 3)
    basis = random.normal(keys[0], (size, num_coefficients)) / math.sqrt(size)
    linear = random.normal(keys[1], (num_coefficients, num_signed))
    modulation = 2 * random.uniform(keys[2], (num_coefficients, num_positive))
    return Params(
        basis,
        linear / math.sqrt(num_signed),
        modulation / num_positive,
        jnp.asarray(noise, basis.dtype),
    )


def coefficients(params: Params, latents: Latents) -> Float[Array, " coefficient"]:
    """Coefficients a = (T c) * (P d) of the basis functions.

    >>> ones = jnp.ones((1, 1))
    >>> params = Params(ones, 2 * ones, 3 * ones, jnp.array(0.1))
    >>> coefficients(params, Latents(jnp.array([1.0]), jnp.array([0.5]))).tolist()
    [3.0]
    """
    # With the state first, these products need no transposes under vmap.
    return (latents.c @ params.linear.T) * (latents.d @ params.modulation.T)


def joint(params: Params, x: Float[Array, " site"], latents: Latents) -> Scalar:
    """Joint energy -log p(x, c, d).

    >>> ones = jnp.ones((1, 1))
    >>> params, x = Params(ones, 2 * ones, 3 * ones, jnp.array(1.0)), jnp.array([3.0])
    >>> latents = Latents(jnp.array([1.0]), jnp.array([0.5]))
    >>> round(float(joint(params, x, latents)), 4)  # log(2 pi) / 2 + 1 + log 2 + 0.5
    3.1121
    """
    _check(params, x, latents)
    base = prior(params)
    mean = coefficients(params, latents) @ params.basis.T
    residual_energy = noise_energy(x - mean, params.noise)
    log_z = base.log_z.astype(residual_energy.dtype)
    return residual_energy + base.energy(latents) + log_z


def prior(params: Params) -> Product:
    """Prior of the latents, as a base.

    >>> base = prior(init(jax.random.key(0), 4, 3, num_positive=2))
    >>> float(base.energy(Latents(-jnp.ones(3), jnp.ones(2))))
    5.0
    """
    signed, positive = params.linear.shape[1], params.modulation.shape[1]
    return Product(Latents._make([Laplace(signed), Exponential(positive)]))


def bounds(params: Params) -> Bounds:
    """Bounds of the latents for samplers: d is at 0 or above.

    >>> bounds(init(jax.random.key(0), 4, 3, num_positive=2)).lower.tolist()
    [-inf, -inf, -inf, 0.0, 0.0]
    """
    signed, positive = params.linear.shape[1], params.modulation.shape[1]
    no_bound, zero = jnp.full(signed, -jnp.inf), jnp.zeros(positive)
    return Bounds(lower=jnp.concatenate([no_bound, zero]))


def sample(
    key: PRNGKeyArray, params: Params, *, num_draws: int
) -> tuple[Float[Array, "draw site"], Latents]:
    """Return `num_draws` draws of `(x, latents)`.

    >>> params = init(jax.random.key(0), 4, 3, num_positive=2)
    >>> x, latents = sample(jax.random.key(1), params, num_draws=5)
    >>> x.shape, latents.c.shape, latents.d.shape, bool((latents.d >= 0).all())
    ((5, 4), (5, 3), (5, 2), True)
    """
    check_count("num_draws", num_draws)
    latent_key, noise_key = random.split(key)
    dtype = params.basis.dtype
    keys = jax.random.split(latent_key, num_draws)
    latents = jax.vmap(prior(params).sample)(keys)
    latents = jax.tree.map(lambda leaf: leaf.astype(dtype), latents)
    a = jax.vmap(coefficients, (None, 0))(params, latents)
    noise = random.normal(noise_key, (num_draws, len(params.basis)), dtype)
    return a @ params.basis.T + params.noise * noise, latents


def chart(params: Params) -> Frozen:
    """Chart for `fit` that fixes the noise at its current value.

    >>> params = init(jax.random.key(0), 4, 3, num_positive=2, noise=0.5)
    >>> found = chart(params).inverse(jax.tree.map(jnp.zeros_like, params))
    >>> float(jnp.abs(found.basis).max()), float(found.noise)
    (0.0, 0.5)
    """
    return Frozen(params, Params._make([True, True, True, False]))


def canonical(params: Params) -> Params:
    """Parameters of the same model in a canonical form.

    Rows of T and P have length 1. In each column of B, column of T and row of P, the
    entry of largest magnitude is positive. Coefficients are sorted by the length of
    their column of B, and the entries of c and d by that of their column of T or P, the
    longest first.

    >>> ones = jnp.ones((1, 1))
    >>> found = canonical(Params(-ones, 2 * ones, 3 * ones, jnp.array(0.1)))
    >>> [float(leaf.sum()) for leaf in found[:3]]
    [6.0, 1.0, 1.0]
    """
    basis, linear, modulation, noise = params
    basis = basis * (lengths(linear) * lengths(modulation))[None]
    row_signs, basis_signs = signs(modulation), signs(basis.T)
    linear = linear / lengths(linear)[:, None] * (row_signs * basis_signs)[:, None]
    modulation = modulation / lengths(modulation)[:, None] * row_signs[:, None]
    basis = basis * basis_signs[None]
    linear = linear * signs(linear.T)[None]
    order, signed = longest_first(basis.T), longest_first(linear.T)
    positive = longest_first(modulation.T)
    return Params(
        basis[:, order],
        linear[order][:, signed],
        modulation[order][:, positive],
        noise,
    )


def _check(params, x, latents):
    (size, count), signed = params.basis.shape, params.linear.shape[1]
    positive = params.modulation.shape[1]
    if len(params.linear) != count or len(params.modulation) != count:
        raise ValueError(
            f"params must have a row of linear and of modulation for each of {count} "
            f"basis functions, got {len(params.linear)} and {len(params.modulation)}"
        )
    shapes = (x.shape, latents.c.shape, latents.d.shape)
    if shapes != ((size,), (signed,), (positive,)):
        raise ValueError(
            f"x, c and d must have the {size} sites, {signed} signed and {positive} "
            f"positive latents of params, got shapes {shapes}"
        )
