import itertools

import chex
import jax
import numpy as np
import optax
import pytest

from probjax import HMC, Gaussian, ScoreMatching, ais, fit
from probjax.models import mcrbm
from probjax.trees import as_array

X = np.array([0.7, -1.3])
ENERGIES = [(mcrbm.energy, 1.0), (mcrbm.energy_by_mean_square, 0.5)]
ADAM = optax.adam(0.1)


def model(seed=0, size=2, factors=4, covariance=3, mean=2):
    generator = np.random.default_rng(seed)
    normal = generator.normal
    return mcrbm.Params(
        filters=2 * normal(size=(factors, size)),
        pooling=-generator.exponential(size=(factors, covariance)),
        mean_filters=normal(size=(mean, size)),
        covariance_bias=1 + normal(size=covariance),
        mean_bias=normal(size=mean),
        visible_bias=0.5 * normal(size=size),
        scale=np.asarray(0.8),
    )


def with_arrays(params):
    return jax.tree.map(as_array, params)


energy_of = jax.jit(mcrbm.energy)
log_odds = jax.jit(jax.vmap(mcrbm.covariance_log_odds, (None, 0)))


def sigmoid(odds):
    return 1 / (1 + np.exp(-np.asarray(odds)))


def joint_energies(params, x, norm_scale):
    """The energies of one state with each state of the hidden units, as defined."""
    square = (params.filters @ x) ** 2 / (norm_scale * x @ x + 0.5)
    inputs = np.concatenate(
        [
            square @ params.pooling / 2 + params.covariance_bias,
            params.mean_filters @ x + params.mean_bias,
        ]
    )
    hidden = np.array(list(itertools.product([0, 1], repeat=len(inputs))))
    own = x @ x / (2 * params.scale**2) - x @ params.visible_bias
    return hidden, own - hidden @ inputs


@pytest.mark.parametrize(("energy", "norm_scale"), ENERGIES, ids=["sum", "mean"])
def test_energy_is_the_joint_with_hidden_units_summed_out(energy, norm_scale, x64):
    params = model()
    hidden, joint = joint_energies(params, X, norm_scale)
    total = -np.log(np.exp(-joint).sum())

    @jax.jit
    def found(params, x):
        odds = mcrbm.covariance_log_odds(params, x, norm_scale=norm_scale)
        return energy(params, x), odds, mcrbm.mean_log_odds(params, x)

    value, covariance_odds, mean_odds = found(params, X)
    np.testing.assert_allclose(value, total, rtol=1e-12)
    on = np.exp(-joint) @ hidden / np.exp(-joint).sum()
    np.testing.assert_allclose(sigmoid(covariance_odds), on[:3], rtol=1e-12)
    np.testing.assert_allclose(sigmoid(mean_odds), on[3:], rtol=1e-12)


def test_covariance_units_are_gated_off_by_the_response(x64):
    params = model(size=3, factors=1, covariance=1)
    across = np.linalg.svd(params.filters)[2][1]
    along = params.filters[0] / np.linalg.norm(params.filters[0])
    angles = np.linspace(0, np.pi / 2, 9)
    turned = np.outer(np.cos(angles), across) + np.outer(np.sin(angles), along)
    odds = np.asarray(log_odds(params, turned))[:, 0]
    np.testing.assert_allclose(odds[0], params.covariance_bias[0], atol=1e-12)
    assert np.all(np.diff(odds) < 0)
    rising = params._replace(pooling=-params.pooling)
    odds = np.asarray(log_odds(rising, turned))[:, 0]
    assert np.all(np.diff(odds) > 0)


def grid(far, step):
    edge = np.arange(-far, far, step)
    return np.stack(np.meshgrid(edge, edge), -1).reshape(-1, 2)


@jax.jit
def energies_of(params, x):
    return jax.vmap(mcrbm.energy, (None, 0))(params, x)


def log_z_by_quadrature(params, far=12, step=0.05):
    energies = np.asarray(energies_of(params, grid(far, step)), float)
    return np.logaddexp.reduce(-energies) + 2 * np.log(step)


def test_integral_without_pooling_is_that_of_a_mixture_of_normals(x64):
    params = model()._replace(pooling=np.zeros((4, 3)))
    total = 0
    for state in map(np.array, itertools.product([0, 1], repeat=2)):
        force = params.visible_bias + state @ params.mean_filters
        total += np.exp(state @ params.mean_bias + (0.8**2) * force @ force / 2)
    log_z = np.log(total * 2 * np.pi * 0.8**2)
    log_z += np.log1p(np.exp(params.covariance_bias)).sum()
    found = log_z_by_quadrature(params)
    np.testing.assert_allclose(found, log_z, rtol=0, atol=1e-10)


@pytest.mark.statistics
@pytest.mark.parametrize("sign", [1, -1], ids=["gating", "rising"])
def test_annealing_finds_the_integral_of_either_sign(sign, key):
    params = model()
    params = with_arrays(params._replace(pooling=sign * params.pooling))
    assert mcrbm.unnormalisable(params) == ""
    truth = log_z_by_quadrature(params)
    found = ais(
        key,
        mcrbm.energy,
        params,
        Gaussian(2),
        sampler=HMC(0.3),
        num_particles=500,
        num_steps=100,
    )
    assert found.stderr < 0.05
    assert abs(found.log_z - truth) < 5 * found.stderr


@pytest.mark.parametrize(("energy", "norm_scale"), ENERGIES, ids=["sum", "mean"])
def test_energy_has_the_right_derivatives(energy, norm_scale, x64):
    @jax.jit
    def of_parts(x, *parts):
        return energy(mcrbm.Params(*parts), x)

    chex.assert_numerical_grads(of_parts, (X, *model()), order=1)


def test_second_derivatives_are_right_where_a_unit_is_undecided(x64):
    params = jax.tree.map(np.zeros_like, model())
    filters = np.array([[1.0, 2.0], [0.5, 0.0]])
    params = params._replace(mean_filters=filters, scale=np.ones(()))
    found = jax.jit(jax.hessian(mcrbm.energy, 1))(params, np.zeros(2))
    np.testing.assert_allclose(found, np.eye(2) - filters.T @ filters / 4, atol=1e-12)
    far = energy_of(params._replace(mean_bias=np.array([900.0, -900])), X)
    np.testing.assert_allclose(far, X @ X / 2 - 900 - X @ [1, 2] - 3 * np.log(2))


def started(key, **options):
    return jax.jit(lambda key: mcrbm.init(key, 36, **options))(key)


def test_started_models_see_white_data_on_their_scale(key):
    counts = dict(num_factors=50, num_covariance=20, num_mean=10)
    x = np.random.default_rng(0).normal(size=(200, 36)).astype(np.float32)

    @jax.jit
    def odds(params, norm_scale):
        given = jax.vmap(covariance, (None, 0, None))(params, x, norm_scale)
        return given, jax.vmap(mcrbm.mean_log_odds, (None, 0))(params, x)

    for norm_scale in (1.0, 1 / 36):
        params = started(key, **counts, norm_scale=norm_scale)
        chex.assert_shape(params.filters, (50, 36))
        pooling = np.asarray(params.pooling)
        assert pooling.max() < 0
        np.testing.assert_allclose(pooling.sum(0), -1, rtol=1e-5)
        own = pooling < -0.2
        assert set(own.sum(0)) == {2, 3}
        assert np.all(own.sum(1) == 1)
        given, means = map(np.asarray, odds(params, norm_scale))
        # Squared responses are |x|^2 / (|x|^2 + 1 / (2 s)), and pooled by -1/2 in all.
        expected = 2 - 36 / (36 + 0.5 / norm_scale) / 2
        assert abs(given.mean() - expected) < 0.1
        assert abs(means.std() - 1) < 0.1
    few = started(key, num_factors=5, num_covariance=5, num_mean=1)
    np.testing.assert_array_equal(np.asarray(few.pooling).argmin(0), np.arange(5))
    few = started(key, num_factors=3, num_covariance=7, num_mean=1)
    assert set(np.asarray(few.pooling).argmin(0)) == {0, 1, 2}


def covariance(params, x, norm_scale):
    return mcrbm.covariance_log_odds(params, x, norm_scale=norm_scale)


def test_canonical_forms_of_the_same_energy_are_equal(x64):
    params = model()
    factors = np.array([2.0, -0.5, -1.0, 3.0])[:, None]
    order, units = [2, 0, 3, 1], [1, 2, 0]
    changed = mcrbm.Params(
        (params.filters * factors)[order],
        (params.pooling / factors**2)[order][:, units],
        params.mean_filters[::-1],
        params.covariance_bias[units],
        params.mean_bias[::-1],
        params.visible_bias,
        -params.scale,
    )
    canonical = jax.jit(mcrbm.canonical)
    form = canonical(params)
    chex.assert_trees_all_close(canonical(changed), form, rtol=1e-12)
    chex.assert_trees_all_close(canonical(form), form, rtol=1e-12)
    both = jax.jit(lambda params: [energy(params, X) for energy, _ in ENERGIES])
    expected = both(params)
    np.testing.assert_allclose(both(form), expected, rtol=1e-12)
    np.testing.assert_allclose(both(changed), expected, rtol=1e-12)


def test_a_mean_unit_turned_over_shifts_all_energies_alike(x64):
    params, sign = model(), np.array([1.0, -1.0])
    turned = params._replace(
        mean_filters=sign[:, None] * params.mean_filters,
        mean_bias=sign * params.mean_bias,
        visible_bias=params.visible_bias + params.mean_filters[1],
    )
    for x in (X, 3 - X):
        shift = float(energy_of(turned, x)) - float(energy_of(params, x))
        np.testing.assert_allclose(shift, params.mean_bias[1], rtol=1e-10)


def test_a_fit_keeps_pooling_and_scale_in_their_sets(key):
    start = model()
    start.pooling[1, 2] = 0
    start = with_arrays(start)
    chart = mcrbm.chart(start)
    back = jax.jit(lambda start: chart.inverse(chart.forward(start)))(start)
    chex.assert_trees_all_close(back, start, rtol=1e-5)
    data = 0.2 * np.random.default_rng(0).normal(size=(50, 2))
    options = dict(optimizer=ADAM, steps_per_round=40)
    objective = ScoreMatching(mcrbm.energy)
    free = fit(key, objective, start, data, **options)
    # Steps of adam this long lead the pooling above zero without a chart.
    assert np.asarray(free.params.pooling).max() > 0
    found = fit(key, objective, start, data, chart=chart, **options)
    assert found.params.scale > 0
    pooling = np.asarray(found.params.pooling)
    assert pooling[1, 2] == 0
    assert np.delete(pooling.ravel(), 5).max() < 0
    assert np.abs(pooling - np.asarray(start.pooling)).max() > 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: mcrbm.energy(p, np.zeros(3)), r"2 sites .* got shape \(3,\)"),
        (
            lambda p: mcrbm.energy(p, np.zeros(2), norm_scale=0.0),
            "norm_scale must be positive and finite, got 0.0",
        ),
        (
            lambda p: mcrbm.chart(p._replace(pooling=np.full((4, 3), 0.25))),
            "pooling must not be positive, got 0.25",
        ),
        (
            lambda p: mcrbm.chart(p._replace(scale=np.zeros(()))),
            "scale must be positive, got 0",
        ),
        (
            lambda p: mcrbm.init(
                jax.random.key(0), 2, num_factors=0, num_covariance=1, num_mean=1
            ),
            "num_factors must be an integer of at least 1, got 0",
        ),
        (
            lambda p: mcrbm.energy(p._replace(mean_bias=np.zeros(1)), np.zeros(2)),
            r"mean_bias must have shape \(2,\), got \(1,\)",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call(with_arrays(model()))


def test_checks_of_known_values_may_be_made_while_tracing():
    params = with_arrays(model())

    @jax.jit
    def traced(x, given):
        assert mcrbm.unnormalisable(params) == ""
        assert mcrbm.unnormalisable(given) == ""
        chart = mcrbm.chart(params)
        return mcrbm.energy(chart.inverse(mcrbm.chart(given).forward(given)), x)

    x = X.astype(np.float32)
    np.testing.assert_allclose(traced(x, params), energy_of(params, x), rtol=1e-5)


def test_what_has_no_finite_integral_is_told_in_words():
    params = with_arrays(model())
    told = mcrbm.unnormalisable(params._replace(scale=np.zeros(())))
    assert told == "scale must not be zero"
    told = mcrbm.unnormalisable(params._replace(mean_bias=np.array([0, np.nan])))
    assert told == "mean_bias must be finite, got NaN or infinity"
