import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import all_states, drawn_from, log_probs_of, random_ising

from probjax import Watch, ising, samplers, storage
from probjax.samplers import Draws
from probjax.samplers.chain_loop import run_steps
from probjax.samplers.observers import Average
from probjax.types import Info

HERE = Path(__file__).parent
PARAMS = random_ising(0, 4, scale=0.5)
START = np.zeros((50, 4), np.float32)
SWEEPS = samplers.HeatBath()
WELL_START = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


def pairs(x):
    return {"mean": x, "second": jnp.outer(x, x)}


def test_draws_have_chains_first_and_follow_the_model(key):
    draws = samplers.sample(
        key, ising.energy, PARAMS, START, sampler=SWEEPS, num_draws=400, num_warmup=20
    )
    chex.assert_shape([draws.x, draws.state.x], [(50, 400, 4), (50, 4)])
    chex.assert_shape(draws.info.accept, (50, 400))
    np.testing.assert_array_equal(np.asarray(draws.x)[:, -1], draws.state.x)
    mean = np.exp(log_probs_of(PARAMS)) @ all_states(4)
    chains = np.asarray(draws.x).mean(1)
    error = chains.std(0) / np.sqrt(50)
    assert np.all(np.abs(chains.mean(0) - mean) < 5 * error)


def test_running_means_are_those_of_the_draws(key):
    options = dict(sampler=SWEEPS, num_draws=30, num_warmup=5, thin=3)
    draws = samplers.sample(key, ising.energy, PARAMS, START, **options)
    means = samplers.sample_mean(
        key, ising.energy, PARAMS, START, statistic=pairs, **options
    )
    x = np.asarray(draws.x)
    values = {"mean": x, "second": x[..., None] * x[..., None, :]}
    for name, leaf in values.items():
        np.testing.assert_allclose(means.mean[name], leaf.mean((0, 1)), rtol=1e-5)
        variance = leaf.var((0, 1))
        np.testing.assert_allclose(means.variance[name], variance, atol=1e-5)
        stderr = leaf.mean(1).std(0, ddof=1) / np.sqrt(50)
        np.testing.assert_allclose(means.stderr[name], stderr, rtol=1e-3, atol=1e-7)
    np.testing.assert_array_equal(means.state.x, draws.state.x)


def test_thinned_and_warmed_up_chains_are_the_same_chains(key):
    sample = partial(samplers.sample, key, ising.energy, PARAMS, START, sampler=SWEEPS)
    every = np.asarray(sample(num_draws=12).x)
    np.testing.assert_array_equal(sample(num_draws=4, thin=3).x, every[:, 2::3])
    np.testing.assert_array_equal(sample(num_draws=5, num_warmup=7).x, every[:, 7:])


def test_a_step_from_the_model_leads_to_the_model(key):
    """The z-scores of all moments after one sweep from exact draws."""
    x = drawn_from(0, PARAMS, 20_000)
    means = samplers.sample_mean(
        key, ising.energy, PARAMS, x, statistic=pairs, sampler=SWEEPS, num_draws=1
    )
    states = all_states(4)
    second = states.T * np.exp(log_probs_of(PARAMS)) @ states
    z = (np.asarray(means.mean["second"]) - second) / means.stderr["second"]
    assert np.abs(z).max() < 5


def test_new_parameters_starts_and_keys_compile_nothing_anew():
    count = run_steps._cache_size()
    for seed in range(3):
        samplers.sample(
            jax.random.key(seed),
            ising.energy,
            random_ising(seed, 5),
            np.full((3, 5), float(seed > 0)),
            sampler=samplers.HeatBath(),
            num_draws=2,
        )
    assert run_steps._cache_size() == count + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_draws=0), "num_draws must be an integer of at least 1, got 0"),
        (dict(thin=0), "thin must be an integer of at least 1, got 0"),
        (dict(num_warmup=-1), "num_warmup must be an integer of at least 0, got -1"),
        (dict(x=np.zeros((0, 4))), "x must have a start for each chain"),
        (dict(x=np.zeros((2, 3))), "x must have the 4 units of params"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(options, message, key):
    options = dict(x=START, sampler=SWEEPS, num_draws=1) | options
    with pytest.raises(ValueError, match=message):
        samplers.sample(key, ising.energy, PARAMS, **options)


def test_a_run_in_pieces_saved_and_resumed_is_the_same_to_the_bit(key, tmp_path):
    sampler = samplers.HMC(0.4, flip=samplers.slice_flip)
    start = WELL_START
    run_all = partial(samplers.sample, key, well, 0.5, start, sampler=sampler)
    whole = run_all(num_draws=10, num_warmup=4, thin=2)
    path = tmp_path / "draws.npz"

    def save_and_end(draws):
        storage.save(path, draws)
        return int(draws.step) >= 4 + 2 * 6

    first = run_all(
        num_draws=10, num_warmup=4, thin=2, watch=Watch(save_and_end, every=3)
    )
    chex.assert_shape(first.x, (6, 6, 3))
    rest = samplers.sample(
        key, well, 0.5, storage.load(path), sampler=sampler, num_draws=4, thin=2
    )
    np.testing.assert_array_equal(np.concatenate([first.x, rest.x], 1), whole.x)
    chex.assert_trees_all_equal(rest.state, whole.state)
    assert rest.step == whole.step == 24


def test_draws_one_at_a_time_are_the_same_to_the_bit():
    """As users compile them: without optimising, a loop of one is another program."""
    program = "import test_sample; test_sample.check_draws_one_at_a_time()"
    paths = os.pathsep.join([str(HERE), str(HERE.parent), *sys.path])
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def check_draws_one_at_a_time():
    key, options = jax.random.key(20120501), dict(sampler=samplers.HMC(0.4))
    start = WELL_START
    whole = samplers.sample(key, well, 0.5, start, num_draws=4, **options)
    first = samplers.sample(key, well, 0.5, start, num_draws=1, **options)
    rest = samplers.sample(key, well, 0.5, first, num_draws=3, **options)
    np.testing.assert_array_equal(np.concatenate([first.x, rest.x], 1), whole.x)


def test_means_in_pieces_are_those_of_the_whole(key, tmp_path):
    options = dict(statistic=pairs, sampler=samplers.HMC(0.4), thin=2)
    start = WELL_START
    whole = samplers.sample_mean(key, well, 0.5, start, num_draws=10, **options)
    path = tmp_path / "means.npz"

    def save_and_end(means):
        storage.save(path, means)
        return int(means.running.num_draws) >= 6

    samplers.sample_mean(
        key,
        well,
        0.5,
        start,
        num_draws=10,
        watch=Watch(save_and_end, every=3),
        **options,
    )
    rest = samplers.sample_mean(
        key, well, 0.5, storage.load(path), num_draws=4, **options
    )
    chex.assert_trees_all_close(rest, whole, rtol=1e-6)
    chex.assert_trees_all_equal(rest.state, whole.state)


@jax.jit
def moments_of_bits(num_draws):
    """Moments of a fixed sequence of bits, and the number of its ones."""
    observer, start = Average(jnp.positive), jnp.ones(2)

    def add(number, carry):
        accumulator, count = carry
        # A Weyl sequence of 24 bits, three fifths of which count as 1.
        word = number.astype(np.uint32) * np.uint32(2654435761) >> 8
        x = start * (word < np.uint32(0.6 * 2**24))
        args = number, x, Info(accept=x), jnp.asarray(True)
        return observer.add(accumulator, *args), count + x.astype(int)

    carry = observer.start(start, Info(accept=start)), jnp.zeros(2, int)
    accumulator, count = jax.lax.fori_loop(0, num_draws, add, carry)
    return accumulator.moments, count


@pytest.mark.parametrize(
    "num_draws", [10**6, pytest.param(2**25, marks=pytest.mark.statistics)]
)
def test_means_of_more_draws_than_float32_resolves_do_not_drift(num_draws):
    (mean, squares, info), count = moments_of_bits(num_draws)
    share = np.asarray(count) / num_draws
    np.testing.assert_allclose(mean, share, atol=1e-6)
    np.testing.assert_allclose(info.accept, share, atol=1e-6)
    np.testing.assert_allclose(squares, num_draws * share * (1 - share), rtol=1e-5)


def test_other_parameters_have_nothing_to_resume(key):
    options = dict(sampler=samplers.HMC(0.4), num_draws=2)
    draws = samplers.sample(key, well, 0.5, WELL_START, **options)
    with pytest.raises(ValueError, match="same energy and params to be continued"):
        samplers.sample(key, well, 2.0, draws, **options)


def well(params, x):
    return params * jnp.sum((x**2 - 1) ** 2) + 0.1 * x[0]


def test_draws_print_a_few_lines_and_no_arrays():
    info = Info(accept=np.full((2, 3), 0.5), diverged=np.eye(2, 3))
    draws = Draws(np.zeros((2, 3, 4)), info, np.arange(1000.0), np.array(6))
    assert repr(draws).splitlines() == [
        "Draws: 2 chains of 3 draws, after 6 steps",
        "states, with axes of chains and draws: (2, 3, 4)",
        "acceptance: 0.5",
        "draws after divergent steps: 2 of 6; reduce the step size",
    ]
    assert repr(draws) == f"Draws: {draws.describe()}"
    text = []
    jax.eval_shape(lambda draws: text.append(repr(draws)), draws)
    assert "2 chains of 3 draws, after unknown steps" in text[0]
    assert "acceptance: unknown" in text[0]
