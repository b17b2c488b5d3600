import subprocess
import sys

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer
from sklearn.utils.estimator_checks import parametrize_with_checks
from small_models import all_states

from probjax import L1, PersistentDivergence, hopfield, ising, potts, rbm
from probjax.apps import families, fitted_models
from probjax.apps.estimators import RBM, Hopfield, Ising, Potts
from probjax.samplers import HeatBath


def _refusal(estimator):
    """Checks that an estimator fails for good reason."""
    if isinstance(estimator, Potts):
        return {
            "check_sample_weight_equivalence_on_dense_data": "it feeds fractions, "
            "whatever the tag `categorical` says, and fractions are no letters: "
            "test_weights_are_repetitions checks the same"
        }
    return {}


GREY = pytest.mark.filterwarnings("ignore:X has more than two values")


@GREY
@pytest.mark.platforms
@parametrize_with_checks([Ising()], expected_failed_checks=_refusal)
def test_ising_is_an_estimator(estimator, check):
    check(estimator)


@GREY
@pytest.mark.slow
@parametrize_with_checks([Hopfield(), RBM(), Potts()], expected_failed_checks=_refusal)
def test_others_are_estimators(estimator, check):
    check(estimator)


def _rows(num_states=2):
    """Letters of which the second site mostly copies the first."""
    random = np.random.default_rng(0)
    x = random.integers(num_states, size=(200, 4))
    x[:, 1] = np.where(random.random(200) < 0.7, x[:, 0], x[:, 1])
    return x


def _log_probs(energy, params, num_states, size=4):
    """All states, and their log-probabilities in float64."""
    states = all_states(size, num_states).astype(np.float32)
    energies = jax.jit(jax.vmap(energy, (None, 0)))(params, states)
    minus = -np.asarray(energies, float)
    return states, minus - np.logaddexp.reduce(minus)


MODELS = [
    (Ising(random_state=0), ising.energy, 2),
    (Hopfield(strength=1e-3, random_state=0), hopfield.energy, 2),
    (RBM(3, strength=1e-2, check=False, random_state=0), rbm.energy, 2),
    (Potts(check=False, random_state=0), potts.energy, 3),
]


@pytest.mark.parametrize(("model", "energy", "num_states"), MODELS)
def test_scores_are_log_probabilities_and_samples_follow_them(
    model, energy, num_states
):
    x = _rows(num_states)
    fitted = clone(model).fit(x)
    states, truth = _log_probs(energy, fitted.params_, num_states)
    np.testing.assert_allclose(fitted.score_samples(states), truth, atol=1e-5)
    assert np.exp(fitted.score_samples(states)).sum() == pytest.approx(1, abs=1e-5)
    assert fitted.score(x) == pytest.approx(fitted.score_samples(x).mean())
    assert fitted.log_z_stderr_ == 0
    _agree(fitted.sample(20_000, random_state=1), truth, states)


@pytest.mark.parametrize(
    ("model", "energy", "num_states"),
    [pytest.param(*MODELS[2], marks=pytest.mark.statistics), MODELS[3]],
)
def test_estimated_partition_functions_and_chains_agree_with_sums(
    model, energy, num_states, monkeypatch
):
    x = _rows(num_states)
    fitted = clone(model).fit(x)
    monkeypatch.setattr(fitted_models, "MAX_LOG2_TERMS", 0)
    annealed = clone(model).set_params(annealing_steps=100).fit(x)
    assert 0 < annealed.log_z_stderr_ < 0.1
    assert abs(annealed.log_z_ - fitted.log_z_) < 5 * annealed.log_z_stderr_
    states, truth = _log_probs(energy, fitted.params_, num_states)
    _agree(annealed.sample(5_000, random_state=1), truth, states)


def _agree(drawn, log_p, states):
    """Whether draws have the model's pair moments, in standard errors of as many."""
    drawn = np.asarray(drawn, float)
    pairs = np.einsum("ri,rj->rij", states, states).reshape(len(states), -1)
    p = np.exp(np.asarray(log_p, float))
    wanted = p @ pairs
    spread = np.sqrt(p @ (pairs - wanted) ** 2 / len(drawn))
    found = (drawn.T @ drawn / len(drawn)).ravel()
    assert np.abs((found - wanted) / spread).max() < 5


@pytest.mark.parametrize("model", [Ising(check=False), Potts(check=False)])
def test_weights_are_repetitions(model):
    x = _rows()
    counts = np.arange(len(x)) % 4
    weighted = clone(model).fit(x, sample_weight=counts)
    repeated = clone(model).fit(np.repeat(x, counts, axis=0))
    np.testing.assert_array_equal(weighted.score_samples(x), repeated.score_samples(x))
    assert not np.array_equal(
        weighted.score_samples(x), clone(model).fit(x).score_samples(x)
    )


def test_a_search_finds_the_strength_that_is_nearest_the_truth():
    matrix = np.full((6, 6), 0.4) - 0.5 * np.eye(6)
    states, truth = _log_probs(ising.energy, ising.from_matrix(matrix), 2, size=6)
    # From fewer rows, independent sites, at strength 10, are as near the truth.
    draws = np.random.default_rng(0).choice(64, 200, p=np.exp(truth))
    x = states[draws]
    strengths = [1e-6, 1e-2, 10.0]
    found = GridSearchCV(Ising(check=False), {"strength": strengths}, cv=3).fit(x)
    assert found.best_params_ == {"strength": 1e-2}
    fits = [
        Ising(strength=strength, check=False).fit(x).params_ for strength in strengths
    ]
    found = [_log_probs(ising.energy, params, 2, size=6)[1] for params in fits]
    apart = [np.exp(truth) @ (truth - log_p) for log_p in found]
    assert np.argmin(apart) == 1


def test_models_go_in_pipelines():
    x = _rows()
    grey = x + np.random.default_rng(1).uniform(-0.3, 0.3, x.shape)
    piped = make_pipeline(
        Binarizer(threshold=0.5), Ising(binarize=None, check=False)
    ).fit(grey)
    assert piped.score(grey) == Ising(check=False).fit(x).score(x)
    features = make_pipeline(clone(MODELS[2][0]), LogisticRegression())
    assert features.fit(x, x[:, 0]).score(x, x[:, 0]) > 0.9


def test_spins_are_bits_and_others_are_refused_on_request():
    x = _rows()
    bits, spins = (Ising(check=False).fit(each) for each in (x, 2 * x - 1))
    np.testing.assert_array_equal(bits.params_.coupling, spins.params_.coupling)
    assert Ising(binarize=None, check=False).fit(x).score(x) == bits.score(x)
    with pytest.raises(ValueError, match="must be 0 or 1 for Ising .* try binarize"):
        Ising(binarize=None).fit(2 * x - 1)
    with pytest.raises(ValueError, match="letters from 0 to 1 for Potts .*got 2"):
        Potts(check=False).fit(x).score(x + 1)
    with pytest.raises(ValueError, match="whole numbers"):
        Potts().fit(x / 2)


def test_transforms_recall_and_tell_hidden_means():
    patterns = np.random.default_rng(0).random((5, 32)) < 0.5
    wrong = patterns.copy()
    wrong[:, :3] ^= True
    memory = Hopfield(annealing_steps=0, check=False).fit(patterns)
    np.testing.assert_array_equal(memory.transform(wrong), patterns)
    with pytest.raises(ValueError, match="annealing_steps is 0"):
        memory.score(patterns)
    x = _rows()
    machine = RBM(3, strength=1e-2, check=False, random_state=0).fit(x)
    hidden_means = jax.jit(jax.vmap(rbm.hidden_means, (None, 0)))
    means = hidden_means(machine.params_, x.astype(float))
    np.testing.assert_allclose(machine.transform(x), means, rtol=1e-6)
    assert machine.get_feature_names_out().tolist() == ["rbm0", "rbm1", "rbm2"]


def test_two_letters_by_flow_are_the_ising_model():
    x = _rows()
    spins = Ising(strength=0, check=False).fit(x)
    letters = Potts(objective=families.SiteFlow, strength=0, check=False).fit(x)
    # Both fits end within .05 standard errors of the same minimum, and a standard error
    # changes log p by 1 / sqrt(rows) in the root mean square.
    difference = letters.score_samples(x) - spins.score_samples(x)
    assert np.sqrt(np.mean(difference**2)) < 2 * 0.05 / np.sqrt(len(x))


def test_l1_leaves_zeros_and_biases():
    x = _rows()
    x[:, 2] = np.random.default_rng(1).random(200) < 0.1
    x[:, 3] = 1
    sparse = Ising(penalty=L1, strength=0.05, check=False).fit(x)
    coupling = np.asarray(sparse.params_.coupling)
    assert coupling[0] != 0
    assert np.sum(coupling == 0) >= 4
    # Alone, a unit has its own log odds, but for what is faint.
    share = x[:, 2].mean()
    alone = np.log((1 - share) / share)
    assert float(sparse.params_.bias[2]) == pytest.approx(alone, abs=0.02)
    assert -20 < float(sparse.params_.bias[3]) < -4
    everywhere = Ising(
        penalty=lambda strength: L1(strength, weights=ising.Params(1.0, 1.0)),
        strength=0.05,
        check=False,
    ).fit(x)
    assert float(everywhere.params_.bias[2]) < alone - 0.2


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"penalty": "l1"}, "penalty must be a constructor such as L1 or L2, got 'l1'"),
        ({"objective": "mpf"}, "objective must be a constructor .* got 'mpf'"),
    ],
)
def test_names_of_classes_are_refused(asked, said):
    with pytest.raises(ValueError, match=said):
        Ising(**asked).fit(_rows())


def test_grey_values_are_told_of():
    with pytest.warns(UserWarning, match="values above binarize=0.5 were set to 1"):
        Ising(binarize=0.5).fit(_rows() + np.linspace(0, 0.1, 4))


def test_what_cannot_be_trusted_or_minimised_is_said(monkeypatch):
    monkeypatch.setattr(fitted_models, "MAX_LOG2_TERMS", 0)
    x = np.repeat(_rows()[:, :1], 8, axis=1)
    with pytest.warns(UserWarning, match="raise annealing_steps=1"):
        Ising(annealing_steps=1, check=False, random_state=0).fit(x)

    def sampled(energy):
        return PersistentDivergence(energy, HeatBath(), 10)

    with pytest.raises(ValueError, match="got PersistentDivergence, which"):
        Ising(objective=sampled).fit(x)


def test_models_are_checked_unless_otherwise_requested():
    x = _rows()
    assert Ising(random_state=0).fit(x).check_.passed
    unchecked = Ising(strength=10.0, check=False, random_state=0)
    assert unchecked.fit(x).check_ is None
    with pytest.warns(UserWarning, match="model differs from the data: .* check=False"):
        found = clone(unchecked).set_params(check=True).fit(x).check_
    assert found.worst.startswith("params.coupling")


@pytest.mark.platforms
def test_probjax_does_not_import_scikit_learn():
    code = "import sys, probjax, probjax.apps.cli; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
