import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import peer_packages, peers, report, side_by_side
from benchmarks.harness import Options, Table, write_json
from benchmarks.side_by_side import Job, Judged, Program

pytestmark = pytest.mark.platforms

ROOT = Path(__file__).parent.parent


def no_module(name):
    raise ModuleNotFoundError(f"No module named '{name}'")


def job(columns=("error",)):
    def judge(found, seconds):
        return Judged(1.0, (float(np.mean(found)),))

    return Job("A job", "ratio", columns, judge, "A note.")


def program(name, package, call):
    return Program(name, package, lambda: call, "as it comes")


def test_a_peer_that_is_missing_has_a_row_that_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(peer_packages.importlib, "import_module", no_module)
    monkeypatch.setattr(peer_packages, "REFUSED", tmp_path / "refused.json")
    programs = [
        program("ours", "probjax", lambda turn: turn),
        program("thrml", "thrml", lambda turn: turn),
    ]
    rows = side_by_side.side_by_side(job(), programs, 2).rows
    assert rows[0][0] == "ours"
    assert rows[0][3] == 1.0, "the mean of turns 0, 1 and 2"
    assert rows[1] == ("thrml", "", "", "", "not installed: No module named 'thrml'")
    peer_packages.REFUSED.write_text(json.dumps({"thrml": "no wheel"}))
    rows = side_by_side.side_by_side(job(), programs, 2).rows
    assert rows[1][-1] == "does not install: no wheel"
    versions = {row[0]: row[1] for row in peers.packages().rows}
    assert versions["thrml"] == "does not install: no wheel"
    assert versions.keys() == peer_packages.MODULES.keys()


@pytest.mark.parametrize("failing_turn", [0, 1])
def test_a_peer_that_fails_has_a_row_that_says_why(monkeypatch, failing_turn):
    monkeypatch.setattr(side_by_side, "why_missing", lambda package: "")

    def call(turn):
        if turn == failing_turn:
            raise ValueError("no such luck")
        return turn

    def unprepared():
        raise RuntimeError("nothing to call")

    programs = [
        program("ours", "probjax", lambda turn: turn),
        program("fails", "thrml", call),
        Program("unprepared", "netket", unprepared, ""),
    ]
    table = side_by_side.side_by_side(job(), programs, 1)
    assert table.columns == ("program", "ratio", "seconds", "error", "set")
    ours, fails, never = table.rows
    assert ours[1] == 1.0
    assert fails == ("fails", "", "", "", "failed: ValueError: no such luck")
    assert never[-1] == "failed: RuntimeError: nothing to call"


def test_a_ratio_is_of_time_per_amount(monkeypatch):
    clock = iter(np.arange(0.0, 100.0))
    monkeypatch.setattr(side_by_side.time, "perf_counter", lambda: next(clock))
    judge = lambda found, seconds: Judged(found[-1], (found[-1] / seconds,))  # noqa: E731
    programs = [
        program("ours", "probjax", lambda turn: 8.0),
        program("also ours", "probjax", lambda turn: 2.0),
    ]
    table = side_by_side.side_by_side(job()._replace(judge=judge), programs, 3)
    assert [row[1:4] for row in table.rows] == [(1.0, 1.0, 8.0), (4.0, 1.0, 2.0)]


def test_what_pip_says_is_cut_to_its_gist():
    said = """
      File "/tmp/build/setup.py", line 5, in <module>
    ModuleNotFoundError: No module named 'scipy'
    ERROR: Failed to build 'coniii' when getting requirements to build wheel
    """
    assert peer_packages.gist(said) == "ModuleNotFoundError: No module named 'scipy'"
    assert (
        peer_packages.gist("ERROR: none at https://some.where/x")
        == "ERROR: none at ..."
    )
    assert peer_packages.gist("OSError: no /usr/lib/a.so") == "OSError: no ..."
    assert len(peer_packages.gist("x" * 1000)) == peer_packages.LONGEST
    assert peer_packages.gist("") == "no word of why"


def test_every_peer_of_the_group_can_be_imported_by_name():
    groups = peer_packages.requirements(ROOT / "pyproject.toml")
    assert [peer_packages.name(each) for each in groups] == [*peer_packages.MODULES]
    assert peers.JOBS.keys() == peer_packages.MODULES.keys()


def test_a_page_is_written_from_records(tmp_path):
    table = Table(
        "Apples", ("kind", "ratio"), [("red", 0.123456), ("green", 2)], "Few."
    )
    other = Table("Pears", ("kind",), [("|x|",)])
    for name in ("fruit", "peers"):
        path = tmp_path / f"{name}.json"
        write_json(path, name, Options(name == "fruit", None), [table, other])
    records = report.read(tmp_path)
    for record in records:
        record["versions"], record["device"] = (
            {"probjax": "1.0", "jax": "2.0"},
            "an abacus",
        )
    first, second = report.page(records).split("\n## ")[1:]
    assert first.startswith(
        "peers\n\n<!-- --8<-- [start:peers] -->\n\n"
        "Measured in full, on an abacus: probjax 1.0, jax 2.0."
    )
    assert (
        second
        == """\
fruit

<!-- --8<-- [start:fruit] -->

Measured with `--quick`, of smaller sizes, on an abacus: probjax 1.0, jax 2.0.

### Apples

| kind  | ratio  |
| ----- | ------ |
| red   | 0.1235 |
| green | 2      |

Few.

### Pears

| kind  |
| ----- |
| \\|x\\| |

<!-- --8<-- [end:fruit] -->
"""
    )


def test_the_page_of_results_is_what_the_figures_give():
    records = report.read(report.FOLDER)
    assert {"peers"} <= {record["benchmark"] for record in records}
    assert report.PAGE.read_text() == report.page(records)
