import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import (
    AfterSteps,
    all_states,
    cubic_energy,
    cubic_params,
    drawn_from,
    matrix_of,
    random_ising,
)

from probjax import MPF, Data, fit, ising
from probjax.connectivity import (
    AllFlips,
    BitFlips,
    GaussianSteps,
    Joined,
    Listed,
    RandomFlips,
    SiteChanges,
)
from probjax.data import unique_rows
from probjax.objectives import exclude_data as observed
from probjax.objectives import flow
from probjax.trees import as_array

SIZE = 6
CHAIN = np.array([[0.0, 0, 0], [0, 0, 1], [0, 1, 1]])


def some_states(seed, num_states=2, count=25):
    draws = np.random.default_rng(seed).integers(0, num_states, (count, SIZE))
    return draws.astype(np.float32)


def as_set(rows):
    return {tuple(row) for row in np.asarray(rows)}


@pytest.mark.parametrize("factors", ["random", "colliding", "all the same"])
def test_a_state_is_found_if_and_only_if_it_is_a_row_that_counts(factors, monkeypatch):
    """Also where the hash is the number of ones, or says nothing at all."""
    if factors != "random":
        value = 1 if factors == "colliding" else 0
        made = np.full(SIZE, value, np.uint32)
        monkeypatch.setattr(observed, "_factors", lambda size: made)
    rows = np.concatenate([some_states(0), some_states(0)[:7], some_states(1)])
    weights = np.ones(len(rows))
    weights[:7] = weights[40:45] = 0
    counted = as_set(rows[weights > 0])
    states = all_states(SIZE).astype(np.float32)

    @jax.jit
    def looked_up(data, states):
        return observed.is_observed(observed.index_rows(data), states)

    found = looked_up(Data(rows, weights), states)
    assert 10 < len(counted) < 2**SIZE
    np.testing.assert_array_equal(found, [tuple(x) in counted for x in states])


@pytest.mark.parametrize(
    ("connectivity", "num_states"),
    [(BitFlips(), 2), (BitFlips(radius=2), 2), (SiteChanges(3), 3)],
    ids=["flips", "radius 2", "letters"],
)
def test_flow_to_observed_states_is_left_out(connectivity, num_states, key):
    params = cubic_params(0, SIZE)
    rows = some_states(2, num_states)
    weights = np.arange(len(rows)) % 4.0
    seen = as_set(rows[weights > 0])

    @jax.jit
    @jax.vmap
    def rates(x):
        near = connectivity.states(x, ())
        energies = jax.vmap(cubic_energy, (None, 0))(params, near.x)
        return jnp.exp((cubic_energy(params, x) - energies) / 2), near.x, near.weight

    total, skipped = 0.0, 0
    for weight, *of_row in zip(weights, *map(np.asarray, rates(rows)), strict=True):
        rate, near, share = of_row
        counts = np.array([tuple(y) not in seen for y in near])
        total += weight * np.sum(rate * counts * share)
        skipped += (share * ~counts).sum() * weight
    assert skipped > 0
    data = Data(rows, weights)
    options = dict(connectivity=connectivity, exclude_data=True)
    found = flow(key, cubic_energy, params, data, **options)
    np.testing.assert_allclose(found, total / weights.sum(), rtol=1e-5)


def test_drawn_neighbours_are_left_out_too(key):
    """All flips, drawn in some order, are the flips themselves."""
    params, rows = random_ising(0, SIZE), some_states(3)
    drawn = RandomFlips(SIZE)
    found = flow(key, ising.energy, params, rows, connectivity=drawn, exclude_data=True)
    expected = flow(key, ising.energy, params, rows, exclude_data=True)
    np.testing.assert_allclose(SIZE * np.asarray(found), expected, rtol=1e-5)


def test_in_minibatches_all_rows_count_as_observed(key):
    """With batches of one row, only the whole data can say what was observed."""
    rows = CHAIN
    objective = MPF(ising.energy, exclude_data=True)
    start = random_ising(0, 3)
    found = fit(
        key,
        objective,
        start,
        rows,
        optimizer=optax.sgd(0.0),
        batch_size=1,
        steps_per_round=3,
    )
    matrix = matrix_of(start)
    pairs = matrix - np.diag(np.diag(matrix))
    gaps = (2 * rows - 1) * (np.diag(matrix) + 2 * rows @ pairs)
    left = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 1]])
    expected = np.log(np.sum(np.exp(gaps / 2) * left, axis=1))
    np.testing.assert_allclose(np.sort(found.losses), np.sort(expected), rtol=1e-5)


def test_in_minibatches_drawn_neighbours_are_looked_up_among_all_rows(key):
    """All flips drawn are the flips themselves, whatever rows were dealt."""
    rows = CHAIN
    options = dict(optimizer=optax.sgd(0.0), batch_size=1, steps_per_round=2)
    options |= dict(num_rounds=4)
    start = random_ising(0, 3)
    losses = [
        fit(
            key,
            MPF(ising.energy, connectivity=flips, exclude_data=True),
            start,
            rows,
            **options,
        ).losses
        for flips in (BitFlips(), RandomFlips(3))
    ]
    np.testing.assert_allclose(losses[0], np.asarray(losses[1]) + np.log(3), rtol=1e-5)


def test_a_batch_with_nothing_left_is_no_step(key):
    """Half of the rows have only observed neighbours: their batches change nothing."""
    rows = np.concatenate([all_states(3), np.zeros((8, 3))], axis=1)
    far = np.array([[1.0, 0, 1, 1, 1, 1]])
    objective = MPF(ising.energy, connectivity=first_three(), exclude_data=True)
    found = fit(
        key,
        objective,
        random_ising(0, 6),
        np.concatenate([rows, far]),
        optimizer=optax.sgd(0.1),
        batch_size=1,
        steps_per_round=9,
    )
    assert len(found.losses) == 9
    assert np.sum(np.isneginf(found.losses)) == 8
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.params))


def flip_first_three(x):
    return BitFlips().states(x, ()).x[:3]


def first_three():
    return Listed(flip_first_three)


def test_data_without_any_unobserved_neighbour_are_refused(key):
    objective = MPF(ising.energy, exclude_data=True)
    start, everything = random_ising(0, 4), all_states(4).astype(np.float32)
    with pytest.raises(ValueError, match="must leave some neighbours"):
        fit(key, objective, start, everything)
    for connectivity in (RandomFlips(2), Joined((AllFlips(), RandomFlips(1)))):
        drawn = MPF(ising.energy, connectivity=connectivity, exclude_data=True)
        with pytest.raises(ValueError, match="must leave some neighbours"):
            fit(key, drawn, start, everything)
    mirrored = MPF(ising.energy, connectivity=AllFlips(), exclude_data=True)
    few = Data(everything[[1, 14, 3]], np.array([1.0, 1, 0]))
    with pytest.raises(ValueError, match="must leave some neighbours"):
        fit(key, mirrored, start, few)
    data = Data(as_array(everything), as_array((np.arange(16) != 3).astype(float)))
    assert np.isfinite(objective.prepare(start, data).x).all()
    with pytest.raises(ValueError, match="must be bits or letters if exclude_data"):
        flow(
            key,
            ising.energy,
            start,
            everything / 3,
            connectivity=GaussianSteps(1.0),
            exclude_data=True,
        )


@pytest.mark.statistics
def test_keeping_all_neighbours_is_consistent_and_leaving_data_out_is_not(key):
    """20,000 states of 8 units: errors of the couplings, with and without."""
    truth = random_ising(1, 8, scale=0.5)
    rows = unique_rows(drawn_from(0, truth, 20_000))

    def error(exclude_data):
        objective = MPF(ising.energy, exclude_data=exclude_data)
        # Without the data, the loss has no lower bound.
        stop = AfterSteps(100) if exclude_data else None
        found = fit(key, objective, truth, rows, stop=stop)
        return np.sqrt(np.mean((matrix_of(found.params) - matrix_of(truth)) ** 2))

    assert error(False) < 0.1
    assert error(True) > 10
