"""`python -m benchmarks NAME [--quick] [--data DIR] [--json FILE]`."""

import argparse
import importlib
import os
import pkgutil
from pathlib import Path

import benchmarks
from benchmarks.harness import Options, show, write_json

HELPERS = (
    "__main__",
    "accelerator_compile",
    "accelerator_programs",
    "annealing_tasks",
    "coverage_claims",
    "coverage_fits",
    "coverage_likelihoods",
    "coverage_log_z",
    "defaults_errors",
    "defaults_numpy",
    "defaults_tasks",
    "harness",
    "image_fits",
    "ising_fits",
    "launch",
    "machine_brackets",
    "natural_machine",
    "peer_packages",
    "peers_annealing",
    "peers_fits",
    "peers_hmc",
    "peers_machines",
    "peers_states",
    "report",
    "scaling_runs",
    "side_by_side",
    "spikes_exact",
    "spikes_information",
    "spikes_judged",
    "spikes_kinetic",
    "spikes_scale",
)


def main() -> None:
    modules = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    names = sorted(name.replace("_", "-") for name in modules if name not in HELPERS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=names)
    parser.add_argument("--quick", action="store_true", help="end within two minutes")
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("PROBJAX_DATA"),
        help="a folder of data sets (or PROBJAX_DATA); what needs none runs without",
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    given = parser.parse_args()
    options = Options(given.quick, Path(given.data) if given.data else None)
    module = importlib.import_module(f"benchmarks.{given.name.replace('-', '_')}")
    tables = []
    for table in module.run(options):
        show(table)
        tables.append(table)
        # After every table, so that a run that is stopped leaves a record.
        if given.json:
            write_json(given.json, given.name, options, tables)


if __name__ == "__main__":
    main()
