from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import cubic_energy, cubic_params, flat_of

from probjax import Data, natural
from probjax.natural import streamed as streamed_module
from probjax.natural.metrics import metric_operator
from probjax.natural.regularisers import as_regulariser
from probjax.trees import as_array

SIZE = 5
ENERGIES = natural.energy_scores(cubic_energy)
STRUCTURES = [
    natural.Dense(),
    natural.LowRank(),
    natural.ConjugateGradient(num_iterations=500, tolerance=1e-14),
]
REGULARISERS = [0.01, natural.Robust(0.02), natural.PseudoInverse(1e-8)]


def names(values):
    return [type(value).__name__ for value in values]


def factored(solve, damping, gradient, params, x, scores=ENERGIES, chunk_size=None):
    """The solution, and the report."""
    linear = metric_operator(scores, params, x, chunk_size=chunk_size)
    factor = solve.factor(linear, params, as_regulariser(damping))
    return factor.solve(gradient), factor.report


compiled = jax.jit(factored, static_argnames="chunk_size")


def solved(*args, **options):
    return compiled(*args, **options)[0]


def refused(*args, match):
    """While tracing: knobs are known then, and nothing is compiled."""
    with pytest.raises(ValueError, match=match):
        jax.eval_shape(lambda: factored(*args))


def problem(num_rows):
    params = cubic_params(0, SIZE)
    x = np.random.default_rng(1).random((num_rows, SIZE)) < 0.4
    gradient = jax.tree.map(lambda leaf: np.sin(7 * np.asarray(leaf)), params)
    return params, as_array(x.astype(float)), gradient


def inverse(matrix, damping):
    """By the formulas, in NumPy."""
    scale, unit = np.trace(matrix) / len(matrix), np.eye(len(matrix))
    if isinstance(damping, natural.Robust):
        square = matrix.T @ matrix + damping.epsilon * scale**2 * unit
        return np.linalg.inv(square) @ matrix.T
    if isinstance(damping, natural.PseudoInverse):
        return np.linalg.pinv(matrix, rcond=damping.cut, hermitian=True)
    return np.linalg.inv(matrix + damping * scale * unit)


@pytest.mark.parametrize("num_rows", [12, 200])
@pytest.mark.parametrize("damping", REGULARISERS, ids=names(REGULARISERS))
@pytest.mark.parametrize("solve", STRUCTURES, ids=names(STRUCTURES))
def test_structures_of_the_whole_metric_are_its_inverse(solve, damping, num_rows, x64):
    """With fewer rows than the 35 parameters, and with more."""
    params, x, gradient = problem(num_rows)
    if isinstance(solve, natural.ConjugateGradient) and not isinstance(
        damping, float | natural.Robust
    ):
        told = "compute no eigenvalues, got Pseudo"
        refused(solve, damping, gradient, params, x, match=told)
        return
    found = solved(solve, damping, gradient, params, x)
    metric = np.asarray(natural.metric(ENERGIES, params, x))
    truth = inverse(metric, damping) @ flat_of(gradient)
    error = np.abs(flat_of(found) - truth).max() / np.abs(truth).max()
    assert error < 1e-9


@pytest.mark.parametrize("solve", STRUCTURES, ids=names(STRUCTURES))
def test_they_agree_in_single_precision_too(solve):
    params, x, gradient = problem(12)
    found = flat_of(solved(solve, 1e-2, gradient, params, x))
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, float), (gradient, params, x))
        truth = flat_of(solved(natural.Dense(), 1e-2, *wide))
    assert found.dtype == np.float32
    assert truth.dtype == np.float64
    # A metric of condition 500 or so costs two or three digits where it is formed.
    assert np.abs(found - truth).max() < 5e-5 * np.abs(truth).max()


@pytest.mark.parametrize("chunk_size", [1, 5, 12])
@pytest.mark.parametrize("solve", STRUCTURES, ids=names(STRUCTURES))
def test_scores_need_not_be_held(solve, chunk_size, x64, monkeypatch):
    params, x, gradient = problem(12)
    truth = solved(natural.Dense(), 0.01, gradient, params, x)
    monkeypatch.setattr(streamed_module, "MAX_ENTRIES", 0)
    # Compiled anew, as the limit is part of the program.
    found, _ = jax.jit(partial(factored, solve, 0.01, chunk_size=chunk_size))(
        gradient, params, x
    )
    chex.assert_trees_all_close(found, truth, rtol=1e-9)


def test_low_rank_never_makes_a_matrix_of_the_parameters():
    """Nor, if it is not to be held, the scores of all rows."""
    params, x, gradient = problem(12)

    def shapes(limit, chunk_size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streamed_module, "MAX_ENTRIES", limit)
            run = partial(factored, natural.LowRank(), 0.01, chunk_size=chunk_size)
            program = jax.make_jaxpr(run)(gradient, params, x)
        found = []

        def visit(jaxpr):
            for equation in jaxpr.eqns:
                found.extend(v.aval.shape for v in equation.outvars)
                for inner in jax.tree.leaves(
                    list(equation.params.values()),
                    is_leaf=lambda leaf: hasattr(leaf, "eqns"),
                ):
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        visit(inner)

        visit(program.jaxpr)
        return found

    sizes = [np.prod(shape) for shape in shapes(2**27, None)]
    assert max(sizes) == 12 * 30, "the scores of the larger leaf"
    sizes = [np.prod(shape) for shape in shapes(0, 2)]
    assert max(sizes) < 12 * 30


def test_outputs_of_regressions_are_rows(x64):
    def predict(params, x):
        return jnp.tanh(params @ x)

    generator = np.random.default_rng(0)
    params, x = generator.normal(size=(3, SIZE)), generator.normal(size=(2, SIZE))
    scores = natural.regression_scores(predict)
    truth = solved(natural.Dense(), 0.01, params, params, x, scores)
    for solve in STRUCTURES[1:]:
        for chunk_size in (None, 1):
            found = solved(
                solve, 0.01, params, params, x, scores, chunk_size=chunk_size
            )
            chex.assert_trees_all_close(found, truth, rtol=1e-8)


def test_blocks_are_the_metric_of_some_parameters(x64):
    params, x, gradient = problem(200)
    metric = np.asarray(natural.metric(ENERGIES, params, x))
    flat = flat_of(gradient)
    found = flat_of(solved(natural.BlockDiagonal(), 0.01, gradient, params, x))
    for part in (slice(0, 30), slice(30, 35)):
        truth = inverse(metric[part, part], 0.01) @ flat[part]
        np.testing.assert_allclose(found[part], truth, rtol=1e-9)
    whole = solved(natural.Dense(), 0.01, gradient, params, x)
    for groups in ("all", ("all", "all")):
        found = solved(natural.BlockDiagonal(groups), 0.01, gradient, params, x)
        chex.assert_trees_all_close(found, whole, rtol=1e-12)


@pytest.mark.parametrize("damping", REGULARISERS, ids=names(REGULARISERS))
def test_the_diagonal_is_inverted_entry_by_entry(damping, x64):
    params, x, gradient = problem(200)
    metric = np.diag(np.diag(natural.metric(ENERGIES, params, x)))
    truth = inverse(metric, damping) @ flat_of(gradient)
    found = solved(natural.Diagonal(), damping, gradient, params, x)
    np.testing.assert_allclose(flat_of(found), truth, rtol=1e-10)


def test_a_metric_given_as_a_matrix_has_structures_too(x64):
    params, x, gradient = problem(200)
    known = natural.Metric(lambda params, data: natural.metric(ENERGIES, params, data))
    for solve in (
        STRUCTURES[0],
        STRUCTURES[2],
        natural.BlockDiagonal(),
        natural.Diagonal(),
    ):
        chex.assert_trees_all_close(
            solved(solve, 0.01, gradient, params, x, known),
            solved(solve, 0.01, gradient, params, x),
            rtol=1e-9,
        )
    told = r"a metric that is a matrix; try Dense\(\)"
    refused(natural.LowRank(), 0.01, gradient, params, x, known, match=told)


# Metrics that tests give as the rows of their data.
GIVEN = natural.Metric(lambda params, data: data.x)


def solved_by(matrix, damping, gradient):
    matrix, gradient = np.float32(matrix), np.float32(gradient)
    return compiled(natural.Dense(), damping, gradient, gradient, matrix, GIVEN)


def test_reports_are_of_rank_and_condition():
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    matrix = (turn * np.array([1, 2, 5, 100])) @ turn.T
    _, report = solved_by(matrix, 0.0, np.ones(4))
    assert report.rank == 4
    assert 10 < report.condition <= 101, "Cholesky factors tell it roughly"
    _, report = solved_by(matrix, natural.PseudoInverse(0.04), np.ones(4))
    assert report.rank == 2
    np.testing.assert_allclose(report.condition, 20, rtol=1e-4)


def test_where_factors_do_not_exist_eigenvalues_serve():
    """A metric that rounding has made slightly negative."""
    direction = np.array([1.0, 2, 3], np.float32)
    matrix = np.outer(direction, direction) - 1e-6 * np.eye(3, dtype=np.float32)
    found, _ = solved_by(matrix, 1e-9, direction)
    np.testing.assert_allclose(found, direction / 14, rtol=1e-3)


ROWS = natural.Given(lambda params, data: data.x, centred=False)


@pytest.mark.parametrize("damping", [1e-2, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("solve", STRUCTURES[:2], ids=names(STRUCTURES[:2]))
def test_little_damping_in_single_precision_does_no_harm(solve, damping):
    """To a gradient that is made of scores, as that of a likelihood is."""
    rows = np.random.default_rng(0).normal(size=(20, 200)).astype(np.float32)
    wide = np.asarray(rows, float)
    metric, gradient = wide.T @ wide / 20, wide.T @ np.linspace(-1, 1, 20) / 20
    damped = metric + damping * np.trace(metric) / 200 * np.eye(200)
    truth = np.linalg.solve(damped, gradient)
    start = np.zeros(200, np.float32)
    found, report = compiled(solve, damping, np.float32(gradient), start, rows, ROWS)
    condition = np.linalg.cond(damped)
    # Rounding of the gradient itself is magnified by as much, until it is left out.
    assert (
        np.abs(found - truth).max() < min(0.1, 1e-6 * condition) * np.abs(truth).max()
    )
    if damping == 1e-2 and isinstance(solve, natural.LowRank):
        assert condition / 5 < report.condition < 5 * condition


@pytest.mark.parametrize(
    "solve",
    [*STRUCTURES, natural.BlockDiagonal(), natural.Diagonal()],
    ids=names([*STRUCTURES, natural.BlockDiagonal(), natural.Diagonal()]),
)
def test_nothing_moves_without_a_metric_and_nan_is_seen(solve):
    params, x, gradient = problem(12)
    # Of a single row that counts, the scores are their own mean.
    single = Data(x, np.float32(np.arange(12) == 3))
    still = solved(solve, 0.01, gradient, params, single)
    np.testing.assert_array_equal(flat_of(still), np.zeros(35))
    broken = np.array(params[0])
    broken[0, 0] = np.nan
    every = Data(x, np.ones(12, np.float32))
    lost = solved(solve, 0.01, gradient, (broken, params[1]), every)
    assert np.isnan(flat_of(lost)).any()


def test_a_singular_metric_without_damping_is_refused():
    matrix, ones = np.ones((3, 3), np.float32), np.ones(3, np.float32)
    with pytest.raises(
        ValueError, match="singular without .* got rank 1 for 3 parameters"
    ):
        factored(natural.Dense(), 0.0, ones, ones, matrix, GIVEN)
    # Compiled code cannot refuse: it reports, and leaves the other directions alone.
    found, report = solved_by(matrix, 0.0, [1, 1, 4])
    assert report.rank == 1
    np.testing.assert_allclose(found, 2 / 3, rtol=1e-5)
    found, _ = solved_by(matrix, natural.PseudoInverse(), ones)
    np.testing.assert_allclose(found, 1 / 3, rtol=1e-5)


def test_bad_input_is_refused_in_a_sentence():
    params, x, gradient = problem(12)
    given = gradient, params, x
    for solve in (natural.LowRank(), natural.ConjugateGradient()):
        refused(solve, 0.0, *given, match=r"damping must be above 0 for \w+\(\)")
    ones, zeros = np.ones(3, np.float32), np.zeros((3, 3), np.float32)
    with pytest.raises(ValueError, match="got rank 0 for 3 parameters"):
        factored(natural.Diagonal(), 0.0, ones, ones, zeros, GIVEN)
    many = gradient, params, np.zeros((20_000, SIZE))
    told = r"LowRank\(\) must have .* got 20,000; try"
    refused(natural.LowRank(), 0.1, *many, match=told)
    with pytest.raises(ValueError, match="damping must be 0 or above, got -1"):
        natural.Ridge(-1)
    with pytest.raises(ValueError, match="epsilon must be above 0, got 0"):
        natural.Robust(0)
    with pytest.raises(ValueError, match="cut must be above 0"):
        natural.PseudoInverse(0)
    with pytest.raises(ValueError, match="num_iterations"):
        natural.ConjugateGradient(num_iterations=0)
    groups = natural.BlockDiagonal(("a", "b", "c"))
    refused(groups, 0.01, *given, match="groups must be a tree like params")
    wide = np.zeros(20_000), np.zeros(20_000), x, natural.loss_scores(_first)
    told = r"16,384 parameters, got 20,000; try LowRank\(\)"
    refused(natural.Dense(), 0.01, *wide, match=told)


def _first(params, x):
    return params[0] * x[0]
