"""What results say of themselves when they are printed."""

import jax
import numpy as np
import pytest

from probjax import L1, MPF, fit, fit_path, ising
from probjax.fitting.cross_validation import Validation
from probjax.fitting.path import RegularisationPath
from probjax.fitting.result import ConvergenceWarning, Fit

KEY = jax.random.key(0)
ROWS = np.random.default_rng(0).integers(0, 2, (200, 3)).astype(np.float32)
START = ising.Params(np.zeros(3, np.float32), np.zeros(3, np.float32))
MODEL = MPF(ising.energy)


def fit_of(**changes):
    fields = {
        "params": START,
        "loss": np.float32(1.5),
        "losses": np.ones(7),
        "converged": np.array(True),
        "gradient_norm": 1e-6,
        "context": None,
        "opt_state": np.arange(1000.0),
    }
    return Fit(**fields | changes)


def test_a_fit_prints_its_outcome_and_no_arrays():
    found = fit(KEY, MODEL, START, ROWS)
    lines = str(found).splitlines()
    assert lines[0] == f"Fit: converged after {len(found.losses)} steps"
    assert lines[-1] == "parameters: bias (3,), coupling (3,)"
    assert len(lines) < 8
    assert repr(found) == str(found) == f"Fit: {found.describe()}"
    assert "array" not in repr(found).lower()


def test_a_fit_that_has_not_converged_says_so():
    with pytest.warns(ConvergenceWarning):
        found = fit(KEY, MODEL, START, ROWS, steps_per_round=1)
    assert found.describe().startswith("not converged after 1 steps")


def test_fits_of_several_models_print_their_ranges():
    losses = np.array([[3.0, 2, np.inf], [3, 2, 1]])
    met, last = np.array([True, False]), np.array([2.0, 1.0])
    lines = fit_of(losses=losses, converged=met, loss=last).describe().splitlines()
    assert lines[0] == "1 of 2 fits converged, after 2 to 3 steps"
    assert lines[1] == "loss: 1 to 2"


def test_traced_and_abstract_fits_can_be_printed():
    texts = []

    def fitted(start):
        found = fit(KEY, MODEL, start, ROWS)
        texts.append(repr(found))
        return found

    shapes = jax.eval_shape(fitted, START)
    assert "loss: unknown" in texts[0]
    assert "coupling (3,)" in texts[0]
    assert "convergence: unknown" in repr(shapes)
    deleted = jax.device_put(np.float32(1))
    deleted.delete()
    assert "loss: unknown" in repr(fit_of(loss=deleted))
    assert repr(jax.tree.map(lambda leaf: None, fit_of()))


def test_a_path_and_its_validation_print_a_few_lines():
    penalty = L1(1.0, weights=ising.couplings_only(START))
    strengths = [0.5, 0.1, 0.001]
    path = fit_path(KEY, MODEL, START, ROWS, penalty=penalty, strengths=strengths)
    lines = repr(path).splitlines()
    assert lines[0] == "RegularisationPath: 3 strengths: 0.001 to 0.5"
    assert lines[2] == "converged: 3 of 3 fits"
    assert len(lines) == 4
    scores = np.array([[3.0, 1.0, 2.0], [3.5, 1.0, 2.0]])
    found = Validation(jax.device_put(scores), path)
    assert f"best: strength 0.1 (index 1), score 1, {path.num_nonzero[1]}" in str(found)
    assert len(str(found).splitlines()) == 3
    jax.eval_shape(lambda found: texts(found), found)


def texts(found):
    assert isinstance(found.path, RegularisationPath)
    assert repr(found) == "Validation: scores of 3 strengths on 2 folds"
    assert "strengths: unknown" in repr(found.path)
    return found.scores
