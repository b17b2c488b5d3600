"""Rows that are read a block at a time are the same rows."""

from itertools import islice

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import AfterSteps, counted_states, random_ising

from probjax import (
    L1,
    L2,
    MPF,
    Data,
    HeatBath,
    MaximumLikelihood,
    Objective,
    PersistentDivergence,
    PersistentMPF,
    PseudoLikelihood,
    Watch,
    fit,
    ising,
    natural_gradient,
    rbm,
    recipe,
)
from probjax.connectivity import RandomFlips
from probjax.data import Blocks, blocks
from probjax.data.blocks import survey
from probjax.data.rows import as_data
from probjax.fitting import GradientNorm, StoppingRule
from probjax.fitting.out_of_core import _batches
from probjax.fitting.plan import RoundsPlan
from probjax.natural import energy_scores
from probjax.objectives import Sparse

ADAM = optax.adam(0.02)
KEY = jax.random.key(0)
SLOW = optax.sgd(optax.linear_schedule(0.1, 0.005, 300))


def drawn(rows=300, size=5):
    """Rows that an optimum far from zero belongs to."""
    x = np.random.default_rng(0).random((rows, size)) < 0.4
    x[: rows // 2, 0] |= x[: rows // 2, 3]
    return x.astype(np.uint8)


def packed(tmp_path, rows):
    path = tmp_path / "bits.npy"
    np.save(path, np.packbits(rows, axis=1))
    return path


def assert_same_fit(found, whole):
    assert len(found.losses) == len(whole.losses)
    assert bool(found.converged) == bool(whole.converged)
    np.testing.assert_allclose(found.losses, whole.losses, rtol=1e-10)
    chex.assert_trees_all_close(found.params, whole.params, atol=1e-7)


def test_packed_bits_on_disk_are_fitted_as_rows_in_memory(x64, key, tmp_path):
    rows = drawn()
    source = blocks.from_file(
        packed(tmp_path, rows), rows_per_block=70, decode=blocks.PackedBits(5)
    )
    start, objective = random_ising(0, 5), MPF(ising.energy)
    whole = fit(key, objective, start, rows, chart=ising.centred(rows))
    chart = ising.centred_at(*blocks.moments(source))
    found = fit(key, objective, start, source, chart=chart)
    assert found.converged
    assert_same_fit(found, whole)


def test_a_penalty_that_is_not_smooth_takes_the_same_way(x64, key, tmp_path):
    rows = drawn()
    source = blocks.from_array(rows, rows_per_block=110)
    start, objective = random_ising(0, 5), PseudoLikelihood(ising.energy)
    whole = fit(key, objective, start, rows, penalty=L1(0.02))
    found = fit(key, objective, start, source, penalty=L1(0.02))
    assert_same_fit(found, whole)
    assert np.any(np.asarray(found.params.coupling) == 0)


def test_weights_rest_stop_and_callback_are_those_of_rows_in_memory(x64, key):
    x, weights, _ = counted_states(4)

    def read():
        yield Data(x[:7], weights[:7])
        yield Data(x[7:8], np.zeros(1))
        yield Data(x[8:], weights[8:])

    weights[7] = 0
    told = []
    options = dict(penalty=L2(0.01), stop=AfterSteps(5))
    objective, start = MaximumLikelihood(ising.energy), random_ising(0, 4)
    whole = fit(key, objective, start, Data(x, weights), **options)
    source = Blocks(read, rows_per_block=8)
    found = fit(
        key, objective, start, source, watch=Watch(told.append, every=2), **options
    )
    assert_same_fit(found, whole)
    assert [int(progress.step) for progress in told] == [2, 4, 5]
    mean, weight = blocks.moments(source)
    np.testing.assert_allclose(mean, np.average(x, 0, weights))
    assert float(weight) == weights.sum()


def test_particles_that_no_row_owns_are_carried_along(key):
    objective = PersistentDivergence(ising.energy, HeatBath(), 50)
    source = blocks.from_array(drawn(), rows_per_block=100)
    options = dict(optimizer=ADAM, num_rounds=3, steps_per_round=1)
    found = fit(key, objective, random_ising(0, 5), source, **options)
    assert found.context.shared.x.shape == (50, 5)
    assert int(found.context.shared.age) > 0


def test_minibatches_of_blocks_lead_to_the_minimum(key):
    rows, start = drawn(), random_ising(0, 5)
    source = blocks.from_array(rows, rows_per_block=110)
    objective = PseudoLikelihood(ising.energy)
    best = fit(key, objective, start, rows)
    options = dict(optimizer=ADAM, steps_per_round=600, batch_size=25)
    found = fit(key, objective, start, source, **options)
    assert len(found.losses) == 600
    assert not found.converged
    settled = np.asarray(found.losses)[-200:]
    spread = settled.std(ddof=1) / len(settled) ** 0.5
    assert abs(settled.mean() - float(best.loss)) < 5 * spread + 0.02


def test_passes_deal_every_row_once_and_no_pass_is_like_another(key):
    numbered = np.arange(130)[:, None] >> np.arange(8) & 1
    # The last block has 30 rows, which no number of batches comes to.
    source = blocks.from_array(numbered.astype(np.uint8), rows_per_block=100)
    batches = list(dealt(key, source, 0, 13))
    numbers = np.concatenate([batch @ 2 ** np.arange(8) for batch in batches])
    first, second = numbers[:130], numbers[130:]
    assert sorted(first) == sorted(second) == list(range(130))
    assert sorted(first[:100]) == list(range(100))
    assert not np.array_equal(first, second)
    for done in (1, 5, 6, 8):
        later = list(dealt(key, source, done, 13 - done))
        np.testing.assert_array_equal(later, batches[done:])


def test_rows_are_dealt_as_often_as_they_weigh_whatever_their_block(key):
    numbered = np.arange(90)[:, None] >> np.arange(8) & 1
    weights = np.repeat([4.0, 1.0, 0.5], 30)
    weights[::7] = 0
    whole = Data(numbered.astype(np.uint8), weights)
    source = blocks.from_array(whole.x, weights=weights, rows_per_block=40)
    count = np.count_nonzero(weights)
    batches = list(dealt(key, source, 0, count))
    numbers = np.concatenate([batch @ 2 ** np.arange(8) for batch in batches])
    # Twenty passes of so many rows each.
    often = np.bincount(numbers, minlength=90)
    share = 20 * count * weights / weights.sum()
    assert np.all(often[weights == 0] == 0)
    assert np.all(np.abs(often - share) < 20)
    np.testing.assert_allclose(often[:30].sum(), share[:30].sum(), atol=20)
    for done in (3, count // 2):
        later = list(dealt(key, source, done, 10))
        np.testing.assert_array_equal(later, batches[done : done + 10])


def distance(params, x):
    return jnp.sum((x - params) ** 2) / 2


@pytest.mark.parametrize("rows_per_block", [64, 40, 66])
def test_minibatches_of_short_and_weighted_blocks_have_the_mean_of_all(
    key, rows_per_block
):
    x = np.zeros((66, 2))
    x[64:] = 1.0
    weights = np.where(np.arange(66) < 33, 1.0, 3.0)
    options = dict(optimizer=SLOW, num_rounds=1, steps_per_round=400, batch_size=32)
    for given in (None, weights):
        source = blocks.from_array(x, weights=given, rows_per_block=rows_per_block)
        found = fit(key, OwnMean(), np.zeros(2), source, **options)
        expected = np.average(x, 0, given)
        np.testing.assert_allclose(found.params, expected, atol=0.02)


@recipe
class OwnMean(Objective):
    """The mean of rows, as what is nearest to them."""

    def prepare(self, params, data):
        return as_data(data)

    def row(self, params, x, context):
        return distance(params, x)


def test_a_stopping_rule_sees_the_first_block_and_not_a_batch(key):
    seen = []

    @recipe
    class Never(StoppingRule):
        def is_met(self, progress, data):
            seen.append((data.x.shape, data.weights is None))
            return False

    source = blocks.from_array(drawn(), rows_per_block=100)
    options = dict(optimizer=ADAM, steps_per_round=2, batch_size=20, stop=Never())
    fit_blocks(source, PseudoLikelihood(ising.energy), **options)
    assert set(seen) == {((100, 5), False)}


def dealt(key, source, done, count):
    objective, start = PseudoLikelihood(ising.energy), random_ising(0, 8)
    known = survey(source, objective, start)
    plan = RoundsPlan(objective, None, None, GradientNorm(), None, 1, 1, 20, 100)
    yield from islice(_batches(plan, key, known, done), count)


def fit_blocks(source, objective=None, **options):
    objective = MPF(ising.energy) if objective is None else objective
    return fit(KEY, objective, random_ising(0, 5), source, **options)


@pytest.mark.parametrize(
    "objective",
    [
        MPF(ising.energy, connectivity=RandomFlips(2)),
        MPF(ising.energy, exclude_data=True),
        PersistentMPF(ising.energy, sampler=HeatBath()),
    ],
    ids=["drawn moves", "exclude_data", "energies"],
)
def test_objectives_that_keep_something_for_every_row_are_refused(objective):
    with pytest.raises(ValueError, match="stores something for every row"):
        fit_blocks(blocks.from_array(drawn()), objective)


def test_functions_of_all_rows_together_are_refused():
    objective = Sparse(MPF(rbm.energy), rbm.hidden_log_odds, target=0.1, strength=1.0)
    start = rbm.init(KEY, 5, 2)
    with pytest.raises(ValueError, match="Sparse adds a function of all rows together"):
        fit(KEY, objective, start, blocks.from_array(drawn()))


def test_optimizers_that_need_all_rows_at_once_are_refused():
    source = blocks.from_array(drawn(), rows_per_block=100)
    with pytest.raises(ValueError, match="with a line search needs all rows"):
        fit_blocks(source, optimizer=optax.lbfgs())
    with pytest.raises(ValueError, match="natural_gradient needs parameters and rows"):
        fit_blocks(source, optimizer=natural_gradient(energy_scores(ising.energy)))
    with pytest.raises(ValueError, match="from 1 to the 100 rows of a block, got 101"):
        fit_blocks(source, optimizer=ADAM, batch_size=101)


def test_bad_blocks_are_refused_wherever_they_are():
    good, spins = drawn(10), 2.0 * drawn(10) - 1
    holes = np.where(drawn(10) > 0, np.nan, 0)
    for second, message in {
        "spins": (spins, "try ising.bits to convert them"),
        "holes": (holes, "data must be finite"),
        "long": (drawn(11), "from 1 to rows_per_block=10 rows, got 11"),
        "empty": (good[:0], "from 1 to rows_per_block=10 rows, got 0"),
        "scalar": (np.ones(()), "arrays with a leading axis of rows"),
        "uneven": ((good, good[:3]), r"the same number of rows, got \[3, 10\]"),
        "weights": (Data(good, -np.ones(10)), "weights must not be negative"),
        "few weights": (Data(good, np.ones(9)), "for each of a block's 10 rows, got"),
        "mask": (Data(good, mask=good > 0), "blocks must have complete rows"),
    }.values():
        with pytest.raises(ValueError, match=message):
            fit_blocks(Blocks(lambda second=second: [good, second], rows_per_block=10))
    with pytest.raises(ValueError, match="a positive weight, got none in 0 blocks"):
        fit_blocks(Blocks(list))
    with pytest.raises(ValueError, match="must not be empty, got no blocks"):
        blocks.moments(Blocks(list))


def test_passes_that_are_not_alike_are_refused():
    with pytest.raises(ValueError, match="that starts a new pass .* got a generator"):
        Blocks(iter_once(drawn()))
    spent = iter_once(drawn())
    with pytest.raises(ValueError, match="every pass must read the same 3 blocks"):
        fit_blocks(Blocks(lambda: spent, rows_per_block=100))
    lengths = iter([2, 3, 3])
    with pytest.raises(ValueError, match="got a difference at block 2"):
        fit_blocks(Blocks(lambda: [drawn(100)] * next(lengths), rows_per_block=100))


def iter_once(rows):
    yield from np.split(rows, 3)


def test_packed_rows_of_another_width_are_refused():
    with pytest.raises(ValueError, match="5 packed bits must be 1 bytes, uint8, got"):
        fit_blocks(
            blocks.from_array(drawn(9), rows_per_block=9, decode=blocks.PackedBits(5))
        )
    with pytest.raises(ValueError, match="one entry for each of 9 rows"):
        blocks.from_array(drawn(9), weights=np.ones(8))
    with pytest.raises(ValueError, match="rows_per_block must be an integer"):
        blocks.from_array(drawn(9), rows_per_block=0)
