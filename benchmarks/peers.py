"""probjax beside other packages on the same jobs, in the same run.

Each table is a job, each row a program: its time over that of the first, which is ours,
its seconds after compiling, how good what it found is, and what was set. Programs take
turns, so that what disturbs one disturbs all. A peer that does not install, or fails,
has a row that says why; one that is faster or better shows it.
"""

from collections.abc import Iterator

from benchmarks import (
    peers_annealing,
    peers_fits,
    peers_hmc,
    peers_machines,
    peers_states,
)
from benchmarks.harness import Options, Table
from benchmarks.peer_packages import MODULES, version, why_missing

JOBS = {
    "scikit-learn": "learns Ising models by regressions, and RBMs by PCD-1",
    "blackjax": "HMC; log Z by tempered SMC; has no AIS and nothing for bits",
    "numpyro": "HMC; has no estimate of log Z and no model without a normaliser",
    "tfp-nightly": "log Z by AIS",
    "thrml": "draws states of sparse Ising models, and learns them by CD",
    "netket": "draws states of an Ising model taken for a squared wavefunction; its "
    "natural gradient minimises energies of operators and learns from no data",
    "coniii": "learns Ising models by pseudolikelihood and MPF; its setup imports all "
    "of it, and with SciPy at hand stops at scipy.exp, which is gone",
}


def run(options: Options) -> Iterator[Table]:
    yield packages()
    for job in (
        peers_fits,
        peers_states,
        peers_annealing,
        peers_hmc,
        peers_machines,
    ):
        yield from job.run(options)


def packages() -> Table:
    """Who is there."""
    rows = []
    for package in MODULES:
        missing = why_missing(package)
        rows.append((package, missing or version(package), JOBS[package]))
    return Table(
        "Peers",
        ("package", "version", "what it does here"),
        rows,
        "Each was installed by itself from the registry, with jax held where it was.",
    )
