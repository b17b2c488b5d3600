import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import counted_states, flat_ising, random_ising

from probjax import L1, L2, MPF, PseudoLikelihood, fit, ising
from probjax.objectives.penalty import GroupL1
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
    found = fit(key, objective(ising.energy), start, data, penalty=penalty)
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
    found = fit(key, PseudoLikelihood(energy), start, data, penalty=penalty)
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
