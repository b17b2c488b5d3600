"""What the compilers of TPUs and GPUs make of the main programs, without a device.

    make accelerators       installs the compilers, and measures

The real compilers run on any machine; nothing is executed, so no time here was measured
on a device. For each program: the size of its code, the memory of one chip, collective
operations, and the time that one pass of its innermost loops takes at least (the
roofline: the larger of operations / peak and bytes / bandwidth). The compilers count
the body of a loop once, whatever the number of passes.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.accelerator_programs import LARGE, Large
from benchmarks.harness import Options, Table

ROOT = Path(__file__).parents[1]
MOST_CODE, MEMORY_SHARE = 16.0, 0.8
CODE = f"at most {MOST_CODE:g} MB of code"
LIMIT = 600


class Card(NamedTuple):
    """Published facts of one chip."""

    environment: str
    """Folder of the environment with its compiler."""
    memory: float
    """Gigabytes."""
    bandwidth: float
    """Bytes a second."""
    peak: float
    """Operations a second, in the units that multiply matrices."""
    passes: float
    """Number of these operations for one in full float32 precision."""


# v5e, v6e: cloud.google.com/tpu/docs; H100 SXM: NVIDIA's data sheet, float32 units.
V5E = Card(".venv-tpu", 16.0, 819e9, 197e12, 6.0)
CARDS = {
    "v5e": V5E,
    "v5e-4": V5E,
    "v5e-16": V5E,
    "v6e": Card(".venv-tpu", 32.0, 1640e9, 918e12, 6.0),
    "h100": Card(".venv-cuda", 80.0, 3350e9, 67e12, 1.0),
}
ONE_CHIP = (
    "mpf-ising",
    "by-hand",
    "pl-ising",
    "mpf-rbm",
    "mpf-rbm-200",
    "grad-rbm-200",
    "pcd-rbm",
    "potts",
    "hais-200",
    "hais-100k",
    "hmc",
    "hmc-blackjax",
    "heat-bath",
    "heat-bath-1000",
    "colours",
    "sandwich-rbm",
    "natural",
    "convolutional",
)
LARGE_COLUMNS = (
    "problem on one chip",
    "million parameters",
    "memory GB",
    "of the chip",
    "seconds a pass",
    "verdict",
)
LARGE_NOTE = (
    "Every chip holds all parameters and its part of the rows, so that a host of 8 "
    "chips and a pod of 256 hold the same models with 8 and 256 times the rows. A pass "
    "takes the same time but for one sum of the gradient. Seconds a pass: products in "
    "full precision at the peak rate, the least that is possible."
)
MANY = ("mpf-ising", "hais-100k", "heat-bath")
QUICK = ("hais-200",)
COLUMNS = (
    "chip",
    "program",
    "compile s",
    "code MB",
    "memory GB",
    "instructions",
    "kernels",
    "collectives",
    "bfloat16",
    "GFLOP",
    "GB",
    "us a pass",
    "bound by",
    "verdict",
)
NOTE = (
    "Compile s: lowering not included. Memory: inputs, outputs and temporary arrays of "
    "one chip. Kernels: number of kernels in one pass of the innermost loops; on a GPU "
    "the launch of each takes microseconds, however small its arrays. bfloat16: number "
    "of arrays of that type in the program; there should be none, because products "
    "have full float32 precision. GFLOP, GB, us a pass: operations, traffic and "
    "roofline of the program with every loop passed once, so that a loop over chunks "
    "of rows counts one chunk; fits and losses have chunks of the default size (at "
    "least 4,096 rows), and the program by hand has all rows at once. Targets: at most "
    f"{MOST_CODE:g} MB of code, and {MEMORY_SHARE:.0%} of the memory of the chip."
)


def run(options: Options) -> Iterator[Table]:
    for chip in ("v5e",) if options.quick else CARDS:
        names = MANY if chip != "v5e" else QUICK if options.quick else ONE_CHIP
        rows = [row_of(chip, name) for name in names]
        yield Table(f"Programs compiled for {chip}", COLUMNS, rows, NOTE)
    if not options.quick:
        rows = [largest_of(name, large) for name, large in LARGE.items()]
        yield Table("Large problems on TPUs v5e", LARGE_COLUMNS, rows, LARGE_NOTE)


def largest_of(name: str, large: Large) -> tuple:
    """Return a row: what a problem needs on a chip, and how long a pass takes."""
    job, millions = large.program.job, large.num_parameters / 1e6
    found = compiled("v5e", name)
    if isinstance(found, str):
        return (job, millions, *("",) * 3, f"NOT compiled: {found}")
    memory, share = memory_of(found), memory_of(found) / V5E.memory
    seconds = large.operations * V5E.passes / V5E.peak
    fits = judged(share <= MEMORY_SHARE, "fits")
    return job, millions, memory, f"{share:.0%}", seconds, fits


def memory_of(found: dict[str, Any]) -> float:
    """Return the gigabytes of one chip: inputs, outputs and temporary arrays."""
    return sum(found[part] for part in ("temporary", "arguments", "outputs")) / 1e9


def row_of(chip: str, name: str) -> tuple:
    found = compiled(chip, name)
    if isinstance(found, str):
        return (chip, name, *("",) * (len(COLUMNS) - 3), f"NOT compiled: {found}")
    card = CARDS[chip]
    # The compiler of GPUs does not report the size of code.
    code = found["code"] / 2**20 or None
    memory = memory_of(found)
    collectives = ", ".join(f"{n} {k}" for k, n in found["collectives"].items())
    verdicts = [
        *([] if code is None else [judged(code <= MOST_CODE, CODE)]),
        judged(memory <= MEMORY_SHARE * card.memory, "fits"),
        judged(not found["bfloat16"], "float32"),
    ]
    return (
        chip,
        name,
        found["compiling"],
        "" if code is None else code,
        memory,
        found["instructions"],
        found["kernels"],
        collectives or "none",
        found["bfloat16"],
        (found["flops"] or 0) / 1e9 or "",
        (found["bytes"] or 0) / 1e9 or "",
        *roofline(card, found),
        ", ".join(verdicts),
    )


def judged(holds: bool, claim: str) -> str:
    """Return a claim, marked if it does not hold."""
    return claim if holds else f"NOT {claim}"


def roofline(card: Card, found: dict[str, Any]) -> tuple[float | str, str]:
    """Return the least microseconds of a pass, and what bounds it."""
    if not found["flops"] or not found["bytes"]:
        return "", "not known"
    # A program with bfloat16 has products of lower precision, in one operation.
    passes = 1.0 if found["bfloat16"] else card.passes
    arithmetic = found["flops"] * passes / card.peak
    traffic = found["bytes"] / card.bandwidth
    bound = "arithmetic" if arithmetic > traffic else "memory"
    return 1e6 * max(arithmetic, traffic), bound


def compiled(chip: str, name: str) -> dict[str, Any] | str:
    """Return what the compiler of a chip says, or why it says nothing."""
    python = ROOT / CARDS[chip].environment / "bin" / "python"
    if not python.exists():
        return "the compiler is not installed, see `make accelerators`"
    command = [python, "-m", "benchmarks.accelerator_compile", chip, name]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | environment(chip),
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return f"more than {LIMIT} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
    return json.loads(done.stdout.splitlines()[-1])


def environment(chip: str) -> dict[str, str]:
    """Variables with which a compiler runs without a device."""
    if chip == "h100":
        return {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
    return {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
