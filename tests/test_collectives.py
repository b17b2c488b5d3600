"""Communication between devices, in programs compiled for 8 devices of the host."""

import json
from pathlib import Path

import pytest
from collectives import HIDDEN, PROGRAMS, SAMPLERS, SIZE, collectives

from benchmarks.launch import finish, launch

SCRIPT = str(Path(__file__).with_name("collectives.py"))
FAST = "--xla_backend_optimization_level=0"
ISING, RBM = SIZE + SIZE**2, SIZE * HIDDEN + SIZE + HIDDEN


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("collectives") / "found.json"
    finish(launch(1, 8, [SCRIPT, str(path)], flags=FAST))
    found = json.loads(path.read_text())
    assert set(found) == set(PROGRAMS)
    return found


def in_loops(entries):
    return [(name, sizes) for name, sizes, is_in_loop in entries if is_in_loop]


def large(entries):
    """Sizes of the all-reduces in loops, without those of scalars."""
    entries = in_loops(entries)
    assert {name for name, _ in entries} == {"all-reduce"}
    sizes = [sum(size for size in sizes if size > 1) for _, sizes in entries]
    return [size for size in sizes if size]


NAMED = "add", "one", "less"


def test_collectives_are_found_in_loops_and_elsewhere():
    program = """
%body (x: f32[3]) -> f32[3] {
  %a = (f32[3]{0}, f32[]) all-reduce(%x, %y), to_apply=%add
  %b = f32[3] conditional(%i, %x, %x), branch_computations={%one, %two}
}

%two (x: f32[3]) -> f32[3] {
  %c = f32[24,2]{1,0} all-gather(%x), dimensions={0}
}

ENTRY %main (x: f32[3]) -> f32[3] {
  %d = f32[3] while(%x), condition=%less, body=%body
  %e = (f32[3], f32[3]) all-reduce-start(%x), to_apply=%add
}
"""
    program += "".join(f"\n%{name} (x: f32[3]) -> f32[3] {{\n}}\n" for name in NAMED)
    assert collectives(program) == [
        ["all-reduce", [3, 1], True],
        ["all-gather", [48], True],
        ["all-reduce", [3, 3], False],
    ]


# The gradient in the couplings is summed as a matrix of pairs.
@pytest.mark.parametrize(("name", "size"), [("fit_ising", ISING), ("fit_pairs", ISING)])
def test_a_fit_sums_its_gradient_and_moves_no_rows(found, name, size):
    assert large(found[name]) == [size]
    assert {name for name, *_ in found[name]} == {"all-reduce"}


def test_a_fit_of_an_rbm_sums_its_gradient_in_parts_and_moves_no_rows(found):
    sizes = large(found["fit_rbm"])
    # Programs for CPUs have five branches, of which one runs: see `rbm.flip_gaps`.
    assert RBM <= sum(sizes) <= 5 * 2 * RBM
    assert max(sizes) <= 2 * RBM
    assert {name for name, *_ in found["fit_rbm"]} == {"all-reduce"}


def test_a_fit_by_particles_sums_gradients_of_rows_and_of_particles(found):
    sizes = large(found["fit_persistent"])
    assert RBM <= sum(sizes) <= 2 * RBM + SIZE


def test_a_batch_of_a_fit_is_the_only_rows_that_move(found):
    entries = in_loops(found["fit_batches"])
    sizes = [size for _, sizes in entries for size in sizes if size > 1]
    # Indices of 80 rows, their values, and the gradient.
    assert sorted(sizes) == sorted([80, 80 * SIZE, SIZE, SIZE**2])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sampling_communicates_nothing(found, sampler):
    assert found[f"draws_{sampler}"] == []


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_running_means_communicate_after_the_last_step_only(found, sampler):
    assert [*map(tuple, found[f"means_{sampler}"])] == [("all-reduce", [SIZE], False)]


@pytest.mark.parametrize("name", ["ais", "ais_of_rbm"])
def test_annealing_communicates_after_the_last_step_only(found, name):
    entries = found[name]
    assert entries
    assert in_loops(entries) == []
    assert {name for name, *_ in entries} == {"all-reduce"}


def test_resampling_moves_particles(found):
    names = {name for name, _ in in_loops(found["ais_resampled"])}
    assert "all-gather" in names
