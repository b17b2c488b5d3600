"""A program that starts a long run again and again, and kills it every time.

    python killed_runs.py JOB FOLDER KILLS

Runs are forked from a process that has imported JAX and not used it, and share their
compiled programs in a folder. Each is killed at a random moment after a random number
of pieces, some before the first. At last one goes on to the end, and one runs from the
beginning, by itself: FOLDER/killed and FOLDER/whole are what they return. Printed are
how many were killed, and in how many pieces each of the last two ran.
"""

import os
import random
import select
import signal
import sys
import time
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from probjax import (
    HMC,
    MPF,
    Checkpoint,
    Gaussian,
    PersistentMPF,
    Watch,
    ais,
    fit,
    ising,
    storage,
)


def quartic(params, x):
    return jnp.sum(params * x**4) / 4 + x[0] * x[1] / 2


def anneal(callback, checkpoint):
    return ais(
        jax.random.key(0),
        quartic,
        jnp.array([1.0, 0.5, 2.0]),
        Gaussian(3),
        sampler=HMC(0.4),
        num_particles=100,
        num_steps=4000,
        pilot=None,
        resample_below=0.5,
        watch=Watch(callback, every=5, checkpoint=checkpoint),
    )


def learn(callback, checkpoint):
    rows = jax.random.normal(jax.random.key(1), (200, 3))
    return fit(
        jax.random.key(2),
        PersistentMPF(quartic, sampler=HMC(0.4), num_particles=100, num_moves=2),
        jnp.array([1.0, 0.5, 2.0]),
        rows,
        num_rounds=300,
        steps_per_round=3,
        watch=Watch(callback, every=1, checkpoint=checkpoint),
    )


def descend(callback, checkpoint):
    """A short run that compiles little."""
    return fit(
        jax.random.key(2),
        MPF(ising.energy),
        ising.Params(jnp.zeros(4), jnp.zeros(6)),
        np.random.default_rng(0).integers(0, 2, (64, 4)),
        optimizer=optax.adam(0.01),
        batch_size=16,
        steps_per_round=400,
        watch=Watch(callback, every=4, checkpoint=checkpoint),
    )


JOBS = {"ais": anneal, "fit": learn, "short fit": descend}


def begin(job, checkpoint, outcome):
    """The process of a run, and where to read a byte for each of its pieces."""
    told, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        return child, told

    def callback(_):
        os.write(tell, b".")

    status = 1
    try:
        found = JOBS[job](callback, Checkpoint(checkpoint, every=0.0))
        storage.save(outcome, found)
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        # Without going on in the parent's place, nor doing what Python does at its end.
        os._exit(status)


def run(job, folder, kills):
    generator = random.Random(0)
    checkpoint, died = folder / f"{job}.npz", 0
    # The first of twenty dies before its first piece, the only one after some.
    for number in range(kills, 0, -1):
        child, told = begin(job, checkpoint, folder / "killed")
        pieces = generator.randrange(1, 15) if number % 4 else 0
        for _ in range(pieces):
            os.read(told, 1)
        moment = generator.random()
        if pieces:
            time.sleep(0.02 * moment)
        else:
            # However fast the machine, no later than its first piece.
            select.select([told], [], [], 2 * moment)
        os.kill(child, signal.SIGKILL)
        died += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        os.close(told)
    print(died)
    for file, outcome in ((checkpoint, "killed"), (folder / "other.npz", "whole")):
        child, told = begin(job, file, folder / outcome)
        pieces = 0
        while read := os.read(told, 2**10):
            pieces += len(read)
        print(pieces)
        assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", str(Path(sys.argv[2]) / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
