"""Timing, tables and the JSON they are written to."""

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import probjax
from benchmarks.peer_packages import imported


class Options(NamedTuple):
    """What the command line asked for."""

    quick: bool
    data: Path | None


class Table(NamedTuple):
    """A table of figures."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple]
    note: str = ""


class Timing(NamedTuple):
    """Seconds of repeated calls."""

    seconds: np.ndarray

    @property
    def median(self) -> float:
        """The typical time."""
        return float(np.median(self.seconds))


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """What one call returns, and its seconds, compiling included."""
    begun = time.perf_counter()
    found = jax.block_until_ready(call(*arguments))
    return found, time.perf_counter() - begun


def time_together(repeats: int, **calls: Callable[[], Any]) -> dict[str, Timing]:
    """Time the calls in turns, so that what disturbs one disturbs all alike."""
    for call in calls.values():
        jax.block_until_ready(call())
    seconds = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(np.array(times)) for name, times in seconds.items()}


def ratio(first: Timing, second: Timing) -> float:
    """The median over turns of how many times longer `first` took."""
    return float(np.median(first.seconds / second.seconds))


@contextmanager
def count_compilations() -> Iterator[list[float]]:
    """A list that grows by the seconds of every program compiled meanwhile."""
    compiled: list[float] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def peak_memory(program: str, *arguments: str) -> float:
    """The most gigabytes a Python program held, run with `arguments` on its own."""
    command = [sys.executable, "-c", program + _PRINT_PEAK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


# Not `ru_maxrss` where it can be helped: Linux lets a child inherit its parent's.
_PRINT_PEAK = """
import pathlib, resource
status = pathlib.Path("/proc/self/status")
if status.exists():
    print(int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**20)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**30)
"""


def show(table: Table) -> None:
    """Print a table in Markdown."""
    print(f"\n## {table.title}\n")
    print(grid(table.columns, table.rows))
    if table.note:
        print(f"\n{table.note}")
    print(flush=True)


def grid(columns: Sequence[str], rows: Iterable[Sequence]) -> str:
    """A table in Markdown, its columns as wide as what is in them."""
    if len(set(columns)) < len(columns):
        # A record of a row is a dictionary by column.
        raise ValueError(f"columns must differ, got {columns}")
    cells = [tuple(map(_written, row)) for row in (columns, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = [
        " | ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in cells
    ]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def _written(value):
    if isinstance(value, (float, np.floating, jax.Array)):
        return f"{float(value):.4g}"
    # A bar would end the cell.
    return str(value).replace("|", "\\|")


def write_json(path: Path, name: str, options: Options, tables: list[Table]) -> None:
    """Write the figures with what they were measured on."""
    device = jax.devices()[0]
    record = {
        "benchmark": name,
        "quick": options.quick,
        "versions": {
            "probjax": probjax.__version__,
            "jax": jax.__version__,
            "optax": optax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
        | imported(),
        "device": f"{device.platform} {device.device_kind}",
        "tables": [
            {
                "title": table.title,
                "note": table.note,
                "rows": [
                    dict(zip(table.columns, map(_plain, row), strict=True))
                    for row in table.rows
                ],
            }
            for table in tables
        ],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def _plain(value):
    return value if isinstance(value, (int, str, bool)) else float(value)
