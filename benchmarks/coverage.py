"""Whether standard errors and intervals hold: every one of the library, in many runs.

The cases are also a test, `tests/test_coverage.py`.
"""

from collections.abc import Iterator

import jax

from benchmarks import coverage_fits, coverage_likelihoods, coverage_log_z
from benchmarks.coverage_claims import Verdict, verdicts
from benchmarks.harness import Options, Table

NUM_RUNS, NUM_QUICK_RUNS = 200, 20
KEY = jax.random.key(0)
TITLES = {
    "log Z": coverage_log_z.CASES,
    "Log-likelihoods": coverage_likelihoods.CASES,
    "Parameters, chains and goodness of fit": coverage_fits.CASES,
}
CASES = {name: case for cases in TITLES.values() for name, case in cases.items()}
COLUMNS = (
    "estimate",
    "error",
    "runs",
    "coverage",
    "expected",
    "claimed / observed",
    "verdict",
)
NOTE = (
    "Coverage: share of runs in which two standard errors to either side, or lower and "
    "upper, contain the truth. Expected: for normal errors, and for Student's t where "
    "the error is that of a few chains or groups. Claimed / observed: of root mean "
    "squares of errors over runs. Where an error includes a bias or has one side only, "
    "coverage must be at least as expected. Errors that are known to be too small are "
    "marked."
)


def run(options: Options) -> Iterator[Table]:
    num_runs = NUM_QUICK_RUNS if options.quick else NUM_RUNS
    last = list(TITLES)[-1]
    for title, cases in TITLES.items():
        rows = [
            row(name, verdict)
            for name, case in cases.items()
            for verdict in verdicts(case, KEY, num_runs)
        ]
        yield Table(title, COLUMNS, rows, "" if title != last else NOTE)


def row(name: str, found: Verdict) -> tuple:
    """A row of the table."""
    kind = found.kind
    said = "as claimed" if kind.is_exact else "at least" if kind.holds else "too small"
    if not found.is_as_said:
        said = f"NOT {said}"
    numbers = (found.num_runs, found.coverage, kind.nominal, found.ratio)
    return (name, found.claim, *numbers, said)
