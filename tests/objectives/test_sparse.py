from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import all_states

from probjax import MPF, ContrastiveDivergence, Data, PseudoLikelihood, fit, loss, rbm
from probjax.data import FixedFlips
from probjax.fitting import uncertainty
from probjax.fitting.loss import loss_over_rows
from probjax.objectives import Corrupted, Sparse
from probjax.trees import as_array

VISIBLE, HIDDEN, ROWS = 5, 3, 11
TARGET = np.array([0.1, 0.2, 0.4])
ADAM = optax.adam(0.02)


def machine(seed=0, scale=1.0):
    draw = np.random.default_rng(seed).normal
    return rbm.Params(
        as_array(scale * draw(size=(VISIBLE, HIDDEN))),
        as_array(draw(size=VISIBLE)),
        as_array(draw(size=HIDDEN)),
    )


def rows(seed=0, count=ROWS):
    generator = np.random.default_rng(seed)
    return as_array(generator.binomial(1, 0.4, (count, VISIBLE)), float)


def drawn(seed, params, count):
    """Rows of a machine, by its table of probabilities."""
    states = all_states(VISIBLE).astype(float)
    odds = np.exp(-np.asarray(jax.jit(jax.vmap(rbm.energy, (None, 0)))(params, states)))
    generator = np.random.default_rng(seed)
    chances = odds.astype(float) / odds.astype(float).sum()
    return states[generator.choice(len(states), size=count, p=chances)]


def sparse(objective, target=TARGET, strength=0.7):
    return Sparse(objective, rbm.hidden_log_odds, target=target, strength=strength)


def mean_activity(params, x):
    means = jax.jit(jax.vmap(rbm.hidden_means, (None, 0)))(params, x)
    return np.asarray(means).mean(0)


def flow(params, x, weights):
    """log K of the data as it is first written down."""
    flips = jnp.abs(x[:, None] - jnp.eye(VISIBLE)[None])
    energies = jax.vmap(rbm.energy, (None, 0))
    gaps = energies(params, x)[:, None] - jax.vmap(energies, (None, 0))(params, flips)
    return jnp.log(weights @ jnp.exp(gaps / 2).sum(1) / weights.sum())


def conditionals(params, x, weights):
    flips = jnp.abs(x[:, None] - jnp.eye(VISIBLE)[None])
    energies = jax.vmap(rbm.energy, (None, 0))
    gaps = energies(params, x)[:, None] - jax.vmap(energies, (None, 0))(params, flips)
    return weights @ jax.nn.softplus(gaps).sum(1) / weights.sum()


def divergence(params, x, weights, there):
    energies = jax.vmap(rbm.energy, (None, 0))
    return weights @ (energies(params, x) - energies(params, there)) / weights.sum()


def cost(params, x, weights):
    """strength * sum_h KL(p || q_h), plainly."""
    on = jax.nn.sigmoid(x @ params.weight + params.hidden_bias[None])
    q, p = weights @ on / weights.sum(), TARGET
    return 0.7 * jnp.sum(p * jnp.log(p / q) + (1 - p) * jnp.log((1 - p) / (1 - q)))


@pytest.mark.parametrize("name", ["flow", "conditionals", "divergence"])
def test_value_and_gradient_are_those_of_the_whole_written_plainly(name, x64):
    params = machine()
    x, weights = rows(), np.arange(1.0, ROWS + 1)
    there = rows(1)
    contrastive = ContrastiveDivergence(rbm.energy, rbm.BlockGibbs())
    objective, plain, context = {
        "flow": (MPF(rbm.energy), flow, ()),
        "conditionals": (PseudoLikelihood(rbm.energy), conditionals, ()),
        "divergence": (contrastive, partial(divergence, there=there), there),
    }[name]
    truth = jax.jit(
        jax.value_and_grad(
            lambda params: plain(params, x, weights) + cost(params, x, weights)
        )
    )(params)
    for chunk_size in (ROWS, 4):
        over_rows = jax.jit(partial(loss_over_rows, chunk_size=chunk_size))
        found = over_rows(sparse(objective), params, Data(x, weights), context)
        chex.assert_trees_all_close(found, truth, rtol=1e-9, atol=1e-11)


def test_a_step_takes_the_mean_of_the_rows_that_it_sees(x64, key):
    """One batch of all rows is all rows; the loss is on any."""
    params, x = machine(1), rows(2)
    found = loss(key, sparse(PseudoLikelihood(rbm.energy)), params, x)

    @jax.jit
    def plainly(params, x):
        ones = jnp.ones(ROWS)
        return conditionals(params, x, ones) + cost(params, x, ones)

    truth = plainly(params, x)
    np.testing.assert_allclose(found, truth, rtol=1e-9)
    steps = partial(fit, key, sparse(MPF(rbm.energy)), params, x, optimizer=ADAM)
    whole = steps(steps_per_round=3).params
    batch = steps(steps_per_round=3, batch_size=ROWS).params
    chex.assert_trees_all_close(whole, batch, rtol=1e-9)


def test_the_cost_tells_saturated_units_the_way_back():
    x = rows(3)

    @jax.jit
    def slope(objective, params):
        return loss_over_rows(objective, params, Data(x), (), chunk_size=99)[1]

    for bias in (-60.0, 60.0):
        params = machine(2)._replace(hidden_bias=as_array(np.full(HIDDEN, bias)))
        objective = sparse(MPF(rbm.energy), strength=1.0)
        both = slope(objective, params), slope(MPF(rbm.energy), params)
        found = np.subtract(both[0].hidden_bias, both[1].hidden_bias)
        # Far out, KL is linear in the log odds of a row that has the mean to itself.
        truth = -TARGET if bias < 0 else 1 - TARGET
        np.testing.assert_allclose(found, truth, rtol=1e-4)


def test_fits_move_mean_activities_to_the_target(key):
    x = drawn(0, machine(4), 400)
    start = machine(5, scale=0.1)

    def learned(strength):
        objective = sparse(MPF(rbm.energy), target=0.1, strength=strength)
        return mean_activity(fit(key, objective, start, x).params, x)

    assert np.abs(learned(0.0) - 0.1).max() > 0.5
    np.testing.assert_allclose(learned(3.0), 0.1, atol=0.01)


def test_minibatches_of_contrastive_divergence_move_them_too(key):
    x = drawn(0, machine(4), 400)
    objective = sparse(
        ContrastiveDivergence(rbm.energy, rbm.BlockGibbs()), target=0.2, strength=3.0
    )
    found = fit(
        key,
        objective,
        machine(5, scale=0.1),
        x,
        optimizer=ADAM,
        batch_size=50,
        num_rounds=500,
        steps_per_round=1,
    )
    np.testing.assert_allclose(mean_activity(found.params, x), 0.2, atol=0.03)
    assert not objective.has_value


def test_bad_input_is_refused_in_a_sentence(key):
    with pytest.raises(ValueError, match="target must be between 0 and 1, got 1.0"):
        sparse(MPF(rbm.energy), target=1)
    with pytest.raises(ValueError, match="strength must not be negative, got -1.0"):
        sparse(MPF(rbm.energy), strength=-1)
    objective, start, x = sparse(MPF(rbm.energy)), machine(), rows()
    with pytest.raises(ValueError, match="try Sparse around Corrupted"):
        fit(key, Corrupted(objective, FixedFlips(1)), start, x)
    fitted = fit(key, objective, start, x, optimizer=ADAM, steps_per_round=1)
    with pytest.raises(ValueError, match="got Sparse, which adds a function"):
        uncertainty(objective, fitted, x)
    with pytest.raises(ValueError, match="which Sparse replaces, got Sparse"):
        fit(key, sparse(objective), start, x)
    masked = Data(x, mask=np.ones((ROWS, VISIBLE), bool))
    with pytest.raises(ValueError, match="hidden units need complete rows"):
        fit(key, objective, start, masked, num_rounds=2)
