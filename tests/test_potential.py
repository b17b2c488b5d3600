import chex
import jax
import jax.numpy as jnp
import numpy as np
from small_models import cubic_energy, cubic_params, plain_energy, random_ising

from probjax import Potential, ising, potential

SIZE = 5


def mixture(weights=(0.3, -1.5, 2.0)):
    energies = (ising.energy, plain_energy, cubic_energy)
    args = (random_ising(0, SIZE), random_ising(1, SIZE), cubic_params(2, SIZE))
    return Potential(energies, args, jnp.array(weights))


def states(count=8):
    return jax.random.bernoulli(jax.random.key(1), 0.5, (count, SIZE)).astype(float)


def test_value_is_the_weighted_sum_of_terms():
    model = mixture()
    for x in states():
        expected = sum(
            w * e(a, x)
            for w, e, a in zip(model.weights, model.energies, model.args, strict=True)
        )
        np.testing.assert_allclose(model(x), expected, rtol=1e-5)
        np.testing.assert_allclose(model.weights @ model.terms(x), expected, rtol=1e-5)


def test_gaps_combine_closed_and_generic_forms_linearly():
    model = mixture()
    for x in states():
        flipped = jnp.where(jnp.eye(SIZE) == 1, 1 - x, x)
        expected = model(x) - jax.vmap(model)(flipped)
        np.testing.assert_allclose(model.flip_gaps(x), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            model.mirror_gap(x), model(x) - model(1 - x), rtol=1e-4, atol=1e-4
        )


def test_cached_gradients_serve_every_weight():
    terms, gradients = mixture().terms_and_gradients(states()[0])
    for weights in ((0.3, -1.5, 2.0), (1.0, 0.0, 0.5)):
        model = mixture(weights)
        value, gradient = jax.value_and_grad(model)(states()[0])
        np.testing.assert_allclose(model.combine(terms), value, rtol=1e-5)
        np.testing.assert_allclose(model.combine(gradients), gradient, rtol=1e-4)


def test_states_may_be_trees():
    def energy(params, x):
        return params * (x["a"].sum() + 2 * x["b"].sum() + x["a"][0] * x["b"][0, 0])

    x = {"a": jnp.array([1.0, 0.0]), "b": jnp.array([[1.0], [0.0]])}
    model = potential(energy, jnp.array(0.5))
    np.testing.assert_allclose(model.flip_gaps(x), [1.0, -0.5, 1.5, -1.0])
    np.testing.assert_allclose(model.mirror_gap(x), 0.5 * (4 - 3))


def test_a_single_potential_costs_no_more_than_its_energy():
    x, params = states()[0], random_ising(0, SIZE)

    def work(function, *args):
        return jax.jit(function).lower(*args).compile().cost_analysis()["flops"]

    through = work(lambda p, x: potential(ising.energy, p).flip_gaps(x), params, x)
    chex.assert_trees_all_close(through, work(ising.flip_gaps, params, x))


def test_gaps_of_sites_combine_linearly_too():
    model = mixture()
    for x in states(2):
        gaps = model.site_gaps(x, 2)
        bits = x.astype(int)
        np.testing.assert_allclose(gaps[jnp.arange(SIZE), bits], 0, atol=1e-4)
        flips = gaps[jnp.arange(SIZE), 1 - bits]
        np.testing.assert_allclose(flips, model.flip_gaps(x), rtol=1e-4, atol=1e-4)


def test_gaps_of_large_states_are_the_same_and_take_little_memory(key):
    """A few flips at a time: memory grows with the bits, not with their square."""
    params = random_ising(0, 150, scale=0.1)
    rows = jax.random.bernoulli(key, 0.5, (200, 150)).astype(float)

    def total(energy, params):
        return jax.vmap(potential(energy, params).flip_gaps)(rows)

    slope = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(total(plain_energy, p)))))
    compiled = slope.lower(params).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 200 * 150 * 150 * 4 / 3
    closed = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(total(ising.energy, p)))))
    chex.assert_trees_all_close(compiled(params), closed(params), rtol=1e-3, atol=1e-2)
