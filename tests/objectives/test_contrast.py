import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small_models import random_ising

from probjax import Data, NoiseContrast, exact, fit, ising, uncertainty
from probjax.annealing import Bernoulli, fit_bernoulli

SIZE = 4
TRUTH = random_ising(1, SIZE)


def test_gradient_vanishes_at_the_truth_and_its_log_z(x64):
    truth = random_ising(1, SIZE)
    states = exact.states(SIZE)
    chances = jnp.exp(exact.log_probs(ising.energy, truth, SIZE))
    objective = NoiseContrast(ising.energy, Bernoulli(SIZE), num_noise=len(states))
    noise = jnp.broadcast_to(states, (len(states), *states.shape))  # each as likely

    @jax.grad
    def slope(params):
        rows = jax.vmap(objective.row, (None, 0, 0))(params, states, noise)
        return chances @ rows

    params = objective.start(truth)
    right = params._replace(log_z=exact.log_z(ising.energy, truth, SIZE))
    assert np.abs(ravel_pytree(slope(right))[0]).max() < 1e-12
    assert np.abs(ravel_pytree(slope(params))[0]).max() > 1e-3


def test_a_row_is_the_logistic_loss_of_its_class(x64):
    base = Bernoulli(SIZE, jnp.array([0.3, -1.0, 0.5, 2.0]))
    objective = NoiseContrast(ising.energy, base, num_noise=3)
    params = objective.start(random_ising(1, SIZE))._replace(log_z=jnp.asarray(0.7))
    x, *noise = exact.states(SIZE)[jnp.array([5, 1, 9, 14])]

    def chance_of_data(x):
        model = np.exp(-ising.energy(params.params, x) - params.log_z)
        other = np.prod(np.where(x == 1, *_odds(base.log_odds)))
        return model / (model + 3 * other)

    by_hand = -np.log(chance_of_data(x)) - sum(
        np.log(1 - chance_of_data(y)) for y in noise
    )
    found = objective.row(params, x, jnp.stack(noise))
    np.testing.assert_allclose(found, by_hand, rtol=1e-10)


def _odds(log_odds):
    on = 1 / (1 + np.exp(-np.asarray(log_odds)))
    return on, 1 - on


def test_fit_finds_couplings_and_log_z_within_their_errors(key):
    data = exact.sample(key, ising.energy, TRUTH, SIZE, num_draws=10_000)
    objective = NoiseContrast(ising.energy, fit_bernoulli(data), num_noise=4)
    start = objective.start(ising.from_matrix(jnp.zeros((SIZE, SIZE))))
    fitted = fit(key, objective, start, data)
    assert fitted.converged
    stderr = uncertainty(objective, fitted, data).stderr
    truth = start._replace(params=TRUTH, log_z=exact.log_z(ising.energy, TRUTH, SIZE))
    misses = jax.tree.map(lambda a, b, s: (a - b) / s, fitted.params, truth, stderr)
    z = ravel_pytree(misses)[0]
    assert np.abs(z).max() < 4
    assert stderr.log_z < 0.1


def test_parameters_without_log_z_are_refused(key):
    objective = NoiseContrast(ising.energy, Bernoulli(SIZE))
    with pytest.raises(ValueError, match=r"start from objective\.start\(params\)"):
        fit(key, objective, TRUTH, jnp.zeros((3, SIZE)))
    with pytest.raises(ValueError, match="the 4 entries of the base, got rows of"):
        fit(key, objective, objective.start(TRUTH), jnp.zeros((3, 5)))
    with pytest.raises(ValueError, match="num_noise must be an integer of at least 1"):
        NoiseContrast(ising.energy, Bernoulli(SIZE), num_noise=0)
    data = Data(jnp.zeros((3, SIZE)), jnp.array([1.0, 2.0, 1.0]))
    with pytest.raises(ValueError, match="weights above 1 would count one draw"):
        fit(key, objective, objective.start(TRUTH), data)
    with pytest.raises(ValueError, match="needs states of 0 and 1"):
        fit(key, objective, objective.start(TRUTH), Data(jnp.full((3, SIZE), 0.5)))
