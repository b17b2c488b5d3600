"""One program for any number of devices and processes; `test_devices` compares runs.

    python on_devices.py FILE [ADDRESS NUM_PROCESSES PROCESS_ID]

Results go to FILE, as arrays by name.
"""

import dataclasses
import sys
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import random_ising

from probjax import (
    HMC,
    MPF,
    Checkpoint,
    ContrastiveDivergence,
    Data,
    Gaussian,
    HeatBath,
    Watch,
    ais,
    fit,
    ising,
    linear,
    marginal_log_likelihood,
    random,
    sample,
    sample_mean,
    storage,
)
from probjax.annealing import reverse_ais
from probjax.data import blocks, unique_rows
from probjax.devices import on_host, sharded_vmap, spread
from probjax.fitting import uncertainty
from probjax.runs import checkpoint
from probjax.samplers.chain_loop import Chains, run_steps_static, start_run
from probjax.samplers.momentum import reduced_flip
from probjax.samplers.observers import Store


def key():
    # Not a constant: nothing may be computed before processes have met.
    return jax.random.key(7)


ADAM = optax.adam(0.05)
REDUCED = HMC(0.9, num_steps=3, flip=reduced_flip)
SIZE, ROWS, CHAINS = 6, 1000, 192


def quartic(params, x):
    return params @ x**2 / 2 + jnp.sum(x**4) / 4 - x[0] * x[1]


def mine(rows):
    """This process's part of rows, as they are or with some of no weight behind."""
    ends = np.linspace(0, len(rows), jax.process_count() + 1).astype(int)
    return np.asarray(rows)[slice(*ends[jax.process_index() :][:2])]


def streams(found):
    with jax.set_mesh(jax.make_mesh((jax.device_count(),), ("rows",))):
        keys = spread(
            mine(np.asarray(jax.random.key_data(jax.random.split(key(), 32))))
        )
    draw = jax.jit(sharded_vmap(lambda words: numbers(jax.random.wrap_key_data(words))))
    with jax.set_mesh(keys.sharding.mesh):
        found["streams"] = np.stack([*map(on_host, draw(keys))])


def numbers(key):
    key = random.fold_in(key, 5)
    return random.normal(key, (7,)), jax.random.uniform(key, (7,))


def fits(found):
    bits = np.array(jax.random.bernoulli(key(), 0.4, (ROWS - 6, SIZE)))
    bits[:200, 1] |= bits[:200, 0]
    data = spread(Data(mine(bits)))
    objective, start = MPF(ising.energy), random_ising(0, SIZE)
    whole = fit(key(), objective, start, data, chart=ising.centred(data), chunk_size=50)
    assert whole.converged
    found["fit"] = ising.coupling_matrix(whole.params)
    found["fit_loss"] = whole.loss
    bars = uncertainty(objective, whole, data)
    found["error_bars"] = bars.of(ising.coupling_matrix)
    found["counts"] = unique_rows(data).weights


def batches(found):
    rows = spread(mine(np.asarray(jax.random.normal(key(), (ROWS, 3)))))
    found_ = fit(
        key(),
        ContrastiveDivergence(quartic, REDUCED),
        jnp.ones(3),
        rows,
        optimizer=ADAM,
        batch_size=200,
        num_rounds=2,
        steps_per_round=3,
    )
    found["batches"] = np.append(on_host(found_.losses), on_host(found_.params))
    layout(found, "context", found_.context.rows)


def in_blocks(found):
    bits = np.array(jax.random.bernoulli(key(), 0.4, (92, SIZE)))
    source = blocks.from_array(bits, rows_per_block=48)
    model = (MPF(ising.energy), random_ising(0, SIZE))
    learned = partial(fit, key(), *model, source, optimizer=ADAM, steps_per_round=5)
    if jax.process_count() > 1:
        with pytest.raises(ValueError, match="blocks must be read by a single process"):
            learned()
        return
    with jax.set_mesh(jax.make_mesh((jax.device_count(),), ("rows",))):
        found["blocks"] = ising.coupling_matrix(learned().params)
    with jax.set_mesh(spread(bits[:48]).sharding.mesh):
        first = blocks.survey(source, *model).first
    shares = [len(shard.data) for shard in first.x.addressable_shards]
    assert shares == [48 // jax.device_count()] * jax.device_count()


def chains(found):
    glass = random_ising(1, SIZE)
    bits = spread(mine(np.zeros((CHAINS, SIZE))))
    heat = {"sampler": HeatBath(), "num_draws": 10}
    draws = sample(key(), ising.energy, glass, bits, **heat)
    more = sample(key(), ising.energy, glass, draws, **heat)
    found["first_bits"] = on_host(draws.x)[:, 0]
    found["long_bits"] = z_parts(on_host(more.x))
    for name in ("rbg", "unsafe_rbg"):
        more = sample(jax.random.key(7, impl=name), ising.energy, glass, draws, **heat)
        found[f"long_{name}_bits"] = z_parts(on_host(more.x))
    layout(found, "draws", more.x)
    starts = spread(mine(np.asarray(jax.random.normal(key(), (CHAINS, 3)))))
    args = (key(), quartic, jnp.array([1.0, 2.0, 0.5]), starts)
    draws = sample(*args, sampler=REDUCED, num_draws=1)
    found["first_reals"] = on_host(draws.x)
    found["first_momenta"] = on_host(draws.state.phase.v)
    found["first_accept"] = on_host(draws.info.accept)
    means = sample_mean(*args, statistic=jnp.square, sampler=REDUCED, num_draws=100)
    found["long_means"] = np.stack([means.mean, means.stderr])
    layout(found, "means", means.running.mean)


def z_parts(draws):
    """The means over all, and their standard errors by the chains' own."""
    by_chain = draws.mean(1)
    return np.stack([by_chain.mean(0), by_chain.std(0) / np.sqrt(len(by_chain))])


def target():
    return jax.random.key(1), quartic, jnp.array([1.0, 2.0, 0.5]), Gaussian(3)


def anneal(**how):
    return ais(
        *target(),
        sampler=HMC(0.3),
        num_particles=CHAINS,
        num_steps=60,
        pilot=None,
        resample_below=0.9,
        **how,
    )


def partition_functions(found):
    with jax.set_mesh(jax.make_mesh((jax.device_count(),), ("rows",))):
        short = anneal(watch=Watch(lambda _: True, every=2))
        found["first_weights"] = on_host(short.log_weights)
        layout(found, "particles", short.x)
        annealed = anneal(watch=Watch(lambda _: None, every=2))
        assert annealed.particles.num_resampled > 0
        found["long_log_z"] = np.stack([annealed.log_z, annealed.stderr])
        drawn = spread(mine(np.asarray(jax.random.normal(key(), (CHAINS, 3)))))
    back = reverse_ais(*target(), drawn, sampler=HMC(0.3), num_steps=60)
    found["long_reverse"] = np.stack([back.log_z, back.stderr])
    layout(found, "back", back.x)


def likelihoods(found):
    model = linear.init(key(), 3, 2, noise=0.5)
    rows, _ = linear.sample_gaussian(key(), model, num_draws=32)
    estimate = marginal_log_likelihood(
        key(),
        linear.gaussian,
        model,
        Gaussian(2),
        spread(mine(rows)),
        sampler=HMC(0.3),
        num_particles=8,
        num_steps=20,
        chunk_size=3,
        pilot=None,
    )
    found["first_log_p"] = on_host(estimate.per_row)
    found["long_log_p"] = np.stack([estimate.value, estimate.stderr])
    assert "nats per row" in estimate.describe()


EVERY = 1


class KilledError(Exception):
    pass


def cut_runs(found, folder):
    """Runs that die on their way and are begun again, kept on disk in both forms."""
    rows = mine(np.array(jax.random.normal(key(), (64, 3))))
    for name, job in {"fit": partial(learn, rows), "ais": anneal_on_mesh}.items():
        whole = job(Watch(lambda _: None, every=EVERY))
        for form in (".npz", "") if find_spec("orbax") else (".npz",):
            path = folder / f"{name}_{jax.device_count()}{form}"
            again, lay = cut(job, path)
            found[f"cut_{name}{form}"] = same_bits(again, whole)
            found[f"lay_{name}{form}"] = np.array(lay)
    ended = job(Watch(every=EVERY, checkpoint=Checkpoint(path)))
    assert same_bits(ended, whole).all()
    if jax.process_index() + 1 == jax.process_count():
        rows[-1, -1] += 1
    # What only one process knows to differ, all refuse.
    kept = Checkpoint(folder / f"fit_{jax.device_count()}.npz")
    with pytest.raises(ValueError, match="values of these arguments: data"):
        learn(rows, Watch(every=EVERY, checkpoint=kept))


def learn(rows, watch):
    return fit(
        key(),
        ContrastiveDivergence(quartic, HMC(0.9)),
        jnp.ones(3),
        spread(rows),
        optimizer=ADAM,
        num_rounds=3,
        steps_per_round=2,
        watch=watch,
    )


def anneal_on_mesh(watch):
    with jax.set_mesh(jax.make_mesh((jax.device_count(),), ("rows",))):
        return anneal(watch=dataclasses.replace(watch, every=20))


def cut(job, path):
    """The outcome of a run in two parts, and whether arrays lay as before between."""
    # By the clock of another process it is never time to write.
    kept = Checkpoint(path, every=1e9 * jax.process_index())
    left, written, restored = iter(range(2)), [], []

    def die(_):
        if next(left, None) is None:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        write, restore = checkpoint._to_save, checkpoint.OpenCheckpoint.restore

        def seen_written(driver, digests, states):
            written.append(jax.tree.leaves(states))
            return write(driver, digests, states)

        def seen_restored(*args):
            restored.append(restore(*args))
            return restored[-1]

        patch.setattr(checkpoint, "_to_save", seen_written)
        patch.setattr(checkpoint.OpenCheckpoint, "restore", seen_restored)
        with pytest.raises(KilledError):
            job(Watch(die, every=EVERY, checkpoint=kept))
        before = written[-1]
        again = job(Watch(every=EVERY, checkpoint=kept))
    after = jax.tree.leaves(restored[0])
    # The losses of a fit are on the host.
    pairs = [pair for pair in zip(before, after, strict=True) if on_device(pair[0])]
    return again, [a.sharding.is_equivalent_to(b.sharding, a.ndim) for a, b in pairs]


def on_device(leaf):
    return isinstance(leaf, jax.Array)


def several_states(folder):
    """A checkpoint of two states, which all processes or none can open."""
    rows = spread(mine(np.arange(48.0, dtype=np.float32).reshape(16, 3)))
    for form in (".npz", "") if find_spec("orbax") else (".npz",):
        kept = Checkpoint(folder / f"states_{jax.device_count()}{form}")
        with checkpoint.open_checkpoint(kept, "job", {"rows": rows}) as run:
            assert run.count == 0
            refusal = "is in use by another run|cannot be opened by process 0"
            with (
                pytest.raises(ValueError, match=refusal),
                checkpoint.open_checkpoint(kept, "job", {"rows": rows}),
            ):
                pass
            run.write([key(), {"rows": rows}], last=True)
        with (
            jax.set_mesh(rows.sharding.mesh),
            checkpoint.open_checkpoint(kept, "job", {"rows": rows}) as run,
        ):
            assert run.count == 2
            again = run.restore(1, lambda: {"rows": rows})["rows"]
            assert same_bits(again, rows).all()
            assert again.sharding.is_equivalent_to(rows.sharding, rows.ndim)
            assert run.restore(0, key) == key()


def same_bits(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return np.array([on_host(a).tobytes() == on_host(b).tobytes() for a, b in pairs])


def saved(folder):
    """What is spread over devices is saved whole, and over processes not at all."""
    rows = np.arange(48.0, dtype=np.float32).reshape(16, 3)
    path = folder / f"rows_{jax.device_count()}.npz"
    array = spread(mine(rows))
    if jax.process_count() > 1:
        with pytest.raises(ValueError, match="spread over several processes"):
            storage.save(path, array)
    else:
        storage.save(path, array)
        assert np.array_equal(storage.load(path), rows)


def refusals():
    """What does not divide evenly, where there is anything to divide."""
    if jax.device_count() == 1:
        return
    with pytest.raises(ValueError, match="rows must be a multiple of"):
        spread(np.zeros((ROWS + 1, 3)))
    counts = {"num_particles": 30 * 8 + 1, "num_steps": 2}
    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    where = pytest.raises(ValueError, match="a multiple of the mesh's")
    with jax.set_mesh(mesh), where:
        ais(key(), quartic, jnp.ones(3), Gaussian(3), sampler=HMC(0.3), **counts)


def layout(found, name, array):
    """How much of an array each device of this process holds, of its fair share."""
    shares = [len(shard.data) for shard in array.addressable_shards]
    found[f"layout_{name}"] = np.array(shares) * jax.device_count() / len(array)


def words(found):
    """The collectives in the compiled core of sampling."""
    x = spread(mine(np.zeros((CHAINS, 3), np.float32)))
    with jax.set_mesh(x.sharding.mesh):
        chains = Chains(quartic, key(), jnp.ones(3), REDUCED)
        begun = start_run(chains, Store(5), x)
        core = jax.jit(lambda now: run_steps_static(chains, Store(5), now, 0, 5, 1))
        said = core.lower(begun).compile().as_text()
    names = ("all-gather", "all-reduce", "all-to-all", "collective-permute")
    found["collectives"] = np.array([said.count(name) for name in names])


def main():
    path, *where = sys.argv[1:]
    if where:
        address, count, number = where
        jax.distributed.initialize(address, int(count), int(number))
    jax.config.update("jax_numpy_rank_promotion", "raise")
    warnings.simplefilter("error")
    found, again = {}, {}
    for part in (streams, fits, batches, chains, partition_functions, likelihoods):
        part(found)
    words(found)
    refusals()
    in_blocks(found)
    saved(Path(path).parent)
    with warnings.catch_warnings():
        # Orbax has its own.
        warnings.simplefilter("ignore")
        cut_runs(found, Path(path).parent)
        several_states(Path(path).parent)
    for part in (batches, chains):
        part(again)
    for name, value in again.items():
        assert np.array_equal(value, found[name]), name
    if jax.process_index() == 0:
        np.savez(path, **found)


if __name__ == "__main__":
    main()
