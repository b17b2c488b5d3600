"""Data that do not fit, and particles by the hundred thousand, in bounded memory.

Rows of 200 bits are 20 groups of 10 units, so that they can be drawn independently and
exactly. They lie on disk, packed, and are fitted in passes over blocks; as floats in
memory they would take 1.6 GB. Memory is the most that a process of its own held.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table, peak_memory
from probjax import MPF, fit, ising
from probjax.data import blocks

UNITS, GROUP = 200, 10
FIT = """
import sys
from pathlib import Path
from benchmarks.large_data import fit_file
fit_file(Path(sys.argv[1]))
"""
ANNEAL = """
import sys
from pathlib import Path
from benchmarks.large_data import anneal
anneal(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
"""


def run(options: Options) -> Iterator[Table]:
    yield agreement()
    counts = (200_000,) if options.quick else (200_000, 2_000_000)
    with tempfile.TemporaryDirectory() as folder:
        yield Table(
            f"MPF of {UNITS} units from a file of packed bits, by passes over blocks",
            (
                "rows",
                "file MB",
                "steps",
                "gradient norm",
                "seconds",
                "peak GB",
                "rms error of J",
            ),
            [fitted(Path(folder), count) for count in counts],
            "Target: 2,000,000 rows in less than 4 GB. Seconds are those of the fit, "
            "compiling included.",
        )
        size = (10_000, 200) if options.quick else (100_000, 1000)
        yield Table(
            "Hamiltonian AIS of a Gaussian in 100 dimensions",
            ("particles", "steps", "seconds", "peak GB", "log Z", "stderr", "truth"),
            [annealed(Path(folder), *size)],
            "All particles run together, without a pilot. Seconds with compiling.",
        )


def agreement() -> Table:
    rows = draw_rows(np.random.default_rng(1), truth(), 20_000)
    start = ising.from_matrix(np.zeros((UNITS, UNITS)))
    key, objective = jax.random.key(0), MPF(ising.energy)
    source = blocks.from_array(
        np.packbits(rows, axis=1), rows_per_block=3000, decode=blocks.PackedBits(UNITS)
    )
    whole = fit(key, objective, start, rows, chart=ising.centred(rows))
    chart = ising.centred_at(*blocks.moments(source))
    parts = fit(key, objective, start, source, chart=chart)
    apart = np.abs(whole.params.coupling - parts.params.coupling).max()
    return Table(
        "The same 20,000 rows in memory and in 7 blocks",
        ("steps in memory", "steps in blocks", "largest difference of couplings"),
        [(len(whole.losses), len(parts.losses), apart)],
    )


def truth() -> np.ndarray:
    """J of all groups, coupled within at random."""
    generator = np.random.default_rng(0)
    matrix = np.zeros((UNITS, UNITS))
    for first in range(0, UNITS, GROUP):
        part = generator.normal(scale=0.3, size=(GROUP, GROUP))
        here = slice(first, first + GROUP)
        matrix[here, here] = (part + part.T) / 2
    return matrix


def draw_rows(generator, matrix: np.ndarray, count: int) -> np.ndarray:
    states = np.arange(2**GROUP)[:, None] >> np.arange(GROUP) & 1
    parts = []
    for first in range(0, UNITS, GROUP):
        part = matrix[first : first + GROUP, first : first + GROUP]
        weights = np.exp(-np.sum(states @ part * states, axis=1))
        ends = np.cumsum(weights / weights.sum())
        numbers = np.searchsorted(ends, generator.random(count))
        parts.append(states[np.minimum(numbers, len(states) - 1)].astype(np.uint8))
    return np.concatenate(parts, axis=1)


def write_file(path: Path, count: int) -> None:
    shape = (count, -(-UNITS // 8))
    file = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    generator, matrix = np.random.default_rng(1), truth()
    for first in range(0, count, 50_000):
        rows = draw_rows(generator, matrix, min(50_000, count - first))
        file[first : first + len(rows)] = np.packbits(rows, axis=1)
    file.flush()


def fitted(folder: Path, count: int) -> tuple:
    path = folder / f"{count}.npy"
    write_file(path, count)
    peak = peak_memory(FIT, str(path))
    told = json.loads(path.with_suffix(".json").read_text())
    errors = np.load(path.with_suffix(".J.npy")) - truth()
    pairs = np.triu_indices(UNITS, 1)
    return (
        count,
        path.stat().st_size / 1e6,
        told["steps"],
        told["gradient_norm"],
        told["seconds"],
        peak,
        np.sqrt(np.mean(errors[pairs] ** 2)),
    )


def fit_file(path: Path) -> None:
    begun = time.perf_counter()
    source = blocks.from_file(path, decode=blocks.PackedBits(UNITS))
    chart = ising.centred_at(*blocks.moments(source))
    start = ising.from_matrix(np.zeros((UNITS, UNITS)))
    found = fit(jax.random.key(0), MPF(ising.energy), start, source, chart=chart)
    told = {
        "steps": len(found.losses),
        "gradient_norm": float(found.gradient_norm),
        "seconds": time.perf_counter() - begun,
    }
    np.save(path.with_suffix(".J.npy"), ising.coupling_matrix(found.params))
    path.with_suffix(".json").write_text(json.dumps(told))


def quadratic(params, x):
    return jnp.sum(params * x**2) / 2


def annealed(folder: Path, num_particles: int, num_steps: int) -> tuple:
    path = folder / "annealed.json"
    peak = peak_memory(ANNEAL, str(path), str(num_particles), str(num_steps))
    told = json.loads(path.read_text())
    figures = (told[name] for name in ("log_z", "stderr", "truth"))
    return num_particles, num_steps, told["seconds"], peak, *figures


def anneal(path: Path, num_particles: int, num_steps: int) -> None:
    from probjax import HMC, Gaussian, ais

    size = 100
    params = jnp.logspace(-0.6, 0.6, size)
    begun = time.perf_counter()
    found = ais(
        jax.random.key(1),
        quadratic,
        params,
        Gaussian(size),
        sampler=HMC(0.2),
        num_particles=num_particles,
        num_steps=num_steps,
        pilot=None,
    )
    log_z, stderr = float(found.log_z), float(found.stderr)
    exact = size / 2 * np.log(2 * np.pi) - float(jnp.log(params).sum()) / 2
    told = {
        "log_z": log_z,
        "stderr": stderr,
        "truth": exact,
        "seconds": time.perf_counter() - begun,
    }
    path.write_text(json.dumps(told))
