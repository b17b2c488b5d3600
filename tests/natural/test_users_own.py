"""Regularisers and structures that a user writes, with the required methods only."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from small_models import all_states, drawn_from, flat_of, random_ising

from probjax import MPF, Data, fit, ising, natural
from probjax.fitting.loss import loss_over_rows
from probjax.natural.metrics import metric_operator
from probjax.natural.regularisers import as_regulariser
from probjax.recipe import recipe
from probjax.trees import as_array

ENERGIES = natural.energy_scores(ising.energy)
natural_gradient = partial(natural.natural_gradient, ENERGIES)
WHOLE = [
    natural.Dense(),
    natural.LowRank(),
    natural.ConjugateGradient(num_iterations=500, tolerance=1e-14),
]


@recipe
class RootInverse(natural.Regulariser):
    """Not 0 for an eigenvalue of 0, and not the inverse of a shifted metric."""

    def inverse(self, values, scale):
        return (values * scale + scale**2) ** -0.5


@recipe
class Shifted(natural.Regulariser):
    """A ridge, with the method that makes all algorithms available."""

    share: float = 0.01

    def inverse(self, values, scale):
        return 1 / (values + self.shift(scale))

    def shift(self, scale):
        return jnp.asarray(self.share, scale.dtype) * scale


@recipe
class Scaled(natural.Factor):
    """A multiple of the identity."""

    inverse: jax.Array
    shift: jax.Array | None

    def solve(self, tree):
        return jax.tree.map(lambda leaf: self.inverse * leaf, tree)

    def damped(self, tree):
        return jax.tree.map(lambda leaf: self.shift * leaf, tree)


@recipe
class MeanDiagonal(natural.Structure):
    """The mean of the diagonal of a metric, in place of all of it."""

    def factor(self, linear, params, regulariser):
        scale = ravel_pytree(linear.diagonal())[0].mean()
        inverse = regulariser.inverse(scale[None], scale)[0]
        return Scaled(inverse, regulariser.shift(scale))


class HasInverse:
    """Does not inherit from `Regulariser`."""

    inverse = RootInverse.inverse


class HasFactor:
    """Does not inherit from `Structure`."""

    factor = MeanDiagonal.factor


def root_inverse(metric, power=-0.5):
    """`RootInverse` of a matrix, in NumPy."""
    values, vectors = np.linalg.eigh(metric)
    filtered = (np.abs(values) * values.mean() + values.mean() ** 2) ** power
    return (vectors * filtered) @ vectors.T


def problem(num_rows=200):
    params = random_ising(0, 4, scale=0.5)
    return params, drawn_from(0, params, num_rows).astype(float)


def sines(params):
    return jax.tree.map(lambda leaf: np.sin(np.asarray(leaf)), params)


@jax.jit
def solved(solve, damping, gradient, params, x):
    factor = solve.factor(
        metric_operator(ENERGIES, params, x), params, as_regulariser(damping)
    )
    return factor.solve(gradient)


def three_steps(fit_key, params, x, **options):
    optimizer = optax.chain(natural_gradient(**options), optax.sgd(0.1))
    found = fit(
        fit_key, MPF(ising.energy), params, x, optimizer=optimizer, steps_per_round=3
    )
    return flat_of(found.params)


def unravelled(flat):
    return ising.Params(flat[:4], flat[4:])


@jax.jit
def slope(flat, x):
    """Gradient of the loss, and the metric."""
    params = unravelled(flat)
    _, gradient = loss_over_rows(MPF(ising.energy), params, Data(x), (), chunk_size=200)
    return ravel_pytree(gradient)[0], natural.metric(ENERGIES, params, x)


@pytest.mark.parametrize("num_rows", [6, 200])
def test_a_regulariser_is_a_function_of_eigenvalues(num_rows, x64):
    """With fewer rows than the 10 parameters, and with more."""
    params, x = problem(num_rows)
    gradient = sines(params)
    metric = natural.metric(ENERGIES, params, x)
    truth = root_inverse(metric) @ flat_of(gradient)
    for solve in WHOLE[:2]:
        found = solved(solve, RootInverse(), gradient, params, x)
        np.testing.assert_allclose(flat_of(found), truth, rtol=1e-8)
    with pytest.raises(ValueError, match="compute no eigenvalues, got RootInverse"):
        solved(WHOLE[2], RootInverse(), gradient, params, x)


def test_a_shift_makes_all_algorithms_available(key, x64):
    params, x = problem(6)
    gradient = sines(params)
    for solve in [*WHOLE, natural.BlockDiagonal(), natural.Diagonal()]:
        chex.assert_trees_all_close(
            solved(solve, Shifted(0.02), gradient, params, x),
            solved(solve, 0.02, gradient, params, x),
            rtol=1e-9,
        )
    momentum = partial(three_steps, key, params, x, momentum=0.5)
    found = momentum(damping=Shifted(0.02))
    np.testing.assert_allclose(found, momentum(damping=0.02), rtol=1e-9)


def test_fits_with_a_regulariser(key, x64):
    params, x = problem()
    flat = flat_of(params)
    for _ in range(3):
        gradient, metric = map(np.asarray, slope(flat, x))
        flat = flat - 0.1 * root_inverse(metric) @ gradient
    for solve in WHOLE[:2]:
        found = three_steps(key, params, x, damping=RootInverse(), solve=solve)
        np.testing.assert_allclose(found, flat, rtol=1e-8)


def test_fits_with_a_structure(key, x64):
    params, x = problem()
    flat = flat_of(params)
    before = np.zeros_like(flat)
    for _ in range(3):
        gradient, metric = map(np.asarray, slope(flat, x))
        scale = np.diag(metric).mean()
        before = (gradient + 0.5 * 0.1 * scale * before) / (1.1 * scale)
        flat = flat - 0.1 * before
    run = partial(three_steps, key, params, x, solve=MeanDiagonal())
    np.testing.assert_allclose(run(damping=0.1, momentum=0.5), flat, rtol=1e-9)


def test_a_structure_serves_several_steps(key, x64):
    """With the metric of the model's own states, as that of the data is constant."""
    params, x = problem()
    flat = flat_of(params)
    own = natural.states_of(ising.energy)

    @jax.jit
    def own_metric(flat):
        here = unravelled(flat)
        return natural.metric(ENERGIES, here, own(key, here, Data(x)))

    for step in range(3):
        gradient, _ = slope(flat, x)
        if step != 1:
            scale = np.diag(own_metric(flat)).mean()
        flat = flat - 0.1 * np.asarray(gradient) / (2**0.5 * scale)
    options = dict(damping=RootInverse(), solve=MeanDiagonal(), rows=own, key=key)
    kept = three_steps(key, params, x, every=2, **options)
    np.testing.assert_allclose(kept, flat, rtol=1e-9)
    fresh = three_steps(key, params, x, **options)
    assert np.abs(fresh - kept).max() > 1e-5


def test_the_report_of_a_factor_is_unknown_by_default(x64):
    params = jax.tree.map(np.float32, random_ising(0, 4))
    transform = natural_gradient(solve=MeanDiagonal())

    @jax.jit
    def states():
        start = transform.init(params)
        return start, transform.update(params, start, params, data=all_states(4))[1]

    start, state = states()
    assert state.report.rank == 0
    assert state.report.condition == 0
    chex.assert_trees_all_equal_shapes_and_dtypes(state, start)


def test_a_regulariser_whitens(x64):
    params, x = problem()
    whitened = jax.jit(natural.whitened)
    chart = whitened(ENERGIES, params, x, damping=RootInverse())
    truth = root_inverse(natural.metric(ENERGIES, params, x), power=-0.25)
    np.testing.assert_allclose(chart.inverse_matrix, truth, rtol=1e-8, atol=1e-12)


def test_required_methods_must_be_implemented():
    for interface in (natural.Regulariser, natural.Structure, natural.Factor):
        with pytest.raises(TypeError, match="abstract"):
            type("Empty", (interface,), {})()


@pytest.mark.parametrize(
    "damping", [HasInverse(), natural.Ridge, "0.1", None, np.ones(2)]
)
def test_only_numbers_and_regularisers_are_damping(damping):
    params, x = problem()
    for run in (
        natural_gradient,
        partial(natural.whitened, ENERGIES, params, x),
        partial(natural.whitening, x),
    ):
        with pytest.raises(ValueError, match="damping must be a number or .*; try"):
            jax.eval_shape(partial(run, damping=damping))


def test_any_number_is_damping():
    for number in (1, 0.5, np.float32(0.5), np.array(0.5), as_array(0.5)):
        assert as_regulariser(number) == natural.Ridge(number)


@pytest.mark.parametrize("solve", [HasFactor(), natural.Dense, MeanDiagonal, None])
def test_only_structures_solve(solve):
    with pytest.raises(ValueError, match="solve must be .* natural.Structure, got .*;"):
        natural_gradient(solve=solve)


def test_what_a_regulariser_does_not_offer_is_refused():
    with pytest.raises(ValueError, match="with momentum, .* got RootInverse"):
        natural_gradient(damping=RootInverse(), momentum=0.5)
