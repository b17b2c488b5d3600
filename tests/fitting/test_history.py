import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import L1, L2, PseudoLikelihood, fit, potts
from probjax.fitting import history, rounds
from probjax.fitting.history import (
    Memory,
    cleared,
    empty_memory,
    inverse_hessian,
    num_pairs,
    with_pair,
    with_pairs,
    without_pairs,
)
from probjax.runs import Watch

# The module: `probjax.fitting.fit` is the function.
FIT = importlib.import_module("probjax.fitting.fit")


def two_loops(pairs, vector):
    """Nocedal's recursion in NumPy, over a list of pairs with the newest last."""
    amounts = []
    for step, change in reversed(pairs):
        amounts.append(step @ vector / (step @ change))
        vector = vector - amounts[-1] * change
    step, change = pairs[-1] if pairs else (np.ones(1), np.ones(1))
    vector = vector * (step @ change) / (change @ change)
    for (step, change), amount in zip(pairs, reversed(amounts), strict=True):
        vector = vector + (amount - change @ vector / (step @ change)) * step
    return vector


def pairs_of(seed, count, size=6):
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(count, size))
    root = rng.normal(size=(size, size))
    return list(zip(steps, steps @ (root @ root.T + np.eye(size)), strict=True))


@pytest.mark.parametrize("count", [0, 2, 3, 4, 8])
def test_directions_are_those_of_the_last_pairs(count, x64):
    pairs = pairs_of(0, count)
    memory = empty_memory(3, jnp.zeros(6))
    for step, change in pairs:
        memory = with_pair(memory, step, change)
        # Pairs without positive curvature are left out, like those of no step.
        memory = with_pair(memory, step, -change)
        memory = with_pair(memory, change, step, where=False)
    vector = np.arange(1.0, 7)
    expected = two_loops(pairs[-3:], vector)
    np.testing.assert_allclose(inverse_hessian(memory, vector), expected, rtol=1e-9)


def test_a_cleared_memory_is_as_good_as_an_empty_one(x64):
    memory = empty_memory(3, jnp.zeros(6))
    for step, change in pairs_of(0, 4):
        memory = with_pair(memory, step, change)
    memory, vector = cleared(memory), np.full(6, 1e300)
    np.testing.assert_array_equal(inverse_hessian(memory, vector), vector)
    assert memory.newest_curvature == 0
    pairs = pairs_of(1, 2)
    for step, change in pairs:
        memory = with_pair(memory, step, change)
    expected = two_loops(pairs, np.ones(6))
    np.testing.assert_allclose(inverse_hessian(memory, np.ones(6)), expected)


def test_the_newest_pair_is_the_last_if_a_memory_does_not_say(x64):
    pairs = pairs_of(0, 3)
    steps, changes = (np.stack(each)[:, None] for each in zip(*pairs, strict=True))
    curvature = np.sum(steps * changes, axis=(1, 2))
    memory = jax.tree.map(jnp.asarray, Memory(steps, changes, curvature))
    expected = two_loops(pairs, np.ones(6))
    np.testing.assert_allclose(inverse_hessian(memory, np.ones(6)), expected)


def test_large_problems_have_fewer_pairs():
    assert [num_pairs(size) for size in (1, 1_000_000, 10**7)] == [20, 20, 5]
    for size in (2_000_000, 4_000_000, 6_000_000):
        assert 2**25 < 2 * size * num_pairs(size) <= 2**26


def test_pairs_return_to_their_places():
    first = empty_memory(2, jnp.zeros(3))
    tree = {"a": first, "b": (empty_memory(1, jnp.ones(4)), jnp.ones(2))}
    light, pairs = without_pairs(tree)
    assert sum(leaf.size for leaf in jax.tree.leaves(light)) == 2 + 1 + 1 + 1 + 2
    jax.tree.map(np.testing.assert_array_equal, with_pairs(light, pairs), tree)


def potts_start(sites, letters):
    pairs = sites * (sites - 1) // 2
    field = np.zeros((sites, letters), np.float32)
    return potts.Params(field, np.zeros((pairs, letters, letters), np.float32))


def test_a_potts_fit_needs_memory_in_proportion_to_its_parameters(monkeypatch):
    # Of 60 sites x 21 letters. Larger fits have 5 pairs: see `num_pairs`.
    monkeypatch.setattr(history, "_MOST_PAIRS", 5)
    start = potts_start(60, 21)
    x = np.random.default_rng(0).integers(0, 21, (200, 60)).astype(np.float32)
    used = []

    def measured(plan, key, run, params, data, limit):
        light, pairs = without_pairs(run)
        args = (plan, key, pairs, light, params, data, limit)
        found = rounds.advance_in_place.lower(*args).compile().memory_analysis()
        held = found.argument_size_in_bytes + found.output_size_in_bytes
        used.append(held + found.temp_size_in_bytes - found.alias_size_in_bytes)
        over = run._replace(stopped=jnp.asarray(True), met=jnp.asarray(True))
        return over._replace(method=run.method._replace(value=jnp.asarray(0.0)))

    monkeypatch.setattr(FIT, "advance_compiled", measured)
    objective = PseudoLikelihood(potts.energy, num_states=21)
    fit(jax.random.key(0), objective, start, x, penalty=L2(1e-3))
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(start))
    # 10 in the history, 12 in other vectors before and after, 16 in an evaluation.
    assert used[0] < 40 * num_bytes


def test_donated_histories_leave_what_a_caller_keeps():
    start = jax.tree.map(jnp.asarray, potts_start(3, 2))
    x = np.random.default_rng(0).integers(0, 2, (50, 3)).astype(np.float32)
    objective = PseudoLikelihood(potts.energy, num_states=2)
    kept = []
    options = dict(penalty=L1(0.01), num_rounds=2, steps_per_round=5)
    watch = Watch(kept.append, every=1)
    found = fit(jax.random.key(0), objective, start, x, watch=watch, **options)
    for report in kept:
        assert np.isfinite(np.asarray(report.loss))
        assert np.isfinite(np.asarray(report.params.coupling)).all()
    assert not np.asarray(start.coupling).any()
    assert np.isfinite(np.asarray(found.opt_state.memory.steps)).all()
