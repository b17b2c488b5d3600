import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import Data, DenoisingScoreMatching, ScoreMatching, fit
from probjax.connectivity import BallSteps, CubeSteps, GaussianSteps
from probjax.fitting import GradientNorm
from probjax.interfaces import Connectivity
from probjax.objectives import (
    HutchinsonScoreMatching,
    ScoreMatchingBySteps,
    SlicedScoreMatching,
    flow,
)
from probjax.recipe import recipe
from probjax.trees import as_array
from probjax.types import Neighbours

X = np.array([[0.4, -0.7], [1.1, 0.2], [-0.3, 0.9]])
PARAMS = np.array([[1.3, 0.4], [-0.2, 0.8], [0.5, -1.1]])
SPREAD = np.array([[1.0, 0.6], [0, 0.5]])


def experts(params, x):
    return jnp.sum(jnp.log1p((params @ x) ** 2)) + 0.3 * x[0] ** 2 * x[1]


def quadratic(params, x):
    """A Gaussian of precision LL' and mean m, written without log Z."""
    factor, mean = params
    return jnp.sum((factor.T @ (x - mean)) ** 2) / 2


@jax.jit
def loss(objective, params, x, key):
    data = objective.prepare(params, Data(x))
    context = objective.init(key, params, data)
    context = objective.refresh(key, params, data, context)
    rows = jax.vmap(objective.row, (None, 0, 0))(params, data.x, context.rows)
    return objective.reduce(rows, jnp.ones(len(rows)))


def test_loss_is_half_the_squared_slope_less_the_laplacian(x64, key):
    @jax.jit
    @jax.vmap
    def by_hessian(x):
        slope = jax.grad(experts, argnums=1)(PARAMS, x)
        return slope @ slope / 2 - jnp.trace(jax.hessian(experts, 1)(PARAMS, x))

    expected = np.asarray(by_hessian(X)).mean()
    found = loss(ScoreMatching(experts), PARAMS, X, key)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_score_matching_of_a_gaussian_is_its_closed_solution(x64, key):
    """The minimiser has the mean and the covariance of the data, exactly."""
    draws = np.random.default_rng(0).normal(size=(50, 2)) @ SPREAD
    start = as_array(np.eye(2)), as_array(np.zeros(2))
    found = fit(key, ScoreMatching(quadratic), start, draws + 3.0)
    assert found.converged
    factor, mean = map(np.asarray, found.params)
    np.testing.assert_allclose(mean, draws.mean(0) + 3, rtol=1e-6)
    covariance = np.cov(draws.T, bias=True)
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(covariance), rtol=1e-5)


@recipe
class Quadrature(Connectivity):
    """Every step of a rule, `weight` being its share of the volume."""

    step: jax.Array
    weight: jax.Array

    def prepare(self, x):
        return x

    def states(self, x, moves):
        return Neighbours(x[None] + self.step, 0 * self.weight, self.weight)


def product_rule(nodes, weights):
    step = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    share = np.outer(weights, weights).ravel()
    return step, share / share.sum()


def cube(side):
    nodes, weights = np.polynomial.legendre.leggauss(8)
    return product_rule(side / 2 * nodes, weights)


def gaussian(scale):
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    return product_rule(scale * nodes, weights)


def ball(radius):
    nodes, weights = np.polynomial.legendre.leggauss(8)
    r, angle = radius * (nodes + 1) / 2, 2 * np.pi * np.arange(16) / 16
    step = np.stack([np.outer(r, np.cos(angle)), np.outer(r, np.sin(angle))], -1)
    share = np.repeat(weights * r, 16)
    return step.reshape(-1, 2), share / share.sum()


@pytest.mark.parametrize(
    ("rule", "constant"),
    [(cube, 48), (ball, 4 * (2 + 2)), (gaussian, 4)],
    ids=["cube", "ball", "gaussian"],
)
def test_flow_along_small_steps_tends_to_score_matching(rule, constant, x64, key):
    """With the integral over steps done exactly, the error falls as their square."""
    limit = float(loss(ScoreMatching(experts), PARAMS, X, key))
    errors = []
    for size in (0.02, 0.01):
        near = Quadrature(*map(as_array, rule(size)))
        k = float(flow(key, experts, as_array(PARAMS), X, connectivity=near))
        errors.append((k - 1) * constant / size**2 - limit)
    np.testing.assert_allclose(errors[0] / errors[1], 4, rtol=0.05)
    extrapolated = (4 * errors[1] - errors[0]) / 3
    assert abs(extrapolated) < 1e-2 * abs(errors[1])


@pytest.mark.statistics
@pytest.mark.parametrize("make", [CubeSteps, BallSteps, GaussianSteps])
def test_sampled_steps_tend_to_score_matching(make, x64, key):
    """Within five standard errors of the limit, with a bias too small to see."""
    x = X[0]
    steps = make(0.02, num_draws=10_000)
    objective = ScoreMatchingBySteps(experts, steps)
    found = float(loss(objective, PARAMS, x[None], key))
    limit = float(loss(ScoreMatching(experts), PARAMS, x[None], key))

    @jax.jit
    def rates_and_moment(x):
        near = steps.states(x, steps.draw(key, None, x)).x
        gap = experts(PARAMS, x) - jax.vmap(experts, (None, 0))(PARAMS, near)
        return jnp.expm1(gap / 2), steps.moment(x)

    rate, moment = map(np.asarray, rates_and_moment(x))
    pairs = rate.reshape(-1, 2).mean(1) * 4 / moment
    assert abs(found - limit) < 5 * pairs.std() / np.sqrt(len(pairs))
    # Mirror images are what keeps the error this small.
    assert pairs.std() < 0.05 * (rate * 4 / moment).std()


def test_fit_by_small_steps_finds_the_same_parameters(key, x64):
    draws = np.random.default_rng(0).normal(size=(2000, 2)) @ SPREAD
    start = as_array(np.eye(2)), as_array(np.zeros(2))
    exact = fit(key, ScoreMatching(quadratic), start, draws).params
    exact = [*map(np.asarray, exact)]
    objective = ScoreMatchingBySteps(quadratic, GaussianSteps(0.05, num_draws=64))
    found = fit(key, objective, start, draws, stop=GradientNorm(1e-3)).params
    found = [*map(np.asarray, found)]
    np.testing.assert_allclose(found[1], exact[1], atol=0.05)
    precision = exact[0] @ exact[0].T
    np.testing.assert_allclose(found[0] @ found[0].T, precision, atol=0.1)


def along(v, x):
    """The slope and the curvature of the energy along `v`."""
    slope = jax.grad(experts, argnums=1)(PARAMS, x)
    return slope, v @ jax.hessian(experts, argnums=1)(PARAMS, x) @ v


@pytest.mark.parametrize(
    ("objective", "definition"),
    [
        (HutchinsonScoreMatching, lambda g, v, c: g @ g / 2 - c),
        (SlicedScoreMatching, lambda g, v, c: (g @ v) ** 2 / 2 - c),
    ],
    ids=["hutchinson", "sliced"],
)
def test_random_directions_give_score_matching_on_average(
    objective, definition, x64, key
):
    """Over the directions of a quadrature that has mean vv' = I, exactly."""
    x = X[1]
    nodes, shares = gaussian(1.0)
    made = objective(experts, num_draws=len(nodes))

    @jax.jit
    def evaluated(x, nodes):
        terms = jax.vmap(lambda v: made.row(PARAMS, x, v[None]))(nodes)
        slopes, curvatures = jax.vmap(along, (0, None))(nodes, x)
        expected = jax.vmap(definition)(slopes, nodes, curvatures)
        return terms, expected, ScoreMatching(experts).row(PARAMS, x, ())

    terms, expected, exactly = map(np.asarray, evaluated(x, nodes))
    np.testing.assert_allclose(terms, expected, rtol=1e-10)
    np.testing.assert_allclose(shares @ terms, exactly, rtol=1e-10)


def test_directions_are_normal_and_drawn_anew(key):
    made = SlicedScoreMatching(experts, num_draws=50)
    data = Data(np.zeros((200, 2)))

    @jax.jit
    def drawn(key):
        return made.refresh(key, PARAMS, data, made.init(key, PARAMS, data)).rows

    first, other = (np.asarray(drawn(k)) for k in (key, jax.random.key(1)))
    assert first.shape == (200, 50, 2)
    assert abs(first.mean()) < 5 / np.sqrt(20_000)
    assert abs((first**2).mean() - 1) < 5 * np.sqrt(2 / 20_000)
    assert not np.any(other == first)


def test_denoising_learns_the_density_of_the_noisy_data(x64, key):
    """For a Gaussian, that with the variance of the noise added, on average."""
    x = np.random.default_rng(0).normal(size=(400, 1))
    made = DenoisingScoreMatching(quadratic, scale=0.7, num_draws=500)
    start = as_array(np.ones((1, 1))), as_array(np.zeros(1))
    found = fit(key, made, start, x)
    variance = 1 / np.asarray(found.params[0])[0, 0] ** 2
    np.testing.assert_allclose(variance, x.var() + 0.49, rtol=0.01)
    np.testing.assert_allclose(found.params[1], x.mean(), atol=0.01)
