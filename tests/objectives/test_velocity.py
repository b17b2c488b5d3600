import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import Data, ScoreMatching
from probjax.objectives.velocity import MinimumVelocity
from probjax.trees import as_array

X = np.array([[0.4, -0.7], [1.1, 0.2], [-0.3, 0.9]])
PARAMS = np.array([[1.3, 0.4], [-0.2, 0.8], [0.5, -1.1]])
MOBILITY = np.array([0.6, 2.5])


def experts(params, x):
    return jnp.sum(jnp.log1p((params @ x) ** 2)) + 0.3 * x[0] ** 2 * x[1]


def stretched(params, y):
    return experts(params, MOBILITY * y)


def of_tree(params, x):
    return experts(params, jnp.stack([x["first"], x["rest"][0]]))


def loss(objective, params, data):
    data = jax.tree.map(as_array, data)
    return float(reduced(objective, params, objective.prepare(params, data)))


@jax.jit
def reduced(objective, params, data):
    rows = jax.vmap(objective.row, (None, 0, None))(params, data.x, ())
    weights = jnp.ones(len(rows)) if data.weights is None else data.weights
    return objective.reduce(rows, weights)


def test_mobility_of_one_is_score_matching(x64):
    data = Data(X)
    expected = loss(ScoreMatching(experts), PARAMS, data)
    assert loss(MinimumVelocity(experts), PARAMS, data) == expected
    one = as_array(np.ones(2))
    assert loss(MinimumVelocity(experts, one), PARAMS, data) == expected


def test_mobility_is_score_matching_of_the_rescaled_energy_on_rescaled_data(x64):
    x = X
    expected = loss(ScoreMatching(stretched), PARAMS, Data(x / MOBILITY))
    found = loss(MinimumVelocity(experts, as_array(MOBILITY)), PARAMS, Data(x))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    tree = {"first": x[:, 0], "rest": x[:, 1:]}
    for rest in (2.5, as_array([2.5])):
        objective = MinimumVelocity(of_tree, {"first": 0.6, "rest": rest})
        found = loss(objective, PARAMS, Data(tree))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


GRID = np.linspace(-8, 8, 1601)
STEP = GRID[1] - GRID[0]


def wells(params, x):
    """An asymmetric double well."""
    return jnp.sum(params[0] * x**4 - params[1] * x**2 + params[2] * x)


def log_density(x):
    """Two bumps of different width and height, normalised."""
    first = jnp.log(0.3) - 2 * (x + 0.8) ** 2 + jnp.log(2)
    second = jnp.log(0.7) - (x - 0.7) ** 2 / 2
    return jnp.logaddexp(first, second) - jnp.log(2 * jnp.pi) / 2


@jax.jit
def densities(x):
    """Log-densities with their slopes."""
    return jax.vmap(jax.value_and_grad(log_density))(x)


@jax.jit
def energies(params, x):
    """Energies with their slopes."""
    return jax.vmap(jax.value_and_grad(wells, 1), (None, 0))(params, x)


def carried(p, force, mobility, time):
    """The density after a short time of the diffusion, by its transition densities."""
    variance = 2 * mobility * time
    mean = GRID + mobility * force * time
    reach = (GRID[:, None] - mean[None]) ** 2 / (2 * variance)
    return STEP * np.exp(-reach) @ p / np.sqrt(2 * np.pi * variance)


def rates(params, mobility):
    """Half the mean square of the velocity of p, and d KL / dt, seen from the flow.

    Probability passes x at the rate v p, which is how fast what lies below it falls.
    """
    p = np.exp(densities(GRID)[0])
    energy, slope = map(np.asarray, energies(params, GRID))
    force = -slope
    seen = p > 1e-11

    def one(time):
        later = carried(p, force, mobility, time)
        change = (later - p) / time
        # By the trapezoidal rule: what lies below a point holds half of its own.
        velocity = -STEP * (np.cumsum(change) - change / 2)[seen] / p[seen]
        fall = STEP * np.sum((later * np.log(later) - p * np.log(p))[seen]) / time
        return np.array(
            [
                STEP * np.sum(p[seen] * velocity**2) / 2,
                fall + STEP * np.sum((change * energy)[seen]),
            ]
        )

    return 2 * one(3e-4) - one(6e-4)


@pytest.mark.parametrize("mobility", [1.0, 0.6])
def test_loss_is_the_velocity_of_the_diffusing_density(mobility, x64):
    """And, for mobility 1, half the rate at which the divergence falls."""
    params = np.array([0.05, 0.3, 0.2])
    log_p, slopes = map(np.asarray, densities(GRID))
    p = np.exp(log_p)
    constant = mobility**2 * STEP * np.sum(p * slopes**2) / 2
    data = Data(GRID[:, None], p)
    expected = loss(MinimumVelocity(wells, mobility), params, data) + constant
    halved_square, fall = rates(params, mobility)
    np.testing.assert_allclose(halved_square, expected, rtol=1e-4)
    np.testing.assert_allclose(fall, -2 * expected / mobility, rtol=1e-4)


def test_gradient_vanishes_at_the_truth_whatever_the_mobility(x64):
    params = np.array([0.05, 0.3, 0.2])
    data = Data(GRID[:, None], np.exp(-np.asarray(energies(params, GRID)[0])))
    slope = jax.jit(jax.grad(reduced, argnums=1))
    for mobility in (1.0, 0.3):
        objective = MinimumVelocity(wells, mobility)
        assert np.abs(slope(objective, params, data)).max() < 1e-8
        assert np.abs(slope(objective, 1.1 * params, data)).max() > 1e-3


@pytest.mark.parametrize("mobility", [0, -1.0, as_array([1.0, 0]), np.nan, np.inf])
def test_mobilities_that_are_not_positive_are_refused(mobility):
    with pytest.raises(ValueError, match="mobility must be positive, got"):
        MinimumVelocity(experts, mobility)


@pytest.mark.parametrize("mobility", [np.ones(3), np.ones((1, 2)), (1.0, 2.0)])
def test_mobilities_unlike_a_state_are_refused(mobility):
    with pytest.raises(ValueError, match=r"like one state, of shape \(2,\), got"):
        MinimumVelocity(experts, mobility).prepare(PARAMS, Data(as_array(X)))
