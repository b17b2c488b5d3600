from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampler_checks import assert_drawn_from, codes, frequencies, site_matrix
from scipy.special import expit as sigmoid
from small_models import (
    all_states,
    cubic_energy,
    cubic_params,
    log_probs_of,
    random_ising,
)

from probjax import exact, ising, potts, rbm, samplers
from probjax.potential import Potential, closed_forms, potential
from probjax.random import split_array
from probjax.trees import as_array

SIZE = 3
EDGES = ((0, 1), (1, 2), (2, 3), (0, 3))


def normal(seed, *shape):
    return as_array(np.random.default_rng(seed).normal(size=shape))


MODELS = {
    "ising": (ising.energy, random_ising(0, SIZE), 2),
    "plain": (cubic_energy, cubic_params(0, SIZE), 2),
    "potts": (
        potts.energy,
        potts.Params(normal(0, SIZE, 3), normal(1, 3, 3, 3)),
        3,
    ),
    "plain letters": (cubic_energy, cubic_params(1, SIZE), 3),
}


def probabilities(energy, params, size, num_states=2):
    energies = energies_of(energy, params, all_states(size, num_states).astype(float))
    weights = np.exp(-np.asarray(energies, float))
    return weights / weights.sum()


@partial(jax.jit, static_argnums=0)
def energies_of(energy, params, x):
    return jax.vmap(energy, (None, 0))(params, x)


def doubled(params):
    """In the precision of the test."""
    return jax.tree.map(lambda leaf: as_array(np.asarray(leaf, float)), params)


@pytest.mark.parametrize("name", MODELS)
def test_redrawing_any_site_leaves_the_model_unchanged(name, x64):
    energy, params, num_states = MODELS[name]
    params = doubled(params)
    p = probabilities(energy, params, SIZE, num_states)
    sampler = samplers.HeatBath(num_states)
    for site in range(SIZE):
        make = partial(site_matrix, sampler, potential(energy, params))
        matrix = make(site, SIZE, num_states)
        np.testing.assert_allclose(matrix.sum(1), 1, rtol=1e-12)
        np.testing.assert_allclose(p @ matrix, p, rtol=1e-10)
        flow = p[:, None] * matrix
        np.testing.assert_allclose(flow, flow.T, atol=1e-15)


@pytest.mark.parametrize("name", ["ising", "potts"])
def test_a_step_redraws_the_sites_in_order_from_their_conditionals(name):
    energy, params, num_states = MODELS[name]
    sampler = samplers.HeatBath(num_states)
    model = potential(energy, params)
    sweep = np.linalg.multi_dot(
        [site_matrix(sampler, model, site, SIZE, num_states) for site in range(SIZE)]
    )
    number = 3
    x = all_states(SIZE, num_states)[number]
    found = frequencies(sampler, energy, params, x, num_states=num_states)
    assert_drawn_from(found, sweep[number])


def test_random_scan_redraws_sites_at_random():
    energy, params, _ = MODELS["ising"]
    sampler = samplers.HeatBath(sites=samplers.random_sites)
    model = potential(energy, params)
    once = np.mean([site_matrix(sampler, model, n, SIZE, 2) for n in range(SIZE)], 0)
    found = frequencies(sampler, energy, params, all_states(SIZE)[3])
    assert_drawn_from(found, np.linalg.matrix_power(once, SIZE)[3])


@pytest.mark.parametrize(
    ("name", "form"), [("ising", "flip_gap"), ("potts", "site_gap")]
)
def test_closed_forms_of_one_site_equal_the_generic_path(name, form):
    energy, params, num_states = MODELS[name]
    assert form in closed_forms(energy)

    def gap(energy, x, site):
        model = potential(energy, params)
        make = model.flip_gap() if num_states == 2 else model.site_gap(3)
        return make(x, site)

    def generic(params, x):
        return energy(params, x)

    @jax.jit
    def gaps(x):
        def of_all(energy):
            every = jax.vmap(partial(gap, energy), (None, 0))
            return jax.vmap(every, (0, None))(x, jnp.arange(SIZE))

        return of_all(energy), of_all(generic)

    closed, expected = gaps(all_states(SIZE, num_states)[::5].astype(np.float32))
    np.testing.assert_allclose(closed, expected, atol=1e-5)


def test_colours_do_not_touch_and_cover_every_site():
    for shape in ((4, 4), (3, 5)):
        edges = exact.lattice.edges(shape, periodic=True)
        masks = np.asarray(samplers.colours(edges, shape[0] * shape[1]))
        np.testing.assert_array_equal(masks.sum(0), 1)
        for i, j in edges:
            assert not np.any(masks[:, i] * masks[:, j])
    assert len(samplers.colours(exact.lattice.edges((4, 4), periodic=True), 16)) == 2


def test_each_site_takes_the_first_colour_that_no_neighbour_has():
    pairs = np.stack(np.triu_indices(30, 1), 1)
    edges = np.random.default_rng(0).permutation(pairs)[:90].tolist()
    chosen = {}
    for site in range(30):
        near = {i + j - site for i, j in edges if site in (i, j)}
        taken = {chosen.get(neighbour) for neighbour in near}
        chosen[site] = next(c for c in range(30) if c not in taken)
    masks = np.asarray(samplers.colours(edges, 30))
    np.testing.assert_array_equal(masks.argmax(0), list(chosen.values()))


def test_colour_by_colour_is_site_by_site_in_another_order():
    """Bits of one colour do not interact, so their order does not matter."""
    params = random_ising(1, 4, edges=EDGES)
    model = potential(ising.energy, params)
    masks = samplers.colours(params.edges, 4)
    order = [0, 2, 1, 3]
    np.testing.assert_array_equal(masks, [[1, 0, 1, 0], [0, 1, 0, 1]])
    sites = [site_matrix(samplers.HeatBath(), model, site, 4, 2) for site in order]
    sweep = np.linalg.multi_dot(sites)
    p = np.exp(log_probs_of(params))
    np.testing.assert_allclose(p @ sweep, p, rtol=1e-4)
    x = all_states(4)[6]
    found = frequencies(samplers.ColourGibbs(masks), ising.energy, params, x)
    assert_drawn_from(found, sweep[6])


def random_rbm(seed):
    return rbm.Params(normal(seed, 3, 2), normal(seed + 1, 3), normal(seed + 2, 2))


def test_block_gibbs_of_an_rbm_redraws_hidden_then_visible_units(x64):
    params = random_rbm(2)
    weight, visible_bias, hidden_bias = map(np.asarray, params)
    x, hidden = all_states(3), all_states(2)
    on = sigmoid(x @ weight + hidden_bias)
    down = sigmoid(hidden @ weight.T + visible_bias)

    def table(chances, states):
        kept = np.where(states[None] == 1, chances[:, None], 1 - chances[:, None])
        return kept.prod(2)

    sweep = table(on, hidden) @ table(down, x)
    p = probabilities(rbm.energy, params, 3)
    np.testing.assert_allclose(p @ sweep, p, rtol=1e-10)
    found = frequencies(rbm.BlockGibbs(), rbm.energy, params, x[5])
    assert_drawn_from(found, sweep[5])


def test_block_gibbs_is_right_at_other_weights_too(x64, key):
    """One step from the tempered marginal, of every state, leads back to it."""
    params = random_rbm(3)
    model = Potential((rbm.energy,), (params,), as_array([0.4]))
    p, count = tempered(probabilities(rbm.energy, params, 3), 0.4), 5_000

    @jax.jit
    @jax.vmap
    def step(key, x):
        sampler = rbm.BlockGibbs()
        return sampler.step(key, model, sampler.init(key, model, x))

    x = np.repeat(all_states(3), count, axis=0).astype(float)
    state, info = jax.tree.map(np.asarray, step(split_array(key, len(x)), x))
    field = state.x @ np.asarray(params.weight) + np.asarray(params.hidden_bias)
    np.testing.assert_allclose(state.field, field)
    assert 0.5 < info.accept.mean() < 1
    found = np.bincount(codes(state.x), np.repeat(p, count), minlength=8) / count
    assert np.all(np.abs(found - p) < 5 * np.sqrt(np.sum(p**2) / count / 4))


def tempered(p, weight):
    return p**weight / np.sum(p**weight)


def test_bad_input_is_refused_in_a_sentence(key):
    params = random_ising(0, 3)
    run = partial(samplers.sample, key, ising.energy, params, num_draws=2)
    with pytest.raises(ValueError, match=r"0 or 1, got spins"):
        run(np.array([[-1, 1, 1]]), sampler=samplers.HeatBath())
    with pytest.raises(ValueError, match="num_states must be an integer of at least 2"):
        samplers.HeatBath(1)
    with pytest.raises(ValueError, match="masks over the 3 sites"):
        run(np.zeros((1, 3)), sampler=samplers.ColourGibbs(np.ones((2, 4))))
    for pair in ((0, 3), (1, 2), (2, 5)):
        coupled = random_ising(0, 6, edges=[pair])
        first = np.isin(np.arange(6), pair).astype(float)
        together = np.stack([first, 1 - first])
        with pytest.raises(ValueError, match="bits of one colour must not interact"):
            samplers.sample(
                key,
                ising.energy,
                coupled,
                np.zeros((1, 6)),
                sampler=samplers.ColourGibbs(together),
                num_draws=1,
            )
    with pytest.raises(ValueError, match="colours must have the edges"):
        samplers.colours(None, 3)
    with pytest.raises(ValueError, match="rbm.BlockGibbs requires rbm.energy"):
        run(np.zeros((1, 3)), sampler=rbm.BlockGibbs())
