import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small_models import (
    all_states,
    counted_states,
    flat_ising,
    log_probs_of,
    random_ising,
)

from probjax import (
    L1,
    L2,
    MPF,
    ContrastiveDivergence,
    ConvergenceWarning,
    Data,
    MaximumLikelihood,
    PseudoLikelihood,
    UnboundedWarning,
    fit,
    ising,
    potts,
)
from probjax.fitting import GradientNorm, charts, uncertainty
from probjax.samplers import HeatBath
from probjax.trees import as_array

SIZE = 4
DATA = counted_states(SIZE)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def start():
    return flat_ising(SIZE)


def test_likelihood_of_a_true_model_has_the_inverse_fisher_matrix(x64, key):
    truth = random_ising(1, SIZE, scale=0.5)
    states, chances = all_states(SIZE), np.exp(log_probs_of(truth))
    data = Data(states, 1000 * chances)
    objective = MaximumLikelihood(ising.energy)
    found = uncertainty(objective, fit(key, objective, truth, data), data)
    # The covariance of what the biases and the couplings multiply.
    first, second = np.triu_indices(SIZE, 1)
    features = np.hstack([states, 2 * states[:, first] * states[:, second]])
    fisher = np.cov(features.T, aweights=chances, bias=True)
    np.testing.assert_allclose(
        found.covariance, np.linalg.inv(fisher) / 1000, rtol=1e-6
    )
    np.testing.assert_allclose(
        flat(found.stderr), np.sqrt(np.diagonal(found.covariance)), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("objective", "chart"),
    [
        (MPF(ising.energy), ising.centred(DATA)),
        (PseudoLikelihood(ising.energy), None),
        (MaximumLikelihood(ising.energy), None),
    ],
    ids=["MPF", "PL", "ML"],
)
def test_covariance_is_how_estimates_follow_the_counts(objective, chart, x64, key):
    penalty = L2(0.05)

    @jax.jit
    @jax.vmap
    def estimate(weights):
        found = fit(
            key,
            objective,
            start(),
            Data(DATA.x, weights),
            penalty=penalty,
            chart=chart,
            stop=GradientNorm(1e-12),
        )
        return ravel_pytree(found.params)[0]

    steps = 1e-3 * np.eye(len(DATA.weights))
    above, below = estimate(DATA.weights + steps), estimate(DATA.weights - steps)
    follow = np.subtract(above, below) / 2e-3
    expected = (follow.T * DATA.weights) @ follow
    options = dict(penalty=penalty, chart=chart, stop=GradientNorm(1e-12))
    fitted = fit(key, objective, start(), DATA, **options)
    found = uncertainty(objective, fitted, DATA, penalty=penalty, chart=chart)
    scale = np.sqrt(np.outer(np.diagonal(expected), np.diagonal(expected)))
    covariance = np.asarray(found.covariance)
    np.testing.assert_allclose(covariance / scale, expected / scale, atol=1e-5)


def test_weights_are_counts_and_chunks_change_nothing(x64, key):
    objective = PseudoLikelihood(ising.energy)
    rows = np.repeat(DATA.x, DATA.weights.astype(int), axis=0)
    fitted = fit(key, objective, start(), rows)
    repeated = uncertainty(objective, fitted, rows, chunk_size=300).stderr
    counted = uncertainty(objective, fit(key, objective, start(), DATA), DATA).stderr
    np.testing.assert_allclose(flat(repeated), flat(counted), rtol=1e-5)


def test_what_nothing_holds_has_no_finite_error(x64, key):
    data = np.random.default_rng(0).integers(0, 3, (200, 3))
    objective = PseudoLikelihood(potts.energy, num_states=3)
    start = jax.jit(lambda key: potts.init(key, 3, 3))(key)
    fitted = fit(key, objective, start, data)
    found = uncertainty(objective, fitted, data)
    assert np.isinf(flat(found.stderr)).all()
    states = np.array([[0.0, 1.0, 2.0], [0.0, 2.0, 2.0]])

    def gap(params):
        first, second = jax.vmap(potts.energy, (None, 0))(params, states)
        return first - second

    assert 0.1 < float(found.of(gap)) < 2


def test_what_is_frozen_has_no_error(key):
    objective = PseudoLikelihood(ising.energy)
    free = ising.Params(False, True)
    chart = charts.Frozen(start(), free)
    fitted = fit(key, objective, start(), DATA, chart=chart)
    stderr = uncertainty(objective, fitted, DATA, chart=chart).stderr
    np.testing.assert_array_equal(stderr.bias, 0)
    assert (np.asarray(stderr.coupling) > 0.01).all()


def test_looseness_does_not_depend_on_the_chart(key):
    """A parameter that nothing depends on, small and kept positive."""

    def energy(params, x):
        return ising.energy(params["used"], x)

    start = {"used": random_ising(0, 2), "spare": as_array(1e-3)}
    data = all_states(2)
    objective = PseudoLikelihood(energy)
    positive = charts.Positive({"used": False, "spare": True})
    for chart in (None, positive):
        fitted = fit(key, objective, start, data, chart=chart)
        stderr = uncertainty(objective, fitted, data, chart=chart).stderr
        assert np.isinf(stderr["spare"])
        assert np.isfinite(flat(stderr["used"])).all()


def test_error_bars_of_what_has_no_estimate_are_told(key):
    data = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    objective = PseudoLikelihood(ising.energy)
    with pytest.warns(UnboundedWarning):
        fitted = fit(key, objective, flat_ising(2), data)
    with pytest.warns(UnboundedWarning, match="units 0 and 1 are never both on"):
        uncertainty(objective, fitted, data)
    short = fitted._replace(converged=as_array(False))
    with (
        pytest.warns(
            ConvergenceWarning, match="error bars are valid only at a minimum"
        ),
        pytest.warns(UnboundedWarning),
    ):
        uncertainty(objective, short, data)


def test_estimates_without_a_curvature_are_refused(key):
    objective = ContrastiveDivergence(ising.energy, HeatBath())
    fitted = fit(key, PseudoLikelihood(ising.energy), start(), DATA)
    with pytest.raises(ValueError, match="a loss value, .* got ContrastiveDiv"):
        uncertainty(objective, fitted, DATA)
    with pytest.raises(ValueError, match="sum over rows .* with exclude_data"):
        uncertainty(MPF(ising.energy, exclude_data=True), fitted, DATA.x[:4])
    with pytest.raises(ValueError, match="penalty must be smooth .* got L1"):
        uncertainty(MPF(ising.energy), fitted, DATA, penalty=L1(0.1))


def test_error_bars_use_the_penalty_of_the_fit(x64, key):
    objective = PseudoLikelihood(ising.energy)
    fitted = fit(key, objective, start(), DATA, penalty=L2(0.05))
    found = uncertainty(objective, fitted, DATA).covariance
    given = uncertainty(objective, fitted, DATA, penalty=L2(0.05)).covariance
    np.testing.assert_allclose(found, given, rtol=1e-10)
    without = uncertainty(objective, fitted, DATA, penalty=L2(0.0)).covariance
    assert np.all(np.diagonal(found)[SIZE:] < np.diagonal(without)[SIZE:])
    sparse = fit(key, objective, start(), DATA, penalty=L1(0.05))
    with pytest.raises(ValueError, match="penalty must be smooth"):
        uncertainty(objective, sparse, DATA)


def test_clusters_of_one_row_are_independent_rows(x64, key):
    objective = PseudoLikelihood(ising.energy)
    fitted = fit(key, objective, start(), DATA)
    plain = uncertainty(objective, fitted, DATA).covariance
    count = len(DATA.x)
    # Weights are counts of rows, which here all belong to one cluster.
    rows = np.repeat(DATA.x, DATA.weights.astype(int), axis=0)
    alone = uncertainty(objective, fitted, rows, clusters=np.arange(len(rows)))
    scale = len(rows) / (len(rows) - 1)
    np.testing.assert_allclose(alone.covariance, scale * plain, rtol=1e-6, atol=1e-12)
    names = [f"row {i}" for i in range(count)]
    together = uncertainty(objective, fitted, DATA, clusters=names).covariance
    labels = np.repeat(np.arange(count), DATA.weights.astype(int))
    repeated = uncertainty(objective, fitted, rows, clusters=labels).covariance
    np.testing.assert_allclose(together, repeated, rtol=1e-6, atol=1e-12)
    assert np.all(np.diagonal(together) > 2 * np.diagonal(plain))


def test_bad_clusters_are_refused(key):
    objective = PseudoLikelihood(ising.energy)
    fitted = fit(key, objective, start(), DATA)
    with pytest.raises(ValueError, match="one entry for each of 16 rows, got shape"):
        uncertainty(objective, fitted, DATA, clusters=[1, 2])
    with pytest.raises(ValueError, match="clusters must be at least 2, got 1"):
        uncertainty(objective, fitted, DATA, clusters=np.zeros(16))
    missing = DATA._replace(mask=DATA.x < 1)
    with pytest.raises(ValueError, match="no missing entries for error bars"):
        uncertainty(objective, fitted, missing)


@pytest.mark.parametrize("penalty", [None, L2(1e-3)])
@pytest.mark.filterwarnings("ignore::probjax.UnboundedWarning")
def test_pairs_that_are_never_on_together_have_infinite_errors(penalty, key):
    x = np.random.default_rng(0).binomial(1, 0.3, (500, 4)).astype("f4")
    x[:, 1] *= 1 - x[:, 0]
    x[:, 3] = np.maximum(x[:, 3], x[:, 2])  # unit 2 is never on without unit 3
    objective = PseudoLikelihood(ising.energy)
    stop = GradientNorm(1e-3)
    fitted = fit(key, objective, start(), x, penalty=penalty, stop=stop)
    found = uncertainty(objective, fitted, x)
    coupling = np.isinf(ising.coupling_matrix(found.stderr))
    expected = np.zeros((4, 4), bool)
    expected[[0, 1, 2, 3], [1, 0, 3, 2]] = True
    expected[2, 2] = True
    np.testing.assert_array_equal(coupling, expected)
    assert "3 parameters have no finite estimate" in found.describe()
    assert "3 parameters have no finite estimate" in str(found)
    of_data = Data(x, np.ones(500))
    again = uncertainty(objective, fitted, of_data)
    np.testing.assert_array_equal(again.unbounded, found.unbounded)


def test_letters_that_never_occur_have_infinite_errors(key):
    x = np.random.default_rng(0).integers(0, 3, (300, 3))
    x[:, 0] %= 2
    x[(x[:, 1] == 1) & (x[:, 2] == 2), 2] = 0
    objective = PseudoLikelihood(potts.energy, num_states=3)
    start = jax.jit(lambda key: potts.init(key, 3, 3))(key)
    with pytest.warns(UnboundedWarning, match="1 of 9 letters never occur at their"):
        fit(key, objective, start, x, stop=GradientNorm(0.1))
    fitted = fit(key, objective, start, x, penalty=L2(1e-2))
    stderr = uncertainty(objective, fitted, x).stderr
    field = np.zeros((3, 3), bool)
    field[0, 2] = True
    np.testing.assert_array_equal(np.isinf(stderr.field), field)
    coupling = np.zeros((3, 3, 3), bool)
    coupling[:2, 2] = True
    coupling[2, 1, 2] = True
    np.testing.assert_array_equal(np.isinf(stderr.coupling), coupling)


def test_a_gauge_is_described(key):
    x = np.random.default_rng(0).integers(0, 3, (300, 3))
    objective = PseudoLikelihood(potts.energy, num_states=3)
    start = jax.jit(lambda key: potts.init(key, 3, 3))(key)
    found = uncertainty(objective, fit(key, objective, start, x), x)
    words = found.describe()
    assert "36 parameters are a gauge" in words
    assert "standard errors of 36 parameters: none" in words


@pytest.mark.statistics
def test_clusters_cover_the_truth_of_correlated_rows(key):
    """Rows are repeated 1 to 8 times: naive errors are half as large as they should."""
    truth = random_ising(3, SIZE, scale=0.5)
    chances = np.exp(log_probs_of(truth))
    objective, num_clusters, runs = PseudoLikelihood(ising.energy), 400, 200
    states = all_states(SIZE).astype("f4")
    inside, naive = [], []
    exact = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(truth)])
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        drawn = states[rng.choice(len(states), num_clusters, p=chances)]
        lengths = np.tile(np.arange(1, 9), num_clusters // 8)
        labels = np.repeat(np.arange(num_clusters), lengths)
        rows = drawn[labels]
        fitted = fit(key, objective, start(), rows)
        for result, clusters in ((inside, labels), (naive, None)):
            bars = uncertainty(objective, fitted, rows, clusters=clusters)
            z = (flat(fitted.params) - exact) / flat(bars.stderr)
            result.append(np.abs(z) < 1.96)
    assert 0.93 <= np.mean(inside) <= 0.97
    assert np.mean(naive) < 0.75
