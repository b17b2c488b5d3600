import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax
from scipy.stats import t as student
from small_models import all_states

from probjax import Data, ising
from probjax.bases import (
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
from probjax.connectivity import SiteChanges
from probjax.potential import Potential, closed_forms, potential
from probjax.random import split_array

FACTOR = np.array([[0.5, 0.0, 0.0], [-1.0, 2.0, 0.0], [0.3, 0.7, 1.1]])
ODDS = np.array([[0.5, -1.0, 2.0, 0.1], [0.0, 0.3, -0.4, 0.2], [1.0, 1.0, 0.5, -2.0]])
NUM = 40_000
FEW = 10_000  # of what is slow to draw


def draws_of(base, key, count=NUM):
    return jax.tree.map(np.asarray, _draws(base, split_array(key, count)))


@jax.jit
def _draws(base, keys):
    return jax.vmap(base.sample)(keys)


@jax.jit
def _density(base, x):
    return jnp.exp(-jax.vmap(base.energy)(x) - base.log_z)


def density(base, x):
    return np.asarray(_density(base, jax.tree.map(floats, x)))


def floats(values):
    """In the precision of the test."""
    return np.asarray(values, jnp.result_type(float))


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
    base = Bernoulli(3, np.array([0.5, -1.0, 2.0]))
    np.testing.assert_allclose(density(base, all_states(3)).sum(), 1, rtol=1e-12)
    _, log_z = said_of(Bernoulli(3), np.zeros(3))
    np.testing.assert_allclose(log_z, 3 * np.log(2), rtol=1e-12)
    draws = draws_of(base, key)
    chances = expit(base.log_odds)
    noise = np.sqrt(chances * (1 - chances) / NUM)
    assert (np.abs(draws.mean(0) - chances) < 5 * noise).all()


@pytest.mark.parametrize("odds", [0.0, ODDS[0], ODDS], ids=np.ndim)
def test_categorical_sums_to_one_and_draws_its_shares(odds, x64, key):
    base = Categorical(3, 4, odds)
    letters = all_states(3, num_letters=4)
    np.testing.assert_allclose(density(base, letters).sum(), 1, rtol=1e-12)
    shares = softmax(np.broadcast_to(odds, (3, 4)), axis=1)
    draws = draws_of(base, key)
    counted = (draws[:, :, None] == np.arange(4)).mean(0)
    noise = np.sqrt(shares * (1 - shares) / NUM)
    assert (np.abs(counted - shares) < 5 * noise).all()


def test_gaussian_integrates_to_one_and_draws_its_moments(x64, key):
    base = Gaussian(2, np.array([0.5, -1.0]), np.array([0.5, 2.0]))
    edge = np.linspace(-30, 30, 601)
    points = np.stack(np.meshgrid(edge, edge), -1).reshape(-1, 2)
    np.testing.assert_allclose(density(base, points).sum() * 0.1**2, 1, rtol=1e-9)
    covariance = np.diag(base.scale**2)
    assert max(moment_scores(draws_of(base, key), base.mean, covariance)) < 5


def test_full_gaussian_integrates_to_one_and_draws_its_covariance(x64, key):
    mean = np.array([0.5, -1.0, 0.2])
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
    np.testing.assert_allclose(said_of(base, x)[0], expected, rtol=1e-12)
    scales = np.array([0.5, 2.0, 1.1])
    alike, plain = Gaussian(3, mean, np.diag(scales)), Gaussian(3, mean, scales)
    np.testing.assert_allclose(said_of(alike, x), said_of(plain, x), rtol=1e-12)


@jax.jit
def said_of(base, x):
    """Energy and log Z."""
    return base.energy(x), base.log_z


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
    one, two, mean = np.array([0.7, 2.0]), np.array([3.0, 0.8]), np.array([1.0, -1])
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

    @jax.jit
    def both(x):
        together = [said_of(base, x) for base, _ in bases]
        apart = [
            [said_of(part, x[i : i + 1]) for i, part in enumerate(parts)]
            for _, parts in bases
        ]
        return together, apart

    together, apart = both(np.array([1.7, 0.4]))
    for found, parts in zip(together, apart, strict=True):
        np.testing.assert_allclose(found, np.sum(parts, 0), rtol=1e-12)


def test_exponential_integrates_to_one_above_its_bound(x64, key):
    base = Exponential(2, np.array([0.5, 2.0]), np.array([-1.0, 0.3]))
    one = Exponential(1, 0.5, -1.0)
    points = -1 + (np.arange(200_000) + 0.5) * 4e-4
    np.testing.assert_allclose(density(one, points[:, None]).sum() * 4e-4, 1, rtol=1e-7)
    assert said_of(base, np.array([-1.0, 0.3]))[0] == 0
    assert said_of(base, np.array([-1.1, 0.3]))[0] == np.inf
    inside = jax.jit(jax.grad(base.energy))(np.array([0.0, 1.0]))
    np.testing.assert_allclose(inside, base.rate)
    draws = draws_of(base, key)
    assert (draws >= base.lower).all()
    for i in range(2):
        quantiles = base.lower[i] - np.log1p(-LEVELS) / base.rate[i]
        assert worst_score(draws[:, i], quantiles, LEVELS) < 5


def test_laplace_draws_its_quantiles(x64, key):
    base = Laplace(2, np.array([0.5, -1.0]), np.array([0.5, 2.0]))
    draws = draws_of(base, key)
    sides = np.where(LEVELS < 0.5, np.log(2 * LEVELS), -np.log(2 * (1 - LEVELS)))
    for i in range(2):
        quantiles = base.mean[i] + base.scale[i] * sides
        assert worst_score(draws[:, i], quantiles, LEVELS) < 5


def test_student_t_draws_its_quantiles(x64, key):
    base = StudentT(
        2, np.array([0.6, 5.0]), np.array([0.5, -1.0]), np.array([0.5, 2.0])
    )
    levels = student(base.degrees, base.mean, base.scale).cdf(draws_of(base, key, FEW))
    for each in levels.T:
        assert worst_score(each, LEVELS, LEVELS) < 5


def test_student_t_of_few_degrees_draws_far_out_in_single_precision(key):
    draws = draws_of(StudentT(1, 0.05), key, FEW)[:, 0]
    # The share beyond z is about 2 C z^-nu / nu, C the density's leading constant.
    log_z = float(said_of(StudentT(1, 0.05), np.zeros(1, np.float32))[1])
    far = 1e30
    share = 2 * np.exp(0.525 * np.log(0.05) - log_z - 0.05 * np.log(far)) / 0.05
    found = np.mean(np.abs(draws) > far)
    assert abs(found - share) < 5 * np.sqrt(share / FEW)


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

        @jax.jit
        def told(key):
            x = base.sample(key)
            model = potential(type(base).energy, base)
            return x, model(x), base.energy(x), base.log_z

        x, *values = told(key)
        rows = base.prepare(jax.tree.map(lambda leaf: np.asarray(leaf)[None], x))
        first = jax.tree.map(lambda leaf: np.asarray(leaf)[0], rows)
        chex.assert_trees_all_equal(first, x)
        for leaf in jax.tree.leaves((x, rows, values)):
            assert leaf.dtype == dtype
        np.testing.assert_allclose(values[0], values[1], rtol=1e-6)
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
        float(drawn(form.unflatten([leaf * factor for leaf in leaves]), key))
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
    forms.add("bit_block")
    assert set(closed_forms(Bernoulli.energy)) == forms

    def gaps(model, x):
        bits = jnp.arange(3)
        return (
            model.flip_gaps(x),
            model.mirror_gap(x),
            jax.vmap(model.flip_gap(), (None, 0))(x, bits),
            model.site_gaps(x, 2),
            jax.vmap(model.site_gap(2), (None, 0))(x, bits),
        )

    @jax.jit
    @jax.vmap
    def both(x):
        return tuple(gaps(model, x) for model in both_ways(base))

    found, expected = both(floats(all_states(3)))
    chex.assert_trees_all_close(found, expected, atol=1e-12)


@pytest.mark.parametrize("odds", [0.0, ODDS[0], ODDS], ids=np.ndim)
def test_gaps_of_letters_equal_the_generic_path(odds, x64):
    base = Categorical(3, 4, odds)
    forms = {"site_gaps", "site_gap", "letter_block"}
    assert set(closed_forms(Categorical.energy)) == forms

    @jax.jit
    @jax.vmap
    def gaps(x):
        closed, generic = both_ways(base)
        found = [
            (model.site_gaps(x, 4), jax.vmap(model.site_gap(4), (None, 0))(x, sites))
            for model in (closed, generic)
        ]
        return *found, SiteChanges(4).gaps(closed, x, ()).gap

    sites = np.arange(3)
    found, expected, changes = gaps(floats(all_states(3, num_letters=4)))
    chex.assert_trees_all_close(found, expected, atol=1e-12)
    np.testing.assert_allclose(changes, found[0])


def both_ways(base):
    def plain(base, x):
        return base.energy(x)

    return potential(type(base).energy, base), potential(plain, base)


def test_a_base_and_a_model_make_a_potential(x64):
    base = Bernoulli(3, np.array([0.5, -1.0, 2.0]))
    params = ising.Params(np.array([0.1, -0.3, 1.0]), np.array([0.4, 0.0, -0.5]))
    weights = np.array([0.3, 0.7])
    between = Potential((Bernoulli.energy, ising.energy), (base, params), weights)
    assert between.has_closed_form("flip_gaps")

    @jax.jit
    def energies(x):
        parts = base.energy(x), ising.energy(params, x)
        return between(x), jnp.stack(parts), between.flip_gaps(x)

    here, parts, gaps = energies(np.array([1.0, 0.0, 1.0]))
    np.testing.assert_allclose(here, weights @ np.asarray(parts), rtol=1e-12)
    there, _, _ = energies(np.array([1.0, 1.0, 1.0]))
    np.testing.assert_allclose(gaps[1], float(here) - float(there), rtol=1e-12)


def test_products_are_bases_of_trees(x64, key):
    inner = Product((Categorical(2, 3, np.array([0.1, -0.4, 0.7])), Bernoulli(1, 0.5)))
    base = Product({"a": inner, "b": Bernoulli(2, -0.3)})
    states = [
        {"a": (one, two), "b": three}
        for one in all_states(2, num_letters=3)
        for two in all_states(1)
        for three in all_states(2)
    ]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    np.testing.assert_allclose(density(base, stacked).sum(), 1, rtol=1e-12)
    draws = draws_of(base, key, 1000)
    assert jax.tree.map(np.shape, draws) == {
        "a": ((1000, 2), (1000, 1)),
        "b": (1000, 2),
    }
    bits = np.concatenate([draws["a"][1], draws["b"]], axis=1)
    assert np.abs(np.corrcoef(bits.T) - np.eye(3)).max() < 5 / np.sqrt(1000)
    assert Product([Gaussian(2), Laplace(1)]).domain == "reals"


def test_fitted_bases_have_the_moments_of_weighted_data(x64):
    x, weights = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]), np.array([1.0, 2.0, 0])
    counted, repeated = Data(x, weights), x[[0, 1, 1]]

    @jax.jit
    def discrete(data):
        return fit_bernoulli(data), fit_categorical(data, 3)

    @jax.jit
    def continuous(data):
        return fit_gaussian(data), fit_laplace(data)

    bits, letters = discrete(counted)
    chex.assert_trees_all_close((bits, letters), discrete(repeated), rtol=1e-12)
    np.testing.assert_allclose(expit(bits.log_odds), [2.5 / 4, 3.5 / 4], rtol=1e-12)
    shares = [[4 / 12, 7 / 12, 1 / 12], [1 / 12, 10 / 12, 1 / 12]]
    np.testing.assert_allclose(np.exp(letters.log_odds), shares, rtol=1e-12)
    y = x + np.arange(3.0)[:, None]
    (normal, laplace), rows = continuous(Data(y, weights)), y[[0, 1, 1]]
    np.testing.assert_allclose(normal.mean, rows.mean(0))
    np.testing.assert_allclose(normal.scale, rows.std(0))
    np.testing.assert_allclose(laplace.mean, rows.mean(0))
    np.testing.assert_allclose(laplace.scale, np.abs(rows - rows.mean(0)).mean(0))


def test_full_gaussian_has_the_covariance_of_weighted_data(x64):
    x = np.array([[0.0, 1.0], [2.0, 1.5], [1.0, -1.0], [9.0, 9.0]])
    data = Data(x, np.array([2.0, 4.0, 2.0, 0.0]))
    base = fit_full_gaussian(data)
    rows, scale = x[[0, 1, 1, 2]], np.asarray(base.scale)
    np.testing.assert_allclose(base.mean, rows.mean(0))
    covariance = scale @ scale.T
    np.testing.assert_allclose(covariance, np.cov(rows.T, bias=True), rtol=1e-12)
    traced = jax.jit(fit_full_gaussian)(data)
    chex.assert_trees_all_close(traced, base, rtol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_singular_covariances_are_refused_whatever_the_units(scale):
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    x[:, 1] *= scale
    fit_full_gaussian(x)
    # Shapes alike, for one program: of four rows, again and again, and of one column.
    for few in (x[np.arange(50) % 4], x @ np.array([[1.0, 2, 0, 0]] * 4).T):
        with pytest.raises(
            ValueError, match="a covariance of rank 4, got rank .; try more"
        ):
            fit_full_gaussian(few)
    x[:, 2] = x[:, 0] + x[:, 3]
    with pytest.raises(ValueError, match="a covariance of rank 4, got rank 3"):
        fit_full_gaussian(x)
    x[:, 2] = 1
    with pytest.raises(ValueError, match="a covariance of rank 4, got rank 3"):
        fit_full_gaussian(x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(2, scale=0.0), "scale must be positive, got 0"),
        (lambda: Gaussian(2, np.nan), "mean must be finite, got nan"),
        (lambda: Gaussian(2, scale=FACTOR), r"a 2 x 2 matrix, got shape \(3, 3\)"),
        (lambda: Gaussian(3, scale=FACTOR.T), "lower triangular matrix with a pos"),
        (lambda: Gaussian(3, scale=-FACTOR), "with a positive diagonal"),
        (lambda: Laplace(2, scale=-1.0), "scale must be positive, got -1"),
        (lambda: StudentT(2, 0.0), "degrees must be positive, got 0"),
        (lambda: StudentT(2, 1.0, np.zeros(3)), "mean must be one number or one for"),
        (lambda: Exponential(2, 0.0), "rate must be positive, got 0"),
        (lambda: Exponential(2, lower=np.inf), "lower must be finite, got inf"),
        (lambda: Bernoulli(2, np.zeros(3)), "log_odds must be one number or one for"),
        (lambda: Bernoulli(0), "size must be an integer of at least 1"),
        (
            lambda: Bernoulli(np.zeros(3)),
            r"size must be the number of entries of a state, got an array of shape "
            r"\(3,\); try to pass the array as log_odds=",
        ),
        (lambda: Categorical(2, 1), "num_states must be an integer of at least 2"),
        (lambda: Categorical(2, 3, np.zeros(2)), r"array of shape \(2, 3\), got shape"),
        (lambda: Categorical(2, 3, -np.inf), "log_odds must be finite, got -inf"),
        (lambda: Product(()), r"must be a pytree of bases, got \(\)"),
        (lambda: Product({"a": 1.0}), "must be a pytree of bases, got {'a': 1.0}"),
        (lambda: fit_gaussian(np.ones((3, 2))), "scale must be positive"),
        (lambda: fit_laplace(np.ones((3, 2))), "scale must be positive"),
        (
            lambda: fit_categorical(np.full((3, 2), 3), 3),
            "letters must be 0 to 2 .*got 3",
        ),
        (lambda: fit_gaussian(np.ones(3)), r"\(row, entry\), got shape \(3,\)"),
        (lambda: Laplace(2).prepare(np.zeros((1, 3))), "have the 2 entries of the"),
        (lambda: Categorical(2, 3).prepare([[0.0, 3.0]]), "letters must be 0 to 2"),
        (
            lambda: Exponential(2, lower=0.5).prepare(np.array([[1.0, 0.4]])),
            "data must be at least lower=0.5, got entries down to 0.4",
        ),
        (
            lambda: Product({"a": Gaussian(1)}).prepare({"b": np.zeros((1, 1))}),
            "like parts, with a state for each of 1 bases",
        ),
    ],
)
def test_bad_bases_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
