import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import exact
from probjax.exact import lattice

SMALL = [(4, 4), (3, 5), (2, 3), (5, 2), (1, 4), (1, 1), (2, 2), (3, 3)]


def quadratic(matrix, x):
    return x @ matrix @ x


def random_matrix(seed, shape, periodic, scale=1.0):
    """Random couplings and biases; asymmetric, so that no error in sign can hide."""
    rng = np.random.default_rng(seed)
    size = shape[0] * shape[1]
    matrix = np.diag(scale * rng.normal(size=size) + 0.3)
    for i, j in lattice.edges(shape, periodic=periodic):
        matrix[i, j] = matrix[j, i] = scale * rng.normal()
    return matrix


def on_lattice(shape, periodic):
    mask = np.eye(shape[0] * shape[1])
    for i, j in lattice.edges(shape, periodic=periodic):
        mask[i, j] = mask[j, i] = 1
    return mask


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("shape", SMALL)
def test_edges_are_all_pairs_one_step_apart(shape, periodic):
    height, width = shape
    expected = set()
    for row in range(height):
        for column in range(width):
            for down, right in ((0, 1), (1, 0)):
                other = row + down, column + right
                if periodic:
                    other = other[0] % height, other[1] % width
                if other[0] < height and other[1] < width:
                    i, j = row * width + column, other[0] * width + other[1]
                    expected.add((min(i, j), max(i, j)))
    expected = tuple(sorted(pair for pair in expected if pair[0] != pair[1]))
    assert lattice.edges(shape, periodic=periodic) == expected
    assert hash(lattice.edges(shape, periodic=periodic)) == hash(expected)


def brute_force(matrix):
    """log Z and all second moments, by NumPy."""
    size = len(matrix)
    x = (np.arange(2**size)[:, None] >> np.arange(size) & 1).astype(float)
    energy = ((x @ matrix) * x).sum(axis=1)
    weight = np.exp(energy.min() - energy)
    second = (x.T * weight) @ x / weight.sum()
    return np.log(weight.sum()) - energy.min(), second


@pytest.mark.parametrize("scale", [0.8, 20.0])
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("shape", SMALL)
def test_sums_over_rows_match_sums_over_states(x64, shape, periodic, scale):
    matrix = random_matrix(0, shape, periodic, scale)
    log_z, truth = brute_force(matrix)
    found = lattice.log_z(matrix, shape, periodic=periodic)
    np.testing.assert_allclose(found, log_z, rtol=1e-13)
    mean, second = lattice.moments(matrix, shape, periodic=periodic)
    np.testing.assert_allclose(mean, np.diag(truth), atol=1e-11)
    np.testing.assert_allclose(second, truth, atol=1e-11)


@pytest.mark.parametrize("periodic", [False, True])
def test_gradient_of_log_z_is_minus_the_moments(x64, periodic):
    matrix = random_matrix(0, (4, 4), periodic)
    gradient = jax.grad(lambda m: lattice.log_z(m, (4, 4), periodic=periodic))
    expected = -brute_force(matrix)[1] * on_lattice((4, 4), periodic)
    np.testing.assert_allclose(gradient(jnp.asarray(matrix)), expected, atol=1e-12)


def test_rows_and_enumeration_agree():
    matrix = jnp.asarray(random_matrix(7, (3, 5), True))
    mean, second = lattice.moments(matrix, (3, 5), periodic=True)
    truth = exact.moments(quadratic, matrix, 15)
    np.testing.assert_allclose(mean, truth.mean, atol=1e-5)
    np.testing.assert_allclose(second, truth.second, atol=1e-5)
    log_z = lattice.log_z(matrix, (3, 5), periodic=True)
    np.testing.assert_allclose(log_z, exact.log_z(quadratic, matrix, 15), rtol=1e-6)


def test_hessian_of_log_z_is_the_covariance(x64):
    shape, size = (3, 2), 6
    matrix = random_matrix(1, shape, True)

    def of_biases(bias):
        return lattice.log_z(matrix + jnp.diag(bias), shape, periodic=True)

    second = brute_force(matrix)[1]
    covariance = second - np.outer(np.diag(second), np.diag(second))
    step = jnp.arange(size) - 1.5
    _, change = jax.jvp(jax.grad(of_biases), (jnp.zeros(size),), (step,))
    np.testing.assert_allclose(change, covariance @ step, atol=1e-12)


def test_independent_units_need_no_neighbours(x64):
    bias = jnp.linspace(-3, 3, 77)
    log_z = lattice.log_z(jnp.diag(bias), (7, 11), periodic=True)
    np.testing.assert_allclose(log_z, jnp.logaddexp(0, -bias).sum(), rtol=1e-13)


def test_onsager_free_energy_of_a_uniform_torus(x64):
    # Kaufman's exact sum for the m x n torus without field, at coupling K of spins.
    rows, columns, strength = 8, 6, 0.3
    r = np.arange(2 * columns)
    inner = np.cosh(2 * strength) / np.tanh(2 * strength) - np.cos(np.pi * r / columns)
    gamma = np.arccosh(inner)
    gamma[0] = 2 * strength + np.log(np.tanh(strength))
    odd, even = gamma[1::2], gamma[0::2]
    half = rows / 2
    parts = [
        np.prod(2 * np.cosh(half * odd)),
        np.prod(2 * np.sinh(half * odd)),
        np.prod(2 * np.cosh(half * even)),
        np.prod(2 * np.sinh(half * even)),
    ]
    size = rows * columns
    expected = np.log(0.5 * sum(parts)) + size / 2 * np.log(2 * np.sinh(2 * strength))
    # s_i s_j = (2 x_i - 1)(2 x_j - 1): J_ij = -2 K, J_ii = 8 K and 2 K n over.
    matrix = -2 * strength * (on_lattice((rows, columns), True) - np.eye(size))
    matrix += 8 * strength * np.eye(size)
    found = lattice.log_z(jnp.asarray(matrix), (rows, columns), periodic=True)
    np.testing.assert_allclose(found + 2 * strength * size, expected, rtol=1e-13)


def test_turning_the_lattice_changes_nothing(x64):
    matrix = random_matrix(2, (4, 7), True)
    turn = np.arange(28).reshape(4, 7).T.ravel()
    turned = matrix[np.ix_(turn, turn)]
    np.testing.assert_allclose(
        lattice.log_z(jnp.asarray(matrix), (4, 7), periodic=True),
        lattice.log_z(jnp.asarray(turned), (7, 4), periodic=True),
        rtol=1e-14,
    )
    first = lattice.moments(matrix, (4, 7), periodic=True).second
    second = lattice.moments(turned, (7, 4), periodic=True).second
    np.testing.assert_allclose(first[np.ix_(turn, turn)], second, atol=1e-13)


def test_float32_is_as_good_as_float32_can_be():
    shape = (50, 4)
    matrix = random_matrix(3, shape, True, scale=20).astype(np.float32)
    evaluate = jax.value_and_grad(lambda m: lattice.log_z(m, shape, periodic=True))
    single = evaluate(jnp.asarray(matrix))
    with jax.enable_x64(True):
        log_z = lattice.log_z(matrix.astype(float), shape, periodic=True)
        second = np.asarray(lattice.moments(matrix, shape, periodic=True).second)
    np.testing.assert_allclose(single[0], log_z, rtol=3e-7)
    expected = -second * on_lattice(shape, True)
    np.testing.assert_allclose(single[1], expected, atol=1e-5)


def test_log_z_is_compiled_once_for_a_shape():
    matrix = jnp.asarray(random_matrix(4, (3, 3), True))
    before = lattice._log_z._cache_size()
    for scale in (1.0, 2.0, 3.0):
        lattice.log_z(scale * matrix, (3, 3), periodic=True)
    assert lattice._log_z._cache_size() == before + 1


def draws_z_scores(key, shape, periodic, num_draws=20_000):
    matrix = random_matrix(5, shape, periodic)
    draws = lattice.sample(key, matrix, shape, num_draws=num_draws, periodic=periodic)
    assert set(np.unique(draws)) == {0.0, 1.0}
    second = np.asarray(lattice.moments(matrix, shape, periodic=periodic).second)
    found = np.asarray(draws.T @ draws) / num_draws
    common = np.minimum(second, 1 - second) * num_draws > 20
    z = (found - second) / np.sqrt(second * (1 - second) / num_draws)
    return z[common]


@pytest.mark.parametrize(
    ("shape", "periodic"),
    [((4, 6), True), ((6, 4), False), ((7, 7), True), ((1, 5), 0)],
)
def test_draws_have_the_moments_of_the_model(key, shape, periodic):
    z = draws_z_scores(key, shape, bool(periodic))
    assert np.abs(z).max() < 5


def test_draws_have_the_frequencies_of_whole_states(key):
    matrix = random_matrix(6, (3, 3), True)
    p = np.exp(exact.log_probs(quadratic, jnp.asarray(matrix), 9))
    draws = lattice.sample(key, matrix, (3, 3), num_draws=100_000, periodic=True)
    number = np.asarray(draws, int) @ (1 << np.arange(9)[::-1])
    frequency = np.bincount(number, minlength=512) / 100_000
    z = (frequency - p) / np.sqrt(p * (1 - p) / 100_000)
    assert np.abs(z[p * 100_000 > 20]).max() < 5


def test_spin_glass_has_zero_columns_and_the_stated_variance(key):
    matrix = lattice.spin_glass(key, (30, 40), variance=2.5)
    pairs = np.array(lattice.edges((30, 40), periodic=True)).T
    couplings = np.asarray(matrix)[pairs[0], pairs[1]]
    assert couplings.size == 2400
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=0), 0, atol=1e-5)
    stray = np.asarray(matrix) * (1 - on_lattice((30, 40), True))
    assert not stray.any()
    assert abs(couplings.var() / 2.5 - 1) < 5 * np.sqrt(2 / 2400)
    assert abs(couplings.mean()) < 5 * np.sqrt(2.5 / 2400)


@pytest.mark.statistics
def test_units_of_a_spin_glass_are_on_half_the_time(key):
    matrix = lattice.spin_glass(key, (10, 10), variance=2.5)
    mean, second = lattice.moments(matrix, (10, 10), periodic=True)
    np.testing.assert_allclose(mean, 0.5, atol=1e-5)
    np.testing.assert_allclose(jnp.diag(second), mean, rtol=1e-6)
    assert np.linalg.eigvalsh(second - np.outer(mean, mean)).min() > 0


def stray_matrix():
    matrix = np.zeros((9, 9))
    matrix[0, 2] = matrix[2, 0] = 0.5
    return matrix


@pytest.mark.parametrize(
    ("matrix", "shape", "message"),
    [
        (np.zeros((9, 9)), (3, 4), r"matrix must be 12 x 12 .* got shape \(9, 9\)"),
        (
            np.zeros((169, 169)),
            (13, 13),
            r"side of at most 12 .* got \(13, 13\); try ais",
        ),
        (np.zeros((9, 9)), (0, 9), r"at least 1, got \(0, 9\)"),
        (np.triu(on_lattice((3, 3), False)), (3, 3), r"symmetric, got 1.0 at \(0, 1\)"),
        (stray_matrix(), (3, 3), "open lattice, got 0.5 between sites 0 and 2"),
        (np.full((9, 9), np.nan), (3, 3), "finite"),
    ],
)
def test_matrices_of_no_such_lattice_are_refused(key, matrix, shape, message):
    for call in (lattice.log_z, lattice.moments):
        with pytest.raises(ValueError, match=message):
            call(matrix, shape)
    with pytest.raises(ValueError, match=message):
        lattice.sample(key, matrix, shape, num_draws=1)


def test_the_same_coupling_is_a_neighbour_on_the_torus(x64):
    assert np.isfinite(lattice.log_z(stray_matrix(), (3, 3), periodic=True))


def test_requests_beyond_the_host_are_refused(key):
    strong = 200.0 * random_matrix(0, (8, 8), True)
    assert np.isfinite(lattice.log_z(strong, (8, 8), periodic=True))
    with pytest.raises(ValueError, match="at most 1300"):
        lattice.moments(strong, (8, 8), periodic=True)
    with pytest.raises(ValueError, match="on the host, got a traced array"):
        jax.jit(lambda m: lattice.moments(m, (3, 3)))(jnp.zeros((9, 9)))
    with pytest.raises(ValueError, match="num_draws must be at least 1, got 0"):
        lattice.sample(key, jnp.zeros((9, 9)), (3, 3), num_draws=0)
    with pytest.raises(ValueError, match="variance must not be negative, got -1"):
        lattice.spin_glass(key, (3, 3), variance=-1)


@pytest.mark.parametrize("periodic", [False, True])
def test_divergence_is_that_of_the_tables(periodic, x64):
    first, second = (random_matrix(seed, (3, 4), periodic) for seed in (1, 2))
    tables = [exact.log_probs(quadratic, matrix, 12) for matrix in (first, second)]
    found = lattice.kl(first, second, (3, 4), periodic=periodic)
    np.testing.assert_allclose(found, exact.kl(*tables), rtol=1e-9)
    with pytest.raises(ValueError, match="must have the same shape, got shapes"):
        lattice.kl(first, second[:2, :2], (3, 4), periodic=periodic)
