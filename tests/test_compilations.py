"""How many programs a call compiles: what a user waits for.

Counts are budgets. A change that raises one has to say why; one that lowers it lowers
the budget.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FIRST_CALLS = {
    "fit": 3,  # one of them computes the coordinates in which it descends
    "fit by adam": 2,
    "sample": 2,
    "sample_mean": 3,
    "ais": 4,
    "ais by HMC": 6,
    "sandwich": 1,
    "log_likelihood": 2,
}


@pytest.fixture(scope="module")
def counts():
    """Compilations of each driver in a process of its own: first, again, other counts.

    Drivers are called in the order of `FIRST_CALLS`: `sandwich` finds the programs of
    `ais` compiled.
    """
    script = Path(__file__).with_name("compilations.py")
    environment = {**os.environ, "PYTHONPATH": str(script.parents[1])}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("driver", FIRST_CALLS)
def test_a_first_call_compiles_few_programs(driver, counts):
    assert counts[driver][0] == FIRST_CALLS[driver]


@pytest.mark.parametrize("driver", FIRST_CALLS)
def test_a_second_call_compiles_nothing(driver, counts):
    assert counts[driver][1] == 0


@pytest.mark.parametrize("driver", FIRST_CALLS)
def test_other_numbers_of_steps_and_draws_compile_nothing(driver, counts):
    """Another `num_steps`, `num_rounds`, `num_warmup` or `thin`, or an equal optimizer
    that is built again.
    """
    assert counts[driver][2] == 0
