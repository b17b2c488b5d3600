"""Compiled pieces overwrite the state of a run, but no array that a user holds."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_array_equal
from small_models import AfterSteps, random_ising

from probjax import (
    HMC,
    MPF,
    Checkpoint,
    Gaussian,
    HeatBath,
    PersistentDivergence,
    PseudoLikelihood,
    Watch,
    ais,
    fit,
    ising,
    marginal_log_likelihood,
    sample,
    sample_mean,
)
from probjax.annealing import reverse_ais, temperature_curve
from probjax.data import Blocks
from probjax.natural import energy_scores, fit_whitened
from probjax.runs import driver
from probjax.trees import as_array

KEY = jax.random.key(20120501)
SIZE, ROWS = 60, 40
STOP = AfterSteps(4)
HOST_BITS = np.random.default_rng(0).integers(0, 2, (ROWS, SIZE)).astype(np.float32)
BITS, REALS = as_array(HOST_BITS), as_array(HOST_BITS + 0.5)
PARAMS = jax.tree.map(as_array, random_ising(0, SIZE, 0.1))
SCALE = as_array(np.ones(SIZE, np.float32))
LIKELIHOOD = PseudoLikelihood(ising.energy)
CHAINS = dict(sampler=HeatBath(), num_draws=4)
ANNEALED = dict(sampler=HMC(0.1), num_steps=4, pilot=None)


def quadratic(precision, x):
    return jnp.sum(precision * x**2) / 2


def joint(params, x, a):
    return jnp.sum((x - params * a) ** 2) / 2 + jnp.sum(a**2) / 2


def total(x):
    return x


def read_blocks():
    yield HOST_BITS[: ROWS // 2]
    yield HOST_BITS[ROWS // 2 :]


PCD = PersistentDivergence(ising.energy, HeatBath(), num_particles=1000, num_moves=1)
DESCENT = dict(steps_per_round=1, num_rounds=4)
CALLS = {
    "L-BFGS": (fit, (LIKELIHOOD, PARAMS, BITS), dict(stop=STOP)),
    "Adam": (fit, (MPF(ising.energy), PARAMS, BITS), dict(optimizer=optax.adam(0.1))),
    "particles": (
        fit,
        (PCD, PARAMS, BITS),
        DESCENT | dict(optimizer=optax.sgd(0.1)),
    ),
    "batches": (
        fit,
        (LIKELIHOOD, PARAMS, BITS),
        dict(optimizer=optax.adam(0.1), batch_size=10, steps_per_round=4),
    ),
    "blocks": (fit, (LIKELIHOOD, PARAMS, Blocks(read_blocks)), dict(stop=STOP)),
    "batches of blocks": (
        fit,
        (LIKELIHOOD, PARAMS, Blocks(read_blocks)),
        dict(optimizer=optax.adam(0.1), batch_size=10, steps_per_round=4),
    ),
    "whitened": (
        fit_whitened,
        (LIKELIHOOD, PARAMS, BITS, energy_scores(ising.energy)),
        dict(num_turns=2, steps_per_round=4, stop=STOP),
    ),
    "draws": (sample, (ising.energy, PARAMS, BITS), CHAINS),
    "means": (
        sample_mean,
        (ising.energy, PARAMS, BITS),
        CHAINS | dict(statistic=total),
    ),
    "ladder": (
        temperature_curve,
        (ising.energy, PARAMS, BITS[: ROWS // 2]),
        dict(sampler=HeatBath(), temperatures=[1.0], num_draws=4, num_warmup=8, thin=1),
    ),
    "annealed": (
        ais,
        (quadratic, SCALE, Gaussian(SIZE)),
        ANNEALED | dict(num_particles=ROWS),
    ),
    "reverse": (reverse_ais, (quadratic, SCALE, Gaussian(SIZE), REALS), ANNEALED),
    "latents": (
        marginal_log_likelihood,
        (joint, SCALE, Gaussian(SIZE), REALS),
        ANNEALED | dict(num_particles=2, chunk_size=20),
    ),
}


@pytest.fixture(params=CALLS)
def call(request):
    function, args, options = CALLS[request.param]

    def with_watch(watch=None, args=args):
        return function(KEY, *args, watch=watch, **options)

    with_watch.args, with_watch.name = args, request.param
    return with_watch


def arrays(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]


def assert_alive(tree):
    assert not any(leaf.is_deleted() for leaf in arrays(tree))


def test_arrays_of_users_are_never_overwritten(call, tmp_path):
    before = [np.array(leaf) for leaf in arrays(call.args)]
    for watch in (
        None,
        Watch(every=1),
        Watch(lambda report: None, every=1),
        Watch(every=1, checkpoint=Checkpoint(tmp_path / "run.npz", every=0)),
    ):
        assert_alive(call(watch))
        assert_alive(call.args)
    for old, new in zip(before, arrays(call.args), strict=True):
        assert_array_equal(old, new)


def test_reports_can_be_kept(call):
    kept, then = [], []

    def keep(report):
        kept.append(report)
        then.append([np.array(leaf) for leaf in arrays(report)])

    call(Watch(keep, every=1))
    assert kept
    for report, values in zip(kept, then, strict=True):
        for leaf, value in zip(arrays(report), values, strict=True):
            assert_array_equal(np.asarray(leaf), value)


def test_a_run_holds_one_state_at_a_time(call, monkeypatch):
    left, overwritten = [], []

    def spied(job):
        def advance(state, every):
            after = job.advance(state, every)
            # The host reads losses, of 4 kB, and numbers.
            large = [leaf for leaf in arrays(state) if leaf.nbytes > 4 * 1024]
            gone = sum(leaf.nbytes for leaf in large if leaf.is_deleted())
            overwritten.append(gone)
            left.append(sum(leaf.nbytes for leaf in large) - gone)
            return after

        return job._replace(advance=advance)

    inner = driver._run_job
    monkeypatch.setattr(
        driver, "_run_job", lambda name, job, *rest: inner(name, spied(job), *rest)
    )
    call(Watch(lambda report: None, every=1))
    # Out of core, no piece reads the old gradient, nor two copies of the parameters.
    assert max(left) <= (3 * PARAMS.coupling.nbytes if "blocks" in call.name else 0)
    assert min(overwritten) > 3 * PARAMS.coupling.nbytes - 1


@pytest.mark.parametrize("name", ["draws", "means"])
def test_a_run_that_is_continued_stays_as_it_was(name):
    function, args, options = CALLS[name]
    first = function(KEY, *args, **options)
    before = [np.array(leaf) for leaf in arrays(first)]
    for watch in (None, Watch(every=1)):
        function(KEY, *args[:2], first, watch=watch, **options)
        for old, new in zip(before, arrays(first), strict=True):
            assert_array_equal(old, new)
