from functools import partial

import chex
import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small_models import (
    AfterSteps,
    all_states,
    drawn_from,
    flat_of,
    matrix_of,
    random_ising,
)

from probjax import MPF, Data, Watch, fit, ising, natural
from probjax.fitting import GradientNorm
from probjax.fitting.charts import Affine

ENERGIES = natural.energy_scores(ising.energy)
STATES = all_states(4).astype(float)

# Their checks of values are tested in the last of the tests.
whitening, whitened = jax.jit(natural.whitening), jax.jit(natural.whitened)


def drawn(params, num_rows=300):
    """Rows in the precision of the test."""
    return drawn_from(0, params, num_rows).astype(float)


@jax.jit
def there_and_back(white, x):
    y = jax.vmap(white.forward)(x)
    return y, jax.vmap(white.inverse)(y)


def test_white_data_are_centred_uncorrelated_and_of_unit_variance(x64):
    generator = np.random.default_rng(0)
    mixed = generator.normal(size=(500, 4)) @ generator.normal(size=(4, 4)) + 3
    tree = {"a": mixed[:, :1], "b": mixed[:, 1:].reshape(-1, 3, 1)}
    white = whitening(tree, damping=0.0)
    y, back = there_and_back(white, tree)
    y = np.asarray(y)
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(y.T @ y / 500, np.eye(4), atol=1e-10)
    chex.assert_trees_all_close(back, tree, rtol=1e-9)
    matrix = np.asarray(white.matrix)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)


@pytest.mark.parametrize("kind", [int, np.uint8, bool])
def test_whole_numbers_are_data_too(kind):
    x = np.random.default_rng(0).integers(0, 2, (200, 3))
    white, truth = whitening(x.astype(kind)), whitening(x.astype(np.float32))
    chex.assert_trees_all_close(white, truth, rtol=1e-5, atol=1e-6)
    assert np.abs(white.matrix).max() > 1


def test_weights_of_data_are_counts(x64):
    x = np.random.default_rng(0).normal(size=(5, 2))
    counts = np.array([1.0, 3, 0, 2, 4])
    repeated = np.repeat(x, counts.astype(int), axis=0)
    chex.assert_trees_all_close(
        whitening(Data(x, counts)), whitening(repeated), rtol=1e-9
    )


def test_directions_without_variance_can_be_left_out():
    x = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    flat = np.concatenate([x, x.sum(1, keepdims=True)], axis=1)
    white = whitening(flat, damping=natural.PseudoInverse(1e-5))
    y = np.asarray(there_and_back(white, flat)[0])
    values = np.linalg.eigvalsh(y.T @ y / 50)
    np.testing.assert_allclose(values, [0, 1, 1], atol=1e-4)


def test_descent_in_white_parameters_is_natural_descent(x64):
    params = random_ising(2, 4)
    data = drawn(params)
    chart = whitened(ENERGIES, params, data, damping=0.01)
    transform = natural.natural_gradient(ENERGIES, damping=0.01)
    slope = np.sin(flat_of(params))

    def loss(params):
        return slope @ ravel_pytree(params)[0]

    @jax.jit
    def moves(params):
        point = chart.forward(params)
        step = jax.grad(lambda point: loss(chart.inverse(point)))(point)
        by_metric, _ = transform.update(
            jax.grad(loss)(params), transform.init(params), params, data=data
        )
        return point, chart.inverse(point - 0.1 * step), by_metric

    point, moved, by_metric = moves(params)
    np.testing.assert_allclose(point, 0, atol=1e-12)
    truth = flat_of(params) - 0.1 * flat_of(by_metric)
    np.testing.assert_allclose(flat_of(moved), truth, rtol=1e-9)


def test_the_metric_of_white_parameters_is_one(x64):
    params = random_ising(2, 4)
    data = drawn(params)
    chart = whitened(ENERGIES, params, data, damping=0.0)

    def energy(point, x):
        return ising.energy(chart.inverse(point), x)

    found = natural.metric(natural.energy_scores(energy), np.zeros(10), data)
    np.testing.assert_allclose(found, np.eye(10), atol=1e-8)


def test_fits_in_white_parameters_come_to_the_same_minimum_sooner(key, x64):
    params = random_ising(2, 4)
    data = drawn(params)
    start = jax.tree.map(lambda leaf: np.zeros(leaf.shape), params)
    options = dict(stop=GradientNorm(), chart=Affine())
    plain = fit(key, MPF(ising.energy), start, data, **options)
    white = natural.fit_whitened(
        key,
        MPF(ising.energy),
        start,
        data,
        ENERGIES,
        num_turns=10,
        steps_per_round=10,
    )
    assert white.converged
    chex.assert_trees_all_close(white.params, plain.params, atol=1e-5)
    assert len(white.losses) < len(plain.losses)
    drawn_rows = natural.fit_whitened(
        key,
        MPF(ising.energy),
        start,
        data,
        ENERGIES,
        rows=natural.states_of(ising.energy),
        steps_per_round=10,
    )
    chex.assert_trees_all_close(drawn_rows.params, plain.params, atol=1e-5)


def test_directions_that_are_left_out_do_not_move(x64):
    """As the bias and the couplings of a unit that is never on."""
    params = random_ising(4, 4)
    data = STATES * np.array([1, 1, 1, 0])
    chart = whitened(ENERGIES, params, data, damping=natural.PseudoInverse())
    moved = jax.jit(lambda p: chart.inverse(chart.forward(p) + np.arange(10.0)))(params)
    matrices = (matrix_of(p) for p in (moved, params))
    changed = ~np.isclose(*matrices, rtol=0, atol=1e-9)
    assert changed[:3, :3].all()
    assert not changed[3].any()


@pytest.mark.filterwarnings("ignore::probjax.ConvergenceWarning")
def test_callbacks_and_stops_end_it(key, x64):
    params = random_ising(2, 4)
    run = partial(
        natural.fit_whitened, key, MPF(ising.energy), params, drawn(params), ENERGIES
    )
    seen = []
    run(watch=Watch(seen.append, every=1), steps_per_round=2, num_turns=2)
    assert len(seen) > 2
    found = run(watch=Watch(lambda progress: True, every=1), num_turns=3)
    assert len(found.losses) == 1
    found = run(stop=AfterSteps(2), steps_per_round=5, num_turns=3)
    assert len(found.losses) == 2


def test_bad_input_is_refused_in_a_sentence(key):
    params, silent = random_ising(0, 4), STATES * np.array([0, 1, 1, 1])
    run = partial(natural.fit_whitened, key, MPF(ising.energy), params)
    with pytest.raises(ValueError, match="must be called outside jit"):
        jax.jit(lambda x: run(x, ENERGIES))(STATES)
    with pytest.raises(ValueError, match="got rank 6 for 10 parameters"):
        natural.whitened(ENERGIES, params, silent, damping=0.0)
    with pytest.raises(ValueError, match="num_turns"):
        run(STATES, ENERGIES, num_turns=0)
