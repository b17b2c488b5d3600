"""Claims of the thesis at their own size. `make slow` runs them."""

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


def asymptotic_error(slope, curvature, truth, draws):
    """The mean square error in J that so many states allow, and how far it scatters.

    Estimates are normal with covariance H^-1 V H^-1 / n about the truth. A loss sum_n
    f(gap_n) over flips, with gap_n = (2 x_n - 1)(J_nn + 2 sum J_nm x_m), has scores V =
    cov(sum_n f'(gap_n) dgap_n) and Hessian H = E sum_n f'' dgap dgap'.
    """
    x, size = np.asarray(draws, np.float32), truth.shape[0]
    number = np.zeros((size, size), int)
    number[np.triu_indices(size, 1)] = size + np.arange(size * (size - 1) // 2)
    number = number + number.T + np.diag(np.arange(size))
    pair_matrix = np.asarray(truth) - np.diag(np.diag(truth))
    gaps = (2 * x - 1) * (np.diag(truth) + 2 * x @ pair_matrix)
    scores = np.zeros((len(x), size * (size + 1) // 2), np.float32)
    hessian = np.zeros((scores.shape[1],) * 2)
    for n in range(size):
        features = (2 * x[:, n : n + 1] - 1) * 2 * x
        features[:, n] = 2 * x[:, n] - 1
        scores[:, number[n]] += slope(gaps[:, n])[:, None] * features
        curved = features.T @ (curvature(gaps[:, n])[:, None] * features)
        hessian[np.ix_(number[n], number[n])] += curved / len(x)
    inverse = np.linalg.inv(hessian)
    covariance = inverse @ (scores.T @ scores / len(x)) @ inverse / len(x)
    entries = np.where(np.arange(len(covariance)) < size, 1, 2) / size**2
    weighted = covariance * entries
    return np.trace(weighted), np.sqrt(2 * np.sum(weighted * weighted.T))


FLOW = MPF, lambda g: np.exp(g / 2) / 2, lambda g: np.exp(g / 2) / 4
LOGISTIC = (
    PseudoLikelihood,
    lambda g: 1 / (1 + np.exp(-g)),
    lambda g: 1 / (2 + np.exp(g) + np.exp(-g)),
)


@pytest.mark.parametrize("case", [FLOW, LOGISTIC], ids=["MPF", "pseudolikelihood"])
def test_all_couplings_are_learned_as_well_as_the_states_allow(case, glass, key):
    (objective, slope, curvature), (truth, draws) = case, glass
    chart, start = ising.centred(draws), ising.init(key, 100)
    found = fit(key, objective(ising.energy), start, draws, chart=chart)
    assert found.converged
    allowed, scatter = asymptotic_error(slope, curvature, truth, draws)
    assert abs(error(found, truth) - allowed) < 5 * scatter
    assert scatter < 0.15 * allowed


@pytest.mark.parametrize("objective", [MPF, PseudoLikelihood])
def test_a_lattice_is_learned_to_ten_thousandths(objective, glass, key):
    truth, draws = glass
    start = ising.init(key, 100, edges=exact.lattice.edges(SHAPE, periodic=True))
    chart = ising.centred(draws)
    found = fit(key, objective(ising.energy), start, draws, chart=chart)
    assert found.converged
    assert error(found, truth) < 2e-4


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
