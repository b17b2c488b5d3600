from functools import partial

import jax
import numpy as np
import pytest
from small_models import all_states, drawn_from, log_probs_of, matrix_of

from probjax import Data, ising
from probjax.models.ising.mean_field import mean_field, tap
from probjax.trees import as_array

SIZE = 5


def truth(scale):
    """Couplings of a given size, fields that stay."""
    generator = np.random.default_rng(0)
    coupling = scale * generator.normal(size=SIZE * (SIZE - 1) // 2)
    return ising.Params(as_array(generator.normal(size=SIZE)), as_array(coupling))


def error(estimate, scale):
    params = truth(scale)
    found = jax.jit(estimate)(Data(all_states(SIZE), np.exp(log_probs_of(params))))
    return matrix_of(found) - matrix_of(params)


@pytest.mark.parametrize(("estimate", "order"), [(mean_field, 2), (tap, 3)])
def test_errors_are_of_their_order_in_the_couplings(estimate, order, x64):
    """Under exact moments, halving the couplings divides them by 2^order."""
    large, small = error(estimate, 0.02), error(estimate, 0.01)
    off = ~np.eye(SIZE, dtype=bool)
    for part in (off, ~off):
        ratio = np.abs(large[part]).max() / np.abs(small[part]).max()
        assert abs(np.log2(ratio) - order) < 0.2
    assert np.abs(small).max() < 1e-3


def test_the_inverse_is_the_filter_of_eigenvalues(x64):
    from probjax.models.ising.mean_field import _susceptibility

    x = np.random.default_rng(0).binomial(1, 0.4, (30, 4)).astype(float)
    _, found = jax.jit(_susceptibility)(x, np.ones(30), 0.01)
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    expected = vectors @ np.diag(values / (values**2 + 0.01)) @ vectors.T
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_strong_couplings_give_finite_numbers():
    x = drawn_from(0, truth(1.0), 5000)
    for estimate in (mean_field, tap):
        for damping in (0.0, 1e-3):
            found = matrix_of(jax.jit(partial(estimate, damping=damping))(x))
            assert np.isfinite(found).all()


def test_units_that_never_change_are_refused():
    with pytest.raises(ValueError, match="every unit must be on in some rows"):
        tap(np.array([[0, 1], [1, 1]]))
    with pytest.raises(ValueError, match="damping must not be negative, got -1"):
        mean_field(np.array([[0, 1], [1, 0]]), damping=-1)


def test_small_eigenvalues_count_in_single_precision():
    """Strong correlations: the inverse is that of double precision."""
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.normal(size=(4000, 24)), axis=1)  # neighbours nearly alike
    x = (walk > 0).astype(np.float32)
    covariance = np.cov(x.astype(float).T, bias=True)
    values = np.linalg.eigvalsh(covariance)
    assert values[0] < 0.01 * values[-1]
    expected = np.linalg.inv(covariance) / 2
    off = ~np.eye(24, dtype=bool)
    found = matrix_of(mean_field(x))
    np.testing.assert_allclose(found[off], expected[off], rtol=1e-4, atol=2e-4)
