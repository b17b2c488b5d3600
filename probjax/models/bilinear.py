"""The bilinear generative model: what basis functions add, and how much of it.

    x = B a + sigma n,    a = (T c) * (P d),    n normal, c Laplace, d >= 0 exponential

with B the basis (Phi in the thesis), T = `linear` (Theta), P = `modulation` (Psi) and
`*` entry by entry. With M sites, K_c entries of c and K_d of d, the joint is
-log p(x, c, d) with all constants,

    |x - Ba|^2 / (2 sigma^2) + M log(sigma sqrt(2 pi)) + sum|c| + K_c log 2 + sum d

(the thesis prints 2 for 2^K_c; the density of d has the constant 1), and infinite where
an entry of d is below zero. Log p(x) is its log Z as an energy of the latents, whose
prior is the base `prior(params)`; samplers keep d within `bounds(params)`.

Open are the lengths of the rows T_l and P_l, which the column B_l can take on; two of
the three signs of T_l, P_l and B_l; the sign of each column of T, as c has any; and the
orders of the a_l, of c and of d. Entries of d have neither sign nor scale to give away.
`canonical` settles all of them. The noise is held by `chart`, as for `linear`.

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
from probjax.models.canonical import lengths, longest_first, signs
from probjax.types import Array, Float, PRNGKeyArray, Scalar


class Params(NamedTuple):
    """The basis, what makes up its coefficients, and the noise.

    >>> params = init(jax.random.key(0), 4, 3, num_positive=2)
    >>> params.basis.shape, params.linear.shape, params.modulation.shape
    ((4, 3), (3, 3), (3, 2))
    """

    basis: Float[Array, "site coefficient"]
    """B: columns are what one coefficient adds to the data."""
    linear: Float[Array, "coefficient signed"]
    """T: what the signed latents c make of the coefficients."""
    modulation: Float[Array, "coefficient positive"]
    """P: by how much the positive latents d multiply them."""
    noise: Scalar
    """sigma, the standard deviation of what is left at each site."""


class Latents(NamedTuple):
    """What is behind one row of data.

    >>> latents = Latents(c=jnp.array([1.0, -2.0, 0.0]), d=jnp.array([0.5, 1.0]))
    >>> params = init(jax.random.key(0), 4, 3, num_positive=2)
    >>> float(prior(params).energy(latents))  # 1 + 2 + 0.5 + 1
    4.5
    """

    c: Float[Array, " signed"]
    """Laplace variables."""
    d: Float[Array, " positive"]
    """Exponential variables, not below zero."""


def init(
    key: PRNGKeyArray,
    size: int,
    num_coefficients: int,
    *,
    num_signed: int | None = None,
    num_positive: int,
    noise: float = 0.1,
) -> Params:
    """Normal basis functions of length about 1; modulations about 1, none negative.

    Args:
        size: number of sites.
        num_coefficients: number of basis functions.
        num_signed: entries of c; as many as coefficients if None.
        num_positive: entries of d.
        noise: sigma.

    >>> params = init(jax.random.key(0), 4, 3, num_signed=5, num_positive=2, noise=0.5)
    >>> params.linear.shape, float(params.modulation.min()) >= 0, float(params.noise)
    ((3, 5), True, 0.5)
    """
    num_signed = num_coefficients if num_signed is None else num_signed
    check_count("size", size)
    check_count("num_coefficients", num_coefficients)
    check_count("num_signed", num_signed)
    check_count("num_positive", num_positive)
    if not 0 < noise < math.inf:
        raise ValueError(f"noise must be positive and finite, got {noise}")
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
    """How much of each basis function there is: a = (T c) * (P d).

    >>> ones = jnp.ones((1, 1))
    >>> params = Params(ones, 2 * ones, 3 * ones, jnp.array(0.1))
    >>> coefficients(params, Latents(jnp.array([1.0]), jnp.array([0.5]))).tolist()
    [3.0]
    """
    # States first: over many of them these are products without transposes.
    return (latents.c @ params.linear.T) * (latents.d @ params.modulation.T)


def joint(params: Params, x: Float[Array, " site"], latents: Latents) -> Scalar:
    """-log p(x, c, d).

    >>> ones = jnp.ones((1, 1))
    >>> params, x = Params(ones, 2 * ones, 3 * ones, jnp.array(1.0)), jnp.array([3.0])
    >>> latents = Latents(jnp.array([1.0]), jnp.array([0.5]))
    >>> round(float(joint(params, x, latents)), 4)  # log(2 pi) / 2 + 1 + log 2 + 0.5
    3.1121
    """
    _check(params, x, latents)
    base = prior(params)
    sums = coefficients(params, latents) @ params.basis.T
    apart = (x - sums) / params.noise
    each = jnp.log(params.noise) + math.log(2 * math.pi) / 2
    misfit = jnp.sum(apart**2) / 2 + len(x) * each
    return misfit + base.energy(latents) + base.log_z.astype(misfit.dtype)


def prior(params: Params) -> Product:
    """The prior of the latents, as a base.

    >>> base = prior(init(jax.random.key(0), 4, 3, num_positive=2))
    >>> float(base.energy(Latents(-jnp.ones(3), jnp.ones(2))))
    5.0
    """
    signed, positive = params.linear.shape[1], params.modulation.shape[1]
    return Product(Latents._make([Laplace(signed), Exponential(positive)]))


def bounds(params: Params) -> Bounds:
    """Where samplers must keep the latents: d at zero or above.

    >>> bounds(init(jax.random.key(0), 4, 3, num_positive=2)).lower.tolist()
    [-inf, -inf, -inf, 0.0, 0.0]
    """
    signed, positive = params.linear.shape[1], params.modulation.shape[1]
    free, none = jnp.full(signed, -jnp.inf), jnp.zeros(positive)
    return Bounds(lower=jnp.concatenate([free, none]))


def sample(
    key: PRNGKeyArray, params: Params, *, num_draws: int
) -> tuple[Float[Array, "draw site"], Latents]:
    """Draws of `(x, latents)`.

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
    """A chart for `fit` that holds the noise, and lets all else move.

    >>> params = init(jax.random.key(0), 4, 3, num_positive=2, noise=0.5)
    >>> found = chart(params).inverse(jax.tree.map(jnp.zeros_like, params))
    >>> float(jnp.abs(found.basis).max()), float(found.noise)
    (0.0, 0.5)
    """
    return Frozen(params, Params._make([True, True, True, False]))


def canonical(params: Params) -> Params:
    """The same model: rows of T and P of length 1, signs and orders settled.

    The largest entries of the columns of B and of T and of the rows of P are above
    zero; coefficients are in the order of the lengths of columns of B, c and d in that
    of the columns of T and of P.

    >>> ones = jnp.ones((1, 1))
    >>> found = canonical(Params(-ones, 2 * ones, 3 * ones, jnp.array(0.1)))
    >>> [float(leaf.sum()) for leaf in found[:3]]
    [6.0, 1.0, 1.0]
    """
    basis, linear, modulation, noise = params
    basis = basis * (lengths(linear) * lengths(modulation))[None]
    upright, basis_signs = signs(modulation), signs(basis.T)
    linear = linear / lengths(linear)[:, None] * (upright * basis_signs)[:, None]
    modulation = modulation / lengths(modulation)[:, None] * upright[:, None]
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
            f"params are of {size} sites, {signed} signed and {positive} positive "
            f"latents, got x, c and d of shapes {shapes}"
        )
