from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small_models import AfterSteps, random_ising

from probjax import MPF, Data, Watch, exact, fit, ising, natural

ENERGIES = natural.energy_scores(ising.energy)


def test_white_data_are_centred_uncorrelated_and_of_unit_variance(key, x64):
    noise = jax.random.normal(key, (500, 4))
    mixed = noise @ jax.random.normal(jax.random.key(1), (4, 4)) + 3
    tree = {"a": mixed[:, :1], "b": mixed[:, 1:].reshape(-1, 3, 1)}
    white = natural.whitening(tree, damping=0.0)
    y = jax.vmap(white.forward)(tree)
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(y.T @ y / 500, np.eye(4), atol=1e-10)
    chex.assert_trees_all_close(jax.vmap(white.inverse)(y), tree, rtol=1e-9)
    np.testing.assert_allclose(white.matrix, white.matrix.T, atol=1e-12)


@pytest.mark.parametrize("kind", [int, np.uint8, bool])
def test_whole_numbers_are_data_too(kind, key):
    x = jax.random.randint(key, (200, 3), 0, 2).astype(kind)
    white = natural.whitening(x)
    truth = natural.whitening(x.astype(float))
    chex.assert_trees_all_equal(white, truth)
    assert jnp.abs(white.matrix).max() > 1


def test_weights_of_data_are_counts(key, x64):
    x = jax.random.normal(key, (5, 2))
    counts = jnp.array([1.0, 3, 0, 2, 4])
    repeated = jnp.repeat(x, np.asarray(counts, int), axis=0)
    chex.assert_trees_all_close(
        natural.whitening(Data(x, counts)), natural.whitening(repeated), rtol=1e-9
    )


def test_directions_without_variance_can_be_left_out(key):
    x = jax.random.normal(key, (50, 2))
    flat = jnp.concatenate([x, x.sum(1, keepdims=True)], axis=1)
    white = natural.whitening(flat, damping=natural.PseudoInverse(1e-5))
    y = jax.vmap(white.forward)(flat)
    values = np.linalg.eigvalsh(y.T @ y / 50)
    np.testing.assert_allclose(values, [0, 1, 1], atol=1e-4)


def test_descent_in_white_parameters_is_natural_descent(key, x64):
    params = random_ising(2, 4)
    data = exact.sample(key, ising.energy, params, 4, num_draws=300)
    chart = natural.whitened(ENERGIES, params, data, damping=0.01)
    flat, unravel = ravel_pytree(params)
    slope = jnp.sin(flat)

    def loss(params):
        return slope @ ravel_pytree(params)[0]

    point = chart.forward(params)
    np.testing.assert_allclose(point, 0, atol=1e-12)
    step = jax.grad(lambda point: loss(chart.inverse(point)))(point)
    moved = chart.inverse(point - 0.1 * step)
    transform = natural.natural_gradient(ENERGIES, damping=0.01)
    by_metric, _ = transform.update(
        unravel(slope), transform.init(params), params, data=data
    )
    truth = jax.tree.map(lambda p, u: p - 0.1 * u, params, by_metric)
    chex.assert_trees_all_close(moved, truth, rtol=1e-9)


def test_the_metric_of_white_parameters_is_one(key, x64):
    params = random_ising(2, 4)
    data = exact.sample(key, ising.energy, params, 4, num_draws=300)
    chart = natural.whitened(ENERGIES, params, data, damping=0.0)

    def energy(point, x):
        return ising.energy(chart.inverse(point), x)

    found = natural.metric(natural.energy_scores(energy), jnp.zeros(10), data)
    np.testing.assert_allclose(found, np.eye(10), atol=1e-8)


def test_fits_in_white_parameters_come_to_the_same_minimum_sooner(key, x64):
    edges = [(i, i + 1) for i in range(7)]
    params = random_ising(4, 8, edges=edges)
    data = exact.sample(key, ising.energy, params, 8, num_draws=2000)
    start = jax.tree.map(jnp.zeros_like, params)
    plain = fit(key, MPF(ising.energy), start, data)
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
    drawn = natural.fit_whitened(
        key,
        MPF(ising.energy),
        start,
        data,
        ENERGIES,
        rows=natural.states_of(ising.energy),
        steps_per_round=10,
    )
    chex.assert_trees_all_close(drawn.params, plain.params, atol=1e-5)


def test_directions_that_are_left_out_do_not_move(key, x64):
    """As the bias and the couplings of a unit that is never on."""
    params = random_ising(4, 3)
    data = exact.states(3).at[:, 2].set(0)
    chart = natural.whitened(ENERGIES, params, data, damping=natural.PseudoInverse())
    moved = chart.inverse(chart.forward(params) + jnp.arange(6.0))
    matrices = (ising.coupling_matrix(p) for p in (moved, params))
    changed = ~np.isclose(*matrices, rtol=0, atol=1e-9)
    assert changed[:2, :2].all()
    assert not changed[2].any()


@pytest.mark.filterwarnings("ignore::probjax.ConvergenceWarning")
def test_callbacks_and_stops_end_it(key):
    params, x = random_ising(0, 3), exact.states(3)
    run = partial(natural.fit_whitened, key, MPF(ising.energy), params, x, ENERGIES)
    seen = []
    run(watch=Watch(seen.append, every=1), steps_per_round=2, num_turns=2)
    assert len(seen) > 2
    found = run(watch=Watch(lambda progress: True, every=1), num_turns=3)
    assert len(found.losses) == 1
    found = run(stop=AfterSteps(2), steps_per_round=5, num_turns=3)
    assert len(found.losses) == 2


def test_bad_input_is_refused_in_a_sentence(key):
    params, x = random_ising(0, 3), exact.states(3)
    with pytest.raises(ValueError, match="must be called outside jit"):
        jax.jit(
            lambda x: natural.fit_whitened(key, MPF(ising.energy), params, x, ENERGIES)
        )(x)
    with pytest.raises(ValueError, match="singular, of rank 3 in 6 parameters"):
        natural.whitened(ENERGIES, params, x.at[:, 0].set(0), damping=0.0)
    with pytest.raises(ValueError, match="num_turns"):
        natural.fit_whitened(key, MPF(ising.energy), params, x, ENERGIES, num_turns=0)
