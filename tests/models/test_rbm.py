from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import all_states

from probjax import L2, MPF, Data, PseudoLikelihood, fit
from probjax.fitting import GradientNorm
from probjax.fitting.loss import loss_over_rows
from probjax.models import rbm
from probjax.models.rbm.gibbs import _softplus_rise
from probjax.potential import closed_forms, potential
from probjax.random import split_array
from probjax.trees import as_array

VISIBLE, HIDDEN = 5, 3
STATES, HIDDEN_STATES = (all_states(size).astype(float) for size in (VISIBLE, HIDDEN))


def machine(seed=0, visible=VISIBLE, hidden=HIDDEN, scale=1.0):
    """A machine in the precision of the test."""
    normal = np.random.default_rng(seed).normal
    weight = scale * normal(size=(visible, hidden))
    biases = normal(size=visible), normal(size=hidden)
    return rbm.Params(as_array(weight), *map(as_array, biases))


def joint_of(params):
    """exp of minus the joint energy, (visible state, hidden state), in NumPy."""
    weight, visible_bias, hidden_bias = (np.asarray(leaf, float) for leaf in params)
    visible, hidden = (all_states(size) for size in weight.shape)
    fields = visible @ weight + hidden_bias
    return np.exp((visible @ visible_bias)[:, None] + fields @ hidden.T)


def chances_of(params):
    joint = joint_of(params).sum(1)
    return joint / joint.sum()


def plain_energy(params, x):
    """The same energy, saying nothing of its closed form."""
    return rbm.energy(params, x)


def test_energy_is_that_of_the_joint_with_hidden_units_summed_out(x64):
    params = machine()
    found = jax.jit(jax.vmap(rbm.energy, (None, 0)))(params, STATES)
    np.testing.assert_allclose(found, -np.log(joint_of(params).sum(1)), rtol=1e-12)


@pytest.mark.parametrize("shape", [(3, 6), (6, 3)])
def test_log_z_sums_over_the_smaller_layer(shape):
    params = machine(1, *shape)
    found = jax.jit(rbm.log_z)(params)
    np.testing.assert_allclose(found, np.log(joint_of(params).sum()), rtol=1e-5)
    swapped = jax.jit(lambda params: rbm.log_z(rbm.transpose(params)))(params)
    np.testing.assert_allclose(found, swapped, rtol=1e-5)


@jax.jit
def gaps_of(params, x):
    """By products, exactly, and by energies."""
    generic = potential(plain_energy, params).flip_gaps
    return (
        jax.vmap(rbm.flip_gaps, (None, 0))(params, x),
        jax.vmap(rbm.exact_gaps, (None, 0))(params, x),
        jax.vmap(generic)(x),
    )


@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_flip_gaps_equal_the_generic_path(scale, x64):
    """From weights that need few products to weights that need the exact way."""
    assert "flip_gaps" in closed_forms(rbm.energy)
    params = machine(2, scale=scale)
    single = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params)
    *double, truth = gaps_of(params, STATES)
    *rough, _ = gaps_of(single, STATES.astype(np.float32))
    for wide, narrow in zip(double, rough, strict=True):
        np.testing.assert_allclose(wide, truth, rtol=1e-10, atol=1e-10)
        assert narrow.dtype == np.float32
        np.testing.assert_allclose(narrow, truth, rtol=1e-5, atol=2e-5 * (1 + scale))


@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_gaps_for_all_platforms_have_the_right_values_and_gradients(branch, scale, x64):
    params, mix = machine(2, scale=scale), np.arange(1.0, VISIBLE + 1)

    def mixed(gaps):
        return lambda params: jnp.sum(jax.vmap(gaps, (None, 0))(params, STATES) @ mix)

    def generic(params, x):
        return potential(plain_energy, params).flip_gaps(x)

    @jax.jit
    def both(params):
        return [jax.value_and_grad(mixed(form))(params) for form in forms]

    forms = rbm.flip_gaps, generic
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-8), *both(params)
    )


@partial(jax.jit, static_argnums=2)
def by_products(params, x, num_products):
    """Gaps, the same exactly, and the bound of their difference."""
    found = jax.vmap(
        lambda x: rbm.gaps_by_products(params, x, num_products=num_products)
    )(x)
    exactly = jax.vmap(rbm.exact_gaps, (None, 0))(params, x)
    return found, exactly, rbm.tail_bound(params.weight, num_products)


@pytest.mark.parametrize("largest", [0.1, 3.0, 10.0])
@pytest.mark.parametrize("num_products", [8, 32])
def test_products_are_off_by_no_more_than_their_bound(largest, num_products, x64):
    params = machine(3, 6, 40)
    weight = np.asarray(params.weight)
    params = params._replace(weight=weight * largest / np.abs(weight).max())
    found, exactly, bound = map(
        np.asarray, by_products(params, all_states(6).astype(float), num_products)
    )
    error = np.abs(found - exactly).max(0)
    assert np.all(error <= bound + 1e-12)
    if largest >= 3.0:
        assert error.max() > 1e-3 * bound.max()


@pytest.mark.parametrize("form", [rbm.flip_gaps, rbm.exact_gaps])
def test_flip_gaps_have_the_right_derivatives(form, x64):
    x, mix = STATES[13], np.arange(1.0, VISIBLE + 1)

    @jax.jit
    def mixed(*params):
        return mix @ form(rbm.Params(*params), x)

    at = tuple(map(np.asarray, machine(4)))
    chex.assert_numerical_grads(mixed, at, order=1)


@pytest.mark.parametrize("objective", [MPF, PseudoLikelihood])
def test_gradient_vanishes_at_the_true_parameters(objective, x64):
    params = machine(5)
    data = Data(STATES, chances_of(params))

    @jax.jit
    def slope(params):
        _, gradient = loss_over_rows(
            objective(rbm.energy), params, data, (), chunk_size=100
        )
        return jnp.stack([jnp.abs(leaf).max() for leaf in gradient]).max()

    assert slope(params) < 1e-6
    assert slope(jax.tree.map(lambda leaf: 1.1 * np.asarray(leaf), params)) > 1e-3


def test_exact_gaps_keep_nothing_of_the_size_of_all_triples():
    params, x = machine(0, 100, 64), np.ones((50, 100), np.float32)

    def total(params):
        return jax.vmap(rbm.exact_gaps, (None, 0))(params, x).sum()

    compiled = jax.jit(jax.grad(total)).lower(params).compile()
    triples = 50 * 100 * 64 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < triples / 2


@pytest.mark.statistics
def test_a_machine_is_learned_back_from_its_states(key):
    chances = chances_of(machine(6))
    counts = np.random.default_rng(0).multinomial(20_000, chances)
    start = machine(7, scale=0.1)
    data = Data(STATES, counts.astype(float))
    found = fit(key, MPF(rbm.energy), start, data, stop=GradientNorm(1e-4))
    assert chances @ np.log(chances / chances_of(found.params)) < 5e-3


def test_bad_input_is_refused_in_a_sentence(key):
    with pytest.raises(ValueError, match="num_visible must be .* at least 1, got 0"):
        rbm.init(key, 0, 3)
    with pytest.raises(
        ValueError, match=r"5 visible units of params, got shape \(4,\)"
    ):
        rbm.energy(machine(), np.zeros(4))
    with pytest.raises(ValueError, match=r"3 hidden units of params, got shape \(5,\)"):
        rbm.visible_means(machine(), np.zeros(5))
    with pytest.raises(ValueError, match="4194304"):
        rbm.log_z(rbm.init(key, 30, 40))


def test_conditionals_are_those_of_the_joint(x64):
    params, joint = machine(7), joint_of(machine(7))
    weight, visible_bias, _ = map(np.asarray, params)

    @jax.jit
    def conditionals(params, x, hidden):
        of_rows = (rbm.hidden_means, rbm.hidden_log_odds, rbm.reconstruct)
        return [jax.vmap(of, (None, 0))(params, x) for of in of_rows], [
            jax.vmap(of, (None, 0))(params, hidden)
            for of in (rbm.visible_means, rbm.visible_log_odds)
        ]

    (up, up_odds, again), (down, down_odds) = jax.tree.map(
        np.asarray, conditionals(params, STATES, HIDDEN_STATES)
    )
    truth = joint @ HIDDEN_STATES / joint.sum(1, keepdims=True)
    np.testing.assert_allclose(up, truth, rtol=1e-12)
    truth = joint.T @ STATES / joint.sum(0)[:, None]
    np.testing.assert_allclose(down, truth, rtol=1e-12)
    np.testing.assert_allclose(up_odds, np.log(up) - np.log1p(-up), rtol=1e-10)
    np.testing.assert_allclose(down_odds, np.log(down) - np.log1p(-down), rtol=1e-10)
    truth = 1 / (1 + np.exp(-up @ weight.T - visible_bias))
    np.testing.assert_allclose(again, truth, rtol=1e-12)


def test_units_are_drawn_by_their_conditionals(key):
    params, count = machine(8), 4000
    x, hidden = STATES[11], HIDDEN_STATES[5]

    @jax.jit
    def drawn(keys, params):
        up = jax.vmap(rbm.sample_hidden, (0, None, None))(keys, params, x)
        down = jax.vmap(rbm.sample_visible, (0, None, None))(keys, params, hidden)
        up_means = rbm.hidden_means(params, x)
        return (up, up_means), (down, rbm.visible_means(params, hidden))

    for found, mean in jax.tree.map(np.asarray, drawn(split_array(key, count), params)):
        assert set(np.unique(found)) == {0, 1}
        z = (found.mean(0) - mean) / np.sqrt(mean * (1 - mean) / count)
        assert np.abs(z).max() < 4
        # Independent given the other layer: no pair is drawn together.
        pairs = np.corrcoef(found.T) - np.eye(len(mean))
        assert np.abs(pairs).max() < 5 / np.sqrt(count)


def test_first_biases_are_log_odds_of_weighted_rows_and_finite(key):
    x = np.array([[0, 1, 0], [0, 1, 1]])
    found = rbm.init(key, 3, 2, data=Data(x, np.array([3.0, 1.0])))
    truth = np.log([0.5 / 4.5, 4.5 / 0.5, 1.5 / 3.5])
    np.testing.assert_allclose(found.visible_bias, truth, rtol=1e-5)
    with pytest.raises(ValueError, match="5 visible units"):
        rbm.init(key, 5, 2, data=x)


def flipped(params, which):
    """The machine of which visible units `which` are 1 - x: the same up to a constant.

    E over (1 - x_i) is a machine with weights and bias of unit i turned over.
    """
    turn = 1 - 2 * which
    weight, visible_bias, hidden_bias = map(np.asarray, params)
    return rbm.Params(
        turn[:, None] * weight, turn * visible_bias, hidden_bias + which @ weight
    )


def test_centred_descent_is_the_same_whichever_state_is_called_on(x64):
    """A step down and units turned over commute there, and not in plain parameters."""
    params = machine(9)
    x, which = STATES[[3, 7, 7, 20, 30]], np.arange(5.0) % 2
    other = np.abs(x - which)
    turned = flipped(params, which)

    @jax.jit
    def there_and_back(params, x):
        chart = rbm.centred(params, x)
        return chart, chart.inverse(chart.forward(params))

    (chart, back), (other_chart, _) = (
        there_and_back(params, x),
        there_and_back(turned, other),
    )
    np.testing.assert_allclose(other_chart.hidden_mean, chart.hidden_mean, rtol=1e-12)
    chex.assert_trees_all_close(back, params)

    @jax.jit
    def step(chart, params, x):
        def loss(coordinates):
            inside = chart.inverse(coordinates)
            energies = jax.vmap(rbm.energy, (None, 0))(inside, x)
            return energies.mean() + rbm.log_z(inside)

        start = chart.forward(params)
        down = jax.tree.map(lambda p, g: p - 0.1 * g, start, jax.grad(loss)(start))
        return chart.inverse(down)

    def apart(chart, other_chart):
        there = flipped(step(chart, params, x), which)
        here = step(other_chart, turned, other)
        return np.abs(there.weight - np.asarray(here.weight)).max()

    assert apart(chart, other_chart) < 1e-12
    plain = rbm.CentredRBM(np.zeros(VISIBLE), np.zeros(HIDDEN))
    assert apart(plain, plain) > 1e-3
    with pytest.raises(ValueError, match=r"5 visible and 3 hidden units .* \(3, 5\)"):
        chart.forward(rbm.transpose(params))


def test_weight_decay_spares_the_biases():
    params = machine(3)
    penalty = L2(0.5, weights=rbm.weights_only(params))
    found = jax.jit(lambda params: penalty.value(params))(params)
    truth = 0.5 * np.sum(np.asarray(params.weight) ** 2)
    np.testing.assert_allclose(found, truth, rtol=1e-5)


softplus_rise = jax.jit(_softplus_rise)


@pytest.mark.parametrize("value", [-300.0, -40.0, -1.0, 0.0, 3.0, 40.0, 300.0])
def test_growth_is_finite_however_long_its_steps(value):
    rise = np.array([-500.0, -60.0, -20.0, -1e-4, 0.0, 1e-4, 20.0, 60.0, 500.0])
    found = softplus_rise(np.full(9, value, np.float32), rise.astype(np.float32))
    truth = np.logaddexp(0, value + rise) - np.logaddexp(0, value)
    np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-7)


def test_growth_starts_with_both_layers_as_active_as_the_data():
    params = machine(scale=2.0)
    x = np.array([[1.0, 0, 1, 1, 0], [1, 0, 0, 1, 0], [1, 1, 0, 1, 0]])
    weights = np.array([1.0, 2.0, 1.0])
    base, path = jax.jit(rbm.start_growth)(params, Data(x, weights))
    fields = x @ np.asarray(params.weight) + np.asarray(params.hidden_bias)
    share = np.array([0.25, 0.5, 0.25])
    visible, hidden = share @ x, share @ (1 / (1 + np.exp(-fields)))
    # With one row of halves beside the four that the weights amount to.
    for odds, mean in ((path.visible, visible), (path.hidden, hidden)):
        expected = (4 * mean + 0.5) / 5
        found = 1 / (1 + np.exp(-np.asarray(odds)))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(base.log_odds, path.visible)
