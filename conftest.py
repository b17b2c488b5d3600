"""How tests and the examples in docstrings run.

Nearly all of a run is tracing and compiling programs that are run once. So programs are
compiled quickly instead of well, and kept in `.pytest_cache/programs`, where the next
run finds them. The number of compilations is printed for each file at the end.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

# Set XLA_FLAGS, be it to nothing, for programs that run fast: see `make check`.
QUICKLY = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false"
)
PROGRAMS = Path(__file__).parent / ".pytest_cache" / "programs"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
NUM_FILES_SHOWN = 15

jax.config.update("jax_numpy_rank_promotion", "raise")
os.environ.setdefault("MPLBACKEND", "Agg")
# Hypothesis keeps files about the source even without a database of examples.
os.environ.setdefault(
    "HYPOTHESIS_STORAGE_DIRECTORY", str(PROGRAMS.with_name("hypothesis"))
)

_num_compilations = 0


def pytest_configure():
    """Set flags and caches, for workers and programs started by tests too."""
    if "XLA_FLAGS" not in os.environ and _are_known(QUICKLY):
        os.environ["XLA_FLAGS"] = QUICKLY
    _keep_programs()
    jax.monitoring.register_event_duration_secs_listener(_count_compilation)


def _are_known(flags):
    """Whether this XLA has them: an unknown one ends the process that uses it."""
    trial = [sys.executable, "-c", "import jax; jax.devices()"]
    environment = {**os.environ, "XLA_FLAGS": flags}
    return not subprocess.run(trial, env=environment, capture_output=True).returncode


def _keep_programs():
    """Give every worker a folder, because jax does not write programs atomically.

    Programs that tests start have another, in which one that was killed may leave a
    torn file.
    """
    own, others = PROGRAMS / WORKER, PROGRAMS / f"{WORKER}-started"
    for folder in (own, others):
        folder.mkdir(parents=True, exist_ok=True)
    if WORKER in ("main", "gw0"):
        PROGRAMS.chmod(0o700)
    settings = {
        "jax_compilation_cache_dir": str(own),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(others)


def pytest_sessionstart(session):
    """Let all workers have the programs that one of them compiled in an earlier run."""
    if WORKER != "main":
        return
    for pattern in ("gw?", "gw?-started"):
        folders = list(PROGRAMS.glob(pattern))
        known = {file.name: file for folder in folders for file in folder.iterdir()}
        for folder in folders:
            for name in known.keys() - set(os.listdir(folder)):
                os.link(known[name], folder / name)


def pytest_collection_modifyitems(items):
    """Count examples in docstrings among the documents."""
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.add_marker("documents")


def _count_compilation(event, duration, **details):
    global _num_compilations
    if event == "/jax/core/compile/backend_compile_duration":
        _num_compilations += 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Note how many programs a test compiled."""
    before = _num_compilations
    item.user_properties.append(("before", before))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Report the compilations of a test and of its fixtures."""
    report = yield
    if call.when == "teardown":
        before = dict(item.user_properties)["before"]
        report.user_properties.append(("compilations", _num_compilations - before))
    return report


def pytest_terminal_summary(terminalreporter):
    """Print the files that compile most."""
    counts = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                counts[report.location[0]] += dict(report.user_properties).get(
                    "compilations", 0
                )
    if not counts:
        return
    terminalreporter.section("compilations")
    terminalreporter.write_line(f"{sum(counts.values()):6} in all")
    for file, count in counts.most_common(NUM_FILES_SHOWN):
        terminalreporter.write_line(f"{count:6} {file}")


@pytest.fixture(autouse=True)
def names_of_examples(doctest_namespace):
    """Names that examples in docstrings use without importing them."""
    doctest_namespace.update(jax=jax, jnp=jnp, np=np)


@pytest.fixture(autouse=True)
def close_figures():
    """Examples in docstrings open figures, and should not have to close them."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
