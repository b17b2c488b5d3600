from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax.bases import Gaussian, Laplace
from probjax.models import linear
from probjax.random import split_array
from probjax.trees import as_array

BASIS = np.array([[1.0, 0.9], [0.3, -0.4], [0.0, 0.5]])
X = np.array([0.7, -0.9, 0.2])
NAMES = ["gaussian", "laplace"]
A = np.array([0.4, -2.0])
NUM = 40_000


def model(noise=0.3, basis=BASIS):
    """Parameters in the precision of the test."""
    return linear.Params(*(as_array(np.array(p, float)) for p in (basis, noise)))


@partial(jax.jit, static_argnums=0)
def compiled(function, *args):
    return function(*args)


def laplace_energy(a):
    return np.abs(a).sum() + len(a) * np.log(2)


def normal_energy(x, scale=1.0):
    """Minus the log density, in NumPy."""
    return np.sum((x / scale) ** 2 / 2 + np.log(scale * np.sqrt(2 * np.pi)))


JOINTS = [(linear.gaussian, normal_energy), (linear.laplace, laplace_energy)]


@pytest.mark.parametrize(("joint", "prior"), JOINTS, ids=NAMES)
def test_joint_without_a_basis_is_the_prior_and_the_noise(joint, prior, x64):
    found = compiled(joint, model(basis=0 * BASIS), X, A)
    expected = normal_energy(X, 0.3) + prior(A)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("joint", "prior"), JOINTS, ids=NAMES)
def test_joint_given_a_is_normal_about_its_sum_of_basis_functions(joint, prior, x64):
    found = compiled(joint, model(), X, A)
    expected = normal_energy(X - BASIS @ A, 0.3) + prior(A)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("joint", [linear.gaussian, linear.laplace], ids=NAMES)
def test_joint_integrates_to_one(joint, x64):
    params = model(0.5, [[0.8]])
    step = 0.02
    # Midpoints, which are off by step^2 / 24 where a Laplace prior has its kink.
    edge = np.arange(-30, 30, step) + step / 2
    near = np.arange(-6, 6, 0.05)

    @jax.jit
    @jax.vmap
    def over_noise(a):
        apart = 0.8 * a + near
        energies = jax.vmap(lambda x: joint(params, x[None], a[None]))(apart)
        return jnp.sum(jnp.exp(-energies)) * 0.05

    total = np.asarray(over_noise(edge)).sum() * step
    np.testing.assert_allclose(total, 1, rtol=step**2 / 12)


def test_joint_integrates_to_the_known_likelihood(x64):
    params = model()
    edge = np.arange(-9, 9, 0.03)
    points = np.stack(np.meshgrid(edge, edge), -1).reshape(-1, 2)
    energies = jax.jit(jax.vmap(linear.gaussian, (None, None, 0)))(params, X, points)
    total = np.log(np.exp(-np.asarray(energies)).sum() * 0.03**2)
    found = compiled(linear.gaussian_log_likelihood, params, X)
    np.testing.assert_allclose(found, total, rtol=0, atol=1e-9)
    covariance = BASIS @ BASIS.T + 0.3**2 * np.eye(3)
    expected = X @ np.linalg.solve(covariance, X) + 3 * np.log(2 * np.pi)
    expected = -(expected + np.linalg.slogdet(covariance)[1]) / 2
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_likelihood_is_joint_over_posterior(x64):
    """log p(x) = log p(x, a) - log p(a | x), whatever a: the posterior is right."""
    params, a = model(), np.array([0.4, -0.3])
    precision = np.eye(2) + BASIS.T @ BASIS / 0.3**2
    away = a - np.linalg.solve(precision, BASIS.T @ X / 0.3**2)
    posterior = away @ precision @ away / 2 + np.log(2 * np.pi)
    posterior = posterior - np.linalg.slogdet(precision)[1] / 2
    found = posterior - float(compiled(linear.gaussian, params, X, a))
    expected = compiled(linear.gaussian_log_likelihood, params, X)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def scores(draws, mean, covariance):
    """How far moments of normal draws are off, in standard errors."""
    draws, variance = np.asarray(draws), np.diagonal(covariance)
    means = (draws.mean(0) - mean) / np.sqrt(variance / NUM)
    noise = np.sqrt((covariance**2 + np.outer(variance, variance)) / NUM)
    return np.abs(means).max(), np.abs((np.cov(draws.T) - covariance) / noise).max()


def test_posterior_draws_have_its_moments(x64, key):
    of_keys = jax.jit(jax.vmap(linear.gaussian_posterior_sample, (0, None, None)))
    draws = of_keys(split_array(key, NUM), model(), X)
    covariance = np.linalg.inv(np.eye(2) + BASIS.T @ BASIS / 0.3**2)
    assert max(scores(draws, covariance @ BASIS.T @ X / 0.3**2, covariance)) < 5


def test_gaussian_draws_have_the_joint_moments(x64, key):
    x, a = jax.jit(partial(linear.sample_gaussian, num_draws=NUM))(key, model())
    covariance = np.block(
        [[BASIS @ BASIS.T + 0.3**2 * np.eye(3), BASIS], [BASIS.T, np.eye(2)]]
    )
    both = np.concatenate([x, a], axis=1)
    assert max(scores(both, np.zeros(5), covariance)) < 5


def test_laplace_draws_have_their_prior_and_noise(x64, key):
    x, a = jax.jit(partial(linear.sample_laplace, num_draws=NUM))(key, model())
    noise = (np.asarray(x) - np.asarray(a) @ BASIS.T) / 0.3
    assert max(scores(noise, np.zeros(3), np.eye(3))) < 5
    levels = np.array([0.01, 0.1, 0.3, 0.5, 0.8, 0.95, 0.999])
    quantiles = np.where(levels < 0.5, np.log(2 * levels), -np.log(2 * (1 - levels)))
    for each in np.asarray(a).T:
        shares = (each[:, None] < quantiles[None]).mean(0)
        error = np.sqrt(levels * (1 - levels) / NUM)
        assert np.abs((shares - levels) / error).max() < 5
    crossed = noise.T @ np.asarray(a) / NUM
    assert np.abs(crossed).max() < 5 * np.sqrt(2 / NUM)


@pytest.mark.parametrize("joint", [linear.gaussian, linear.laplace], ids=NAMES)
def test_joints_have_the_right_derivatives(joint, x64):
    @jax.jit
    def of_parts(basis, noise, x, a):
        return joint(linear.Params(basis, noise), x, a)

    at = BASIS, np.array(0.3), X, np.array([0.4, -0.3])
    chex.assert_numerical_grads(of_parts, at, order=1)


def test_likelihood_has_the_right_derivatives(x64):
    @jax.jit
    def of_parts(basis, noise, x):
        return linear.gaussian_log_likelihood(linear.Params(basis, noise), x)

    chex.assert_numerical_grads(of_parts, (BASIS, np.array(0.3), X), order=1)


def test_all_is_computed_in_the_dtype_of_the_params(x64, key):
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), model())

    @jax.jit
    def all_of(params, x, a):
        return (
            linear.gaussian(params, x, a),
            linear.laplace(params, x, a),
            linear.gaussian_log_likelihood(params, x),
            linear.gaussian_posterior_sample(key, params, x),
            linear.sample_gaussian(key, params, num_draws=1),
            linear.sample_laplace(key, params, num_draws=1),
        )

    found = jax.eval_shape(all_of, params, np.float32(X), np.ones(2, np.float32))
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}


def test_canonical_forms_of_the_same_model_are_equal(x64):
    params = model()
    changed = model(basis=BASIS[:, ::-1] * np.array([[-1.0, 1.0]]))
    form = compiled(linear.laplace_canonical, params)
    for other in (changed, form):
        again = compiled(linear.laplace_canonical, other)
        chex.assert_trees_all_close(again, form, rtol=1e-12)
    # Here the first column is the longer, and its largest entry above zero.
    np.testing.assert_allclose(form.basis, BASIS[:, ::-1])
    expected = compiled(linear.laplace, params, X, A)
    found = compiled(linear.laplace, form, X, A[::-1])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("basis", [BASIS, BASIS.T], ids=["tall", "wide"])
def test_canonical_forms_with_a_normal_prior_are_blind_to_rotations(basis, x64):
    params, x = model(basis=basis), X[: len(basis)]
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=2 * basis.shape[1:]))[0]
    turned = model(basis=basis @ turn)
    form = compiled(linear.gaussian_canonical, params)
    found = compiled(linear.gaussian_canonical, turned)
    chex.assert_trees_all_close(found, form, rtol=1e-9, atol=1e-12)
    products = np.asarray(form.basis).T @ np.asarray(form.basis)
    np.testing.assert_allclose(products - np.diag(np.diag(products)), 0, atol=1e-12)
    expected = compiled(linear.gaussian_log_likelihood, params, x)
    likelihood = compiled(linear.gaussian_log_likelihood, form, x)
    np.testing.assert_allclose(likelihood, expected, rtol=1e-10)


def test_priors_are_those_of_the_joints_and_the_chart_holds_the_noise():
    params = model()
    assert linear.gaussian_prior(params) == Gaussian(2)
    assert linear.laplace_prior(params) == Laplace(2)
    coordinates = jax.tree.map(lambda leaf: np.asarray(leaf) + 1, params)
    moved = jax.jit(linear.chart(params).inverse)(coordinates)
    assert moved.noise == params.noise
    np.testing.assert_allclose(moved.basis, coordinates.basis)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda key: linear.init(key, 0, 2), "size must be an integer of at least 1"),
        (lambda key: linear.init(key, 2, 0), "num_latents must be an integer"),
        (lambda key: linear.init(key, 2, 2, noise=0.0), "noise must be positive and"),
        (
            lambda key: linear.laplace(model(), X, np.zeros(3)),
            r"3 sites and 2 latents of params, got shapes \(3,\) and \(3,\)",
        ),
        (
            lambda key: linear.gaussian_log_likelihood(model(), X[:2]),
            r"got shapes \(2,\) and \(2,\)",
        ),
        (
            lambda key: linear.sample_gaussian(key, model(), num_draws=0),
            "num_draws must be an integer of at least 1",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, message, key):
    with pytest.raises(ValueError, match=message):
        call(key)
