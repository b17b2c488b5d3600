import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from small_models import all_states, matrix_of, random_ising

import probjax as pj
from probjax import Conditioned, Data, ising
from probjax.data.spikes import words_from_counts
from probjax.models import kinetic_ising, sums
from probjax.models.kinetic_ising import Inputs
from probjax.potential import closed_forms, potential
from probjax.trees import as_array

SIZE, LAGS, COVARIATES = 3, 2, 2
STATES = all_states(SIZE)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def parameters(size=SIZE, lags=LAGS, covariates=COVARIATES, seed=0, scale=1.0):
    normal = np.random.default_rng(seed).normal
    shapes = [(size,), (lags, size, size), (size, covariates)]
    parts = [scale * normal(size=shape) for shape in shapes]
    parts = [as_array(part.astype(jnp.result_type(float))) for part in parts]
    return kinetic_ising.Params(parts[0], parts[1], parts[2] if covariates else None)


def chances(params, past, covariates=None, rate=1.0):
    """P(x_i = 1 | inputs), from the definition, in float64."""
    field, coupling = (
        np.asarray(params.field, float),
        np.asarray(params.coupling, float),
    )
    theta = field + np.einsum("lij,lj->i", coupling, np.asarray(past, float))
    if params.weights is not None:
        theta = theta + np.asarray(params.weights, float) @ np.asarray(
            covariates, float
        )
    return rate * sigmoid(theta) + (1 - rate) * np.asarray(past, float)[0]


RATES = {
    "parallel": None,
    "asynchronous": 0.3,
    "rates of units": np.array([1.0, 0.2, 0.7]),
    "known updates": np.array([1.0, 0.0, 1.0]),
}


def one_inputs(rate, seed=1):
    generator = np.random.default_rng(seed)
    past = (generator.random((LAGS, SIZE)) < 0.5).astype(np.float32)
    covariates = generator.normal(size=COVARIATES).astype(np.float32)
    rate = None if rate is None else as_array(np.float32(rate))
    return Inputs(as_array(past), as_array(covariates), rate)


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_energy_is_minus_the_log_probability(name, seed):
    params, inputs = parameters(), one_inputs(RATES[name], seed)
    rate = 1.0 if RATES[name] is None else RATES[name]
    p = chances(params, inputs.past, inputs.covariates, rate)
    expected = np.prod(np.where(STATES == 1, p, 1 - p), axis=1)
    rows = Conditioned(
        as_array(STATES.astype(np.float32)),
        jax.tree.map(lambda leaf: jnp.stack([leaf] * 8), inputs),
    )
    found = jnp.exp(-jax.vmap(kinetic_ising.energy, (None, 0))(params, rows))
    assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert_allclose(found.sum(), 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["parallel", "asynchronous", "rates of units"])
def test_gaps_equal_the_generic_path(name):
    params, inputs = parameters(), one_inputs(RATES[name])

    def plain(params, row):
        return kinetic_ising.energy(params, row)

    def gaps(energy, x):
        model = potential(energy, params, inputs)
        gap = model.flip_gap()
        return model.flip_gaps(x), jnp.stack([gap(x, n) for n in range(SIZE)])

    x = as_array(STATES.astype(np.float32))
    closed, generic = (
        jax.vmap(partial(gaps, energy))(x) for energy in (kinetic_ising.energy, plain)
    )
    for one in closed:
        assert_allclose(one, generic[0], rtol=1e-4, atol=1e-5)


def table(trials=3, bins=40, seed=0):
    """Words of some trials, with covariates, and updates that the words allow."""
    generator = np.random.default_rng(seed)
    x = (generator.random((trials * bins, SIZE)) < 0.4).astype(int)
    trial = np.repeat(np.arange(trials), bins)
    same = np.r_[np.zeros((1, SIZE), bool), x[1:] == x[:-1]]
    updated = ~same | (generator.random(x.shape) < 0.5)
    covariates = generator.normal(size=(len(x), COVARIATES))
    return words_from_counts(x, trial=trial), covariates, updated


@pytest.mark.parametrize("name", ["parallel", "asynchronous", "known updates"])
def test_pseudolikelihood_is_the_exact_likelihood_of_every_row(name, key):
    words, covariates, updated = table()
    rate = updated if name == "known updates" else RATES[name]
    rows = kinetic_ising.rows(words, num_lags=LAGS, covariates=covariates, rate=rate)
    params = parameters()
    x, total = np.asarray(words.x), 0.0
    index = [i for i in range(120) if i % 40 >= LAGS]
    for i in index:
        r = 1.0 if rate is None else updated[i] if name == "known updates" else rate
        p = chances(params, [x[i - 1], x[i - 2]], covariates[i], r)
        total -= np.sum(np.log(np.where(x[i] == 1, p, 1 - p)))
    assert_array_equal(rows.x, x[index])
    objective = pj.PseudoLikelihood(kinetic_ising.energy)
    assert_allclose(
        pj.loss(key, objective, params, rows), total / len(index), rtol=1e-5
    )
    gradient = jax.grad(pj.loss, 2)(key, objective, params, rows)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))

    def mean_energy(params):
        return jax.vmap(kinetic_ising.energy, (None, 0))(params, rows).mean()

    expected = jax.grad(mean_energy)(params)
    for one, other in zip(*map(jax.tree.leaves, (gradient, expected)), strict=True):
        assert_allclose(one, other, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("rate", [None, 0.4])
def test_simulated_transitions_have_their_probabilities(rate, key):
    params = parameters(size=2, lags=1, covariates=0, scale=1.5)
    num_bins = 20_000
    x = np.asarray(kinetic_ising.simulate(key, params, num_bins=num_bins, rate=rate))
    codes = (x @ [2, 1]).astype(int)
    counts = np.zeros((4, 4))
    np.add.at(counts, (codes[:-1], codes[1:]), 1)
    states = all_states(2)
    for i, past in enumerate(states):
        p = chances(params, [past], rate=1.0 if rate is None else rate)
        probs = np.prod(np.where(states == 1, p, 1 - p), axis=1)
        n = counts[i].sum()
        z = (counts[i] - n * probs) / np.sqrt(n * probs * (1 - probs))
        assert np.abs(z).max() < 4.5
        assert n > 500


def test_simulations_use_covariates_lags_and_known_updates(key):
    # A unit that copies the word three bins before, and one driven by a covariate.
    coupling = np.zeros((3, 2, 2), np.float32)
    coupling[2, 0, 0] = 100
    weights = np.array([[0.0], [100.0]], np.float32)
    params = kinetic_ising.Params(
        as_array(np.full(2, -50, np.float32)), as_array(coupling), as_array(weights)
    )
    u = np.array([1, 0, 0, 1, 1, 0, 0, 1])
    start = np.array([[1, 0], [0, 0], [1, 0]])
    run = partial(kinetic_ising.simulate, key, params, num_bins=8, covariates=u)
    x = run(start=start)
    assert_array_equal(x[:, 0], [1, 0, 1, 1, 0, 1, 1, 0])
    assert_array_equal(x[:, 1], u)
    updated = np.ones((8, 2))
    updated[3:6, 1] = 0
    held = run(start=start, rate=updated)
    assert_array_equal(held[:, 1], [1, 0, 0, 0, 0, 0, 0, 1])


def test_rows_are_those_that_were_simulated(key):
    params = parameters(lags=1, covariates=0)
    keys = jax.random.split(key, 2)
    draw = jax.vmap(lambda key: kinetic_ising.simulate(key, params, num_bins=6))
    x = np.asarray(draw(keys)).reshape(12, SIZE)
    assert not np.array_equal(x[:6], x[6:])
    words = words_from_counts(x, trial=np.repeat([0, 1], 6))
    rows = kinetic_ising.rows(words)
    assert_array_equal(rows.x, x[[1, 2, 3, 4, 5, 7, 8, 9, 10, 11]])
    assert_array_equal(rows.inputs.past[:, 0], x[[0, 1, 2, 3, 4, 6, 7, 8, 9, 10]])


def simulated(key, params, num_bins, **inputs):
    x = kinetic_ising.simulate(key, params, num_bins=num_bins, **inputs)
    return words_from_counts(np.asarray(x))


def test_a_fit_equals_a_logistic_regression_of_each_unit(x64, key):
    linear_model = pytest.importorskip("sklearn.linear_model")
    generator = np.random.default_rng(0)
    truth = parameters(size=5, lags=2, covariates=3, scale=0.5)
    covariates = generator.normal(size=(3000, 3))
    words = simulated(key, truth, 3000, covariates=covariates)
    rows = kinetic_ising.rows(words, num_lags=2, covariates=covariates)
    start = kinetic_ising.init(5, num_lags=2, num_covariates=3)
    objective = pj.PseudoLikelihood(kinetic_ising.energy)
    stop = pj.fitting.GradientNorm(1e-8)
    found = pj.fit(key, objective, start, rows, stop=stop).params
    predictors = np.c_[np.asarray(rows.inputs.past).reshape(-1, 10), covariates[2:]]
    for unit in range(5):
        regression = linear_model.LogisticRegression(
            C=np.inf, tol=1e-10, max_iter=10_000
        ).fit(predictors, rows.x[:, unit])
        own = [found.coupling[:, unit].ravel(), found.weights[unit]]
        assert_allclose(np.concatenate(own), regression.coef_[0], atol=1e-5)
        assert_allclose(found.field[unit], regression.intercept_[0], atol=1e-5)


def cramer_rao(params, rows, rate):
    """Standard errors of all parameters, from the expected Fisher information."""
    past = np.asarray(rows.inputs.past, float)[:, 0]
    z = np.c_[np.ones(len(past)), past]
    coefficients = np.c_[np.asarray(params.field)[:, None], params.coupling[0]]
    errors = []
    for unit, own in enumerate(coefficients):
        sigma = sigmoid(z @ own)
        p = rate * sigma + (1 - rate) * past[:, unit]
        slope = rate * sigma * (1 - sigma)
        information = slope**2 / (p * (1 - p))
        errors.append(np.sqrt(np.diag(np.linalg.inv((z * information[:, None]).T @ z))))
    return np.array(errors)


@pytest.mark.statistics
@pytest.mark.parametrize("rate", [None, 0.5])
def test_errors_are_those_of_cramer_and_rao(rate, key):
    size, num_bins = 30, 20_000
    generator = np.random.default_rng(0)
    truth = kinetic_ising.Params(
        as_array(generator.normal(-1, 0.5, size).astype(np.float32)),
        as_array(generator.normal(0, 0.5, (1, size, size)).astype(np.float32)),
    )
    words = simulated(key, truth, num_bins, rate=rate)
    rows = kinetic_ising.rows(words, rate=rate)
    objective = pj.PseudoLikelihood(kinetic_ising.energy)
    fitted = pj.fit(key, objective, kinetic_ising.init(size), rows)
    bound = cramer_rao(truth, rows, 1.0 if rate is None else rate)
    found = np.c_[fitted.params.field[:, None], fitted.params.coupling[0]]
    true = np.c_[truth.field[:, None], truth.coupling[0]]
    rms = np.sqrt(np.mean(((found - true) / bound) ** 2))
    # Of 930 parameters, so that the error of rms is 0.023.
    assert abs(rms - 1) < 0.1
    bars = pj.uncertainty(objective, fitted, rows).stderr
    ratio = np.c_[bars.field[:, None], bars.coupling[0]] / bound
    assert abs(np.median(ratio) - 1) < 0.05


@pytest.mark.filterwarnings("ignore:.* intervals have no active unit")
def test_fields_of_each_bin_are_covariates(key):
    # Time-dependent fields and no couplings: log odds of each bin over trials.
    trials, bins = 300, 4
    generator = np.random.default_rng(0)
    rates = np.array([[0.2, 0.5], [0.4, 0.1], [0.3, 0.6], [0.5, 0.5]])
    x = generator.random((trials, bins, 2)) < rates
    trial = np.repeat(np.arange(trials), bins)
    words = words_from_counts(x.reshape(-1, 2), trial=trial)
    assert_array_equal(words.bin[:6], [0, 1, 2, 3, 0, 1])
    covariates = np.eye(bins)[words.bin][:, 2:]
    rows = kinetic_ising.rows(words, covariates=covariates)
    start = kinetic_ising.init(2, num_covariates=2)
    frozen = pj.fitting.charts.Frozen(
        start, kinetic_ising.Params(field=True, coupling=False, weights=True)
    )
    objective = pj.PseudoLikelihood(kinetic_ising.energy)
    stop = pj.fitting.GradientNorm(1e-6)
    found = pj.fit(key, objective, start, rows, chart=frozen, stop=stop).params
    observed = x.mean(0)[1:]
    odds = np.log(observed / (1 - observed))
    assert_allclose(found.field, odds[0], atol=1e-3)
    assert_allclose(found.weights, (odds[1:] - odds[0]).T, atol=1e-3)


def test_chains_sample_the_next_word(key):
    params, inputs = parameters(), one_inputs(0.6)
    chains = 3000
    many = jax.tree.map(lambda leaf: np.stack([leaf] * chains), inputs)
    starts = Conditioned(np.zeros((chains, SIZE)), many)
    options = dict(sampler=pj.HeatBath(), num_draws=1)
    draws = pj.sample(key, kinetic_ising.energy, params, starts, **options).x.x[:, 0]
    # Units are independent given the inputs, so one sweep is exact.
    p = chances(params, inputs.past, inputs.covariates, 0.6)
    z = (np.asarray(draws).mean(0) - p) / np.sqrt(p * (1 - p) / chains)
    assert np.abs(z).max() < 4


def test_spins_and_bits_are_one_model():
    generator = np.random.default_rng(0)
    field, coupling = generator.normal(size=2), generator.normal(size=(1, 2, 2))
    params = kinetic_ising.from_spins(field, coupling)
    for past in all_states(2):
        local = field + coupling[0] @ (2 * past - 1)
        expected = np.exp(local) / (2 * np.cosh(local))
        assert_allclose(chances(params, [past]), expected, rtol=1e-5)
    again = kinetic_ising.to_spins(params)
    assert_allclose(again[0], field, rtol=1e-5)
    assert_allclose(again[1], coupling, rtol=1e-5)


def test_the_chart_is_a_bijection_with_centred_predictors(key):
    words, covariates, _ = table()
    rows = kinetic_ising.rows(words, num_lags=LAGS, covariates=covariates, rate=0.5)
    params = parameters()
    chart = closed_forms(kinetic_ising.energy)["chart"](params, Data(rows))
    coordinates = chart.forward(params)
    again = chart.inverse(coordinates)
    for one, other in zip(*map(jax.tree.leaves, (again, params)), strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    factors = chart.scales(params)
    assert factors.field == 0
    assert_allclose(params.coupling, factors.coupling * coordinates.coupling, rtol=1e-5)
    assert_allclose(params.weights, factors.weights * coordinates.weights, rtol=1e-5)
    past = np.asarray(rows.inputs.past)
    z = (past - past.mean(0)) / past.std(0)
    u = (covariates - covariates[2:].mean(0)) / covariates.std(0)
    theta = np.asarray(coordinates.field) + np.einsum(
        "lij,lj->i", np.asarray(coordinates.coupling), z[5]
    )
    index = np.flatnonzero(words.bin >= LAGS)
    u = covariates[index]
    u = (u - u.mean(0)) / u.std(0)
    theta = theta + np.asarray(coordinates.weights) @ u[5]
    plain = Inputs(rows.inputs.past[5], rows.inputs.covariates[5])
    assert_allclose(kinetic_ising.log_odds(params, plain), theta, rtol=1e-4, atol=1e-4)
    # Penalties without weights apply to couplings only.
    objective = pj.PseudoLikelihood(kinetic_ising.energy)
    sparse = pj.fit(key, objective, params, rows, penalty=pj.L1(1.0)).params
    assert not np.asarray(sparse.coupling).any()
    assert np.asarray(sparse.field).all()


def test_pairs_with_fields_that_depend_on_a_stimulus(key):
    energy = sums.add(sums.ignoring_inputs(ising.energy), kinetic_ising.energy)
    pairs, drive = random_ising(3, SIZE), parameters(lags=1, covariates=1)
    params = pairs, drive
    covariates = np.array([[-1.0], [0.5], [2.0]], np.float32)
    weights, rows, inputs = [], [], []
    x = STATES.astype(float)
    for u in covariates:
        theta = np.asarray(drive.field) + np.asarray(drive.weights) @ u
        minus = -np.sum(x @ matrix_of(pairs) * x, axis=1) + x @ theta
        weights.append(np.exp(minus - np.logaddexp.reduce(minus)))
        rows.append(x)
        inputs.append(np.tile(u, (8, 1)))
    past = np.zeros((24, 1, SIZE), np.float32)
    data = Data(
        Conditioned(
            np.concatenate(rows).astype(np.float32),
            Inputs(past, np.concatenate(inputs)),
        ),
        np.concatenate(weights),
    )
    assert {"flip_gaps", "flip_gap", "chart", "couplings"} <= set(closed_forms(energy))
    for make in (pj.MPF, pj.PseudoLikelihood):
        gradient = jax.grad(pj.loss, 2)(key, make(energy), params, data)
        assert all(abs(leaf).max() < 1e-5 for leaf in jax.tree.leaves(gradient))
    chart = closed_forms(energy)["chart"](params, data)
    again = chart.inverse(chart.forward(params))
    for one, other in zip(*map(jax.tree.leaves, (again, params)), strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_estimates_without_a_finite_value_are_reported():
    def report(x):
        rows = kinetic_ising.rows(words_from_counts(x))
        return kinetic_ising.unbounded(kinetic_ising.init(2), Data(rows))

    words = np.array(list(itertools.product([0, 1], repeat=2)) * 6)
    generator = np.random.default_rng(0)
    assert report(generator.permutation(words)) == ""
    assert "1 of 2 units never change (such as unit 1)" in report(
        np.c_[words[:, 0], np.ones(24, int)]
    )
    follows = np.array([0, 0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0])
    x = np.c_[follows, np.r_[0, follows[:-1]]]
    assert "units 0 and 1 lack one of their four joint states (1 of 4" in report(x)
    rows = Data(kinetic_ising.rows(words_from_counts(x)))
    found = kinetic_ising.model.unbounded_entries(kinetic_ising.init(2), rows)
    assert_array_equal(found.coupling[0], [[False, False], [True, False]])
    assert_array_equal(found.field, [False, True])


WORDS, COLUMN, UPDATED = table()
SHORT = words_from_counts(np.eye(3), trial=[0, 1, 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kinetic_ising.rows(WORDS, num_lags=0), "num_lags must be an integer"),
        (
            lambda: kinetic_ising.rows(SHORT),
            "more than num_lags=1 words, got 1 at most",
        ),
        (
            lambda: kinetic_ising.rows(WORDS, covariates=COLUMN[:9]),
            "a row for each of 120 words, got shape",
        ),
        (
            lambda: kinetic_ising.rows(WORDS, covariates=np.full(120, np.nan)),
            "covariates must be finite",
        ),
        (lambda: kinetic_ising.rows(WORDS, rate=1.5), "rate must be a probability"),
        (lambda: kinetic_ising.rows(WORDS, rate=np.ones(7)), "rate must be one number"),
        (lambda: kinetic_ising.rows(WORDS, rate=0), "must keep their state"),
        (
            lambda: kinetic_ising.energy(
                parameters(), Conditioned(np.zeros(3), Inputs(np.zeros((1, 3))))
            ),
            "past must have the 2 lags and 3 units of params",
        ),
        (
            lambda: kinetic_ising.energy(
                parameters(lags=1), Conditioned(np.zeros(3), Inputs(np.zeros((1, 3))))
            ),
            "rows must have covariates if and only if",
        ),
        (
            lambda: kinetic_ising.simulate(
                jax.random.key(0), parameters(), num_bins=3, start=np.zeros((1, 3))
            ),
            r"start must have shape \(2, 3\)",
        ),
        (
            lambda: kinetic_ising.simulate(jax.random.key(0), parameters(), num_bins=3),
            "covariates must be given if and only if",
        ),
    ],
)
def test_wrong_rows_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_known_updates_fit_with_strict_settings(key):
    words, covariates, updated = table()
    rows = kinetic_ising.rows(words, covariates=covariates, rate=updated)
    start = kinetic_ising.init(SIZE, num_covariates=COVARIATES)
    with jax.numpy_dtype_promotion("strict"), jax.debug_nans(True):
        objective = pj.PseudoLikelihood(kinetic_ising.energy)
        found = pj.fit(key, objective, start, rows, penalty=pj.L2(0.1)).params
        starts = jax.tree.map(lambda leaf: leaf[:4], rows)
        options = dict(sampler=pj.HeatBath(), num_draws=2)
        draws = pj.sample(key, kinetic_ising.energy, found, starts, **options)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    held = ~updated[words.bin >= 1][:4]
    past = np.asarray(rows.inputs.past)[:4, 0]
    assert_array_equal(np.asarray(draws.x.x)[:, -1][held], past[held])
