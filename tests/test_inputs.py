"""Rows with inputs: conditional models, against enumeration and plain models."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from small_models import all_states, matrix_of, random_ising

import probjax as pj
from probjax import Conditioned, Data, ising
from probjax.connectivity import (
    AllFlips,
    BitFlips,
    BlockChanges,
    GaussianSteps,
    RandomFlips,
    SiteChanges,
    pairs,
)
from probjax.objectives import (
    ContinuousPseudoLikelihood,
    HutchinsonScoreMatching,
    MinimumKLContraction,
    MinimumVelocity,
    RatioMatching,
    ScoreMatchingBySteps,
)
from probjax.potential import Conditional, closed_form, closed_forms, potential
from probjax.trees import as_array

SIZE = 3


def biases(params, row):
    """Fields that depend on the inputs, which may differ from bits and floats."""
    return row.inputs["covariates"] @ params[1] + params[2][row.inputs["session"]]


def plain_energy(params, row):
    """An Ising model whose fields depend on covariates and on a session."""
    return ising.energy(params[0], row.x) + biases(params, row) @ row.x


def flip_gaps(params, row):
    gaps = ising.flip_gaps(params[0], row.x)
    return gaps + (2 * row.x - 1) * biases(params, row)


def mirror_gap(params, row):
    return ising.mirror_gap(params[0], row.x) + biases(params, row) @ (2 * row.x - 1)


def flip_gap(params):
    return lambda row, n: flip_gaps(params, row)[n]


def site_gaps(params, row):
    gaps = flip_gaps(params, row)[:, None]
    return jnp.where(row.x[:, None] == jnp.arange(2.0)[None], 0, gaps)


def site_gap(params):
    return lambda row, n: site_gaps(params, row)[n]


FORMS = {
    "flip_gaps": flip_gaps,
    "mirror_gap": mirror_gap,
    "flip_gap": flip_gap,
    "site_gaps": site_gaps,
    "site_gap": site_gap,
}


@closed_form(**FORMS)
def energy(params, row):
    return plain_energy(params, row)


def parameters(seed=0):
    generator = np.random.default_rng(seed)
    weights, sessions = (
        generator.normal(size=(2, SIZE)),
        generator.normal(size=(4, SIZE)),
    )
    return random_ising(seed, SIZE), as_array(weights), as_array(sessions)


def inputs_of(count=4, seed=1):
    """Inputs of different kinds: floats, and integers that are used as an index."""
    generator = np.random.default_rng(seed)
    covariates = generator.normal(size=(count, 2))
    covariates = covariates.astype(jnp.result_type(float))
    return {"covariates": covariates, "session": np.arange(count) % 4}


def log_probs(params, inputs):
    """Table log p(x | inputs), `(row of inputs, state)`, in float64."""
    ising_params, weights, sessions = params
    fields = np.asarray(inputs["covariates"], float) @ np.asarray(weights, float)
    fields = fields + np.asarray(sessions, float)[np.asarray(inputs["session"])]
    x = all_states(SIZE)
    minus = -np.sum(x @ matrix_of(ising_params) * x, axis=1)[None] - fields @ x.T
    return minus - np.logaddexp.reduce(minus, axis=1, keepdims=True)


def all_rows(params, count=4):
    """Every state with each of some inputs, weighted by its conditional probability."""
    inputs, x = inputs_of(count), all_states(SIZE).astype(np.float32)
    weights = np.exp(log_probs(params, inputs))
    repeated = jax.tree.map(lambda leaf: np.repeat(leaf, len(x), axis=0), inputs)
    rows = Conditioned(np.tile(x, (count, 1)), repeated)
    return Data(rows, weights.ravel() * count)


CONSISTENT = {
    "MPF": pj.MPF(energy),
    "MPF of a plain energy": pj.MPF(plain_energy),
    "MPF to all neighbours": pj.MPF(energy, connectivity=BitFlips(radius=2)),
    "MPF to the mirror state": pj.MPF(energy, connectivity=AllFlips()),
    "MPF to letters": pj.MPF(energy, connectivity=SiteChanges(2)),
    "PseudoLikelihood": pj.PseudoLikelihood(energy),
    "PseudoLikelihood of a plain energy": pj.PseudoLikelihood(plain_energy),
    "RatioMatching": RatioMatching(energy),
    "MinimumKLContraction": MinimumKLContraction(energy, blocks=pairs(SIZE)),
}


@pytest.mark.parametrize("name", CONSISTENT)
def test_objectives_have_no_gradient_at_the_true_conditional_distribution(name, key):
    params = parameters()
    data = all_rows(params)
    gradient = jax.grad(pj.loss, 2)(key, CONSISTENT[name], params, data)
    assert all(abs(leaf).max() < 1e-5 for leaf in jax.tree.leaves(gradient))
    # With the inputs of other rows, the gradient does not vanish.
    moved = jax.tree.map(lambda leaf: np.roll(leaf, 8, axis=0), data.x.inputs)
    wrong = data._replace(x=Conditioned(data.x.x, moved))
    gradient = jax.grad(pj.loss, 2)(key, CONSISTENT[name], params, wrong)
    assert max(abs(leaf).max() for leaf in jax.tree.leaves(gradient)) > 1e-2


def test_pseudolikelihood_is_that_of_the_conditional_tables(key):
    params = parameters()
    table = np.exp(log_probs(params, inputs_of()))
    states = all_states(SIZE)
    total = 0.0
    for probs in table:
        for state, p in zip(states, probs, strict=True):
            for site in range(SIZE):
                same = np.all(np.delete(states == state, site, axis=1), axis=1)
                total -= p / len(table) * np.log(p / probs[same].sum())
    found = pj.loss(key, pj.PseudoLikelihood(energy), params, all_rows(params))
    assert_allclose(found, total, rtol=1e-5)


def test_a_fit_finds_the_true_parameters(key):
    params, inputs = parameters(), inputs_of(12)
    start = jax.tree.map(np.zeros_like, params)
    objective, stop = pj.PseudoLikelihood(energy), pj.fitting.GradientNorm(1e-5)
    found = pj.fit(key, objective, start, all_rows(params, 12), stop=stop).params
    assert_allclose(found[0].coupling, params[0].coupling, atol=1e-3)
    assert_allclose(found[1], params[1], atol=1e-3)
    # Biases and the mean of the fields of all sessions are one parameter.
    total = found[0].bias[None] + found[2]
    assert_allclose(total, params[0].bias[None] + params[2], atol=1e-3)
    assert_allclose(log_probs(found, inputs), log_probs(params, inputs), atol=1e-2)


@pytest.mark.parametrize("name", FORMS)
def test_closed_forms_hold_for_given_inputs(name):
    params, inputs = parameters(), inputs_of()
    args = params, jax.tree.map(lambda leaf: leaf[1], inputs)
    assert set(closed_forms(Conditional(energy))) == set(FORMS)
    assert not closed_forms(Conditional(plain_energy))
    sides = [potential(Conditional(e), args) for e in (energy, plain_energy)]
    x = as_array(np.array([1.0, 0.0, 1.0]))
    call = {
        "flip_gaps": lambda model: model.flip_gaps(x),
        "mirror_gap": lambda model: model.mirror_gap(x),
        "flip_gap": lambda model: model.flip_gap()(x, 1),
        "site_gaps": lambda model: model.site_gaps(x, 2),
        "site_gap": lambda model: model.site_gap(2)(x, 1),
    }[name]
    assert_allclose(*map(call, sides), rtol=1e-5, atol=1e-6)


def spread_out(inputs, count):
    """Inputs of many chains, `count` chains for each row of `inputs`."""
    return jax.tree.map(lambda leaf: np.repeat(leaf, count, axis=0), inputs)


SAMPLERS = {
    "HeatBath": pj.HeatBath(),
    "Metropolis": pj.Metropolis(RandomFlips(1)),
    "Metropolis in blocks": pj.Metropolis(BlockChanges(((0, 1), (1, 2)))),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_chains_sample_the_distribution_given_their_own_inputs(name, key):
    params, inputs = parameters(), inputs_of()
    chains = 600
    starts = Conditioned(np.zeros((4 * chains, SIZE)), spread_out(inputs, chains))
    options = dict(sampler=SAMPLERS[name], num_warmup=60, num_draws=1)
    draws = pj.sample(key, energy, params, starts, **options)
    assert_array_equal(draws.x.inputs["session"][:, 0], starts.inputs["session"])
    number = (np.asarray(draws.x.x)[:, 0] @ [4, 2, 1]).astype(int).reshape(4, chains)
    counts = np.stack([np.bincount(row, minlength=8) for row in number])
    probs = np.exp(log_probs(params, inputs))
    z = (counts - chains * probs) / np.sqrt(chains * probs * (1 - probs))
    assert np.abs(z).max() < 4.5
    assert np.abs(probs[0] - probs[1]).max() > 0.1


def test_draws_equal_those_of_the_plain_model_that_the_inputs_define(key):
    params, inputs = parameters(), inputs_of()
    one = jax.tree.map(lambda leaf: leaf[2], inputs)
    options = dict(sampler=pj.HeatBath(), num_draws=20)
    x = np.zeros((5, SIZE))
    plain = pj.sample(key, Conditional(energy), (params, one), x, **options)
    same = jax.tree.map(lambda leaf: np.stack([leaf] * 5), one)
    draws = pj.sample(key, energy, params, Conditioned(x, same), **options)
    assert_array_equal(draws.x.x, plain.x)
    assert draws.x.inputs["session"].dtype.kind == "i"
    assert set(np.unique(draws.x.inputs["session"])) == {2}


def statistic(row):
    return row.x * row.inputs["covariates"][0]


def test_runs_with_inputs_continue_and_average(key):
    params = parameters()
    starts = Conditioned(np.zeros((4, SIZE)), inputs_of())
    run = dict(sampler=pj.HeatBath(), num_draws=8)
    first = pj.sample(key, energy, params, starts, **run)
    second = pj.sample(key, energy, params, first, **run)
    whole = pj.sample(key, energy, params, starts, sampler=pj.HeatBath(), num_draws=16)
    both = np.concatenate([first.x.x, second.x.x], axis=1)
    assert_array_equal(both, whole.x.x)
    assert_array_equal(second.x.inputs["covariates"], first.x.inputs["covariates"])
    means = pj.sample_mean(key, energy, params, starts, statistic=statistic, **run)
    more = pj.sample_mean(key, energy, params, means, statistic=statistic, **run)
    values = whole.x.x * whole.x.inputs["covariates"][..., :1]
    assert_allclose(more.mean, values.mean((0, 1)), rtol=1e-5, atol=1e-6)
    run = dict(sampler=pj.Metropolis(RandomFlips(1)), num_draws=1)
    moved = pj.sample(key, energy, params, starts, **run)
    pj.sample(key, energy, params, moved, **run)
    with pytest.raises(ValueError, match="same energy and params to be continued"):
        pj.sample(key, energy, parameters(seed=3), moved, **run)


def test_annealing_estimates_log_z_given_inputs(key):
    params, inputs = parameters(), inputs_of()
    options = dict(sampler=pj.HeatBath(), num_particles=200, num_steps=50, pilot=None)

    def log_z(inputs):
        args = Conditional(energy), (params, inputs), pj.Bernoulli(SIZE)
        return pj.ais(key, *args, **options).log_z

    weights, sessions = params[1:]
    fields = np.asarray(inputs["covariates"] @ weights + sessions[inputs["session"]])
    x = all_states(SIZE)
    minus = -np.sum(x @ matrix_of(params[0]) * x, axis=1)[None] - fields @ x.T
    expected = np.logaddexp.reduce(minus, axis=1)
    assert_allclose(jax.vmap(log_z)(inputs), expected, atol=0.1)
    assert np.ptp(expected) > 0.5
    one = jax.tree.map(lambda leaf: leaf[1], inputs)
    found = pj.exact.log_z(Conditional(energy), (params, one), SIZE)
    assert_allclose(found, expected[1], rtol=1e-5)


def test_the_missing_part_of_a_state_is_sampled_given_the_known_part(key):
    params, size = random_ising(0, 4), 4
    known = np.array([False, True, False, True])

    def inpainting(params, row):
        x = jnp.zeros(size).at[~known].set(row.x).at[known].set(row.inputs)
        return ising.energy(params, x)

    chains = 2000
    values = np.tile([[1.0, 0.0]], (chains, 1))
    starts = Conditioned(np.zeros((chains, 2)), values)
    options = dict(sampler=pj.HeatBath(), num_warmup=30, num_draws=1)
    draws = pj.sample(key, inpainting, params, starts, **options).x.x[:, 0]
    states = all_states(size)
    energies = np.sum(states @ matrix_of(params) * states, axis=1)
    given = np.all(states[:, known] == [1, 0], axis=1)
    probs = np.exp(-energies[given])
    probs /= probs.sum()
    counts = np.bincount((np.asarray(draws) @ [2, 1]).astype(int), minlength=4)
    z = (counts - chains * probs) / np.sqrt(chains * probs * (1 - probs))
    assert np.abs(z).max() < 4.5


def gaussian_energy(params, row):
    """x given u is normal with mean A u and precision matrix P."""
    matrix, precision = params
    error = row.x - matrix @ row.inputs
    return error @ precision @ error / 2


def gaussian_rows(count=400):
    generator = np.random.default_rng(0)
    u = generator.normal(size=(count, 2))
    matrix = np.array([[1.0, -2.0], [0.5, 0.3]])
    noise = generator.normal(size=(count, 2)) @ [[0.5, 0.2], [0.0, 0.4]]
    return Conditioned(
        *(as_array(part.astype(np.float32)) for part in (u @ matrix.T + noise, u))
    )


@pytest.mark.parametrize(
    "objective",
    [
        pj.ScoreMatching(gaussian_energy),
        HutchinsonScoreMatching(gaussian_energy, num_draws=200),
        MinimumVelocity(gaussian_energy, 0.7),
        ScoreMatchingBySteps(gaussian_energy, GaussianSteps(0.02, num_draws=200)),
        ContinuousPseudoLikelihood(gaussian_energy, lower=-9, upper=9),
    ],
    ids=lambda objective: type(objective).__name__,
)
def test_continuous_objectives_regress_on_inputs(objective, key):
    rows = gaussian_rows()
    x, u = (np.asarray(part, float) for part in rows)
    matrix = np.linalg.lstsq(u, x, rcond=None)[0].T
    residual = x - u @ matrix.T
    precision = np.linalg.inv(residual.T @ residual / len(x))
    params = (
        as_array(matrix.astype(np.float32)),
        as_array(precision.astype(np.float32)),
    )
    gradient = jax.grad(pj.loss, 2)(key, objective, params, rows)
    scale = jax.grad(pj.loss, 2)(key, objective, (0.5 * params[0], params[1]), rows)
    # Random directions leave noise in the gradient of the precision only.
    assert abs(gradient[0]).max() < 0.03 * abs(scale[0]).max()


def test_hmc_moves_states_and_not_inputs(key):
    params = (jnp.array([[1.0, -2.0], [0.5, 0.3]]), jnp.array([[2.0, 0.5], [0.5, 1.0]]))
    u = np.array([[1.0, 0.0], [-1.0, 2.0], [3.0, -1.0]], np.float32)
    starts = Conditioned(np.zeros((300, 2)), np.repeat(u, 100, axis=0))
    tuned = pj.samplers.tune(
        key,
        gaussian_energy,
        params,
        starts,
        sampler=pj.HMC(0.3, num_steps=3),
        num_steps=320,
    )
    assert_array_equal(tuned.x.inputs, starts.inputs)
    options = dict(sampler=tuned.sampler, num_draws=50, thin=2)
    draws = pj.sample(key, gaussian_energy, params, tuned.x, **options)
    means = np.asarray(draws.x.x).reshape(3, -1, 2).mean(1)
    assert_allclose(means, u @ params[0].T, atol=0.06)
    assert_array_equal(draws.x.inputs[:, -1], starts.inputs)


def test_contrastive_divergence_moves_each_row_given_its_inputs(key):
    params = parameters()
    x = np.tile(all_states(SIZE), (4, 1)).astype(np.float32)
    repeated = jax.tree.map(lambda leaf: np.repeat(leaf, 8, axis=0), inputs_of())
    data = Data(Conditioned(x, repeated))
    objective = pj.ContrastiveDivergence(energy, pj.HeatBath(), num_moves=30)
    data = objective.prepare(params, data)
    keys = jax.random.split(key, 300)
    moved = jax.vmap(lambda key: objective.refresh(key, params, data, None).rows)(keys)
    assert_array_equal(moved.inputs["session"][7], repeated["session"])
    # All chains of one input have its distribution after many moves.
    means = np.asarray(moved.x).reshape(300, 4, 8, SIZE).mean((0, 2))
    expected = np.exp(log_probs(params, inputs_of())) @ all_states(SIZE)
    z = (means - expected) / np.sqrt(expected * (1 - expected) / 2400)
    assert np.abs(z).max() < 4.5
    options = dict(optimizer=optax.sgd(0.1), num_rounds=2, steps_per_round=1)
    assert pj.fit(key, objective, params, data, **options).params[1].shape == (2, SIZE)


def test_missing_entries_are_drawn_given_inputs(key):
    params = parameters()
    data = all_rows(params)
    every = np.ones(data.x.x.shape, bool)
    objective = pj.PseudoLikelihood(energy)
    start = jax.tree.map(np.zeros_like, params)
    run = dict(num_rounds=2, steps_per_round=3)
    full = pj.fit(key, objective, start, data, **run)
    masked = pj.fit(key, objective, start, data._replace(mask=every), **run)
    assert_allclose(full.params[1], masked.params[1], rtol=1e-4, atol=1e-5)

    # Rows of which only one entry is known, at the true parameters.
    some = every.copy()
    some[:, 1:] = False
    some[0] = True
    hidden = objective.prepare(params, pj.data.rows.as_data(data._replace(mask=some)))
    context = objective.init(key, params, hidden)
    rounds = 400
    drawn = []
    refresh = jax.jit(objective.refresh)
    for number in range(rounds):
        round_key = jax.random.fold_in(key, number)
        context = refresh(round_key, params, hidden, context)
        drawn.append(np.asarray(context.rows.x))
    drawn = np.stack(drawn[20:])
    assert (drawn[:, :, 0] == data.x.x[:, 0]).all()
    tables, states = np.exp(log_probs(params, inputs_of())), all_states(SIZE)
    for row in (9, 17, 30):
        given = states[:, 0] == data.x.x[row, 0]
        probs = tables[row // 8] * given
        expected = probs @ states / probs.sum()
        assert_allclose(drawn[:, row].mean(0), expected, atol=0.15)


def test_check_fit_compares_chains_given_the_inputs_of_rows(key):
    params, generator = parameters(), np.random.default_rng(5)
    inputs = inputs_of(2000)
    probs = np.exp(log_probs(params, inputs)).cumsum(axis=1)
    chosen = (generator.random((2000, 1)) > probs).sum(1)
    rows = Conditioned(all_states(SIZE)[chosen.clip(max=7)], inputs)
    check = dict(num_steps=60, num_chains=200)
    assert pj.check_fit(key, energy, params, rows, **check).passed
    wrong = (params[0], 0 * params[1], params[2])
    found = pj.check_fit(key, energy, wrong, rows, **check)
    assert not found.passed
    assert found.kind == "bits"


def test_goodness_compares_states_with_inputs(key):
    generator = np.random.default_rng(0)
    x = (generator.random((200, SIZE)) < 0.5).astype(np.float32)
    rows = Conditioned(x, inputs_of(200))
    draws = jax.tree.map(lambda leaf: leaf.reshape(4, 50, *leaf.shape[1:]), rows)
    goodness = pj.goodness
    for compare in (
        goodness.pair_frequencies,
        goodness.third_moments,
        goodness.population_count,
    ):
        given, plain = compare(rows, draws), compare(x, draws.x)
        assert_array_equal(given.observed, plain.observed)
        assert_array_equal(given.stderr, plain.stderr)
    found = goodness.compare(statistic, rows, draws)
    assert_allclose(
        found.observed, (x * inputs_of(200)["covariates"][:, :1]).mean(0), atol=1e-5
    )


def test_natural_gradients_use_rows_with_inputs(key):
    params = parameters()
    data = all_rows(params)
    rows = pj.natural.draws_of(energy, pj.HeatBath(), num_steps=2)(key, params, data)
    assert_array_equal(rows.x.inputs["session"], data.x.inputs["session"])
    assert rows.x.x.shape == data.x.x.shape
    scores = pj.natural.energy_scores(energy)
    assert scores.linear(params, data, None) is not None


def test_error_bars_are_those_of_repeated_rows(key):
    params = parameters()
    data = all_rows(params)
    data = data._replace(weights=np.ceil(20 * data.weights))
    objective, options = pj.PseudoLikelihood(energy), dict(penalty=pj.L2(0.01))
    found = pj.fit(key, objective, params, data, **options)
    bars = pj.uncertainty(objective, found, data, **options)
    times = data.weights.astype(int)
    again = Data(jax.tree.map(lambda leaf: np.repeat(leaf, times, axis=0), data.x))
    repeated = pj.uncertainty(objective, found, again, **options)
    assert_allclose(bars.stderr[1], repeated.stderr[1], rtol=1e-3)


def test_methods_for_one_distribution_refuse_inputs(key):
    params = parameters()
    data = all_rows(params)
    sampler = pj.HeatBath()
    refusals = [
        lambda: pj.loss(key, pj.PersistentMPF(energy, sampler=sampler), params, data),
        lambda: pj.loss(
            key, pj.PersistentDivergence(energy, sampler, 10), params, data
        ),
        lambda: pj.fit(
            key, pj.MaximumLikelihood(energy, sampler=sampler), params, data
        ),
        lambda: pj.loss(key, pj.MPF(energy, exclude_data=True), params, data),
        lambda: pj.loss(
            key, pj.NoiseContrast(energy, pj.Bernoulli(SIZE)), params, data.x
        ),
        lambda: pj.fitting.fit_nodes(key, pj.objectives.RISE, energy, params, data),
        lambda: pj.natural.states_of(energy)(key, params, data),
        lambda: pj.natural.whitening(data),
    ]
    for refuse in refusals:
        with pytest.raises(
            ValueError, match=r"got a Conditioned; try PseudoLikelihood"
        ):
            refuse()
    annealed = pj.ais(
        key,
        ising.energy,
        params[0],
        pj.Bernoulli(SIZE),
        sampler=sampler,
        num_particles=20,
        num_steps=5,
        pilot=None,
    )
    with pytest.raises(ValueError, match="different inputs have different log Z, got"):
        pj.log_likelihood(energy, params, data, annealed)


def test_rows_and_inputs_must_have_one_length(key):
    rows = Conditioned(np.zeros((3, SIZE)), np.zeros((2, 1)))
    with pytest.raises(ValueError, match="the same number of rows, got \\[2, 3\\]"):
        pj.fit(key, pj.MPF(energy), parameters(), rows)
    with pytest.raises(ValueError, match="a start for each chain"):
        pj.sample(key, energy, parameters(), rows, sampler=pj.HeatBath(), num_draws=1)
