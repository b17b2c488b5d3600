"""Properties of random models of fixed shapes, against plain NumPy.

The parameters, data and graphs of all examples are arguments of the same few programs.
"""

from functools import partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sampler_checks import codes, site_matrix
from scipy.special import logsumexp
from small_models import all_states

from probjax import (
    L1,
    L2,
    MPF,
    Connectivity,
    Data,
    GroupL1,
    HeatBath,
    PseudoLikelihood,
    exact,
    hopfield,
    ising,
    loss,
    potts,
    rbm,
    recipe,
    samplers,
)
from probjax.connectivity import AllFlips, BitFlips, Joined, SiteChanges
from probjax.data import unique_rows
from probjax.objectives import RatioMatching
from probjax.objectives.penalty import PenaltySum
from probjax.potential import potential
from probjax.types import Neighbours

pytestmark = pytest.mark.usefixtures("x64")

# The precision is the same for all examples of a test, and so is its fixture.
PROPERTY = settings(
    max_examples=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
KEY = jax.random.key(0)
CLOSE = dict(rtol=1e-9, atol=1e-9)


def numbers(*shape):
    return arrays(float, shape, elements=st.floats(-3, 3))


def counts(*shape):
    return arrays(float, shape, elements=st.sampled_from([0.0, 0.5, 1.0, 4.0]))


SITES = {2: 4, 3: 3}
STATES = {letters: all_states(size, letters) for letters, size in SITES.items()}


def ising_table(params, x):
    bias, coupling = (np.asarray(leaf) for leaf in (params.bias, params.coupling))
    pairs = list(combinations(range(x.shape[1]), 2))
    both = np.stack([x[:, i] * x[:, j] for i, j in pairs], axis=1)
    return x @ bias + 2 * both @ coupling


def hopfield_table(params, x):
    """The diagonal and the antisymmetric part of J do not count."""
    weight, threshold = (np.asarray(leaf) for leaf in params)
    off = (weight + weight.T) / 2 * (1 - np.eye(len(weight)))
    return x @ threshold - np.einsum("ri,ij,rj->r", x, off, x) / 2


def rbm_table(params, x):
    weight, visible, hidden = (np.asarray(leaf) for leaf in params)
    return -x @ visible - np.logaddexp(0, x @ weight + hidden).sum(1)


def potts_table(params, x):
    field, coupling = (np.asarray(leaf) for leaf in (params.field, params.coupling))
    pairs = enumerate(combinations(range(x.shape[1]), 2))
    energy = -sum(field[i, x[:, i]] for i in range(x.shape[1]))
    return energy - sum(coupling[k, x[:, i], x[:, j]] for k, (i, j) in pairs)


# Energies, numbers of letters, and energies of rows by definition.
MODELS = {
    "ising": (ising.energy, 2, ising_table),
    "hopfield": (hopfield.energy, 2, hopfield_table),
    "rbm": (rbm.energy, 2, rbm_table),
    "potts": (potts.energy, 3, potts_table),
}
PARAMS = {
    "ising": st.builds(ising.Params, numbers(4), numbers(6)),
    "hopfield": st.builds(hopfield.Params, numbers(4, 4), numbers(4)),
    "rbm": st.builds(rbm.Params, numbers(4, 3), numbers(4), numbers(3)),
    "potts": st.builds(potts.Params, numbers(3, 3), numbers(3, 3, 3)),
}
every_model = pytest.mark.parametrize("name", MODELS)


def drawn(data, name):
    """Energy, parameters, letters, and the table of the energies of all states."""
    energy, letters, table = MODELS[name]
    params = jax.tree.map(jnp.asarray, data.draw(PARAMS[name]))
    return energy, params, letters, table(params, STATES[letters])


def changed_table(table, letters):
    """Energies after a change, of shape (state, site, letter)."""
    x = STATES[letters]
    changed = np.repeat(x[:, None, None], letters, axis=2)
    changed = np.repeat(changed, x.shape[1], axis=1)
    for site in range(x.shape[1]):
        changed[:, site, :, site] = np.arange(letters)
    return table[codes(changed, letters)]


@partial(jax.jit, static_argnums=(0, 2))
def energies_and_gaps(energy, params, letters):
    model = potential(energy, params)
    sites = jnp.arange(SITES[letters])

    def of_state(x):
        one = jax.vmap(lambda n: model.site_gap(letters)(x, n))(sites)
        found = model(x), model.site_gaps(x, letters), one
        if letters > 2:
            return found, ()
        flips = model.flip_gaps(x), jax.vmap(lambda n: model.flip_gap()(x, n))(sites)
        return found, (*flips, model.mirror_gap(x))

    return jax.vmap(of_state)(STATES[letters].astype(float))


@every_model
@PROPERTY
@given(data=st.data())
def test_energies_and_gaps_are_those_of_the_definition(name, data):
    energy, params, letters, table = drawn(data, name)
    (energies, *gaps), flips = energies_and_gaps(energy, params, letters)
    np.testing.assert_allclose(energies, table, **CLOSE)
    expected = table[:, None, None] - changed_table(table, letters)
    for gap in gaps:
        np.testing.assert_allclose(gap, expected, **CLOSE)
    if letters == 2:
        single = np.where(STATES[2] == 1, expected[:, :, 0], expected[:, :, 1])
        for found in flips[:2]:
            np.testing.assert_allclose(found, single, **CLOSE)
        # The mirror image of a state is the state with the opposite number.
        np.testing.assert_allclose(flips[2], table - table[::-1], **CLOSE)


@every_model
@PROPERTY
@given(data=st.data())
def test_exact_sums_are_those_over_the_table(name, data):
    energy, params, letters, table = drawn(data, name)
    args = energy, params, SITES[letters]
    log_z = exact.log_z(*args, num_states=letters)
    np.testing.assert_allclose(log_z, logsumexp(-table), **CLOSE)
    log_p = exact.log_probs(*args, num_states=letters)
    np.testing.assert_allclose(log_p, -table - logsumexp(-table), **CLOSE)
    mean, second = exact.moments(*args, num_states=letters)
    p, x = np.exp(-table - logsumexp(-table)), STATES[letters]
    np.testing.assert_allclose(mean, p @ x, **CLOSE)
    np.testing.assert_allclose(second, (p[:, None] * x).T @ x, **CLOSE)


@every_model
@PROPERTY
@given(data=st.data())
def test_heat_bath_is_in_detailed_balance_with_the_model(name, data):
    energy, params, letters, table = drawn(data, name)
    p = np.exp(-table - logsumexp(-table))
    for site in range(SITES[letters]):
        model = potential(energy, params)
        matrix = site_matrix(HeatBath(letters), model, site, SITES[letters], letters)
        np.testing.assert_allclose(matrix.sum(1), 1, **CLOSE)
        np.testing.assert_allclose(p @ matrix, p, **CLOSE)
        flow = p[:, None] * matrix
        np.testing.assert_allclose(flow, flow.T, **CLOSE)
        # A site is redrawn whatever it was.
        np.testing.assert_allclose(matrix @ matrix, matrix, **CLOSE)


def rows_of(data, letters):
    weights = data.draw(counts(len(STATES[letters])))
    assume(weights.any())
    return Data(STATES[letters].astype(float), weights)


@every_model
@PROPERTY
@given(data=st.data())
def test_pseudolikelihood_is_the_sum_of_logarithms_of_conditionals(name, data):
    energy, params, letters, table = drawn(data, name)
    rows = rows_of(data, letters)
    found = loss(KEY, PseudoLikelihood(energy, num_states=letters), params, rows)
    log_p = -table[:, None] - logsumexp(-changed_table(table, letters), axis=2)
    expected = -np.average(log_p.sum(1), weights=rows.weights)
    np.testing.assert_allclose(found, expected, **CLOSE)
    if letters == 2:
        flipped = -np.expm1(log_p)
        expected = np.average(np.sum(flipped**2, axis=1), weights=rows.weights)
        found = loss(KEY, RatioMatching(energy), params, rows)
        np.testing.assert_allclose(found, expected, **CLOSE)


def distances(letters):
    """Numbers of sites at which two states differ."""
    return np.sum(STATES[letters][:, None] != STATES[letters][None], axis=2)


FLOWS = {
    "flips": (BitFlips(), 2, distances(2) == 1),
    "pairs": (BitFlips(2), 2, (distances(2) == 1) | (distances(2) == 2)),
    "mirror": (Joined((BitFlips(), AllFlips())), 2, distances(2) % 3 == 1),
    "letters": (SiteChanges(3), 3, distances(3) == 1),
}


def log_flow(table, edges, weights):
    """log K: the flow along every edge out of a row, averaged over rows."""
    rates = edges * np.exp((table[:, None] - table[None]) / 2)
    return np.log(np.average(rates.sum(1), weights=weights))


@pytest.mark.parametrize("kind", FLOWS)
@PROPERTY
@given(data=st.data())
def test_flow_is_the_sum_over_edges(kind, data):
    connectivity, letters, edges = FLOWS[kind]
    energy, params, _, table = drawn(data, "ising" if letters == 2 else "potts")
    rows = rows_of(data, letters)
    found = loss(KEY, MPF(energy, connectivity=connectivity), params, rows)
    np.testing.assert_allclose(found, log_flow(table, edges, rows.weights), **CLOSE)


@recipe
class Graph(Connectivity):
    """Any symmetric weights of the edges between all states of four bits."""

    edges: jax.Array

    def prepare(self, x):
        return x

    def states(self, x, moves):
        x_all = jnp.asarray(STATES[2].astype(float))
        return Neighbours(x_all, jnp.zeros(len(x_all)), self.edges[codes(x)])


def symmetric_graph(edges):
    return (edges + edges.T) * (1 - np.eye(len(edges)))


@PROPERTY
@given(data=st.data(), edges=counts(16, 16).map(symmetric_graph))
def test_flow_on_any_graph_leaves_the_model_invariant(data, edges):
    energy, params, _, table = drawn(data, "ising")
    p = np.exp(-table - logsumexp(-table))
    graph = Graph(jnp.asarray(edges))
    flow = np.asarray(exact.dynamics.flow_matrix(energy, params, graph, 4))
    rates = edges.T * np.exp((table[None] - table[:, None]) / 2)
    # Rates grow with the range of the energies, and so do rounding errors.
    scale = 1e-12 * (1 + rates.max())
    np.testing.assert_allclose(flow, rates - np.diag(rates.sum(0)), atol=100 * scale)
    np.testing.assert_allclose(flow @ p, 0, atol=100 * scale)
    rows = rows_of(data, 2)
    assume(np.any(edges[rows.weights > 0]))
    found = loss(KEY, MPF(energy, connectivity=graph), params, rows)
    np.testing.assert_allclose(found, log_flow(table, edges, rows.weights), **CLOSE)


@jax.jit
def there_and_back(params):
    found = ising.to_fields(params, spins=True)
    network = hopfield.from_ising(params)
    back = (
        ising.from_fields(found.coupling, found.field, spins=True),
        hopfield.to_ising(network),
    )
    return found, network, back


@PROPERTY
@given(data=st.data())
def test_spins_and_networks_are_the_same_ising_model(data):
    _, params, _, table = drawn(data, "ising")
    (coupling, field, constant), network, back = there_and_back(params)
    s = 2 * STATES[2] - 1
    minus_energy = np.einsum("ri,ij,rj->r", s, coupling, s) / 2 + s @ field
    np.testing.assert_allclose(constant - minus_energy, table, **CLOSE)
    np.testing.assert_allclose(hopfield_table(network, STATES[2]), table, **CLOSE)
    for other in back:
        np.testing.assert_allclose(other.bias, params.bias, **CLOSE)
        np.testing.assert_allclose(other.coupling, params.coupling, **CLOSE)


zero_sum = jax.jit(potts.zero_sum)


@PROPERTY
@given(data=st.data(), moved=numbers(3), shifts=numbers(3, 3))
def test_zero_sum_gauge_is_the_same_model_from_every_gauge(data, moved, shifts):
    """A function of one letter moves from couplings to fields, with constants."""
    _, params, _, table = drawn(data, "potts")
    found = zero_sum(params)
    assert np.ptp(potts_table(found, STATES[3]) - table) < 1e-9
    np.testing.assert_allclose(np.sum(found.field, 1), 0, atol=1e-9)
    for axis in (1, 2):
        np.testing.assert_allclose(np.sum(found.coupling, axis), 0, atol=1e-9)
    # The first letter of the pair (0, 1).
    field = np.asarray(params.field) + shifts[0][:, None]
    field[0] -= moved
    coupling = np.asarray(params.coupling) + shifts[1][:, None, None]
    coupling[0] += moved[:, None]
    again = zero_sum(potts.Params(jnp.asarray(field), jnp.asarray(coupling)))
    np.testing.assert_allclose(again.field, found.field, **CLOSE)
    np.testing.assert_allclose(again.coupling, found.coupling, **CLOSE)


PAIRS = list(combinations(range(6), 2))


@PROPERTY
@given(edges=st.lists(st.sampled_from(PAIRS), unique=True))
def test_no_edge_joins_two_sites_of_a_colour(edges):
    masks = np.asarray(samplers.colours(edges, 6))
    np.testing.assert_array_equal(masks.sum(0), 1)
    assert masks.any(1).all()
    assert not any(np.any(masks[:, i] * masks[:, j]) for i, j in edges)
    degree = np.bincount(np.ravel(edges).astype(int), minlength=6).max()
    assert len(masks) <= degree + 1


@PROPERTY
@given(x=arrays(int, (8, 2), elements=st.integers(0, 2)), weights=counts(8))
def test_unique_rows_keep_the_weight_of_every_state(x, weights):
    assume(weights.any())
    rows = unique_rows(Data(x, weights))
    found = list(map(tuple, np.asarray(rows.x).tolist()))
    assert found == sorted(set(map(tuple, x.tolist())))
    totals = [weights[(x == row).all(1)].sum() for row in found]
    np.testing.assert_array_equal(rows.weights, totals)
    again = unique_rows(rows)
    np.testing.assert_array_equal(again.x, rows.x)
    np.testing.assert_array_equal(again.weights, rows.weights)


@jax.jit
def rises(penalty, step, point, direction):
    """From the point that `prox` returns, of the function that it minimises."""

    def definition(at):
        return jnp.sum((at - point) ** 2) / 2 + step * penalty.value(at)

    found = penalty.prox(point, step)
    near = jax.vmap(lambda length: definition(found + length * direction))(LENGTHS)
    return near - definition(found)


def by_halves(strength, weights):
    first, second = (weights * np.eye(2)[i][:, None] for i in range(2))
    return PenaltySum(L1(strength, first), L2(strength, second))


PENALTIES = {
    "L1": L1,
    "L2": L2,
    "groups": lambda strength, weights: GroupL1(strength, weights[:, 0]),
    "sum": by_halves,
}
LENGTHS = np.array([1e-3, -1e-3, 1.0, -1.0])


@pytest.mark.parametrize("name", PENALTIES)
@PROPERTY
@given(
    strength=st.floats(0, 3),
    step=st.floats(0.01, 3),
    weights=counts(2, 3),
    point=numbers(2, 3),
    direction=numbers(2, 3),
)
def test_proximal_points_minimise_their_definition(
    name, strength, step, weights, point, direction
):
    """Curved by 1 or more, it rises by half the squared distance from its minimum."""
    penalty = PENALTIES[name](strength, jnp.asarray(weights))
    found = np.asarray(rises(penalty, step, point, direction))
    assert np.all(found >= np.sum(direction**2) * LENGTHS**2 / 2 - 1e-11)
