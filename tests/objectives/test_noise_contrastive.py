import jax
import numpy as np
import pytest
from small_models import (
    all_states,
    drawn_from,
    flat_ising,
    log_probs_of,
    matrix_of,
    random_ising,
)

from probjax import Data, NoiseContrast, fit, ising
from probjax.bases import Bernoulli, fit_bernoulli
from probjax.fitting import uncertainty
from probjax.trees import as_array

SIZE = 4
TRUTH = random_ising(1, SIZE)


def log_z_of(params):
    """Minus the log-probability of the state of zeros, whose energy is zero."""
    return as_array(-log_probs_of(params)[0])


def test_gradient_vanishes_at_the_truth_and_its_log_z(x64):
    truth = random_ising(1, SIZE)
    states = all_states(SIZE).astype(float)
    chances = np.exp(log_probs_of(truth))
    objective = NoiseContrast(ising.energy, Bernoulli(SIZE), num_noise=len(states))
    noise = np.broadcast_to(states, (len(states), *states.shape))  # each as likely

    @jax.jit
    @jax.grad
    def slope(params):
        rows = jax.vmap(objective.row, (None, 0, 0))(params, states, noise)
        return chances @ rows

    params = objective.start(truth)
    right = params._replace(log_z=log_z_of(truth))
    assert largest(slope(right)) < 1e-12
    assert largest(slope(params)) > 1e-3


def largest(tree):
    return max(np.abs(leaf).max() for leaf in jax.tree.leaves(tree))


def test_a_row_is_the_logistic_loss_of_its_class(x64):
    base = Bernoulli(SIZE, as_array([0.3, -1.0, 0.5, 2.0]))
    objective = NoiseContrast(ising.energy, base, num_noise=3)
    params = objective.start(random_ising(1, SIZE))._replace(log_z=as_array(0.7))
    x, *noise = all_states(SIZE)[[5, 1, 9, 14]].astype(float)
    matrix = matrix_of(params.params)

    def chance_of_data(x):
        model = np.exp(-x @ matrix @ x - 0.7)
        other = np.prod(np.where(x == 1, *_odds(base.log_odds)))
        return model / (model + 3 * other)

    by_hand = -np.log(chance_of_data(x)) - sum(
        np.log(1 - chance_of_data(y)) for y in noise
    )
    found = jax.jit(objective.row)(params, x, np.stack(noise))
    np.testing.assert_allclose(found, by_hand, rtol=1e-10)


def _odds(log_odds):
    on = 1 / (1 + np.exp(-np.asarray(log_odds)))
    return on, 1 - on


@pytest.mark.statistics
def test_fit_finds_couplings_and_log_z_within_their_errors(key):
    data = drawn_from(0, TRUTH, 10_000)
    objective = NoiseContrast(ising.energy, fit_bernoulli(data), num_noise=4)
    start = objective.start(flat_ising(SIZE))
    fitted = fit(key, objective, start, data)
    assert fitted.converged
    stderr = uncertainty(objective, fitted, data).stderr
    truth = start._replace(params=TRUTH, log_z=log_z_of(TRUTH))
    z = jax.tree.map(
        lambda a, b, s: np.subtract(a, b) / np.asarray(s), fitted.params, truth, stderr
    )
    assert largest(z) < 4
    assert float(stderr.log_z) < 0.1


def test_parameters_without_log_z_are_refused(key):
    objective = NoiseContrast(ising.energy, Bernoulli(SIZE))
    with pytest.raises(ValueError, match=r"try objective\.start\(params\)"):
        fit(key, objective, TRUTH, np.zeros((3, SIZE)))
    with pytest.raises(ValueError, match="the 4 entries of the base, got rows of"):
        fit(key, objective, objective.start(TRUTH), np.zeros((3, 5)))
    with pytest.raises(ValueError, match="num_noise must be an integer of at least 1"):
        NoiseContrast(ising.energy, Bernoulli(SIZE), num_noise=0)
    data = Data(np.zeros((3, SIZE)), np.array([1.0, 2.0, 1.0]))
    with pytest.raises(ValueError, match="weights must be at most 1, got"):
        fit(key, objective, objective.start(TRUTH), data)
    with pytest.raises(ValueError, match="states of bits must be 0 or 1"):
        fit(key, objective, objective.start(TRUTH), Data(np.full((3, SIZE), 0.5)))
