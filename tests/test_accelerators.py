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
    card = CARDS["h100"]
    found = {"flops": card.peak, "bytes": card.bandwidth / 2}
    assert roofline(card, found) == (1e6, "arithmetic")
    assert roofline(card, {"flops": 1.0, "bytes": card.bandwidth}) == (1e6, "memory")
    assert roofline(card, {"flops": None, "bytes": None}) == ("", "not known")
