"""Programs of `python -m benchmarks accelerators`, traced but not compiled."""

import jax
import pytest

from benchmarks.accelerator_compile import kernels
from benchmarks.accelerator_programs import KEY, PROGRAMS
from benchmarks.accelerators import CARDS, MANY, ONE_CHIP, QUICK, roofline

pytestmark = pytest.mark.platforms


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_can_be_traced_at_its_size(name):
    program = PROGRAMS[name]
    inputs = [
        jax.ShapeDtypeStruct(each.shape, program.dtype) for each in program.inputs
    ]
    found = jax.eval_shape(program.function, KEY, *inputs)
    assert jax.tree.leaves(found)


def test_every_program_is_measured():
    assert set(ONE_CHIP) == set(PROGRAMS)
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
