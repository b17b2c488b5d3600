import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from probjax import Data, exact
from probjax.exact import enumeration_blocks
from probjax.trees import as_array

entropy, kl = jax.jit(exact.entropy), jax.jit(exact.kl)


def independent(bias, x):
    return bias @ x


def cubic(params, x):
    coupling, bias = params
    return x @ coupling @ x + bias @ x + bias[0] * x[0] * x[1] * x[2]


def cubic_params(size, dtype=float):
    rng = np.random.default_rng(size)
    coupling, bias = rng.normal(size=(size, size)), rng.normal(size=size)
    return as_array(coupling, dtype), as_array(bias, dtype)


def table(energy, params, size, num_states):
    """Every state and its energy, by plain loops."""
    x = np.array(list(itertools.product(range(num_states), repeat=size)), float)
    evaluate = jax.jit(energy)
    return x, np.array([float(evaluate(params, one)) for one in x])


def half_forbidden(bias, x):
    """No state with x[0] = 0 has any probability."""
    return jnp.where(x[0] > 0, bias @ x, jnp.inf)


def first_and_square(x):
    return {"first": x[0] == 1, "square": jnp.outer(x, x)}


def test_states_count_with_site_zero_most_significant():
    expected = list(itertools.product(range(3), repeat=4))
    np.testing.assert_array_equal(exact.states(4, num_states=3), expected)
    np.testing.assert_array_equal(
        exact.states(4, num_states=3, start=7, count=5), expected[7:12]
    )


def test_log_z_of_independent_units_is_a_product(x64):
    bias = np.linspace(-3, 4, 15)
    np.testing.assert_allclose(
        exact.log_z(independent, bias, 15), np.logaddexp(0, -bias).sum(), rtol=1e-14
    )


@pytest.mark.parametrize(("size", "num_states"), [(7, 2), (4, 5)])
def test_log_z_log_probs_and_moments_match_plain_loops(x64, size, num_states):
    params = cubic_params(size)
    x, energies = table(cubic, params, size, num_states)
    weights = np.exp(-energies + energies.min())
    log_z = np.log(weights.sum()) - energies.min()
    p = weights / weights.sum()
    space = {"num_states": num_states}
    np.testing.assert_allclose(exact.log_z(cubic, params, size, **space), log_z)
    log_p = exact.log_probs(cubic, params, size, **space)
    np.testing.assert_allclose(log_p, -energies - log_z, atol=1e-12)
    mean, second = exact.moments(cubic, params, size, **space)
    np.testing.assert_allclose(mean, p @ x, atol=1e-13)
    np.testing.assert_allclose(second, (x.T * p) @ x, atol=1e-12)
    found = exact.expectation(cubic, first_and_square, params, size, **space)
    np.testing.assert_allclose(found["first"], p @ (x[:, 0] == 1), atol=1e-13)
    np.testing.assert_allclose(found["square"], second, atol=1e-12)


def test_blocks_and_the_whole_give_the_same_sums(x64, monkeypatch):
    params = cubic_params(5)

    def sums(block):
        monkeypatch.setattr(enumeration_blocks, "BLOCK", block)

        def energy(params, x):  # a new function, so that nothing compiled is reused
            return cubic(params, x)

        value = jax.value_and_grad(lambda p: exact.log_z(energy, p, 5, num_states=3))
        return jax.jit(value)(params), exact.log_probs(energy, params, 5, num_states=3)

    assert enumeration_blocks.BLOCK > 3**5
    jax.tree.map(
        lambda some, whole: np.testing.assert_allclose(some, whole, atol=1e-12),
        sums(9),
        sums(3**5),
    )


def test_gradient_of_log_z_is_minus_the_mean_gradient_of_the_energy(x64):
    params = cubic_params(13)
    gradient = jax.jit(jax.grad(lambda p: exact.log_z(cubic, p, 13)))(params)
    second = np.asarray(exact.moments(cubic, params, 13).second)
    np.testing.assert_allclose(gradient[0], -second, atol=1e-12)
    expected = -np.diag(second) - (np.arange(13) == 0) * _third_moment(params)
    np.testing.assert_allclose(gradient[1], expected, atol=1e-12)


def _third_moment(params):
    return np.asarray(exact.expectation(cubic, first_three, params, 13))


def first_three(x):
    return x[0] * x[1] * x[2]


def identity(x):
    return x


def test_gradient_of_an_expectation_is_minus_a_covariance(x64):
    bias = np.linspace(-2, 2, 14)
    jacobian = jax.jacobian(lambda b: exact.expectation(independent, identity, b, 14))
    p = scipy.special.expit(-bias)
    np.testing.assert_allclose(
        jax.jit(jacobian)(bias), -np.diag(p * (1 - p)), atol=1e-13
    )


def test_hessian_of_log_z_is_the_covariance(x64):
    bias = np.linspace(-2, 2, 5)
    hessian = jax.jit(jax.hessian(lambda b: exact.log_z(independent, b, 5)))(bias)
    p = scipy.special.expit(-bias)
    np.testing.assert_allclose(hessian, np.diag(p * (1 - p)), atol=1e-13)


def test_blocks_without_probability_leave_gradients_finite():
    bias = np.linspace(-1, 1, 14)
    evaluate = jax.value_and_grad(lambda b: exact.log_z(half_forbidden, b, 14))
    value, gradient = jax.jit(evaluate)(bias)
    expected = -bias[0] + np.logaddexp(0, -bias[1:]).sum()
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    p = np.where(np.arange(14) == 0, 1, scipy.special.expit(-bias))
    np.testing.assert_allclose(gradient, -p, atol=1e-5)


def test_float32_is_as_good_as_float32_can_be():
    params = cubic_params(16)
    single = exact.log_z(cubic, params, 16), exact.moments(cubic, params, 16)
    assert single[0].dtype == jnp.float32
    with jax.enable_x64(True):
        params = cubic_params(16)
        double = exact.log_z(cubic, params, 16), exact.moments(cubic, params, 16)
    np.testing.assert_allclose(single[0], double[0], rtol=3e-7)
    np.testing.assert_allclose(single[1].second, double[1].second, atol=1e-5)


def test_new_parameters_are_not_compiled_again():
    traces = []

    def energy(bias, x):
        traces.append(None)
        return bias @ x

    def run(bias):
        exact.log_z(energy, bias, 4)
        exact.moments(energy, bias, 4)
        exact.sample(jax.random.key(0), energy, bias, 4, num_draws=3)
        return len(traces)

    assert run(np.zeros(4)) == run(np.ones(4))


def test_works_inside_jit_and_vmap():
    bias = np.linspace(-1, 1, 12).reshape(3, 4)
    found = jax.jit(jax.vmap(lambda b: exact.log_z(independent, b, 4)))(bias)
    np.testing.assert_allclose(found, np.logaddexp(0, -bias).sum(1), rtol=1e-6)


def test_memory_of_the_gradient_does_not_grow_with_the_space():
    def temporary_bytes(size):
        gradient = jax.jit(jax.grad(lambda b: exact.log_z(independent, b, size)))
        compiled = gradient.lower(np.zeros(size, np.float32)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # Without recomputing blocks it would be eight times as much.
    assert temporary_bytes(19) < 2 * temporary_bytes(16)


def worst_z_score(key, num_draws):
    """The largest deviation of any state's frequency, in standard errors."""
    params = cubic_params(3)
    draws = exact.sample(key, cubic, params, 3, num_draws=num_draws, num_states=3)
    p = np.exp(exact.log_probs(cubic, params, 3, num_states=3))
    number = np.asarray(draws, int) @ [9, 3, 1]
    frequency = np.bincount(number, minlength=27) / num_draws
    common = p * num_draws > 20
    z = (frequency - p) / np.sqrt(p * (1 - p) / num_draws)
    return np.abs(z[common]).max()


def test_draws_have_the_models_frequencies(key):
    assert worst_z_score(key, 100_000) < 5


def test_draws_of_rare_and_forbidden_states(key):
    draws = exact.sample(key, half_forbidden, np.full(5, 20.0), 5, num_draws=1000)
    np.testing.assert_array_equal(draws, np.tile([1, 0, 0, 0, 0], (1000, 1)))


def test_entropy_and_kl_of_closed_forms(x64):
    bias = np.linspace(-2, 2, 6)
    p = 1 / (1 + np.exp(bias))
    log_p = exact.log_probs(independent, bias, 6)
    log_q = exact.log_probs(independent, np.zeros(6), 6)
    expected = -(p * np.log(p) + (1 - p) * np.log(1 - p)).sum()
    np.testing.assert_allclose(entropy(log_p), expected, rtol=1e-13)
    np.testing.assert_allclose(kl(log_p, log_q), 6 * np.log(2) - expected)


def test_states_without_probability_count_nothing():
    with np.errstate(divide="ignore"):
        log_p = np.log(np.array([0.0, 0.5, 0.5, 0.0], np.float32))
        log_q = np.log(np.array([0.0, 0.25, 0.5, 0.25], np.float32))
    np.testing.assert_allclose(entropy(log_p), np.log(2), rtol=1e-6)
    np.testing.assert_allclose(kl(log_p, log_q), 0.5 * np.log(2), rtol=1e-6)
    assert kl(log_q, log_p) == np.inf
    assert np.isfinite(jax.jit(jax.grad(exact.entropy))(log_p)).all()
    assert np.isfinite(jax.jit(jax.grad(exact.kl))(log_p, log_q)).all()


def test_kl_of_near_tables_survives_float32():
    bias = np.linspace(-2, 2, 12)
    bias = bias.astype(np.float32)
    near = bias * np.float32(1.0001)
    single = kl(*(exact.log_probs(independent, b, 12) for b in (bias, near)))
    with jax.enable_x64(True):
        pair = (b.astype(float) for b in (bias, near))
        double = kl(*(exact.log_probs(independent, b, 12) for b in pair))
    np.testing.assert_allclose(single, double, rtol=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: exact.log_z(independent, 0.0, 23),
            r"at most 2\*\*22 = 4194304 .*2\*\*23",
        ),
        (
            lambda: exact.log_z(independent, 0.0, 784),
            r"10\*\*236.0.*exact.lattice.*ais",
        ),
        (lambda: exact.moments(independent, 0.0, 9, num_states=21), r"21\*\*9"),
        (lambda: exact.states(0), "size must be at least 1, got 0"),
        (lambda: exact.log_probs(independent, 0.0, -2), "size must be .* got -2"),
        (lambda: exact.states(3, num_states=1), "num_states must be at least 2, got 1"),
        (lambda: exact.states(3, start=5, count=4), "states 0 to 7, got start=5"),
        (lambda: exact.states(3, start=-1), "got start=-1"),
        (lambda: exact.log_z(lambda b, x: b * x, 1.0, 3), r"scalar .* shape \(3,\)"),
        (lambda: exact.kl(np.zeros(2), np.zeros(4)), r"same states, .*\(2,\)"),
        (
            lambda: exact.sample(
                jax.random.key(0), independent, np.zeros(2), 2, num_draws=0
            ),
            "num_draws must be at least 1, got 0",
        ),
    ],
)
def test_impossible_requests_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_log_likelihood_is_the_mean_of_the_table_under_the_weights():
    params = cubic_params(3)
    x, energies = table(cubic, params, 3, 3)
    weights = np.random.default_rng(1).random(len(x))
    log_p = -energies - np.log(np.sum(np.exp(-energies)))
    found = exact.log_likelihood(cubic, params, Data(x, weights), num_states=3)
    np.testing.assert_allclose(found, np.average(log_p, weights=weights), rtol=1e-5)
    with pytest.raises(ValueError, match="letters must be 0 to 1 for num_states=2"):
        exact.log_likelihood(cubic, params, x)
    with pytest.raises(ValueError, match=r"data must be \(row, site\), got shape"):
        exact.log_likelihood(cubic, params, x[0])
    with pytest.raises(ValueError, match=r"data must be \(row, site\), got shape \(\("):
        exact.log_likelihood(cubic, params, (x, x))
