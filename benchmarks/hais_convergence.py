"""Annealing where the answer is known: the error of log Z against distributions.

The tasks are those of `annealing_tasks`, or of its file in the folder `--data`.

Programs, 200 particles each from a unit Gaussian, one move per distribution:

    HAIS         as published: steps of .2, momentum persists, equal steps in beta
    fresh        the same with momentum drawn anew
    Metropolis   Gaussian proposals of .1, equal steps in beta
    ours         what `ais` does by itself: steps, metric and betas of a pilot run

Reference: thesis, chapter "Hamiltonian Annealed Importance Sampling", "Validating
Hamiltonian Annealed Importance Sampling" and "Speed of Convergence".
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.annealing_tasks import (
    NUM_PARTICLES,
    Experts,
    Interval,
    Runs,
    Task,
    repeat,
    tasks,
)
from benchmarks.harness import Options, Table
from probjax import plots
from probjax.annealing import Pilot
from probjax.annealing.adaptation import NUM_KNOTS
from probjax.annealing.pilot import MAX_STEPS, MIN_STEPS, NUM_WARMUP
from probjax.connectivity import GaussianSteps
from probjax.interfaces import Sampler
from probjax.plots import BLUE, ORANGE
from probjax.samplers import HMC, Metropolis, Momentum

FIGURE = Path("out/hais_convergence.png")
FIGURES = ("student", "laplace", "generative")
# Those together run one after the other, by the same compiled programs.
FAMILIES = (("generative",), ("student", "hard"), ("laplace",))
TARGETS = {"laplace": 0.02, "student": 0.25, "generative": 0.2, "hard": 1.0}
INTERVAL_STEPS, COVERED = 1000, 90
# Errors up to these are drawn on a linear axis, others on a logarithmic one.
LINEAR_WITHIN = {"laplace": 0.1, "generative": 1}
# Root-mean-square errors by other code, by N: HAIS, fresh momentum, Metropolis.
KNOWN = {
    "laplace": {
        100: (0.11, 0.23, 0.53),
        1000: (0.025, 0.049, 0.10),
        10_000: (0.011, 0.010, 0.029),
        100_000: (0.001, 0.002, 0.011),
    },
    "student": {
        100: (1.08, 1.43, 1.96),
        1000: (0.66, 0.86, 1.34),
        10_000: (0.39, 0.61, 0.79),
        100_000: (0.26, 0.48, 0.41),
    },
}


class Program(NamedTuple):
    """How particles are moved, and drawn."""

    sampler: Sampler
    pilot: Pilot | None
    color: str
    marker: str

    def num_moves(self, num_steps: int) -> int:
        """Of a particle, the pilot's included."""
        if self.pilot is None:
            return num_steps - 1
        pilot = np.clip(int(self.pilot.share * num_steps), MIN_STEPS, MAX_STEPS)
        return num_steps - 1 + NUM_WARMUP + -(-int(pilot) // NUM_KNOTS) * NUM_KNOTS


PROGRAMS = {
    "HAIS": Program(HMC(0.2), None, BLUE, "x"),
    "fresh": Program(HMC(0.2, momentum=Momentum(0.0)), None, "#009E73", "*"),
    "Metropolis": Program(
        Metropolis(GaussianSteps(0.1, num_draws=1)), None, ORANGE, "o"
    ),
    "ours": Program(HMC(0.2), Pilot(), "black", "+"),
}
# Who is asked for the error of whom.
PAIRS = (("HAIS", "fresh"), ("HAIS", "Metropolis"), ("ours", "HAIS"))


class Size(NamedTuple):
    """How much is run."""

    num_keys: dict[int, int]
    """By N."""
    target: int
    """The N of the targets."""
    num_rows: int
    """Of `generative`."""
    num_intervals: int
    """Of each task."""


QUICK = Size({100: 3, 1000: 3}, 1000, 4, 10)
FULL = Size({100: 10, 1000: 10, 10_000: 10, 100_000: 4}, 10_000, 6, 100)


def run(options: Options) -> Iterator[Table]:
    plots.load_pyplot()
    size = QUICK if options.quick else FULL
    asked = tasks(size.num_rows, options.data)
    found: dict[str, Measured] = {}
    # A run keeps one core busy.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(measure, names, asked, size) for names in FAMILIES]
        for job in jobs:
            found.update(job.result())
            for name in job.result():
                if name in FIGURES:
                    yield convergence(name, found[name].runs)
    runs = {name: measured.runs for name, measured in found.items()}
    draw(runs)
    yield speed(runs)
    yield targets(runs, size)
    yield coverage({name: measured.intervals for name, measured in found.items()})


Found = dict[tuple[int, str], Runs]
"""By N and program."""


class Measured(NamedTuple):
    """What a task came to."""

    runs: Found
    intervals: list[Interval]


def measure(
    names: tuple[str, ...], asked: dict[str, Task], size: Size
) -> dict[str, Measured]:
    found = {}
    for name in names:
        task, intervals = asked[name], []
        if isinstance(task, Experts):
            keys = jax.random.split(jax.random.key(2), size.num_intervals)
            sampler = PROGRAMS["ours"].sampler
            intervals = [task.interval(key, sampler, INTERVAL_STEPS) for key in keys]
        found[name] = Measured(converge(name, task, size), intervals)
    return found


def converge(name: str, task: Task, size: Size) -> Found:
    """All runs of a task; of one without a figure, those of its target."""
    if name not in FIGURES:
        wanted = [(size.target, "ours")]
    else:
        longest = size.target if name == "generative" else max(size.num_keys)
        counts = [count for count in size.num_keys if count <= longest]
        wanted = [(count, program) for count in counts for program in PROGRAMS]
    return {
        (count, program): repeat(
            partial(
                task.run,
                sampler=PROGRAMS[program].sampler,
                pilot=PROGRAMS[program].pilot,
                num_steps=count,
            ),
            size.num_keys[count],
        )
        for count, program in wanted
    }


def convergence(name: str, found: Found) -> Table:
    rows = []
    for (count, program), runs in found.items():
        known = dict(zip(PROGRAMS, KNOWN.get(name, {}).get(count, ()), strict=False))
        moves = PROGRAMS[program].num_moves(count)
        rows.append((count, program, moves, *summary(runs), known.get(program, "")))
    measured = "log p(x), of each row" if name == "generative" else "log Z"
    return Table(
        f"{name}: error of {measured}, {NUM_PARTICLES} particles",
        ("N", "program", "moves", *SUMMARY, "known"),
        rows,
        "Leapfrog steps are kick-drift-kick; the thesis prints drift-kick-drift. "
        "Moves: of a particle, its pilot's included. Known: "
        "root-mean-square errors by other code, which for tasks that are made here "
        "are of other instances.",
    )


SUMMARY = ("keys", "rms error", "+-", "bias", "mean stderr", "mean ESS")


def summary(runs: Runs) -> tuple[Any, ...]:
    return (
        len(runs.error),
        runs.rms,
        runs.rms_stderr,
        float(np.mean(runs.error)),
        float(np.mean(runs.stderr)),
        float(np.mean(runs.ess)),
    )


def speed(found: dict[str, Found]) -> Table:
    """How many distributions one program needs for the error of another."""
    rng = np.random.default_rng(0)
    rows, said = [], []
    for program, beside in PAIRS:
        said.append(f"{program} beside {beside}:")
        for name in FIGURES:
            runs = found[name]
            counts = sorted({count for count, _ in runs})
            curve = np.array([runs[count, program].rms for count in counts])
            curves = [runs[count, program].plausible(rng) for count in counts]
            verdicts = []
            for count in counts[1:]:
                other = runs[count, beside]
                times = count / needed(counts, curve, other.rms)
                pairs = zip(np.transpose(curves), other.plausible(rng), strict=True)
                may_be = [count / needed(counts, *pair) for pair in pairs]
                low, high = map(float, np.quantile(may_be, [0.05, 0.95]))
                verdict = "yes" if low >= 10 else "no" if high < 10 else "open"
                verdicts.append(f"{verdict} at {count:,}")
                setting = (name, program, beside, count, other.rms)
                rows.append((*setting, times, low, high, verdict))
            said.append(f"{name} {', '.join(verdicts)};")
    return Table(
        "Times fewer distributions, for the error that another program has at N",
        (
            "task",
            "program",
            "beside",
            "N",
            "its error",
            "times fewer",
            "5 %",
            "95 %",
            "ten times",
        ),
        rows,
        "Straight lines in logarithms between the N that were run; N over the least "
        "and over the most of them are bounds. From 5 % to 95 %: what it may be, with "
        "normal errors. Moves of pilots are not counted. Ten times fewer or more? "
        f"{' '.join(said)[:-1]}.",
    )


def needed(counts: list[int], errors: np.ndarray, level: float) -> float:
    """The N where errors come down to `level`; the last one if they do not."""
    reached = np.flatnonzero(errors <= level)
    if not len(reached):
        return counts[-1]
    if reached[0] == 0:
        return counts[0]
    ends = slice(reached[0] - 1, reached[0] + 1)
    # They fall from the first of the two to the second.
    falls, logs = -np.log(errors[ends]), np.log(counts[ends])
    return float(np.exp(np.interp(-np.log(level), falls, logs)))


def targets(found: dict[str, Found], size: Size) -> Table:
    rows = []
    for name, target in TARGETS.items():
        runs = found[name][size.target, "ours"]
        met = "yes" if runs.rms <= target else "no"
        rows.append((name, *summary(runs), target, met))
    said = "" if size.target == 10_000 else " Targets are of N = 10,000."
    return Table(
        f"Ours at N = {size.target:,}",
        ("task", *SUMMARY, "target", "met"),
        rows,
        f"Nats; of each row for `generative`.{said}",
    )


def coverage(found: dict[str, list[Interval]]) -> Table:
    """How often an interval from both sides holds the truth."""
    rows = []
    for name, every in found.items():
        if not every:
            continue
        lower, upper, ess = np.array(every).T
        rows.append(
            (
                name,
                len(every),
                int(np.sum((lower <= 0) & (upper >= 0))),
                int(np.sum(lower > 0)),
                int(np.sum(upper < 0)),
                float(np.mean(lower)),
                float(np.mean(upper)),
                float(np.mean(upper - lower)),
                float(np.median(upper - lower)),
                float(np.mean(ess)),
            )
        )
    return Table(
        f"Intervals from both sides, N = {INTERVAL_STEPS:,}, from exact draws",
        (
            "task",
            "runs",
            "covered",
            "too high",
            "too low",
            "mean lower",
            "mean upper",
            "mean width",
            "median width",
            "ESS back",
        ),
        rows,
        f"Ends less the truth, {NUM_PARTICLES} particles each way. Target: "
        f"{COVERED} of 100 covered.",
    )


def draw(found: dict[str, Found]) -> None:
    """Errors of all runs against N, one panel to a task."""
    figure, axes = plots.load_pyplot().subplots(
        1, 3, figsize=(11, 3.8), layout="constrained"
    )
    for ax, name in zip(axes, FIGURES, strict=True):
        ax.set_xscale("log")
        if name in LINEAR_WITHIN:
            ax.set_yscale("symlog", linthresh=LINEAR_WITHIN[name])
        for place, (which, program) in enumerate(PROGRAMS.items()):
            beside = 10 ** (0.1 * (place - 1.5))
            points = [
                (beside * count, error)
                for (count, one), runs in found[name].items()
                for error in runs.error.mean(1)
                if one == which
            ]
            ax.scatter(
                *np.transpose(points),
                s=26,
                color=program.color,
                marker=program.marker,
                linewidths=1 if program.marker in "x+" else 0,
                alpha=0.7,
                label=which,
            )
        ax.axhline(0, color="black", linewidth=0.6, zorder=0)
        ax.margins(y=0.08)
        if name in LINEAR_WITHIN:
            low, high = ax.get_ylim()
            ax.set_yticks(ticks(low, high, LINEAR_WITHIN[name]))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.set_title(name)
        ax.set_xlabel("intermediate distributions")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("estimate less truth, nats")
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        frameon=False,
        ncols=len(PROGRAMS),
        loc="outside lower center",
    )
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)


def ticks(low: float, high: float, least: float) -> list[float]:
    """0, and powers of ten from `least` on to both sides, as far as they are seen.

    >>> ticks(-20, 3, 1)
    [-10, -1, 0, 1]
    """
    powers = [least * 10**place for place in range(10)]
    every = [-power for power in reversed(powers)] + [0, *powers]
    return [tick for tick in every if low <= tick <= high]
