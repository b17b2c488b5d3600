"""Claims of the thesis at their own size: minutes, not seconds. `make slow` runs them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import MPF, PseudoLikelihood, exact, fit, ising

pytestmark = pytest.mark.slow
SHAPE = (10, 10)


@pytest.fixture(scope="module")
def glass():
    """A 10x10 torus with couplings of variance 1.125, and 20,000 exact states of it."""
    first, second = jax.random.split(jax.random.key(0))
    truth = exact.lattice.spin_glass(first, SHAPE, variance=1.125)
    draws = exact.lattice.sample(second, truth, SHAPE, num_draws=20_000, periodic=True)
    return truth, draws


def error(found, truth):
    return float(jnp.mean((ising.coupling_matrix(found.params) - truth) ** 2))


@pytest.mark.parametrize("objective", [MPF, PseudoLikelihood])
def test_a_spin_glass_is_learned_back_from_its_states(objective, glass, key):
    """All 4,950 couplings to .005, and the 200 of the lattice to 2e-4, mean square."""
    truth, draws = glass
    for edges, limit in (
        (None, 0.005),
        (exact.lattice.edges(SHAPE, periodic=True), 2e-4),
    ):
        start = ising.init(key, 100, edges=edges)
        found = fit(
            key, objective(ising.energy), start, draws, chart=ising.centred(draws)
        )
        assert found.converged
        assert error(found, truth) < limit


def test_float32_from_a_bad_start_reaches_the_minimum_of_float64(glass, key):
    truth, draws = glass
    with jax.enable_x64(True):
        rows = np.asarray(draws, np.float64)
        start = ising.from_matrix(np.zeros((100, 100)))
        chart = ising.centred(rows)
        best = fit(jax.random.key(0), MPF(ising.energy), start, rows, chart=chart)
        lowest, right = float(best.loss), error(best, np.asarray(truth))
    start = ising.init(key, 100, scale=20.0)
    found = fit(key, MPF(ising.energy), start, draws, chart=ising.centred(draws))
    assert found.losses[0] > 100
    assert jnp.isfinite(found.losses).all()
    assert abs(float(found.loss) - lowest) < 1e-5
    assert abs(error(found, truth) / right - 1) < 0.02
