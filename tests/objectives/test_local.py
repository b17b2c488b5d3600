import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import Data, fit, loss
from probjax.fitting import GradientNorm
from probjax.objectives import ContinuousPseudoLikelihood
from probjax.trees import as_array

PRECISION = np.array([[2.0, 0.8], [0.8, 1.0]])


def gaussian(params, x):
    """Of a symmetric precision from its three entries, and a mean."""
    entries, mean = params
    matrix = entries[np.array([[0, 1], [1, 2]])]
    return (x - mean) @ matrix @ (x - mean) / 2


def double_well(params, x):
    """Not quadratic, with three sites in a chain."""
    return jnp.sum((x**2 - params[0]) ** 2) + params[1] * (x[0] * x[1] - x[1] * x[2])


def truth():
    return as_array([2.0, 0.8, 1.0]), as_array([0.3, -0.2])


def gaussian_rows():
    """Points and weights that integrate over the Gaussian to many digits."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    grid = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    scale = np.linalg.cholesky(np.linalg.inv(PRECISION))
    return Data(grid @ scale.T + [0.3, -0.2], np.outer(weights, weights).ravel())


def test_conditionals_of_a_gaussian_are_gaussian(x64, key):
    data = gaussian_rows()
    objective = ContinuousPseudoLikelihood(gaussian, lower=-14.0, upper=14.0)
    y = np.asarray(data.x) - [0.3, -0.2]
    diagonal = np.diagonal(PRECISION)
    miss = y + (y @ PRECISION - y * diagonal) / diagonal
    each = diagonal * miss**2 / 2 - np.log(diagonal / (2 * np.pi)) / 2
    by_hand = data.weights @ each.sum(1) / data.weights.sum()
    found = loss(key, objective, truth(), data)
    np.testing.assert_allclose(found, by_hand, rtol=1e-9)


def test_continuous_pseudolikelihood_finds_the_truth_under_exact_weights(x64, key):
    lower, upper = np.array([-13.0, -14.0]), np.array([13.0, 14.0])
    objective = ContinuousPseudoLikelihood(gaussian, lower=lower, upper=upper)
    start = as_array([1.0, 0.0, 1.0]), as_array(np.zeros(2))
    found = fit(key, objective, start, gaussian_rows(), stop=GradientNorm()).params
    np.testing.assert_allclose(found[0], truth()[0], atol=1e-6)
    np.testing.assert_allclose(found[1], truth()[1], atol=1e-6)


def test_grid_integrates_conditionals_that_are_not_gaussian(x64, key):
    params = as_array([1.5, 0.7])
    x = np.array([[0.4, -1.2, 0.9]])
    # More grid states than are evaluated at once.
    objective = ContinuousPseudoLikelihood(double_well, lower=-4.0, upper=4.0)
    grid = np.linspace(-4, 4, 20_001)

    energies = jax.jit(jax.vmap(double_well, (None, 0)))
    moved = np.tile(x, (3, len(grid), 1))
    moved[np.arange(3), :, np.arange(3)] = grid
    everything = np.concatenate([x, moved.reshape(-1, 3)])
    at_x, *elsewhere = np.asarray(energies(params, everything))
    areas = np.trapezoid(np.exp(-np.reshape(elsewhere, (3, -1))), grid)
    by_hand = 3 * at_x + np.sum(np.log(areas))
    found = loss(key, objective, params, x)
    np.testing.assert_allclose(found, by_hand, rtol=1e-8)


def test_bad_bounds_are_refused(key):
    with pytest.raises(ValueError, match="lower must be below upper, got 1.0 and 1.0"):
        ContinuousPseudoLikelihood(gaussian, lower=1.0, upper=1.0)
    with pytest.raises(ValueError, match="lower and upper must be finite"):
        ContinuousPseudoLikelihood(gaussian, lower=-np.inf, upper=1.0)
    objective = ContinuousPseudoLikelihood(gaussian, lower=0.0, upper=1.0)
    with pytest.raises(ValueError, match="between lower and upper, .* got 2.5"):
        fit(key, objective, truth(), np.array([[0.5, 2.5]]))
    with pytest.raises(ValueError, match="num_points must be an integer of at least 2"):
        ContinuousPseudoLikelihood(gaussian, lower=0.0, upper=1.0, num_points=1)
