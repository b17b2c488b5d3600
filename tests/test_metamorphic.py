"""Changes of the data whose effect on the result is known, for every driver.

Rows with weights stand for repeated rows, in any order. Sites, letters and the two
states of a bit may be renamed.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import (
    all_states,
    cubic_energy,
    cubic_params,
    drawn_from,
    flat_ising,
    flat_of,
    log_probs_of,
    matrix_of,
    random_ising,
)

from probjax import (
    HMC,
    L1,
    L2,
    MPF,
    Bernoulli,
    Data,
    Gaussian,
    HeatBath,
    MaximumLikelihood,
    PseudoLikelihood,
    ScoreMatching,
    ais,
    bases,
    cross_validate,
    exact,
    fit,
    fit_path,
    goodness,
    ising,
    log_likelihood,
    loss,
    marginal_log_likelihood,
    natural,
    potts,
    uncertainty,
)
from probjax.annealing import compare
from probjax.connectivity import BitFlips, pairs
from probjax.data import unique_rows
from probjax.fitting import GradientNorm, fit_nodes
from probjax.objectives import (
    RISE,
    ContinuousPseudoLikelihood,
    LogRISE,
    MinimumKLContraction,
    MinimumVelocity,
    NodeLikelihood,
    RatioMatching,
    flow,
)

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(8)
SIZE = 5
STATES = all_states(SIZE).astype(float)
TRUTH = random_ising(0, SIZE, scale=0.4)
# In the order of `unique_rows`, in which cross-validation assigns copies to folds.
ROWS = np.array(sorted(drawn_from(1, TRUTH, 150).astype(float).tolist()))
SHUFFLED = np.random.default_rng(2).permutation(ROWS)
COUNTS = np.sum(np.all(ROWS[:, None] == STATES[None], axis=2), axis=0)
assert 0 < np.sum(COUNTS == 0) < np.sum(COUNTS > 1)
COUNTED = Data(STATES, COUNTS.astype(float))


def doubled(params):
    """In the precision of the test."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, float)), params)


def start():
    return flat_ising(SIZE)


def truth():
    return doubled(TRUTH)


def value(objective):
    return lambda data: loss(KEY, objective, truth(), data)


def continuous(objective):
    """Its loss, of as many states that are not bits."""

    def call(data):
        states = jax.tree.map(lambda leaf: leaf - 0.3 if leaf.ndim == 2 else leaf, data)
        return loss(KEY, objective, cubic_params(0, SIZE), states)

    return call


def fitted(objective):
    """The parameters, the loss, and the covariance of the parameters."""

    def call(data):
        found = fit(KEY, objective, start(), data)
        error = uncertainty(objective, found, data)
        return found.params, found.loss, error.covariance

    return call


def nodes(make):
    return lambda data: fit_nodes(KEY, make, ising.energy, start(), data).params


def path(data):
    penalty = L1(1.0, weights=ising.Params(0.0, 1.0))
    options = dict(penalty=penalty, num_strengths=4, smallest=0.05)
    found = fit_path(KEY, PseudoLikelihood(ising.energy), start(), data, **options)
    assert 0 < found.num_nonzero[1] < found.num_nonzero[-1]
    return found


def annealed(params, seed=0):
    options = dict(sampler=HeatBath(), num_particles=50, num_steps=5, pilot=None)
    key = jax.random.key(seed)
    return ais(key, ising.energy, params, Bernoulli(SIZE), **options)


def likelihood(data, params=truth, seed=0):
    return log_likelihood(ising.energy, params(), data, annealed(params(), seed))


def without_rows(estimate):
    return estimate._replace(per_row=(), weights=())


def difference(data):
    return without_rows(compare(likelihood(data), likelihood(data, start, 1)))


def joint(params, x, a):
    """Latents that do not depend on the row, so that all particles are exact."""
    return params @ x + a @ a / 2


def marginal(data):
    options = dict(sampler=HMC(0.5), num_particles=2, num_steps=2, pilot=None)
    slope = np.arange(1.0, SIZE + 1)
    found = marginal_log_likelihood(KEY, joint, slope, Gaussian(2), data, **options)
    return found.value, found.row_stderr


def triple(x):
    return x[0] * x[1] * x[2]


MODEL = Data(STATES, np.exp(log_probs_of(TRUTH)))


def comparisons(data):
    return [
        goodness.pair_frequencies(data, MODEL),
        goodness.third_moments(data, MODEL),
        goodness.population_count(data, MODEL),
        goodness.compare(triple, data, MODEL),
    ]


def fitted_bases(data):
    fits = (bases.fit_bernoulli, bases.fit_gaussian, bases.fit_laplace)
    found = [fit(data) for fit in (*fits, bases.fit_full_gaussian)]
    return [*found, bases.fit_categorical(data, 3)]


SCORES = natural.energy_scores(ising.energy)


def metrics(data):
    fields = natural.metric(SCORES, truth(), data, centred=False)
    return natural.metric(SCORES, truth(), data), fields, natural.whitening(data)


def natural_descent(data):
    optimizer = optax.chain(natural.natural_gradient(SCORES), optax.sgd(0.3))
    options = dict(optimizer=optimizer, steps_per_round=4)
    return fit(KEY, MPF(ising.energy), start(), data, **options).losses


def whitened_descent(data):
    options = dict(num_turns=2, steps_per_round=50)
    return natural.fit_whitened(
        KEY, MPF(ising.energy), start(), data, SCORES, **options
    ).params


def validated(data):
    options = dict(penalty=L2(1.0), strengths=[0.1, 0.01], num_folds=2)
    objective = PseudoLikelihood(ising.energy)
    return cross_validate(KEY, objective, start(), data, **options)


VALUES = {
    "flow": lambda data: flow(KEY, ising.energy, truth(), data),
    "flow to pairs": value(MPF(ising.energy, connectivity=BitFlips(2))),
    "flow to others": value(MPF(ising.energy, exclude_data=True)),
    "ratio matching": value(RatioMatching(ising.energy)),
    "contraction": value(MinimumKLContraction(ising.energy, blocks=pairs(SIZE))),
    "RISE": value(RISE(ising.energy, 1)),
    "node likelihood": value(NodeLikelihood(ising.energy, 1)),
    "score matching": continuous(ScoreMatching(cubic_energy)),
    "velocity": continuous(MinimumVelocity(cubic_energy, mobility=2.0)),
    "densities": continuous(
        ContinuousPseudoLikelihood(cubic_energy, lower=-2.0, upper=3.0)
    ),
    "log-likelihood": lambda data: without_rows(likelihood(data)),
    "comparison of models": difference,
    "exact likelihood": lambda data: exact.log_likelihood(ising.energy, truth(), data),
    "marginal likelihood": marginal,
    "goodness of fit": comparisons,
    "mean field": lambda data: (ising.mean_field(data), ising.tap(data, damping=1e-3)),
    "chart": lambda data: ising.centred(data),
    "bases": fitted_bases,
    "metrics": metrics,
    "natural descent": natural_descent,
}
FITS = {
    "fit of the flow": fitted(MPF(ising.energy)),
    "fit of pseudolikelihood": fitted(PseudoLikelihood(ising.energy)),
    "fit of likelihood": fitted(MaximumLikelihood(ising.energy)),
    "fit of nodes": nodes(LogRISE),
    "path": path,
    "whitened descent": whitened_descent,
}
# They take long to compile.
LONG = {"marginal likelihood", "fit of nodes", "path", "whitened descent"}
LONG |= {"flow to others"}
ROUNDING = dict(rtol=1e-9, atol=1e-11)
# Fits end at a gradient below 1e-8, and the least curvature is above 1e-3.
CLOSE = dict(rtol=1e-7, atol=1e-5)


def test_unique_rows_are_the_rows_that_were_counted():
    found = unique_rows(SHUFFLED)
    np.testing.assert_array_equal(found.x, STATES[COUNTS > 0])
    np.testing.assert_array_equal(found.weights, COUNTS[COUNTS > 0])


@pytest.mark.filterwarnings("ignore:fit has not converged")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.statistics] * (name in LONG))
        for name in VALUES | FITS
    ],
)
def test_rows_may_be_counted_and_come_in_any_order(name):
    call = (VALUES | FITS)[name]
    expected = call(ROWS)
    assert not np.isnan(flat_of(expected)).all()
    for data in (COUNTED, SHUFFLED):
        within = ROUNDING if name in VALUES else CLOSE
        chex.assert_trees_all_close(call(data), expected, **within)


@pytest.mark.statistics
def test_copies_of_rows_are_assigned_to_folds_alike():
    chex.assert_trees_all_close(validated(COUNTED), validated(ROWS), **CLOSE)


NAMES = np.array([3, 0, 4, 2, 1])


def renamed(leaf):
    """Every axis of sites in the order of `NAMES`."""
    leaf = np.asarray(leaf)
    for axis, length in enumerate(leaf.shape):
        leaf = leaf.take(NAMES, axis) if length == SIZE else leaf
    return leaf


def matrix_fit(objective):
    def call(data):
        found = fit(KEY, objective, start(), data)
        error = uncertainty(objective, found, data).stderr
        return matrix_of(found.params), found.loss, matrix_of(error)

    return call


MATRICES = {
    "flow": matrix_fit(MPF(ising.energy)),
    "pseudolikelihood": matrix_fit(PseudoLikelihood(ising.energy)),
    "likelihood": matrix_fit(MaximumLikelihood(ising.energy)),
    "mean field": lambda data: matrix_of(ising.mean_field(data)),
    "TAP": lambda data: matrix_of(ising.tap(data)),
    "whitening": lambda data: natural.whitening(data).matrix,
}


@pytest.mark.parametrize("name", MATRICES)
def test_renamed_sites_rename_the_result(name):
    found, before = MATRICES[name](ROWS[:, NAMES]), MATRICES[name](ROWS)
    expected = jax.tree.map(renamed, before)
    chex.assert_trees_all_close(found, expected, **CLOSE)
    assert not np.allclose(jax.tree.leaves(before)[0], jax.tree.leaves(expected)[0])


SPINS = {
    "flow": MPF(ising.energy),
    "pseudolikelihood": PseudoLikelihood(ising.energy),
    "likelihood": MaximumLikelihood(ising.energy),
}


@pytest.mark.parametrize("name", SPINS)
def test_either_state_of_a_bit_may_be_called_on(name):
    """Over spins, couplings and all errors stay, and fields change their signs."""
    objective = SPINS[name]

    def spins(data):
        found = fit(KEY, objective, start(), data)
        error = uncertainty(objective, found, data)
        return fields_and_couplings(found.params), error.of(fields_and_couplings)

    (coupling, field), error = spins(ROWS)
    (found_coupling, found_field), found_error = spins(1 - ROWS)
    assert np.abs(field).max() > 0.1
    np.testing.assert_allclose(found_coupling, coupling, **CLOSE)
    np.testing.assert_allclose(found_field, -field, **CLOSE)
    chex.assert_trees_all_close(found_error, error, **CLOSE)


def fields_and_couplings(params):
    return ising.to_fields(params, spins=True)[:2]


def test_renamed_letters_and_sites_of_a_potts_model_keep_the_energies():
    """The penalty, which is the same for all letters, makes the minimum unique."""
    generator = np.random.default_rng(3)
    x = generator.integers(0, 3, (200, 3)) * generator.integers(0, 2, (200, 1))
    letters, sites = np.array([2, 0, 1]), np.array([1, 2, 0])
    zeros = potts.Params(jnp.zeros((3, 3)), jnp.zeros((3, 3, 3)))
    objective = PseudoLikelihood(potts.energy, num_states=3)

    def energies(x, states):
        found = fit(KEY, objective, zeros, x, penalty=L2(0.01), stop=GradientNorm())
        return jax.vmap(potts.energy, (None, 0))(found.params, states)

    states = all_states(3, 3)
    expected = energies(x, states.astype(float))
    found = energies(letters[x][:, sites], letters[states][:, sites].astype(float))
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found, expected, **CLOSE)
