import chex
import jax
import jax.numpy as jnp
import numpy as np
from small_models import cubic_energy, cubic_params, plain_energy, random_ising

from probjax import ising
from probjax.potential import Potential, potential
from probjax.trees import as_array

SIZE = 5


def mixture(weights=(0.3, -1.5, 2.0)):
    energies = (ising.energy, plain_energy, cubic_energy)
    args = (random_ising(0, SIZE), random_ising(1, SIZE), cubic_params(2, SIZE))
    return Potential(energies, args, as_array(np.array(weights, np.float32)))


def states(count=8):
    rows = np.random.default_rng(1).integers(0, 2, (count, SIZE))
    return rows.astype(np.float32)


def of_each(function, *args):
    """A function of states for each of their rows, in one program."""
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(function))(*args))


def test_value_is_the_weighted_sum_of_terms():
    model = mixture()

    def sums(x):
        terms = [e(a, x) for e, a in zip(model.energies, model.args, strict=True)]
        return model(x), model.terms(x), jnp.stack(terms)

    values, found, terms = of_each(sums, states())
    expected = terms @ np.asarray(model.weights)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    np.testing.assert_allclose(found @ np.asarray(model.weights), expected, rtol=1e-5)


def test_gaps_combine_closed_and_generic_forms_linearly():
    model = mixture()

    def gaps(x):
        flipped = jnp.where(jnp.eye(SIZE) == 1, 1 - x, x[None])
        flips = model(x) - jax.vmap(model)(flipped)
        return (model.flip_gaps(x), model.mirror_gap(x)), (
            flips,
            model(x) - model(1 - x),
        )

    found, expected = of_each(gaps, states())
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-4)


def test_cached_gradients_serve_every_weight():
    model = mixture()

    @jax.jit
    def through_cache_and_not(weights, x):
        weighted = Potential(model.energies, model.args, weights)
        cached = weighted.combine(model.terms_and_gradients(x))
        return cached, jax.value_and_grad(weighted)(x)

    for weights in ((0.3, -1.5, 2.0), (1.0, 0.0, 0.5)):
        cached, expected = through_cache_and_not(np.array(weights), states()[0])
        np.testing.assert_allclose(cached[0], expected[0], rtol=1e-5)
        np.testing.assert_allclose(cached[1], expected[1], rtol=1e-4)


def test_states_may_be_trees():
    def energy(params, x):
        return params * (x["a"].sum() + 2 * x["b"].sum() + x["a"][0] * x["b"][0, 0])

    x = {"a": np.array([1.0, 0.0]), "b": np.array([[1.0], [0.0]])}
    model = potential(energy, 0.5)
    flips, mirror = jax.jit(lambda x: (model.flip_gaps(x), model.mirror_gap(x)))(x)
    np.testing.assert_allclose(flips, [1.0, -0.5, 1.5, -1.0])
    np.testing.assert_allclose(mirror, 0.5 * (4 - 3))


def test_a_single_potential_costs_no_more_than_its_energy():
    x, params = states()[0], random_ising(0, SIZE)

    def work(function, *args):
        return jax.jit(function).lower(*args).compile().cost_analysis()["flops"]

    through = work(lambda p, x: potential(ising.energy, p).flip_gaps(x), params, x)
    chex.assert_trees_all_close(through, work(ising.flip_gaps, params, x))


def test_gaps_of_sites_combine_linearly_too():
    model, x = mixture(), states()
    gaps, expected = of_each(lambda x: (model.site_gaps(x, 2), model.flip_gaps(x)), x)
    bits = x.astype(int)[..., None]
    own = np.take_along_axis(gaps, bits, -1)[..., 0]
    flips = np.take_along_axis(gaps, 1 - bits, -1)[..., 0]
    np.testing.assert_allclose(own, 0, atol=1e-4)
    np.testing.assert_allclose(flips, expected, rtol=1e-4, atol=1e-4)


def test_gaps_of_large_states_are_the_same_and_take_little_memory():
    """A few flips at a time: memory grows with the bits, not with their square."""
    params = random_ising(0, 150, scale=0.1)
    rows = np.random.default_rng(0).integers(0, 2, (200, 150)).astype(np.float32)

    def total(energy, params):
        return jax.vmap(potential(energy, params).flip_gaps)(rows)

    slope = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(total(plain_energy, p)))))
    compiled = slope.lower(params).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 200 * 150 * 150 * 4 / 2
    closed = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(total(ising.energy, p)))))
    chex.assert_trees_all_close(compiled(params), closed(params), rtol=1e-3, atol=1e-2)
