"""Runs that were cut anywhere end as if they had not been."""

import subprocess
import sys
import types
from functools import partial
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import plain_energy, random_ising

from probjax import (
    EM,
    HMC,
    L2,
    MPF,
    Checkpoint,
    Gaussian,
    HeatBath,
    PersistentMPF,
    Watch,
    ais,
    ais_until,
    annealing,
    fit,
    ising,
    linear,
    marginal_log_likelihood,
    sample,
    sample_mean,
    sandwich,
    storage,
)
from probjax.annealing import reverse_ais
from probjax.data import blocks
from probjax.fitting import GradientNorm
from probjax.natural import energy_scores, fit_whitened
from probjax.runs.digest import digest
from probjax.trees import as_array

TESTS = Path(__file__).parents[1]
ADAM = optax.adam(0.02)
KEY = jax.random.key(20120501)
GENERATOR = np.random.default_rng(20120501)
# As many rows as particles, so that all annealing runs share their programs.
REALS = GENERATOR.normal(size=(20, 2)).astype(np.float32)
BITS = (GENERATOR.random((60, 4)) < 0.4).astype(np.float32)
START = random_ising(0, 4)


class KilledError(Exception):
    pass


def quartic(params, x):
    return params * jnp.sum(x**4) / 4 + x[0] * x[1] / 2


def square(x):
    return x**2


def seen_with_noise(params, x, a):
    return params * jnp.sum((x - a) ** 2) + jnp.sum(a**2) / 2


def watched(every, driver, *args, **options):
    """A call of a driver, to be given a callback and a checkpoint."""

    def run(callback=None, checkpoint=None, **more):
        watch = None
        if callback is not None or checkpoint is not None:
            watch = Watch(callback, every=every, checkpoint=checkpoint)
        return driver(*args, watch=watch, **(options | more))

    return run


def counted(run):
    """The outcome of a run, and in how many pieces it came to it."""
    pieces = []
    found = run(callback=pieces.append)
    return found, len(pieces)


def cut(run, path, pieces):
    """The same of a run that dies after so many pieces and is begun again."""
    kept = partial(run, checkpoint=Checkpoint(path, every=0.0))
    left = iter(range(pieces))

    def callback(_):
        if next(left, None) is None:
            raise KilledError

    with pytest.raises(KilledError):
        kept(callback=callback)
    found, others = counted(kept)
    return found, pieces + others


def fits():
    start = linear.Params(as_array(REALS[:2]), as_array(np.float32(0.5)))
    packed = np.packbits(BITS.astype(np.uint8), axis=1)
    source = blocks.from_array(packed, rows_per_block=25, decode=blocks.PackedBits(4))
    em = EM(linear.gaussian, base=Gaussian(2), sampler=HMC(0.3), num_moves=2)
    persistent = PersistentMPF(ising.energy, sampler=HeatBath(), num_particles=20)
    learn = partial(watched, 3, fit, KEY, MPF(ising.energy), START)
    minimise = partial(learn, stop=GradientNorm())
    return {
        "L-BFGS": minimise(BITS),
        "EM in minibatches": watched(
            2,
            fit,
            KEY,
            em,
            start,
            REALS,
            optimizer=ADAM,
            batch_size=8,
            num_rounds=4,
            steps_per_round=3,
        ),
        "persistent rounds": watched(
            1, fit, KEY, persistent, START, BITS, num_rounds=5, steps_per_round=2
        ),
        "whitened": watched(
            1,
            fit_whitened,
            KEY,
            MPF(ising.energy),
            START,
            BITS,
            energy_scores(ising.energy),
            steps_per_round=3,
            num_turns=6,
        ),
        "blocks": minimise(source, penalty=L2(0.01)),
        "blocks in minibatches": learn(
            source, optimizer=ADAM, batch_size=10, steps_per_round=17
        ),
    }


FITS = fits()


@pytest.mark.parametrize("name", FITS)
def test_a_fit_that_was_cut_ends_as_if_it_had_not_been(name, tmp_path):
    run = FITS[name]
    whole, pieces = counted(run)
    path = tmp_path / "cut.npz"
    found, those_kept = cut(run, path, pieces=2)
    chex.assert_trees_all_equal(found, whole)
    assert those_kept == pieces
    written = path.read_bytes()
    again = run(checkpoint=Checkpoint(path))
    chex.assert_trees_all_equal(again, whole)
    assert path.read_bytes() == written


def test_a_fit_that_a_callback_ended_goes_on_without_it(tmp_path):
    run = partial(FITS["L-BFGS"], checkpoint=Checkpoint(tmp_path / "ended.npz"))
    whole = FITS["L-BFGS"]()
    short = run(callback=lambda progress: True)
    assert 0 < len(short.losses) < len(whole.losses)
    chex.assert_trees_all_equal(run(), whole)


def chains(key):
    common = dict(sampler=HMC(0.5), num_draws=7, num_warmup=5, thin=2)
    annealed = dict(sampler=HMC(0.5), num_steps=30)
    to_quartic = key, quartic, 1.0, Gaussian(2)
    return {
        "sample": watched(2, sample, key, quartic, 1.0, REALS, **common),
        "sample_mean": watched(
            2, sample_mean, key, quartic, 1.0, REALS, statistic=square, **common
        ),
        "ais": watched(
            7, ais, *to_quartic, num_particles=20, resample_below=0.95, **annealed
        ),
        "reverse_ais": watched(7, reverse_ais, *to_quartic, REALS, **annealed),
        "sandwich": watched(11, sandwich, *to_quartic, REALS, **annealed),
        "ais_until": watched(
            7,
            ais_until,
            *to_quartic,
            stderr=0.05,
            sampler=HMC(0.5),
            num_particles=20,
            num_steps=10,
        ),
        "marginal_log_likelihood": watched(
            4,
            marginal_log_likelihood,
            key,
            seen_with_noise,
            0.5,
            Gaussian(1),
            np.arange(5.0)[:, None],
            sampler=HMC(0.3),
            num_particles=5,
            num_steps=9,
            chunk_size=2,
            pilot=None,
        ),
    }


CHAINS = chains(KEY)
AIS = partial(CHAINS["ais"], pilot=None)


@pytest.mark.parametrize("name", CHAINS)
def test_chains_that_were_cut_end_as_if_they_had_not_been(name, tmp_path):
    run = CHAINS[name]
    whole, pieces = counted(run)
    for at in {3, pieces - 1}:
        found, those_kept = cut(run, tmp_path / f"{at}.npz", pieces=at)
        chex.assert_trees_all_equal(found, whole)
        assert those_kept == pieces


def test_a_long_warm_up_is_kept_too(tmp_path, monkeypatch):
    steps = []

    def save(path, tree):
        scalars = [leaf for leaf in tree["leaves"] if leaf.ndim == 0]
        steps.append([int(leaf) for leaf in scalars])

    monkeypatch.setattr(storage, "save", save)
    CHAINS["sample"](checkpoint=Checkpoint(tmp_path / "warm.npz", every=0.0))
    assert steps[:4] == [[2, 0, 0], [4, 0, 0], [5, 0, 0], [9, 2, 0]]


def killed(job, folder, kills):
    """How many runs died, and the pieces of the run after them and of a whole one."""
    program = [sys.executable, TESTS / "killed_runs.py", job, folder, str(kills)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    killed, whole = (folder / name for name in ("killed", "whole"))
    assert killed.read_bytes() == whole.read_bytes()
    return map(int, done.stdout.split())


@pytest.mark.platforms
@pytest.mark.parametrize("job", ["ais", "fit"])
def test_twenty_kills_change_no_bit(job, tmp_path):
    died, last, whole = killed(job, tmp_path, kills=20)
    assert died == 20
    # The last run had less to do than all of it.
    assert 0 < last < whole - 20


@pytest.mark.platforms
def test_a_killed_run_continues_to_the_bit(tmp_path):
    died, last, whole = killed("short fit", tmp_path, kills=1)
    assert died == 1
    assert 0 < last < whole


def other_plain_energy(params, x):
    return plain_energy(params, x) + 0 * x[0]


def test_a_checkpoint_of_another_fit_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "fit.npz"
    changed = BITS.copy()
    changed[0, 0] = 1 - changed[0, 0]
    own = dict(
        key=KEY,
        objective=MPF(plain_energy),
        params=START,
        data=BITS,
        optimizer=ADAM,
        steps_per_round=3,
    )
    run = partial(fit, watch=Watch(checkpoint=Checkpoint(path)))
    run(**own)
    written = path.read_bytes()
    for name, other in {
        "key": jax.random.key(1),
        "objective": MPF(other_plain_energy),
        "params": random_ising(1, 4),
        "data": changed,
        "optimizer": optax.adam(0.03),
        "steps_per_round": 4,
        "num_rounds": 2,
        "penalty": L2(0.1),
        "batch_size": 5,
        "stop": GradientNorm(0.5),
        "chart": ising.centred(BITS),
    }.items():
        with pytest.raises(ValueError, match=f"these arguments: {name}; try another"):
            run(**own | {name: other})
    with pytest.raises(ValueError, match="these arguments: objective, params; try"):
        run(**own | {"objective": MPF(ising.energy), "params": random_ising(2, 4)})
    with pytest.raises(ValueError, match="checkpoint of a run of fit, not of ais"):
        CHAINS["ais"](checkpoint=Checkpoint(path))
    assert path.read_bytes() == written


def test_a_checkpoint_of_another_run_of_chains_is_refused(tmp_path):
    path = tmp_path / "ais.npz"
    run = partial(AIS, checkpoint=Checkpoint(path))
    run()
    for name, other in {
        "sampler": HMC(0.4),
        "num_steps": 31,
        "num_particles": 21,
        "resample_below": None,
        "path": annealing.Straight(np.ones(())),
        "pilot": annealing.Pilot(),
    }.items():
        with pytest.raises(ValueError, match=f"values of these arguments: {name}; try"):
            run(**{name: other})


def test_what_is_no_checkpoint_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "ais.npz"
    storage.save(path, {"leaves": [np.ones(3, np.float32)]})
    with pytest.raises(ValueError, match="is a probjax file, but not a checkpoint"):
        AIS(checkpoint=Checkpoint(path))
    path.write_text("notes on annealing")
    with pytest.raises(ValueError, match="cannot be read as a probjax file"):
        AIS(checkpoint=Checkpoint(path))
    assert path.read_text() == "notes on annealing"
    with pytest.raises(ValueError, match="in a folder that exists, got .*nowhere"):
        AIS(checkpoint=Checkpoint(tmp_path / "nowhere" / "ais.npz"))
    with pytest.raises(ValueError, match="every must not be negative"):
        Checkpoint(path, every=-1.0)


def test_what_a_kill_left_half_written_is_passed_over_and_removed(tmp_path):
    path, half = tmp_path / "ais.npz", tmp_path / ".ais.npz.1f2e.partial"
    other = tmp_path / ".ais.npz.notes"
    half.write_bytes(b"PK half a file")
    other.write_bytes(b"mine")
    AIS(checkpoint=Checkpoint(path))
    assert not half.exists()
    assert other.exists()


def test_a_checkpoint_is_written_no_more_often_than_asked(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(storage, "save", lambda path, tree: written.append(path))
    checkpoint = Checkpoint(tmp_path / "ais.npz", every=1000.0)
    AIS(checkpoint=checkpoint)
    assert len(written) == 1


def test_runs_inside_jit_keep_nothing(tmp_path):
    checkpoint = Checkpoint(tmp_path / "ais.npz")
    with pytest.raises(
        ValueError, match="inside jit or vmap must not be given a watch"
    ):
        jax.jit(lambda key: chains(key)["ais"](checkpoint=checkpoint).log_z)(KEY)


@pytest.mark.platforms
@pytest.mark.filterwarnings("ignore")
def test_a_directory_is_written_by_orbax(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    run, path = FITS["persistent rounds"], tmp_path / "fit"
    found, those_kept = cut(run, path, pieces=3)
    whole, pieces = counted(run)
    chex.assert_trees_all_equal(found, whole)
    assert those_kept == pieces
    with pytest.raises(ValueError, match="values of these arguments: num_rounds"):
        run(num_rounds=6, checkpoint=Checkpoint(path))
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes").write_text("mine")
    with pytest.raises(ValueError, match="holds other files than a checkpoint"):
        run(checkpoint=Checkpoint(full))


def test_a_directory_without_orbax_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax", None)
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match="pip install orbax-checkpoint, or a path"):
        CHAINS["ais"](checkpoint=Checkpoint(tmp_path / "ais"))


def scaled_by(factor):
    def energy(params, x):
        return factor * jnp.sum(params * x)

    return energy


def contracted(x):
    """One way."""
    return jnp.einsum("i,ij,j", x, x, x)


def otherwise(x):
    """Another way."""
    return jnp.einsum("i,ji,j", x, x, x)


def scaled(x, *, scale=1.0):
    return x * scale


def scaled_more(x, *, scale=2.0):
    return x * scale


def documented(x):
    """One thing."""
    return x


def test_digests_see_strings_and_defaults_but_no_documentation():
    assert digest(contracted.__code__) != digest(otherwise.__code__)
    pairs = (contracted, otherwise), (scaled, scaled_more)
    for first, second in pairs:
        second.__qualname__ = first.__qualname__
        assert digest(first) != digest(second)
    code = documented.__code__
    changed = tuple(
        "Another." if c == documented.__doc__ else c for c in code.co_consts
    )
    other = types.FunctionType(code.replace(co_consts=changed), globals(), "documented")
    assert other.__doc__ == "Another."
    assert digest(other) == digest(documented)


def test_digests_tell_values_kinds_code_and_closures_apart():
    def recurring(n):
        return recurring(n - 1) if n else 0

    different = [
        1,
        1.0,
        True,
        None,
        "1",
        (1, 2),
        [1, 2],
        ((1,), 2),
        {"a": 1},
        {"a": 2},
        np.arange(3),
        np.arange(3.0),
        np.arange(4).reshape(2, 2),
        as_array(np.zeros(0, np.float32)),
        jax.random.key(0),
        jax.random.key(1),
        plain_energy,
        other_plain_energy,
        scaled_by(1.0),
        scaled_by(2.0),
        partial(plain_energy, 1),
        partial(plain_energy, 2),
        jax.jit(plain_energy),
        optax.adam(0.1),
        optax.adam(0.2),
        HMC(0.1),
        HMC(0.2),
        HMC(0.1, num_steps=2),
        recurring,
    ]
    found = [digest(value) for value in different]
    assert len(set(found)) == len(found)
    three = np.arange(3, dtype=np.int32)
    assert digest(as_array(three)) == digest(three)
    for make in (partial(scaled_by, 2.0), partial(optax.adam, 0.1), partial(HMC, 0.1)):
        assert digest(make()) == digest(make())
