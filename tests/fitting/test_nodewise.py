import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small_models import (
    all_states,
    counted_states,
    flat_ising,
    log_probs_of,
    matrix_of,
    plain_energy,
    random_ising,
)

from probjax import L1, L2, Data, ising
from probjax.fitting import ConvergenceWarning, fit_nodes
from probjax.objectives import (
    RISE,
    LogRISE,
    NodeLikelihood,
    RatioMatching,
    screening_strength,
)
from probjax.objectives.penalty import PenaltySum
from probjax.potential import closed_forms

SIZE = 4
DATA = counted_states(SIZE)
SLOPES = {  # of each loss in its margin m = gap / 2 over rows, weighted
    RISE: lambda m, w: w * np.exp(m),
    LogRISE: lambda m, w: w * np.exp(m) / (w @ np.exp(m)),
    NodeLikelihood: lambda m, w: 2 * w / (1 + np.exp(-2 * m)),
}


def reference(slope, node, strength):
    """(field, couplings) of one spin, by proximal gradient descent in NumPy."""
    spins = 2.0 * np.asarray(DATA.x) - 1
    weights = np.asarray(DATA.weights) / np.asarray(DATA.weights).sum()
    others = np.delete(spins, node, axis=1)
    # gap / 2 = -s_n (h + sum_m K_m s_m)
    design = -spins[:, [node]] * np.column_stack([np.ones(len(spins)), others])
    point = np.zeros(SIZE)
    for _ in range(2000):
        point = point - 0.1 * design.T @ slope(design @ point, weights)
        shrunk = np.maximum(np.abs(point[1:]) - 0.1 * strength, 0)
        point[1:] = np.sign(point[1:]) * shrunk
    return point


@pytest.mark.parametrize("make", SLOPES)
def test_fits_of_single_units_equal_a_reference(make, x64):
    start = flat_ising(SIZE)
    strength = 0.03
    # A coupling of spins is -J / 2.
    penalty = L1(strength / 2, weights=ising.Params(0.0, 1.0))
    key = jax.random.key(0)
    found = fit_nodes(key, make, ising.energy, start, DATA, penalty=penalty)
    assert np.asarray(found.converged).all()
    expected = np.array([reference(SLOPES[make], n, strength) for n in range(SIZE)])
    couplings = np.zeros((SIZE, SIZE))
    for node in range(SIZE):
        mine = jax.tree.map(lambda leaf, n=node: np.asarray(leaf)[n], found.params)
        assert mine.coupling[node] == 0
        row = -np.delete(mine.coupling, node) / 2
        np.testing.assert_allclose(row, expected[node, 1:], atol=1e-6)
        np.testing.assert_array_equal(row == 0, expected[node, 1:] == 0)
        field = row.sum() - mine.bias / 2
        np.testing.assert_allclose(field, expected[node, 0], atol=1e-6)
        couplings[node, np.arange(SIZE) != node] = row
    merged = jax.jit(ising.symmetrised)(found.params)
    np.testing.assert_allclose(
        ising.to_fields(merged, spins=True).field, expected[:, 0], atol=1e-6
    )
    merged = -(matrix_of(merged) - np.diag(np.asarray(merged.bias))) / 2
    np.testing.assert_allclose(merged, (couplings + couplings.T) / 2, atol=1e-12)
    assert 0 < np.sum(couplings == 0) - SIZE < SIZE * (SIZE - 1)


@pytest.mark.parametrize("energy", [ising.energy, plain_energy])
def test_gradients_vanish_at_the_true_parameters(energy, x64):
    params = random_ising(0, SIZE)
    weights = np.exp(log_probs_of(params))
    x = all_states(SIZE).astype(float)
    objectives = [*(make(energy, 2) for make in SLOPES), RatioMatching(energy)]

    @jax.jit
    def largest_slopes(params):
        def loss(params, objective):
            rows = jax.vmap(objective.row, (None, 0, None))(params, x, ())
            return objective.reduce(rows, weights)

        slopes = [jax.grad(loss)(params, each) for each in objectives]
        return [jnp.abs(ravel_pytree(slope)[0]).max() for slope in slopes]

    elsewhere = jax.tree.map(lambda leaf: 1.1 * np.asarray(leaf), params)
    assert max(map(float, largest_slopes(params))) < 1e-6
    assert min(map(float, largest_slopes(elsewhere))) > 1e-3


def test_the_published_strength_is_what_the_rule_says(key):
    expected = 0.4 * np.sqrt(np.log(16 / 0.05) / 1e6)
    np.testing.assert_allclose(screening_strength(4, 1e6, constant=0.4), expected)


def without_unit_forms(params, x):
    return ising.energy(params, x)


EDGES = ((0, 1), (1, 3))
WEIGHTED = L1(0.02, weights=ising.Params(np.zeros(SIZE), np.linspace(0, 2, 6)))


@pytest.mark.parametrize(
    ("penalty", "edges"),
    [
        (None, None),
        (PenaltySum(WEIGHTED, L2(0.01)), None),
        (L2(0.01, weights=ising.Params(0.0, 1.0, EDGES)), EDGES),
    ],
)
def test_fits_of_the_own_parameters_of_units_equal_those_of_all(penalty, edges, x64):
    start = ising.init(jax.random.key(0), SIZE, edges=edges)
    fits = [
        fit_nodes(jax.random.key(1), LogRISE, energy, start, DATA, penalty=penalty)
        for energy in (ising.energy, without_unit_forms)
    ]
    assert fits[0].params.coupling.shape == (SIZE, SIZE)
    own, all_params = (ising.symmetrised(found.params) for found in fits)
    np.testing.assert_allclose(own.bias, all_params.bias, atol=1e-5)
    np.testing.assert_allclose(own.coupling, all_params.coupling, atol=1e-5)
    if penalty is None:
        np.testing.assert_allclose(fits[0].loss, fits[1].loss, rtol=1e-9)


def test_units_in_batches_equal_those_in_one(monkeypatch):
    key, start = jax.random.key(0), flat_ising(SIZE)
    whole = fit_nodes(key, RISE, ising.energy, start, DATA)
    size = 60 * SIZE + 10 * len(DATA.x)
    monkeypatch.setattr("probjax.fitting.nodewise._MAX_NUMBERS", 3 * size)
    parts = fit_nodes(key, RISE, ising.energy, start, DATA)
    np.testing.assert_allclose(parts.params.coupling, whole.params.coupling, atol=1e-4)


def test_a_unit_has_the_gap_of_its_model():
    params = random_ising(0, SIZE)
    x = all_states(SIZE)[5].astype(np.float32)
    expected = ising.flip_gaps(params, x)
    for unit in range(SIZE):
        form = closed_forms(ising.unit_energy)["flip_gap"]
        gap = form(ising.unit_params(params, unit))(x, unit)
        np.testing.assert_allclose(gap, expected[unit], rtol=1e-6)


def test_bad_weights_are_refused_with_the_parameters_of_the_model(key):
    penalty = L1(0.1, weights=ising.Params(0.0, np.ones(5)))
    with pytest.raises(ValueError, match=r"one number or have shape \(6,\)"):
        fit_nodes(key, RISE, ising.energy, flat_ising(SIZE), DATA, penalty=penalty)


def test_bad_data_are_refused_before_the_units_are_fitted(key):
    with pytest.raises(ValueError, match="0 or 1, got spins"):
        fit_nodes(key, RISE, ising.energy, flat_ising(2), Data(-np.ones((3, 2))))


def test_units_that_have_not_converged_are_named():
    key, start = jax.random.key(0), flat_ising(SIZE)
    with pytest.warns(ConvergenceWarning, match="4 of 4 units.*units 0, 1, 2, 3"):
        fit_nodes(key, RISE, ising.energy, start, DATA, steps_per_round=1)


def test_the_tolerance_of_units_is_below_the_strength_of_a_penalty(x64):
    # Below the default tolerance, a fit from zero would end at zero.
    key, start = jax.random.key(0), flat_ising(SIZE)
    penalty = L1(1e-8, weights=ising.couplings_only(start))

    def faint(params, x):
        return 1e-8 * ising.energy(params, x)

    found = fit_nodes(key, RISE, faint, start, DATA, penalty=penalty)
    assert np.all(np.asarray(found.gradient_norm) < 1e-9)
    assert np.all(np.diagonal(found.params.bias) != 0)
