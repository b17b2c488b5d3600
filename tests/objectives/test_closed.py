import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import Data, exact, ising
from probjax.objectives.closed import mean_field, tap

SIZE = 5


def truth(scale):
    """Couplings of a given size, fields that stay."""
    keys = jax.random.split(jax.random.key(0))
    coupling = scale * jax.random.normal(keys[0], (SIZE * (SIZE - 1) // 2,))
    return ising.Params(jax.random.normal(keys[1], (SIZE,)), coupling)


def error(estimate, scale):
    params = truth(scale)
    weights = jnp.exp(exact.log_probs(ising.energy, params, SIZE))
    found = estimate(Data(exact.states(SIZE), weights))
    return ising.coupling_matrix(found) - ising.coupling_matrix(params)


@pytest.mark.parametrize(("estimate", "order"), [(mean_field, 2), (tap, 3)])
def test_errors_are_of_their_order_in_the_couplings(estimate, order, x64):
    """Under exact moments, halving the couplings divides them by 2^order."""
    large, small = error(estimate, 0.02), error(estimate, 0.01)
    off = ~np.eye(SIZE, dtype=bool)
    for part in (off, ~off):
        ratio = jnp.abs(large[part]).max() / jnp.abs(small[part]).max()
        assert abs(jnp.log2(ratio) - order) < 0.2
    assert jnp.abs(small).max() < 1e-3


def test_the_inverse_is_the_filter_of_eigenvalues(x64, key):
    from probjax.objectives.closed import _susceptibility

    x = jax.random.bernoulli(key, 0.4, (30, 4)).astype(float)
    _, found = _susceptibility(x, 0.01)
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    expected = vectors @ np.diag(values / (values**2 + 0.01)) @ vectors.T
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_strong_couplings_give_finite_numbers(key):
    x = exact.sample(key, ising.energy, truth(1.0), SIZE, num_draws=5000)
    for estimate in (mean_field, tap):
        for damping in (0.0, 1e-3):
            found = ising.coupling_matrix(estimate(x, damping=damping))
            assert jnp.isfinite(found).all()


def test_units_that_never_change_are_refused():
    with pytest.raises(ValueError, match="every unit must be on in some rows"):
        tap(jnp.array([[0, 1], [1, 1]]))
    with pytest.raises(ValueError, match="damping must not be negative, got -1"):
        mean_field(jnp.array([[0, 1], [1, 0]]), damping=-1)
