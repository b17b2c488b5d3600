"""One job done by several programs, by turns, the first of them ours.

A program that is not installed, or that fails, has a row that says so.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.harness import Table
from benchmarks.peer_packages import gist, why_missing

OURS = "probjax"


class Program(NamedTuple):
    """What one package does with a job."""

    name: str
    package: str
    """`probjax` or the name of a peer."""
    prepare: Callable[[], Callable[[int], Any]]
    """Gives what is called at every turn with its number, from which keys are made."""
    settings: str
    """What was set."""


class Judged(NamedTuple):
    """What a program's turns came to."""

    amount: float
    """What a second is divided by: 1 for a job that is done once, or what was made."""
    cells: tuple
    """Its columns of quality."""


class Job(NamedTuple):
    """What is asked, and how it is judged."""

    title: str
    ratio: str
    """The name of the first column."""
    columns: tuple[str, ...]
    """The names of the columns of quality."""
    judge: Callable[[list[Any], float], Judged]
    """Of the outcomes of all turns and the median seconds of a turn."""
    note: str


class Done(NamedTuple):
    """The outcomes of a program's turns."""

    found: list[Any]
    seconds: np.ndarray
    """Of every turn but the first, which compiles."""


def side_by_side(job: Job, programs: list[Program], num_turns: int) -> Table:
    """A row for each program, its time over that of the first."""
    with warnings.catch_warnings():
        # Of the peers, which would drown the tables.
        warnings.simplefilter("ignore")
        calls, failed = prepared(programs)
        done = in_turns(calls, num_turns)
        rows, base = [], None
        for program in programs:
            own = done.get(program.name)
            if isinstance(own, Done):
                judged = job.judge(own.found, float(np.median(own.seconds)))
                cost = own.seconds / judged.amount
                base = cost if base is None else base
                ratio = float(np.median(cost / base))
                seconds = float(np.median(own.seconds))
                cells = (ratio, seconds, *judged.cells, program.settings)
            else:
                why = own or failed[program.name]
                cells = ("", "", *len(job.columns) * [""], why)
            rows.append((program.name, *cells))
    columns = ("program", job.ratio, "seconds", *job.columns, "set")
    return Table(job.title, columns, rows, job.note)


Calls = dict[str, Callable[[int], Any]]


def prepared(programs: list[Program]) -> tuple[Calls, dict[str, str]]:
    """What can be called, and why the rest cannot."""
    calls, failed = {}, {}
    for program in programs:
        missing = "" if program.package == OURS else why_missing(program.package)
        if missing:
            failed[program.name] = missing
            continue
        try:
            calls[program.name] = program.prepare()
        except Exception as error:
            failed[program.name] = failure(error)
    return calls, failed


def in_turns(calls: Calls, num_turns: int) -> dict[str, Done | str]:
    """The outcomes, or why a program failed; a turn more, the first, compiles."""
    found: dict[str, list[Any]] = {name: [] for name in calls}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    failed: dict[str, str] = {}
    for turn in range(num_turns + 1):
        for name, call in calls.items():
            if name in failed:
                continue
            begun = time.perf_counter()
            try:
                found[name].append(jax.block_until_ready(call(turn)))
            except Exception as error:
                failed[name] = failure(error)
            seconds[name].append(time.perf_counter() - begun)
    return {
        name: failed.get(name) or Done(found[name], np.array(seconds[name][1:]))
        for name in calls
    }


def failure(error: Exception) -> str:
    return f"failed: {gist(f'{type(error).__name__}: {error}')}"
