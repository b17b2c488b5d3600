import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import all_states, random_ising

from probjax import L2, MPF, Data, GroupL1, PseudoLikelihood, fit, ising, potts
from probjax.connectivity import SiteChanges
from probjax.fitting.loss import loss_over_rows
from probjax.potential import closed_forms, potential
from probjax.trees import as_array

SITES, LETTERS = 3, 4
EDGES = ((0, 2), (1, 2))
STATES = all_states(SITES, LETTERS).astype(float)
HOT = np.eye(LETTERS)[all_states(SITES, LETTERS)]

energies_of = jax.jit(jax.vmap(potts.energy, (None, 0)))
zero_sum = jax.jit(potts.zero_sum)


def model(seed=0, sites=SITES, edges=None, scale=1.0):
    """A model in the precision of the test."""
    normal = np.random.default_rng(seed).normal
    count = sites * (sites - 1) // 2 if edges is None else len(edges)
    coupling = scale * normal(size=(count, LETTERS, LETTERS))
    field = normal(size=(sites, LETTERS))
    return potts.Params(as_array(field), as_array(coupling), edges)


def blank():
    """No fields and no couplings, of all pairs."""
    shapes = (SITES, LETTERS), (3, LETTERS, LETTERS)
    return potts.Params(*(as_array(np.zeros(shape)) for shape in shapes))


def log_probs(params):
    minus = -np.array([by_definition(params, x) for x in STATES])
    return minus - np.logaddexp.reduce(minus)


def plain_energy(params, x):
    return potts.energy(params, x)


def by_definition(params, x):
    field, coupling = (
        np.asarray(leaf, float) for leaf in (params.field, params.coupling)
    )
    pairs = params.edges or [
        (i, j) for i in range(len(x)) for j in range(i + 1, len(x))
    ]
    x = np.asarray(x, int)
    energy = -sum(field[i, x[i]] for i in range(len(x)))
    return energy - sum(coupling[k, x[i], x[j]] for k, (i, j) in enumerate(pairs))


@pytest.mark.parametrize("edges", [None, EDGES])
def test_energy_is_minus_fields_and_couplings_of_letters_or_one_hot(edges):
    params = model(edges=edges)
    expected = [by_definition(params, x) for x in STATES]
    found = energies_of(params, STATES)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    again = energies_of(params, HOT)
    np.testing.assert_allclose(again, found, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(potts.letters(HOT, num_states=LETTERS), STATES)


@pytest.mark.parametrize("edges", [None, EDGES])
def test_site_gaps_equal_the_generic_path(edges):
    forms = {"flip_gaps", "site_gaps", "site_gap"}
    assert forms <= set(closed_forms(potts.energy))
    params = model(1, edges=edges)
    generic = potential(plain_energy, params)
    closed = potential(potts.energy, params)

    def both(x):
        return closed.site_gaps(x, LETTERS), generic.site_gaps(x, LETTERS)

    found, expected = jax.jit(jax.vmap(both))(STATES)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_site_gaps_have_the_right_derivatives(x64):
    x, mix = STATES[29], np.arange(SITES * LETTERS * 1.0)

    @jax.jit
    def mixed(field, coupling):
        return mix @ potts.site_gaps(potts.Params(field, coupling), x).ravel()

    params = model(2)
    at = np.asarray(params.field), np.asarray(params.coupling)
    chex.assert_numerical_grads(mixed, at, order=1)


@pytest.mark.parametrize(
    "objective",
    [
        MPF(potts.energy, connectivity=SiteChanges(LETTERS)),
        PseudoLikelihood(potts.energy, num_states=LETTERS),
    ],
    ids=["flow", "pseudolikelihood"],
)
def test_gradient_vanishes_at_the_true_parameters(objective, x64):
    params = model(3)
    data = Data(STATES, np.exp(log_probs(params)))

    @jax.jit
    def slope(params):
        _, gradient = loss_over_rows(objective, params, data, (), chunk_size=100)
        return jnp.stack([jnp.abs(leaf).max() for leaf in jax.tree.leaves(gradient)])

    assert np.asarray(slope(params)).max() < 1e-6
    away = jax.tree.map(lambda leaf: 1.1 * np.asarray(leaf), params)
    assert np.asarray(slope(away)).min() > 1e-3


def test_pseudolikelihood_is_the_product_of_conditionals(x64):
    params = model(4)
    table = np.exp(log_probs(params)).reshape((LETTERS,) * SITES)
    objective = PseudoLikelihood(potts.energy, num_states=LETTERS)
    row = jax.jit(lambda params, x: objective.row(params, x, ()))
    for x in ([0, 3, 1], [2, 2, 0]):
        sums = [table.sum(site)[tuple(np.delete(x, site))] for site in range(SITES)]
        expected = -sum(np.log(table[tuple(x)] / total) for total in sums)
        found = row(params, np.array(x, float))
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def as_potts(params):
    """An Ising model as a Potts model of two letters."""
    size = len(params.bias)
    field, pairs = np.zeros((size, 2)), np.zeros((len(params.coupling), 2, 2))
    field[:, 1] = -np.asarray(params.bias)
    pairs[:, 1, 1] = -2 * np.asarray(params.coupling)
    return potts.Params(as_array(np.float32(field)), as_array(np.float32(pairs)))


@jax.jit
def loss_of(objective, params, data):
    return loss_over_rows(objective, params, data, (), chunk_size=16)


def test_two_letters_are_an_ising_model():
    binary = random_ising(0, 4)
    params, x = as_potts(binary), all_states(4).astype(np.float32)
    expected = jax.jit(jax.vmap(ising.energy, (None, 0)))(binary, x)
    np.testing.assert_allclose(energies_of(params, x), expected, atol=1e-5)
    flow = MPF(potts.energy, connectivity=SiteChanges(2))
    pseudo = PseudoLikelihood(potts.energy)
    for mine, other in (
        (flow, MPF(ising.energy)),
        (MPF(potts.energy), MPF(ising.energy)),
        (pseudo, PseudoLikelihood(ising.energy)),
    ):
        found = jax.tree.map(np.asarray, loss_of(mine, params, Data(x)))
        expected = loss_of(other, binary, Data(x))
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
        np.testing.assert_allclose(
            -found[1].field[:, 1], expected[1].bias, rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(
            -2 * found[1].coupling[:, 1, 1], expected[1].coupling, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("edges", [None, EDGES])
def test_zero_sum_gauge_is_the_same_distribution(edges):
    params = model(5, edges=edges)
    gauged = zero_sum(params)
    fields, couplings = np.asarray(gauged.field), np.asarray(gauged.coupling)
    for axis in (1, 2):
        np.testing.assert_allclose(couplings.sum(axis), 0, atol=1e-5)
    np.testing.assert_allclose(fields.sum(1), 0, atol=1e-5)
    before, after = (np.asarray(energies_of(p, STATES)) for p in (params, gauged))
    shift = after - before
    np.testing.assert_allclose(shift, shift[0], atol=2e-5)
    chex.assert_trees_all_close(zero_sum(gauged), gauged, atol=1e-5)
    assert np.sum(couplings**2) < np.sum(np.asarray(params.coupling) ** 2)


def test_contact_scores_do_not_depend_on_the_gauge():
    params = model(6, sites=4)
    contact_scores = jax.jit(potts.contact_scores)
    scores = contact_scores(params)
    other = contact_scores(zero_sum(params))
    np.testing.assert_allclose(scores, other, atol=1e-5)
    norms = np.zeros((4, 4))
    gauged = np.asarray(zero_sum(params).coupling)
    norms[np.triu_indices(4, 1)] = np.sqrt((gauged**2).sum((1, 2)))
    norms += norms.T
    mean = norms.sum(0) / 3
    expected = norms - np.outer(mean, mean) / mean.mean()
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_near_copies_share_their_weight():
    x = np.random.default_rng(0).integers(0, 3, (40, 10))
    x[1] = x[0]
    x[2] = x[0]
    x[2, 0] = (x[0, 0] + 1) % 3
    found = potts.sequence_weights(x, num_states=3, identity=0.8)
    same = (x[:, None] == x[None]).mean(2) >= 0.8 - 1e-9
    np.testing.assert_allclose(found, 1 / same.sum(1), rtol=1e-6)
    assert found[0] <= 1 / 3


def drawn(params, num_draws):
    """All states, with their counts among draws."""
    chances = np.exp(log_probs(params))
    counts = np.random.default_rng(0).multinomial(num_draws, chances)
    return Data(STATES.astype(np.int8), counts.astype(float))


@pytest.mark.parametrize("objective", ["flow", "pseudolikelihood"])
def test_a_model_is_learned_back_from_its_states(objective, key):
    truth = model(7, edges=EDGES, scale=0.7)
    loss = {
        "flow": MPF(potts.energy, connectivity=SiteChanges(LETTERS)),
        "pseudolikelihood": PseudoLikelihood(potts.energy, num_states=LETTERS),
    }[objective]
    found = fit(key, loss, blank(), drawn(truth, 40_000), penalty=L2(1e-5))
    assert found.converged
    log_p, log_q = log_probs(truth), log_probs(found.params)
    assert np.exp(log_p) @ (log_p - log_q) < 2e-3


def test_group_penalty_removes_whole_pairs(key):
    start = blank()
    found = fit(
        key,
        PseudoLikelihood(potts.energy, num_states=LETTERS),
        start,
        drawn(model(7, edges=EDGES), 5000),
        penalty=GroupL1(0.05, weights=potts.couplings_only(start)),
    )
    assert found.converged
    kept = (np.asarray(found.params.coupling) != 0).reshape(3, -1)
    np.testing.assert_array_equal(kept.any(1), [False, True, True])
    assert kept[1:].all()


def test_bad_input_is_refused_in_a_sentence(key):
    params = model()
    with pytest.raises(ValueError, match=r"3 sites of params.*got shape \(4,\)"):
        potts.energy(params, np.zeros(4, np.float32))
    few = potts.Params(params.field, np.asarray(params.coupling)[:2])
    with pytest.raises(ValueError, match="4 x 4 couplings for each of 3 pairs"):
        potts.energy(few, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="num_states must be .* of at least 2, got 1"):
        potts.init(key, 3, 1)
    with pytest.raises(ValueError, match="two different units of 0 to 2"):
        potts.init(key, 3, 4, edges=[(0, 3)])
    with pytest.raises(ValueError, match="letters must be 0 to 3 .*got 4"):
        potts.letters(np.array([[0, 4, 1]]), num_states=4)
    with pytest.raises(ValueError, match=r"with a single 1 per site, got shape"):
        potts.letters(np.ones((2, 3, 4)), num_states=4)
    with pytest.raises(ValueError, match="identity must be above 0"):
        potts.sequence_weights(np.zeros((2, 3)), num_states=4, identity=0)
    objective = MPF(potts.energy, connectivity=SiteChanges(3))
    with pytest.raises(ValueError, match="site_gaps of the energy must have shape"):
        fit(key, objective, params, np.zeros((5, 3)), penalty=L2(1.0))
    for rows in (np.zeros((5, 3)), np.eye(4)[np.zeros((5, 3), int)]):
        with pytest.raises(ValueError, match="a Potts model of 2 letters .* got 4"):
            fit(key, PseudoLikelihood(potts.energy), params, rows, penalty=L2(1.0))
