"""Entropies of models, divergences between them, and log Z from a frequent state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import all_states, drawn_from, log_probs_of, matrix_of, random_ising

from probjax import Bernoulli, HeatBath, ising, sample, sandwich
from probjax.annealing import Measured, divergence, log_z_from_state, model_entropy

SIZE, CHAINS, DRAWS = 5, 40, 200


def chains_of(seed, params):
    """Independent draws, `(chain, draw, site)`."""
    x = drawn_from(seed, params, CHAINS * DRAWS)
    return x.reshape(CHAINS, DRAWS, SIZE)


def exact_log_z(params):
    x = all_states(len(params.bias))
    return np.logaddexp.reduce(-np.sum(x @ matrix_of(params) * x, axis=1))


def entropy_of(params):
    log_p = log_probs_of(params)
    return -np.exp(log_p) @ log_p


def z_of(found, exact):
    return abs(found.value - exact) / found.stderr


def test_the_entropy_is_that_of_all_states():
    params = random_ising(1, SIZE)
    draws = chains_of(0, params)
    found = model_entropy(ising.energy, params, draws, exact_log_z(params))
    assert z_of(found, entropy_of(params)) < 4
    assert found.stderr < 0.03
    assert found.lower < found.value < found.upper


def test_the_error_of_log_z_is_part_of_that_of_the_entropy(key):
    params = random_ising(1, SIZE)
    draws = chains_of(0, params)
    args = key, ising.energy, params, Bernoulli(SIZE), draws[:, 0]
    both = sandwich(*args, sampler=HeatBath(), num_steps=20)
    known = model_entropy(ising.energy, params, draws, float(both.log_z))
    found = model_entropy(ising.energy, params, draws, both)
    assert found.value == known.value
    np.testing.assert_allclose(
        found.stderr, np.hypot(known.stderr, float(both.stderr)), rtol=1e-6
    )
    assert found.lower <= known.lower < known.upper <= found.upper
    one_sided = model_entropy(ising.energy, params, draws, both.forward)
    assert one_sided.stderr >= known.stderr


def test_divergences_are_those_of_all_states():
    p, q = random_ising(1, SIZE, scale=0.6), random_ising(2, SIZE, scale=0.6)
    log_p, log_q = log_probs_of(p), log_probs_of(q)
    log_mean = np.logaddexp(log_p, log_q) - np.log(2)
    args = ising.energy, p, chains_of(0, p), ising.energy, q, chains_of(1, q)
    found = divergence(*args)
    assert z_of(found.forward, np.exp(log_p) @ (log_p - log_q)) < 4
    assert z_of(found.backward, np.exp(log_q) @ (log_q - log_p)) < 4
    shannon = np.exp(log_p) @ (log_p - log_mean) + np.exp(log_q) @ (log_q - log_mean)
    assert z_of(found.jensen_shannon, shannon / 2) < 4
    assert z_of(found.log_z_ratio, exact_log_z(q) - exact_log_z(p)) < 4
    assert found.forward.stderr < 0.1 * found.forward.value


def test_equal_models_do_not_diverge():
    p = random_ising(1, SIZE)
    args = ising.energy, p, chains_of(0, p)
    found = divergence(*args, *args)
    assert abs(found.forward.value) < 1e-6
    assert abs(found.jensen_shannon.value) < 1e-6


def test_models_without_overlap_are_named():
    p, q = (ising.from_matrix(np.diag(np.full(SIZE, bias))) for bias in (-9.0, 9.0))
    args = ising.energy, p, chains_of(0, p), ising.energy, q, chains_of(1, q)
    assert "the models hardly overlap" in divergence(*args).describe()


def test_log_z_follows_from_how_often_a_state_occurs():
    params = random_ising(1, SIZE)
    draws = chains_of(0, params)
    best = all_states(SIZE)[np.argmax(log_probs_of(params))]
    found = log_z_from_state(ising.energy, params, draws, best)
    assert isinstance(found, Measured)
    assert z_of(found, exact_log_z(params)) < 4
    assert found.stderr < 0.05


def test_states_that_never_occur_and_plain_rows_are_refused():
    params, draws = random_ising(1, SIZE), np.zeros((4, 10, SIZE))
    with pytest.raises(ValueError, match="state must occur among the draws"):
        log_z_from_state(ising.energy, params, draws, np.ones(SIZE))
    with pytest.raises(ValueError, match=r"try x\[:, None\]"):
        model_entropy(ising.energy, params, np.zeros(10), 1.0)


@pytest.mark.statistics
def test_intervals_of_entropies_of_50_units_contain_the_truth():
    """The model is ten independent ones of five units, whose entropies add up."""
    parts = [random_ising(seed, SIZE, scale=0.7) for seed in range(10)]
    matrix = np.zeros((50, 50))
    for number, part in enumerate(parts):
        block = slice(SIZE * number, SIZE * (number + 1))
        matrix[block, block] = matrix_of(part)
    params = ising.from_matrix(jnp.asarray(matrix))
    truth = sum(entropy_of(part) for part in parts)
    hits, errors = 0, []
    for seed in range(60):
        keys = jax.random.split(jax.random.key(seed), 2)
        draws = sample(
            keys[0],
            ising.energy,
            params,
            jnp.zeros((50, 50)),
            sampler=HeatBath(),
            num_draws=50,
            num_warmup=100,
            thin=2,
        )
        args = keys[1], ising.energy, params, Bernoulli(50), draws.x[:, -1]
        both = sandwich(*args, sampler=HeatBath(), num_steps=200)
        found = model_entropy(ising.energy, params, draws, both)
        hits += found.lower < truth < found.upper
        errors.append((found.value - truth) / found.stderr)
    assert hits >= 55
    assert np.sqrt(np.mean(np.square(errors))) < 1.3
