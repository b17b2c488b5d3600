from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from annealing_models import (
    GAUSSIAN,
    MACHINE,
    PARAMS,
    SPINS,
    UNCOUPLED,
    assert_mean_is,
    crooked,
    crooked_log_z,
    machine_draws,
    spins_log_z,
)
from small_models import all_states, drawn_from

from probjax import HMC, HeatBath, Metropolis, annealing, ising, rbm
from probjax.annealing import Geometric, Straight, ais, reverse_ais
from probjax.annealing.particles import _systematic, group_of
from probjax.bases import Bernoulli, Gaussian
from probjax.connectivity import BitFlips
from probjax.random import split_array
from probjax.recipe import recipe
from probjax.samplers import Momentum, reduced_flip
from probjax.trees import as_array, compensated_sum

BITS = Bernoulli(4, as_array(np.array([0.5, -0.5, 0.0, 1.0])))
# A fiftieth of a million still finds the classical mistake by 16 standard errors.
NUM = 20_000
SIZES = [
    (NUM, 5),
    *(
        pytest.param(1_000_000, num_steps, marks=pytest.mark.statistics)
        for num_steps in (3, 5, 10)
    ),
]


def same_as_base(base, x):
    return base.energy(x) + 3.0


@pytest.mark.parametrize("num_steps", [1, 2, 50])
def test_a_base_that_is_the_target_gives_every_particle_its_log_z(num_steps, key, x64):
    base = Gaussian(3, np.arange(3.0), np.array([0.5, 1.0, 2.0]))
    found = ais(
        key,
        same_as_base,
        base,
        base,
        sampler=HMC(0.3),
        num_particles=20,
        num_steps=num_steps,
    )
    log_z = 1.5 * np.log(2 * np.pi) - 3  # The scales multiply to 1.
    np.testing.assert_allclose(found.log_weights, log_z, rtol=1e-12)
    np.testing.assert_allclose(found.log_z, log_z, rtol=1e-12)
    assert found.stderr < 1e-10
    np.testing.assert_allclose(found.ess, 20)


@pytest.mark.parametrize(("num_particles", "num_steps"), SIZES)
@pytest.mark.parametrize(
    "sampler",
    [
        HMC(0.6),
        HMC(0.5, num_steps=2, flip=reduced_flip, momentum=Momentum(0.3, every=2)),
    ],
    ids=["HMC", "reduced"],
)
def test_the_mean_weight_of_a_million_particles_is_z(
    sampler, num_particles, num_steps, key
):
    found = ais(
        key,
        crooked,
        PARAMS,
        GAUSSIAN,
        sampler=sampler,
        num_particles=num_particles,
        num_steps=num_steps,
        pilot=None,
    )
    assert_mean_is(found.log_weights, crooked_log_z(PARAMS))


@pytest.mark.parametrize(("num_particles", "num_steps"), SIZES)
@pytest.mark.parametrize(
    "sampler", [HeatBath(), Metropolis(BitFlips())], ids=["heat", "flips"]
)
def test_the_mean_weight_of_discrete_particles_is_z(
    sampler, num_particles, num_steps, key
):
    found = ais(
        key,
        ising.energy,
        SPINS,
        BITS,
        sampler=sampler,
        num_particles=num_particles,
        num_steps=num_steps,
        pilot=None,
    )
    assert_mean_is(found.log_weights, spins_log_z(SPINS))


@recipe
class Late(annealing.Path):
    """Moves to where the next weight leads before it is added: the classical mistake.

    Args:
        step: from one beta to the next.
    """

    step: float

    @property
    def keeps_terms(self):
        return True

    def potential(self, ends, beta):
        return Geometric().potential(ends, jnp.minimum(beta + self.step, 1))

    def offset(self, ends, x):
        return Geometric().offset(ends, x)

    def increment(self, ends, sampler, state, here, there):
        return Geometric().increment(ends, sampler, state, here, there)


@pytest.mark.parametrize("num_steps", [3, 5, 10])
def test_a_weight_that_comes_after_the_move_is_caught(num_steps, key):
    """What the tests above would make of it, for both kinds of states."""
    options = dict(num_particles=NUM, num_steps=num_steps, pilot=None)
    late = Late(1 / num_steps)
    run = partial(ais, key, crooked, PARAMS, GAUSSIAN, sampler=HMC(0.6), **options)
    with pytest.raises(AssertionError, match="standard errors off"):
        assert_mean_is(run(path=late).log_weights, crooked_log_z(PARAMS))
    run = partial(ais, key, ising.energy, SPINS, BITS, sampler=HeatBath(), **options)
    with pytest.raises(AssertionError, match="standard errors off"):
        assert_mean_is(run(path=late).log_weights, spins_log_z(SPINS))


@pytest.mark.parametrize("num_steps", [1, 4])
def test_backwards_the_mean_weight_is_one_over_z(num_steps, key):
    found = reverse_ais(
        key,
        ising.energy,
        SPINS,
        BITS,
        drawn_from(0, SPINS, NUM),
        sampler=HeatBath(),
        num_steps=num_steps,
        pilot=None,
    )
    log_z = spins_log_z(SPINS)
    assert_mean_is(found.log_weights, -log_z)
    assert found.bound > log_z


@pytest.mark.parametrize(
    "path",
    [Straight(UNCOUPLED), rbm.Growth(UNCOUPLED.visible_bias, UNCOUPLED.hidden_bias)],
    ids=["straight", "growth"],
)
def test_parameters_may_move_instead_of_weights(path, key):
    """The classical way of RBMs, forth and back, from a base of any odds."""
    x, log_z = machine_draws(0, MACHINE, NUM)
    options = dict(sampler=rbm.BlockGibbs(), num_steps=5, path=path, pilot=None)
    for odds in (UNCOUPLED.visible_bias, as_array(np.zeros(6))):
        base = Bernoulli(6, odds)
        found = ais(key, rbm.energy, MACHINE, base, num_particles=NUM, **options)
        assert_mean_is(found.log_weights, log_z)
        back = reverse_ais(key, rbm.energy, MACHINE, base, x, **options)
        assert_mean_is(back.log_weights, -log_z)


@pytest.mark.parametrize("hidden", [None, UNCOUPLED.hidden_bias], ids=["0", "given"])
def test_growth_is_the_straight_way_from_a_machine_without_weights(hidden, x64):
    machine, uncoupled, hidden = jax.tree.map(
        lambda leaf: np.asarray(leaf, float), (MACHINE, UNCOUPLED, hidden)
    )
    odds = uncoupled.visible_bias
    start = uncoupled._replace(hidden_bias=np.zeros(3) if hidden is None else hidden)
    both = (Straight(start), rbm.Growth(odds, hidden))
    x = all_states(6).astype(float)
    keys = split_array(jax.random.key(0), len(x))

    @jax.jit
    def seen(path, machine, here, there):
        ends = annealing.Ends(rbm.energy, machine, Bernoulli(6, odds + 1))
        model = path.potential(ends, here)
        sampler = rbm.BlockGibbs()

        def one(key, x):
            state = sampler.init(key, model, x)
            there_too = sampler.step(key, model, state)[0].x
            increment = path.increment(ends, sampler, state, here, there)
            return model(x), path.offset(ends, x), increment, there_too

        return jax.vmap(one)(keys, x)

    for here, there in ((0.0, 0.2), (0.5, 0.4), (0.9, 1.0), (0.0, 1.0), (1.0, 0.0)):
        straight, growth = (seen(path, machine, here, there) for path in both)
        chex.assert_trees_all_close(growth, straight, rtol=1e-12, atol=1e-12)


@pytest.mark.statistics
@pytest.mark.parametrize(
    ("num_particles", "num_steps", "below"),
    [(200, 6, 0.95), (60, 12, 1.0), (63, 6, 0.8)],
)
def test_resampling_leaves_z_unbiased_and_bounds_it(
    num_particles, num_steps, below, key
):
    run = partial(
        ais,
        energy=crooked,
        params=PARAMS,
        base=GAUSSIAN,
        sampler=HMC(0.6),
        num_particles=num_particles,
        num_steps=num_steps,
        pilot=None,
        resample_below=below,
    )
    found = jax.jit(jax.vmap(run))(split_array(key, 500))
    assert np.mean(found.particles.num_resampled) > 0.5
    assert_mean_is(found.log_z, crooked_log_z(PARAMS))
    bounds = np.asarray(found.bound)
    error = bounds.std() / np.sqrt(len(bounds))
    assert bounds.mean() < crooked_log_z(PARAMS) + 4 * error


def test_many_particles_are_resampled_without_loss_of_digits():
    """With equal weights every particle has one copy: a long sum would round this."""
    size = np.bincount(group_of(2_000_003))
    chosen = jax.jit(lambda u, counts: _systematic(u, counts, size))
    found = chosen(np.full(20, 0.5, np.float32), np.ones(size.sum(), np.float32))
    np.testing.assert_array_equal(found, np.arange(size.sum()))
    uneven = np.tile(np.float32([0.25, 1.75]), size.sum() // 2 + 1)[: size.sum()]
    copies = np.bincount(chosen(np.full(20, 0.5, np.float32), uneven))
    assert np.abs(copies - uneven[: len(copies)]).max() < 1.05


def test_particles_are_resampled_within_their_group():
    """Copies come from the group, in proportion to the weights, and groups decide."""
    group = group_of(22)
    assert np.bincount(group).tolist() == [6, 5, 6, 5]
    counts = np.array([3, 0, 0, 2.5, 0.25, 0.25] + [1] * 5 + [6, 0, 0, 0, 0, 0])
    counts = np.append(counts, [0, 0, 0, 0, 5]).astype(np.float32)
    chosen = jax.jit(lambda u: _systematic(u, counts, np.bincount(group)))
    assert chosen(np.full(4, 0.5, np.float32)).tolist() == [
        *(0, 0, 0, 3, 3, 4),
        *(6, 7, 8, 9, 10),
        *(11, 11, 11, 11, 11, 11),
        *(21, 21, 21, 21, 21),
    ]


@pytest.mark.parametrize(
    "num_steps", [1000, pytest.param(5000, marks=pytest.mark.statistics)]
)
def test_both_precisions_find_the_same_log_z(num_steps, key):
    def run():
        base = Gaussian(2, np.array([0.4, -0.3]), np.array([1.3, 0.8]))
        return ais(
            key,
            crooked,
            (as_array(0.8), as_array(0.5)),
            base,
            sampler=HMC(0.6),
            num_particles=200,
            num_steps=num_steps,
            pilot=None,
        )

    single = run()
    with jax.enable_x64(True):
        double = run()
    assert single.log_weights.dtype == jnp.float32
    assert double.log_weights.dtype == np.float64
    error = np.hypot(single.stderr, double.stderr)
    assert abs(float(single.log_z) - float(double.log_z)) < 3 * error < 0.05


def test_sums_of_many_keep_what_rounding_would_lose():
    changes = np.random.default_rng(0).normal(scale=1e-3, size=100_000)
    changes = changes.astype(np.float32)
    carry = (np.float32(300), np.float32(0))

    @jax.jit
    def total(changes):
        def add(carry, change):
            return compensated_sum(*carry, change), None

        return sum(jax.lax.scan(add, carry, changes)[0])

    truth = 300 + changes.astype(float).sum()
    assert abs(float(total(changes)) - truth) < 1e-4
    naive = jax.jit(lambda c: jax.lax.scan(lambda t, x: (t + x, None), 300.0, c)[0])
    assert abs(float(naive(changes)) - truth) > 1e-3
