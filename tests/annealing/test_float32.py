"""Long annealing runs in float32, against float64."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.annealing_tasks import filters, strengths
from probjax import HMC, Gaussian, Sampler, ais, experts, recipe
from probjax.annealing import Geometric
from probjax.annealing.bridge import Bridge
from probjax.annealing.estimate import _moves_per_bin
from probjax.annealing.particles import NUM_BINS, AnnealingRun
from probjax.annealing.schedule import Schedule, cell_of
from probjax.trees import as_array
from probjax.types import Info

SIZE, PARTICLES = 36, 100
TASKS = {
    "laplace": (experts.laplace, filters(0, 3), np.ones(SIZE), experts.laplace_log_z),
    "student_t": (
        experts.student_t,
        filters(1, 3),
        strengths(1, 6),
        experts.student_t_log_z,
    ),
}


def task(name):
    """Energy, parameters in the precision of the test, and log Z."""
    energy, found, strength, log_z = TASKS[name]
    dtype = jnp.result_type(float)
    params = experts.Params(as_array(found, dtype), as_array(strength, dtype))
    return energy, params, float(log_z(params))


def runs(name, num_steps, num_keys):
    """Acceptance, mean log weight and log Z of runs with one key each."""
    energy, params, _ = task(name)
    plan = dict(sampler=HMC(0.2), num_particles=PARTICLES, pilot=None)
    found = [
        ais(key, energy, params, Gaussian(SIZE), num_steps=num_steps, **plan)
        for key in jax.random.split(jax.random.key(3), num_keys)
    ]
    assert {run.log_weights.dtype for run in found} == {np.dtype(params.filters.dtype)}
    return [
        np.stack([np.asarray(part, float) for part in parts])
        for parts in zip(
            *((run.accept, run.log_weights, run.log_z) for run in found), strict=True
        )
    ]


@pytest.mark.statistics
@pytest.mark.parametrize("name", TASKS)
def test_hamiltonian_annealing_is_the_same_in_both_precisions(name):
    num_steps, num_keys = 10_000, 5
    single = runs(name, num_steps, num_keys)
    with jax.enable_x64(True):
        double = runs(name, num_steps, num_keys)
        truth = task(name)[2]
    (accept, weights, log_z), (accept_64, weights_64, log_z_64) = single, double
    # A bin is 5 x 100 x 200 moves, of which at most a few tens are not independent.
    assert np.abs(accept.mean(0) - accept_64.mean(0)).max() < 0.01
    by_key, by_key_64 = accept.mean(1), accept_64.mean(1)
    assert abs(z_score(by_key, by_key_64)) < 5
    assert abs(z_score(weights.ravel(), weights_64.ravel())) < 4
    assert abs(z_score(log_z, log_z_64)) < 5
    # Biased low, because the tails are reached late.
    assert -2 < log_z.mean() - truth < 0.5
    spread = np.array([values.std() for values in (weights, weights_64)])
    assert 0.7 < spread[0] / spread[1] < 1.4


def z_score(first, second):
    error = np.hypot(
        *(each.std(ddof=1) / np.sqrt(len(each)) for each in (first, second))
    )
    return (first.mean() - second.mean()) / error


class Replayed(NamedTuple):
    x: jax.Array
    number: jax.Array


@recipe
class Replay(Sampler):
    """Visit given states in turn, whatever the model."""

    states: jax.Array

    def init(self, key, potential, x):
        return Replayed(x, jnp.zeros((), int))

    def step(self, key, potential, state):
        x = self.states[state.number % len(self.states)]
        return Replayed(x, state.number + 1), Info(accept=jnp.ones(()))


def walk(num_states):
    """States of a slow walk with the scale of the base, back and forth."""
    rng = np.random.default_rng(5)
    x, found = rng.normal(size=SIZE), []
    for _ in range(num_states // 2):
        x = 0.98 * x + 0.2 * rng.normal(size=SIZE)
        found.append(x)
    return np.asarray(found + found[::-1], np.float32)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    "num_steps", [100_000, pytest.param(10**6, marks=pytest.mark.statistics)]
)
def test_a_log_weight_is_that_of_float64_for_the_same_states(name, num_steps):
    energy, params, _ = task(name)
    states = walk(1000)
    x = states[-1:]
    bridge = Bridge(
        energy, None, params, Gaussian(SIZE), Geometric(), Replay(as_array(states))
    )
    table = as_array(np.array([0.0, 1.0], np.float32))
    schedule = Schedule(table, num_steps=as_array(np.int32(num_steps)))
    annealing_run = AnnealingRun(bridge, schedule)

    @jax.jit
    def advance(annealing_run, keys, x):
        particles = annealing_run.start(keys, x)
        return annealing_run.advance(keys, particles, num_steps)[0]

    particles = advance(annealing_run, jax.random.split(jax.random.key(0), 1), x)
    found = np.asarray(particles.log_weight, float) + np.asarray(particles.compensation)
    with jax.enable_x64(True):
        wide = task(name)[1]
        wide = jax.tree.map(lambda leaf: as_array(np.float64(leaf)), wide)
        ends = Gaussian(SIZE).energy, lambda x: energy(wide, x)
        first, last = (np.asarray(jax.vmap(end)(states.astype(float))) for end in ends)
    # The number of times each state is weighted; all steps of beta are equal.
    change = np.resize(np.roll(first - last, 1), num_steps).mean()
    # Sums without compensation are off by .0003 and more.
    assert abs(found[0] - change) < 2e-5
    assert np.abs(particles.accept.sum() - (num_steps - 1)) < 2e-3 * num_steps


@pytest.mark.parametrize("num_steps", [2, 51, 1000, 2**24 + 3, 2**26 + 5, 10**9])
def test_schedules_of_more_steps_than_float32_counts_rise_to_1(num_steps):
    table = as_array(np.array([0.0, 1.0], np.float32))
    schedule = Schedule(table, num_steps=as_array(np.int32(num_steps)))
    far = np.random.default_rng(0).integers(num_steps, size=500)
    ends = [0, 1, num_steps // 2, num_steps - 1, num_steps]
    numbers = np.sort(np.concatenate([far, ends])).astype(np.int32)
    betas = jax.jit(jax.vmap(lambda k: schedule.beta(k, np.float32)))(numbers)
    betas = np.asarray(betas, float)
    np.testing.assert_allclose(betas, numbers / num_steps, rtol=3e-7)
    assert np.all(np.diff(betas) >= 0)
    assert betas[-1] == 1


@pytest.mark.parametrize("num_steps", [2, 51, 1000, 2**24 + 3, 10**9])
def test_every_move_is_counted_in_its_part_of_the_run(num_steps):
    num_moves = num_steps - 1
    counts = np.asarray(
        jax.jit(_moves_per_bin)(np.int32(num_steps), np.int32(num_steps))
    )
    assert counts.sum() == num_moves
    ends = np.cumsum(counts)
    moves = np.unique(np.clip(np.concatenate([ends - 1, ends]), 0, num_moves - 1))
    cells = jax.jit(jax.vmap(lambda k: cell_of(k, jnp.asarray(num_moves), NUM_BINS)))
    expected = [int(move) * NUM_BINS // num_moves for move in moves]
    np.testing.assert_array_equal(cells(moves.astype(np.int32))[0], expected)
    np.testing.assert_array_equal(np.searchsorted(ends, moves, side="right"), expected)
