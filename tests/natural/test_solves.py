from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small_models import cubic_energy, cubic_params

from probjax import natural
from probjax.natural import streamed as streamed_module
from probjax.natural.metrics import linearised
from probjax.natural.regularisers import as_regulariser

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


def solved(solve, damping, gradient, params, x, scores=ENERGIES, chunk_size=None):
    linear = linearised(scores, params, x, chunk_size=chunk_size)
    return solve.factor(linear, params, as_regulariser(damping)).solve(gradient)


def problem(key, num_rows):
    params = cubic_params(0, SIZE)
    x = jax.random.bernoulli(key, 0.4, (num_rows, SIZE)).astype(float)
    gradient = jax.tree.map(lambda leaf: jnp.sin(7 * leaf), params)
    return params, x, gradient


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
def test_structures_of_the_whole_metric_are_its_inverse(
    solve, damping, num_rows, key, x64
):
    """With fewer rows than the 35 parameters, and with more."""
    params, x, gradient = problem(key, num_rows)
    if isinstance(solve, natural.ConjugateGradient) and not isinstance(
        damping, float | natural.Robust
    ):
        with pytest.raises(ValueError, match="compute no eigenvalues, got Pseudo"):
            solved(solve, damping, gradient, params, x)
        return
    found = solved(solve, damping, gradient, params, x)
    metric = np.asarray(natural.metric(ENERGIES, params, x))
    truth = inverse(metric, damping) @ ravel_pytree(gradient)[0]
    error = np.abs(ravel_pytree(found)[0] - truth).max() / np.abs(truth).max()
    assert error < 1e-9


@pytest.mark.parametrize("solve", STRUCTURES, ids=names(STRUCTURES))
def test_they_agree_in_single_precision_too(solve, key):
    params, x, gradient = problem(key, 12)
    found = np.asarray(ravel_pytree(solved(solve, 1e-2, gradient, params, x))[0])
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: leaf.astype(float), (gradient, params, x))
        truth = np.asarray(ravel_pytree(solved(natural.Dense(), 1e-2, *wide))[0])
    # A metric of condition 500 or so costs two or three digits where it is formed.
    assert np.abs(found - truth).max() < 5e-5 * np.abs(truth).max()


@pytest.mark.parametrize("chunk_size", [1, 5, 12])
@pytest.mark.parametrize("solve", STRUCTURES, ids=names(STRUCTURES))
def test_scores_need_not_be_held(solve, chunk_size, key, x64, monkeypatch):
    params, x, gradient = problem(key, 12)
    truth = solved(natural.Dense(), 0.01, gradient, params, x)
    monkeypatch.setattr(streamed_module, "MOST_ENTRIES", 0)
    found = solved(solve, 0.01, gradient, params, x, chunk_size=chunk_size)
    chex.assert_trees_all_close(found, truth, rtol=1e-9)


def test_low_rank_never_makes_a_matrix_of_the_parameters(key):
    """Nor, if it is not to be held, the scores of all rows."""
    params, x, gradient = problem(key, 12)

    def shapes(limit, chunk_size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streamed_module, "MOST_ENTRIES", limit)
            run = partial(solved, natural.LowRank(), 0.01, chunk_size=chunk_size)
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


def test_outputs_of_regressions_are_rows(key, x64):
    def predict(params, x):
        return jnp.tanh(params @ x)

    params = jax.random.normal(key, (3, SIZE))
    x = jax.random.normal(key, (2, SIZE))
    scores = natural.regression_scores(predict)
    truth = solved(natural.Dense(), 0.01, params, params, x, scores)
    for solve in STRUCTURES[1:]:
        for chunk_size in (None, 1):
            found = solved(solve, 0.01, params, params, x, scores, chunk_size)
            chex.assert_trees_all_close(found, truth, rtol=1e-8)


def test_blocks_are_the_metric_of_some_parameters(key, x64):
    params, x, gradient = problem(key, 50)
    metric = np.asarray(natural.metric(ENERGIES, params, x))
    flat = ravel_pytree(gradient)[0]
    found = ravel_pytree(solved(natural.Blocks(), 0.01, gradient, params, x))[0]
    for part in (slice(0, 30), slice(30, 35)):
        truth = inverse(metric[part, part], 0.01) @ flat[part]
        np.testing.assert_allclose(found[part], truth, rtol=1e-9)
    whole = solved(natural.Dense(), 0.01, gradient, params, x)
    for groups in ("all", ("all", "all")):
        found = solved(natural.Blocks(groups), 0.01, gradient, params, x)
        chex.assert_trees_all_close(found, whole, rtol=1e-12)


@pytest.mark.parametrize("damping", REGULARISERS, ids=names(REGULARISERS))
def test_the_diagonal_is_inverted_entry_by_entry(damping, key, x64):
    params, x, gradient = problem(key, 50)
    metric = np.diag(np.diag(natural.metric(ENERGIES, params, x)))
    truth = inverse(metric, damping) @ ravel_pytree(gradient)[0]
    found = solved(natural.Diagonal(), damping, gradient, params, x)
    np.testing.assert_allclose(ravel_pytree(found)[0], truth, rtol=1e-10)


def test_a_metric_given_as_a_matrix_has_structures_too(key, x64):
    params, x, gradient = problem(key, 50)
    known = natural.Metric(lambda params, data: natural.metric(ENERGIES, params, data))
    for solve in (STRUCTURES[0], STRUCTURES[2], natural.Blocks(), natural.Diagonal()):
        chex.assert_trees_all_close(
            solved(solve, 0.01, gradient, params, x, known),
            solved(solve, 0.01, gradient, params, x),
            rtol=1e-9,
        )
    with pytest.raises(ValueError, match=r"a metric that is a matrix; try Dense\(\)"):
        solved(natural.LowRank(), 0.01, gradient, params, x, known)


def factor_of(matrix, damping):
    params = jnp.zeros(len(matrix))
    known = natural.Metric(lambda params, data: jnp.asarray(matrix))
    linear = linearised(known, params, jnp.zeros((1, 1)))
    return natural.Dense().factor(linear, params, as_regulariser(damping))


def test_reports_are_of_rank_and_condition():
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    matrix = (turn * np.array([1, 2, 5, 100])) @ turn.T
    report = factor_of(matrix, 0.0).report
    assert report.rank == 4
    assert 10 < report.condition <= 101, "Cholesky factors tell it roughly"
    report = factor_of(matrix, natural.PseudoInverse(0.04)).report
    assert report.rank == 2
    np.testing.assert_allclose(report.condition, 20, rtol=1e-4)


def test_where_factors_do_not_exist_eigenvalues_serve():
    """A metric that rounding has made slightly negative."""
    direction = np.array([1.0, 2, 3], np.float32)
    matrix = np.outer(direction, direction) - 1e-6 * np.eye(3, dtype=np.float32)
    factor = factor_of(matrix, 1e-9)
    found = factor.solve(jnp.asarray(direction))
    np.testing.assert_allclose(found, direction / 14, rtol=1e-3)


@pytest.mark.parametrize("damping", [1e-2, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("solve", STRUCTURES[:2], ids=names(STRUCTURES[:2]))
def test_little_damping_in_single_precision_does_no_harm(solve, damping, key):
    """To a gradient that is made of scores, as that of a likelihood is."""
    rows = jax.random.normal(key, (20, 200))
    given = natural.Given(lambda params, data: data.x, centred=False)
    params = jnp.zeros(200)
    linear = linearised(given, params, rows)
    factor = solve.factor(linear, params, as_regulariser(damping))
    wide = np.asarray(rows, float)
    metric, gradient = wide.T @ wide / 20, wide.T @ np.linspace(-1, 1, 20) / 20
    damped = metric + damping * np.trace(metric) / 200 * np.eye(200)
    truth = np.linalg.solve(damped, gradient)
    found = np.asarray(factor.solve(jnp.asarray(gradient, np.float32)))
    condition = np.linalg.cond(damped)
    # Rounding of the gradient itself is magnified by as much, until it is left out.
    assert (
        np.abs(found - truth).max() < min(0.1, 1e-6 * condition) * np.abs(truth).max()
    )
    if damping == 1e-2 and isinstance(solve, natural.LowRank):
        assert condition / 5 < factor.report.condition < 5 * condition


@pytest.mark.parametrize(
    "solve",
    [*STRUCTURES, natural.Blocks(), natural.Diagonal()],
    ids=names([*STRUCTURES, natural.Blocks(), natural.Diagonal()]),
)
def test_nothing_moves_without_a_metric_and_nan_is_seen(solve, key):
    params, x, gradient = problem(key, 12)
    still = solved(solve, 0.01, gradient, params, jnp.ones((1, SIZE)))
    chex.assert_trees_all_equal(still, jax.tree.map(jnp.zeros_like, params))
    broken = (params[0].at[0, 0].set(jnp.nan), params[1])
    lost = solved(solve, 0.01, gradient, broken, x)
    assert jnp.isnan(ravel_pytree(lost)[0]).any()


def test_a_singular_metric_without_damping_is_refused():
    matrix = np.ones((3, 3), np.float32)
    with pytest.raises(
        ValueError, match="singular, of rank 1 in 3 parameters, and has"
    ):
        factor_of(matrix, 0.0)
    # Compiled code cannot refuse: it reports, and leaves the other directions alone.
    factor = jax.jit(lambda: factor_of(matrix, 0.0))()
    assert factor.report.rank == 1
    np.testing.assert_allclose(factor.solve(jnp.array([1.0, 1, 4])), 2 / 3, rtol=1e-5)
    np.testing.assert_allclose(
        factor_of(matrix, natural.PseudoInverse()).solve(jnp.ones(3)), 1 / 3, rtol=1e-5
    )


def test_bad_input_is_refused_in_a_sentence(key):
    params, x, gradient = problem(key, 12)
    for solve in (natural.LowRank(), natural.ConjugateGradient()):
        with pytest.raises(ValueError, match=r"damping must be above 0 for \w+\(\)"):
            solved(solve, 0.0, gradient, params, x)
    with pytest.raises(ValueError, match="singular, of rank 0 in 35 parameters"):
        solved(natural.Diagonal(), 0.0, gradient, params, 0 * x)
    many = jnp.zeros((20_000, SIZE))
    with pytest.raises(ValueError, match=r"LowRank\(\) must have .* got 20,000; try"):
        solved(natural.LowRank(), 0.1, gradient, params, many)
    with pytest.raises(ValueError, match="damping must be 0 or above, got -1"):
        natural.Ridge(-1)
    with pytest.raises(ValueError, match="epsilon must be above 0, got 0"):
        natural.Robust(0)
    with pytest.raises(ValueError, match="cut must be above 0"):
        natural.PseudoInverse(0)
    with pytest.raises(ValueError, match="num_iterations"):
        natural.ConjugateGradient(num_iterations=0)
    with pytest.raises(ValueError, match="groups must be a tree like params"):
        solved(natural.Blocks(("a", "b", "c")), 0.01, gradient, params, x)
    wide = jnp.zeros(20_000)
    with pytest.raises(ValueError, match=r"20,000 parameters .* use LowRank\(\)"):
        solved(natural.Dense(), 0.01, wide, wide, x, natural.loss_scores(_first))


def _first(params, x):
    return params[0] * x[0]
