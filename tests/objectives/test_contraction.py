from itertools import product

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small_models import (
    all_states,
    cubic_energy,
    cubic_params,
    flat_ising,
    log_probs_of,
    plain_energy,
    random_ising,
)

from probjax import MPF, Data, MaximumLikelihood, PseudoLikelihood, fit, ising, potts
from probjax.connectivity.blocks import BlockChanges, pairs
from probjax.interfaces import Connectivity
from probjax.objectives.contraction import MinimumKLContraction
from probjax.potential import potential
from probjax.trees import as_array

SIZE = 4
MIXED = ((0, 2), (3,), (1, 3, 2))
POTTS = jax.jit(lambda key: potts.init(key, 3, 3, scale=1.0))(jax.random.key(0))


def contraction(blocks):
    return lambda energy: MinimumKLContraction(energy, blocks=blocks)


def flow(blocks):
    return lambda energy: MPF(energy, connectivity=BlockChanges(blocks))


@jax.jit
def loss(objective, params, data):
    data = objective.prepare(params, data)
    context = objective.init(jax.random.key(0), params, data)
    rows = jax.vmap(objective.row, (None, 0, 0))(params, data.x, context.rows)
    return objective.reduce(rows, data.weights) + objective.rest(params, context.shared)


def doubled(params):
    return jax.tree.map(lambda leaf: as_array(np.asarray(leaf, float)), params)


def log_probs(energy, params, size, num_states=2):
    states = all_states(size, num_states).astype(float)
    minus = -np.asarray(jax.jit(jax.vmap(energy, (None, 0)))(params, states))
    return minus - np.logaddexp.reduce(minus)


def uneven(size, num_states=2):
    x = all_states(size, num_states).astype(float)
    return Data(x, 1.0 + np.arange(len(x)) % 5)


@pytest.mark.parametrize(
    ("energy", "params", "num_states"),
    [(ising.energy, random_ising(0, SIZE), 2), (potts.energy, POTTS, 3)],
    ids=["bits", "letters"],
)
def test_single_sites_are_pseudolikelihood_and_all_sites_likelihood(
    energy, params, num_states, x64
):
    params = doubled(params)
    size = SIZE if num_states == 2 else 3
    data = uneven(size, num_states)
    sites = range(size)
    for blocks, same in [
        ([[site] for site in sites], PseudoLikelihood(energy, num_states=num_states)),
        ([sites], MaximumLikelihood(energy, num_states=num_states)),
    ]:
        found = MinimumKLContraction(energy, blocks=blocks, num_states=num_states)
        values = [loss(objective, params, data) for objective in (found, same)]
        np.testing.assert_allclose(*values, rtol=1e-12)


def conditionals(log_p, size, num_states, block):
    """log p(x_block | rest) of every state, from a table with one axis for each site.

    Entry by entry, with the marginal of the rest summed over the block's axes.
    """
    table = np.asarray(log_p).reshape((num_states,) * size)
    rest = np.log(np.exp(table).sum(tuple(block), keepdims=True))
    return (table - rest).ravel()


@pytest.mark.parametrize("blocks", [pairs(SIZE), MIXED], ids=["pairs", "mixed"])
def test_loss_is_minus_the_log_conditionals_of_blocks(blocks, x64):
    params, data = doubled(random_ising(0, SIZE)), uneven(SIZE)
    log_p = log_probs_of(params)
    terms = [conditionals(log_p, SIZE, 2, block) for block in blocks]
    expected = -np.average(np.sum(terms, 0), weights=data.weights)
    found = loss(contraction(blocks)(ising.energy), params, data)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_loss_of_letters_is_minus_the_log_conditionals_of_blocks(x64):
    params, data, blocks = doubled(POTTS), uneven(3, 3), ((0, 2), (1,), (2, 1))
    log_p = log_probs(potts.energy, params, 3, 3)
    terms = [conditionals(log_p, 3, 3, block) for block in blocks]
    expected = -np.average(np.sum(terms, 0), weights=data.weights)
    objective = MinimumKLContraction(potts.energy, blocks=blocks, num_states=3)
    np.testing.assert_allclose(loss(objective, params, data), expected, rtol=1e-12)


@pytest.mark.parametrize("block", [(1,), (0, 3), (0, 1, 2)], ids=str)
def test_divergence_falls_by_what_the_loss_has_above_that_of_the_truth(block, x64):
    """KL(p||q) - KL(p_rest||q_rest) = loss of q - loss of p, on data from p."""
    p, q = doubled(random_ising(0, SIZE)), doubled(random_ising(1, SIZE))
    log_p, log_q = log_probs_of(p), log_probs_of(q)

    def erased(log_p):
        table = np.exp(log_p).reshape((2,) * SIZE)
        return np.log(table.sum(block).ravel())

    def divergence(log_p, log_q):
        return np.exp(log_p) @ (log_p - log_q)

    lost = divergence(log_p, log_q) - divergence(erased(log_p), erased(log_q))
    data = Data(all_states(SIZE).astype(float), np.exp(log_p))
    objective = contraction((block,))(ising.energy)
    above = float(loss(objective, q, data)) - float(loss(objective, p, data))
    np.testing.assert_allclose(lost, above, rtol=1e-10)
    assert lost > 0.01


@pytest.mark.parametrize(
    ("energy", "params"),
    [(ising.energy, random_ising(0, SIZE)), (cubic_energy, cubic_params(0, SIZE))],
    ids=["ising", "cubic"],
)
def test_gradients_vanish_at_the_true_parameters(energy, params, x64):
    """Of the contraction and of the flow, over pairs and over blocks of all sizes."""
    params = doubled(params)
    x, chances = all_states(SIZE), np.exp(log_probs(energy, params, SIZE))
    data = Data(x.astype(float), chances)
    objectives = [
        make(blocks)(energy)
        for make in (contraction, flow)
        for blocks in (pairs(SIZE), MIXED)
    ]

    @jax.jit
    def largest(params):
        slopes = [jax.grad(loss, argnums=1)(each, params, data) for each in objectives]
        return [jnp.abs(ravel_pytree(slope)[0]).max() for slope in slopes]

    assert max(map(float, largest(params))) < 1e-6
    elsewhere = jax.tree.map(lambda leaf: 1.1 * np.asarray(leaf), params)
    assert min(map(float, largest(elsewhere))) > 1e-3


@pytest.mark.parametrize(
    ("blocks", "num_states"), [(((1, 0), (2,)), 3), (MIXED, 2)], ids=["letters", "bits"]
)
def test_neighbours_differ_within_one_block_and_are_mutual(blocks, num_states):
    """As often as there are blocks with all sites of the difference, either way."""
    changes = BlockChanges(blocks, num_states)
    size = 1 + max(map(max, blocks))
    states = all_states(size, num_states).astype(np.float32)
    near = jax.jit(jax.vmap(lambda x: changes.states(x, ())))(states)
    near = jax.tree.map(np.asarray, near)
    assert not near.log_ratio.any()
    same = np.all(near.x[:, :, None] == states, axis=-1)
    counts = np.einsum("sk,ski->si", near.weight, same)
    differ = states[:, None] != states

    def holds(block):
        outside = [site for site in range(size) if site not in block]
        return differ.any(-1) & ~differ[..., outside].any(-1)

    np.testing.assert_array_equal(counts, sum(holds(block) for block in blocks))
    np.testing.assert_array_equal(counts, counts.T)


def test_configurations_are_listed_as_product_counts():
    changes = BlockChanges(((2, 0),), 3)
    near = jax.jit(lambda x: changes.states(x, ()))(np.array([1.0, 2.0, 0.0]))
    near = jax.tree.map(np.asarray, near)
    np.testing.assert_array_equal(near.x[:, [2, 0]], list(product(range(3), repeat=2)))
    np.testing.assert_array_equal(near.x[:, 1], 2)
    np.testing.assert_array_equal(near.weight, [1, 0, 1, 1, 1, 1, 1, 1, 1])


@pytest.mark.parametrize(
    "blocks", [((2,), (0,)), pairs(SIZE), ((3, 1), (2,)), MIXED], ids=str
)
def test_gaps_of_blocks_equal_the_generic_path(blocks, x64):
    """Where single flips are known, and where the energy is all there is."""
    changes, params = BlockChanges(blocks), doubled(random_ising(0, SIZE))

    @jax.jit
    @jax.vmap
    def compared(x):
        model = potential(ising.energy, params)
        generic = Connectivity.gaps(changes, model, x, ())
        plain = changes.gaps(potential(plain_energy, params), x, ())
        return generic, changes.gaps(model, x, ()), plain

    generic, *found = compared(all_states(SIZE).astype(float))
    for gaps in found:
        flat = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(2**SIZE, -1), gaps)
        chex.assert_trees_all_close(flat, generic, rtol=1e-12, atol=1e-12)


def test_many_configurations_are_visited_a_few_at_a_time(x64):
    """A value and a gradient of more than fit at once, against the enumeration."""
    size = 8
    params, data = doubled(random_ising(0, size)), uneven(size)
    whole = contraction([range(size)])(plain_energy)
    likelihood = MaximumLikelihood(plain_energy)
    slope = jax.jit(jax.value_and_grad(loss, argnums=1))
    found, expected = (slope(each, params, data) for each in (whole, likelihood))
    chex.assert_trees_all_close(found, expected, rtol=1e-10, atol=1e-12)


def test_fit_by_pairs_finds_the_model_of_exact_data(x64, key):
    params = doubled(random_ising(0, SIZE))
    log_p = log_probs_of(params)
    objective = contraction(pairs(SIZE))(ising.energy)
    data = Data(all_states(SIZE), np.exp(log_p))
    found = fit(key, objective, flat_ising(SIZE), data)
    assert found.converged
    chex.assert_trees_all_close(found.params, params, atol=1e-5)


@pytest.mark.parametrize(
    ("blocks", "num_states", "message"),
    [
        ((), 2, "blocks must not be empty"),
        (((0, 1), ()), 2, "blocks must not be empty"),
        (((0, 1), (2, 2)), 2, r"must be distinct, got \(2, 2\)"),
        ((range(17),), 2, r"at most 65536 configurations, got 2\*\*17"),
        ((range(11),), 3, r"at most 65536 configurations, got 3\*\*11"),
        (((0, 1),), 1, "num_states must be an integer of at least 2, got 1"),
    ],
)
def test_impossible_blocks_are_refused(blocks, num_states, message):
    with pytest.raises(ValueError, match=message):
        MinimumKLContraction(ising.energy, blocks=blocks, num_states=num_states)


@pytest.mark.parametrize("block", [(0, 4), (-1, 2)])
def test_sites_that_states_do_not_have_are_refused(block):
    objective = MinimumKLContraction(ising.energy, blocks=((0, 1), block))
    with pytest.raises(ValueError, match="blocks must contain sites 0 to 3, got"):
        objective.prepare(random_ising(0, SIZE), uneven(SIZE))


def test_data_of_other_letters_are_refused():
    with pytest.raises(ValueError, match="states of bits must be 0 or 1"):
        BlockChanges(((0, 1),)).prepare(as_array([[0, 2]]))
    with pytest.raises(
        ValueError, match="letters must be 0 to 2 for num_states=3, got 3"
    ):
        BlockChanges(((0, 1),), 3).prepare(as_array([[0, 3]]))
