"""Sums over edges, and Ising models of sparse graphs, compared with dense ones."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import all_states, plain_energy, random_ising

from probjax import Data, exact, ising, samplers
from probjax.models import sparse_pairs
from probjax.models.ising import joint_counts
from probjax.models.pairs import Edges, pairwise_block
from probjax.models.sparse_pairs import Incidence, Shifts, layout, sparse_block
from probjax.potential import potential
from probjax.trees import as_array


def torus(side):
    """Edges of a square lattice, made by NumPy."""
    sites = np.arange(side * side).reshape(side, side)
    pairs = [(sites, np.roll(sites, -1, axis)) for axis in (0, 1)]
    first, second = np.concatenate([np.reshape(pair, (2, -1)) for pair in pairs], 1)
    return np.stack([np.minimum(first, second), np.maximum(first, second)], 1)


def random_graph(size, count):
    """Distinct edges in no order; the last site has none."""
    pairs = np.stack(np.triu_indices(size - 1, 1), 1)
    return np.random.default_rng(0).permutation(pairs)[:count]


def star(size):
    return [(0, site) for site in range(1, size)]


GRAPHS = {
    "lattice": (16 * 16 + 1, torus(16), Shifts),
    "star": (1100, star(1100), Incidence),
    "random": (1100, random_graph(1100, 1500), Incidence),
    "no edges": (20, (), Shifts),
}
FORMS = {
    "distances": lambda size, edges: sparse_pairs._shifts(
        size, edges, np.unique(abs(edges.array @ [-1, 1]))
    ),
    "ends": sparse_pairs.incidence,
}


@pytest.fixture(params=GRAPHS)
def graph(request):
    return GRAPHS[request.param]


@pytest.fixture
def always_sparse(monkeypatch):
    """Sums over edges for graphs of any size."""
    monkeypatch.setattr(sparse_pairs, "ENTRIES_PER_PRODUCT", 0)
    sparse_pairs._layout.cache_clear()
    yield
    sparse_pairs._layout.cache_clear()


def without_edges(params):
    """The same model, with a coupling for every pair."""
    matrix = np.zeros(2 * (len(params.bias),))
    matrix[params.edges.sites] = params.coupling
    values = matrix[np.triu_indices(len(matrix), 1)]
    return ising.Params(params.bias, as_array(values))


def drawn_states(size, count=3):
    return np.random.default_rng(1).integers(0, 2, (count, size)).astype(float)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("edges", [torus(4), star(17), random_graph(17, 20), [(2, 1)]])
def test_sums_are_products_with_the_matrix(form, edges, x64):
    size, edges = 17, Edges(edges)
    params = random_ising(0, size, edges=edges)
    coupling, x = np.asarray(params.coupling), np.random.default_rng(2).normal(size=17)
    found = FORMS[form](size, edges)
    matrix = np.asarray(ising.coupling_matrix(params))
    np.fill_diagonal(matrix := matrix.copy(), 0)
    np.testing.assert_allclose(found.sums(coupling, x), matrix @ x, atol=1e-12)
    np.testing.assert_allclose(found.total(coupling, x), x @ matrix @ x / 2)
    for form in (found.sums, found.total):
        chex.assert_numerical_grads(jax.jit(form), (coupling, x), order=1)


def test_the_form_fits_the_graph(graph):
    size, edges, kind = graph
    assert isinstance(layout(size, Edges(edges)), kind)
    assert layout(size, None) is None
    most = Edges(np.stack(np.triu_indices(40, 1), 1))
    assert layout(40, most) is None


def test_closed_forms_equal_those_of_a_matrix(graph, x64):
    size, edges, _ = graph
    params = random_ising(0, size, edges=edges)
    x = drawn_states(size)
    names = "flip_gaps", "mirror_gap"

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0))
    def forms(params, x):
        model = potential(ising.energy, params)
        sites = jnp.arange(size)[::7]
        gap = jax.vmap(partial(model.flip_gap(), x))(sites)
        block = model.block("bit_block")(x, jnp.int32(3), 8)
        return model(x), [getattr(model, name)(x) for name in names], gap, block

    found, expected = forms(params, x), forms(without_edges(params), x)
    chex.assert_trees_all_close(found, expected, atol=1e-9)
    plain = jax.jit(jax.vmap(potential(plain_energy, params)))(x)
    np.testing.assert_allclose(found[0], plain, atol=1e-9)
    flipped = np.where(np.arange(size) == 2, 1 - x, x)
    after = forms(params, flipped)[0]
    np.testing.assert_allclose(found[1][0][:, 2], found[0] - after, atol=1e-9)


def test_gradients_equal_those_of_a_matrix(graph, x64):
    size, edges, _ = graph
    params, x = random_ising(1, size, 0.3, edges=edges), drawn_states(size)

    @jax.jit
    @jax.grad
    def slope(params):
        gaps = jax.vmap(partial(ising.flip_gaps, params))(x)
        energies = jax.vmap(partial(ising.energy, params))(x)
        return jnp.sum(jnp.exp(gaps / 2)) + jnp.sum(energies**2)

    found, dense = slope(params), slope(without_edges(params))
    np.testing.assert_allclose(found.bias, dense.bias, rtol=1e-9)
    among = np.zeros((size, size))
    among[np.triu_indices(size, 1)] = dense.coupling
    first, second = params.edges.sites
    np.testing.assert_allclose(found.coupling, among[first, second], rtol=1e-9)


def test_charts_and_rows_of_units_equal_those_of_a_matrix(graph, x64):
    size, edges, _ = graph
    params, x = random_ising(1, size, edges=edges), drawn_states(size, 9)
    dense = without_edges(params)
    chart = ising.centred(x)
    coordinates = jax.jit(chart.forward)(params)
    expected = jax.jit(chart.forward)(dense)
    np.testing.assert_allclose(coordinates.bias, expected.bias, atol=1e-9)
    back = jax.jit(chart.inverse)(coordinates)
    chex.assert_trees_all_close(back, params, atol=1e-9)
    row = jax.jit(ising.unit_params)(params, 5)
    np.testing.assert_allclose(row.coupling, ising.unit_params(dense, 5).coupling)
    # Only coupled units count in the gap of a unit.
    full = ising.UnitParams(row.bias, jnp.ones(size), params.edges)
    gap = potential(ising.unit_energy, full).flip_gap()(jnp.ones(size), 5)
    degree = np.sum(np.asarray(params.edges, int) == 5)
    np.testing.assert_allclose(gap, full.bias + 2 * degree)


def test_blocks_equal_those_of_a_matrix(x64):
    params = random_ising(0, 17, edges=random_graph(17, 30))
    matrix = np.array(ising.coupling_matrix(params))
    np.fill_diagonal(matrix, 0)
    args = jnp.ones(17), 4, 5
    found = sparse_block(params.bias, params.coupling, params.edges)(*args)
    expected = pairwise_block(params.bias, jnp.asarray(matrix))(*args)
    chex.assert_trees_all_close(found, expected)


@pytest.mark.parametrize("sampler", ["heat bath", "colours"])
def test_samplers_draw_as_with_a_matrix(sampler, key):
    size, edges, _ = GRAPHS["lattice"]
    params, x = random_ising(1, size, 0.3, edges=edges), drawn_states(size, 4)
    chosen = {
        "heat bath": samplers.HeatBath(),
        "colours": samplers.ColourGibbs(samplers.colours(edges, size)),
    }[sampler]
    draws = samplers.sample(key, ising.energy, params, x, sampler=chosen, num_draws=3)
    dense = samplers.sample(
        key, ising.energy, without_edges(params), x, sampler=chosen, num_draws=3
    )
    # A draw differs if rounding moves a probability past a random number.
    assert np.mean(np.asarray(draws.x) != np.asarray(dense.x)) < 1e-3


@pytest.mark.parametrize("sampler", ["heat bath", "colours", "clusters"])
def test_moments_are_those_of_an_enumeration(sampler, key, always_sparse):
    edges = torus(3)
    params = random_ising(2, 9, 0.4, edges=edges)
    assert isinstance(layout(9, params.edges), Shifts)
    exact_mean = np.asarray(exact.moments(ising.energy, params, 9).mean)
    chosen = {
        "heat bath": samplers.HeatBath(),
        "colours": samplers.ColourGibbs(samplers.colours(edges, 9)),
        "clusters": ising.SwendsenWang(),
    }[sampler]
    start = np.tile(all_states(9), (16, 1))
    draws = samplers.sample(
        key, ising.energy, params, start, sampler=chosen, num_draws=1, num_warmup=20
    )
    mean, count = np.asarray(draws.x).mean((0, 1)), len(start)
    z = (mean - exact_mean) / np.sqrt(exact_mean * (1 - exact_mean) / count)
    assert np.abs(z).max() < 4


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("has_mask", [True, False])
def test_joint_counts_by_columns_are_those_by_matrices(on_host, has_mask, monkeypatch):
    generator = np.random.default_rng(0)
    x = generator.integers(0, 2, (50, 6)).astype(np.float32)
    weights = generator.integers(0, 2, 50).astype(np.float32)
    mask = generator.random((50, 6)) < 0.8 if has_mask else None
    data, pairs = Data(x, weights, mask), np.triu_indices(6, 1)
    monkeypatch.setattr(joint_counts, "is_on_host", lambda data: on_host)
    monkeypatch.setattr(joint_counts, "MOST_ENTRIES", 150)
    found = []
    for threshold in (1, 100):
        monkeypatch.setattr(joint_counts, "PAIRS_PER_COLUMN", threshold)
        found.append(joint_counts.joint_counts(data, *pairs))
    chex.assert_trees_all_equal(*found)
    kept = weights > 0
    seen = kept[:, None] * (np.ones_like(x) if mask is None else mask)
    only_first = (seen * x).T @ (seen * (1 - x))
    np.testing.assert_array_equal(found[0].joint[1], only_first[pairs])


def test_equal_edges_share_a_program():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def energy(params, x):
        return ising.energy(params, x)

    x = drawn_states(4)[0].astype(np.float32)
    for edges in (
        ((0, 1), (2, 3)),
        Edges([(0, 1), (2, 3)]),
        np.array([[0, 1], [2, 3]]),
    ):
        energy(ising.Params(np.zeros(4), np.zeros(2), edges), x)


@pytest.mark.parametrize("gradient", [False, True])
def test_memory_is_proportional_to_the_number_of_edges(gradient):
    def bytes_of(side):
        size = side * side
        params = ising.Params(
            jax.ShapeDtypeStruct((size,), np.float32),
            jax.ShapeDtypeStruct((2 * size,), np.float32),
            torus(side),
        )

        def loss(params, x):
            return ising.energy(params, x) + jnp.sum(
                jnp.exp(ising.flip_gaps(params, x))
            )

        job = jax.grad(loss) if gradient else loss
        compiled = jax.jit(job).lower(params, params.bias).compile()
        return compiled.memory_analysis().temp_size_in_bytes / size

    assert bytes_of(300) < 1.2 * bytes_of(100) + 8
    assert bytes_of(300) < 100


def test_a_lattice_of_a_million_units(key):
    side = 1000
    size = side * side
    params = ising.init(key, size, edges=torus(side), scale=1.0)
    x = np.random.default_rng(0).integers(0, 2, size).astype(np.float32)
    energy, gaps = jax.jit(lambda p, x: (ising.energy(p, x), ising.flip_gaps(p, x)))(
        params, x
    )
    first, second = params.edges.sites
    coupling = np.asarray(params.coupling, float)
    expected = 2 * np.sum(coupling * x[first] * x[second])
    np.testing.assert_allclose(energy, expected, atol=1e-5 * size)
    field = np.bincount(first, coupling * x[second], size)
    field += np.bincount(second, coupling * x[first], size)
    np.testing.assert_allclose(gaps, (2 * x - 1) * 2 * field, atol=1e-4)
    masks = np.asarray(samplers.colours(params.edges, size))
    assert masks.shape == (2, size)
    assert not np.any(masks[:, first] * masks[:, second])
