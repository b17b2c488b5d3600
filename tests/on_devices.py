"""One program for any number of devices and processes; `test_devices` compares runs.

    python on_devices.py FILE [ADDRESS NUM_PROCESSES PROCESS_ID]

Results go to FILE, as arrays by name.
"""

import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from small_models import random_ising

from probjax import (
    HMC,
    MPF,
    ContrastiveDivergence,
    Data,
    Gaussian,
    HeatBath,
    RandomFlips,
    ais,
    annealing,
    fit,
    ising,
    linear,
    marginal_log_likelihood,
    resume,
    resume_ais,
    sample,
    sample_mean,
    sandwich,
    uncertainty,
    unique_rows,
)
from probjax.devices import on_host, spread
from probjax.samplers import run as run_module
from probjax.samplers.hmc import reduced_flip

KEY = jax.random.key(7)
ADAM = optax.adam(0.05)
REDUCED = HMC(0.9, num_steps=3, flip=reduced_flip)
SIZE, ROWS, CHAINS = 6, 1000, 48


def quartic(params, x):
    return params @ x**2 / 2 + jnp.sum(x**4) / 4 - x[0] * x[1]


def mine(rows):
    """This process's part of rows that do not divide evenly among devices."""
    ends = np.linspace(0, len(rows), jax.process_count() + 1).astype(int)
    part = slice(*ends[jax.process_index() :][:2])
    return jax.tree.map(lambda leaf: leaf[part], rows)


def fits(found):
    bits = np.array(jax.random.bernoulli(KEY, 0.4, (ROWS - 4, SIZE)))
    bits[:200, 1] |= bits[:200, 0]
    data = spread(Data(mine(bits)))
    start = random_ising(0, SIZE)
    objective = MPF(ising.energy)
    whole = fit(KEY, objective, start, data, chart=ising.centred(data), chunk_size=50)
    found["fit"] = np.append(ising.coupling_matrix(whole.params), whole.loss)
    found["fit_error_bars"] = uncertainty(objective, whole, data).covariance
    found["fit_unique"] = unique_rows(data).weights
    batches = fit(
        KEY,
        MPF(ising.energy, connectivity=RandomFlips(2)),
        start,
        Data(data.x),
        optimizer=ADAM,
        batch_size=200,
        num_rounds=3,
        steps_per_round=4,
    )
    found["fit_batches"] = np.append(batches.losses, batches.params.coupling)
    moved = fit(
        KEY,
        ContrastiveDivergence(quartic, REDUCED),
        jnp.ones(3),
        spread(mine(np.ones((ROWS, 3), np.float32))),
        optimizer=ADAM,
        steps_per_round=2,
    )
    found["fit_divergence"] = moved.params
    layout(found, "fit_divergence", moved.context.rows)


def chains(found):
    glass = random_ising(1, SIZE)
    bits = spread(mine(np.zeros((CHAINS, SIZE))))
    draws = sample(KEY, ising.energy, glass, bits, sampler=HeatBath(), num_draws=2)
    found["first_bits"] = gathered(draws.x)
    more = resume(KEY, ising.energy, glass, draws, sampler=HeatBath(), num_draws=30)
    found["bits"] = gathered(more.x)
    layout(found, "bits", more.x)
    starts = spread(mine(np.asarray(jax.random.normal(KEY, (CHAINS, 3)))))
    params = jnp.array([1.0, 2.0, 0.5])
    args = (KEY, quartic, params, starts)
    draws = sample(*args, sampler=REDUCED, num_draws=1)
    found["first_reals"] = gathered(draws.x)
    found["first_momenta"] = gathered(draws.state.phase.v)
    layout(found, "reals", draws.state.x)
    means = sample_mean(
        *args, statistic=jnp.square, sampler=REDUCED, num_draws=300, num_warmup=50
    )
    found["long_means"] = np.stack([means.mean, means.stderr])
    layout(found, "means", means.running.mean)


def partition_functions(found):
    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    target = (jax.random.key(1), quartic, jnp.array([1.0, 2.0, 0.5]), Gaussian(3))
    plain = {"num_particles": 4 * CHAINS, "sampler": HMC(0.3), "pilot": None}
    with jax.set_mesh(mesh):
        short = ais(*target, num_steps=3, **plain)
        found["log_weights"] = gathered(short.log_weights)
        layout(found, "particles", short.x)
        ended = ais(*target, num_steps=5, callback=lambda _: True, callback_every=2, **plain)
        again = resume_ais(*target, ended, sampler=HMC(0.3))
        found["resumed"] = gathered(again.log_weights)
        drawn = spread(mine(np.asarray(jax.random.normal(KEY, (4 * CHAINS, 3)))))
        both = sandwich(*target, drawn, sampler=REDUCED, num_steps=300)
        found["long_log_z"] = np.stack([both.forward.log_z, both.forward.stderr])
        resampled = ais(*target, num_steps=100, resample_below=0.9, **plain)
        found["long_resampled"] = np.stack([resampled.log_z, resampled.stderr])


def likelihoods(found):
    model = linear.init(KEY, 3, 2, noise=0.5)
    rows, _ = linear.sample_gaussian(KEY, model, num_draws=CHAINS)
    data = spread(mine(np.asarray(rows)))
    args = (KEY, linear.gaussian, model, Gaussian(2), data)
    plain = {"sampler": HMC(0.3), "num_particles": 8, "pilot": None}
    short = marginal_log_likelihood(*args, num_steps=3, chunk_size=2, **plain)
    found["rows_log_p"] = gathered(short.per_row)
    long = marginal_log_likelihood(*args, num_steps=100, **plain)
    found["long_log_p"] = np.stack([long.value, long.stderr])
    assert "nats per row" in long.describe()


def gathered(array):
    return on_host(array)


def layout(found, name, array):
    """Which part of an array's leading axis each device of this process holds."""
    first = jax.tree.leaves(array)[0]
    found[f"layout_{name}"] = np.array(
        [len(shard.data) * jax.device_count() / len(first) for shard in first.addressable_shards]
    )


def main():
    path, *where = sys.argv[1:]
    if where:
        address, count, number = where
        jax.distributed.initialize(address, int(count), int(number))
    jax.config.update("jax_numpy_rank_promotion", "raise")
    warnings.simplefilter("error")
    found = {"streams": np.asarray(jax.random.key_data(jax.random.split(KEY, 16)))}
    for part in (fits, chains, partition_functions, likelihoods):
        part(found)
    if jax.process_index() == 0:
        np.savez(path, **found)


if __name__ == "__main__":
    main()
