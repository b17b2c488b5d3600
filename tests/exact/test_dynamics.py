import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from small_models import all_states

from probjax import Connectivity, exact
from probjax.connectivity import AllFlips, BitFlips, Joined
from probjax.exact import dynamics
from probjax.recipe import recipe, static
from probjax.types import Neighbours

evolve = jax.jit(dynamics.evolve)
log_prob_bound = jax.jit(dynamics.log_prob_bound)
eigenvalue_bound = jax.jit(dynamics.second_eigenvalue_bound)


def flow_matrix(*args, **options):
    return np.asarray(dynamics.flow_matrix(*args, **options))


def spectrum(*args):
    return jax.tree.map(np.asarray, dynamics.spectrum(*args))


def model_of(matrix, num_states=2):
    """Probabilities of the states under a quadratic energy."""
    x = all_states(len(matrix), num_states)
    weights = np.exp(-np.sum(x @ matrix * x, axis=1))
    return weights / weights.sum()


def quadratic(matrix, x):
    return x @ matrix @ x


def random_matrix(seed, size, scale=1.0):
    matrix = scale * np.random.default_rng(seed).normal(size=(size, size))
    return (matrix + matrix.T) / 2


@recipe
class Rotations(Connectivity):
    """The state turned by one site and back: symmetric, and some states stay put."""

    back: bool = static(default=True)
    weight: float = 1.0
    log_ratio: float = 0.0

    def prepare(self, x):
        return x

    def states(self, x, moves):
        turned = jnp.stack([jnp.roll(x, 1), jnp.roll(x, -1)][: 1 + self.back])
        count = len(turned)
        ratio = jnp.full(count, self.log_ratio)
        return Neighbours(turned, ratio, jnp.full(count, self.weight))


@recipe
class Turns(Connectivity):
    """Both other values of one of two sites of three states."""

    def prepare(self, x):
        return x

    def states(self, x, moves):
        steps = jnp.concatenate([jnp.eye(2), 2 * jnp.eye(2)])
        return Neighbours((x[None] + steps) % 3, jnp.zeros(4), jnp.ones(4))


def dense_flow(matrix, size):
    """Single flips, by loops over pairs of states."""
    x = all_states(size)
    energy = np.array([one @ matrix @ one for one in x])
    gamma = np.zeros((2**size, 2**size))
    for i in range(2**size):
        for j in range(2**size):
            if np.abs(x[i] - x[j]).sum() == 1:
                gamma[i, j] = np.exp((energy[j] - energy[i]) / 2)
    return gamma - np.diag(gamma.sum(axis=0))


def test_flow_matrix_matches_plain_loops(x64):
    matrix = random_matrix(0, 4)
    found = flow_matrix(quadratic, matrix, BitFlips(), 4)
    np.testing.assert_allclose(found, dense_flow(matrix, 4), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "connectivity", [BitFlips(), Joined((BitFlips(), AllFlips())), Rotations()]
)
def test_flow_keeps_probability_and_the_model(x64, connectivity):
    matrix = random_matrix(1, 4)
    gamma = flow_matrix(quadratic, matrix, connectivity, 4)
    p = model_of(matrix)
    np.testing.assert_allclose(gamma.sum(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(gamma @ p, 0, atol=1e-12)
    balance = gamma * p[None]
    np.testing.assert_allclose(balance, balance.T, atol=1e-13)


def test_flows_count_weights_and_ratios_and_no_state_neighbours_itself(x64):
    matrix = random_matrix(2, 4)
    plain = flow_matrix(quadratic, matrix, Rotations(), 4)
    ratio = Rotations(weight=0.5, log_ratio=2 * np.log(3.0))
    weighted = flow_matrix(quadratic, matrix, ratio, 4)
    np.testing.assert_allclose(weighted, 1.5 * plain, atol=1e-12)
    assert not plain[:, 0].any()
    assert not plain[:, 15].any()


def test_evolution_sets_out_along_the_flow(x64):
    matrix = random_matrix(3, 4)
    flow = spectrum(quadratic, matrix, BitFlips(), 4)
    gamma = flow_matrix(quadratic, matrix, BitFlips(), 4)
    start = np.eye(16)[5]
    rate = jax.jit(jax.jacfwd(lambda t: evolve(flow, start, t)))(0.0)
    np.testing.assert_allclose(rate, gamma @ start, atol=1e-11)


@pytest.mark.parametrize(
    "connectivity", [BitFlips(), Joined((BitFlips(), AllFlips())), Rotations()]
)
def test_spectrum_is_that_of_the_flow(x64, connectivity):
    matrix = random_matrix(4, 4)
    values, vectors, log_p, diagonal = spectrum(quadratic, matrix, connectivity, 4)
    gamma = flow_matrix(quadratic, matrix, connectivity, 4)
    modes = np.exp(log_p / 2)[:, None] * vectors
    np.testing.assert_allclose(gamma @ modes, modes * values[None], atol=1e-10)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(16), atol=1e-12)
    np.testing.assert_allclose(diagonal, np.diag(gamma), rtol=1e-12)
    assert values[0] == 0
    assert (np.diff(values) <= 0).all()


def test_values_of_free_units_are_even_integers(x64):
    flow = spectrum(quadratic, np.zeros((4, 4)), BitFlips(), 4)
    expected = np.repeat([0, -2, -4, -6, -8], [1, 4, 6, 4, 1])
    np.testing.assert_allclose(flow.values, expected, atol=1e-12)


def test_evolution_starts_at_the_data_and_ends_at_the_model(x64):
    flow = spectrum(quadratic, random_matrix(5, 4), BitFlips(), 4)
    start = np.random.default_rng(0).dirichlet(np.ones(16))
    np.testing.assert_allclose(evolve(flow, start, 0.0), start, atol=1e-11)
    end = evolve(flow, start, 1e6)
    np.testing.assert_allclose(end, np.exp(flow.log_p), atol=1e-14)


def test_evolution_is_the_matrix_exponential(x64):
    matrix = random_matrix(6, 4)
    flow = spectrum(quadratic, matrix, BitFlips(), 4)
    gamma = flow_matrix(quadratic, matrix, BitFlips(), 4)
    start = np.eye(16)[3]
    for t in (0.01, 0.3, 2.0):
        found = np.asarray(evolve(flow, start, t))
        expected = scipy.linalg.expm(gamma * t) @ start
        np.testing.assert_allclose(found, expected, atol=1e-10)
        np.testing.assert_allclose(found.sum(), 1, rtol=1e-12)
        assert (found > 0).all()


def test_divergence_from_the_model_falls_all_the_way(x64):
    flow = spectrum(quadratic, random_matrix(7, 4), BitFlips(), 4)
    start = np.eye(16)[9]

    @jax.jit
    def divergence_at(t):
        p = evolve(flow, start, t)
        return exact.kl(jnp.log(jnp.maximum(p, 0)), flow.log_p)

    divergence = [divergence_at(t) for t in (0.0, 0.01, 0.1, 0.3, 1.0, 3.0)]
    assert (np.diff(divergence) < 0).all()


def test_states_that_exchange_nothing_keep_their_probability(x64):
    flow = spectrum(quadratic, random_matrix(8, 4), AllFlips(), 4)
    start = np.eye(16)[1]
    end = np.asarray(evolve(flow, start, 1e6))
    pair = np.exp(flow.log_p[[1, 14]])
    np.testing.assert_allclose(end[[1, 14]], pair / pair.sum(), atol=1e-11)
    np.testing.assert_allclose(end.sum(), 1, rtol=1e-11)
    np.testing.assert_array_equal(log_prob_bound(flow), -np.inf)


@pytest.mark.parametrize(
    ("size", "count"),
    [(2, 30), (5, 30), pytest.param(8, 40, marks=pytest.mark.statistics)],
)
@pytest.mark.parametrize(("double", "slack"), [(False, 1e-5), (True, 1e-12)])
def test_bounds_hold_on_a_hundred_random_models(size, count, double, slack):
    @jax.jit
    @jax.vmap
    def bounds(matrix):
        flow = dynamics.spectrum(quadratic, matrix, BitFlips(), size)
        rate = eigenvalue_bound(flow.diagonal, flow.log_p)
        return flow, log_prob_bound(flow), rate

    scales = np.resize([0.3, 1.0, 3.0], count)
    models = [random_matrix(seed, size, scales[seed]) for seed in range(count)]
    with jax.enable_x64(double):
        flow, bound, rate = jax.tree.map(np.asarray, bounds(np.asarray(models)))
    assert (bound <= flow.log_p + slack).all()
    assert (rate <= flow.values[:, 1] - slack * flow.diagonal.min(axis=1)).all()


def test_bound_is_near_for_a_state_that_holds_most_probability(x64):
    flow = spectrum(quadratic, 3.0 * np.eye(8), BitFlips(), 8)
    gap = flow.log_p[0] - np.asarray(log_prob_bound(flow))[0]
    assert 0 < gap < 0.1


def test_bounds_are_equalities_for_one_unit(x64):
    flow = spectrum(quadratic, np.array([[0.7]]), BitFlips(), 1)
    np.testing.assert_allclose(log_prob_bound(flow), flow.log_p, rtol=1e-12)
    rate = eigenvalue_bound(flow.diagonal, flow.log_p)
    np.testing.assert_allclose(rate, flow.values[1], rtol=1e-12)


def test_eigenvalue_bound_stays_below_with_looser_probabilities(x64):
    flow = spectrum(quadratic, random_matrix(9, 4), BitFlips(), 4)
    exactly = eigenvalue_bound(flow.diagonal, flow.log_p)
    loosely = eigenvalue_bound(flow.diagonal, flow.log_p / 2)
    some = eigenvalue_bound(flow.diagonal[:9], flow.log_p[:9])
    assert loosely < exactly <= flow.values[1]
    assert some <= exactly


def test_eigenvalue_bound_in_place_of_the_eigenvalue_would_break_the_other(x64):
    flow = spectrum(quadratic, random_matrix(10, 4), BitFlips(), 4)
    assumed = flow.log_p / 2
    rate = eigenvalue_bound(flow.diagonal, assumed)
    values = np.where(np.arange(16) == 1, rate, flow.values)
    wrong = np.asarray(log_prob_bound(flow._replace(values=values)))
    worst = np.argmax(flow.diagonal / -np.expm1(assumed))
    np.testing.assert_allclose(wrong[worst], assumed[worst], atol=1e-10)
    assert wrong[worst] > flow.log_p[worst] + 0.1


def test_flow_matrix_is_differentiable_in_the_parameters(x64):
    matrix = random_matrix(11, 4)

    def flow_out_of_zero(m):
        return -dynamics.flow_matrix(quadratic, m, BitFlips(), 4)[0, 0]

    # K = sum_i exp(-J_ii / 2): its gradient carries the factor one half.
    expected = -0.5 * np.exp(-np.diag(matrix) / 2)
    gradient = jax.jit(jax.grad(flow_out_of_zero))(matrix)
    np.testing.assert_allclose(np.diag(gradient), expected, rtol=1e-12)


def test_three_states_a_site_flow_too(x64):
    matrix = random_matrix(12, 2)
    gamma = flow_matrix(quadratic, matrix, Turns(), 2, num_states=3)
    p = model_of(matrix, 3)
    assert gamma.shape == (9, 9)
    np.testing.assert_allclose(gamma @ p, 0, atol=1e-12)
    assert ((gamma != 0).sum(axis=0) == 5).all()


def test_spaces_too_large_and_one_way_connections_are_refused():
    matrix = random_matrix(13, 3)
    with pytest.raises(ValueError, match=r"at most 2\*\*12 = 4096 states, got 2\*\*13"):
        spectrum(quadratic, np.zeros((13, 13)), BitFlips(), 13)
    with pytest.raises(ValueError, match=r"at most 2\*\*12 .* row and a column"):
        flow_matrix(quadratic, np.zeros((40, 40)), BitFlips(), 40)
    with pytest.raises(ValueError, match="symmetric, got 1.0 from state .* 0.0 back"):
        spectrum(quadratic, matrix, Rotations(back=False), 3)
