import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampler_checks import codes
from small_models import (
    all_states,
    log_probs_of,
    matrix_of,
    plain_energy,
    random_ising,
)

from probjax import exact, ising, samplers
from probjax.models.ising import clusters
from probjax.potential import Potential, potential
from probjax.random import split_array
from probjax.trees import as_array

RING = ((0, 1), (1, 2), (2, 3), (0, 3))
MODELS = {"all pairs": random_ising(0, 3), "ring": random_ising(1, 4, edges=RING)}
SAMPLERS = [clusters.SwendsenWang(), clusters.Wolff()]


def name(sampler):
    return type(sampler).__name__


def weighted(params, weight):
    params = jax.tree.map(lambda leaf: as_array(np.asarray(leaf, float)), params)
    return Potential((ising.energy,), (params,), as_array([weight]))


@jax.jit
def bonds_and_energies(model, x):
    return clusters.bonds(model), jax.vmap(model)(x)


@pytest.mark.parametrize("model", MODELS)
def test_bonds_spell_the_weighted_energy_over_spins_and_a_ghost(model, x64):
    model = weighted(MODELS[model], 0.6)
    x = all_states(len(model.args[0].bias)).astype(float)
    graph, energies = jax.tree.map(np.asarray, bonds_and_energies(model, x))
    spins = np.pad(2 * x - 1, ((0, 0), (1, 0)), constant_values=1)
    agreement = spins[:, graph.first] * spins[:, graph.second] * graph.coupling
    constant = energies + agreement.sum(1)
    np.testing.assert_allclose(constant, np.full(len(x), constant[0]), rtol=1e-12)
    assert agreement.shape[1] == len(model.args[0].coupling) + x.shape[1]
    assert np.all(agreement.min(1) < 0), "not frustrated: a state satisfies all bonds"


@jax.jit
def transitions(sampler, model):
    """The matrix, by enumeration of all bonds and of all coins or first spins."""
    graph = clusters.bonds(model)
    x = all_states(size := len(model.args[0].bias)).astype(float)
    coins = as_array(all_states(size + 1) == 1)

    def turns_of(active):
        labels = clusters.clusters(graph.first, graph.second, active, size + 1)
        if sampler == clusters.SwendsenWang():
            return coins[:, labels]
        return labels[None] == labels[1:, None]

    def row(x):
        chances = clusters.bond_chances(graph, x)[None]
        weights = jnp.where(active, chances, 1 - chances).prod(1)
        there = jax.vmap(jax.vmap(clusters.flipped, (None, 0)), (None, 0))(x, turns)
        shares = jnp.broadcast_to(weights[:, None], turns.shape[:2]) / turns.shape[1]
        return jnp.zeros(2**size).at[codes(there)].add(shares)

    active = as_array(all_states(len(graph.coupling)) == 1)
    turns = jax.vmap(turns_of)(active)
    return jax.vmap(row)(x)


@jax.jit
def steps(sampler, model, keys, x):
    """The numbers of the states to which single steps lead."""
    state = jax.vmap(sampler.init, (0, None, 0))(keys, model, x)
    return codes(jax.vmap(sampler.step, (0, None, 0))(keys, model, state)[0].x)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
def test_flips_leave_the_model_unchanged_and_are_drawn_as_enumerated(
    sampler, model, x64, key
):
    size, count = len(MODELS[model].bias), 4_000
    starts = np.repeat([1, 3, 2**size - 2], count)
    keys = split_array(key, len(starts))
    for weight in (1.0, 0.6):
        chosen = weighted(MODELS[model], weight)
        scaled = jax.tree.map(
            lambda leaf, w=weight: w * np.asarray(leaf), chosen.args[0]
        )
        p = np.exp(log_probs_of(scaled))
        matrix = np.asarray(transitions(sampler, chosen))
        np.testing.assert_allclose(matrix.sum(1), 1, rtol=1e-12)
        np.testing.assert_allclose(p @ matrix, p, rtol=1e-10)
        assert np.linalg.matrix_power(matrix, size).min() > 0, "not ergodic"

        x = all_states(size)[starts].astype(float)
        there = np.asarray(steps(sampler, chosen, keys, x))
        for start, numbers in zip(
            starts[::count], there.reshape(-1, count), strict=True
        ):
            found = np.bincount(numbers, minlength=len(p)) / count
            error = np.sqrt(matrix[start] * (1 - matrix[start]) / count) + 1e-9
            assert np.all(np.abs(found - matrix[start]) < 5 * error)


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
    label = jax.jit(clusters.clusters, static_argnums=3)
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


@pytest.mark.statistics
def test_critical_lattice_has_its_exact_energy_from_an_ordered_start(key):
    # Of spins that are coupled by 0.44 to four others, in a field of 0.002.
    bias, coupling = np.full(64, 8 * 0.44 - 2 * 0.002), np.full(len(LATTICE), -2 * 0.44)
    params = ising.Params(as_array(bias), as_array(coupling), LATTICE)
    moments = exact.lattice.moments(matrix_of(params), SHAPE, periodic=True)
    mean, second = map(np.asarray, moments)
    pairs = 4 * second[FIRST, SECOND] - 2 * mean[FIRST] - 2 * mean[SECOND] + 1
    found = samplers.sample_mean(
        key,
        ising.energy,
        params,
        np.zeros((100, 64)),
        statistic=agreement_and_magnetisation,
        sampler=clusters.SwendsenWang(),
        num_draws=200,
        num_warmup=50,
    )
    expected = np.array([pairs.mean(), (2 * mean - 1).mean()])
    error = np.array(found.stderr)
    assert np.all(np.abs(np.array(found.mean) - expected) < 5 * error)
    assert np.all(error < [0.005, 0.03])
    np.testing.assert_array_equal(found.info.accept, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
def test_a_step_keeps_the_kind_of_its_state(sampler, dtype, x64, key):
    params = jax.tree.map(lambda leaf: as_array(leaf, dtype), MODELS["ring"])
    model = potential(ising.energy, params)
    state = sampler.init(key, model, as_array(np.zeros(4), dtype))
    after, info = jax.eval_shape(sampler.step, key, model, state)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    assert info.accept.dtype == dtype


@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
def test_other_energies_and_states_are_refused(sampler, key):
    params, x = MODELS["all pairs"], np.zeros((1, 3))
    with pytest.raises(ValueError, match=f"{name(sampler)} requires ising.energy"):
        samplers.sample(key, plain_energy, params, x, sampler=sampler, num_draws=1)
    with pytest.raises(ValueError, match="0 or 1, got spins"):
        samplers.sample(key, ising.energy, params, x - 1, sampler=sampler, num_draws=1)
