import warnings
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import (
    LINEAR,
    AfterSteps,
    all_states,
    cubic_energy,
    cubic_params,
    drawn_from,
    flat_ising,
    log_probs_of,
    random_ising,
)

from probjax import (
    L1,
    L2,
    MPF,
    ConvergenceWarning,
    Data,
    PseudoLikelihood,
    Watch,
    fit,
    ising,
)
from probjax.connectivity import GaussianSteps
from probjax.data import unique_rows
from probjax.fitting import GradientNorm, charts
from probjax.fitting.lbfgs import QuasiNewton
from probjax.trees import as_array

SIZE = 4
ADAM = optax.adam(0.02)
COUPLINGS = ising.Params(0.0, 1.0)
EXACT = dict(stop=GradientNorm())
PLAIN = dict(chart=charts.Affine(), stop=GradientNorm())


def rows(count=500):
    return drawn_from(0, random_ising(0, SIZE, scale=0.4), count)


def start():
    return flat_ising(SIZE)


def close(first, second, tolerance=1e-3):
    chex.assert_trees_all_close(first.params, second.params, atol=tolerance)


@jax.jit
def loss_and_slope(objective, params, x):
    def loss(params):
        values = jax.vmap(lambda x: objective.row(params, x, ()))(x)
        return objective.reduce(values, jnp.ones(len(x)))

    return jax.value_and_grad(loss)(params)


@pytest.fixture(scope="module")
def plain():
    """The fit of the rows in plain coordinates, which others are compared with."""
    return fit(jax.random.key(0), MPF(ising.energy), start(), rows(), **PLAIN)


@pytest.mark.parametrize("objective", [MPF, PseudoLikelihood])
def test_infinite_data_gives_back_the_truth(objective, x64, key):
    truth = random_ising(0, SIZE, scale=0.4)
    data = Data(all_states(SIZE), np.exp(log_probs_of(truth)))
    found = fit(key, objective(ising.energy), start(), data)
    assert found.converged
    assert found.gradient_norm < 1e-8
    chex.assert_trees_all_close(found.params, truth, atol=1e-5)


def test_repeated_rows_equal_weights(plain, key):
    data = rows()
    distinct = unique_rows(data)
    assert len(distinct.x) < len(data)
    close(plain, fit(key, MPF(ising.energy), start(), distinct))


CHUNKED = dict(steps_per_round=5, optimizer=ADAM)


@pytest.fixture(scope="module")
def unchunked():
    """Fits of weighted rows at once, which those in chunks are compared with."""
    data = Data(rows(), np.arange(500.0))
    key = jax.random.key(0)
    return {
        objective: fit(key, objective(ising.energy), start(), data, **CHUNKED)
        for objective in (MPF, PseudoLikelihood)
    }


@pytest.mark.parametrize(
    ("objective", "chunk_size"),
    [
        *((MPF, size) for size in (1, 100, 499, 500, 10_000)),
        *((PseudoLikelihood, size) for size in (7, 100)),
    ],
)
def test_chunks_change_nothing(objective, chunk_size, unchunked, key):
    data, whole = Data(rows(), np.arange(500.0)), unchunked[objective]
    sampled = objective(ising.energy)
    parts = fit(key, sampled, start(), data, chunk_size=chunk_size, **CHUNKED)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-5)
    close(parts, whole, 1e-5)


def test_chunks_follow_the_moves_drawn_for_their_rows(key):
    objective = MPF(gaussian, connectivity=GaussianSteps(0.5, num_draws=2))
    data = np.random.default_rng(0).normal(size=(53, 2))
    begin = as_array(np.ones(2))
    whole = fit(key, objective, begin, data, **CHUNKED)
    parts = fit(key, objective, begin, data, chunk_size=10, **CHUNKED)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-5, atol=1e-6)


def gaussian(params, x):
    return jnp.sum((x - params) ** 2) / 2


@pytest.fixture(scope="module")
def charted():
    """The fit of the rows in centred coordinates."""
    data = rows()
    learn = partial(fit, jax.random.key(0), MPF(ising.energy), start(), data)
    return learn(chart=ising.centred(data))


def test_charts_change_the_way_and_not_the_minimum(plain, charted):
    assert plain.converged
    assert charted.converged
    close(plain, charted)
    assert len(charted.losses) < len(plain.losses)


def test_gradient_norm_is_of_the_parameters_whatever_the_chart(key):
    data, objective = rows(), MPF(ising.energy)
    with pytest.warns(ConvergenceWarning):
        found = fit(
            key,
            objective,
            start(),
            data,
            chart=ising.centred(data),
            steps_per_round=3,
        )
    _, gradient = loss_and_slope(objective, found.params, data)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient))
    np.testing.assert_allclose(found.gradient_norm, largest, rtol=1e-4)


def test_l2_adds_its_gradient_to_the_minimum(key):
    data, objective = rows(), PseudoLikelihood(ising.energy)
    penalty = L2(0.05, weights=COUPLINGS)
    found = fit(key, objective, start(), data, penalty=penalty, **EXACT)
    _, gradient = loss_and_slope(objective, found.params, data)
    np.testing.assert_allclose(gradient.bias, np.zeros(SIZE), atol=1e-4)
    expected = -2 * 0.05 * np.asarray(found.params.coupling)
    np.testing.assert_allclose(gradient.coupling, expected, atol=1e-4)


@pytest.mark.parametrize("strength", [0.01, 0.05, 0.3])
def test_l1_satisfies_the_conditions_of_its_minimum(strength, x64, key):
    data, objective = rows().astype(float), PseudoLikelihood(ising.energy)
    penalty = L1(strength, weights=COUPLINGS)
    found = fit(key, objective, start(), data, penalty=penalty, **EXACT)
    assert found.converged
    value, gradient = loss_and_slope(objective, found.params, data)
    coupling, slope = map(np.asarray, (found.params.coupling, gradient.coupling))
    np.testing.assert_allclose(found.loss, value + strength * np.abs(coupling).sum())
    zero = coupling == 0
    assert np.abs(gradient.bias).max() < 1e-7
    assert np.all(np.abs(slope)[zero] <= strength + 1e-7)
    active = (slope + strength * np.sign(coupling))[~zero]
    assert np.all(np.abs(active) < 1e-7)


def test_a_stopping_rule_ends_all_rounds():
    found = fit(
        jax.random.key(0),
        LINEAR,
        as_array(np.zeros(3)),
        np.eye(3),
        optimizer=ADAM,
        num_rounds=5,
        steps_per_round=4,
        stop=AfterSteps(6),
    )
    assert len(found.losses) == 6


def test_the_default_begins_anew_in_every_round():
    method, point = QuasiNewton(), as_array(np.ones(3))
    fresh = jax.jit(method.start)(point)
    used = fresh._replace(value=as_array(1.0), direction=point, idle=as_array(9))
    again = jax.jit(method.start)(point, used)
    chex.assert_trees_all_equal(again, fresh)


def test_a_callback_sees_the_same_run_and_may_end_it(plain):
    data, seen, silent, key = rows(), [], plain, jax.random.key(0)
    watch = Watch(seen.append, every=4)
    told = fit(key, MPF(ising.energy), start(), data, watch=watch, **PLAIN)
    chex.assert_trees_all_equal(told, silent)
    assert [int(progress.step) for progress in seen[:3]] == [4, 8, 12]
    losses = np.asarray(silent.losses)
    assert [float(p.loss) for p in seen[:2]] == losses[[3, 7]].tolist()
    assert float(silent.loss) == losses[-1]
    assert float(seen[-1].gradient_norm) == float(silent.gradient_norm)
    ended = fit(
        key,
        MPF(ising.energy),
        start(),
        data,
        watch=Watch(lambda progress: int(progress.step) >= 8, every=4),
        **PLAIN,
    )
    np.testing.assert_array_equal(ended.losses, losses[:8])


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


def test_named_optimizers_find_the_same_minimum(plain, key):
    data = rows()
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
        close(found, plain, 1e-2)


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


def test_float32_reaches_the_minimum_from_a_bad_start(charted, key):
    data = rows()
    bad = random_ising(7, SIZE, scale=20.0)
    found = fit(key, MPF(ising.energy), bad, data, chart=ising.centred(data))
    losses = np.asarray(found.losses)
    assert losses[0] > 10
    assert np.isfinite(losses).all()
    assert abs(losses[-1] - np.asarray(charted.losses)[-1]) < 1e-5
    close(found, charted, 1e-2)


def test_float32_and_float64_agree(key):
    data = unique_rows(rows())
    single = fit(key, MPF(ising.energy), start(), data, **EXACT)
    with jax.enable_x64(True):
        double = fit(
            jax.random.key(0),
            MPF(ising.energy),
            start(),
            jax.tree.map(lambda leaf: np.asarray(leaf, float), data),
            **EXACT,
        )
        assert double.params.coupling.dtype == jnp.float64
        assert double.gradient_norm < 1e-8
    np.testing.assert_allclose(
        single.params.coupling, double.params.coupling, atol=1e-3
    )


def test_params_of_float32_stay_so_where_float64_is_allowed(x64, key):
    params = jax.tree.map(lambda leaf: as_array(leaf, np.float32), start())
    data = np.asarray(rows(), float)
    weights = ising.Params(np.zeros(SIZE), np.ones(6))
    for options in ({}, {"chart": ising.centred(data)}, {"penalty": L1(0.1, weights)}):
        found = fit(key, MPF(ising.energy), params, data, **options)
        kinds = {leaf.dtype for leaf in jax.tree.leaves((found.params, found.losses))}
        assert kinds == {jnp.dtype(jnp.float32)}


def test_a_fit_that_falls_short_says_so_in_words(key):
    with pytest.warns(ConvergenceWarning, match="after 2 steps .* steps_per_round"):
        found = fit(key, MPF(ising.energy), start(), rows(), steps_per_round=2)
    assert not found.converged
    with pytest.warns(
        ConvergenceWarning, match="rounding errors prevent further progress"
    ):
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
        found = fit(key, MPF(broken), as_array(np.ones(2)), np.array([[0.0, 1.0]]))
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


def test_a_fit_that_starts_at_its_minimum_knows_its_loss(plain, key):
    again = fit(key, MPF(ising.energy), plain.params, rows(), **PLAIN)
    assert again.converged
    assert len(again.losses) == 0
    np.testing.assert_allclose(again.loss, plain.loss, rtol=1e-6)


@jax.jit
def cubic_log_probs(params):
    energies = jax.vmap(cubic_energy, (None, 0))(params, all_states(4).astype(float))
    return jax.nn.log_softmax(-energies)


def test_energies_that_are_not_linear_are_fitted_too(key):
    log_p = np.asarray(cubic_log_probs(cubic_params(0, 4)), float)
    chances = np.exp(log_p - np.logaddexp.reduce(log_p))
    drawn = np.random.default_rng(0).choice(16, size=2000, p=chances)
    found = fit(
        key,
        MPF(cubic_energy),
        cubic_params(1, 4),
        all_states(4)[drawn],
        stop=GradientNorm(1e-3),
    )
    learned = np.asarray(cubic_log_probs(found.params), float)
    assert np.sum(chances * (log_p - learned)) < 0.02


def bad_inputs():
    data, objective = rows(20), MPF(ising.energy)
    nan = ising.Params(as_array(np.full(SIZE, np.nan)), start().coupling)
    whole = ising.Params(as_array(np.zeros(SIZE, int)), as_array(np.zeros(6, int)))
    return [
        (objective, start(), np.zeros((0, SIZE)), {}, "empty"),
        (objective, start(), np.full((3, SIZE), np.nan), {}, "finite"),
        (objective, start(), 2 * data, {}, "must be 0 or 1"),
        (objective, start(), data[0], {}, r"units of params, got shape \(\)"),
        (objective, start(), data[:, :3], {}, r"4 units .* got shape \(3,\)"),
        (objective, start(), data[None], {}, "units of params"),
        (objective, start(), Data(data, -np.ones(20)), {}, "negative"),
        (objective, start(), Data(data, np.ones(3)), {}, "each of 20 rows"),
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
        (MPF(vector), as_array(np.ones(SIZE)), data, {}, r"scalar, got shape \(4,\)"),
    ]


def vector(params, x):
    return params * x


@pytest.mark.parametrize("case", bad_inputs(), ids=lambda case: case[-1])
def test_bad_input_is_refused_in_a_sentence(case, key):
    objective, params, data, options, words = case
    with pytest.raises(ValueError, match=words):
        fit(key, objective, params, data, **options)
