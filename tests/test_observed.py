import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import AfterSteps, cubic_energy, cubic_params, random_ising

from probjax import (
    MPF,
    AllFlips,
    BitFlips,
    Data,
    GaussianSteps,
    Joined,
    Listed,
    RandomFlips,
    SiteChanges,
    exact,
    fit,
    flow,
    ising,
    observed,
    unique_rows,
)

SIZE = 6


def some_states(seed, num_states=2, count=25):
    draws = jax.random.randint(jax.random.key(seed), (count, SIZE), 0, num_states)
    return draws.astype(float)


def as_set(rows):
    return {tuple(row) for row in np.asarray(rows)}


@pytest.mark.parametrize("factors", ["random", "colliding", "all the same"])
def test_a_state_is_found_if_and_only_if_it_is_a_row_that_counts(factors, monkeypatch):
    """Also where the hash is the number of ones, or says nothing at all."""
    if factors != "random":
        value = 1 if factors == "colliding" else 0
        made = np.full(SIZE, value, np.uint32)
        monkeypatch.setattr(observed, "_factors", lambda size: made)
    rows = jnp.concatenate([some_states(0), some_states(0)[:7], some_states(1)])
    weights = jnp.ones(len(rows)).at[:7].set(0).at[40:45].set(0)
    table = observed.index(Data(rows, weights))
    counted = as_set(np.asarray(rows)[np.asarray(weights) > 0])
    states = exact.states(SIZE)
    found = observed.is_observed(table, states)
    assert 10 < len(counted) < 2**SIZE
    np.testing.assert_array_equal(
        found, [tuple(x) in counted for x in np.array(states)]
    )


@pytest.mark.parametrize(
    ("connectivity", "num_states"),
    [(BitFlips(), 2), (BitFlips(radius=2), 2), (SiteChanges(3), 3)],
    ids=["flips", "radius 2", "letters"],
)
def test_flow_to_observed_states_is_left_out(connectivity, num_states, key):
    params = cubic_params(0, SIZE)
    rows = some_states(2, num_states)
    weights = jnp.arange(len(rows)) % 4.0
    seen = as_set(np.asarray(rows)[np.asarray(weights) > 0])
    energies = jax.jit(jax.vmap(cubic_energy, (None, 0)))
    total, skipped = 0.0, 0
    for x, weight in zip(rows, weights, strict=True):
        near = connectivity.states(x, ())
        counts = np.array([tuple(y) not in seen for y in np.asarray(near.x)])
        rates = jnp.exp((cubic_energy(params, x) - energies(params, near.x)) / 2)
        total += weight * jnp.sum(rates * counts * near.weight)
        skipped += (near.weight * ~counts).sum() * weight
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
    np.testing.assert_allclose(SIZE * found, expected, rtol=1e-5)


def test_in_minibatches_all_rows_count_as_observed(key):
    """With batches of one row, only the whole data can say what was observed."""
    rows = jnp.array([[0.0, 0, 0], [0, 0, 1], [0, 1, 1]])
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
    gaps = jax.vmap(ising.flip_gaps, (None, 0))(start, rows)
    left = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 1]])
    expected = jnp.log(jnp.sum(jnp.exp(gaps / 2) * left, axis=1))
    np.testing.assert_allclose(np.sort(found.losses), np.sort(expected), rtol=1e-5)


def test_in_minibatches_drawn_neighbours_are_looked_up_among_all_rows(key):
    """All flips drawn are the flips themselves, whatever rows were dealt."""
    rows = jnp.array([[0.0, 0, 0], [0, 0, 1], [0, 1, 1]])
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
    np.testing.assert_allclose(losses[0], losses[1] + jnp.log(3), rtol=1e-5)


def test_a_batch_with_nothing_left_is_no_step(key):
    """Half of the rows have only observed neighbours: their batches change nothing."""
    rows = jnp.concatenate([exact.states(3), jnp.zeros((8, 3))], axis=1)
    far = jnp.array([[1.0, 0, 1, 1, 1, 1]])
    objective = MPF(ising.energy, connectivity=first_three(), exclude_data=True)
    found = fit(
        key,
        objective,
        random_ising(0, 6),
        jnp.concatenate([rows, far]),
        optimizer=optax.sgd(0.1),
        batch_size=1,
        steps_per_round=9,
    )
    assert len(found.losses) == 9
    assert jnp.sum(jnp.isneginf(found.losses)) == 8
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(found.params))


def flip_first_three(x):
    return BitFlips().states(x, ()).x[:3]


def first_three():
    return Listed(flip_first_three)


def test_data_without_any_unobserved_neighbour_are_refused(key):
    objective = MPF(ising.energy, exclude_data=True)
    start, everything = random_ising(0, 4), exact.states(4)
    with pytest.raises(ValueError, match="exclude_data leaves nothing"):
        fit(key, objective, start, everything)
    for connectivity in (RandomFlips(2), Joined((AllFlips(), RandomFlips(1)))):
        drawn = MPF(ising.energy, connectivity=connectivity, exclude_data=True)
        with pytest.raises(ValueError, match="exclude_data leaves nothing"):
            fit(key, drawn, start, everything)
    mirrored = MPF(ising.energy, connectivity=AllFlips(), exclude_data=True)
    few = Data(everything[jnp.array([1, 14, 3])], jnp.array([1.0, 1, 0]))
    with pytest.raises(ValueError, match="exclude_data leaves nothing"):
        fit(key, mirrored, start, few)
    weights = jnp.ones(16).at[3].set(0)
    assert jnp.isfinite(objective.prepare(start, Data(everything, weights)).x).all()
    with pytest.raises(ValueError, match="exclude_data needs whole numbers"):
        flow(
            key,
            ising.energy,
            start,
            everything / 3,
            connectivity=GaussianSteps(1.0),
            exclude_data=True,
        )


def test_keeping_all_neighbours_is_consistent_and_leaving_data_out_is_not(key):
    """20,000 states of 8 units: errors of the couplings, with and without."""
    truth = random_ising(4, 8, scale=0.5)
    matrix = ising.coupling_matrix(truth)
    rows = unique_rows(exact.sample(key, ising.energy, truth, 8, num_draws=20_000))

    def error(exclude_data):
        objective = MPF(ising.energy, exclude_data=exclude_data)
        found = fit(key, objective, truth, rows, stop=AfterSteps(100))
        return jnp.sqrt(jnp.mean((ising.coupling_matrix(found.params) - matrix) ** 2))

    assert error(False) < 0.1
    assert error(True) > 10
