from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import (
    counted_states,
    drawn_from,
    flat_ising,
    log_probs_of,
    random_ising,
)

from probjax import (
    L1,
    L2,
    MPF,
    ContrastiveDivergence,
    Data,
    MaximumLikelihood,
    NoiseContrast,
    PseudoLikelihood,
    ScoreMatching,
    cross_validate,
    fit,
    fit_path,
    ising,
    loss,
    potts,
)
from probjax.bases import Bernoulli, fit_bernoulli
from probjax.connectivity import AllFlips, BitFlips, GaussianSteps, Joined, SiteChanges
from probjax.data import unique_rows
from probjax.fitting import fit_nodes, uncertainty
from probjax.models.ising import mean_field
from probjax.objectives import NodeLikelihood, flow
from probjax.objectives.missing import draw_from_model, draw_from_others, observed_moves
from probjax.samplers import HeatBath

SIZE = 4
ADAM = optax.adam(0.05)
DATA = counted_states(SIZE)
MASK = np.random.default_rng(1).uniform(size=DATA.x.shape) < 0.7


def start():
    return flat_ising(SIZE)


@pytest.mark.parametrize(
    "objective",
    [
        MPF(ising.energy, connectivity=Joined((BitFlips(), AllFlips()))),
        PseudoLikelihood(ising.energy),
    ],
    ids=["MPF", "PL"],
)
def test_what_stands_where_nothing_was_observed_makes_no_difference(objective, key):
    garbled = np.where(MASK, DATA.x, np.nan)
    learn = partial(fit, key, objective, start(), penalty=L2(0.01), num_rounds=3)
    fitted, again = (learn(Data(x, DATA.weights, MASK)) for x in (DATA.x, garbled))
    np.testing.assert_array_equal(fitted.params.bias, again.params.bias)
    filled = np.asarray(again.context.rows.x)
    np.testing.assert_array_equal(filled[MASK], DATA.x[MASK])


def test_only_moves_of_observed_entries_count():
    x, mask = np.array([[0.0, 2.0, 1.0]]), np.array([[True, False, True]])
    bits = np.array([[0.0, 1.0, 1.0]])

    @jax.jit
    def of_both(x, bits, mask):
        both = Joined((BitFlips(), AllFlips()))
        counted = observed_moves(SiteChanges(3), x, mask, ())
        return counted[0].reshape(3, 3), observed_moves(both, bits, mask, ())[0]

    counted, flips = of_both(x, bits, mask)
    expected = [[1, 1, 1], [0, 0, 1], [1, 1, 1]]  # its own letter is no change
    np.testing.assert_array_equal(counted, expected)
    np.testing.assert_array_equal(flips, [True, False, True, False])


def test_a_row_sums_over_observed_sites(x64, key):
    params = random_ising(3, SIZE)
    data = Data(DATA.x.astype(float), None, MASK)
    objective = PseudoLikelihood(ising.energy)

    @jax.jit
    def evaluated(params, data):
        context = objective.init(key, params, data)
        rows = jax.vmap(objective.row, (None, 0, 0))(params, data.x, context.rows)
        gaps = jax.vmap(ising.flip_gaps, (None, 0))(params, context.rows.x)
        return context.rows.x, rows, gaps

    filled, rows, gaps = map(np.asarray, evaluated(params, data))
    np.testing.assert_array_equal(filled[MASK], DATA.x[MASK])
    np.testing.assert_allclose(rows, np.sum(np.logaddexp(0, gaps) * MASK, axis=1))


def test_first_fill_has_the_odds_of_other_rows(key):
    count = 4000
    x = np.zeros((count, 2))
    x[: count // 4, 1] = 1
    mask = np.ones(x.shape, bool)
    mask[count // 2 :, 1] = False
    weights = np.where(np.arange(count) < count // 4, 3.0, 1.0)
    drawn = jax.jit(draw_from_others)(key, Data(x, weights, mask))
    share = np.asarray(drawn)[count // 2 :, 1].mean()
    assert abs(share - 0.75) < 5 * np.sqrt(0.75 * 0.25 / (count // 2))


def test_fill_from_the_model_leaves_it_unchanged(x64, key):
    params = random_ising(2, 3)
    x = drawn_from(0, params, 20_000).astype(float)
    mask = np.arange(3)[None] != np.arange(20_000)[:, None] % 3
    redraw = jax.jit(draw_from_model, static_argnums=(1, 5))
    drawn = redraw(key, ising.energy, params, x, mask, 2)
    drawn = np.asarray(drawn)
    np.testing.assert_array_equal(drawn[mask], x[mask])
    assert (drawn != x).any()
    chances = np.exp(log_probs_of(params))
    codes = drawn @ [4, 2, 1]
    counts = np.bincount(codes.astype(int), minlength=8)
    chi_square = np.sum((counts - 20_000 * chances) ** 2 / (20_000 * chances))
    assert chi_square < 30  # of 7 degrees of freedom


@pytest.mark.statistics
def test_rounds_lead_to_the_truth_by_every_loss(key):
    """And the first, whose filling knows nothing of couplings, does not."""
    truth = random_ising(1, SIZE)
    x = drawn_from(0, truth, 40_000)
    mask = np.random.default_rng(2).uniform(size=x.shape) < 0.6
    data = Data(np.where(mask, x, -1), None, mask)

    def miss(params):
        return np.abs(np.subtract(params.coupling, truth.coupling)).max()

    for objective in (MPF(ising.energy), PseudoLikelihood(ising.energy)):
        learn = partial(fit, key, objective, start(), data)
        assert miss(learn(num_rounds=30).params) < 0.2
    first = fit(key, objective, start(), jax.jit(draw_from_others)(key, data))
    assert miss(first.params) > 0.4
    units = fit_nodes(key, NodeLikelihood, ising.energy, start(), data)
    assert miss(jax.jit(ising.symmetrised)(units.params)) < 0.2


def test_minibatches_and_trees_take_a_mask(key):
    """The same fit, the state in one array or in two leaves."""

    def energy(params, x):
        return ising.energy(params, jnp.concatenate([x["a"], x["b"]]))

    def split(rows):
        return {"a": rows[:, :1], "b": rows[:, 1:]}

    x = np.repeat(DATA.x, 10, axis=0).astype(float)
    mask = np.repeat(MASK, 10, axis=0)
    options = dict(optimizer=ADAM, num_rounds=40, steps_per_round=8, batch_size=20)
    plain = fit(
        key, PseudoLikelihood(ising.energy), start(), Data(x, None, mask), **options
    )
    trees = Data(split(x), None, split(mask))
    other = fit(key, PseudoLikelihood(energy), start(), trees, **options)
    filled = np.asarray(plain.context.rows.x)
    np.testing.assert_array_equal(filled[mask], x[mask])
    both = other.context.rows.x
    joined = np.concatenate([both["a"], both["b"]], axis=1)
    np.testing.assert_array_equal(joined[mask], x[mask])
    assert set(np.unique(joined)) == {0, 1}
    np.testing.assert_allclose(plain.loss, other.loss, rtol=0.3)


def test_masks_that_make_no_sense_are_refused(key):
    learn = partial(fit, key, PseudoLikelihood(ising.energy), start(), num_rounds=2)
    with pytest.raises(ValueError, match=r"must have the shape of the data, \(16, 4\)"):
        learn(Data(DATA.x, None, MASK[:, :3]))
    with pytest.raises(ValueError, match="True for observed ones, got float"):
        learn(Data(DATA.x, None, MASK.astype(float)))
    with pytest.raises(ValueError, match="every entry observed in some row"):
        learn(Data(DATA.x, None, np.zeros_like(MASK)))
    unweighed = np.where(np.arange(16) % 2, 1.0, 0.0)
    with pytest.raises(ValueError, match="observed in some row of positive weight"):
        learn(Data(DATA.x, unweighed, np.broadcast_to(unweighed == 0, (4, 16)).T))
    with pytest.raises(ValueError, match="mark missing entries with Data"):
        learn(np.where(MASK, DATA.x, np.nan))
    with pytest.raises(ValueError, match="masked data need several rounds"):
        fit(key, PseudoLikelihood(ising.energy), start(), Data(DATA.x, None, MASK))


@pytest.mark.parametrize(
    ("objective", "why"),
    [
        (MaximumLikelihood(ising.energy), "likelihood needs complete rows"),
        (ContrastiveDivergence(ising.energy, HeatBath()), "needs complete rows"),
        (ScoreMatching(ising.energy), "score matching needs complete rows"),
        (
            NoiseContrast(ising.energy, Bernoulli(SIZE)),
            "contrast needs complete rows",
        ),
        (MPF(ising.energy, exclude_data=True), "exclude_data needs complete rows"),
        (MPF(ising.energy, connectivity=GaussianSteps(0.1)), "try BitFlips or SiteCha"),
    ],
    ids=["ML", "CD", "SM", "NCE", "exclude", "steps"],
)
def test_objectives_of_complete_rows_say_why_they_refuse(objective, why, key):
    data = Data(DATA.x.astype(float), None, MASK)
    params = start()
    if isinstance(objective, NoiseContrast):
        params = objective.start(params)
    with pytest.raises(ValueError, match=why):
        fit(key, objective, params, data, num_rounds=2)


def test_estimates_of_complete_rows_refuse_a_mask():
    data = Data(DATA.x, None, MASK)
    key, objective = jax.random.key(0), PseudoLikelihood(ising.energy)
    fitted = fit(key, objective, start(), DATA)
    for estimate in (
        mean_field,
        unique_rows,
        fit_bernoulli,
        partial(loss, key, objective, start()),
        partial(flow, key, ising.energy, start()),
        partial(fit_path, key, objective, start(), penalty=L1(1.0)),
        partial(cross_validate, key, objective, start(), penalty=L2(1.0)),
        partial(uncertainty, objective, fitted),
    ):
        with pytest.raises(ValueError, match="leave out rows with missing entries"):
            estimate(data)


def test_letters_are_filled_with_letters(key):
    generator = np.random.default_rng(0)
    letters = generator.integers(0, 3, (60, 3))
    mask = generator.uniform(size=letters.shape) < 0.6
    objective = PseudoLikelihood(potts.energy, num_states=3)
    data = Data(np.where(mask, letters, -7), None, mask)
    begin = jax.jit(lambda key: potts.init(key, 3, 3))(key)
    options = dict(penalty=L2(0.01), num_rounds=2, steps_per_round=5)
    fitted = fit(key, objective, begin, data, **options)
    assert set(np.unique(fitted.context.rows.x)) == {0, 1, 2}
