"""Sweeps by blocks of sites, compared with sweeps from site to site."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import random_ising

from probjax import hopfield, ising, potts
from probjax.bases import Bernoulli, Categorical
from probjax.models import population, sums
from probjax.potential import Conditional, Potential, closed_forms, potential
from probjax.samplers import HeatBath, block_sweep
from probjax.samplers.block_sweep import block_size, swept
from probjax.trees import as_array
from probjax.types import SiteBlock

# With blocks of at most 8 sites or 3 letters' sites, the last block has sites of the
# block before.
SIZE = 19


def normal(seed, *shape):
    return as_array(np.random.default_rng(seed).normal(size=shape))


def small_ising(seed, edges=None):
    params = random_ising(seed, SIZE, edges=edges)
    return jax.tree.map(lambda leaf: as_array(np.asarray(leaf, float)), params)


def small_potts(seed, letters=3):
    pairs = SIZE * (SIZE - 1) // 2
    coupling = normal(seed, pairs, letters, letters) / 3
    return potts.Params(normal(seed + 1, SIZE, letters), coupling)


def cases():
    """Energies, their parameters, weights and numbers of letters."""
    ring = [(i, (i + 1) % SIZE) for i in range(SIZE)]
    weight = normal(3, SIZE, SIZE)
    net = hopfield.Params(weight + weight.T, normal(4, SIZE))
    both = sums.add(ising.energy, ising.energy)
    bits, three = Bernoulli(SIZE, normal(5, SIZE)), Categorical(SIZE, 3, normal(6, 3))
    path = Bernoulli.energy, ising.energy
    return {
        "ising": ((ising.energy,), (small_ising(0),), [1.0], 2),
        "ising on a ring": ((ising.energy,), (small_ising(1, ring),), [1.0], 2),
        "hopfield": ((hopfield.energy,), (net,), [1.0], 2),
        "sum": ((both,), ((small_ising(0), small_ising(1)),), [1.0], 2),
        "annealed bits": (path, (bits, small_ising(2)), [0.7, 0.3], 2),
        "potts": ((potts.energy,), (small_potts(0),), [1.0], 3),
        "annealed letters": (
            (Categorical.energy, potts.energy),
            (three, small_potts(2)),
            [0.4, 0.6],
            3,
        ),
    }


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(block_sweep, "WIDTH", 8)
    monkeypatch.setattr(block_sweep, "LEAST", 3)


def in_order(key, size):
    """`every_site`, as a function that `HeatBath` does not recognise."""
    return jnp.arange(size)


@pytest.mark.parametrize("name", cases())
def test_a_sweep_by_blocks_makes_the_draws_of_a_sweep_by_sites(
    name, x64, key, small_blocks
):
    energies, params, weights, letters = cases()[name]
    model = Potential(energies, params, as_array(np.array(weights)))
    form = "bit_block" if letters == 2 else "letter_block"
    assert model.has_closed_form(form)
    generator = np.random.default_rng(0)
    x = generator.integers(letters, size=(50, SIZE)).astype(float)
    held = generator.random((50, SIZE)) < 0.2

    @jax.jit
    def swept_by(model, x, held):
        def one(sampler, key, x, held):
            state = sampler.init(key, model, x)
            free = sampler.step(key, model, state)[0].x
            return free, sampler.step(key, model, state, held=held)[0].x

        keys = jax.random.split(key, len(x))
        by_sites, by_blocks = HeatBath(letters, in_order), HeatBath(letters)
        return [
            jax.vmap(partial(one, sampler))(keys, x, held)
            for sampler in (by_sites, by_blocks)
        ]

    expected, found = jax.tree.map(np.asarray, swept_by(model, x, held))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[1][held], x[held])
    assert np.mean(found[0] != x) > 0.1


@pytest.mark.parametrize("name", cases())
def test_fields_of_a_block_equal_the_generic_path(name, x64):
    energies, params, _, letters = cases()[name]
    x = np.random.default_rng(1).integers(letters, size=SIZE).astype(float)
    first, size = 5, 4
    sites = np.arange(first, first + size)
    for energy, args in zip(energies, params, strict=True):
        form = "bit_block" if letters == 2 else "letter_block"
        block = jax.jit(closed_forms(energy)[form](args), static_argnums=2)
        generic = potential(lambda args, x, energy=energy: energy(args, x), args)
        gaps = jax.jit(generic.site_gaps, static_argnums=1)

        def fields(x, gaps=gaps, letters=letters):
            found = np.asarray(gaps(x, letters))[sites]
            return found - found[:, :1]

        def closed(x, block=block, letters=letters):
            found = np.asarray(block(x, first, size).field)
            if letters == 2:
                found = np.stack([np.zeros(size), found], 1)
            return found - found[:, :1]

        np.testing.assert_allclose(closed(x), fields(x), atol=1e-12)
        coupling = np.asarray(block(x, first, size).coupling)
        for other in range(size):
            moved = x.copy()
            moved[first + other] = (x[first + other] + 1) % letters
            change = np.asarray(block(moved, first, size).field)
            change = change - np.asarray(block(x, first, size).field)
            old, new = int(x[first + other]), int(moved[first + other])
            of = coupling[other]
            stated = (new - old) * of if letters == 2 else of[new] - of[old]
            np.testing.assert_allclose(stated, change, atol=1e-12)
            assert not np.any(stated[other])


def test_energies_of_inputs_have_blocks_too(x64):
    lifted, params = sums.ignoring_inputs(ising.energy), small_ising(0)
    inputs = as_array(np.ones(2))
    x = np.random.default_rng(2).integers(2, size=SIZE).astype(float)
    plain = closed_forms(ising.energy)["bit_block"](params)(x, 3, 4)
    block = closed_forms(Conditional(lifted))["bit_block"]((params, inputs))
    np.testing.assert_allclose(block(x, 3, 4).field, plain.field)


def test_other_energies_and_orders_are_swept_by_sites(monkeypatch, key):
    def fail(*args, **options):
        raise AssertionError("a sweep by blocks")

    monkeypatch.setattr("probjax.samplers.gibbs.swept", fail)
    pairs = ising.init(key, 4)
    active = population.init(4, first=3)
    x = np.ones(4, np.float32)

    def step(sampler, energy, params):
        model = potential(energy, params)
        return sampler.step(key, model, sampler.init(key, model, x))

    step(HeatBath(), sums.add(ising.energy, population.energy), (pairs, active))
    step(HeatBath(sites=in_order), ising.energy, pairs)
    with pytest.raises(AssertionError, match="by blocks"):
        step(HeatBath(), ising.energy, pairs)


def test_blocks_cover_every_site_with_few_in_two():
    for count in (1, 7, 63, 64, 65, 100, 129, 1000):
        for letters in (2, 5, 21):
            size = block_size(count, letters)
            number = -(-count // size)
            assert 1 <= size <= count
            assert 0 <= number * size - count < number


def test_a_sweep_redraws_each_site_once(x64):
    """Sites of an earlier block at the start of the last one keep their letters."""

    def block(x, first, size):
        # Every bit is turned over: its log odds depend on its own old value.
        part = jax.lax.dynamic_slice_in_dim(x, first, size)
        return 50 * (1 - 2 * part), jnp.zeros((size, size))

    def named(x, first, size):
        return SiteBlock(*block(x, first, size))

    x, half = np.zeros(SIZE), np.full(SIZE, 0.5)
    found = swept(named, lambda x: x, jnp.asarray(x), jnp.asarray(half), size=7)
    np.testing.assert_array_equal(found, 1)
