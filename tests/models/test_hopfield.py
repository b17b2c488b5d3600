import itertools
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import all_states

from probjax import L2, MPF, Data, fit, hopfield, ising
from probjax.data import FixedFlips
from probjax.objectives import Corrupted
from probjax.random import split_array
from probjax.trees import as_array

SIZE = 6
STATES = all_states(SIZE).astype(np.float32)

energies_of = jax.jit(jax.vmap(hopfield.energy, (None, 0)))
stored = jax.jit(hopfield.is_stored)
gaps_of = jax.jit(jax.vmap(hopfield.flip_gaps, (None, 0)))


def network(seed, size=SIZE):
    generator = np.random.default_rng(seed)
    half = np.triu(generator.normal(size=(size, size)), 1)
    threshold = generator.normal(size=size)
    return hopfield.Params(as_array(half + half.T), as_array(threshold))


def blank(size):
    return hopfield.Params(np.zeros((size, size)), np.zeros(size))


def random_patterns(seed, count, size):
    bits = np.random.default_rng(seed).random((count, size)) < 0.5
    return bits.astype(np.float32)


def test_energies_are_those_of_an_ising_model(x64):
    @jax.jit
    def as_ising(params, x):
        there = hopfield.to_ising(params)
        energies = jax.vmap(ising.energy, (None, 0))(there, x)
        gaps = jax.vmap(ising.flip_gaps, (None, 0))(there, x)
        return energies, gaps, hopfield.from_ising(there)

    params, x = network(0), STATES.astype(float)
    energies, gaps, back = as_ising(params, x)
    np.testing.assert_allclose(energies_of(params, x), energies, rtol=1e-12)
    np.testing.assert_allclose(gaps_of(params, x), gaps, rtol=1e-12)
    chex.assert_trees_all_close(back, params)


@jax.jit
def dynamics(params, x):
    return (
        hopfield.sweep(params, x),
        hopfield.is_fixed(params, x),
        hopfield.is_strict_minimum(params, x),
    )


@pytest.mark.parametrize("seed", range(3))
def test_dynamics_are_units_in_order_and_never_rise(seed):
    """From every state of small networks, by hand."""
    params = network(10 * seed)
    weight, threshold = map(np.asarray, params)
    start = np.asarray(energies_of(params, STATES))
    now = STATES.copy()
    for unit in range(SIZE):
        now[:, unit] = now @ weight[unit] - threshold[unit] > 0
        later = np.asarray(energies_of(params, now))
        assert np.all(later <= start + 1e-5)
        start = later
    swept, fixed, strict = map(np.asarray, dynamics(params, STATES))
    np.testing.assert_array_equal(swept, now)
    found = hopfield.recall(params, STATES)
    assert np.asarray(found.converged).all()
    assert stored(params, found.x)
    # Every strict minimum is a fixed point, and every fixed point stays.
    assert np.all(fixed >= strict)
    np.testing.assert_array_equal(np.asarray(found.x)[fixed], STATES[fixed])
    assert fixed.any()
    assert not fixed.all()


def test_a_unit_that_is_not_driven_is_off():
    """H(0) = 0: of two units that only inhibit each other, nothing is fixed."""
    params = hopfield.checked([[0, -1], [-1, 0]], [0, 0])
    _, fixed, strict = dynamics(params, np.zeros(2))
    assert fixed
    assert not strict
    # In order they agree on one; both at once would go back and forth for ever.
    both = hopfield.checked([[0, -2], [-2, 0]], [-1, -1])
    found = hopfield.recall(both, np.ones(2))
    np.testing.assert_array_equal(found.x, [0, 1])
    assert found.converged


def test_dynamics_that_are_cut_short_say_so():
    chain = np.eye(SIZE, k=1)
    # A wave that goes against the order needs a sweep for each unit.
    params = hopfield.checked(chain + chain.T, np.full(SIZE, 0.5))
    start = np.stack([np.eye(SIZE)[-1], np.zeros(SIZE)])
    short = hopfield.recall(params, start, max_sweeps=1)
    assert short.converged.tolist() == [False, True]
    assert np.asarray(hopfield.recall(params, start).converged).all()


@jax.jit
@jax.vmap
def log_flow_and_stored(key):
    weight_key, pattern_key, scale_key = jax.random.split(key, 3)
    x = jax.random.bernoulli(pattern_key, 0.5, (2, 8)).astype(float)
    s = 2 * x - 1
    half = jnp.triu(jax.random.normal(weight_key, (8, 8)) + s.T @ s, 1)
    scale = 5 * jax.random.uniform(scale_key)
    weight = scale * (half + half.T)
    params = hopfield.Params(2 * weight, weight.sum(1))
    gaps = jax.vmap(hopfield.flip_gaps, (None, 0))(params, x)
    log_flow = jax.scipy.special.logsumexp(gaps / 2)
    return log_flow, hopfield.is_strict_minimum(params, x).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_sum_below_one_stores_all(seed):
    """Theorem 1, on a thousand random networks and patterns each."""
    log_flow, all_stored = log_flow_and_stored(split_array(jax.random.key(seed), 1000))
    below, all_stored = np.asarray(log_flow) < 0, np.asarray(all_stored)
    assert 20 < below.sum() < 980
    assert all_stored[below].all()
    assert all_stored.sum() > below.sum(), "it is enough, not needed"


def test_the_flow_is_convex(x64):
    x = random_patterns(0, 4, SIZE)

    @jax.jit
    @jax.vmap
    def log_flow(params):
        return hopfield.log_flow(params, x)

    first, second = (
        jax.tree.map(lambda *leaves: np.stack(leaves), *map(network, seeds))
        for seeds in (range(20), range(100, 120))
    )
    middle = jax.tree.map(lambda a, b: (a + b) / 2, first, second)
    ends = np.asarray(log_flow(first)) + np.asarray(log_flow(second))
    assert np.all(np.asarray(log_flow(middle)) <= ends / 2 + 1e-12)


def test_the_online_rule_is_minus_the_gradient_of_one_patterns_flow(x64):
    params, x = network(0), random_patterns(1, 1, SIZE)[0].astype(float)
    places = np.triu_indices(SIZE, 1)

    def flow(pairs, threshold):
        half = jnp.zeros((SIZE, SIZE)).at[places].set(pairs)
        here = hopfield.Params(half + half.T, threshold)
        return jnp.sum(jnp.exp(hopfield.flip_gaps(here, x) / 2))

    @jax.jit
    def step_and_slopes(params):
        slopes = jax.grad(flow, (0, 1))(params.weight[places], params.threshold)
        return hopfield.flow_step(params, x, 0.1), slopes

    moved, (in_pairs, in_thresholds) = jax.tree.map(np.asarray, step_and_slopes(params))
    change = jax.tree.map(lambda a, b: a - np.asarray(b), moved, params)
    np.testing.assert_allclose(change.weight[places], -0.2 * in_pairs, rtol=1e-9)
    np.testing.assert_allclose(change.threshold, -0.2 * in_thresholds, rtol=1e-9)
    chex.assert_trees_all_equal(hopfield.checked(*moved), moved)


RULES = {
    "flow": hopfield.flow,
    "perceptron": lambda key, x: hopfield.perceptron(x),
    "pseudo-inverse": lambda key, x: hopfield.pseudo_inverse(x),
    "storkey": lambda key, x: hopfield.storkey(x),
    "outer product": lambda key, x: hopfield.outer_product(x),
}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("flow", 60),
        ("perceptron", 40),
        ("pseudo-inverse", 20),
        ("storkey", 6),
        ("outer product", 3),
    ],
)
def test_rules_store_what_they_can(name, count, key):
    """In 48 units, with rows of weight 0 in between that are nothing to them."""
    x = random_patterns(5, 2 * count, 48)
    rule = jax.jit(RULES[name])
    learned = rule(key, Data(x, np.arange(2.0 * count) % 2))
    assert np.asarray(learned.stored).all()
    kept = x[1::2]
    assert stored(learned.params, kept)
    chex.assert_trees_all_equal(hopfield.checked(*learned.params), learned.params)
    alone = rule(key, kept)
    assert np.asarray(alone.stored).all()
    if name != "flow":  # which rounding leads another way to as good a network
        chex.assert_trees_all_close(alone.params, learned.params, rtol=1e-4, atol=1e-4)


def test_outer_products_and_storkey_are_their_sums(x64):
    x = random_patterns(3, 4, 7).astype(float)
    s = 2 * x - 1
    weight = sum(np.outer(p, p) for p in s) / 7
    np.fill_diagonal(weight, 0)
    found = jax.jit(hopfield.outer_product)(x).params
    np.testing.assert_allclose(found.weight, 2 * weight)
    np.testing.assert_allclose(found.threshold, weight.sum(1))
    weight = np.zeros((7, 7))
    for p in s:
        old = weight.copy()
        for i, j in itertools.permutations(range(7), 2):
            others = [k for k in range(7) if k not in (i, j)]
            here = sum(old[i, k] * p[k] for k in others)
            there = sum(old[j, k] * p[k] for k in others)
            weight[i, j] += (p[i] * p[j] - p[i] * there - here * p[j]) / 7
    found = jax.jit(hopfield.storkey)(x).params
    np.testing.assert_allclose(found.weight, 2 * weight, atol=1e-12)


def test_patterns_one_bit_apart_are_found_among_many():
    x = random_patterns(0, 60, 9)
    x = x[np.sort(np.unique(x, axis=0, return_index=True)[1])]
    weights = np.ones(len(x))
    weights[:7] = 0
    apart = np.abs(x[:, None] - x[None]).sum(2)
    pairs = np.argwhere(np.triu(apart == 1, 1))
    pairs = pairs[pairs.min(1) >= 7]
    assert len(pairs) > 5
    first, second = pairs[0]
    assert hopfield.not_storable(Data(x, weights)) == (
        f"patterns {first} and {second} differ in one bit (one of {len(pairs)} such "
        "pairs), so at most one of them can be stored"
    )
    assert hopfield.not_storable(x[x.sum(1) % 2 == 0]) == ""


def test_weights_count_where_a_rule_has_a_place_for_them(x64):
    x, weights = random_patterns(0, 3, 8).astype(float), np.array([1.0, 2, 0.5])
    s = 2 * x - 1
    truth = (s.T * weights) @ s / 8
    np.fill_diagonal(truth, 0)
    found = jax.jit(hopfield.outer_product)(Data(x, weights)).params
    np.testing.assert_allclose(found.weight, 2 * truth)
    storkey = jax.jit(hopfield.storkey)
    same = storkey(Data(x, weights)).params
    chex.assert_trees_all_equal(same, storkey(Data(x, np.ones(3))).params)


def test_energy_and_dynamics_agree_whatever_the_matrix():
    weight = np.random.default_rng(3).normal(size=(SIZE, SIZE)).astype(np.float32)
    given = hopfield.Params(weight, np.linspace(-1, 1, SIZE, dtype=np.float32))
    half = (weight + weight.T) / 2
    taken = given._replace(weight=half - np.diag(np.diagonal(half)))
    chex.assert_trees_all_equal(dynamics(given, STATES), dynamics(taken, STATES))
    strict = dynamics(given, STATES)[2]
    gaps = np.asarray(gaps_of(given, STATES))
    np.testing.assert_array_equal(strict, np.all(gaps < 0, axis=1))
    back = jax.jit(lambda given: hopfield.from_ising(hopfield.to_ising(given)))(given)
    chex.assert_trees_all_close(back, taken)
    # As the matrix is not symmetric, only compiled code takes it.
    found = jax.jit(hopfield.recall)(given, STATES)
    np.testing.assert_array_equal(found.x, hopfield.recall(taken, STATES).x)


def test_many_networks_learn_at_once(key):
    x = np.stack([random_patterns(seed, 12, 16) for seed in range(4)])

    @jax.jit
    @jax.vmap
    def learned(key, x):
        found = hopfield.flow(key, x)
        return found.stored, hopfield.recall(found.params, x).converged

    all_stored, converged = learned(split_array(key, 4), x)
    assert np.asarray(all_stored).all()
    assert np.asarray(converged).all()


def test_cliques_are_learned_from_a_few_of_them(key):
    """All 924 cliques of six among twelve vertices, exponentially many in their edges,
    are fixed points of a network that has seen a part (Hillar and Tran).
    """
    vertices, clique = 12, 6
    edges = list(itertools.combinations(range(vertices), 2))
    chosen = itertools.combinations(range(vertices), clique)
    cliques = np.array([[set(e) <= set(c) for e in edges] for c in chosen], float)
    assert cliques.shape == (924, 66)
    order = np.random.default_rng(0).permutation(924)
    seen, start = cliques[order[:132]], blank(66)
    found = fit(key, MPF(hopfield.energy), start, seen, penalty=L2(1e-5))
    assert stored(found.params, cliques)
    # And they correct errors: two edges too many or too few.
    wrong = jax.jit(FixedFlips(2).__call__)(key, cliques)
    back = np.asarray(hopfield.recall(found.params, wrong).x)
    assert np.all(back == cliques, axis=1).mean() > 0.99


@pytest.mark.statistics
def test_capacity_recovery_and_basins(key):
    of_flow = hopfield.capacity(key, hopfield.flow, 16, [2, 12, 40], num_trials=5)
    assert of_flow.patterns[:2].tolist() == [1, 1]
    assert of_flow.complete.tolist() == [1, 1, 0]
    x = random_patterns(2, 4, 48)
    params = jax.jit(hopfield.pseudo_inverse)(x).params
    back = hopfield.recovery(key, params, x, [0, 2, 24])
    assert back.exact[0] == back.bits[0] == 1
    assert back.exact[1] > 0.9
    assert back.exact[2] < 0.1
    radius = np.asarray(hopfield.basin_radius(key, params, x))
    assert radius.shape == (4,)
    assert 2 <= radius.min() <= radius.max() < 24
    assert hopfield.basin_radius(key, blank(48), x).tolist() == [-1] * 4
    overlap = np.asarray(hopfield.overlap(np.stack([x[0], 1 - x[0]]), x))
    np.testing.assert_allclose(overlap[:, 0], [1, -1])


def test_flow_stores_two_patterns_although_its_loss_is_linear(key):
    """Along the first line of descent, the loss falls as fast at any length."""
    learn = jax.jit(hopfield.flow)
    for number in range(40):
        x = random_patterns(number, 2, 16)
        assert np.asarray(learn(key, Data(x, np.ones(2))).stored).all()


def test_corrupted_versions_teach_the_originals(key):
    """None of which is ever seen."""
    x = random_patterns(1, 4, 48)
    found = fit(
        key,
        Corrupted(MPF(hopfield.energy), FixedFlips(14)),
        blank(48),
        np.repeat(x, 100, axis=0),
        optimizer=optax.adam(0.02),
        num_rounds=200,
        steps_per_round=1,
    )
    assert stored(found.params, x)
    back = hopfield.recovery(key, found.params, x, [14])
    assert back.exact[0] > 0.8


def test_bad_input_is_refused_in_a_sentence(key):
    x = random_patterns(0, 5, 6)
    refuse = partial(pytest.raises, ValueError)
    with refuse(match=r"J must be symmetric, got J\[0, 1\]=1.0 and J\[1, 0\]=0.0"):
        hopfield.checked([[0, 1], [0, 0]], [0, 0])
    with refuse(match=r"diagonal of zeros, got J\[1, 1\]=2.0"):
        hopfield.checked([[0, 1], [1, 2]], [0, 0])
    with refuse(match="n x n for n thresholds"):
        hopfield.checked(np.zeros((2, 3)), np.zeros(2))
    with refuse(match="must be finite"):
        hopfield.checked([[0, np.nan], [np.nan, 0]], [0, 0])
    with refuse(match="J must be symmetric"):
        hopfield.recall(hopfield.Params(np.eye(6, k=1), np.zeros(6)), x)
    for rule in RULES.values():
        with refuse(match="spins of -1 and 1"):
            rule(key, 2 * x - 1)
        with refuse(match="pattern 0 more than once"):
            rule(key, np.concatenate([x, x[:1]]))
    with refuse(match="pattern 1 more than once"):
        weights = np.array([0.0, 1, 1, 1, 1, 1, 2])
        hopfield.outer_product(Data(np.concatenate([x, x[:2]]), weights))
    with refuse(match="rows of units"):
        hopfield.outer_product(x[0])
    for asked in (hopfield.recall, hopfield.is_fixed, hopfield.is_strict_minimum):
        with refuse(match="the 6 units of params, got shape"):
            asked(network(0), np.zeros(5))
    with refuse(match="max_sweeps"):
        hopfield.recall(network(0), x, max_sweeps=0)
    with refuse(match="share must be above 0"):
        hopfield.basin_radius(key, network(0), x, share=0)
    with refuse(match="num_flips must be at most 6, got 7"):
        hopfield.recovery(key, network(0), x, [0, 7])
    with refuse(match="num_patterns must be an integer of at least 1, got 0"):
        hopfield.capacity(key, hopfield.flow, 6, [0, 3])
    with refuse(match="num_patterns must have at least one entry"):
        hopfield.capacity(key, hopfield.flow, 6, [])
    near = np.abs(x[0] - np.stack([np.zeros(6), np.eye(6)[2]]))
    with pytest.warns(hopfield.NotStorableWarning, match="1 differ in one bit, so"):
        learned = hopfield.flow(key, near)
    assert not np.asarray(dynamics(learned.params, near)[2]).all()
