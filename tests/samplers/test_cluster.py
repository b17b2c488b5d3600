import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import plain_energy, random_ising

from probjax import Potential, exact, ising, potential, samplers
from probjax.samplers import cluster

RING = ((0, 1), (1, 2), (2, 3), (0, 3))
MODELS = {"all pairs": random_ising(0, 3), "ring": random_ising(1, 4, edges=RING)}
SAMPLERS = [cluster.SwendsenWang(), cluster.Wolff()]


def name(sampler):
    return type(sampler).__name__


def weighted(params, weight):
    return Potential((ising.energy,), (params,), jnp.array([weight], float))


def codes(states):
    """The numbers of states, in the order of `exact.states`."""
    return (states @ 2.0 ** jnp.arange(states.shape[-1])[::-1]).astype(int)


@pytest.mark.parametrize("name", MODELS)
def test_bonds_spell_the_weighted_energy_over_spins_and_a_ghost(name, x64):
    model = weighted(MODELS[name], 0.6)
    graph = cluster.bonds(model)
    x = exact.states(len(model.args[0].bias))
    spins = np.pad(2 * x - 1, ((0, 0), (1, 0)), constant_values=1)
    agreement = spins[:, graph.first] * spins[:, graph.second]
    constant = jax.vmap(model)(x) + agreement @ graph.coupling
    np.testing.assert_allclose(constant, constant[0], rtol=1e-6)
    assert len(graph.coupling) == len(model.args[0].coupling) + x.shape[1]


def transition_matrix(sampler, model):
    """By enumeration of all bonds, and of all coins or first spins."""
    graph = cluster.bonds(model)
    size = len(model.args[0].bias)
    states = exact.states(size)
    active = exact.states(len(graph.coupling)) == 1
    labels = np.asarray(
        jax.vmap(lambda a: cluster.clusters(graph.first, graph.second, a, size + 1))(
            active
        )
    )
    if isinstance(sampler, cluster.SwendsenWang):
        coins = np.asarray(exact.states(size + 1)) == 1
        turns = np.moveaxis(coins[:, labels], 0, 1)
    else:
        turns = labels[:, None, :] == labels[:, 1:, None]
    matrix = np.zeros((len(states), len(states)))
    for row, x in zip(matrix, states, strict=True):
        chances = cluster.bond_chances(graph, x)[None]
        weights = jnp.where(active, chances, 1 - chances).prod(1)
        there = jax.vmap(jax.vmap(cluster.turned, (None, 0)), (None, 0))(x, turns)
        shares = np.broadcast_to(weights[:, None] / turns.shape[1], turns.shape[:2])
        np.add.at(row, np.asarray(codes(there)), shares)
    return matrix


@jax.jit
def steps(sampler, model, keys, x):
    state = jax.vmap(sampler.init, (0, None, None))(keys, model, x)
    return jax.vmap(sampler.step, (0, None, 0))(keys, model, state)[0].x


@pytest.mark.parametrize("weight", [1.0, 0.6])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
def test_flips_leave_the_model_unchanged_and_are_drawn_as_enumerated(
    sampler, model, weight, x64, key
):
    params, count = MODELS[model], 40_000
    # Frustrated: no state satisfies all bonds of some loop.
    spins = ising.to_spins(params)
    assert jnp.any(spins.coupling < 0)
    assert jnp.any(spins.field < 0)
    size = len(params.bias)
    scaled = jax.tree.map(lambda leaf: weight * leaf.astype(float), params)
    p = np.exp(exact.log_probs(ising.energy, scaled, size))
    matrix = transition_matrix(sampler, weighted(params, weight))
    np.testing.assert_allclose(matrix.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(p @ matrix, p, rtol=1e-10)
    # Ergodic: every state leads to every other in the end.
    assert np.linalg.matrix_power(matrix, 2 * size).min() > 0
    for number, x in enumerate(exact.states(size)[::3]):
        keys = jax.random.split(jax.random.fold_in(key, number), count)
        there = steps(sampler, weighted(params, weight), keys, x)
        found = np.bincount(codes(there), minlength=len(p)) / count
        expected = matrix[3 * number]
        error = np.sqrt(expected * (1 - expected) / count) + 1e-9
        assert np.all(np.abs(found - expected) < 5 * error)


def components(first, second, size):
    """The least vertex of each cluster, one bond after the other."""
    labels = np.arange(size)
    for i, j in zip(first, second, strict=True):
        low, high = sorted((labels[i], labels[j]))
        labels[labels == high] = low
    return labels


def test_clusters_are_the_components_of_any_graph():
    random, size = np.random.default_rng(0), 40
    first, second = np.triu_indices(size, 1)
    label = jax.jit(cluster.clusters, static_argnums=3)
    for mean_degree in (0, 0.5, 1, 1.5, 2, 4, 39):
        for _ in range(5):
            active = random.random(len(first)) < mean_degree / (size - 1)
            found = label(first, second, active, size)
            expected = components(first[active], second[active], size)
            np.testing.assert_array_equal(found, expected)
    # Long paths in any order, cut in two, are the hardest: labels have far to go.
    for _ in range(20):
        path = random.permutation(300)
        active = np.arange(299) != random.integers(299)
        found = label(path[:-1], path[1:], active, 300)
        expected = components(path[:-1][active], path[1:][active], 300)
        np.testing.assert_array_equal(found, expected)


SHAPE = 8, 8
LATTICE = exact.lattice.edges(SHAPE, periodic=True)
FIRST, SECOND = np.transpose(LATTICE)


def agreement_and_magnetisation(x):
    spins = 2 * x - 1
    return (spins[FIRST] * spins[SECOND]).mean(), spins.mean()


@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
def test_critical_lattice_has_its_exact_energy_from_an_ordered_start(sampler, key):
    coupling = np.zeros((64, 64))
    coupling[FIRST, SECOND] = coupling[SECOND, FIRST] = 0.44
    params = ising.from_spins(coupling, np.full(64, 0.002), edges=LATTICE)
    moments = exact.lattice.moments(ising.coupling_matrix(params), SHAPE, periodic=True)
    mean, second = map(np.asarray, moments)
    pairs = 4 * second[FIRST, SECOND] - 2 * mean[FIRST] - 2 * mean[SECOND] + 1
    found = samplers.sample_mean(
        key,
        ising.energy,
        params,
        jnp.zeros((100, 64)),
        statistic=agreement_and_magnetisation,
        sampler=sampler,
        num_draws=200,
        num_warmup=50,
    )
    expected = np.array([pairs.mean(), (2 * mean - 1).mean()])
    error = np.array(found.stderr)
    assert np.all(np.abs(np.array(found.mean) - expected) < 5 * error)
    assert np.all(error < [0.005, 0.03])
    np.testing.assert_array_equal(found.info.accept, 1)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
def test_a_step_keeps_the_kind_of_its_state(sampler, dtype, x64, key):
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), MODELS["ring"])
    model = potential(ising.energy, params)
    state = sampler.init(key, model, jnp.zeros(4, dtype))
    after, info = sampler.step(key, model, state)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    assert info.accept == 1


@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
def test_other_energies_and_states_are_refused(sampler, key):
    params, x = MODELS["all pairs"], jnp.zeros((1, 3))
    with pytest.raises(ValueError, match=f"{name(sampler)} is for ising.energy alone"):
        samplers.sample(key, plain_energy, params, x, sampler=sampler, num_draws=1)
    with pytest.raises(ValueError, match="0 and 1, got spins"):
        samplers.sample(key, ising.energy, params, x - 1, sampler=sampler, num_draws=1)
