from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import MaximumLikelihood, fit, loss
from probjax.fitting import GradientNorm
from probjax.models import experts, ica
from probjax.random import split
from probjax.trees import as_array

# Neither orthogonal nor of one length, and with a negative determinant.
FILTERS = np.array([[0.4, 1.5], [0.8, -0.3]])
LIKELIHOOD = MaximumLikelihood(ica.energy, log_z=ica.log_z)
NUM = 40_000


def model(filters=FILTERS):
    """Parameters in the precision of the test."""
    return ica.Params(as_array(np.array(filters, float)))


@partial(jax.jit, static_argnums=0)
def compiled(function, *args):
    return function(*args)


distance_of = partial(compiled, ica.amari_distance)


@jax.jit
def energies(params, x):
    return jax.vmap(ica.energy, (None, 0))(params, x)


def test_log_z_of_one_component_is_that_of_quadrature(x64):
    params = model([[-0.7]])
    # Between even points a kink at one of them is integrated exactly.
    edge = np.arange(-60, 60.0001, 0.001)
    found = np.asarray(energies(params, edge[:, None]))
    total = np.log(np.sum(np.exp(-found)) * 0.001)
    np.testing.assert_allclose(compiled(ica.log_z, params), total, rtol=0, atol=1e-7)


def test_log_z_of_two_components_is_that_of_quadrature(x64):
    # The energy grows in proportion along a ray, where its integral is 1 / E^2.
    angles = 2 * np.pi * np.arange(200_000) / 200_000
    circle = np.stack([np.cos(angles), np.sin(angles)], 1)
    found = np.asarray(energies(model(), circle))
    total = np.log(2 * np.pi * np.mean(1 / found**2))
    np.testing.assert_allclose(compiled(ica.log_z, model()), total, rtol=0, atol=1e-8)


def test_components_are_experts_of_strength_one(x64, key):
    @jax.jit
    def both(params, x):
        same = experts.Params(params.filters, jnp.ones(4))
        of_ica = ica.energy(params, x), ica.log_z(params)
        likelihood = ica.log_likelihood(params, x)
        return of_ica, likelihood, experts.laplace(same, x), experts.laplace_log_z(same)

    of_ica, likelihood, *of_experts = both(ica.init(key, 4), np.arange(4.0) - 1)
    np.testing.assert_allclose(of_ica, of_experts, rtol=1e-12)
    np.testing.assert_allclose(likelihood, -np.sum(of_experts), rtol=1e-12)


def test_draws_have_independent_laplace_responses(x64, key):
    x = np.asarray(jax.jit(partial(ica.sample, num_draws=NUM))(key, model()))
    assert x.shape == (NUM, 2)
    responses = x @ FILTERS.T
    # |u| is exponential: mean and variance 1, fourth moment about its mean 9.
    sizes = np.abs(responses)
    assert np.abs((sizes.mean(0) - 1) * np.sqrt(NUM)).max() < 5
    assert np.abs((sizes.var(0) - 1) * np.sqrt(NUM / 8)).max() < 5
    assert np.abs(responses.mean(0) * np.sqrt(NUM / 2)).max() < 5
    covariances = responses.prod(1).mean(), (sizes - 1).prod(1).mean()
    assert abs(covariances[0]) < 5 * np.sqrt(4 / NUM)
    assert abs(covariances[1]) < 5 * np.sqrt(1 / NUM)


def test_energy_and_log_z_have_the_right_derivatives(x64):
    @jax.jit
    def of_parts(filters, x):
        return ica.log_likelihood(ica.Params(filters), x)

    at = FILTERS, np.array([0.7, -1.3])
    chex.assert_numerical_grads(of_parts, at, order=1)


def test_maximum_likelihood_recovers_the_filters(key):
    draw_key, start_key = split(key, 2)
    truth = model(np.random.default_rng(0).normal(size=(4, 4)))
    data = jax.jit(partial(ica.sample, num_draws=3000))(draw_key, truth)
    start = jax.jit(lambda key: ica.init(key, 4))(start_key)
    assert distance_of(start.filters, truth.filters) > 0.2
    found = fit(key, LIKELIHOOD, start, data, stop=GradientNorm(0.003))
    assert distance_of(found.params.filters, truth.filters) < 0.05
    per_row = np.asarray(energies(truth, data)) + float(compiled(ica.log_z, truth))
    assert -0.05 < float(found.loss) - per_row.mean() < 0
    # Not up to scale alone: a response's mean absolute value is 1 at the optimum.
    sizes = np.abs(np.asarray(data) @ np.asarray(found.params.filters).T).mean(0)
    np.testing.assert_allclose(sizes, 1, atol=0.05)


@pytest.mark.parametrize("filters", [np.ones((2, 2)), np.zeros((2, 2))])
def test_singular_starts_are_refused_in_a_sentence(filters, key):
    data = np.arange(10.0).reshape(5, 2)
    assert compiled(ica.log_z, model(filters)) == np.inf
    for start in (fit, loss):
        with pytest.raises(ValueError, match="no partition .* are singular: they span"):
            start(key, LIKELIHOOD, model(filters), data)
    with pytest.raises(ValueError, match="no draws: the filters are singular"):
        ica.sample(key, model(filters), num_draws=1)


def test_students_of_infinite_z_are_refused_by_the_likelihood(key):
    objective = MaximumLikelihood(experts.student_t, log_z=experts.student_t_log_z)
    params = experts.Params(np.eye(2), np.array([0.4, 1.0]))
    with pytest.raises(ValueError, match="no partition .* above 1/2, got 0.4"):
        loss(key, objective, params, np.ones((3, 2)))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_amari_distance_is_zero_for_the_same_and_blind_to_what_is_open(size, x64):
    generator = np.random.default_rng(size)
    filters, others = generator.normal(size=(2, size, size))
    factors = generator.normal(size=(2, size, 1))
    orders = [generator.permutation(size) for _ in range(2)]
    distance = distance_of(filters, others)
    changed = [
        (rows * factor)[order]
        for rows, factor, order in zip((filters, others), factors, orders, strict=True)
    ]
    np.testing.assert_allclose(distance_of(*changed), distance, atol=1e-12)
    same = distance_of(changed[0], filters)
    np.testing.assert_allclose(same, 0, atol=1e-10)
    if size > 1:
        assert 0.05 < distance < 1


def test_amari_distance_is_that_of_hand(x64):
    others = np.eye(2)
    filters = np.array([[3.0, 4.0], [0.0, 2.0]])
    # Rows of length 1 are (.6, .8) and (0, 1): rows .75 + 0, columns 0 + .8.
    expected = (0.75 + 0 + 0 + 0.8) / 4
    np.testing.assert_allclose(ica.amari_distance(filters, others), expected)
    # Every filter is as much of each of the others: as far as can be.
    hadamard = np.array([[1.0, 1.0], [1.0, -1.0]])
    np.testing.assert_allclose(ica.amari_distance(hadamard, others), 1)


def test_canonical_forms_of_the_same_model_are_equal(x64):
    params = model(np.random.default_rng(0).normal(size=(4, 4)))
    signs = np.array([1.0, -1, -1, 1])[:, None]
    changed = ica.Params((np.asarray(params.filters) * signs)[[3, 0, 1, 2]])
    form = compiled(ica.canonical, params)
    chex.assert_trees_all_close(compiled(ica.canonical, changed), form, rtol=1e-12)
    chex.assert_trees_all_close(compiled(ica.canonical, form), form, rtol=1e-12)
    x = np.arange(4.0) - 1.5
    for of in (partial(ica.energy, x=x), ica.log_z):
        found, expected = map(jax.jit(of), (form, params))
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda key: ica.init(key, 0), "size must be an integer of at least 1"),
        (lambda key: ica.energy(model(), np.zeros(3)), r"2 sites .* shape \(3,\)"),
        (
            lambda key: ica.energy(model(np.ones((3, 2))), np.zeros(2)),
            r"square matrix, got shape \(3, 2\)",
        ),
        (
            lambda key: ica.log_z(model(np.ones((2, 3)))),
            r"square matrix, got shape \(2, 3\)",
        ),
        (
            lambda key: ica.sample(key, model(), num_draws=0),
            "num_draws must be an integer of at least 1",
        ),
        (
            lambda key: ica.sample(key, model(np.full((2, 2), np.nan)), num_draws=1),
            "filters must be finite, got NaN",
        ),
        (
            lambda key: ica.amari_distance(np.eye(2), np.eye(3)),
            r"of one size, got shapes \(2, 2\) and \(3, 3\)",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, message, key):
    with pytest.raises(ValueError, match=message):
        call(key)


def test_a_filter_of_zeros_is_as_far_as_can_be(x64):
    filters = np.array([[1.0, 2.0], [0.5, -1.0]])
    assert ica.amari_distance(filters * np.array([[1], [0]]), filters) == 0.5
    assert ica.amari_distance(np.zeros((2, 2)), filters) == 1
    with pytest.raises(ValueError, match="square and of one size"):
        ica.amari_distance(filters, np.ones((2, 2, 2)))
