"""Seconds of `uncertainty` and of `check_fit`, for `defaults`.

Every job runs in a process of its own, which is ended after `LIMIT` seconds:

    python -m benchmarks.defaults_errors JOB NUM_UNITS NUM_ROWS
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import defaults_numpy as by_numpy
from benchmarks.harness import Options, Table
from probjax import PseudoLikelihood, fit, ising, uncertainty

KEY = jax.random.key(0)
LIMIT = 300
ERRORS, CHECK = "uncertainty", "check_fit"
# Units, rows and the most seconds; None without a target.
JOBS = (
    (ERRORS, 50, 30_000, 2.0),
    (ERRORS, 150, 20_000, 60.0),
    (CHECK, 50, 30_000, None),
)
QUICK_JOBS = ((ERRORS, 10, 2000, 2.0), (CHECK, 10, 2000, None))
# Exact errors are computed for models of so many units.
MOST_EXACT_UNITS = 50
MOST_DIFFERENCE = 0.02


def run(options: Options) -> Iterator[Table]:
    rows, absent = [], ""
    for name, units, num_rows, most in QUICK_JOBS if options.quick else JOBS:
        found = job_in_process(name, units, num_rows)
        if found.startswith("left out"):
            absent = f" {name}: {found}."
            continue
        rows.append((name, units, num_rows, *judged(found, most)))
    yield Table(
        "Error bars and checks of a fitted Ising model, pseudolikelihood, generated",
        ("call", "units", "rows", "seconds", "compiling", "differs by", "verdict"),
        rows,
        "Seconds of the second call; compiling: how much longer the first took. "
        "Differs by: median relative difference of the standard errors from exact "
        f"ones in float64, up to {MOST_EXACT_UNITS} units. A call of more than "
        f"{LIMIT} s is ended. Targets: 2 s at 50 units, 60 s at 150, and a difference "
        f"of at most {MOST_DIFFERENCE}.{absent}",
    )


def judged(found: str, most: float | None) -> tuple:
    """Return the cells of a job: seconds, of compiling, difference and verdict."""
    try:
        seconds, compiling, difference = map(float, found.split())
    except ValueError:
        return ("", "", "", f"NOT {found}" if most is not None else found)
    cell = "" if np.isnan(difference) else difference
    if most is None:
        return (seconds, compiling, cell, "no target")
    is_right = not difference > MOST_DIFFERENCE
    verdict = f"at most {most:g} s" if seconds <= most else f"NOT at most {most:g} s"
    return (seconds, compiling, cell, verdict if is_right else f"{verdict}, NOT right")


def job_in_process(name: str, units: int, num_rows: int) -> str:
    """Return the last line that a job printed, or the reason why there is none."""
    command = [sys.executable, "-m", "benchmarks.defaults_errors", name]
    command += [str(units), str(num_rows)]
    root = Path(__file__).parents[1]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return f"within {LIMIT} s"
    said = (done.stdout if done.returncode == 0 else done.stderr).strip()
    return said.splitlines()[-1] if said else "without output"


def main(name: str, units: str, num_rows: str) -> None:
    """Print seconds, seconds of compiling, and the difference from exact errors."""
    job = {ERRORS: error_bars, CHECK: check}[name]
    print(job(drawn(int(units), int(num_rows))))


def drawn(units: int, num_rows: int) -> np.ndarray:
    """Rows of Gibbs chains in NumPy, of a model with weak couplings."""
    rng = np.random.default_rng(0)
    half = np.triu(rng.normal(0, 0.5 / np.sqrt(units), (units, units)), 1)
    couplings, fields = half + half.T, rng.normal(-0.5, 0.3, units)
    s = rng.choice([-1.0, 1.0], (num_rows, units))
    for _ in range(20):
        for unit in range(units):
            odds = 2 * (fields[unit] + s @ couplings[unit])
            s[:, unit] = np.where(rng.random(num_rows) < 1 / (1 + np.exp(-odds)), 1, -1)
    return ((s + 1) / 2).astype(np.float32)


def fitted_to(x: np.ndarray) -> Any:
    """Return a fit by pseudolikelihood."""
    units = x.shape[1]
    start = ising.from_matrix(np.zeros((units, units), np.float32))
    chart, data = ising.centred(x), jnp.asarray(x)
    return fit(KEY, PseudoLikelihood(ising.energy), start, data, chart=chart)


def error_bars(x: np.ndarray) -> str:
    objective, found, data = (
        PseudoLikelihood(ising.energy),
        fitted_to(x),
        jnp.asarray(x),
    )
    times, bars = [], None
    for _ in range(2):
        begun = time.perf_counter()
        bars = jax.block_until_ready(uncertainty(objective, found, data))
        times.append(time.perf_counter() - begun)
    difference = np.nan
    if bars is not None and x.shape[1] <= MOST_EXACT_UNITS:
        exact = exact_errors(x, found.params)
        stderr = np.asarray(bars.stderr.coupling, float)
        difference = float(np.median(np.abs(stderr / exact - 1)))
    return f"{times[1]} {times[0] - times[1]} {difference}"


def exact_errors(x: np.ndarray, params: ising.Params) -> np.ndarray:
    """Return the sandwich errors of the couplings, in float64."""
    bias, coupling = (np.asarray(v, float) for v in (params.bias, params.coupling))
    pairs = np.triu_indices(len(bias), 1)
    matrix = np.zeros((len(bias), len(bias)))
    matrix[pairs] = coupling
    vector = np.concatenate([bias + (matrix + matrix.T).sum(0), coupling])
    found = by_numpy.pairwise_curvature(x, "PL", vector, strength=0.0, variance=True)
    inverse = np.linalg.inv(found.hessian)
    covariance = inverse @ found.variance @ inverse / len(x)
    return np.sqrt(np.diag(covariance))[len(bias) :]


def check(x: np.ndarray) -> str:
    import probjax

    if "check_fit" not in probjax.__all__:
        return "left out, this version has no check_fit"
    check_fit = vars(probjax)["check_fit"]
    found, data, times = fitted_to(x), jnp.asarray(x), []
    for _ in range(2):
        begun = time.perf_counter()
        jax.block_until_ready(check_fit(KEY, ising.energy, found.params, data))
        times.append(time.perf_counter() - begun)
    return f"{times[1]} {times[0] - times[1]} nan"


if __name__ == "__main__":
    main(*sys.argv[1:])
