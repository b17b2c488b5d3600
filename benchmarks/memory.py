"""Memory of large fits: the most that a process of its own held.

A Potts model of 200 sites x 21 letters has 8.8 million parameters, 33 MB in float32. In
fits unit by unit, the parameters of all units are two numbers for each pair.
"""

import time
from collections.abc import Iterator

import jax
import numpy as np

from benchmarks.harness import Options, Table, peak_memory
from probjax import L2, PseudoLikelihood, fit, ising, potts
from probjax.fitting import fit_nodes
from probjax.objectives import NodeLikelihood

PROGRAM = """
import sys
from benchmarks import memory
getattr(memory, sys.argv[1])(*map(int, sys.argv[2:]))
"""
STEPS = 10


def run(options: Options) -> Iterator[Table]:
    sizes = [(60, 21, 1000)] if options.quick else [(60, 21, 1000), (200, 21, 1000)]
    counts = [(100, 2000)] if options.quick else [(400, 2000), (1000, 2000)]
    yield Table(
        f"{STEPS} steps of a Potts fit by pseudolikelihood with L2",
        ("sites", "letters", "rows", "parameters MB", "seconds", "peak GB"),
        [
            (*size, potts_megabytes(*size), *measured("fit_potts", *size))
            for size in sizes
        ],
        "Target: 200 sites x 21 letters in less than 1.5 GB. A process that imports "
        f"probjax and does nothing holds {peak_memory('import probjax'):.2f} GB. "
        "Seconds include compiling and the start of the process.",
    )
    yield Table(
        "`fit_nodes` by NodeLikelihood with L2, until it converges",
        ("units", "rows", "seconds", "peak GB"),
        [(*count, *measured("fit_units", *count)) for count in counts],
        "Target: 400 units in less than 2 GB.",
    )


def measured(name: str, *sizes: int) -> tuple[float, float]:
    """Seconds of a process, and the most gigabytes that it held."""
    begun = time.perf_counter()
    peak = peak_memory(PROGRAM, name, *map(str, sizes))
    return time.perf_counter() - begun, peak


def potts_megabytes(sites: int, letters: int, rows: int) -> float:
    pairs = sites * (sites - 1) // 2
    return 4 * (sites * letters + pairs * letters**2) / 2**20


def fit_potts(sites: int, letters: int, rows: int) -> None:
    pairs = sites * (sites - 1) // 2
    x = np.random.default_rng(0).integers(0, letters, (rows, sites))
    start = potts.Params(
        jax.numpy.zeros((sites, letters)), jax.numpy.zeros((pairs, letters, letters))
    )
    objective = PseudoLikelihood(potts.energy, num_states=letters)
    penalty = L2(0.01, weights=potts.couplings_only(start))
    key, x = jax.random.key(0), x.astype(np.float32)
    found = fit(key, objective, start, x, penalty=penalty, steps_per_round=STEPS)
    jax.block_until_ready(found.params)


def fit_units(units: int, rows: int) -> None:
    x = np.random.default_rng(0).binomial(1, 0.3, (rows, units)).astype(np.float32)
    start = ising.init(jax.random.key(0), units, scale=0.0)
    penalty = L2(0.01, weights=ising.couplings_only(start))
    key = jax.random.key(1)
    found = fit_nodes(key, NodeLikelihood, ising.energy, start, x, penalty=penalty)
    assert found.converged.all()
    jax.block_until_ready(ising.symmetrised(found.params))
