import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import Data, Potential, SiteChanges, exact, ising, potential
from probjax.annealing import (
    Bernoulli,
    Categorical,
    Exponential,
    Gaussian,
    Laplace,
    Product,
    StudentT,
    fit_bernoulli,
    fit_categorical,
    fit_full_gaussian,
    fit_gaussian,
    fit_laplace,
)
from probjax.types import closed_forms

FACTOR = np.array([[0.5, 0.0, 0.0], [-1.0, 2.0, 0.0], [0.3, 0.7, 1.1]])
ODDS = np.array([[0.5, -1.0, 2.0, 0.1], [0.0, 0.3, -0.4, 0.2], [1.0, 1.0, 0.5, -2.0]])
NUM = 40_000


def draws_of(base, key, count=NUM):
    return jax.jit(jax.vmap(base.sample))(jax.random.split(key, count))


def density(base, x):
    return np.exp(-jax.vmap(base.energy)(jnp.asarray(x)) - base.log_z)


def worst_score(draws, quantiles, levels):
    """How far, in standard errors, the shares below true `quantiles` are off."""
    shares = (np.asarray(draws)[:, None] < np.asarray(quantiles)[None]).mean(0)
    noise = np.sqrt(levels * (1 - levels) / len(draws))
    return np.abs((shares - levels) / noise).max()


def moment_scores(draws, mean, covariance):
    """The same of means and of the covariance of normal draws."""
    draws, count = np.asarray(draws, float), len(draws)
    variance = np.diagonal(covariance)
    means = (draws.mean(0) - mean) / np.sqrt(variance / count)
    noise = np.sqrt((covariance**2 + np.outer(variance, variance)) / count)
    return np.abs(means).max(), np.abs((np.cov(draws.T) - covariance) / noise).max()


LEVELS = np.array([0.01, 0.1, 0.3, 0.5, 0.8, 0.95, 0.999])


def test_bernoulli_sums_to_one_and_draws_its_odds(x64, key):
    base = Bernoulli(3, jnp.array([0.5, -1.0, 2.0]))
    np.testing.assert_allclose(density(base, exact.states(3)).sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(Bernoulli(3).log_z, 3 * np.log(2), rtol=1e-12)
    draws = draws_of(base, key)
    chances = np.asarray(jax.nn.sigmoid(base.log_odds))
    noise = np.sqrt(chances * (1 - chances) / NUM)
    assert (np.abs(draws.mean(0) - chances) < 5 * noise).all()


@pytest.mark.parametrize("odds", [0.0, ODDS[0], ODDS], ids=np.ndim)
def test_categorical_sums_to_one_and_draws_its_shares(odds, x64, key):
    base = Categorical(3, 4, odds)
    letters = exact.states(3, num_states=4)
    np.testing.assert_allclose(density(base, letters).sum(), 1, rtol=1e-12)
    shares = np.asarray(jax.nn.softmax(base.table + jnp.zeros((3, 4)), axis=1))
    draws = np.asarray(draws_of(base, key))
    counted = (draws[:, :, None] == np.arange(4)).mean(0)
    noise = np.sqrt(shares * (1 - shares) / NUM)
    assert (np.abs(counted - shares) < 5 * noise).all()


def test_gaussian_integrates_to_one_and_draws_its_moments(x64, key):
    base = Gaussian(2, jnp.array([0.5, -1.0]), jnp.array([0.5, 2.0]))
    edge = np.linspace(-30, 30, 601)
    points = np.stack(np.meshgrid(edge, edge), -1).reshape(-1, 2)
    np.testing.assert_allclose(density(base, points).sum() * 0.1**2, 1, rtol=1e-9)
    covariance = np.diag(np.asarray(base.scale) ** 2)
    assert max(moment_scores(draws_of(base, key), base.mean, covariance)) < 5


def test_full_gaussian_integrates_to_one_and_draws_its_covariance(x64, key):
    mean = jnp.array([0.5, -1.0, 0.2])
    small = Gaussian(2, mean[:2], FACTOR[:2, :2])
    edge = np.linspace(-30, 30, 601)
    points = np.stack(np.meshgrid(edge, edge), -1).reshape(-1, 2)
    np.testing.assert_allclose(density(small, points).sum() * 0.1**2, 1, rtol=1e-9)
    base = Gaussian(3, mean, FACTOR)
    scores = moment_scores(draws_of(base, key), mean, FACTOR @ FACTOR.T)
    assert max(scores) < 5
    x = np.array([0.3, 1.0, -2.0])
    precision = np.linalg.inv(FACTOR @ FACTOR.T)
    expected = (x - mean) @ precision @ (x - mean) / 2
    np.testing.assert_allclose(base.energy(x), expected, rtol=1e-12)
    scales = np.array([0.5, 2.0, 1.1])
    alike, plain = Gaussian(3, mean, np.diag(scales)), Gaussian(3, mean, scales)
    np.testing.assert_allclose(alike.energy(x), plain.energy(x), rtol=1e-12)
    np.testing.assert_allclose(alike.log_z, plain.log_z, rtol=1e-12)


def stretched(far, count):
    """Points of the line that reach exp(far), and what each stands for."""
    step = 2 * far / count
    even = (np.arange(count) - count / 2 + 0.5) * step
    return np.sinh(even), np.cosh(even) * step


@pytest.mark.parametrize(
    "base",
    [Laplace(1, 0.0, 0.7), StudentT(1, 0.6, 0.0, 2.0), StudentT(1, 4, 0.3, 0.5)],
    ids=["laplace", "heavy", "light"],
)
def test_continuous_bases_integrate_to_one(base, x64):
    points, widths = stretched(60, 200_000)
    total = density(base, points[:, None]) @ widths
    np.testing.assert_allclose(total, 1, rtol=1e-7)


def test_bases_of_many_entries_are_products_over_them(x64):
    one, two, mean = jnp.array([0.7, 2.0]), jnp.array([3.0, 0.8]), jnp.array([1.0, -1])
    bases = [
        (
            Laplace(2, mean, one),
            [Laplace(1, m, s) for m, s in zip(mean, one, strict=True)],
        ),
        (
            StudentT(2, two, mean, one),
            [StudentT(1, d, m, s) for d, m, s in zip(two, mean, one, strict=True)],
        ),
        (
            Exponential(2, one, mean),
            [Exponential(1, r, low) for r, low in zip(one, mean, strict=True)],
        ),
        (Laplace(2, 0.5, 0.3), [Laplace(1, 0.5, 0.3)] * 2),
        (StudentT(2, 3.0), [StudentT(1, 3.0)] * 2),
        (Exponential(2, 0.5), [Exponential(1, 0.5)] * 2),
    ]
    x = jnp.array([1.7, 0.4])
    for base, parts in bases:
        apart = sum(part.energy(x[i : i + 1]) for i, part in enumerate(parts))
        np.testing.assert_allclose(base.energy(x), apart, rtol=1e-12)
        total = sum(part.log_z for part in parts)
        np.testing.assert_allclose(base.log_z, total, rtol=1e-12)


def test_exponential_integrates_to_one_above_its_bound(x64, key):
    base = Exponential(2, jnp.array([0.5, 2.0]), jnp.array([-1.0, 0.3]))
    one = Exponential(1, 0.5, -1.0)
    points = -1 + (np.arange(200_000) + 0.5) * 4e-4
    np.testing.assert_allclose(density(one, points[:, None]).sum() * 4e-4, 1, rtol=1e-7)
    assert base.energy(jnp.array([-1.0, 0.3])) == 0
    assert base.energy(jnp.array([-1.1, 0.3])) == np.inf
    inside = jax.grad(base.energy)(jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(inside, base.rate)
    draws = np.asarray(draws_of(base, key))
    assert (draws >= np.asarray(base.lower)).all()
    for i in range(2):
        quantiles = base.lower[i] - np.log1p(-LEVELS) / base.rate[i]
        assert worst_score(draws[:, i], quantiles, LEVELS) < 5


def test_laplace_draws_its_quantiles(x64, key):
    base = Laplace(2, jnp.array([0.5, -1.0]), jnp.array([0.5, 2.0]))
    draws = draws_of(base, key)
    sides = np.where(LEVELS < 0.5, np.log(2 * LEVELS), -np.log(2 * (1 - LEVELS)))
    for i in range(2):
        quantiles = base.mean[i] + base.scale[i] * sides
        assert worst_score(draws[:, i], quantiles, LEVELS) < 5


def student_cdf(z, degrees):
    tail = jax.scipy.special.betainc(degrees / 2, 0.5, degrees / (degrees + z**2)) / 2
    return jnp.where(z < 0, tail, 1 - tail)


def test_student_t_draws_its_quantiles(x64, key):
    base = StudentT(
        2, jnp.array([0.6, 5.0]), jnp.array([0.5, -1.0]), jnp.array([0.5, 2.0])
    )
    z = (draws_of(base, key) - base.mean[None]) / base.scale[None]
    levels = jax.vmap(student_cdf, (1, 0))(z, base.degrees)
    for each in levels:
        assert worst_score(each, LEVELS, LEVELS) < 5


def test_student_t_of_few_degrees_draws_far_out_in_single_precision(key):
    draws = draws_of(StudentT(1, 0.05), key)[:, 0]
    # The share beyond z is about 2 C z^-nu / nu, C the density's leading constant.
    log_z = float(StudentT(1, 0.05).log_z)
    far = 1e30
    share = 2 * np.exp(0.525 * np.log(0.05) - log_z - 0.05 * np.log(far)) / 0.05
    found = float(jnp.mean(jnp.abs(draws) > far))
    assert abs(found - share) < 5 * np.sqrt(share / NUM)


CASES = [
    Gaussian(3, 0.5, np.array([0.5, 1.0, 2.0])),
    Gaussian(3, 0.5, FACTOR),
    Laplace(3, np.array([0.5, 1.0, 2.0])),
    StudentT(3, 3.0),
    Exponential(3, 2.0, -0.5),
    Bernoulli(3, np.array([0.5, -1.0, 2.0])),
    Categorical(3, 4, ODDS),
    Product({"bits": Bernoulli(2, 0.3), "rest": (Gaussian(1), Laplace(3, 0.1))}),
]


def name(base):
    return type(base).__name__


@pytest.mark.parametrize("base", CASES, ids=name)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_bases_keep_their_contract(base, dtype, x64, key):
    with jax.enable_x64(dtype == jnp.float64):
        x = base.sample(key)
        rows = base.prepare(jax.tree.map(lambda leaf: leaf[None], x))
        chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[0], rows), x)
        model = potential(type(base).energy, base)
        for leaf in jax.tree.leaves((x, model(x), base.log_z)):
            assert leaf.dtype == dtype
        np.testing.assert_allclose(model(x), base.energy(x), rtol=1e-6)
        domains = {"Bernoulli": "bits", "Categorical": "letters", "Product": "mixed"}
        assert base.domain == domains.get(name(base), "reals")


@pytest.mark.parametrize("base", CASES, ids=name)
def test_bases_are_rebuilt_without_tracing_again(base, key):
    traced = []

    @jax.jit
    def drawn(base, key):
        traced.append(0)
        return base.energy(base.sample(key)) + base.log_z

    leaves, form = jax.tree.flatten(base)
    found = [
        drawn(form.unflatten([leaf * factor for leaf in leaves]), key)
        for factor in (1.0, 1.5)
    ]
    assert traced == [0]
    assert found[0] != found[1]
    assert form.unflatten(leaves) == base
    assert form.unflatten([1.5 * leaf for leaf in leaves]) != base


@pytest.mark.parametrize("odds", [-0.7, np.array([0.5, -1.0, 2.0])], ids=np.ndim)
def test_gaps_of_bits_equal_the_generic_path(odds, x64):
    base = Bernoulli(3, odds)
    forms = {"flip_gaps", "flip_gap", "mirror_gap", "site_gaps", "site_gap"}
    assert set(closed_forms(Bernoulli.energy)) == forms
    closed, generic = both_ways(base)

    def gaps(model, x):
        bits = jnp.arange(3)
        return (
            model.flip_gaps(x),
            model.mirror_gap(x),
            jax.vmap(model.flip_gap(), (None, 0))(x, bits),
            model.site_gaps(x, 2),
            jax.vmap(model.site_gap(2), (None, 0))(x, bits),
        )

    for x in exact.states(3):
        chex.assert_trees_all_close(gaps(closed, x), gaps(generic, x), atol=1e-12)


@pytest.mark.parametrize("odds", [0.0, ODDS[0], ODDS], ids=np.ndim)
def test_gaps_of_letters_equal_the_generic_path(odds, x64):
    base = Categorical(3, 4, odds)
    assert set(closed_forms(Categorical.energy)) == {"site_gaps", "site_gap"}
    closed, generic = both_ways(base)

    @jax.jit
    @jax.vmap
    def gaps(x):
        found = [
            (model.site_gaps(x, 4), jax.vmap(model.site_gap(4), (None, 0))(x, sites))
            for model in (closed, generic)
        ]
        return tuple(found)

    sites = jnp.arange(3)
    found, expected = gaps(exact.states(3, num_states=4))
    chex.assert_trees_all_close(found, expected, atol=1e-12)
    changes = SiteChanges(4).gaps(closed, jnp.array([0.0, 3, 1]), ())
    np.testing.assert_allclose(changes.gap, closed.site_gaps(jnp.array([0.0, 3, 1]), 4))


def both_ways(base):
    def plain(base, x):
        return base.energy(x)

    return potential(type(base).energy, base), potential(plain, base)


def test_a_base_and_a_model_make_a_potential(x64):
    base = Bernoulli(3, jnp.array([0.5, -1.0, 2.0]))
    params = ising.from_matrix([[0.1, 0.4, 0.0], [0.4, -0.3, -0.5], [0.0, -0.5, 1.0]])
    weights = jnp.array([0.3, 0.7])
    between = Potential((Bernoulli.energy, ising.energy), (base, params), weights)
    assert between.knows("flip_gaps")
    x = jnp.array([1.0, 0.0, 1.0])
    expected = 0.3 * base.energy(x) + 0.7 * ising.energy(params, x)
    np.testing.assert_allclose(between(x), expected, rtol=1e-12)
    flipped = jnp.abs(x - jnp.eye(3)[1])
    gap = between(x) - between(flipped)
    np.testing.assert_allclose(between.flip_gaps(x)[1], gap, rtol=1e-12)


def test_products_are_bases_of_trees(x64, key):
    inner = Product((Categorical(2, 3, jnp.array([0.1, -0.4, 0.7])), Bernoulli(1, 0.5)))
    base = Product({"a": inner, "b": Bernoulli(2, -0.3)})
    first = exact.states(2, num_states=3)
    states = [
        {"a": (one, two), "b": three}
        for one in first
        for two in exact.states(1)
        for three in exact.states(2)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    total = jnp.sum(jnp.exp(-jax.vmap(base.energy)(stacked) - base.log_z))
    np.testing.assert_allclose(total, 1, rtol=1e-12)
    draws = draws_of(base, key, 1000)
    assert jax.tree.map(jnp.shape, draws) == {
        "a": ((1000, 2), (1000, 1)),
        "b": (1000, 2),
    }
    bits = np.concatenate([draws["a"][1], draws["b"]], axis=1)
    assert np.abs(np.corrcoef(bits.T) - np.eye(3)).max() < 5 / np.sqrt(1000)
    assert Product([Gaussian(2), Laplace(1)]).domain == "reals"


def test_fitted_bases_have_the_moments_of_weighted_data(x64):
    x, weights = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]), np.array([1.0, 2.0, 0])
    counted, repeated = Data(x, weights), x[[0, 1, 1]]
    bits = fit_bernoulli(counted)
    assert bits == fit_bernoulli(repeated)
    on = jax.nn.sigmoid(bits.log_odds)
    np.testing.assert_allclose(on, [2.5 / 4, 3.5 / 4], rtol=1e-12)
    letters = fit_categorical(Data(x, weights), 3)
    assert letters == fit_categorical(repeated, 3)
    shares = [[4 / 12, 7 / 12, 1 / 12], [1 / 12, 10 / 12, 1 / 12]]
    np.testing.assert_allclose(np.exp(letters.log_odds), shares, rtol=1e-12)
    y = x + np.arange(3.0)[:, None]
    normal, rows = fit_gaussian(Data(y, weights)), y[[0, 1, 1]]
    np.testing.assert_allclose(normal.mean, rows.mean(0))
    np.testing.assert_allclose(normal.scale, rows.std(0))
    laplace = fit_laplace(Data(y, weights))
    np.testing.assert_allclose(laplace.mean, rows.mean(0))
    np.testing.assert_allclose(laplace.scale, np.abs(rows - rows.mean(0)).mean(0))


def test_full_gaussian_has_the_covariance_of_weighted_data(x64):
    x = np.array([[0.0, 1.0], [2.0, 1.5], [1.0, -1.0], [9.0, 9.0]])
    base = fit_full_gaussian(Data(x, np.array([2.0, 4.0, 2.0, 0.0])))
    rows = x[[0, 1, 1, 2]]
    np.testing.assert_allclose(base.mean, rows.mean(0))
    covariance = base.scale @ base.scale.T
    np.testing.assert_allclose(covariance, np.cov(rows.T, bias=True), rtol=1e-12)
    traced = jax.jit(fit_full_gaussian)(x[:3])
    chex.assert_trees_all_close(traced, fit_full_gaussian(x[:3]), rtol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_singular_covariances_are_refused_whatever_the_units(scale):
    x = np.array(jax.random.normal(jax.random.key(0), (50, 4)))
    x[:, 1] *= scale
    fit_full_gaussian(x)
    for few in (x[:4], x @ np.array([1.0, 2, 0, 0])[:, None] + np.zeros((1, 2))):
        with pytest.raises(ValueError, match="covariance is singular. Use more rows"):
            fit_full_gaussian(few)
    x[:, 2] = x[:, 0] + x[:, 3]
    with pytest.raises(ValueError, match="must vary in all 4 directions, got 3"):
        fit_full_gaussian(x)
    x[:, 2] = 1
    with pytest.raises(ValueError, match="must vary in all 4 directions, got 3"):
        fit_full_gaussian(x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(2, scale=0.0), "scale must be positive, got 0"),
        (lambda: Gaussian(2, np.nan), "mean must be finite, got nan"),
        (lambda: Gaussian(2, scale=FACTOR), r"a matrix of 2 x 2, got shape \(3, 3\)"),
        (lambda: Gaussian(3, scale=FACTOR.T), "lower triangular matrix with a pos"),
        (lambda: Gaussian(3, scale=-FACTOR), "with a positive diagonal"),
        (lambda: Laplace(2, scale=-1.0), "scale must be positive, got -1"),
        (lambda: StudentT(2, 0.0), "degrees must be positive, got 0"),
        (lambda: StudentT(2, 1.0, jnp.zeros(3)), "mean must be one number or one for"),
        (lambda: Exponential(2, 0.0), "rate must be positive, got 0"),
        (lambda: Exponential(2, lower=np.inf), "lower must be finite, got inf"),
        (lambda: Bernoulli(2, jnp.zeros(3)), "log_odds must be one number or one for"),
        (lambda: Bernoulli(0), "size must be an integer of at least 1"),
        (
            lambda: Bernoulli(np.zeros(3)),
            r"size must be the number of entries of a state, and log_odds follows it: "
            r"got an array of shape \(3,\)",
        ),
        (lambda: Categorical(2, 1), "num_states must be an integer of at least 2"),
        (lambda: Categorical(2, 3, jnp.zeros(2)), r"or of shape \(2, 3\), got shape"),
        (lambda: Categorical(2, 3, -np.inf), "log_odds must be finite, got -inf"),
        (lambda: Product(()), r"must be a tree of bases, got \(\)"),
        (lambda: Product({"a": 1.0}), "must be a tree of bases, got {'a': 1.0}"),
        (lambda: fit_gaussian(np.ones((3, 2))), "scale must be positive"),
        (lambda: fit_laplace(np.ones((3, 2))), "scale must be positive"),
        (lambda: fit_categorical(np.full((3, 2), 3), 3), "letters 0 to 2, got 3"),
        (lambda: fit_gaussian(np.ones(3)), r"\(row, entry\), got shape \(3,\)"),
        (lambda: Laplace(2).prepare(jnp.zeros((1, 3))), "have the 2 entries of the"),
        (lambda: Categorical(2, 3).prepare([[0.0, 3.0]]), "letters 0 to 2"),
        (
            lambda: Exponential(2, lower=0.5).prepare(jnp.array([[1.0, 0.4]])),
            "data must not be below lower=0.5",
        ),
        (
            lambda: Product({"a": Gaussian(1)}).prepare({"b": jnp.zeros((1, 1))}),
            "must be a tree of 1 states, one for each part",
        ),
    ],
)
def test_bad_bases_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
