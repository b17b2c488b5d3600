import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import Data, Gaussian, ScoreMatching, ais, fit, gaussian_rbm, sample
from probjax.annealing import Straight
from probjax.fitting import GradientNorm
from probjax.potential import Potential
from probjax.random import split_array
from probjax.trees import as_array

PARAMS = gaussian_rbm.Params(
    weight=np.array([[1.2, -0.7, 0.4], [0.3, 1.5, -1.1]]),
    visible_bias=np.array([0.5, -0.8]),
    hidden_bias=np.array([-0.3, 0.6, 0.2]),
    log_scale=np.log([0.7, 1.6]),
)
energies_of = jax.jit(jax.vmap(gaussian_rbm.energy, (None, 0)))
log_z_of = jax.jit(gaussian_rbm.log_z)
HIDDEN = np.array(list(itertools.product([0.0, 1.0], repeat=3)))


def with_arrays(params=PARAMS):
    return jax.tree.map(as_array, params)


def joint(x):
    """exp of minus the joint energy of states and every hidden one, as it is read."""
    weight, visible_bias, hidden_bias, log_scale = PARAMS
    square = np.exp(2 * log_scale)
    spring = np.sum((x - visible_bias) ** 2 / (2 * square), axis=-1, keepdims=True)
    return np.exp((hidden_bias + x / square @ weight) @ HIDDEN.T - spring)


def grid():
    """Points and the area of each, over all of the distribution that matters."""
    first, second = np.linspace(-6, 9, 301), np.linspace(-14, 14, 301)
    points = np.stack(np.meshgrid(first, second, indexing="ij"), -1).reshape(-1, 2)
    return points, (first[1] - first[0]) * (second[1] - second[0])


def density():
    """The points of the grid, and the probability of each, normalised by log_z."""
    points, area = grid()
    energies = energies_of(PARAMS, points)
    return points, area * np.exp(-np.asarray(energies) - float(log_z_of(PARAMS)))


def test_energy_and_conditionals_are_those_of_the_joint(x64):
    x = np.array([0.9, -2.0])
    each = joint(x)

    @jax.jit
    def of_model(params, x, hidden):
        return (
            gaussian_rbm.energy(params, x),
            gaussian_rbm.hidden_means(params, x),
            gaussian_rbm.visible_means(params, hidden),
            gaussian_rbm.reconstruct(params, x),
        )

    energy, up, down, again = of_model(PARAMS, x, HIDDEN[5])
    np.testing.assert_allclose(energy, -np.log(each.sum()), rtol=1e-12)
    truth = each @ HIDDEN / each.sum()
    np.testing.assert_allclose(up, truth, rtol=1e-12)
    truth = PARAMS.weight @ truth + PARAMS.visible_bias
    np.testing.assert_allclose(again, truth, rtol=1e-12)
    points, _ = grid()
    given = joint(points)[:, 5]
    truth = given @ points / given.sum()
    np.testing.assert_allclose(down, truth, rtol=1e-8)


def test_log_z_is_the_integral(x64):
    assert abs(density()[1].sum() - 1) < 1e-10


def test_block_gibbs_draws_from_the_model_at_any_weight(key, x64):
    points, chances = density()
    moments = np.concatenate([points, points**2, points[:, :1] * points[:, 1:]], 1)

    def apart(x, chances):
        x = np.asarray(x)
        found = np.concatenate([x, x**2, x[:, :1] * x[:, 1:]], 1)
        error = found.std(0) / np.sqrt(len(x))
        return np.abs((found.mean(0) - chances @ moments) / error).max()

    start = np.random.default_rng(0).normal(size=(4000, 2))
    sampler = gaussian_rbm.GaussianBlockGibbs()
    draws = sample(
        key,
        gaussian_rbm.energy,
        with_arrays(),
        start,
        sampler=sampler,
        num_draws=1,
        num_warmup=30,
    )
    assert apart(np.asarray(draws.x)[:, 0], chances) < 4
    assert np.all(np.asarray(draws.info.accept) == 1)

    @jax.jit
    @jax.vmap
    def at_weight(key, x):
        model = Potential((gaussian_rbm.energy,), (PARAMS,), jnp.array([0.6]))

        def step(i, x):
            step_key = jax.random.fold_in(key, i)
            state = gaussian_rbm.GaussianBlockState(x)
            return sampler.step(step_key, model, state)[0].x

        return jax.lax.fori_loop(0, 40, step, x)

    flat = chances**0.6
    found = at_weight(split_array(key, 4000), start)
    assert apart(found, flat / flat.sum()) < 4
    assert apart(found, chances) > 8


def test_annealing_from_no_weights_finds_log_z(key, x64):
    params = with_arrays()
    start = params._replace(weight=np.zeros((2, 3)))
    base = Gaussian(2, mean=PARAMS.visible_bias, scale=np.exp(PARAMS.log_scale))
    found = ais(
        key,
        gaussian_rbm.energy,
        params,
        base,
        sampler=gaussian_rbm.GaussianBlockGibbs(),
        num_particles=500,
        num_steps=50,
        path=Straight(start),
        pilot=None,
    )
    assert abs(float(found.log_z) - float(log_z_of(params))) < 4 * found.stderr
    assert found.stderr < 0.05


def test_scores_vanish_on_average_at_the_true_parameters(x64):
    """Score matching needs no Z: its gradient over the exact density is zero."""
    points, chances = density()
    data = Data(points, chances)
    found = fit(
        jax.random.key(0),
        ScoreMatching(gaussian_rbm.energy),
        with_arrays(),
        data,
        stop=GradientNorm(1e-6),
    )
    assert found.converged
    assert len(found.losses) == 0


def test_a_start_without_weights_is_the_normal_of_the_data():
    x = np.array([[0.0, 2.0], [1.0, 2.0], [0.0, 5.0]])
    data = Data(x, np.array([1.0, 1.0, 2.0]))
    found = gaussian_rbm.init(jax.random.key(0), 2, 3, data=data)
    np.testing.assert_allclose(found.visible_bias, [0.25, 3.5], rtol=1e-6)
    truth = [np.sqrt(3) / 4, 1.5]
    np.testing.assert_allclose(np.exp(found.log_scale), truth, rtol=1e-5)
    with pytest.raises(ValueError, match="scale must be positive"):
        gaussian_rbm.init(jax.random.key(0), 2, 3, data=x[:2])
    with pytest.raises(ValueError, match="the 4 visible units"):
        gaussian_rbm.init(jax.random.key(0), 4, 3, data=x)


def test_bad_input_is_refused_in_a_sentence(key):
    with pytest.raises(ValueError, match="num_hidden must be an integer of at least 1"):
        gaussian_rbm.init(key, 3, 0)
    with pytest.raises(
        ValueError, match=r"2 visible units of params, got shape \(4,\)"
    ):
        gaussian_rbm.energy(with_arrays(), np.zeros(4))
    with pytest.raises(ValueError, match=r"3 hidden units of params, got shape \(2,\)"):
        gaussian_rbm.visible_means(with_arrays(), np.zeros(2))
    model = Potential((joint,), (with_arrays(),), np.ones(1))
    with pytest.raises(ValueError, match="requires gaussian_rbm.energy"):
        gaussian_rbm.GaussianBlockGibbs().init(key, model, np.zeros(2))
