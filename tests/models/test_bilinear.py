import itertools
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import flat_of

from probjax import HMC, marginal_log_likelihood
from probjax.models import bilinear
from probjax.models.bilinear import Latents
from probjax.trees import as_array

X = np.array([0.7, -0.9, 0.2])
LATENTS = Latents(np.array([0.4, -2.0]), np.array([0.3, 1.7]))
NUM = 40_000


def model(seed=0, size=3, count=4, signed=2, positive=2, noise=0.3):
    normal = np.random.default_rng(seed).normal
    shapes = (size, count), (count, signed), (count, positive)
    return bilinear.Params(*(as_array(normal(size=s)) for s in shapes), noise)


@partial(jax.jit, static_argnums=0)
def compiled(function, *args):
    return function(*args)


joint_of = partial(compiled, bilinear.joint)


def normal_energy(x, scale):
    """Minus the log density, in NumPy."""
    return np.sum((x / scale) ** 2 / 2 + np.log(scale * np.sqrt(2 * np.pi)), axis=-1)


def test_joint_is_noise_about_the_product_and_priors(x64):
    params = model()
    basis, linear, modulation = map(np.asarray, params[:3])
    mean = basis @ ((linear @ LATENTS.c) * (modulation @ LATENTS.d))
    priors = np.abs(LATENTS.c).sum() + 2 * np.log(2) + LATENTS.d.sum()
    expected = normal_energy(X - mean, 0.3) + priors
    found = joint_of(params, X, LATENTS)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    below = Latents(LATENTS.c, -LATENTS.d)
    assert joint_of(params, X, below) == np.inf


def test_joint_integrates_to_one(x64):
    params = model(size=1, count=1, signed=1, positive=1, noise=0.5)
    step = 0.04
    # Midpoints, which are off by step^2 / 24 at the kink of c and the edge of d.
    c = np.arange(-20, 20, step) + step / 2
    d = np.arange(0, 20, step) + step / 2
    near = np.arange(-3, 3, 0.1)

    def over_noise(c, d):
        latents = Latents(c[None], d[None])
        about = params.basis @ bilinear.coefficients(params, latents)
        joint = jax.vmap(bilinear.joint, (None, 0, None))
        x = (about + near)[:, None]
        return jnp.sum(jnp.exp(-joint(params, x, latents))) * 0.1

    @jax.jit
    def total(c, d):
        return jax.lax.map(lambda c: jax.vmap(over_noise, (None, 0))(c, d).sum(), c)

    found = np.asarray(total(c, d)).sum() * step**2
    np.testing.assert_allclose(found, 1, rtol=step**2 / 8)


def annealed(key, params, x):
    return marginal_log_likelihood(
        key,
        bilinear.joint,
        params,
        bilinear.prior(params),
        x,
        sampler=HMC(0.2, bounds=bilinear.bounds(params)),
        num_particles=400,
        num_steps=200,
    )


@pytest.mark.statistics
def test_annealing_finds_the_likelihood_of_one_site(key):
    params = jax.tree.map(as_array, model(4, 1, 1, 1, 1, noise=0.5))
    data = np.array([[0.3], [-1.2], [2.0]])
    step = 0.02
    c = np.arange(-16, 16, step, dtype=np.float32) + np.float32(step / 2)
    d = np.arange(0, 16, step, dtype=np.float32) + np.float32(step / 2)

    @jax.jit
    @jax.vmap
    def exact(x):
        def row(c):
            joint = jax.vmap(lambda d: bilinear.joint(params, x, Latents(c, d)))
            return jnp.sum(jnp.exp(-joint(d[:, None])))

        return jnp.log(jnp.sum(jax.lax.map(row, c[:, None])) * step**2)

    expected = np.asarray(exact(data))
    noise_only = -normal_energy(data, 0.5)
    assert np.abs(expected - noise_only).max() > 0.5
    found = annealed(key, params, data)
    assert found.stderr < 0.02
    assert abs(float(found.value) - expected.mean()) < 5 * found.stderr
    np.testing.assert_allclose(found.per_row, expected, atol=0.2)
    # Without a basis no latent matters, and every particle has the same weight.
    found = annealed(key, params._replace(basis=as_array(np.zeros((1, 1)))), data)
    np.testing.assert_allclose(found.per_row, noise_only, rtol=1e-5)


def test_draws_have_their_priors_and_noise(x64, key):
    params = model()
    x, latents = jax.jit(partial(bilinear.sample, num_draws=NUM))(key, params)
    chex.assert_shape([x, latents.c, latents.d], [(NUM, 3), (NUM, 2), (NUM, 2)])
    x, latents = jax.tree.map(np.asarray, (x, latents))
    basis, linear, modulation = map(np.asarray, params[:3])
    assert latents.d.min() >= 0
    sizes = np.concatenate([np.abs(latents.c), latents.d], 1)
    # All four are exponential: mean and variance 1, fourth moment about its mean 9.
    assert np.abs((sizes.mean(0) - 1) * np.sqrt(NUM)).max() < 5
    assert np.abs((sizes.var(0) - 1) * np.sqrt(NUM / 8)).max() < 5
    assert np.abs(latents.c.mean(0) * np.sqrt(NUM / 2)).max() < 5
    products = (latents.c @ linear.T) * (latents.d @ modulation.T)
    noise = (x - products @ basis.T) / 0.3
    assert np.abs(noise.mean(0) * np.sqrt(NUM)).max() < 5
    assert np.abs((np.cov(noise.T) - np.eye(3)) * np.sqrt(NUM / 2)).max() < 5


def test_prior_and_bounds_are_of_the_latents_in_their_order(key):
    params = model(signed=3, positive=2)
    draw = jax.jit(bilinear.prior(params).sample)(key)
    assert isinstance(draw, Latents)
    chex.assert_shape([draw.c, draw.d], [(3,), (2,)])
    lower = bilinear.bounds(params).lower
    np.testing.assert_array_equal(lower, [-np.inf] * 3 + [0] * 2)
    data, _ = jax.jit(partial(bilinear.sample, num_draws=2))(key, params)
    bounds = bilinear.bounds(params)
    flat = flat_of(draw)
    bounds.check(flat.size)
    np.testing.assert_array_equal(flat[3:], draw.d)
    assert np.isfinite(joint_of(params, np.asarray(data)[0], draw))


def test_joint_has_the_right_derivatives(x64):
    @jax.jit
    def of_parts(c, d, x, *parts):
        return bilinear.joint(bilinear.Params(*parts), x, Latents(c, d))

    at = tuple(map(np.asarray, (*LATENTS, X, *model())))
    chex.assert_numerical_grads(of_parts, at, order=1)


def test_canonical_forms_of_the_same_model_are_equal(x64):
    params = model(signed=3)
    basis, linear, modulation, noise = map(np.asarray, params)
    first, second = np.array([2.0, -0.5, 1, -3]), np.array([-1.0, 4, 0.2, -2])
    flips = np.array([1.0, -1, -1])
    order, signed = [2, 0, 3, 1], [1, 2, 0]
    changed = bilinear.Params(
        (basis / (first * second)[None])[:, order],
        (linear * first[:, None] * flips[None])[order][:, signed],
        (modulation * second[:, None])[order][:, ::-1],
        noise,
    )
    canonical = partial(compiled, bilinear.canonical)
    form = canonical(params)
    chex.assert_trees_all_close(canonical(changed), form, rtol=1e-10)
    chex.assert_trees_all_close(canonical(form), form, rtol=1e-10)
    np.testing.assert_allclose(np.linalg.norm(form.linear, axis=1), 1)
    np.testing.assert_allclose(np.linalg.norm(form.modulation, axis=1), 1)
    c, d = np.array([0.4, -2.0, 1.1]), np.array([0.3, 1.7])
    there = Latents((flips * c)[signed], d[::-1])
    expected = joint_of(params, X, Latents(c, d))
    np.testing.assert_allclose(joint_of(changed, X, there), expected)
    # The form's own latents are not told; its joint is that of some order and signs.
    signs = 2.0 * (np.arange(8)[:, None] >> np.arange(3) & 1) - 1
    latents = [
        Latents(sign * c[list(places)], d_order)
        for places in itertools.permutations(range(3))
        for sign in signs
        for d_order in (d, d[::-1])
    ]
    rows = jax.tree.map(lambda *leaves: np.stack(leaves), *latents)
    found = jax.jit(jax.vmap(bilinear.joint, (None, None, 0)))(form, X, rows)
    apart = np.abs(np.asarray(found) - np.asarray(expected))
    np.testing.assert_allclose(apart.min(), 0, atol=1e-9)


def test_the_chart_holds_the_noise(key):
    init = partial(bilinear.init, size=3, num_coefficients=4, num_positive=2, noise=0.1)
    params = jax.jit(init)(key)
    chex.assert_shape(params.linear, (4, 4))
    assert np.asarray(params.modulation).min() >= 0
    coordinates = jax.tree.map(lambda leaf: np.asarray(leaf) + 1, params)
    moved = jax.jit(bilinear.chart(params).inverse)(coordinates)
    assert moved.noise == params.noise
    chex.assert_trees_all_close(moved[:3], coordinates[:3])


def test_all_is_computed_in_the_dtype_of_the_params(x64, key):
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), model())
    latents = jax.tree.map(lambda leaf: leaf.astype(np.float32), LATENTS)

    def all_of(params, x, latents):
        return (
            bilinear.joint(params, x, latents),
            bilinear.sample(key, params, num_draws=1),
            bilinear.canonical(params),
        )

    found = jax.eval_shape(all_of, params, X.astype(np.float32), latents)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda key: bilinear.init(key, 0, 2, num_positive=1), "size must be an"),
        (lambda key: bilinear.init(key, 2, 2, num_positive=0), "num_positive must be"),
        (
            lambda key: bilinear.init(key, 2, 2, num_positive=1, noise=-1.0),
            "noise must be positive and finite, got -1.0",
        ),
        (
            lambda key: bilinear.joint(model(), X[:2], LATENTS),
            r"3 sites, 2 signed and 2 positive latents .* got shapes \(\(2,\), \(2,\)",
        ),
        (
            lambda key: bilinear.joint(
                model()._replace(linear=np.ones((3, 2))), X, LATENTS
            ),
            "each of 4 basis functions, got 3 and 4",
        ),
        (
            lambda key: bilinear.sample(key, model(), num_draws=0),
            "num_draws must be an integer of at least 1",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, message, key):
    with pytest.raises(ValueError, match=message):
        call(key)
