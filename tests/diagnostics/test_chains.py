import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import diagnostics
from probjax.diagnostics import Verdict, estimators


def autoregressive(seed, rho, *shape):
    """Chains `(chain, draw, ...)` of unit variance and correlation `rho` in a draw."""
    noise = np.random.default_rng(seed).normal(size=shape)
    x = noise.copy()
    for t in range(1, shape[1]):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * noise[:, t]
    return x


def columns():
    """Of an odd number of draws: plain, apart, bits, ties, heavy tails, swinging."""
    slow = autoregressive(0, 0.9, 4, 51, 5)
    apart = slow[..., 1] + np.arange(4)[:, None]
    swings = autoregressive(1, -0.7, 4, 51)
    parts = slow[..., 0], apart, slow[..., 2] > 0.4, slow[..., 3].round(), swings
    return np.stack([*parts, np.exp(4 * slow[..., 4])], axis=-1)


DRAWS = columns()
# ArviZ 0.23.4: ess of bulk, tail and mean, rhat, mcse of the mean.
REFERENCE = {
    "ess": [20.3441237, 7.11655406, 13.0867578, 13.2948519, 460.205999, 22.7197589],
    "ess_tail": [
        21.7040577,
        11.2470681,
        13.0867578,
        15.8062241,
        227.173818,
        94.8761068,
    ],
    "ess_mean": [16.3526837, 6.8055366, 13.0867578, 13.2959584, 460.205999, 137.167578],
    "rhat": [1.22862665, 1.66339318, 1.26942057, 1.30187134, 1.03786295, 1.12348564],
    "mcse": [
        0.186258741,
        0.50022208,
        0.131102899,
        0.27104854,
        0.0405584216,
        112.028437,
    ],
}


@pytest.fixture(scope="module")
def found():
    with jax.enable_x64(True):
        verdict = diagnostics.summary(DRAWS)
        mean = diagnostics.ess_mean(DRAWS)
    names = "ess", "ess_tail", "rhat", "mcse"
    values = {name: np.asarray(getattr(verdict, name)) for name in names}
    return {**values, "ess_mean": np.asarray(mean)}


def by_arviz(arviz):
    def of(function, **options):
        return [float(function(x, **options)) for x in np.moveaxis(DRAWS, -1, 0)]

    return {
        "ess": of(arviz.ess, method="bulk"),
        "ess_tail": of(arviz.ess, method="tail", prob=(0.05, 0.95)),
        "ess_mean": of(arviz.ess, method="mean"),
        "rhat": of(arviz.rhat),
        "mcse": of(arviz.mcse),
    }


def assert_same(found, expected):
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, err_msg=name)


def test_values_are_those_stored_of_arviz(found):
    assert_same(found, REFERENCE)


def test_values_are_those_of_the_arviz_at_hand(found):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "\nArviZ is undergoing", FutureWarning)
        arviz = pytest.importorskip("arviz")
    assert_same(found, by_arviz(arviz))
    with jax.enable_x64(True):
        bfmi = diagnostics.bfmi(DRAWS[..., 0])
    np.testing.assert_allclose(bfmi, arviz.bfmi(DRAWS[..., 0]), rtol=1e-6)


def test_ranks_of_ties_are_shared_folded_or_not():
    """Four are the median itself, and some lie as far on its other side."""
    x = np.array([[2.0, -1.0, 0.0, 3.0, 0.0], [-2.0, 1.0, 0.0, 1.0, -0.0]])
    ordered = estimators._sorted(x.astype(np.float32))
    np.testing.assert_array_equal(ordered, np.sort(x.ravel()))
    for found, values in [
        (estimators._bulk_ranks(x, ordered), x),
        (estimators._folded_ranks(x, ordered), np.abs(x - np.median(x))),
    ]:
        less = values[..., None] > values.ravel()
        equal = values[..., None] == values.ravel()
        expected = less.sum(-1) + (equal.sum(-1) + 1) / 2
        np.testing.assert_array_equal(found, expected)


def test_single_precision_is_enough(found):
    verdict = diagnostics.summary(DRAWS.astype(np.float32))
    for name in ("ess", "ess_tail", "rhat", "mcse"):
        ours = getattr(verdict, name)
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, found[name], rtol=1e-3, err_msg=name)
    np.testing.assert_allclose(verdict.mean, DRAWS.mean((0, 1)), rtol=1e-5)
    sd = DRAWS.reshape(-1, 6).std(0, ddof=1)
    np.testing.assert_allclose(verdict.sd, sd, rtol=1e-5)


def test_autocovariance_is_its_sum_over_pairs_of_draws():
    x = DRAWS[:2, :9, :2]
    apart = x - x.mean(1, keepdims=True)
    expected = [(apart[:, : 9 - t] * apart[:, t:]).sum(1) / 9 for t in range(9)]
    found = diagnostics.autocovariance({"far": x + 3e3})["far"]
    np.testing.assert_allclose(found, np.stack(expected, 1), atol=2e-3)


def test_time_is_the_draws_that_are_worth_one(found):
    """And 1 where nothing moves; halves of 51 draws are 50."""
    time = diagnostics.autocorrelation_time(np.append(DRAWS, 0 * DRAWS[..., :1], -1))
    np.testing.assert_allclose(time[:-1], 200 / found["ess_mean"], rtol=1e-4)
    assert time[-1] == 1


def test_standard_errors_of_correlated_draws_are_honest():
    """The mean of z^2 over 400 sets; in 40 others it was 1.04, never beyond 1.18."""
    x = autoregressive(2, 0.8, 4, 400, 400)
    z = x.mean((0, 1)) / diagnostics.mcse(x)
    assert abs(np.mean(z**2) - 1) < 5 * np.sqrt(2 / 400)
    naive = x.mean((0, 1)) / (x.std((0, 1)) / 40)
    assert np.mean(naive**2) > 6


def test_trouble_in_the_draws_is_told_by_coordinate():
    """Constant, stuck apart, with a NaN, with an infinity, and good."""
    good = autoregressive(3, 0.3, 3, 40, 5)
    x = good.copy()
    x[..., 0] = 0.1
    x[..., 1] = 0.1 * np.arange(3)[:, None]
    x[1, 7, 2] = np.nan
    x[2, 7, 3] = np.inf
    found = diagnostics.summary(x)
    np.testing.assert_array_equal(np.isnan(found.rhat), [1, 0, 1, 0, 0])
    np.testing.assert_array_equal(np.isnan(found.ess), [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(np.isnan(found.ess_tail), [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(np.isnan(found.mcse), [0, 0, 1, 1, 0])
    assert found.ess[0] == found.ess_tail[0] == 120
    assert found.sd[0] == found.mcse[0] == 0
    assert found.mean[0] == np.float32(0.1)
    assert found.rhat[1] == np.inf
    assert found.ess[1] < 10
    assert found.describe(largest_rhat=2) == (
        "2 of 5 coordinates, such as x[2], reached NaN or infinity; "
        "1 of 5 coordinates, such as x[0], never moved; "
        "chains have not mixed: R-hat inf on x[1]; "
        f"too few effective draws: {found.ess[1]:.0f} of 120 on x[1]"
    )


def test_one_chain_has_no_rhat_but_effective_draws():
    found = diagnostics.summary(DRAWS[:1, :, :2])
    assert jnp.isnan(found.rhat).all()
    assert jnp.isfinite(found.ess).all()
    assert found.describe(least_ess=0).startswith(
        "one chain cannot show whether it has mixed: run several; "
        "all 2 coordinates: effective draws at least "
    )


def test_coordinates_of_a_tree_are_taken_a_few_at_a_time(monkeypatch):
    """Blocks of 3, the last one filled up, give what each gives alone."""
    x = DRAWS[:, :40].astype(np.float32)
    x = np.concatenate([x, x[..., ::-1] ** 2, x[..., :2] + 1], axis=-1)
    alone = diagnostics.ess_mean(x)
    monkeypatch.setattr(estimators, "BLOCK_SIZE", 3 * 160)
    tree = {"a": x.reshape(4, 40, 7, 2), "b": x[..., 3]}
    found = diagnostics.ess_mean(tree)
    np.testing.assert_allclose(found["a"], alone.reshape(7, 2), rtol=1e-4)
    np.testing.assert_allclose(found["b"], alone[3], rtol=1e-4)


class Told(NamedTuple):
    accept: np.ndarray
    diverged: np.ndarray


def verdict(rhat, ess, **changes):
    one = jax.tree.map(np.ones_like, rhat)
    fields = {"mean": one, "sd": one, "mcse": one, "ess": ess, "ess_tail": ess}
    counts = {"num_chains": 4, "num_draws": 4000, "accept": None, "diverged": None}
    return Verdict(**{**fields, "rhat": rhat, **counts, **changes})


def test_verdict_in_words():
    rhat, ess = np.array([1.001, 1.003, 1, 1, 1, 1]), np.full(6, 3000.0)
    tail = np.array([900, 3000, 812.4, 3000, 3000, 3000])
    assert verdict(rhat, ess, ess_tail=tail, accept=0.654).describe() == (
        "all 6 coordinates: R-hat at most 1.003, effective draws at least 812 of 4,000"
        "; acceptance 0.65"
    )
    few = {"x": np.array([[3000.0, 52.0]]), "y": np.array(3000.0)}
    apart = {"x": np.array([[1.0, 1.2]]), "y": np.array(1.3)}
    assert verdict(apart, few, diverged=12).describe() == (
        "chains have not mixed: R-hat 1.3 on x['y'], above 1.01 on 2 of 3; "
        "too few effective draws: 52 of 4,000 on x['x'][0, 1]; "
        "12 of 4,000 draws follow divergent steps: reduce the step size"
    )


def test_summary_counts_what_steps_told():
    info = Told(np.full((4, 51), 0.75), np.arange(204).reshape(4, 51) % 20 / 40)
    found = diagnostics.summary(DRAWS.astype(np.float32), info)
    assert found.accept == 0.75
    assert found.diverged == 204 - 11
    assert (found.num_chains, found.num_draws) == (4, 204)


def test_importance_ess_counts_equal_weights():
    weights = jnp.log(jnp.array([1.0, 1.0, 0.0, 1.0]))
    np.testing.assert_allclose(diagnostics.importance_ess(weights), 3, rtol=1e-6)
    weights = 1e4 + jnp.log(jnp.array([3.0, 1.0]))
    np.testing.assert_allclose(diagnostics.importance_ess(weights), 1.6, rtol=1e-3)
    assert diagnostics.importance_ess(jnp.full(3, -jnp.inf)) == 0


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        (DRAWS[:, :3], "each chain must have at least 4 draws, got 3"),
        (DRAWS[0, :, 0], r"must be arrays \(chain, draw, ...\), got shape \(51,\)"),
        ({}, r"must be arrays \(chain, draw, ...\), got shape {}"),
        (DRAWS[..., :0], r"got shape \(4, 51, 0\)"),
        (
            (DRAWS, DRAWS[:, 0]),
            r"the same numbers of chains and draws, .* \[\(4, 6\), \(4, 51\)\]",
        ),
    ],
)
def test_what_is_no_draws_is_refused(draws, message):
    with pytest.raises(ValueError, match=message):
        diagnostics.summary(draws)
