"""How time and memory grow with devices, processes, rows, dimensions and particles.

Measured on virtual devices, which are threads of one CPU: they show what dividing the
work costs, and cannot show what more hardware would win. That is estimated on paper,
from counted operations and bytes: a program takes at least

    max(operations / peak rate, bytes / bandwidth) / devices

and what they send each other.

Reference, for the figures of hardware: NVIDIA A100 80GB SXM and H100 SXM data sheets;
Google Cloud documentation of TPU v5e. Roofline: Williams, Waterman and Patterson,
Commun. ACM 52(4), 65 (2009).
"""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table, peak_memory
from benchmarks.launch import finish, launch
from probjax import MPF, Data, experts, ising
from probjax.fitting.loss import loss_over_rows

SHAPES = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4)]
FEW_SHAPES = [(1, 1), (1, 2), (1, 8), (2, 1)]
NAMES = ("fit", "sample", "ais")


def run(options: Options) -> Iterator[Table]:
    yield strong_and_weak(options)
    yield memory(options)
    yield counted()
    yield on_paper()


def strong_and_weak(options: Options) -> Table:
    size = 4096 if options.quick else 16384
    shapes = FEW_SHAPES if options.quick else SHAPES
    alone, rows = measured((1, 1), size), []
    for shape in shapes:
        devices = shape[0] * shape[1]
        strong = alone if devices == 1 else measured(shape, size)
        weak = alone if devices == 1 else measured(shape, size * devices)
        for name in NAMES:
            base = np.median(alone[name])
            same, more = np.median(strong[name]), np.median(weak[name])
            rows.append((name, *shape, base, same / base, more / base / devices))
    return Table(
        f"One program on more devices, {size:,} rows, chains or particles",
        (
            "driver",
            "processes",
            "devices each",
            "alone, s",
            "same work",
            "per work",
        ),
        rows,
        "Times relative to one device: of the same work (strong scaling), and of as "
        "much work on every device, by how much there is (weak). All devices share "
        f"{os.cpu_count()} cores and a device alone may use more than one, so neither "
        "can fall below about 1 over the cores: 1 means that dividing costs nothing. "
        "Above that is what it costs; what is won on other hardware does not show.",
    )


def measured(shape: tuple[int, int], size: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seconds.json"
        program = ["-m", "benchmarks.scaling_runs", str(path), str(size)]
        finish(launch(*shape, [*program, ",".join(NAMES)]), timeout=1800)
        return json.loads(path.read_text())


FIT = """
import sys, jax, numpy as np, optax
from probjax import MPF, fit, ising
rows, units = map(int, sys.argv[1:])
bits = np.random.default_rng(0).integers(0, 2, (rows, units), np.uint8)
start = ising.init(jax.random.key(0), units, scale=0.01)
fit(jax.random.key(0), MPF(ising.energy), start, bits, optimizer=optax.adam(1e-3),
    steps_per_round=2)
"""
AIS = """
import sys, jax
from probjax import HMC, Gaussian, ais, experts
particles, units = map(int, sys.argv[1:])
model = experts.init(jax.random.key(0), units)
ais(jax.random.key(0), experts.student_t, model, Gaussian(units), sampler=HMC(0.2),
    num_particles=particles, num_steps=3, pilot=None)
"""


def memory(options: Options) -> Table:
    much = 1 if options.quick else 4
    tasks = [
        ("fit", FIT, 1000, 100),
        ("fit", FIT, 200_000 * much, 100),
        ("fit", FIT, 1000, 1000),
        ("ais", AIS, 1000, 36),
        ("ais", AIS, 200_000 * much, 36),
    ]
    rows = []
    for name, program, count, units in tasks:
        peak = peak_memory(program, str(count), str(units))
        rows.append((name, count, units, peak, count * units * 4 / 2**30))
    return Table(
        "Peak memory of a process",
        ("driver", "rows or particles", "units", "GB", "float32 of all rows, GB"),
        rows,
        "The smallest of each is what Python, JAX and the program take.",
    )


def counted() -> Table:
    """The formulas of `on_paper` beside what the compiler counts."""
    rows, units, key = 1024, 128, jax.random.key(0)
    params = ising.init(key, units)

    def loss(params, x):
        return loss_over_rows(MPF(ising.energy), params, Data(x), (), chunk_size=rows)

    x = jnp.zeros((rows, units))
    model = experts.init(key, units)
    force = jax.vmap(jax.value_and_grad(experts.student_t, 1), (None, 0))
    table = []
    for task, function, args in (
        (FLOW, loss, (params, x)),
        (ANNEALING, force, (model, x)),
    ):
        cost = jax.jit(function).lower(*args).compile().cost_analysis() or {}
        formula = task.operations(units) * rows
        table.append((task.name, formula, cost["flops"], cost["flops"] / formula))
    return Table(
        f"Operations, {rows:,} rows or particles of {units} units",
        ("task", "formula", "compiler", "ratio"),
        table,
    )


class Task(NamedTuple):
    """What one row or particle costs, of so many units."""

    name: str
    rows: float
    units: int
    steps: float
    products: int
    """Products of a matrix of units by units with it, in one step."""
    passes: int
    """How often all of its numbers are read or written in one step."""
    sends: float
    """Bytes that all devices add up in one step."""

    def operations(self, units: int) -> float:
        return 2.0 * self.products * units**2

    def traffic(self, units: int) -> float:
        return 4.0 * self.passes * units


FLOW = Task("MPF, gradient of 1e7 rows", 1e7, 1000, 1, 2, 6, 4e6)
ANNEALING = Task("HAIS, 1e5 particles, 1e4 steps", 1e5, 1024, 1e4, 2, 12, 4)


class Hardware(NamedTuple):
    """Public figures of one device, and of as many as are linked."""

    name: str
    rate: float
    """Operations a second, float32."""
    bandwidth: float
    """Bytes a second of its memory."""
    link: float
    """Bytes a second to other devices."""
    linked: int


HARDWARE = [
    Hardware("A100 80GB", 19.5e12, 2.04e12, 600e9, 8),
    Hardware("H100 SXM", 67e12, 3.35e12, 900e9, 8),
    # Six passes of 197e12 in bfloat16 make a product of float32.
    Hardware("TPU v5e", 197e12 / 6, 0.819e12, 200e9, 256),
]
LATENCY = 1e-5


def on_paper() -> Table:
    rows = []
    for task in (FLOW, ANNEALING):
        for chip in HARDWARE:
            work = task.rows * task.steps
            computing = work * task.operations(task.units) / chip.rate
            moving = work * task.traffic(task.units) / chip.bandwidth
            one = max(computing, moving)
            sending = task.steps * (LATENCY + 2 * task.sends / chip.link)
            bound = "operations" if computing > moving else "bytes"
            many = one / chip.linked + sending
            share = one / chip.linked / many
            rows.append((task.name, chip.name, one, bound, chip.linked, many, share))
    return Table(
        "The least that accelerators could take, estimated and not measured",
        ("task", "device", "one, s", "bound by", "devices", "all, s", "efficiency"),
        rows,
        "1000 units (1024 for HAIS). Rates in float32 without tensor cores, TPU by six "
        f"passes of bfloat16; {LATENCY:.0e} s for each sum over devices. Random "
        "numbers, and kernels that do not overlap, come on top: expect a few times "
        "more.",
    )
