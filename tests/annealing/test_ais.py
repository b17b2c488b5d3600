from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import random_ising

from probjax import HMC, HeatBath, Metropolis, exact, experts, ising, rbm, storage
from probjax.annealing import (
    Bernoulli,
    Exponential,
    Gaussian,
    Geometric,
    Pilot,
    Straight,
    ais,
    ais_until,
    linear,
    log_likelihood,
    resume_ais,
    reverse_ais,
    sigmoid,
    towards_one,
)
from probjax.annealing.course import _add
from probjax.annealing.path import check_betas
from probjax.connectivity import BitFlips
from probjax.samplers import Bounds, Momentum, reduced_flip

GAUSSIAN = Gaussian(2, jnp.array([0.4, -0.3]), jnp.array([1.3, 0.8]))


def crooked(params, x):
    """Asymmetric, and not a product; of known integral."""
    scale, shift = params
    return (x[0] / scale - shift) ** 2 / 2 + (x[1] - 0.5 * x[0]) ** 4 + jnp.abs(x[0])


def crooked_log_z(params):
    """By quadrature: the second integral does not depend on the first coordinate."""
    scale, shift = (np.float64(value) for value in params)
    x = np.linspace(-30, 30, 2_000_001)
    first = np.sum(np.exp(-((x / scale - shift) ** 2) / 2 - np.abs(x))) * (x[1] - x[0])
    second = np.sum(np.exp(-(x**4))) * (x[1] - x[0])
    return np.log(first * second)


PARAMS = (jnp.asarray(0.8), jnp.asarray(0.5))
SPINS = random_ising(3, 4)


def same_as_base(base, x):
    return base.energy(x) + 3.0


@pytest.mark.parametrize("num_steps", [1, 2, 50])
def test_a_base_that_is_the_target_gives_every_particle_its_log_z(num_steps, key, x64):
    base = Gaussian(3, jnp.arange(3.0), jnp.array([0.5, 1.0, 2.0]))
    found = ais(
        key,
        same_as_base,
        base,
        base,
        sampler=HMC(0.3),
        num_particles=20,
        num_steps=num_steps,
    )
    np.testing.assert_allclose(found.log_weights, base.log_z - 3, rtol=1e-12)
    np.testing.assert_allclose(found.log_z, base.log_z - 3, rtol=1e-12)
    assert found.stderr < 1e-10
    np.testing.assert_allclose(found.ess, 20)


def assert_mean_is(log_weights, log_z, most=4):
    weights = np.exp(np.asarray(log_weights, float) - log_z)
    away = (weights.mean() - 1) / (weights.std() / np.sqrt(len(weights)))
    assert abs(away) < most, away
    # Weights that hardly differ would pass whatever is done to them.
    assert weights.std() > 0.05


@pytest.mark.parametrize("num_steps", [3, 5, 10])
@pytest.mark.parametrize(
    "sampler",
    [
        HMC(0.6),
        HMC(0.5, num_steps=2, flip=reduced_flip, momentum=Momentum(0.3, every=2)),
    ],
    ids=["HMC", "reduced"],
)
def test_the_mean_weight_of_a_million_particles_is_z(sampler, num_steps, key):
    found = ais(
        key,
        crooked,
        PARAMS,
        GAUSSIAN,
        sampler=sampler,
        num_particles=1_000_000,
        num_steps=num_steps,
        pilot=None,
    )
    assert_mean_is(found.log_weights, crooked_log_z(PARAMS))


@pytest.mark.parametrize("num_steps", [3, 5, 10])
@pytest.mark.parametrize(
    "sampler", [HeatBath(), Metropolis(BitFlips())], ids=["heat", "flips"]
)
def test_the_mean_weight_of_discrete_particles_is_z(sampler, num_steps, key):
    base = Bernoulli(4, jnp.array([0.5, -0.5, 0.0, 1.0]))
    found = ais(
        key,
        ising.energy,
        SPINS,
        base,
        sampler=sampler,
        num_particles=1_000_000,
        num_steps=num_steps,
        pilot=None,
    )
    assert_mean_is(found.log_weights, float(exact.log_z(ising.energy, SPINS, 4)))


@pytest.mark.parametrize("num_steps", [1, 4])
def test_backwards_the_mean_weight_is_one_over_z(num_steps, key):
    x = exact.sample(key, ising.energy, SPINS, 4, num_draws=300_000)
    found = reverse_ais(
        key,
        ising.energy,
        SPINS,
        Bernoulli(4),
        x,
        sampler=HeatBath(),
        num_steps=num_steps,
        pilot=None,
    )
    log_z = float(exact.log_z(ising.energy, SPINS, 4))
    assert_mean_is(found.log_weights, -log_z)
    assert found.bound > log_z


MACHINE = rbm.init(jax.random.key(2), 6, 3, scale=1.0)._replace(
    visible_bias=jnp.linspace(1, -2, 6), hidden_bias=jnp.array([-1.0, 0.5, 1.0])
)
UNCOUPLED = rbm.Params(
    jnp.zeros((6, 3)), jnp.linspace(-1, 1, 6), jnp.array([0.3, 0.0, -0.7])
)


@pytest.mark.parametrize(
    "path",
    [Straight(UNCOUPLED), rbm.Growth(UNCOUPLED.visible_bias, UNCOUPLED.hidden_bias)],
    ids=["straight", "growth"],
)
def test_parameters_may_move_instead_of_weights(path, key):
    """The classical way of RBMs, forth and back, from a base of any odds."""
    log_z = float(rbm.log_z(MACHINE))
    options = dict(sampler=rbm.BlockGibbs(), num_steps=5, path=path, pilot=None)
    for base in (Bernoulli(6, UNCOUPLED.visible_bias), Bernoulli(6)):
        found = ais(key, rbm.energy, MACHINE, base, num_particles=200_000, **options)
        assert_mean_is(found.log_weights, log_z)
        x = exact.sample(key, rbm.energy, MACHINE, 6, num_draws=200_000)
        back = reverse_ais(key, rbm.energy, MACHINE, base, x, **options)
        assert_mean_is(back.log_weights, -log_z)


@pytest.mark.parametrize("hidden", [None, UNCOUPLED.hidden_bias], ids=["0", "given"])
def test_growth_is_the_straight_way_from_a_machine_without_weights(hidden, x64):
    machine, uncoupled, hidden = jax.tree.map(
        lambda leaf: leaf.astype(float), (MACHINE, UNCOUPLED, hidden)
    )
    odds = uncoupled.visible_bias
    start = uncoupled._replace(hidden_bias=jnp.zeros(3) if hidden is None else hidden)
    both = (Straight(start), rbm.Growth(odds, hidden))
    args = (rbm.energy, machine, Bernoulli(6, odds + 1))
    x = exact.states(6)

    def seen(path, here, there):
        model = path.model(*args, here)
        sampler = rbm.BlockGibbs()

        def one(key, x):
            state = sampler.init(key, model, x)
            there_too = sampler.step(key, model, state)[0].x
            fall = path.fall(*args, state, here, there)
            return model(x), path.first(*args, x), fall, there_too

        return jax.vmap(one)(jax.random.split(jax.random.key(0), len(x)), x)

    for here, there in ((0.0, 0.2), (0.5, 0.4), (0.9, 1.0)):
        straight, growth = (seen(path, here, there) for path in both)
        chex.assert_trees_all_close(growth, straight, rtol=1e-12, atol=1e-12)


def test_resampling_leaves_z_unbiased_and_knows_its_error(key):
    run = partial(
        ais,
        energy=crooked,
        params=PARAMS,
        base=GAUSSIAN,
        sampler=HMC(0.6),
        num_particles=20,
        num_steps=6,
        pilot=None,
        resample_below=0.8,
    )
    found = jax.jit(jax.vmap(run))(jax.random.split(key, 4000))
    assert found.particles.num_resampled.mean() > 0.5
    assert_mean_is(found.log_z, crooked_log_z(PARAMS))
    claimed = np.sqrt(np.mean(np.square(found.stderr)))
    np.testing.assert_allclose(found.log_z.std(), claimed, rtol=0.1)


def test_errors_are_what_runs_scatter_by(key):
    run = partial(
        ais,
        energy=crooked,
        params=PARAMS,
        base=GAUSSIAN,
        sampler=HMC(0.6),
        num_particles=100,
        num_steps=10,
        pilot=None,
    )
    found = jax.jit(jax.vmap(run))(jax.random.split(key, 1000))
    off = (np.asarray(found.log_z) - crooked_log_z(PARAMS)) / np.asarray(found.stderr)
    assert abs(np.mean(np.abs(off) < 2) - 0.954) < 0.03


@pytest.mark.parametrize("path", [Geometric(), Straight((jnp.ones(()), jnp.zeros(())))])
def test_runs_with_a_pilot_find_log_z(path, key):
    found = ais(
        key,
        crooked,
        PARAMS,
        GAUSSIAN,
        sampler=HMC(5.0),
        num_particles=500,
        num_steps=400,
        path=path,
    )
    assert abs(found.log_z - crooked_log_z(PARAMS)) < 5 * found.stderr < 0.3
    assert float(np.nanmin(found.accept)) > 0.8
    assert found.plan.betas[0] == 0
    assert found.plan.betas[-1] == 1
    assert np.all(np.diff(found.plan.betas) >= 0)


def test_bounds_hold_all_the_way(key):
    """exp(-x) above 0, whose integral is 1."""
    found = ais(
        key,
        slope,
        1.0,
        Exponential(1, 3.0),
        sampler=HMC(0.5, bounds=Bounds(0.0)),
        num_particles=2000,
        num_steps=200,
    )
    assert found.x.min() >= 0
    assert abs(found.log_z) < 5 * found.stderr < 0.05


def slope(params, x):
    return params * x[0]


def test_a_run_in_pieces_saved_and_resumed_is_the_same_to_the_bit(key, tmp_path):
    run = partial(
        ais,
        key,
        crooked,
        PARAMS,
        GAUSSIAN,
        sampler=HMC(0.6),
        num_particles=50,
        num_steps=60,
    )
    whole = run()
    path = tmp_path / "annealed.npz"

    def save_and_end(annealed):
        storage.save(path, annealed)
        return int(annealed.particles.step) > 30

    partly = run(callback=save_and_end, callback_every=10)
    assert partly.describe().startswith("ended at 31 of 60 distributions")
    with pytest.raises(ValueError, match="ended at 31 of 60 distributions: resume_ais"):
        log_likelihood(crooked, PARAMS, jnp.zeros((3, 2)), partly)
    rest = resume_ais(
        key, crooked, PARAMS, GAUSSIAN, storage.load(path), sampler=HMC(0.6)
    )
    chex.assert_trees_all_equal(rest, whole)


def test_sums_of_many_keep_what_rounding_would_lose(key):
    changes = np.asarray(jax.random.normal(key, (100_000,))) * 1e-3
    carry = (jnp.asarray(300.0), jnp.zeros(()))

    @jax.jit
    def total(changes):
        def add(carry, change):
            return _add(*carry, change), None

        return sum(jax.lax.scan(add, carry, changes)[0])

    truth = 300 + changes.astype(float).sum()
    assert abs(float(total(changes)) - truth) < 1e-4
    naive = jax.jit(lambda c: jax.lax.scan(lambda t, x: (t + x, None), 300.0, c)[0])
    assert abs(float(naive(changes)) - truth) > 1e-3


def test_new_parameters_bases_and_knobs_compile_nothing_anew():
    traces = []

    def energy(params, x):
        traces.append(1)
        return params * jnp.sum(x**4)

    for seed in range(3):
        ais(
            jax.random.key(seed),
            energy,
            1.0 + seed,
            Gaussian(2, scale=1.0 + seed),
            sampler=HMC(0.1 + 0.1 * seed),
            num_particles=10,
            num_steps=20,
        )
        if seed == 0:
            count = len(traces)
    # One more each, which looks at the shape of what the energy returns.
    assert len(traces) <= count + 2


def test_work_doubles_until_the_error_is_small(key):
    found = ais_until(
        key,
        crooked,
        PARAMS,
        GAUSSIAN,
        stderr=0.02,
        sampler=HMC(0.6),
        num_particles=100,
        num_steps=10,
    )
    assert found.stderr < 0.02
    assert len(found.plan.betas) - 1 > 10
    assert abs(found.log_z - crooked_log_z(PARAMS)) < 5 * found.stderr
    with pytest.warns(UserWarning, match="that is still above 1e-05 after 20"):
        ais_until(
            key,
            crooked,
            PARAMS,
            GAUSSIAN,
            stderr=1e-5,
            sampler=HMC(0.6),
            num_particles=100,
            num_steps=10,
            most_steps=20,
        )


@pytest.mark.parametrize("schedule", [linear, sigmoid, towards_one])
def test_schedules_rise_from_0_to_1(schedule):
    for count in (1, 2, 7, 1000):
        betas = check_betas(schedule(count))
        assert len(betas) == count + 1


def test_trouble_is_said_in_words(key):
    narrow, wide = Gaussian(2, scale=0.05), Gaussian(2, scale=50.0)
    run = partial(ais, key, crooked, PARAMS, sampler=HMC(0.6), pilot=None)
    said = run(wide, num_particles=100, num_steps=2).describe()
    assert "the path is too fast; try num_steps=8" in said
    assert (
        "acceptance falls to"
        in run(narrow, num_particles=100, num_steps=50, betas=linear(50)).describe()
    )
    away = Gaussian(1, 50.0)
    found = ais(
        key, half_line, 0.0, away, sampler=HMC(0.1), num_particles=9, num_steps=5
    )
    assert "the base does not cover the target" in found.describe()
    assert found.ess == 0
    assert np.isnan(found.stderr)


def half_line(params, x):
    return jnp.where(x[0] > 0, jnp.inf, x[0] ** 2)


def test_bad_input_is_refused_in_a_sentence(key):
    options = dict(sampler=HMC(0.1), num_particles=10, num_steps=2)
    run = partial(ais, key, crooked, PARAMS)
    for wrong, message in [
        (
            dict(betas=[0.1, 0.5, 1.0]),
            r"must rise from 0 to 1, got betas\[0\]=0.1",
        ),
        (dict(betas=[0.0, 0.5, 0.9]), r"got betas\[-1\]=0.8999"),
        (dict(betas=[0.0, 1.5, 1.0]), r"got betas\[1\]=1.5 before betas\[2\]=1.0"),
        (dict(betas=[0.0, jnp.nan, 1.0]), r"got betas\[0\]=0.0 before betas\[1\]=nan"),
        (dict(path=Straight(1.0)), "start must be params of the model's own form"),
        (dict(betas=[0.0, 1.0]), r"betas must be num_steps \+ 1 = 3 numbers, got 2"),
        (dict(num_particles=0), "num_particles must be an integer of at least 1"),
        (dict(num_steps=0), "num_steps must be an integer of at least 1"),
        (dict(resample_below=2.0), "resample_below must be from 0 to 1, got 2.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(GAUSSIAN, **options | wrong)
    with pytest.raises(ValueError, match="Bernoulli draws discrete states, which HMC"):
        run(Bernoulli(2), **options)
    with pytest.raises(ValueError, match="needs data of 0 and 1"):
        run(GAUSSIAN, **options | dict(sampler=HeatBath()))
    endless = experts.Params(jnp.eye(2), jnp.array([0.4, 1.0]))
    with pytest.raises(ValueError, match="the model has no partition function"):
        ais(key, experts.student_t, endless, Gaussian(2), **options)
    with pytest.raises(ValueError, match="target must be between 0 and 1, got 1.0"):
        Pilot(target=1.0)
    with pytest.raises(ValueError, match="energy must return a scalar"):
        ais(key, lambda params, x: x, 0.0, GAUSSIAN, **options)
