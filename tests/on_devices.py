"""One program for any number of devices and processes; `test_devices` compares runs.

    python on_devices.py FILE [ADDRESS NUM_PROCESSES PROCESS_ID]

Results go to FILE, as arrays by name.
"""

import sys
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import random_ising

from probjax import (
    HMC,
    MPF,
    ContrastiveDivergence,
    Data,
    Gaussian,
    HeatBath,
    ais,
    fit,
    ising,
    linear,
    marginal_log_likelihood,
    random,
    resume,
    reverse_ais,
    sample,
    sample_mean,
    uncertainty,
    unique_rows,
)
from probjax.devices import each, on_host, spread
from probjax.samplers import run
from probjax.samplers.hmc import reduced_flip


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
    draw = jax.jit(each(lambda words: numbers(jax.random.wrap_key_data(words))))
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


def chains(found):
    glass = random_ising(1, SIZE)
    bits = spread(mine(np.zeros((CHAINS, SIZE))))
    heat = {"sampler": HeatBath(), "num_draws": 10}
    draws = sample(key(), ising.energy, glass, bits, **heat)
    more = resume(key(), ising.energy, glass, draws, **heat)
    found["first_bits"] = on_host(draws.x)[:, 0]
    found["long_bits"] = z_parts(on_host(more.x))
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


def partition_functions(found):
    target = (jax.random.key(1), quartic, jnp.array([1.0, 2.0, 0.5]), Gaussian(3))
    anneal = partial(
        ais,
        *target,
        sampler=HMC(0.3),
        num_particles=CHAINS,
        num_steps=60,
        pilot=None,
        resample_below=0.9,
        callback_every=2,
    )
    with jax.set_mesh(jax.make_mesh((jax.device_count(),), ("rows",))):
        short = anneal(callback=lambda _: True)
        found["first_weights"] = on_host(short.log_weights)
        layout(found, "particles", short.x)
        annealed = anneal(callback=lambda _: None)
        assert annealed.particles.num_resampled > 0
        found["long_log_z"] = np.stack([annealed.log_z, annealed.stderr])
        drawn = spread(mine(np.asarray(jax.random.normal(key(), (CHAINS, 3)))))
    back = reverse_ais(*target, drawn, sampler=HMC(0.3), num_steps=60)
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


def refusals():
    """What does not divide evenly, where there is anything to divide."""
    if jax.device_count() == 1:
        return
    with pytest.raises(ValueError, match="rows must divide evenly among"):
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
        model = (key(), quartic, jnp.ones(3))
        states, step = run._begin(*model, x, REDUCED, 0)
        core = jax.jit(partial(run._go_on, *model, REDUCED, 1, 5))
        said = core.lower(states, step).compile().as_text()
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
    for part in (batches, chains):
        part(again)
    for name, value in again.items():
        assert np.array_equal(value, found[name]), name
    if jax.process_index() == 0:
        np.savez(path, **found)


if __name__ == "__main__":
    main()
