"""References of `python -m benchmarks defaults`, compared with the library."""

from functools import partial

import jax
import numpy as np
import pytest

from benchmarks import defaults, defaults_numpy
from benchmarks.defaults_tasks import family, machine, pairwise
from benchmarks.harness import Options
from probjax import loss

QUICK = Options(quick=True, data=None)


def bits(num_rows=60, size=4):
    return np.random.default_rng(0).integers(0, 2, (num_rows, size)).astype(np.float32)


TASKS = {
    "MPF": partial(pairwise, "bits", "MPF", bits(), strength=0.01),
    "PL": partial(pairwise, "bits", "PL", bits(), strength=0.0),
    "Potts": partial(family, QUICK),
    "RBM": partial(machine, QUICK),
}


@pytest.mark.platforms
@pytest.mark.parametrize("name", TASKS)
def test_the_numpy_loss_is_that_of_the_library_and_has_its_gradient(name):
    task, rng = TASKS[name](), np.random.default_rng(1)
    moved = [0.1 * rng.normal(size=v.shape) for v in jax.tree.leaves(task.start)]
    leaves = [v.astype(np.float32) for v in moved]
    params = jax.tree.unflatten(jax.tree.structure(task.start), leaves)
    value, gradient = task.reference(task.vector(params))
    expected = float(loss(jax.random.key(0), task.objective, params, task.data))
    if task.penalty is not None:
        expected += float(task.penalty.value(params))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    point = task.vector(params)
    along = rng.normal(size=len(point))
    step = 1e-5 * along
    slope = task.reference(point + step)[0] - task.reference(point - step)[0]
    np.testing.assert_allclose(gradient @ along, slope / 2e-5, rtol=1e-6)


@pytest.mark.parametrize("kind", ["MPF", "PL"])
def test_curvature_is_the_derivative_of_the_gradient(kind):
    x, point = bits(), np.random.default_rng(1).normal(0, 0.2, 10)
    reference = defaults_numpy.pairwise(x, kind, strength=0.01, dtype=np.float64)
    found = defaults_numpy.pairwise_curvature(
        x, kind, point, strength=0.01, variance=True
    )
    steps = 1e-5 * np.eye(len(point))
    slopes = [reference(point + s)[1] - reference(point - s)[1] for s in steps]
    np.testing.assert_allclose(found.hessian, np.array(slopes) / 2e-5, atol=1e-8)
    minimum = defaults_numpy.newton(x, kind, point, strength=0.01)
    np.testing.assert_allclose(reference(minimum)[1], 0, atol=1e-6)


@pytest.mark.parametrize("kind", ["MPF", "PL"])
def test_variance_is_that_of_the_gradient_when_rows_are_left_out(kind):
    x, point = bits(), np.random.default_rng(1).normal(0, 0.2, 10)
    variance = defaults_numpy.pairwise_curvature(
        x, kind, point, strength=0.0, variance=True
    ).variance
    make = partial(defaults_numpy.pairwise, kind=kind, strength=0.0, dtype=np.float64)
    without = [make(np.delete(x, i, 0))(point)[1] for i in range(len(x))]
    # Leaving row r out moves the gradient by -u_r / (rows - 1).
    jackknife = (len(x) - 1) ** 2 * np.cov(np.array(without).T, bias=True)
    np.testing.assert_allclose(variance, jackknife, rtol=0.1, atol=0.01)


def test_a_trace_returns_the_first_point_that_reaches_the_target():
    trace = defaults.Trace(lambda point: float(point[0]), target=3.5)
    for step in range(1, 9):
        trace.add(defaults.Reached(step, step, np.array([9.0 - step])))
    reached = trace.first()
    assert reached is not None
    assert reached.steps == 6
    trace.target = 0.5
    assert trace.first() is None


def test_verdicts_mark_what_does_not_hold():
    said = defaults.verdicts(1.5, 1.0, "")
    assert said == "NOT time of NumPy x 1.0, evaluations x 1.1"
