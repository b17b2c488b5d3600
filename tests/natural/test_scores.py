import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small_models import all_states, log_probs_of, random_ising

from probjax import Data, exact, ising, natural, rbm

pytestmark = pytest.mark.usefixtures("x64")


def gaussian(theta, x):
    """The chapter's example, up to a constant."""
    mean = jnp.stack([3 * theta[0] + theta[1] / 3, theta[0] / 3])
    return -jnp.sum((x - mean) ** 2) / 2


def normal_rows(mean, num_nodes=4):
    """Points and weights that average polynomials over two normal numbers exactly."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    x = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2) + mean
    return Data(x, np.outer(weights, weights).ravel())


def weighed_states(params):
    return Data(all_states(4).astype(float), np.exp(log_probs_of(params)))


def test_the_chapters_gaussian_has_the_chapters_metric():
    theta = np.array([1.0, -1.0])
    rows = normal_rows(np.array([3 - 1 / 3, 1 / 3]))
    found = natural.metric(natural.likelihood_scores(gaussian), theta, rows)
    np.testing.assert_allclose(found, [[9 + 1 / 9, 1], [1, 1 / 9]], rtol=1e-12)


@jax.jit
def curvature_of_log_z(params):
    flat, unravel = ravel_pytree(params)
    return jax.hessian(lambda p: exact.log_z(ising.energy, unravel(p), 4))(flat)


def test_over_the_models_states_it_is_the_curvature_of_log_z():
    params = random_ising(0, 4)
    truth, rows = np.asarray(curvature_of_log_z(params)), weighed_states(params)
    found = natural.metric(natural.energy_scores(ising.energy), params, rows)
    np.testing.assert_allclose(found, truth, atol=1e-14)

    def log_prob(params, x):
        return -ising.energy(params, x) - exact.log_z(ising.energy, params, 4)

    of_log_prob = natural.metric(natural.likelihood_scores(log_prob), params, rows)
    np.testing.assert_allclose(of_log_prob, truth, atol=1e-14)
    # As the thesis has it: with the mean score left in.
    scores = jax.jit(natural.energy_scores(ising.energy).__call__)(params, rows)
    mean = rows.weights @ np.asarray(scores)
    printed = natural.energy_scores(ising.energy, centred=False)
    np.testing.assert_allclose(
        natural.metric(printed, params, rows),
        truth + np.outer(mean, mean),
        atol=1e-14,
    )


def test_squared_errors_are_those_of_a_gaussian_of_variance_one_half():
    theta = np.array([0.3, -0.8])
    inputs = np.random.default_rng(0).normal(size=(5, 3))

    def predict(theta, x):
        return jnp.stack([theta[0] * x[0], jnp.tanh(theta[1] * x[1]), theta.sum()])

    def error(theta, answers):
        misses = answers - jax.vmap(predict, (None, 0))(theta, inputs)
        return jnp.sum(misses**2) / 5

    @jax.jit
    def slopes_and_curvature(theta):
        answers = jax.vmap(predict, (None, 0))(theta, inputs)
        slopes = jax.vmap(jax.jacobian(predict), (None, 0))(theta, inputs)
        return slopes, jax.hessian(error)(theta, answers)

    found = natural.metric(natural.regression_scores(predict), theta, inputs)
    slopes, curvature = map(np.asarray, slopes_and_curvature(theta))
    truth = 2 * np.einsum("rki,rkj->ij", slopes, slopes) / 5
    np.testing.assert_allclose(found, truth, rtol=1e-12)
    # And the curvature of the expected error, where the predictions are right.
    np.testing.assert_allclose(found, curvature, rtol=1e-10)


def test_scores_of_a_loss_are_its_gradients_with_their_mean():
    theta = np.array([0.3, -0.8])
    rows = np.random.default_rng(0).normal(size=(5, 2))

    def loss(theta, x):
        return jnp.sum(jnp.cosh(theta * x)) - theta[0]

    found = natural.metric(natural.loss_scores(loss), theta, rows)
    slopes = np.sinh(theta * rows) * rows - np.array([1, 0])
    np.testing.assert_allclose(found, slopes.T @ slopes / 5, rtol=1e-12)


def test_a_users_own_scores_and_metric_serve_as_well():
    params = random_ising(2, 4)
    rows = weighed_states(params)
    energies = natural.energy_scores(ising.energy)
    truth = np.asarray(natural.metric(energies, params, rows))
    given = natural.metric(lambda p, data: energies(p, data), params, rows)
    np.testing.assert_allclose(given, truth, atol=1e-14)
    known = natural.Metric(lambda p, data: jnp.asarray(truth) + len(data.weights))
    np.testing.assert_array_equal(natural.metric(known, params, rows), truth + 16)


@pytest.mark.parametrize("chunk_size", [1, 3, 5, 16])
@pytest.mark.parametrize("centred", [True, False])
def test_chunks_change_nothing(centred, chunk_size):
    params = random_ising(4, 4)
    rows = weighed_states(random_ising(6, 4))
    energies = natural.energy_scores(ising.energy)
    found = natural.metric(
        energies, params, rows, centred=centred, chunk_size=chunk_size
    )
    truth = natural.metric(energies, params, rows, centred=centred)
    np.testing.assert_allclose(found, truth, atol=1e-14)


def test_weights_are_counts():
    generator = np.random.default_rng(0)
    params = rbm.Params(*(generator.normal(size=size) for size in ((3, 2), 3, 2)))
    x = all_states(3).astype(float)
    counts = np.array([1.0, 0, 2, 3, 0, 1, 1, 4])
    repeated = np.repeat(x, counts.astype(int), axis=0)
    energies = natural.energy_scores(rbm.energy)
    chex.assert_trees_all_close(
        natural.metric(energies, params, Data(x, counts)),
        natural.metric(energies, params, repeated),
        atol=1e-14,
    )


def test_bad_scores_are_refused_in_a_sentence():
    params, x = random_ising(0, 4), all_states(4).astype(float)

    def table(params, x):
        return jnp.zeros((2, 2))

    with pytest.raises(ValueError, match=r"a number for a row, got shape \(2, 2\)"):
        natural.metric(natural.Scores(table, centred=True), params, x)
    with pytest.raises(ValueError, match=r"or a vector, got shape \(2, 2\)"):
        natural.metric(natural.Scores(table), params, x)
    with pytest.raises(ValueError, match=r"16 rows and 10 columns, .* shape \(2"):
        natural.metric(table, params, x)
    with pytest.raises(ValueError, match="must be 10 x 10"):
        natural.metric(natural.Metric(table), params, x)
    with pytest.raises(ValueError, match="scores must be energy_scores"):
        natural.metric(3, params, x)
    with pytest.raises(ValueError, match="chunk_size"):
        natural.metric(natural.energy_scores(ising.energy), params, x, chunk_size=0)
    masked = Data(x, mask=np.arange(64).reshape(16, 4) > 0)
    with pytest.raises(ValueError, match="complete rows"):
        natural.metric(natural.energy_scores(ising.energy), params, masked)


def test_a_metric_of_ones_own_may_be_made_by_numpy():
    def ours(params, data):
        return np.diag([1.0, 4.0])

    found = natural.metric(natural.Metric(ours), np.zeros(2), np.zeros((1, 2)))
    np.testing.assert_array_equal(found, [[1, 0], [0, 4]])
