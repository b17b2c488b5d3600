from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import (
    Data,
    GradientNorm,
    MaximumLikelihood,
    annealing,
    dbn,
    exact,
    fit,
    rbm,
)

SIZES = (4, 3, 5, 2)


def machine(seed, visible, hidden):
    keys = jax.random.split(jax.random.key(seed), 3)
    return rbm.Params(
        jax.random.normal(keys[0], (visible, hidden)),
        jax.random.normal(keys[1], (visible,)),
        jax.random.normal(keys[2], (hidden,)),
    )


def network(num_layers=3):
    pairs = zip(SIZES[:num_layers], SIZES[1 : num_layers + 1], strict=True)
    return tuple(machine(seed, *sizes) for seed, sizes in enumerate(pairs))


def conditional(layer, x, hidden):
    """The table p(x | h), (hidden state, visible state), from the joint."""
    weight, visible_bias, _ = map(np.asarray, layer)
    joint = np.exp((x @ visible_bias)[None] + hidden @ weight.T @ x.T)
    return joint / joint.sum(1, keepdims=True)


def probabilities(layers):
    """p of every visible state, by the definition."""
    top = layers[-1]
    p = np.exp(exact.log_probs(rbm.energy, top, len(top.visible_bias)))
    for layer in reversed(layers[:-1]):
        x, hidden = (np.asarray(exact.states(size)) for size in layer.weight.shape)
        p = p @ conditional(layer, x, hidden)
    return p


def drawn_energies(layers):
    """F(x, h) and Q(h | x) of all x and all h, of a network of two machines."""
    first = layers[0]
    x, hidden = (np.asarray(exact.states(size)) for size in first.weight.shape)
    up = conditional(rbm.transpose(first), hidden, x)
    of_pairs = jax.vmap(
        jax.vmap(dbn.bound_energy, (None, (None, 0))), (None, (0, None))
    )
    return np.asarray(of_pairs(layers, (x, hidden))), up


def exactly(log_z):
    """An estimate without error, as of a run that is at its end."""
    none, plan = jnp.zeros(()), annealing.Plan(jnp.array([0.0, 1.0]), None, None, None)
    at_its_end = SimpleNamespace(step=1)
    particles = (jnp.inf, None, None, None, plan, at_its_end)
    return annealing.Annealed(log_z, none, log_z, none, *particles)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_log_prob_is_the_sum_over_all_hidden_layers(num_layers, x64):
    layers = network(num_layers)
    found = jax.vmap(dbn.log_prob, (None, 0))(layers, exact.states(4))
    np.testing.assert_allclose(np.exp(found), probabilities(layers), rtol=1e-10)


def test_mean_drawn_energy_bounds_log_prob_and_mean_weight_is_it(x64):
    layers = network(2)
    energies, up = drawn_energies(layers)
    log_z = float(rbm.log_z(layers[-1]))
    log_p = np.log(probabilities(layers))
    weights = np.sum(up * np.exp(-energies - log_z), axis=1)
    np.testing.assert_allclose(np.log(weights), log_p, rtol=1e-10)
    bound = -np.sum(up * energies, axis=1) - log_z
    assert np.all(bound < log_p - 1e-3)


def test_the_bound_is_the_first_machine_if_the_next_are_it_turned_over(key, x64):
    first = machine(3, 4, 3)
    layers = (first, rbm.transpose(first), first)
    states = jax.vmap(dbn.up_samples, (0, None, 0))(
        jax.random.split(key, 16), layers[:-1], exact.states(4)
    )
    found = jax.vmap(dbn.bound_energy, (None, 0))(layers, (exact.states(4), *states))
    truth = jax.vmap(rbm.energy, (None, 0))(first, exact.states(4))
    np.testing.assert_allclose(found, truth, rtol=1e-12)
    log_p = exact.log_probs(rbm.energy, first, 4)
    np.testing.assert_allclose(probabilities(layers), np.exp(log_p), rtol=1e-10)


def test_the_estimated_bound_is_the_exact_one_within_its_error(key, x64):
    layers = network(2)
    energies, up = drawn_energies(layers)
    log_z, weights = rbm.log_z(layers[-1]), jnp.arange(1.0, 17)
    truth = -np.sum(up * energies, axis=1) - float(log_z)
    data = Data(exact.states(4), weights)
    found = dbn.log_likelihood_bound(key, layers, data, exactly(log_z), num_draws=2000)
    assert abs(found.value - np.average(truth, weights=weights)) < 4 * found.stderr
    scatter = np.sqrt(np.sum(up * energies**2, 1) - np.sum(up * energies, 1) ** 2)
    errors = scatter / np.sqrt(2000)
    assert np.abs((found.per_row - truth) / errors).max() < 4
    expected = np.sqrt(np.sum((weights / weights.sum() * errors) ** 2))
    np.testing.assert_allclose(found.stderr, expected, rtol=0.1)
    assert np.isnan(found.upper)
    alone = dbn.log_likelihood_bound(key, layers[1:], exact.states(3), exactly(log_z))
    log_p = exact.log_probs(rbm.energy, layers[1], 3)
    np.testing.assert_allclose(alone.per_row, log_p, rtol=1e-10)
    assert alone.stderr == 0


def test_draws_are_of_the_network(key):
    layers = network(3)
    start = jnp.tile(exact.states(4), (250, 1))
    found = dbn.sample(key, layers, start, num_draws=2, num_warmup=30, thin=3)
    assert found.x.shape == found.means.shape == (4000, 2, 4)
    assert found.top.x.shape == (4000, 2, 5)
    p = probabilities(layers)
    numbers = np.asarray(found.x[:, 1] @ jnp.array([8.0, 4, 2, 1])).astype(int)
    counts = np.bincount(numbers, minlength=16)
    z = (counts - 4000 * p) / np.sqrt(4000 * p * (1 - p))
    assert np.abs(z).max() < 4
    means, truth = found.means[:, 1], p @ np.asarray(exact.states(4))
    z = (means.mean(0) - truth) / (means.std(0) / np.sqrt(4000))
    assert np.abs(z).max() < 4


def test_the_way_up_is_by_the_conditionals_of_the_machines(key):
    layers, x = network(2), jnp.array([1.0, 0, 1, 1])
    first, second = dbn.up_means(layers, x)
    np.testing.assert_allclose(first, rbm.hidden_means(layers[0], x), rtol=1e-6)
    np.testing.assert_allclose(second, rbm.hidden_means(layers[1], first), rtol=1e-6)
    keys = jax.random.split(key, 4000)
    up = jax.vmap(dbn.up_samples, (0, None, None))(keys, layers, x)
    hidden = exact.states(3)
    chances = conditional(rbm.transpose(layers[0]), np.asarray(hidden), x[None])[0]
    truth = chances @ np.asarray(
        jax.vmap(rbm.hidden_means, (None, 0))(layers[1], hidden)
    )
    z = (up[1].mean(0) - truth) / np.sqrt(truth * (1 - truth) / 4000)
    assert np.abs(z).max() < 4
    assert (
        np.abs((up[0].mean(0) - first) / np.sqrt(first * (1 - first) / 4000)).max() < 4
    )


def test_a_layer_learned_on_a_poor_one_adds_likelihood(key):
    """It begins as that one turned over, where the network is as likely as it was."""
    data = exact.sample(key, odd, jnp.array(3.0), 4, num_draws=4000)
    objective, seen = MaximumLikelihood(rbm.energy, rbm.log_z), []

    def learn(key, below, data):
        seen.append((len(below), data.x.shape))
        if not below:
            return machine(6, 4, 4)
        start = rbm.transpose(below[-1])
        return fit(key, objective, start, data, stop=GradientNorm(1e-3)).params

    layers = dbn.fit_layers(key, learn, data, num_layers=2)
    assert seen == [(0, (4000, 4)), (1, (4000, 4))]
    again = dbn.fit_layers(key, learn, data, num_layers=2, layers=layers[:1])
    np.testing.assert_array_equal(again[1].weight, layers[1].weight)
    first = (layers[0], rbm.transpose(layers[0]))
    of_rows = jax.jit(jax.vmap(dbn.log_prob, (None, 0)))
    before, after = (of_rows(stack, data).mean() for stack in (first, layers))
    assert after > before + 0.1


def odd(strength, x):
    """Bits that like to be odd in number, which no pair of them tells."""
    return -strength * (x.sum() % 2) - x @ jnp.linspace(-1.0, 1, 4)


def test_bad_input_is_refused_in_a_sentence(key):
    layers = network(2)
    crossed = (layers[0], machine(5, 4, 2))
    with pytest.raises(ValueError, match=r"layers\[0\] has 3 hidden units and layers"):
        dbn.up_means(crossed, jnp.zeros(4))
    with pytest.raises(ValueError, match="the 6 units of a row, got 4"):
        dbn.sample(key, layers, jnp.zeros((2, 6)), num_draws=1)
    with pytest.raises(ValueError, match=r"rows of bits .* got shape \(4,\)"):
        dbn.sample(key, layers, jnp.zeros(4), num_draws=1)
    with pytest.raises(ValueError, match="x and 1 hidden layers, got 1"):
        dbn.bound_energy(layers, (jnp.zeros(4),))
    with pytest.raises(ValueError, match="num_layers must be an integer of at least 2"):
        dbn.fit_layers(key, machine, jnp.zeros((2, 4)), num_layers=1, layers=layers)
    deep = [rbm.init(key, 12, 12)] * 3
    with pytest.raises(ValueError, match="at most 22 units .* got 12 and 12"):
        dbn.log_prob(deep, jnp.zeros(12))
