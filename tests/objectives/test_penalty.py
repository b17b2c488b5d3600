import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import counted_states, flat_ising, random_ising

from probjax import (
    L1,
    L2,
    MPF,
    Data,
    PseudoLikelihood,
    fit,
    gaussian_rbm,
    hopfield,
    ising,
    potts,
    rbm,
)
from probjax.fitting import GradientNorm
from probjax.objectives.penalty import GroupL1, PenaltySum
from probjax.potential import couplings
from probjax.trees import as_array

SIZE = 6
DATA = counted_states(SIZE)
TREE = {
    "cube": as_array([[[3.0, -4.0], [0.0, 12.0]], [[0.1, 0.0], [0.0, 0.2]]]),
    "matrix": as_array([[0.0, 0.0], [2.0, -1.0], [0.1, -0.1]]),
    "vector": as_array([-1.0, 0.3, 0.0]),
    "scalar": as_array(-2.0),
}
WEIGHTS = {
    "cube": as_array([2.0, 1.0]),
    "matrix": 0.5,
    "vector": as_array([1.0, 0.0, 3.0]),
    "scalar": 1.5,
}
GROUPED = GroupL1(0.8, weights=WEIGHTS)


def gradient_of(objective, params, data):
    def loss(params):
        values = jax.vmap(lambda x: objective.row(params, x, ()))(data.x)
        return objective.reduce(values, data.weights)

    return jax.tree.map(np.asarray, jax.jit(jax.grad(loss))(params))


@jax.jit
def looked_at(penalty, params, step):
    """All that a penalty says of parameters."""
    near = penalty.prox(params, step)
    vanishing = penalty.vanishing(params) if hasattr(penalty, "vanishing") else 0.0
    return penalty.value(params), near, vanishing


def groups(tree):
    """All leaf[i] with their weights, flat; a scalar is one."""
    for name, leaf in sorted(tree.items()):
        leaf = np.asarray(leaf)
        count = len(leaf) if leaf.ndim else 1
        weights = np.broadcast_to(WEIGHTS[name], count)
        yield from zip(np.reshape(leaf, (count, -1)), weights, strict=True)


def test_group_penalty_is_the_sum_of_lengths_and_smooth_enough_at_zero():
    total = sum(weight * np.linalg.norm(group) for group, weight in groups(TREE))
    value, slope = jax.jit(jax.value_and_grad(GROUPED.value))(TREE)
    np.testing.assert_allclose(value, 0.8 * total, rtol=1e-6)
    slope = jax.tree.map(np.asarray, slope)
    for (group, weight), (found, _) in zip(groups(TREE), groups(slope), strict=True):
        length = np.linalg.norm(group)
        expected = 0.8 * weight * group / (length if length > 0 else 1)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_group_prox_minimises_its_definition_and_leaves_zeros():
    near = jax.tree.map(np.asarray, jax.jit(GROUPED.prox)(TREE, 0.7))
    for (group, weight), (found, _) in zip(groups(TREE), groups(near), strict=True):
        length, threshold = np.linalg.norm(group), 0.7 * 0.8 * weight
        kept = 1 - threshold / length if length > threshold else 0.0
        np.testing.assert_allclose(found, kept * group, rtol=1e-6)
        assert np.all(found == 0) == (kept == 0)
    zero_groups = sum(np.all(found == 0) for found, _ in groups(near))
    assert zero_groups == 4

    generator = np.random.default_rng(0)

    def nudges(leaf):
        return 0.05 * generator.normal(size=(200, *leaf.shape)).astype(np.float32)

    def above(nudge):
        point = jax.tree.map(jnp.add, near, nudge)
        return definition(point) - definition(near)

    def definition(point):
        apart = jax.tree.map(lambda p, q: jnp.sum((p - q) ** 2) / 2, point, TREE)
        return sum(jax.tree.leaves(apart)) + 0.7 * GROUPED.value(point)

    higher = jax.jit(jax.vmap(above))(jax.tree.map(nudges, near))
    assert np.all(np.asarray(higher) > 0)


def test_groups_of_a_vector_are_its_entries():
    params = random_ising(0, 4)
    weights = ising.couplings_only(params)
    group, entry = GroupL1(0.3, weights), L1(0.3, weights)
    found, expected = (looked_at(each, params, 2.0) for each in (group, entry))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    chex.assert_trees_all_close(found[1], expected[1], atol=1e-6)
    np.testing.assert_allclose(found[2], expected[2])


@pytest.mark.parametrize("penalty", [L1, L2, GroupL1])
def test_one_number_weighs_a_whole_leaf(penalty):
    params = random_ising(0, 4)
    whole = penalty(0.3, ising.Params(0, 0.5))
    weights = ising.Params(as_array(np.zeros(4)), as_array(np.full(6, 0.5)))
    each = penalty(0.3, weights)
    found, expected = (looked_at(one, params, 0.2) for one in (whole, each))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    chex.assert_trees_all_close(found[1], expected[1])
    np.testing.assert_array_equal(found[1].bias, params.bias)


def test_vanishing_is_the_least_strength_that_keeps_zeros():
    ratios = [np.linalg.norm(g) / w for g, w in groups(TREE) if w > 0]
    vanishing = jax.jit(lambda penalty, slope: penalty.vanishing(slope))
    np.testing.assert_allclose(vanishing(GROUPED, TREE), max(ratios), rtol=1e-6)
    weights = ising.Params(0, as_array([0.5]))
    slope = ising.Params(as_array([9.0, 9.0]), as_array([-0.3]))
    np.testing.assert_allclose(vanishing(L1(1, weights), slope), 0.6, rtol=1e-6)
    assert float(vanishing(L1(1, ising.Params(0, 0)), slope)) == 0

    @jax.jit
    def entries_left(penalty, share):
        """How many of the entries penalised leave zero, with TREE their gradient."""
        strength = share * penalty.vanishing(TREE)
        there = dataclasses.replace(penalty, strength=strength).prox(TREE, 1.0)
        left = jax.tree.map(lambda p, q: jnp.sum((p != q) & (p != 0)), there, TREE)
        return sum(jax.tree.leaves(left))

    for penalty, least in ((GROUPED, 3), (L1(1.0), 1)):
        assert int(entries_left(penalty, 1.001)) == 0
        assert int(entries_left(penalty, 0.999)) == least


@pytest.mark.parametrize(
    ("objective", "strength"), [(PseudoLikelihood, 0.04), (MPF, 0.008)]
)
def test_l1_fit_equals_a_reference_in_every_parameter(objective, strength, x64, key):
    data = DATA
    start = flat_ising(SIZE)
    penalty = L1(strength, weights=ising.Params(0.0, 1.0))
    options = dict(penalty=penalty, stop=GradientNorm())
    found = fit(key, objective(ising.energy), start, data, **options)
    share = {PseudoLikelihood: logistic_share, MPF: flow_share}[objective]
    bias, coupling = reference(share, data, strength)
    np.testing.assert_allclose(found.params.bias, bias, atol=1e-5)
    np.testing.assert_allclose(found.params.coupling, coupling, atol=1e-5)
    zero = coupling == 0
    np.testing.assert_array_equal(np.asarray(found.params.coupling) == 0, zero)
    assert 3 <= zero.sum() <= 12
    slope = gradient_of(objective(ising.energy), found.params, data)
    assert np.abs(slope.bias).max() < 1e-7
    assert np.abs(slope.coupling[zero]).max() < strength
    expected = -strength * np.sign(coupling[~zero])
    np.testing.assert_allclose(slope.coupling[~zero], expected, atol=1e-7)


def reference(share, data, strength):
    """Plain proximal gradient descent in NumPy, run until it stands still."""
    x, weights = np.asarray(data.x), np.asarray(data.weights)
    weights = weights / weights.sum()
    first, second = np.triu_indices(SIZE, 1)
    bias, coupling, step = np.zeros(SIZE), np.zeros(len(first)), 0.2
    for _ in range(100_000):
        pairs = np.zeros((SIZE, SIZE))
        pairs[first, second] = pairs[second, first] = coupling
        gaps = (2 * x - 1) * (bias + 2 * x @ pairs)
        slopes = share(gaps, weights) * (2 * x - 1)
        both = 2 * slopes.T @ x
        moved = coupling - step * (both + both.T)[first, second]
        moved = np.sign(moved) * np.maximum(np.abs(moved) - step * strength, 0)
        change = max(np.abs(moved - coupling).max(), np.abs(slopes.sum(0)).max())
        bias, coupling = bias - step * slopes.sum(0), moved
        if change < 1e-12:
            return bias, coupling
    raise AssertionError("the reference has not converged")


def logistic_share(gaps, weights):
    """The derivative of sum_r w_r sum_n log(1 + exp(gap)) in every gap."""
    return weights[:, None] / (1 + np.exp(-gaps))


def flow_share(gaps, weights):
    """The derivative of log sum_r w_r sum_n exp(gap / 2) in every gap."""
    flows = weights[:, None] * np.exp(gaps / 2)
    return flows / (2 * flows.sum())


def test_group_fit_silences_whole_groups_and_is_a_minimum(x64, key):
    def energy(params, x):
        return params["bias"] @ x + x @ params["from"] @ x

    data, strength = DATA, 0.06
    start = {"bias": np.zeros(SIZE), "from": np.zeros((SIZE, SIZE))}
    start = jax.tree.map(as_array, start)
    weights = {"bias": 0.0, "from": np.linspace(0.5, 1.5, SIZE)}
    penalty = GroupL1(strength, weights)
    options = dict(penalty=penalty, stop=GradientNorm())
    found = fit(key, PseudoLikelihood(energy), start, data, **options)
    assert found.converged
    slope = gradient_of(PseudoLikelihood(energy), found.params, data)
    assert np.abs(slope["bias"]).max() < 1e-7
    silent = 0
    for group, gradient, weight in zip(
        np.asarray(found.params["from"]), slope["from"], weights["from"], strict=True
    ):
        length = np.linalg.norm(group)
        if length == 0:
            silent += 1
            assert np.linalg.norm(gradient) < strength * weight
        else:
            expected = -strength * weight * group / length
            np.testing.assert_allclose(gradient, expected, atol=1e-7)
    assert 1 <= silent < SIZE


@pytest.mark.parametrize("penalty", [L1, L2, GroupL1])
def test_weights_that_do_not_fit_are_refused(penalty):
    params = {"bias": as_array(np.ones(2)), "matrix": as_array(np.ones((3, 2)))}
    with pytest.raises(ValueError, match="weights must be a tree like params"):
        penalty(1.0, weights={"bias": 1.0}).value(params)
    with pytest.raises(ValueError, match=r"of shape \(3, 2\), got shape \(2,\)"):
        penalty(1.0, weights={"bias": 1.0, "matrix": np.ones(2)}).value(params)
    with pytest.raises(ValueError, match="must be 0 or above and finite, got -1.0"):
        penalty(-1)


@pytest.mark.parametrize("penalty", [L1, L2, GroupL1])
def test_weights_may_be_one_number_or_a_prefix(penalty):
    params = {"a": TREE, "b": as_array([2.0, -1.0])}
    full = {"a": dict.fromkeys(TREE, 0.5), "b": 3.0}
    found, expected = (
        looked_at(penalty(0.3, weights), params, 0.2)
        for weights in ({"a": 0.5, "b": 3.0}, full)
    )
    chex.assert_trees_all_equal(found, expected)
    everything = looked_at(penalty(0.3, 1.0), params, 0.2)
    plain = looked_at(penalty(0.3), params, 0.2)
    chex.assert_trees_all_close(everything, plain, rtol=1e-6)


COUPLINGS = {
    ising: lambda: ising.init(jax.random.key(0), 3, edges=[(0, 1)]),
    potts: lambda: potts.init(jax.random.key(0), 3, 4),
    hopfield: lambda: hopfield.init(jax.random.key(0), 3),
    rbm: lambda: rbm.init(jax.random.key(0), 3, 2),
    gaussian_rbm: lambda: gaussian_rbm.init(jax.random.key(0), 3, 2),
}


@pytest.mark.parametrize("model", COUPLINGS, ids=lambda model: model.__name__)
def test_models_declare_their_couplings_by_numbers_of_the_host(model):
    params = COUPLINGS[model]()
    found = couplings(model.energy, params)
    assert found is not None
    assert jax.tree.structure(found) == jax.tree.structure(params)
    for (path, weight), _ in zip(
        jax.tree.leaves_with_path(found), jax.tree.leaves(params), strict=True
    ):
        assert type(weight) is float
        is_coupling = jax.tree_util.keystr(path) in (".coupling", ".weight")
        assert weight == is_coupling


def test_penalties_without_weights_spare_biases_and_fit_returns_them(key):
    objective, start = PseudoLikelihood(ising.energy), flat_ising(SIZE)
    exact = dict(stop=GradientNorm())
    found = fit(key, objective, start, DATA, penalty=L2(0.05), **exact)
    rows = float(np.sum(DATA.weights)) if DATA.weights is not None else len(DATA.x)
    slope = gradient_of(objective, found.params, DATA)
    expected = -2 * np.asarray(found.params.bias) * 0.01 / rows
    np.testing.assert_allclose(slope.bias, expected, atol=2e-5)
    shrunk = -2 * 0.05 * np.asarray(found.params.coupling)
    np.testing.assert_allclose(slope.coupling, shrunk, atol=2e-5)
    assert float(found.penalty.first.weights.bias) == 0
    assert float(found.penalty.first.weights.coupling) == 1
    np.testing.assert_allclose(found.penalty.second.strength, 0.01 / rows, rtol=1e-6)
    everything = L2(0.05, weights=1.0)
    whole = fit(key, objective, start, DATA, penalty=everything, **exact)
    slope = gradient_of(objective, whole.params, DATA)
    shrunk = -2 * 0.05 * np.asarray(whole.params.bias)
    np.testing.assert_allclose(slope.bias, shrunk, atol=2e-5)


def own_energy(params, x):
    return ising.energy(params, x)


def test_everything_is_penalised_if_an_energy_declares_nothing(key):
    found = fit(
        key, PseudoLikelihood(own_energy), flat_ising(SIZE), DATA, penalty=L2(0.05)
    )
    assert found.penalty == L2(as_array(np.float32(0.05)))


@pytest.mark.parametrize("penalty", [L2(1e-3), L1(1e-3)], ids=["L2", "L1"])
def test_the_prior_keeps_silent_units_finite_and_others_unbiased(key, penalty):
    counts = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0]], np.float32)
    rows, active = 1000, np.array([10, 500])
    weights = np.array([*active, rows - active.sum()], np.float32)
    data = Data(as_array(counts), as_array(weights))
    start = ising.init(key, 3, edges=[])
    objective = PseudoLikelihood(ising.energy)
    found = fit(key, objective, start, data, penalty=penalty)
    bias = np.asarray(found.params.bias)
    rate = 1 / (1 + np.exp(bias))
    assert 0.05 / rows < rate[2] < 0.5 / rows
    stderr = 1 / np.sqrt(rows * rate[:2] * (1 - rate[:2]))
    exact = -np.log(active / (rows - active))
    assert np.all(np.abs(bias[:2] - exact) < 0.25 * stderr / np.sqrt(active) + 1e-3)


def test_probabilities_as_weights_count_as_many_rows(key):
    chances = Data(DATA.x, as_array(np.full(len(DATA.x), 1 / len(DATA.x), np.float32)))
    objective, start = PseudoLikelihood(ising.energy), flat_ising(SIZE)
    penalty = fit(key, objective, start, chances, penalty=L2(0.05)).penalty
    np.testing.assert_allclose(penalty.second.strength, 1e-8, rtol=1e-6)


def test_the_prior_on_biases_is_not_stronger_than_the_penalty():
    spared = L2(1e-6).sparing(ising.Params(0.0, 1.0), 1e-3)
    assert spared.second.strength == 1e-6
    assert L1(1e-6).sparing(ising.Params(0.0, 1.0), 1e-3).second.strength == 1e-3


def test_groups_that_contain_couplings_are_penalised_whole():
    spared = GroupL1(1.0).sparing([np.array([[1.0, 0.0], [0.0, 0.0]])], 0.1)
    np.testing.assert_array_equal(spared.first.weights[0], [1, 0])
    np.testing.assert_array_equal(spared.second.weights[0], [[0, 0], [1, 1]])


def test_a_sum_has_the_strength_of_its_first_part():
    both = PenaltySum(L1(1.0, [1.0, 0.0]), L2(0.5, [0.0, 1.0]))
    assert both.with_strength(3.0) == PenaltySum(L1(3.0, [1.0, 0.0]), both.second)
    slope = [as_array([0.3, -0.7]), as_array([9.0])]
    np.testing.assert_allclose(both.vanishing(slope), 0.7, rtol=1e-6)
    assert PenaltySum(both, both.second).parts() == (
        PenaltySum(both.second, both.second),
        both.first,
    )
    assert both.parts() == (both.second, both.first)
    assert L2(1.0).parts() == (L2(1.0), None)
    assert L1(1.0).parts() == (None, L1(1.0))


SCALES = {
    "cube": as_array([[[2.0, 2.0], [2.0, 2.0]], [[0.5, 0.5], [0.5, 0.5]]]),
    "matrix": 3.0,
    "vector": as_array([1.0, -2.0, 0.5]),
    "scalar": as_array(0.25),
}
IN_CHART = {
    "L1": L1(0.8),
    "L1, one number": L1(0.8, 2.0),
    "L1, a number for each leaf": L1(0.8, dict.fromkeys(TREE, 0.5) | {"scalar": 0.0}),
    "GroupL1": GROUPED,
    "GroupL1, one number": GroupL1(0.8, 2.0),
}


@pytest.mark.parametrize("name", IN_CHART)
def test_a_penalty_of_coordinates_is_that_of_their_parameters(name):
    penalty = IN_CHART[name]
    inner = penalty.in_chart(SCALES)
    params = jax.tree.map(lambda scale, point: scale * point, SCALES, TREE)
    value, near, _ = looked_at(inner, TREE, 0.3)
    np.testing.assert_allclose(value, jax.jit(penalty.value)(params), rtol=1e-6)

    def definition(point):
        there = jax.tree.map(lambda scale, point: scale * point, SCALES, point)
        apart = jax.tree.map(lambda p, q: jnp.sum((p - q) ** 2) / 2, point, TREE)
        return sum(jax.tree.leaves(apart)) + 0.3 * penalty.value(there)

    generator = np.random.default_rng(0)
    nudges = jax.tree.map(
        lambda leaf: 0.05 * generator.normal(size=(200, *leaf.shape)), near
    )
    above = jax.jit(jax.vmap(lambda n: definition(jax.tree.map(jnp.add, near, n))))(
        jax.tree.map(np.float32, nudges)
    )
    assert np.all(np.asarray(above) > jax.jit(definition)(near))


def test_a_penalty_has_no_form_in_coordinates_that_are_not_proportional():
    params = ising.Params(0.0, as_array([2.0, 3.0]))
    assert L1(1.0).in_chart(params) is None
    assert L1(1.0, ising.Params(as_array([0.0, 1.0]), 1.0)).in_chart(params) is None
    found = L1(1.0, ising.Params(0.0, 1.0)).in_chart(params)
    np.testing.assert_array_equal(found.weights.coupling, [2, 3])
    assert found.weights.bias == 0
    varying = {"matrix": as_array([[1.0, 2.0], [1.0, 1.0]])}
    assert GroupL1(1.0).in_chart(varying) is None
    assert GroupL1(1.0, {"matrix": 0.0}).in_chart(varying) is not None
    known = jax.jit(lambda scale: GroupL1(1.0).in_chart({"matrix": scale}).weights)
    found = known(as_array([[2.0], [3.0]]))
    np.testing.assert_array_equal(found["matrix"], [2, 3])
    assert L2(1.0).in_chart(varying) is None
    both = PenaltySum(L1(1.0, [1.0, 0.0]), GroupL1(1.0, [0.0, 1.0]))
    assert both.in_chart([2.0, 3.0]).first.weights[0] == 2
    assert PenaltySum(both, L2(1.0)).in_chart([2.0, 3.0]) is None
