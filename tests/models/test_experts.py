from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from probjax import ConvergenceWarning, MaximumLikelihood, fit
from probjax.models import experts
from probjax.potential import closed_forms, potential
from probjax.trees import as_array

# Neither orthogonal nor of one length; strengths of which some have no mean.
FILTERS = np.array([[1.5, 0.4], [-0.3, 0.8]])
LEVELS = np.array([0.01, 0.1, 0.3, 0.5, 0.8, 0.95, 0.999])
NUM = 40_000
ADAM = optax.adam(0.5)


def model(strength, filters=FILTERS):
    """Parameters in the precision of the test."""
    return experts.Params(*(as_array(np.array(p, float)) for p in (filters, strength)))


@partial(jax.jit, static_argnums=0)
def energies(energy, params, x):
    return jax.vmap(energy, (None, 0))(params, x)


@partial(jax.jit, static_argnums=0)
def compiled(function, *args):
    return function(*args)


def stretched(far, count):
    """Points of the line that reach exp(far), and what each stands for."""
    step = 2 * far / count
    even = (np.arange(count) - count / 2 + 0.5) * step
    return np.sinh(even), np.cosh(even) * step


@pytest.mark.parametrize("strength", [0.8, 1.0, 3.3])
@pytest.mark.parametrize(
    ("energy", "log_z"),
    [
        (experts.student_t, experts.student_t_log_z),
        (experts.laplace, experts.laplace_log_z),
    ],
    ids=["student_t", "laplace"],
)
def test_log_z_of_one_expert_is_that_of_quadrature(energy, log_z, strength, x64):
    params = model([strength], [[-0.7]])
    points, widths = stretched(60, 1_000_000)
    total = np.exp(-np.asarray(energies(energy, params, points[:, None]))) @ widths
    found = compiled(log_z, params)
    np.testing.assert_allclose(found, np.log(total), rtol=0, atol=1e-8)


def test_log_z_of_two_student_t_experts_is_that_of_quadrature(x64):
    params = model([4.0, 5.5])
    edge = np.arange(-80, 80, 0.1)
    points = np.stack(np.meshgrid(edge, edge), -1).reshape(-1, 2)
    found = np.asarray(energies(experts.student_t, params, points))
    total = np.exp(-found).sum() * 0.1**2
    expected = compiled(experts.student_t_log_z, params)
    np.testing.assert_allclose(np.log(total), expected, rtol=0, atol=1e-8)


def test_log_z_of_two_laplace_experts_is_that_of_quadrature(x64):
    params = model([0.7, 2.0])
    # The energy grows in proportion along a ray, where its integral is 1 / E^2.
    angles = 2 * np.pi * np.arange(200_000) / 200_000
    circle = np.stack([np.cos(angles), np.sin(angles)], 1)
    found = np.asarray(energies(experts.laplace, params, circle))
    total = 2 * np.pi * np.mean(1 / found**2)
    expected = compiled(experts.laplace_log_z, params)
    np.testing.assert_allclose(np.log(total), expected, rtol=0, atol=1e-8)


def student_levels(responses, strength):
    """The shares of an expert's density below each response."""
    u, degrees = responses, 2 * strength - 1
    tail = jax.scipy.special.betainc(degrees / 2, 0.5, 1 / (1 + u**2)) / 2
    return jnp.where(u < 0, tail, 1 - tail)


def laplace_levels(responses, strength):
    tail = jnp.exp(-strength * jnp.abs(responses)) / 2
    return jnp.where(responses < 0, tail, 1 - tail)


@pytest.mark.statistics
@pytest.mark.parametrize(
    ("sample", "levels_of"),
    [
        (experts.sample_student_t, student_levels),
        (experts.sample_laplace, laplace_levels),
    ],
    ids=["student_t", "laplace"],
)
def test_draws_have_independent_responses_of_known_quantiles(
    sample, levels_of, x64, key
):
    params = model([0.8, 2.5])
    draws = jax.jit(partial(sample, num_draws=NUM))(key, params)
    assert draws.shape == (NUM, 2)
    assert draws.dtype == jnp.float64
    responses = np.asarray(draws) @ FILTERS.T
    of_experts = jax.jit(jax.vmap(levels_of, (1, 0)))
    levels = np.asarray(of_experts(responses, params.strength))
    for each in levels:
        shares = (each[:, None] < LEVELS[None]).mean(0)
        noise = np.sqrt(LEVELS * (1 - LEVELS) / NUM)
        assert np.abs((shares - LEVELS) / noise).max() < 5
    both = (levels < 0.3).all(0).mean()
    assert abs(both - 0.09) < 5 * np.sqrt(0.09 * 0.91 / NUM)


def test_energies_are_those_of_the_definition():
    params = model([0.8, 2.5, 0.1], [[1.5, 0.4], [-0.3, 0.8], [1.0, 1.0]])
    x = np.array([0.7, -1.3])
    filters, strength = map(np.asarray, params)
    responses = filters @ x
    expected = strength @ np.log(1 + responses**2)
    found = compiled(experts.student_t, params, x)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    found = compiled(experts.laplace, params, x)
    np.testing.assert_allclose(found, strength @ np.abs(responses), rtol=1e-6)


@pytest.mark.parametrize(
    ("energy", "log_z"),
    [
        (experts.student_t, experts.student_t_log_z),
        (experts.laplace, experts.laplace_log_z),
    ],
    ids=["student_t", "laplace"],
)
def test_energies_and_log_z_have_the_right_derivatives(energy, log_z, x64):
    x = np.array([0.7, -1.3])

    @jax.jit
    def both(filters, strength, x):
        params = experts.Params(filters, strength)
        return energy(params, x) + 0.3 * log_z(params)

    strength = np.array([0.8, 2.5])
    chex.assert_numerical_grads(both, (FILTERS, strength, x), order=1)
    slope = jax.jit(jax.grad(energy, 1))(experts.Params(FILTERS, strength), np.zeros(2))
    assert np.isfinite(slope).all()


def test_energies_grow_as_their_tails_should(x64):
    """A ray costs 2 lambda log r for every expert that responds along it."""
    params = model([0.8, 2.5])
    ray = np.linalg.solve(FILTERS, np.array([1.0, 0.0]))
    rays = np.outer([1e6, 1e8], ray)
    rise = np.diff(energies(experts.student_t, params, rays))[0]
    np.testing.assert_allclose(rise, 1.6 * np.log(100), rtol=1e-6)


UNIT = np.eye(2)
OVER = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
FEW = model([1.0], [[1.0, 2.0]])


@pytest.mark.parametrize(
    ("params", "student", "other"),
    [
        (model([0.6, 2.0]), "", ""),
        (model([0.5, 2.0]), "need strengths above 1/2, got 0.5", ""),
        (model([0.2, 2.0], 1e-6 * UNIT), "above 1/2, got 0.2", ""),
        (model([-0.1, 2.0]), *2 * ["must not be negative, got -0.1"]),
        (model([0.0, 2.0]), *2 * ["span 1 of 2 directions"]),
        (model([0.0, 0.0]), *2 * ["span 0 of 2 directions"]),
        (model([1.0, 2.0], [[1.0, 2.0], [2.0, 4.0]]), *2 * ["span 1 of 2"]),
        (FEW, *2 * ["span 1 of 2 directions, and the energy"]),
        (model([1.0, 1.0], [[1.0, 0.0], [0.0, 1e-9]]), "", ""),
        (model([0.4, 0.4, 0.4], OVER), "", ""),
        (model([0.25, 0.25, 0.5], OVER), "more than half of 2 sites, got 1", ""),
        (model([0.6, 0.6, 0.0], OVER), "", ""),
        (model([0.6, 0.4, 0.0], OVER), "above 1/2, got 0.4", ""),
        (model([np.nan, 1.0]), *2 * ["must be finite, got NaN"]),
    ],
)
def test_what_has_no_finite_integral_is_told_in_words(params, student, other):
    for energy, expected in ((experts.student_t, student), (experts.laplace, other)):
        told = closed_forms(energy)["unnormalisable"](params)
        assert expected in told
        assert bool(told) == bool(expected)


def test_log_z_is_infinite_where_there_is_no_finite_integral():
    student, laplace = experts.student_t_log_z, experts.laplace_log_z
    assert compiled(student, model([0.5, 2.0])) == np.inf
    assert compiled(student, model([0.2, 2.0])) == np.inf
    assert compiled(laplace, model([-1.0, 2.0])) == np.inf
    assert compiled(laplace, model([1.0, 2.0], np.ones((2, 2)))) == np.inf


def test_functions_may_be_traced(key):
    params = model([0.8, 2.5])

    @jax.jit
    def traced(params):
        assert closed_forms(experts.student_t)["unnormalisable"](params) == ""
        draws = experts.sample_student_t(key, params, num_draws=2)
        return draws, experts.student_t_log_z(params)

    @jax.jit
    def known():
        draws = experts.sample_student_t(key, params, num_draws=2)
        return draws, experts.student_t_log_z(params)

    chex.assert_trees_all_close(traced(params), known(), rtol=1e-4)


def test_started_models_can_be_normalised(key):
    for count in (None, 9):
        params = jax.jit(lambda key, n=count: experts.init(key, 5, n))(key)
        assert params.filters.shape == (count or 5, 5)
        assert experts.student_t_unnormalisable(params) == ""
        model = potential(experts.student_t, params)
        assert np.isfinite(jax.jit(lambda x, of=model: of(x))(np.ones(5)))


@pytest.mark.parametrize(
    ("canonical", "energy"),
    [
        (experts.student_t_canonical, experts.student_t),
        (experts.laplace_canonical, experts.laplace),
    ],
    ids=["student_t", "laplace"],
)
def test_canonical_forms_of_the_same_energy_are_equal(canonical, energy, x64):
    params = model([0.8, 2.5, 0.3], OVER + 0.3)
    signs, order = np.array([-1.0, -1, 1]), [2, 0, 1]
    changed = experts.Params(
        (np.asarray(params.filters) * signs[:, None])[order],
        np.asarray(params.strength)[order],
    )
    form = compiled(canonical, params)
    chex.assert_trees_all_close(compiled(canonical, changed), form, rtol=1e-12)
    chex.assert_trees_all_close(compiled(canonical, form), form, rtol=1e-12)
    x = np.array([0.7, -1.3])
    found, expected = (compiled(energy, each, x) for each in (form, params))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_strengths_of_laplace_experts_are_lengths_of_their_filters(x64):
    params = model([0.8, 2.5])
    longer = model([2.4, 7.5], FILTERS / 3)
    canonical, log_z_of = experts.laplace_canonical, experts.laplace_log_z
    form = compiled(canonical, params)
    np.testing.assert_array_equal(form.strength, 1)
    chex.assert_trees_all_close(compiled(canonical, longer), form, rtol=1e-12)
    log_z = compiled(log_z_of, params)
    np.testing.assert_allclose(compiled(log_z_of, form), log_z, rtol=1e-12)
    chart = experts.laplace_chart(params)
    coordinates = jax.tree.map(lambda leaf: np.asarray(leaf) + 1, params)
    moved = jax.jit(chart.inverse)(coordinates)
    expected = params._replace(filters=FILTERS + 1)
    chex.assert_trees_all_close(moved, expected)


def test_a_fit_keeps_strengths_where_the_integral_is_finite(x64, key):
    objective = MaximumLikelihood(experts.student_t, log_z=experts.student_t_log_z)
    # An expert of strength 0.6 and a filter of 1.5: 0.2 degrees of freedom.
    draws = np.random.default_rng(0).standard_t(0.2, size=(500, 1))
    data = draws / np.sqrt(0.2) / 1.5
    start = model([3.0], [[1.0]])
    chart = experts.student_t_chart(start)
    back = jax.jit(lambda start: chart.inverse(chart.forward(start)))(start)
    chex.assert_trees_all_close(back, start, rtol=1e-12)
    options = dict(optimizer=ADAM, steps_per_round=100)
    # Steps this long lead a strength without a chart below 1/2, where Z is infinite.
    with pytest.warns(ConvergenceWarning, match="not finite"):
        fit(key, objective, start, data, **options)
    found = fit(key, objective, start, data, chart=chart, **options)
    assert np.isfinite(found.losses).all()
    assert 0.5 < np.asarray(found.params.strength)[0] < 0.65
    low = model([0.4, 0.4, 0.4], OVER)
    chart = experts.student_t_chart(low)

    @jax.jit
    def moved(low):
        return chart.inverse(jax.tree.map(lambda leaf: leaf - 9, chart.forward(low)))

    far = moved(low)
    np.testing.assert_allclose(far.strength, 0.4 * np.exp(-9))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda key, p: experts.student_t_chart(model([0.5, 1.0])),
            "strengths of 2 experts of 2 sites must be above 0.5, got 0.5",
        ),
        (
            lambda key, p: experts.student_t_chart(model([0.0, 1.0, 1.0], OVER)),
            "strengths of 3 experts of 2 sites must be above 0.0, got 0",
        ),
        (lambda key, p: experts.init(key, 0), "size must be an integer of at least 1"),
        (lambda key, p: experts.init(key, 2, 0), "num_experts must be an integer"),
        (lambda key, p: experts.laplace(p, np.zeros(3)), r"2 sites .* shape \(3,\)"),
        (
            lambda key, p: experts.student_t(p._replace(strength=np.ones(1)), p[1]),
            r"a strength for each of 2 experts, got shape \(1,\)",
        ),
        (
            lambda key, p: experts.laplace_log_z(model(np.ones(3), OVER)),
            "as many experts as sites, got 3 experts of 2 sites",
        ),
        (
            lambda key, p: experts.sample_laplace(
                key, model([1.0], [[1, 2.0]]), num_draws=1
            ),
            "as many experts as sites, got 1 experts of 2 sites",
        ),
        (
            lambda key, p: experts.sample_student_t(key, model([0.4, 1]), num_draws=1),
            "no draws: as many experts as sites need strengths above 1/2, got 0.4",
        ),
        (
            lambda key, p: experts.sample_laplace(key, p, num_draws=0),
            "num_draws must be an integer of at least 1",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, message, key):
    with pytest.raises(ValueError, match=message):
        call(key, model([1.0, 2.0]))
