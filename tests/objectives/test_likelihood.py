import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import cubic_energy, cubic_params, random_ising

from probjax import Data, MaximumLikelihood, exact, fit, ising, potts, rbm
from probjax.types import Context

SIZE = 4


def loss(objective, params, data):
    data = objective.prepare(params, data)
    context = objective.init(jax.random.key(0), params, data)
    rows = jax.vmap(objective.row, (None, 0, None))(params, data.x, ())
    return objective.reduce(rows, data.weights) + objective.rest(params, context.shared)


@pytest.mark.parametrize(
    ("energy", "params", "num_states"),
    [
        (ising.energy, random_ising(0, SIZE), 2),
        (cubic_energy, cubic_params(0, SIZE), 2),
        (potts.energy, potts.init(jax.random.key(0), SIZE, 3, scale=1.0), 3),
    ],
    ids=["ising", "plain", "letters"],
)
def test_loss_is_the_mean_log_probability_and_its_gradient_vanishes_at_the_truth(
    energy, params, num_states, x64
):
    params = jax.tree.map(lambda leaf: leaf.astype(float), params)
    log_p = exact.log_probs(energy, params, SIZE, num_states=num_states)
    data = Data(exact.states(SIZE, num_states=num_states), jnp.exp(log_p))
    objective = MaximumLikelihood(energy, num_states=num_states)
    both = jax.jit(jax.value_and_grad(lambda p: loss(objective, p, data)))
    value, gradient = both(params)
    np.testing.assert_allclose(value, exact.entropy(log_p), rtol=1e-10)
    assert max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(gradient)) < 1e-8
    _, gradient = both(jax.tree.map(lambda leaf: 1.1 * leaf, params))
    assert min(jnp.abs(leaf).max() for leaf in jax.tree.leaves(gradient)) > 1e-3


def torus_log_z(params):
    matrix = ising.coupling_matrix(params)
    return exact.lattice.log_z(matrix, (3, 3), periodic=True)


def test_the_partition_function_may_be_given(key):
    params = random_ising(1, 9, edges=exact.lattice.edges((3, 3), periodic=True))
    data = Data(exact.states(9)[::7], jnp.ones(74))
    given = MaximumLikelihood(ising.energy, torus_log_z)
    found = loss(given, params, data)
    expected = loss(MaximumLikelihood(ising.energy), params, data)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    machine = rbm.init(key, 9, 3, scale=1.0)
    found = loss(MaximumLikelihood(rbm.energy, rbm.log_z), machine, data)
    expected = loss(MaximumLikelihood(rbm.energy), machine, data)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_fit_has_the_moments_of_the_data(key):
    x = exact.sample(key, ising.energy, random_ising(2, SIZE), SIZE, num_draws=2000)
    start = ising.init(key, SIZE)
    found = fit(key, MaximumLikelihood(ising.energy), start, x)
    assert found.converged
    moments = exact.moments(ising.energy, found.params, SIZE)
    np.testing.assert_allclose(moments.second, x.T @ x / 2000, atol=2e-5)


def test_spaces_too_large_to_enumerate_are_refused(key):
    objective = MaximumLikelihood(ising.energy)
    with pytest.raises(ValueError, match="4194304"):
        fit(key, objective, ising.init(key, 30), jnp.zeros((2, 30)))
    with pytest.raises(ValueError, match="0 and 1, got numbers that are not whole"):
        fit(key, objective, ising.init(key, 2), jnp.array([[0.5, 1]]))
    assert objective.init(key, None, Data(jnp.zeros((2, 3)))) != Context((), ())
