import jax
import numpy as np
import pytest
from small_models import (
    all_states,
    cubic_energy,
    cubic_params,
    drawn_from,
    flat_ising,
    log_probs_of,
    random_ising,
)

from probjax import Data, MaximumLikelihood, exact, fit, ising, potts, rbm
from probjax.fitting import GradientNorm
from probjax.trees import as_array
from probjax.types import Context

SIZE = 4
LETTERS = jax.jit(lambda key: potts.init(key, SIZE, 3, scale=1.0))(jax.random.key(0))


@jax.jit
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
        (potts.energy, LETTERS, 3),
    ],
    ids=["ising", "plain", "letters"],
)
def test_loss_is_the_mean_log_probability_and_its_gradient_vanishes_at_the_truth(
    energy, params, num_states, x64
):
    params = jax.tree.map(lambda leaf: as_array(np.asarray(leaf, float)), params)
    x = all_states(SIZE, num_states).astype(float)
    minus = -np.asarray(jax.jit(jax.vmap(energy, (None, 0)))(params, x))
    log_p = minus - np.logaddexp.reduce(minus)
    data = Data(x, np.exp(log_p))
    objective = MaximumLikelihood(energy, num_states=num_states)
    both = jax.jit(jax.value_and_grad(lambda p: loss(objective, p, data)))
    value, gradient = both(params)
    np.testing.assert_allclose(value, -np.exp(log_p) @ log_p, rtol=1e-10)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient)) < 1e-8
    _, gradient = both(jax.tree.map(lambda leaf: 1.1 * np.asarray(leaf), params))
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient)) > 1e-3


def torus_log_z(params):
    matrix = ising.coupling_matrix(params)
    return exact.lattice.log_z(matrix, (3, 3), periodic=True)


def test_the_partition_function_may_be_given(key):
    params = random_ising(1, 9, edges=exact.lattice.edges((3, 3), periodic=True))
    data = Data(all_states(9)[::7].astype(float), np.ones(74))
    given = MaximumLikelihood(ising.energy, torus_log_z)
    found = loss(given, params, data)
    expected = loss(MaximumLikelihood(ising.energy), params, data)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    machine = jax.jit(lambda key: rbm.init(key, 9, 3, scale=1.0))(key)
    found = loss(MaximumLikelihood(rbm.energy, rbm.log_z), machine, data)
    expected = loss(MaximumLikelihood(rbm.energy), machine, data)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_fit_has_the_moments_of_the_data(key):
    x = drawn_from(0, random_ising(2, SIZE), 2000)
    options = dict(stop=GradientNorm())
    found = fit(key, MaximumLikelihood(ising.energy), flat_ising(SIZE), x, **options)
    assert found.converged
    chances, states = np.exp(log_probs_of(found.params)), all_states(SIZE)
    moments = np.einsum("s,si,sj->ij", chances, states, states)
    np.testing.assert_allclose(moments, x.T @ x / 2000, atol=2e-5)


def test_spaces_too_large_to_enumerate_are_refused(key):
    objective = MaximumLikelihood(ising.energy)
    with pytest.raises(ValueError, match="4194304"):
        fit(key, objective, flat_ising(30), np.zeros((2, 30)))
    with pytest.raises(ValueError, match="0 or 1, got numbers that are not whole"):
        fit(key, objective, flat_ising(2), np.array([[0.5, 1]]))
    few = Data(as_array(np.zeros((2, 3))))
    assert objective.init(key, None, few) != Context((), ())
