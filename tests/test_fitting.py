import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import LINEAR, AfterSteps, cubic_energy, cubic_params, random_ising

from probjax import (
    L1,
    L2,
    MPF,
    ConvergenceWarning,
    Data,
    GaussianSteps,
    GradientNorm,
    PseudoLikelihood,
    Watch,
    exact,
    fit,
    ising,
    unique_rows,
)
from probjax.descent import QuasiNewton

SIZE = 6
ADAM = optax.adam(0.02)


def rows(count=500, seed=0, size=SIZE):
    truth = random_ising(seed, size, scale=0.4)
    key = jax.random.key(seed)
    return exact.sample(key, ising.energy, truth, size, num_draws=count)


def start(size=SIZE):
    return ising.from_matrix(jnp.zeros((size, size)))


def close(first, second, tolerance=1e-3):
    chex.assert_trees_all_close(first.params, second.params, atol=tolerance)


@pytest.mark.parametrize("objective", [MPF, PseudoLikelihood])
def test_infinite_data_gives_back_the_truth(objective, x64, key):
    truth = random_ising(0, SIZE, scale=0.4)
    weights = jnp.exp(exact.log_probs(ising.energy, truth, SIZE))
    data = Data(exact.states(SIZE), weights)
    found = fit(key, objective(ising.energy), start(), data)
    assert found.converged
    assert found.gradient_norm < 1e-8
    chex.assert_trees_all_close(found.params, truth, atol=1e-5)


def test_repeated_rows_equal_weights(key):
    data = rows()
    plain = fit(key, MPF(ising.energy), start(), data)
    distinct = unique_rows(data)
    assert len(distinct.x) < len(data)
    close(plain, fit(key, MPF(ising.energy), start(), distinct))


@pytest.mark.parametrize("chunk_size", [1, 7, 100, 499, 500, 10_000])
@pytest.mark.parametrize("objective", [MPF, PseudoLikelihood])
def test_chunks_change_nothing(objective, chunk_size, key):
    data = Data(rows(), jnp.arange(500.0))
    sampled = objective(ising.energy)
    few = dict(steps_per_round=5, optimizer=ADAM)
    whole = fit(key, sampled, start(), data, **few)
    parts = fit(key, sampled, start(), data, chunk_size=chunk_size, **few)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-5)
    close(parts, whole, 1e-5)


def test_chunks_follow_the_moves_drawn_for_their_rows(key):
    objective = MPF(gaussian, connectivity=GaussianSteps(0.5, num_draws=2))
    data = jax.random.normal(key, (53, 2))
    few = dict(steps_per_round=5, optimizer=ADAM)
    whole = fit(key, objective, jnp.ones(2), data, **few)
    parts = fit(key, objective, jnp.ones(2), data, chunk_size=10, **few)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-5, atol=1e-6)


def gaussian(params, x):
    return jnp.sum((x - params) ** 2) / 2


def test_charts_change_the_way_and_not_the_minimum(key):
    data = rows(2000)
    plain = fit(key, MPF(ising.energy), start(), data)
    charted = fit(key, MPF(ising.energy), start(), data, chart=ising.centred(data))
    assert plain.converged
    assert charted.converged
    close(plain, charted)
    assert len(charted.losses) < len(plain.losses)


def test_gradient_norm_is_of_the_parameters_whatever_the_chart(key):
    data = rows()
    found = fit(
        key,
        MPF(ising.energy),
        start(),
        data,
        chart=ising.centred(data),
        stop=AfterSteps(3),
    )
    objective = MPF(ising.energy)

    def loss(params):
        values = jax.vmap(lambda x: objective.row(params, x, ()))(data)
        return objective.reduce(values, jnp.ones(len(data)))

    gradient = jax.grad(loss)(found.params)
    largest = max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(gradient))
    np.testing.assert_allclose(found.gradient_norm, largest, rtol=1e-4)


def test_l2_adds_its_gradient_to_the_minimum(key):
    data = rows()
    penalty = L2(0.05, weights=ising.couplings_only(start()))
    found = fit(key, PseudoLikelihood(ising.energy), start(), data, penalty=penalty)
    objective = PseudoLikelihood(ising.energy)

    def loss(params):
        values = jax.vmap(lambda x: objective.row(params, x, ()))(data)
        return values.mean()

    gradient = jax.grad(loss)(found.params)
    chex.assert_trees_all_close(gradient.bias, jnp.zeros(SIZE), atol=1e-4)
    expected = -2 * 0.05 * found.params.coupling
    np.testing.assert_allclose(gradient.coupling, expected, atol=1e-4)


@pytest.mark.parametrize("strength", [0.01, 0.05, 0.3])
def test_l1_satisfies_the_conditions_of_its_minimum(strength, x64, key):
    data = rows()
    penalty = L1(strength, weights=ising.couplings_only(start()))
    found = fit(key, PseudoLikelihood(ising.energy), start(), data, penalty=penalty)
    assert found.converged
    objective = PseudoLikelihood(ising.energy)

    def loss(params):
        return jax.vmap(lambda x: objective.row(params, x, ()))(data).mean()

    value, gradient = jax.value_and_grad(loss)(found.params)
    np.testing.assert_allclose(found.loss, value + penalty.value(found.params))
    zero = found.params.coupling == 0
    assert jnp.abs(gradient.bias).max() < 1e-7
    assert jnp.all(jnp.abs(gradient.coupling)[zero] <= strength + 1e-7)
    sign = jnp.sign(found.params.coupling)
    active = (gradient.coupling + strength * sign)[~zero]
    assert jnp.all(jnp.abs(active) < 1e-7)


def test_a_stopping_rule_ends_all_rounds():
    found = fit(
        jax.random.key(0),
        LINEAR,
        jnp.zeros(3),
        jnp.eye(3),
        optimizer=ADAM,
        num_rounds=5,
        steps_per_round=4,
        stop=AfterSteps(6),
    )
    assert len(found.losses) == 6


def test_the_default_begins_anew_in_every_round():
    method, point = QuasiNewton(), jnp.ones(3)
    fresh = method.start(point)
    used = fresh._replace(value=jnp.asarray(1.0), direction=point, idle=jnp.asarray(9))
    chex.assert_trees_all_equal(method.start(point, used), fresh)


def test_a_callback_sees_the_same_run_and_may_end_it(key):
    data, seen = rows(), []
    silent = fit(key, MPF(ising.energy), start(), data)
    told = fit(key, MPF(ising.energy), start(), data, watch=Watch(seen.append, every=4))
    chex.assert_trees_all_equal(told, silent)
    assert [int(progress.step) for progress in seen[:3]] == [4, 8, 12]
    assert [float(p.loss) for p in seen[:2]] == silent.losses[
        jnp.array([3, 7])
    ].tolist()
    assert silent.loss == silent.losses[-1]
    assert seen[-1].gradient_norm == silent.gradient_norm
    ended = fit(
        key,
        MPF(ising.energy),
        start(),
        data,
        watch=Watch(lambda progress: progress.step >= 8, every=4),
    )
    np.testing.assert_array_equal(ended.losses, silent.losses[:8])


def test_a_callback_sees_the_same_minibatches_in_every_round(key):
    few = dict(optimizer=ADAM, batch_size=50, num_rounds=3, steps_per_round=7)
    objective = MPF(ising.energy)
    silent = fit(key, objective, start(), rows(), **few)
    told = fit(
        key,
        objective,
        start(),
        rows(),
        watch=Watch(lambda _: None, every=2),
        **few,
    )
    chex.assert_trees_all_equal(told, silent)
    assert len(silent.losses) == 21


def test_a_compiled_fit_cannot_call_back(key):
    @jax.jit
    def compiled(data):
        return fit(key, MPF(ising.energy), start(), data, watch=Watch(print)).params

    with pytest.raises(ValueError, match="inside jit or vmap must not be"):
        compiled(rows())


def test_named_optimizers_find_the_same_minimum(key):
    data = rows()
    best = fit(key, MPF(ising.energy), start(), data)
    for optimizer in (optax.adam(0.05), optax.lbfgs()):
        found = fit(
            key,
            MPF(ising.energy),
            start(),
            data,
            optimizer=optimizer,
            chart=ising.centred(data),
            stop=GradientNorm(1e-4),
        )
        assert found.converged
        close(found, best, 1e-2)


def test_a_named_optimizer_keeps_its_state_across_rounds(key):
    """For a fixed loss, rounds of one step are the same as steps of one round."""
    data = rows()
    objective = MPF(ising.energy)
    one = fit(key, objective, start(), data, optimizer=ADAM, steps_per_round=20)
    many = fit(
        key,
        objective,
        start(),
        data,
        optimizer=ADAM,
        num_rounds=20,
        steps_per_round=1,
    )
    np.testing.assert_allclose(one.losses, many.losses, rtol=1e-6)
    close(one, many, 1e-6)


def test_float32_reaches_the_minimum_from_a_bad_start(key):
    data = rows(5000)
    chart = ising.centred(data)
    good = fit(key, MPF(ising.energy), start(), data, chart=chart)
    bad = random_ising(7, SIZE, scale=20.0)
    found = fit(key, MPF(ising.energy), bad, data, chart=chart)
    assert found.losses[0] > 10
    assert jnp.isfinite(found.losses).all()
    assert abs(found.losses[-1] - good.losses[-1]) < 1e-5
    close(found, good, 1e-2)


def test_float32_and_float64_agree(key):
    data = rows(2000)
    single = fit(key, MPF(ising.energy), start(), data)
    with jax.enable_x64(True):
        double = fit(
            jax.random.key(0), MPF(ising.energy), start(), np.asarray(data, float)
        )
        assert double.params.coupling.dtype == jnp.float64
        assert double.gradient_norm < 1e-8
    np.testing.assert_allclose(
        single.params.coupling, double.params.coupling, atol=1e-3
    )


def test_params_of_float32_stay_so_where_float64_is_allowed(x64, key):
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), start())
    data = np.asarray(rows(), float)
    weights = jax.tree.map(lambda leaf: leaf.astype(float), start())
    for options in ({}, {"chart": ising.centred(data)}, {"penalty": L1(0.1, weights)}):
        found = fit(key, MPF(ising.energy), params, data, **options)
        kinds = {leaf.dtype for leaf in jax.tree.leaves((found.params, found.losses))}
        assert kinds == {jnp.dtype(jnp.float32)}


def test_a_fit_that_falls_short_says_so_in_words(key):
    with pytest.warns(ConvergenceWarning, match="after 2 steps .* steps_per_round"):
        found = fit(key, MPF(ising.energy), start(), rows(), steps_per_round=2)
    assert not found.converged
    with pytest.warns(ConvergenceWarning, match="rounding lets it fall no further"):
        fit(key, MPF(ising.energy), start(), rows(), stop=GradientNorm(1e-12))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short = fit(
            key, MPF(ising.energy), start(), rows(), steps_per_round=2, num_rounds=2
        )
    assert len(short.losses) == 4


def test_an_energy_that_fails_is_reported_and_not_returned_as_converged(key):
    def broken(params, x):
        return jnp.sum(params * x) / 0.0

    with pytest.warns(ConvergenceWarning, match="not finite"):
        found = fit(key, MPF(broken), jnp.ones(2), jnp.array([[0.0, 1.0]]))
    assert not found.converged


def test_a_diverging_optimizer_is_reported(key):
    with pytest.warns(ConvergenceWarning, match="not finite"):
        fit(
            key,
            MPF(ising.energy),
            start(),
            rows(),
            optimizer=optax.sgd(1e38),
            steps_per_round=5,
        )


def test_a_fit_that_starts_at_its_minimum_knows_its_loss(key):
    data = rows()
    best = fit(key, MPF(ising.energy), start(), data)
    again = fit(key, MPF(ising.energy), best.params, data)
    assert again.converged
    assert len(again.losses) == 0
    np.testing.assert_allclose(again.loss, best.loss, rtol=1e-6)


def test_energies_that_are_not_linear_are_fitted_too(key):
    truth = cubic_params(0, 4)
    data = exact.sample(key, cubic_energy, truth, 4, num_draws=2000)
    found = fit(
        key, MPF(cubic_energy), cubic_params(1, 4), data, stop=GradientNorm(1e-3)
    )
    learned = exact.log_probs(cubic_energy, found.params, 4)
    assert exact.kl(exact.log_probs(cubic_energy, truth, 4), learned) < 0.02


def bad_inputs():
    data, objective = rows(20), MPF(ising.energy)
    nan = jax.tree.map(lambda leaf: leaf.at[0].set(jnp.nan), start())
    whole = jax.tree.map(lambda leaf: leaf.astype(int), start())
    return [
        (objective, start(), np.zeros((0, SIZE)), {}, "empty"),
        (objective, start(), np.full((3, SIZE), np.nan), {}, "finite"),
        (objective, start(), 2 * data, {}, "0 and 1"),
        (objective, start(), data[0], {}, r"units of params, got shape \(\)"),
        (objective, start(), data[:, :4], {}, r"6 units .* got shape \(4,\)"),
        (objective, start(), data[None], {}, "units of params"),
        (objective, start(), Data(data, -jnp.ones(20)), {}, "negative"),
        (objective, start(), Data(data, jnp.ones(3)), {}, "each of 20 rows"),
        (objective, nan, data, {}, "params must be finite"),
        (objective, whole, data, {}, "params must be floating, got int32"),
        (objective, start(), data, {"batch_size": 5}, "first-order optimizer"),
        (
            objective,
            start(),
            data,
            {"batch_size": 21, "optimizer": ADAM},
            "from 1 to the 20 rows, got 21",
        ),
        (objective, (), data, {}, "params must hold at least one array"),
        (objective, start(), data, {"num_rounds": 0}, "num_rounds must be an integer"),
        (
            objective,
            start(),
            data,
            {"chunk_size": 2.0},
            "chunk_size must be an integer",
        ),
        (
            objective,
            start(),
            data,
            {"penalty": L1(0.1), "optimizer": ADAM},
            "not smooth",
        ),
        (MPF(vector), jnp.ones(SIZE), data, {}, r"scalar, got shape \(6,\)"),
    ]


def vector(params, x):
    return params * x


@pytest.mark.parametrize("case", bad_inputs(), ids=lambda case: case[-1])
def test_bad_input_is_refused_in_a_sentence(case, key):
    objective, params, data, options, words = case
    with pytest.raises(ValueError, match=words):
        fit(key, objective, params, data, **options)
