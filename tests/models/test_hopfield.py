import itertools
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from probjax import (
    L2,
    MPF,
    Corrupted,
    Data,
    FixedFlips,
    exact,
    fit,
    hopfield,
    ising,
)


def network(seed, size, scale=1.0):
    params = hopfield.init(jax.random.key(seed), size, scale=scale)
    threshold = scale * jax.random.normal(jax.random.key(seed + 1), (size,))
    return params._replace(threshold=threshold)


def random_patterns(seed, count, size):
    return jax.random.bernoulli(jax.random.key(seed), 0.5, (count, size)).astype(float)


def test_energies_are_those_of_an_ising_model(x64):
    params = network(0, 5)
    x = exact.states(5)
    energies = jax.vmap(hopfield.energy, (None, 0))(params, x)
    as_ising = jax.vmap(ising.energy, (None, 0))(hopfield.to_ising(params), x)
    np.testing.assert_allclose(energies, as_ising, rtol=1e-12)
    chex.assert_trees_all_close(hopfield.from_ising(hopfield.to_ising(params)), params)
    gaps = jax.vmap(hopfield.flip_gaps, (None, 0))(params, x)
    truth = jax.vmap(ising.flip_gaps, (None, 0))(hopfield.to_ising(params), x)
    np.testing.assert_allclose(gaps, truth, rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_dynamics_are_units_in_order_and_never_rise(seed):
    """From every state of small networks, by hand."""
    params = network(10 * seed, 6)
    weight, threshold = map(np.asarray, params)
    x = np.asarray(exact.states(6))
    energy = jax.vmap(hopfield.energy, (None, 0))
    start = energy(params, x)
    now = x.copy()
    for unit in range(6):
        now[:, unit] = now @ weight[unit] - threshold[unit] > 0
        later = energy(params, now)
        assert np.all(later <= start + 1e-5)
        start = later
    np.testing.assert_array_equal(hopfield.sweep(params, jnp.asarray(x)), now)
    found = hopfield.recall(params, x)
    assert found.converged.all()
    assert hopfield.is_stored(params, found.x)
    # Every strict minimum is a fixed point, and every fixed point stays.
    fixed = np.asarray(hopfield.is_fixed(params, x))
    assert np.all(fixed >= np.asarray(hopfield.is_strict_minimum(params, x)))
    np.testing.assert_array_equal(np.asarray(found.x)[fixed], x[fixed])
    assert fixed.any()
    assert not fixed.all()


def test_a_unit_that_is_not_driven_is_off():
    """H(0) = 0: of two units that only inhibit each other, nothing is fixed."""
    params = hopfield.checked([[0, -1], [-1, 0]], [0, 0])
    assert hopfield.is_fixed(params, jnp.zeros(2))
    assert not hopfield.is_strict_minimum(params, jnp.zeros(2))
    # In order they agree on one; both at once would go back and forth for ever.
    both = hopfield.checked([[0, -2], [-2, 0]], [-1, -1])
    found = hopfield.recall(both, jnp.ones(2))
    np.testing.assert_array_equal(found.x, [0, 1])
    assert found.converged


def test_dynamics_that_are_cut_short_say_so():
    size = 8
    chain = jnp.diag(jnp.ones(size - 1), -1)
    # A wave that goes against the order needs a sweep for each unit.
    params = hopfield.checked(chain + chain.T, jnp.full(size, 0.5))
    start = jnp.zeros(size).at[-1].set(1)
    short = hopfield.recall(params, jnp.stack([start, jnp.zeros(size)]), max_sweeps=1)
    assert short.converged.tolist() == [False, True]
    assert hopfield.recall(params, start).converged


@pytest.mark.parametrize("seed", range(4))
def test_a_sum_below_one_stores_all(seed):
    """Theorem 1, on a thousand random networks and patterns each."""
    keys = jax.random.split(jax.random.key(seed), 1000)

    def one(key):
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

    log_flow, stored = jax.jit(jax.vmap(one))(keys)
    below = log_flow < 0
    assert 20 < below.sum() < 980
    assert stored[below].all()
    assert stored.sum() > below.sum(), "it is enough, not needed"


def test_the_flow_is_convex(x64):
    x = random_patterns(0, 4, 6)

    def log_flow(params):
        return hopfield.log_flow(params, x)

    for seed in range(20):
        first, second = network(seed, 6), network(seed + 100, 6)
        middle = jax.tree.map(lambda a, b: (a + b) / 2, first, second)
        assert log_flow(middle) <= (log_flow(first) + log_flow(second)) / 2 + 1e-12


def test_the_online_rule_is_minus_the_gradient_of_one_patterns_flow(x64):
    params, x = network(0, 6), random_patterns(1, 1, 6)[0]

    def flow(pairs, threshold):
        half = jnp.zeros((6, 6)).at[jnp.triu_indices(6, 1)].set(pairs)
        here = hopfield.Params(half + half.T, threshold)
        return jnp.sum(jnp.exp(hopfield.flip_gaps(here, x) / 2))

    pairs = params.weight[jnp.triu_indices(6, 1)]
    in_pairs, in_thresholds = jax.grad(flow, (0, 1))(pairs, params.threshold)
    moved = hopfield.flow_step(params, x, 0.1)
    change = jax.tree.map(jnp.subtract, moved, params)
    np.testing.assert_allclose(
        change.weight[jnp.triu_indices(6, 1)], -0.2 * in_pairs, rtol=1e-9
    )
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
    weights = jnp.arange(2 * count) % 2
    learned = jax.jit(RULES[name])(key, Data(x, weights.astype(float)))
    assert learned.stored.all()
    kept = x[1::2]
    assert hopfield.is_stored(learned.params, kept)
    chex.assert_trees_all_equal(hopfield.checked(*learned.params), learned.params)
    alone = RULES[name](key, kept)
    assert alone.stored.all()
    if name != "flow":  # which rounding leads another way to as good a network
        chex.assert_trees_all_close(alone.params, learned.params, rtol=1e-4, atol=1e-4)


def test_outer_products_and_storkey_are_their_sums(x64):
    x = np.asarray(random_patterns(3, 4, 7))
    s = 2 * x - 1
    weight = sum(np.outer(p, p) for p in s) / 7
    np.fill_diagonal(weight, 0)
    found = hopfield.outer_product(x).params
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
    np.testing.assert_allclose(
        hopfield.storkey(x).params.weight, 2 * weight, atol=1e-12
    )


def test_patterns_one_bit_apart_are_found_among_many():
    x = np.asarray(random_patterns(0, 60, 9))
    x = x[np.sort(np.unique(x, axis=0, return_index=True)[1])]
    weights = np.ones(len(x))
    weights[:7] = 0
    apart = np.abs(x[:, None] - x[None]).sum(2)
    pairs = np.argwhere(np.triu(apart == 1, 1))
    pairs = pairs[pairs.min(1) >= 7]
    assert len(pairs) > 5
    first, second = pairs[0]
    assert hopfield.not_storable(Data(x, weights)) == (
        f"patterns {first} and {second} are one bit apart, of {len(pairs)} such pairs"
    )
    assert hopfield.not_storable(x[x.sum(1) % 2 == 0]) == ""


def test_weights_count_where_a_rule_has_a_place_for_them(x64):
    x, weights = np.asarray(random_patterns(0, 3, 8)), np.array([1.0, 2, 0.5])
    s = 2 * x - 1
    truth = (s.T * weights) @ s / 8
    np.fill_diagonal(truth, 0)
    found = hopfield.outer_product(Data(x, weights)).params
    np.testing.assert_allclose(found.weight, 2 * truth)
    same = hopfield.storkey(Data(x, weights)).params
    chex.assert_trees_all_equal(same, hopfield.storkey(x).params)


def test_energy_and_dynamics_agree_whatever_the_matrix():
    weight = jax.random.normal(jax.random.key(3), (6, 6))
    given = hopfield.Params(weight, jnp.linspace(-1, 1, 6))
    half = (weight + weight.T) / 2
    taken = given._replace(weight=half - jnp.diag(jnp.diagonal(half)))
    x = exact.states(6)
    for of in (hopfield.is_fixed, hopfield.is_strict_minimum, hopfield.sweep):
        np.testing.assert_array_equal(of(given, x), of(taken, x))
    gaps = jax.vmap(hopfield.flip_gaps, (None, 0))(given, x)
    strict = hopfield.is_strict_minimum(given, x)
    np.testing.assert_array_equal(strict, jnp.all(gaps < 0, axis=1))
    chex.assert_trees_all_close(hopfield.from_ising(hopfield.to_ising(given)), taken)
    found = jax.jit(hopfield.recall)(given, x)
    np.testing.assert_array_equal(found.x, hopfield.recall(taken, x).x)


def test_many_networks_learn_at_once(key):
    x = jnp.stack([random_patterns(seed, 12, 16) for seed in range(4)])
    keys = jax.random.split(key, 4)
    together = jax.vmap(hopfield.flow)(keys, x)
    assert together.stored.all()
    found = jax.vmap(lambda p, x: hopfield.recall(p, x).converged)(together.params, x)
    assert found.all()


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
    seen, start = cliques[order[:132]], hopfield.init(key, 66)
    found = fit(key, MPF(hopfield.energy), start, seen, penalty=L2(1e-5))
    assert hopfield.is_stored(found.params, cliques)
    # And they correct errors: two edges too many or too few.
    back = hopfield.recall(found.params, FixedFlips(2)(key, cliques)).x
    assert np.all(back == cliques, axis=1).mean() > 0.99


def test_capacity_recovery_and_basins(key):
    of_flow = hopfield.capacity(key, hopfield.flow, 16, [2, 12, 40], num_trials=5)
    assert of_flow.patterns[:2].tolist() == [1, 1]
    assert of_flow.complete.tolist() == [1, 1, 0]
    x = random_patterns(2, 4, 32)
    params = hopfield.pseudo_inverse(x).params
    back = hopfield.recovery(key, params, x, [0, 2, 16])
    assert back.exact[0] == back.bits[0] == 1
    assert back.exact[1] > 0.9
    assert back.exact[2] < 0.1
    radius = hopfield.basin_radius(key, params, x)
    assert radius.shape == (4,)
    assert 2 <= radius.min() <= radius.max() < 16
    nothing = hopfield.Params(jnp.zeros((32, 32)), jnp.zeros(32))
    assert hopfield.basin_radius(key, nothing, x).tolist() == [-1] * 4
    np.testing.assert_allclose(
        hopfield.overlap(jnp.stack([x[0], 1 - x[0]]), x)[:, 0], [1, -1]
    )


def test_corrupted_versions_teach_the_originals(key):
    """None of which is ever seen."""
    x = random_patterns(1, 4, 48)
    found = fit(
        key,
        Corrupted(MPF(hopfield.energy), FixedFlips(14)),
        hopfield.init(key, 48),
        jnp.repeat(x, 100, axis=0),
        optimizer=optax.adam(0.02),
        num_rounds=200,
        steps_per_round=1,
    )
    assert hopfield.is_stored(found.params, x)
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
        hopfield.checked(jnp.zeros((2, 3)), jnp.zeros(2))
    with refuse(match="must be finite"):
        hopfield.checked([[0, jnp.nan], [jnp.nan, 0]], [0, 0])
    with refuse(match="J must be symmetric"):
        hopfield.recall(hopfield.Params(jnp.eye(6, k=1), jnp.zeros(6)), x)
    for rule in RULES.values():
        with refuse(match="spins of -1 and 1"):
            rule(key, 2 * x - 1)
        with refuse(match="pattern 0 more than once"):
            rule(key, jnp.concatenate([x, x[:1]]))
    with refuse(match="pattern 1 more than once"):
        weights = jnp.array([0.0, 1, 1, 1, 1, 1, 2])
        hopfield.outer_product(Data(jnp.concatenate([x, x[:2]]), weights))
    with refuse(match="rows of units"):
        hopfield.outer_product(x[0])
    for asked in (hopfield.recall, hopfield.is_fixed, hopfield.is_strict_minimum):
        with refuse(match="the 6 units of params, got shape"):
            asked(network(0, 6), jnp.zeros(5))
    with refuse(match="max_sweeps"):
        hopfield.recall(network(0, 6), x, max_sweeps=0)
    with refuse(match="share must be above 0"):
        hopfield.basin_radius(key, network(0, 6), x, share=0)
    with refuse(match="num_flips must be at most the 6 bits, got 7"):
        hopfield.recovery(key, network(0, 6), x, [0, 7])
    with refuse(match="num_patterns must be an integer of at least 1, got 0"):
        hopfield.capacity(key, hopfield.flow, 6, [0, 3])
    with refuse(match="num_patterns must have an entry"):
        hopfield.capacity(key, hopfield.flow, 6, [])
    near = jnp.stack([x[0], x[0].at[2].set(1 - x[0, 2])])
    with pytest.warns(hopfield.NotStorableWarning, match="1 are one bit apart$"):
        learned = hopfield.flow(key, near)
    assert not hopfield.is_strict_minimum(learned.params, near).all()
