"""Programs of `python -m benchmarks accelerators`: traced here, and as recorded."""

import json

import jax
import pytest

from benchmarks.accelerator_compile import kernels
from benchmarks.accelerator_programs import KEY, LARGE, PROGRAMS
from benchmarks.accelerators import (
    CARDS,
    CODE,
    MANY,
    ONE_CHIP,
    QUICK,
    ROOT,
    largest_of,
    roofline,
)

pytestmark = pytest.mark.platforms

RECORD = ROOT / "benchmarks" / "results" / "accelerators.json"
# Every product of 4,200 x 4,200 couplings, and every copy of a vector of 8.8 million
# numbers to pairs of 21 x 21, is more than a megabyte; likewise every convolution.
LARGE_CODE = {"potts", "convolutional"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_can_be_traced_at_its_size(name):
    program = PROGRAMS[name]
    inputs = [
        jax.ShapeDtypeStruct(each.shape, program.dtype) for each in program.inputs
    ]
    found = jax.eval_shape(program.function, KEY, *inputs)
    assert jax.tree.leaves(found)


def test_every_program_is_measured():
    assert set(ONE_CHIP) | set(LARGE) == set(PROGRAMS)
    assert set(MANY + QUICK) <= set(PROGRAMS)


PROGRAM = """
%fused.1 (a: f32[8]) -> f32[8] {
  ROOT %b = f32[8]{0} add(%a, %a)
}

%inner (c: (s32[], f32[8])) -> (s32[], f32[8]) {
  %d = f32[8]{0} fusion(%c), kind=kLoop, calls=%fused.1
  %e = f32[8]{0} dot(%d, %d)
  ROOT %f = (s32[], f32[8]{0}) tuple(%c, %e)
}

%outer (g: (s32[], f32[8])) -> (s32[], f32[8]) {
  %h = f32[8]{0} fusion(%g), kind=kLoop, calls=%fused.1
  ROOT %i = (s32[], f32[8]{0}) while(%h), condition=%less, body=%inner
}

ENTRY %main.1 (j: f32[8]) -> f32[8] {
  %k = (s32[], f32[8]{0}) while(%j), condition=%less, body=%outer
  ROOT %l = f32[8]{0} fusion(%k), kind=kLoop, calls=%fused.1
}
"""


def test_kernels_are_those_of_the_innermost_loops():
    assert kernels(PROGRAM) == 2


def test_the_roofline_is_the_slower_of_arithmetic_and_memory():
    def bound(chip, flops, traffic, bfloat16=0):
        found = {"flops": flops, "bytes": traffic, "bfloat16": bfloat16}
        return roofline(CARDS[chip], found)

    card = CARDS["v5e"]
    assert bound("v5e", card.peak / 6, card.bandwidth / 2) == (1e6, "arithmetic")
    assert bound("v5e", card.peak / 6, card.bandwidth) == (1e6, "memory")
    # Products of bfloat16 take one operation instead of six.
    assert bound("v5e", card.peak, 1.0, bfloat16=1) == (1e6, "arithmetic")
    assert bound("h100", None, None) == ("", "not known")


def recorded():
    """Rows of the record, as dictionaries."""
    tables = json.loads(RECORD.read_text())["tables"]
    return [row for table in tables for row in table["rows"]]


def test_recorded_programs_hold_their_budgets():
    rows = [row for row in recorded() if "program" in row]
    assert {row["program"] for row in rows} == set(ONE_CHIP)
    for row in rows:
        if PROGRAMS[row["program"]].peer:
            continue
        failed = [part for part in row["verdict"].split(", ") if "NOT" in part]
        allowed = row["program"] in LARGE_CODE
        assert failed == ([f"NOT {CODE}"] if allowed else []), row
        others = set(row["collectives"].split()) - {"none", "all-reduce"}
        assert all(word.strip(",").isdigit() for word in others), row


def test_recorded_large_problems_fit_on_a_chip():
    rows = [row for row in recorded() if "problem on one chip" in row]
    assert len(rows) == len(LARGE)
    assert {row["verdict"] for row in rows} == {"fits"}


def test_large_problems_are_judged_by_their_memory(monkeypatch):
    found = {"temporary": 4e9, "arguments": 3e9, "outputs": 1e9}
    monkeypatch.setattr("benchmarks.accelerators.compiled", lambda *names: found)
    large = LARGE["large-ising"]
    _, millions, memory, share, seconds, verdict = largest_of("large-ising", large)
    assert (millions, memory, share, verdict) == (32.004, 8.0, "50%", "fits")
    assert seconds == pytest.approx(4 * 50_000 * 8000**2 * 6 / 197e12)
    found["temporary"] = 10e9
    assert largest_of("large-ising", large)[-1] == "NOT fits"
