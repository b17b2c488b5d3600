import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import L2, MPF, Data, GradientNorm, PseudoLikelihood, exact, fit, potential
from probjax.models import rbm
from probjax.models.rbm.gibbs import _softplus_rise
from probjax.rows import loss_over_rows
from probjax.types import closed_forms

VISIBLE, HIDDEN = 5, 3


def machine(seed=0, visible=VISIBLE, hidden=HIDDEN, scale=1.0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return rbm.Params(
        scale * jax.random.normal(keys[0], (visible, hidden)),
        jax.random.normal(keys[1], (visible,)),
        jax.random.normal(keys[2], (hidden,)),
    )


def plain_energy(params, x):
    """The same energy, saying nothing of its closed form."""
    return rbm.energy(params, x)


def test_energy_is_that_of_the_joint_with_hidden_units_summed_out(x64):
    params = jax.tree.map(lambda leaf: leaf.astype(float), machine())
    hidden = exact.states(HIDDEN)
    weight, visible_bias, hidden_bias = map(np.asarray, params)
    x, hidden = np.asarray(exact.states(VISIBLE)), np.asarray(hidden)
    joint = (x @ visible_bias)[:, None] + hidden @ hidden_bias + x @ weight @ hidden.T
    found = jax.vmap(rbm.energy, (None, 0))(params, x)
    np.testing.assert_allclose(found, -np.log(np.exp(joint).sum(1)), rtol=1e-12)


@pytest.mark.parametrize("shape", [(3, 6), (6, 3)])
def test_log_z_sums_over_the_smaller_layer(shape):
    params = machine(1, *shape)
    found = rbm.log_z(params)
    np.testing.assert_allclose(
        found, exact.log_z(rbm.energy, params, shape[0]), rtol=1e-5
    )
    swapped = exact.log_z(rbm.energy, rbm.transpose(params), shape[1])
    np.testing.assert_allclose(found, swapped, rtol=1e-5)


@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_flip_gaps_equal_the_generic_path(scale, x64):
    """From weights that need few products to weights that need the exact way."""
    assert set(closed_forms(rbm.energy)) == {"flip_gaps"}
    params = machine(2, scale=scale)
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    x = exact.states(VISIBLE)
    truth = jax.vmap(potential(plain_energy, params).flip_gaps)(x)
    for form in (rbm.flip_gaps, rbm.exact_gaps):
        form = jax.jit(jax.vmap(form, (None, 0)))
        double = form(params, x)
        np.testing.assert_allclose(double, truth, rtol=1e-10, atol=1e-10)
        rough = form(single, x.astype(jnp.float32))
        assert rough.dtype == jnp.float32
        np.testing.assert_allclose(rough, truth, rtol=1e-5, atol=2e-5 * (1 + scale))


@pytest.mark.parametrize("largest", [0.1, 3.0, 10.0])
@pytest.mark.parametrize("num_products", [8, 32])
def test_products_are_off_by_no_more_than_their_bound(largest, num_products, x64):
    params = machine(3, 6, 40)
    weight = params.weight * largest / jnp.abs(params.weight).max()
    params = params._replace(weight=weight)
    x = exact.states(6)
    exactly = jax.vmap(rbm.exact_gaps, (None, 0))(params, x)
    found = jax.vmap(
        lambda x: rbm.gaps_by_products(params, x, num_products=num_products)
    )(x)
    bound = rbm.tail_bound(weight, num_products)
    error = jnp.abs(found - exactly).max(0)
    assert jnp.all(error <= bound + 1e-12)
    if largest >= 3.0:
        assert error.max() > 1e-3 * bound.max()


@pytest.mark.parametrize("form", [rbm.flip_gaps, rbm.exact_gaps])
def test_flip_gaps_have_the_right_derivatives(form, x64):
    x, mix = exact.states(VISIBLE)[13], jnp.arange(1.0, VISIBLE + 1)

    @jax.jit
    def mixed(*params):
        return mix @ form(rbm.Params(*params), x)

    chex.assert_numerical_grads(mixed, tuple(machine(4)), order=1)


@pytest.mark.parametrize("objective", [MPF, PseudoLikelihood])
def test_gradient_vanishes_at_the_true_parameters(objective, x64):
    params = jax.tree.map(lambda leaf: leaf.astype(float), machine(5))
    weights = jnp.exp(exact.log_probs(rbm.energy, params, VISIBLE))
    data = Data(exact.states(VISIBLE), weights)

    @jax.jit
    def slope(params):
        _, gradient = loss_over_rows(
            objective(rbm.energy), params, data, (), chunk_size=100
        )
        return jnp.stack([jnp.abs(leaf).max() for leaf in gradient]).max()

    assert slope(params) < 1e-6
    assert slope(jax.tree.map(lambda leaf: 1.1 * leaf, params)) > 1e-3


def test_exact_gaps_keep_nothing_of_the_size_of_all_triples():
    params, x = machine(0, 100, 64), jnp.ones((50, 100))

    def total(params):
        return jax.vmap(rbm.exact_gaps, (None, 0))(params, x).sum()

    compiled = jax.jit(jax.grad(total)).lower(params).compile()
    triples = 50 * 100 * 64 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < triples / 2


def test_a_machine_is_learned_back_from_its_states(key):
    truth = machine(6)
    data = exact.sample(key, rbm.energy, truth, VISIBLE, num_draws=20_000)
    start = rbm.init(key, VISIBLE, HIDDEN, scale=0.1)
    found = fit(key, MPF(rbm.energy), start, data, stop=GradientNorm(1e-4))
    learned = exact.log_probs(rbm.energy, found.params, VISIBLE)
    assert exact.kl(exact.log_probs(rbm.energy, truth, VISIBLE), learned) < 5e-3


def test_bad_input_is_refused_in_a_sentence(key):
    with pytest.raises(ValueError, match="both layers must have units, got 0 and 3"):
        rbm.init(key, 0, 3)
    with pytest.raises(
        ValueError, match=r"5 visible units of params, got shape \(4,\)"
    ):
        rbm.energy(machine(), jnp.zeros(4))
    with pytest.raises(ValueError, match=r"3 hidden units of params, got shape \(5,\)"):
        rbm.visible_means(machine(), jnp.zeros(5))
    with pytest.raises(ValueError, match="4194304"):
        rbm.log_z(rbm.init(key, 30, 40))


def test_conditionals_are_those_of_the_joint(x64):
    params = jax.tree.map(lambda leaf: leaf.astype(float), machine(7))
    weight, visible_bias, hidden_bias = map(np.asarray, params)
    x, hidden = np.asarray(exact.states(VISIBLE)), np.asarray(exact.states(HIDDEN))
    joint = (x @ visible_bias)[:, None] + hidden @ hidden_bias + x @ weight @ hidden.T
    joint = np.exp(joint)
    up = jax.vmap(rbm.hidden_means, (None, 0))(params, x)
    truth = joint @ hidden / joint.sum(1, keepdims=True)
    np.testing.assert_allclose(up, truth, rtol=1e-12)
    down = jax.vmap(rbm.visible_means, (None, 0))(params, hidden)
    truth = joint.T @ x / joint.sum(0)[:, None]
    np.testing.assert_allclose(down, truth, rtol=1e-12)
    odds = rbm.hidden_log_odds(params, x[3])
    np.testing.assert_allclose(odds, np.log(up[3]) - np.log1p(-up[3]), rtol=1e-10)
    odds = rbm.visible_log_odds(params, hidden[5])
    np.testing.assert_allclose(odds, np.log(down[5]) - np.log1p(-down[5]), rtol=1e-10)
    again = jax.nn.sigmoid(weight @ up[9] + visible_bias)
    np.testing.assert_allclose(rbm.reconstruct(params, x[9]), again, rtol=1e-12)


def test_units_are_drawn_by_their_conditionals(key):
    params, count = machine(8), 4000
    keys = jax.random.split(key, count)
    x, hidden = exact.states(VISIBLE)[11], exact.states(HIDDEN)[5]
    up = jax.vmap(rbm.sample_hidden, (0, None, None))(keys, params, x)
    down = jax.vmap(rbm.sample_visible, (0, None, None))(keys, params, hidden)
    for found, mean in (
        (up, rbm.hidden_means(params, x)),
        (down, rbm.visible_means(params, hidden)),
    ):
        assert set(np.unique(found)) == {0, 1}
        z = (found.mean(0) - mean) / jnp.sqrt(mean * (1 - mean) / count)
        assert jnp.abs(z).max() < 4
        # Independent given the other layer: no pair is drawn together.
        pairs = np.corrcoef(found.T) - np.eye(len(mean))
        assert np.abs(pairs).max() < 5 / np.sqrt(count)


def test_first_biases_are_log_odds_of_weighted_rows_and_finite(key):
    x = np.array([[0, 1, 0], [0, 1, 1]])
    found = rbm.init(key, 3, 2, data=Data(x, jnp.array([3.0, 1.0])))
    truth = np.log([0.5 / 4.5, 4.5 / 0.5, 1.5 / 3.5])
    np.testing.assert_allclose(found.visible_bias, truth, rtol=1e-5)
    with pytest.raises(ValueError, match="5 visible units"):
        rbm.init(key, 5, 2, data=x)


def flipped(params, which):
    """The machine of which visible units `which` are 1 - x: the same up to a constant.

    E over (1 - x_i) is a machine with weights and bias of unit i turned over.
    """
    turn = 1 - 2 * which
    return rbm.Params(
        turn[:, None] * params.weight,
        turn * params.visible_bias,
        params.hidden_bias + which @ params.weight,
    )


def test_centred_descent_is_the_same_whichever_state_is_called_on(x64):
    """A step down and units turned over commute there, and not in plain parameters."""
    params = jax.tree.map(lambda leaf: leaf.astype(float), machine(9))
    x, which = exact.states(VISIBLE)[jnp.array([3, 7, 7, 20, 30])], jnp.arange(5.0) % 2
    other = jnp.abs(x - which[None])
    turned = flipped(params, which)
    chart, other_chart = rbm.centred(params, x), rbm.centred(turned, other)
    np.testing.assert_allclose(other_chart.hidden_mean, chart.hidden_mean, rtol=1e-12)
    chex.assert_trees_all_close(chart.inverse(chart.forward(params)), params)

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
        return jnp.abs(there.weight - step(other_chart, turned, other).weight).max()

    assert apart(chart, other_chart) < 1e-12
    plain = rbm.Centred(jnp.zeros(VISIBLE), jnp.zeros(HIDDEN))
    assert apart(plain, plain) > 1e-3
    with pytest.raises(ValueError, match="5 visible and 3 hidden units, params of 3"):
        chart.forward(rbm.transpose(params))


def test_weight_decay_spares_the_biases():
    params = machine(3)
    found = L2(0.5, weights=rbm.weights_only(params)).value(params)
    np.testing.assert_allclose(found, 0.5 * np.sum(params.weight**2), rtol=1e-5)


@pytest.mark.parametrize("value", [-300.0, -40.0, -1.0, 0.0, 3.0, 40.0, 300.0])
def test_growth_is_finite_however_long_its_steps(value):
    rise = np.array([-500.0, -60.0, -20.0, -1e-4, 0.0, 1e-4, 20.0, 60.0, 500.0])
    found = _softplus_rise(jnp.full(9, value), jnp.asarray(rise))
    truth = np.logaddexp(0, value + rise) - np.logaddexp(0, value)
    np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-7)


def test_growth_starts_with_both_layers_as_active_as_the_data():
    params = machine(scale=2.0)
    x = jnp.array([[1.0, 0, 1, 1, 0], [1, 0, 0, 1, 0], [1, 1, 0, 1, 0]])
    weights = jnp.array([1.0, 2.0, 1.0])
    base, path = rbm.start_growth(params, Data(x, weights))
    fields = np.asarray(x @ params.weight) + np.asarray(params.hidden_bias)
    share = np.array([0.25, 0.5, 0.25])
    visible, hidden = share @ np.asarray(x), share @ (1 / (1 + np.exp(-fields)))
    # With one row of halves beside the four that the weights amount to.
    for odds, mean in ((path.visible, visible), (path.hidden, hidden)):
        expected = (4 * mean + 0.5) / 5
        np.testing.assert_allclose(jax.nn.sigmoid(odds), expected, rtol=1e-5)
    np.testing.assert_array_equal(base.log_odds, path.visible)
