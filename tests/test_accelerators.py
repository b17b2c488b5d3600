"""Programs of `python -m benchmarks accelerators`, traced but not compiled."""

import jax
import pytest

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
