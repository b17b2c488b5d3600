"""How long a user waits for a first call, and how many programs it compiles.

Every driver is called in a process of its own, twice, and once more with other numbers
of steps, which are to compile nothing. The shell is called twice, at first without any
programs kept. Nothing else should run on the machine: beside other work compiling may
take ten times as long.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table, count_compilations, timed
from probjax import (
    HMC,
    MPF,
    Bernoulli,
    Gaussian,
    HeatBath,
    ais,
    fit,
    ising,
    sample,
    sample_mean,
    sandwich,
)

SIZE, NUM_COLUMNS = 50, 31
TARGETS = {"fit": 2.0, "sample": 1.2, "ais": 3.5, "ais, HMC": 3.5, "sandwich": 4.5}
ROOT = Path(__file__).parents[1]


def run(options: Options) -> Iterator[Table]:
    yield drivers(1 if options.quick else 5)
    yield shell(1 if options.quick else 3)
    yield example()


def drivers(repeats: int) -> Table:
    rows = []
    for name in CALLS:
        found = [_in_process("benchmarks.first_calls", name) for _ in range(repeats)]
        first, compiled, again, other = np.median(found, axis=0)
        target = TARGETS.get(name, "")
        rows.append((name, first, target, int(compiled), again, int(other)))
    return Table(
        f"Calls of drivers, {SIZE} units or 36 dimensions",
        ("driver", "first, s", "target", "programs", "second, s", "programs of others"),
        rows,
        f"Medians of {repeats} processes; importing is not counted. Others are a call "
        "with other numbers of steps, rounds or draws.",
    )


def _in_process(*command: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def laplace(scale: float, x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.abs(x) / scale)


def calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Calls by name, with other options for a third call."""
    key = jax.random.key(0)
    rows = (np.random.default_rng(0).random((2000, SIZE)) < 0.3).astype(np.float32)
    params = ising.from_matrix(np.diag(np.full(SIZE, 0.8)))
    few, base = rows[:100], Bernoulli(SIZE)
    energy = ising.energy
    sweep = HeatBath()
    steps: dict[str, Any] = {"num_steps": 100}
    draws: dict[str, Any] = {"num_draws": 100}

    def fitted(**others):
        return fit(key, MPF(ising.energy), params, rows, **others)

    def sampled(**others):
        return sample(key, energy, params, few, sampler=sweep, **(draws | others))

    def averaged(**others):
        options: Any = {"statistic": jnp.sum} | draws | others
        return sample_mean(key, energy, params, few, sampler=sweep, **options)

    def annealed(**others):
        return ais(
            key,
            energy,
            params,
            base,
            sampler=sweep,
            num_particles=100,
            **(steps | others),
        )

    def hamiltonian(**others):
        args: Any = (key, laplace, 2.0, Gaussian(36))
        options = steps | others
        return ais(*args, sampler=HMC(0.2), num_particles=200, **options)

    def bracketed(**others):
        return sandwich(
            key, energy, params, base, few, sampler=sweep, **(steps | others)
        )

    return {
        "fit": (fitted, {"num_rounds": 2, "steps_per_round": 100}),
        "sample": (sampled, {"num_warmup": 10, "thin": 2}),
        "sample_mean": (averaged, {"num_warmup": 10, "thin": 2}),
        "ais": (annealed, {"num_steps": 200}),
        "ais, HMC": (hamiltonian, {"num_steps": 200}),
        "sandwich": (bracketed, {"num_steps": 200}),
    }


CALLS = ("fit", "sample", "sample_mean", "ais", "ais, HMC", "sandwich")


def measure(name: str) -> list[float]:
    """Return seconds and programs of a first call, seconds of a second, and programs
    of a third with other options.
    """
    call, others = calls()[name]
    seconds, programs = [], []
    for options in ({}, {}, others):
        with count_compilations() as compiled:
            seconds.append(timed(partial(call, **options))[1])
        programs.append(len(compiled))
    return [seconds[0], programs[0], seconds[1], programs[2]]


def shell(repeats: int) -> Table:
    commands = {
        "fit": ["fit", "rows.csv"],
        "evaluate": ["evaluate", "model.npz", "rows.csv"],
        "sample": ["sample", "model.npz"],
    }
    found = {name: [] for name in commands}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            rows = np.random.default_rng(0).random((2000, NUM_COLUMNS)) < 0.3
            np.savetxt(f"{folder}/rows.csv", rows, "%d", ",")
            for name, command in commands.items():
                found[name].append([_called(folder, command) for _ in range(2)])
    rows = [(name, *np.median(times, axis=0)) for name, times in found.items()]
    return Table(
        f"`probjax` from the shell, {NUM_COLUMNS} columns",
        ("command", "first, s", "second, s"),
        rows,
        "Wall seconds of the whole command, Python and imports included.",
    )


def _called(folder: str, command: list[str]) -> float:
    environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"}
    environment["PYTHONPATH"] = str(ROOT)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "probjax.apps.cli", *command],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - start


def example() -> Table:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", "\n".join(blocks)],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
        )
        seconds = time.perf_counter() - start
    return Table(
        "The example of the README",
        ("", "seconds"),
        [("in all", seconds)],
        "Target 11, with Python and imports.",
    )


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
