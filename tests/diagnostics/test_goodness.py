from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from small_models import all_states, drawn_from, log_probs_of, random_ising

from probjax import Data, exact, ising
from probjax.diagnostics import goodness
from probjax.diagnostics.goodness import (
    Comparison,
    compare,
    population_count,
    third_moments,
)

SIZE = 5
TRUTH = random_ising(0, SIZE, scale=0.5)
STATES = all_states(SIZE).astype(np.float32)


def counted(params):
    return Data(STATES, np.exp(log_probs_of(params)))


EXACT = counted(TRUTH)
DATA = drawn_from(0, TRUTH, 700)
DRAWS = drawn_from(1, TRUTH, 900).reshape(3, 300, SIZE)


def powers(scale, x):
    """Any statistic with arguments, of a shape of its own."""
    return jnp.stack([x * scale, x[::-1] ** 2 + scale])


def triple(centre, x):
    y = x - centre
    i, j, k = goodness.triples(SIZE).T
    return y[i] * y[j] * y[k]


def by_hand(values, drawn):
    """The definition in NumPy, from values `(row, ...)` and `(chain, draw, ...)`."""
    observed, expected = values.mean(0), drawn.mean((0, 1))
    of_row = (values.var(0, ddof=1) + drawn.var((0, 1))) / 2
    noise = drawn.mean(1).var(0, ddof=1) / len(drawn)
    stderr = np.sqrt(of_row / len(values) + noise)
    return Comparison(observed, expected, stderr, (observed - expected) / stderr)


def assert_same(found, expected, rtol=1e-4):
    for name in Comparison._fields:
        ours, theirs = getattr(found, name), getattr(expected, name)
        atol = 1e-3 if name == "z" else 1e-6
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol, err_msg=name)


def test_comparison_is_its_definition_in_more_rows_than_a_chunk_holds():
    scale = np.arange(1.0, SIZE + 1)

    def values(x):
        x = np.asarray(x, float)
        return np.stack([x * scale, x[..., ::-1] ** 2 + scale], axis=-2)

    assert len(DATA) > 2 * goodness.CHUNK
    found = compare(Partial(powers, scale), DATA, DRAWS)
    assert_same(found, by_hand(values(DATA), values(DRAWS)))


def test_third_moments_are_those_of_all_triples_about_the_means_of_the_data():
    centre = np.asarray(DATA, float).mean(0)

    def values(x):
        y = np.asarray(x, float) - centre
        return np.stack(
            [np.prod(y[..., list(t)], -1) for t in combinations(range(SIZE), 3)], -1
        )

    found = third_moments(DATA, DRAWS)
    assert_same(found, by_hand(values(DATA), values(DRAWS)), rtol=1e-3)
    assert_same(found, compare(Partial(triple, centre), DATA, DRAWS), rtol=1e-3)


def pair(x):
    first, second = np.triu_indices(SIZE)
    return x[..., first] * x[..., second]


def test_pair_frequencies_are_what_compare_says_of_all_pairs():
    found = goodness.pair_frequencies(DATA, DRAWS)
    assert_same(found, by_hand(*(pair(np.asarray(x, float)) for x in (DATA, DRAWS))))
    assert_same(goodness.pair_frequencies(DATA, EXACT), compare(pair, DATA, EXACT))
    # As bits are often kept.
    assert_same(goodness.pair_frequencies(DATA.astype(bool), DRAWS), found)


def test_population_count_is_a_histogram_of_sums():
    def values(x):
        return np.asarray(x).sum(-1)[..., None] == np.arange(SIZE + 1.0)

    found = population_count(DATA.astype(bool), DRAWS)
    with np.errstate(invalid="ignore"):
        expected = by_hand(values(DATA).astype(float), values(DRAWS).astype(float))
    assert_same(found, expected._replace(z=np.nan_to_num(expected.z)))
    np.testing.assert_allclose(found.observed.sum(), 1, rtol=1e-6)


def test_weights_of_data_are_counts():
    rows, counts = DATA[:350], np.arange(350) % 5
    weighted = Data(rows, counts)
    repeated = np.repeat(rows, counts, axis=0)
    assert_same(third_moments(weighted, DRAWS), third_moments(repeated, DRAWS), 1e-3)


def test_weights_of_the_model_are_probabilities_without_noise():
    p, x = np.asarray(EXACT.weights, float), STATES.astype(float)
    found = jax.tree.map(np.asarray, compare(Partial(powers, 1.0), DATA, EXACT))
    values, seen = x[:, ::-1] ** 2 + 1, np.asarray(DATA, float)[:, ::-1] ** 2 + 1
    expected = p @ values
    of_row = (p @ (values - expected) ** 2 + seen.var(0, ddof=1)) / 2
    np.testing.assert_allclose(found.expected[1], expected, rtol=1e-5)
    np.testing.assert_allclose(found.stderr[1] ** 2, of_row / len(DATA), rtol=1e-4)


def test_statistics_far_from_zero_keep_their_digits():
    found = compare(Partial(shifted, 3e4), DATA, DRAWS)
    near = compare(Partial(shifted, 0.0), DATA, DRAWS)
    # Means near 3e4 are rounded to half of this spacing, those of chains and theirs in
    # turn, and the error changes by no more than the deviations of chains do.
    rounding = np.spacing(np.float32(3e4))
    np.testing.assert_allclose(found.stderr, near.stderr, rtol=0, atol=rounding)


def shifted(shift, x):
    return x + shift


def test_what_was_never_seen_has_no_z_and_what_only_one_has_seen_is_finite():
    """Rows without a 1 in the last two sites, and a model that may have one there."""
    data = DATA * (np.arange(SIZE) < 3)
    draws = DRAWS * (np.arange(SIZE) < 4)
    found = jax.tree.map(np.asarray, population_count(data, draws))
    assert found.stderr[SIZE] == found.z[SIZE] == 0
    assert np.isfinite(found.z).all()
    found = jax.tree.map(np.asarray, third_moments(data, draws))
    unseen = np.any(goodness.triples(SIZE) == 4, axis=1)
    np.testing.assert_array_equal(found.z == 0, unseen)
    assert np.isfinite(found.z).all()
    found = jax.tree.map(np.asarray, compare(jnp.asarray, data, draws))
    assert found.observed[3] == 0
    assert 3 < -found.z[3] < 100
    apart = compare(jnp.asarray, np.ones_like(data), np.zeros_like(draws))
    np.testing.assert_array_equal(apart.z, np.inf)


def test_constants_that_differ_by_rounding_are_equal():
    """A unit that is always on, by counts and by probabilities that sum to 1 nearly."""
    data = np.where(np.arange(SIZE) == 0, 1, DATA)
    model = EXACT._replace(x=np.where(np.arange(SIZE) == 0, 1, STATES))
    found = compare(Partial(shifted, 0.1), data, model)
    assert np.asarray(found.z)[0] == 0
    assert np.abs(np.asarray(found.z)[1:]).min() > 0


@jax.jit
def z_scores(model):
    """(set, entry), by name, of 200 sets of independent rows of the truth."""

    def one(key):
        x = exact.sample(key, ising.energy, TRUTH, SIZE, num_draws=4000)
        return {
            "third moments": third_moments(x, model).z,
            "population count": population_count(x, model).z,
        }

    return jax.lax.map(one, jax.random.split(jax.random.key(5), 200))


@pytest.mark.statistics
def test_a_single_sequence_of_draws_is_cut_into_batches():
    """Independent draws, such as those of `exact.sample`, need no chains."""
    rows = drawn_from(2, TRUTH, 805)
    found = compare(jnp.asarray, DATA, rows)
    batches = rows[:800].reshape(20, 40, SIZE)
    expected = compare(jnp.asarray, DATA, batches)
    np.testing.assert_array_equal(found.z, expected.z)
    assert np.abs(found.z).max() < 4


def test_model_without_couplings_is_caught():
    """By every set, though it has the means of the units."""
    means = EXACT.weights @ STATES
    independent = ising.from_matrix(np.diag(np.log(1 / means - 1)))
    for name, z in z_scores(counted(independent)).items():
        assert (np.asarray(z) ** 2).mean(1).min() > 3, name


def test_verdict_names_the_entry_that_differs_most():
    z = np.zeros(10)
    z[[2, 6]] = 3.5, -6.24
    found = Comparison(z, z, z, z)
    assert found.describe(goodness.triples(5)) == (
        "2 of 10 entries differ by more than 3 standard errors (0.027 by chance), "
        "the largest by 6.2 at (1, 2, 3)"
    )
    grid = Comparison(*[z.reshape(2, 5)] * 4)
    assert grid.describe(threshold=5).endswith("the largest by 6.2 at (1, 1)")
    assert grid.describe(threshold=5).startswith("1 of 10")


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        (DATA[:1], DRAWS, "at least two rows, got 1"),
        (EXACT, DRAWS, r"at least two rows, got [\d.]+; weights are counts"),
        (DATA, DRAWS[:1], r"at least two chains, got shape \(1, 300, 5\)"),
        (DATA, DRAWS[0, 0], r"at least two chains, got shape \(5,\)"),
        (DATA, DRAWS[0, :1], r"at least two chains, got shape \(1, 1, 5\)"),
        (DATA, DRAWS[..., :3], r"states like the data's, of shape \(5,\), got \(3,\)"),
        (DATA, DRAWS[..., 1:], r"of shape \(5,\), got \(4,\)"),
        (Data(DATA, mask=DATA > -1), DRAWS, "data must be complete"),
        (DATA, Data(DATA), "that sum to 1, got a sum of 0"),
        (
            DATA,
            Data(STATES, np.ones(32)),
            "that sum to 1, got a sum of 32",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(data, model, message):
    with pytest.raises(ValueError, match=message):
        compare(jnp.sum, data, model)


def test_data_of_the_wrong_kind_are_refused():
    with pytest.raises(ValueError, match="states of bits must be 0 or 1, got spins"):
        population_count(2 * DATA - 1, DRAWS)
    with pytest.raises(ValueError, match="states of bits must be 0 or 1, got spins"):
        population_count(DATA, 2 * DRAWS - 1)
    with pytest.raises(ValueError, match="states of bits must be 0 or 1, got spins"):
        goodness.pair_frequencies(2 * DATA - 1, DRAWS)
    with pytest.raises(ValueError, match=r"\(row, site\), got shape \(700,\)"):
        goodness.pair_frequencies(DATA[:, 0], DRAWS[..., 0])
    with pytest.raises(ValueError, match=r"at least 3 sites, got shape \(700, 2\)"):
        third_moments(DATA[:, :2], DRAWS[..., :2])
