"""Standard errors and intervals hold as often as they claim, in repeated runs.

`python -m benchmarks coverage` has the same cases, and writes the table.
"""

import pytest

from benchmarks.coverage import CASES, KEY, NUM_RUNS, row
from benchmarks.coverage_claims import verdicts


@pytest.mark.statistics
@pytest.mark.parametrize("name", CASES)
def test_errors_are_as_claimed(name):
    """No error is 0, intervals cover, and claimed errors are those observed.

    Coverage has binomial limits, passed by chance once in 10,000 claims. With 200 runs
    a ratio of errors has a sigma of .05; it may be .8 to 1.25.
    """
    found = verdicts(CASES[name], KEY, NUM_RUNS)
    for verdict in found:
        print(*row(name, verdict), sep=" | ")
    wrong = [row(name, verdict) for verdict in found if not verdict.is_as_said]
    assert not wrong
