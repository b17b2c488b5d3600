from types import SimpleNamespace

import jax
import numpy as np
import pytest
from small_models import all_states

from probjax import Data, MaximumLikelihood, annealing, dbn, fit, rbm
from probjax.fitting import GradientNorm
from probjax.random import split_array
from probjax.trees import as_array

SIZES = (4, 3, 5, 2)
STATES = all_states(4).astype(float)


def machine(seed, visible, hidden):
    """A machine in the precision of the test."""
    normal = np.random.default_rng(seed).normal
    shapes = (visible, hidden), visible, hidden
    return rbm.Params(*(as_array(normal(size=shape)) for shape in shapes))


def network(num_layers=3):
    pairs = zip(SIZES[:num_layers], SIZES[1 : num_layers + 1], strict=True)
    return tuple(machine(seed, *sizes) for seed, sizes in enumerate(pairs))


def transposed(layer):
    return rbm.Params(np.asarray(layer.weight).T, layer[2], layer[1])


def energies_of(layer):
    """E of every visible state of one machine, in NumPy."""
    weight, visible_bias, hidden_bias = (np.asarray(leaf, float) for leaf in layer)
    x = all_states(len(weight))
    return -x @ visible_bias - np.logaddexp(0, x @ weight + hidden_bias).sum(1)


def log_z_of(layer):
    return np.logaddexp.reduce(-energies_of(layer))


def conditional(layer, x, hidden):
    """The table p(x | h), (hidden state, visible state), from the joint."""
    weight, visible_bias, _ = map(np.asarray, layer)
    joint = np.exp((x @ visible_bias)[None] + hidden @ weight.T @ x.T)
    return joint / joint.sum(1, keepdims=True)


def probabilities(layers):
    """p of every visible state, by the definition."""
    p = np.exp(-energies_of(layers[-1]) - log_z_of(layers[-1]))
    for layer in reversed(layers[:-1]):
        x, hidden = (all_states(size) for size in layer.weight.shape)
        p = p @ conditional(layer, x, hidden)
    return p


@jax.jit
def bound_energies(layers, x, hidden):
    of_pairs = jax.vmap(
        jax.vmap(dbn.bound_energy, (None, (None, 0))), (None, (0, None))
    )
    return of_pairs(layers, (x, hidden))


def drawn_energies(layers):
    """F(x, h) and Q(h | x) of all x and all h, of a network of two machines."""
    first = layers[0]
    x, hidden = (all_states(size).astype(float) for size in first.weight.shape)
    up = conditional(transposed(first), hidden, x)
    return np.asarray(bound_energies(layers, x, hidden)), up


log_probs_of_rows = jax.jit(jax.vmap(dbn.log_prob, (None, 0)))


def exactly(log_z):
    """An estimate without error, as of a run that is at its end."""
    none, plan = (
        np.zeros(()),
        annealing.Schedule(np.array([0.0, 1.0]), None, None, None),
    )
    at_its_end = SimpleNamespace(step=1)
    particles = (np.inf, None, None, None, plan, at_its_end)
    return annealing.Annealed(log_z, none, log_z, none, *particles)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_log_prob_is_the_sum_over_all_hidden_layers(num_layers, x64):
    layers = network(num_layers)
    found = log_probs_of_rows(layers, STATES)
    np.testing.assert_allclose(np.exp(found), probabilities(layers), rtol=1e-10)


def test_mean_drawn_energy_bounds_log_prob_and_mean_weight_is_it(x64):
    layers = network(2)
    energies, up = drawn_energies(layers)
    log_z = log_z_of(layers[-1])
    log_p = np.log(probabilities(layers))
    weights = np.sum(up * np.exp(-energies - log_z), axis=1)
    np.testing.assert_allclose(np.log(weights), log_p, rtol=1e-10)
    bound = -np.sum(up * energies, axis=1) - log_z
    assert np.all(bound < log_p - 1e-3)


def test_the_bound_is_the_first_machine_if_the_next_are_it_turned_over(key, x64):
    first = machine(3, 4, 3)
    layers = (first, transposed(first), first)

    @jax.jit
    def of_samples(keys, layers):
        states = jax.vmap(dbn.up_samples, (0, None, 0))(keys, layers[:-1], STATES)
        return jax.vmap(dbn.bound_energy, (None, 0))(layers, (STATES, *states))

    found = of_samples(split_array(key, 16), layers)
    np.testing.assert_allclose(found, energies_of(first), rtol=1e-12)
    truth = np.exp(-energies_of(first) - log_z_of(first))
    np.testing.assert_allclose(probabilities(layers), truth, rtol=1e-10)


def test_the_estimated_bound_is_the_exact_one_within_its_error(key, x64):
    layers = network(2)
    energies, up = drawn_energies(layers)
    log_z, weights = log_z_of(layers[-1]), np.arange(1.0, 17)
    truth = -np.sum(up * energies, axis=1) - log_z
    data = Data(STATES, weights)
    found = dbn.log_likelihood_bound(key, layers, data, exactly(log_z), num_draws=2000)
    assert abs(found.value - np.average(truth, weights=weights)) < 4 * found.stderr
    scatter = np.sqrt(np.sum(up * energies**2, 1) - np.sum(up * energies, 1) ** 2)
    errors = scatter / np.sqrt(2000)
    assert np.abs((np.asarray(found.per_row) - truth) / errors).max() < 4
    expected = np.sqrt(np.sum((weights / weights.sum() * errors) ** 2))
    np.testing.assert_allclose(found.stderr, expected, rtol=0.1)
    assert np.isnan(found.upper)
    states = all_states(3).astype(float)
    alone = dbn.log_likelihood_bound(key, layers[1:], states, exactly(log_z))
    log_p = -energies_of(layers[1]) - log_z
    np.testing.assert_allclose(alone.per_row, log_p, rtol=1e-10)
    assert alone.stderr == 0


@pytest.mark.statistics
def test_draws_are_of_the_network(key):
    layers = network(3)
    start = np.tile(STATES, (250, 1))
    found = dbn.sample(key, layers, start, num_draws=2, num_warmup=30, thin=3)
    assert found.x.shape == found.means.shape == (4000, 2, 4)
    assert found.top.x.shape == (4000, 2, 5)
    p = probabilities(layers)
    numbers = np.asarray(found.x)[:, 1].astype(int) @ [8, 4, 2, 1]
    counts = np.bincount(numbers, minlength=16)
    z = (counts - 4000 * p) / np.sqrt(4000 * p * (1 - p))
    assert np.abs(z).max() < 4
    means, truth = np.asarray(found.means)[:, 1], p @ STATES
    z = (means.mean(0) - truth) / (means.std(0) / np.sqrt(4000))
    assert np.abs(z).max() < 4


def test_the_way_up_is_by_the_conditionals_of_the_machines(key):
    layers, x = network(2), np.array([1.0, 0, 1, 1])

    @jax.jit
    def means(layers, x):
        first, second = dbn.up_means(layers, x)
        truth = rbm.hidden_means(layers[0], x), rbm.hidden_means(layers[1], first)
        return (first, second), truth

    (first, second), truth = jax.tree.map(np.asarray, means(layers, x))
    np.testing.assert_allclose(first, truth[0], rtol=1e-6)
    np.testing.assert_allclose(second, truth[1], rtol=1e-6)
    of_keys = jax.jit(jax.vmap(dbn.up_samples, (0, None, None)))
    up = [np.asarray(drawn) for drawn in of_keys(split_array(key, 4000), layers, x)]
    hidden = all_states(3)
    chances = conditional(transposed(layers[0]), hidden, x[None])[0]
    fields = hidden @ np.asarray(layers[1].weight) + np.asarray(layers[1].hidden_bias)
    truth = chances @ (1 / (1 + np.exp(-fields)))
    for drawn, mean in zip(up, (first, truth), strict=True):
        z = (drawn.mean(0) - mean) / np.sqrt(mean * (1 - mean) / 4000)
        assert np.abs(z).max() < 4


def test_a_layer_learned_on_a_poor_one_adds_likelihood(key):
    """It begins as that one turned over, where the network is as likely as it was."""
    minus = 3 * (STATES.sum(1) % 2) + STATES @ np.linspace(-1, 1, 4)
    chances = np.exp(minus - np.logaddexp.reduce(minus))
    # Bits that like to be odd in number, which no pair of them tells.
    data = STATES[np.random.default_rng(0).choice(16, size=4000, p=chances)]
    objective, seen = MaximumLikelihood(rbm.energy, rbm.log_z), []

    def learn(key, below, data):
        seen.append((len(below), data.x.shape))
        if not below:
            return machine(6, 4, 4)
        start = transposed(below[-1])
        return fit(key, objective, start, data, stop=GradientNorm(1e-3)).params

    layers = dbn.fit_layers(key, learn, data, num_layers=2)
    assert seen == [(0, (4000, 4)), (1, (4000, 4))]
    again = dbn.fit_layers(key, learn, data, num_layers=2, layers=layers[:1])
    np.testing.assert_array_equal(again[1].weight, layers[1].weight)
    first = (layers[0], transposed(layers[0]))
    before, after = (
        np.asarray(log_probs_of_rows(stack, data)).mean() for stack in (first, layers)
    )
    assert after > before + 0.1


def test_bad_input_is_refused_in_a_sentence(key):
    layers = network(2)
    crossed = (layers[0], machine(5, 4, 2))
    with pytest.raises(ValueError, match=r"got 3 hidden units of layers\[0\] and 4"):
        dbn.up_means(crossed, np.zeros(4))
    with pytest.raises(ValueError, match="the 6 units of a row, got 4"):
        dbn.sample(key, layers, np.zeros((2, 6)), num_draws=1)
    with pytest.raises(ValueError, match=r"rows of bits .* got shape \(4,\)"):
        dbn.sample(key, layers, np.zeros(4), num_draws=1)
    with pytest.raises(ValueError, match="x and 1 hidden layers, got 1"):
        dbn.bound_energy(layers, (np.zeros(4),))
    with pytest.raises(ValueError, match="num_layers must be an integer of at least 2"):
        dbn.fit_layers(key, machine, np.zeros((2, 4)), num_layers=1, layers=layers)
    deep = [machine(0, 12, 12)] * 3
    with pytest.raises(ValueError, match="at most 22 units .* got 12 and 12"):
        dbn.log_prob(deep, np.zeros(12))
