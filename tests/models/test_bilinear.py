import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import HMC, marginal_log_likelihood
from probjax.annealing import Exponential, Gaussian, Laplace
from probjax.models import bilinear
from probjax.models.bilinear import Latents

X = np.array([0.7, -0.9, 0.2])
LATENTS = Latents(np.array([0.4, -2.0]), np.array([0.3, 1.7]))
NUM = 40_000


def model(seed=0, size=3, count=4, signed=2, positive=2, noise=0.3):
    normal = np.random.default_rng(seed).normal
    shapes = (size, count), (count, signed), (count, positive)
    return bilinear.Params(*(jnp.asarray(normal(size=s)) for s in shapes), noise)


def energy_of(base, x):
    return base.energy(x) + base.log_z


def test_joint_is_noise_about_the_product_and_priors(x64):
    params = model()
    mean = params.basis @ (
        (params.linear @ LATENTS.c) * (params.modulation @ LATENTS.d)
    )
    expected = (
        energy_of(Gaussian(3, mean, 0.3), X)
        + energy_of(Laplace(2), LATENTS.c)
        + energy_of(Exponential(2), LATENTS.d)
    )
    found = bilinear.joint(params, X, LATENTS)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    below = Latents(LATENTS.c, -LATENTS.d)
    assert bilinear.joint(params, X, below) == np.inf


def test_joint_integrates_to_one(x64):
    params = model(size=1, count=1, signed=1, positive=1, noise=0.5)
    step = 0.04
    # Midpoints, which are off by step^2 / 24 at the kink of c and the edge of d.
    c = jnp.arange(-20, 20, step) + step / 2
    d = jnp.arange(0, 20, step) + step / 2
    near = jnp.arange(-3, 3, 0.1)

    @jax.jit
    def over_noise(c, d):
        latents = Latents(c[None], d[None])
        about = params.basis @ bilinear.coefficients(params, latents)
        joint = jax.vmap(bilinear.joint, (None, 0, None))
        x = (about + near)[:, None]
        return jnp.sum(jnp.exp(-joint(params, x, latents))) * 0.1

    total = jnp.sum(jax.lax.map(lambda c: jax.vmap(over_noise, (None, 0))(c, d), c))
    np.testing.assert_allclose(total * step**2, 1, rtol=step**2 / 8)


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


def test_annealing_finds_the_likelihood_of_one_site(key):
    params = jax.tree.map(jnp.asarray, model(4, 1, 1, 1, 1, noise=0.5))
    data = jnp.array([[0.3], [-1.2], [2.0]])
    step = 0.02
    c = jnp.arange(-16, 16, step) + step / 2
    d = jnp.arange(0, 16, step) + step / 2

    @jax.jit
    def exact(x):
        def row(c):
            joint = jax.vmap(lambda d: bilinear.joint(params, x, Latents(c, d)))
            return jnp.sum(jnp.exp(-joint(d[:, None])))

        return jnp.log(jnp.sum(jax.lax.map(row, c[:, None])) * step**2)

    expected = jnp.stack([exact(x) for x in data])
    base = Gaussian(1, 0.0, 0.5)
    noise_only = -jax.vmap(base.energy)(data) - base.log_z
    assert jnp.abs(expected - noise_only).max() > 0.5
    found = annealed(key, params, data)
    assert found.stderr < 0.02
    assert abs(found.value - expected.mean()) < 5 * found.stderr
    np.testing.assert_allclose(found.per_row, expected, atol=0.2)
    # Without a basis no latent matters, and every particle has the same weight.
    found = annealed(key, params._replace(basis=jnp.zeros((1, 1))), data)
    np.testing.assert_allclose(found.per_row, noise_only, rtol=1e-5)


def test_draws_have_their_priors_and_noise(x64, key):
    params = model()
    x, latents = bilinear.sample(key, params, num_draws=NUM)
    chex.assert_shape([x, latents.c, latents.d], [(NUM, 3), (NUM, 2), (NUM, 2)])
    assert latents.d.min() >= 0
    sizes = np.concatenate([np.abs(latents.c), latents.d], 1)
    # All four are exponential: mean and variance 1, fourth moment about its mean 9.
    assert np.abs((sizes.mean(0) - 1) * np.sqrt(NUM)).max() < 5
    assert np.abs((sizes.var(0) - 1) * np.sqrt(NUM / 8)).max() < 5
    assert np.abs(latents.c.mean(0) * np.sqrt(NUM / 2)).max() < 5
    products = np.asarray(latents.c) @ params.linear.T
    products = products * (np.asarray(latents.d) @ params.modulation.T)
    noise = np.asarray((x - products @ params.basis.T) / 0.3)
    assert np.abs(noise.mean(0) * np.sqrt(NUM)).max() < 5
    assert np.abs((np.cov(noise.T) - np.eye(3)) * np.sqrt(NUM / 2)).max() < 5


def test_prior_and_bounds_are_of_the_latents_in_their_order(key):
    params = model(signed=3, positive=2)
    draw = bilinear.prior(params).sample(key)
    assert isinstance(draw, Latents)
    chex.assert_shape([draw.c, draw.d], [(3,), (2,)])
    lower = bilinear.bounds(params).lower
    np.testing.assert_array_equal(lower, [-np.inf] * 3 + [0] * 2)
    data, _ = bilinear.sample(key, params, num_draws=2)
    bounds = bilinear.bounds(params)
    flat, _ = jax.flatten_util.ravel_pytree(draw)
    bounds.check(flat.size)
    np.testing.assert_array_equal(flat[3:], draw.d)
    assert jnp.isfinite(bilinear.joint(params, data[0], draw))


def test_joint_has_the_right_derivatives(x64):
    def of_parts(c, d, x, *parts):
        return bilinear.joint(bilinear.Params(*parts), x, Latents(c, d))

    at = jax.tree.map(jnp.asarray, (*LATENTS, X, *model()))
    chex.assert_numerical_grads(of_parts, at, order=1)


def test_canonical_forms_of_the_same_model_are_equal(x64):
    params = model(signed=3)
    basis, linear, modulation, noise = params
    first, second = jnp.array([2.0, -0.5, 1, -3]), jnp.array([-1.0, 4, 0.2, -2])
    flips = jnp.array([1.0, -1, -1])
    order, signed = jnp.array([2, 0, 3, 1]), jnp.array([1, 2, 0])
    changed = bilinear.Params(
        (basis / (first * second)[None])[:, order],
        (linear * first[:, None] * flips[None])[order][:, signed],
        (modulation * second[:, None])[order][:, ::-1],
        noise,
    )
    form = bilinear.canonical(params)
    chex.assert_trees_all_close(bilinear.canonical(changed), form, rtol=1e-10)
    chex.assert_trees_all_close(bilinear.canonical(form), form, rtol=1e-10)
    np.testing.assert_allclose(jnp.linalg.norm(form.linear, axis=1), 1)
    np.testing.assert_allclose(jnp.linalg.norm(form.modulation, axis=1), 1)
    c, d = jnp.array([0.4, -2.0, 1.1]), jnp.array([0.3, 1.7])
    there = Latents((flips * c)[signed], d[::-1])
    expected = bilinear.joint(params, X, Latents(c, d))
    np.testing.assert_allclose(bilinear.joint(changed, X, there), expected)
    # The form's own latents are not told; its joint is that of some order and signs.
    found = [
        bilinear.joint(form, X, Latents(signs * c[jnp.array(places)], d_order))
        for places in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
        for signs in 2.0 * (np.arange(8)[:, None] >> np.arange(3) & 1) - 1
        for d_order in (d, d[::-1])
    ]
    np.testing.assert_allclose(min(abs(f - expected) for f in found), 0, atol=1e-9)


def test_the_chart_holds_the_noise(key):
    params = bilinear.init(key, 3, 4, num_positive=2, noise=0.1)
    chex.assert_shape(params.linear, (4, 4))
    assert params.modulation.min() >= 0
    moved = bilinear.chart(params).inverse(jax.tree.map(lambda leaf: leaf + 1, params))
    assert moved.noise == params.noise
    chex.assert_trees_all_close(moved[:3], tuple(leaf + 1 for leaf in params[:3]))


def test_all_is_computed_in_the_dtype_of_the_params(x64, key):
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), model())
    latents = jax.tree.map(lambda leaf: leaf.astype(np.float32), LATENTS)
    found = (
        bilinear.joint(params, X.astype(np.float32), latents),
        bilinear.sample(key, params, num_draws=1),
        bilinear.canonical(params),
    )
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
            r"3 sites, 2 signed and 2 positive latents, got .* \(\(2,\), \(2,\)",
        ),
        (
            lambda key: bilinear.joint(
                model()._replace(linear=jnp.ones((3, 2))), X, LATENTS
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
