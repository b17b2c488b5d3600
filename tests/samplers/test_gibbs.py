from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampler_checks import assert_drawn_from, codes, frequencies, site_matrix
from small_models import cubic_energy, cubic_params, random_ising

from probjax import Potential, exact, ising, potential, potts, rbm, samplers
from probjax.types import closed_forms

SIZE = 3
EDGES = ((0, 1), (1, 2), (2, 3), (0, 3))


MODELS = {
    "ising": (ising.energy, random_ising(0, SIZE), 2),
    "plain": (cubic_energy, cubic_params(0, SIZE), 2),
    "potts": (
        potts.energy,
        potts.Params(
            jax.random.normal(jax.random.key(0), (SIZE, 3)),
            jax.random.normal(jax.random.key(1), (3, 3, 3)),
        ),
        3,
    ),
    "plain letters": (cubic_energy, cubic_params(1, SIZE), 3),
}


@pytest.mark.parametrize("name", MODELS)
def test_redrawing_any_site_leaves_the_model_unchanged(name, x64):
    energy, params, num_states = MODELS[name]
    params = jax.tree.map(lambda leaf: leaf.astype(float), params)
    log_p = exact.log_probs(energy, params, SIZE, num_states=num_states)
    p = np.exp(np.asarray(log_p))
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
    x = exact.states(SIZE, num_states=num_states)[number]
    found = frequencies(sampler, energy, params, x, num_states=num_states)
    assert_drawn_from(found, sweep[number])


def test_random_scan_redraws_sites_at_random():
    energy, params, _ = MODELS["ising"]
    sampler = samplers.HeatBath(sites=samplers.random_sites)
    model = potential(energy, params)
    once = np.mean([site_matrix(sampler, model, n, SIZE, 2) for n in range(SIZE)], 0)
    found = frequencies(sampler, energy, params, exact.states(SIZE)[3])
    assert_drawn_from(found, np.linalg.matrix_power(once, SIZE)[3])


def test_closed_forms_of_one_site_equal_the_generic_path():
    for name, form in (("ising", "flip_gap"), ("potts", "site_gap")):
        energy, params, num_states = MODELS[name]
        assert form in closed_forms(energy)
        closed = potential(energy, params)
        generic = potential(lambda p, x, e=energy: e(p, x), params)
        for x in exact.states(SIZE, num_states=num_states)[::5]:
            for site in range(SIZE):
                if num_states == 2:
                    found, expected = (m.flip_gap()(x, site) for m in (closed, generic))
                else:
                    found, expected = (
                        m.site_gap(3)(x, site) for m in (closed, generic)
                    )
                np.testing.assert_allclose(found, expected, atol=1e-5)


def test_colours_do_not_touch_and_cover_every_site():
    for shape in ((4, 4), (3, 5)):
        edges = exact.lattice.edges(shape, periodic=True)
        masks = np.asarray(samplers.colours(edges, shape[0] * shape[1]))
        np.testing.assert_array_equal(masks.sum(0), 1)
        for i, j in edges:
            assert not np.any(masks[:, i] * masks[:, j])
    assert len(samplers.colours(exact.lattice.edges((4, 4), periodic=True), 16)) == 2


def test_colour_by_colour_is_site_by_site_in_another_order():
    """Bits of one colour do not interact, so their order does not matter."""
    params = random_ising(1, 4, edges=EDGES)
    model = potential(ising.energy, params)
    masks = samplers.colours(params.edges, 4)
    order = [0, 2, 1, 3]
    np.testing.assert_array_equal(masks, [[1, 0, 1, 0], [0, 1, 0, 1]])
    sites = [site_matrix(samplers.HeatBath(), model, site, 4, 2) for site in order]
    sweep = np.linalg.multi_dot(sites)
    p = np.exp(exact.log_probs(ising.energy, params, 4))
    np.testing.assert_allclose(p @ sweep, p, rtol=1e-4)
    x = exact.states(4)[6]
    found = frequencies(samplers.ColourGibbs(masks), ising.energy, params, x)
    assert_drawn_from(found, sweep[6])


def test_block_gibbs_of_an_rbm_redraws_hidden_then_visible_units(x64):
    keys = jax.random.split(jax.random.key(2), 3)
    params = rbm.Params(
        jax.random.normal(keys[0], (3, 2)),
        jax.random.normal(keys[1], (3,)),
        jax.random.normal(keys[2], (2,)),
    )
    x, hidden = exact.states(3), exact.states(2)
    on = jax.nn.sigmoid(x @ params.weight + params.hidden_bias[None])
    down = jax.nn.sigmoid(hidden @ params.weight.T + params.visible_bias[None])

    def table(chances, states):
        kept = jnp.where(states[None] == 1, chances[:, None], 1 - chances[:, None])
        return np.asarray(kept.prod(2))

    sweep = table(on, hidden) @ table(down, x)
    p = np.exp(exact.log_probs(rbm.energy, params, 3))
    np.testing.assert_allclose(p @ sweep, p, rtol=1e-10)
    found = frequencies(rbm.BlockGibbs(), rbm.energy, params, x[5])
    assert_drawn_from(found, sweep[5])


def test_block_gibbs_is_right_at_other_weights_too(x64):
    """One step from the tempered marginal, of every state, leads back to it."""
    keys = jax.random.split(jax.random.key(3), 3)
    params = rbm.Params(
        jax.random.normal(keys[0], (3, 2)),
        jax.random.normal(keys[1], (3,)),
        jax.random.normal(keys[2], (2,)),
    )
    model = Potential((rbm.energy,), (params,), jnp.array([0.4]))
    states, count = exact.states(3), 20_000
    p = jax.nn.softmax(-0.4 * jax.vmap(rbm.energy, (None, 0))(params, states))

    @jax.jit
    @jax.vmap
    def step(key, x):
        sampler = rbm.BlockGibbs()
        return sampler.step(key, model, sampler.init(key, model, x))

    x = jnp.repeat(states, count, axis=0)
    state, info = step(jax.random.split(keys[0], len(x)), x)
    np.testing.assert_allclose(
        state.field, state.x @ params.weight + params.hidden_bias[None]
    )
    assert 0.5 < info.accept.mean() < 1
    found = jnp.bincount(codes(state.x), jnp.repeat(p, count), length=8) / count
    assert jnp.all(jnp.abs(found - p) < 5 * jnp.sqrt(jnp.sum(p**2) / count / 4))


def test_bad_input_is_refused_in_a_sentence(key):
    params = random_ising(0, 3)
    run = partial(samplers.sample, key, ising.energy, params, num_draws=2)
    with pytest.raises(ValueError, match=r"0 and 1, got spins"):
        run(jnp.array([[-1, 1, 1]]), sampler=samplers.HeatBath())
    with pytest.raises(ValueError, match="num_states must be an integer of at least 2"):
        samplers.HeatBath(1)
    with pytest.raises(ValueError, match="masks over the 3 sites"):
        run(jnp.zeros((1, 3)), sampler=samplers.ColourGibbs(jnp.ones((2, 4))))
    for pair in ((0, 3), (1, 2), (2, 5)):
        coupled = random_ising(0, 6, edges=[pair])
        together = jnp.zeros((2, 6)).at[0, jnp.array(pair)].set(1)
        together = together.at[1].set(1 - together[0])
        with pytest.raises(ValueError, match="bits of one colour must not interact"):
            samplers.sample(
                jax.random.key(0),
                ising.energy,
                coupled,
                jnp.zeros((1, 6)),
                sampler=samplers.ColourGibbs(together),
                num_draws=1,
            )
    with pytest.raises(ValueError, match="colours need edges"):
        samplers.colours(None, 3)
    with pytest.raises(ValueError, match="rbm.BlockGibbs is for rbm.energy alone"):
        run(jnp.zeros((1, 3)), sampler=rbm.BlockGibbs())
