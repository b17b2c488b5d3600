"""What `scaling` times, in a process of its own: drivers on the devices it is given.

    python -m benchmarks.scaling_runs FILE SIZE DRIVER,... [ADDRESS COUNT NUMBER]

SIZE rows, chains or particles in all. FILE gets seconds of calls after the first.
"""

import json
import sys
import time
from pathlib import Path

import jax
import numpy as np
import optax

from probjax import HMC, MPF, Gaussian, HeatBath, ais, experts, fit, ising, sample
from probjax.devices import spread

UNITS, STEPS, REPEATS = 100, 20, 3
ADAM = optax.adam(1e-3)


def data_parallel_fit(key, size):
    """Steps of MPF on an Ising model, all rows in each."""
    bits = np.asarray(jax.random.bernoulli(key, 0.4, (mine(size), UNITS)), np.float32)
    data, start = spread(bits), ising.init(key, UNITS, scale=0.01)
    options = {"optimizer": ADAM, "steps_per_round": STEPS}
    return lambda: fit(key, MPF(ising.energy), start, data, **options).params


def chain_parallel_sample(key, size):
    """Sweeps of a heat bath over an Ising model."""
    params = ising.init(key, UNITS, scale=0.01)
    x = spread(np.zeros((mine(size), UNITS), np.float32))
    options = {"sampler": HeatBath(), "num_draws": 2}
    return lambda: sample(key, ising.energy, params, x, **options).state.x


def particle_parallel_ais(key, size):
    """HAIS on a product of experts."""
    model, base = experts.init(key, 36), Gaussian(36)
    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    options = {"num_particles": size, "num_steps": STEPS, "pilot": None}

    def run():
        with jax.set_mesh(mesh):
            args = (key, experts.student_t, model, base)
            return ais(*args, sampler=HMC(0.2), **options).log_weights

    return run


DRIVERS = {
    "fit": data_parallel_fit,
    "sample": chain_parallel_sample,
    "ais": particle_parallel_ais,
}


def mine(size):
    return size // jax.process_count()


def seconds(call):
    jax.block_until_ready(call())
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begun)
    return times


def main():
    path, size, names, *where = sys.argv[1:]
    if where:
        address, count, number = where
        jax.distributed.initialize(address, int(count), int(number))
    key = jax.random.key(0)
    found = {name: seconds(DRIVERS[name](key, int(size))) for name in names.split(",")}
    if jax.process_index() == 0:
        Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
