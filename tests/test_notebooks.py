"""Notebooks are committed executed, and run again here at a small size.

Their code cells are executed in order, without Jupyter. What decides the cost is in the
cell tagged `sizes`, one constant a line, and `probjax.small` of the metadata says what
to put there instead.
"""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.documents

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
LARGEST = 500_000


def read(path):
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return code, notebook["metadata"]["probjax"]["small"]


def made_small(cell, small):
    """The source of a cell, with other constants if it is the one of sizes."""
    source = "".join(cell["source"])
    if "sizes" not in cell["metadata"].get("tags", ()):
        return source
    for name, value in small.items():
        source, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value!r}", source)
        assert count == 1, f"{name} is no constant of the cell of sizes"
    return source


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_committed_executed(path):
    code, small = read(path)
    assert sum("sizes" in cell["metadata"].get("tags", ()) for cell in code) == 1
    assert small
    counts = [cell["execution_count"] for cell in code]
    assert counts == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert any("image/png" in output.get("data", ()) for output in outputs)
    assert not [o for o in outputs if o["output_type"] == "error"]
    assert not [o for o in outputs if o.get("name") == "stderr"]
    assert path.stat().st_size < LARGEST


def shown(cell):
    """How many figures a cell shows as it was committed, and whether it prints."""
    figures = sum("image/png" in output.get("data", ()) for output in cell["outputs"])
    return figures, any(output.get("name") == "stdout" for output in cell["outputs"])


def executed(program, names, pyplot):
    """The same of a cell that is executed now."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program, names)
    figures = pyplot.get_fignums()
    # Where Jupyter would show them: what cannot be drawn fails here.
    for number in figures:
        pyplot.figure(number).canvas.draw()
    pyplot.close("all")
    return len(figures), bool(printed.getvalue())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    """And shows figures and prints in the cells that did so when it was committed."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROBJAX_DATA", raising=False)
    code, small = read(path)
    names = {"__name__": "__main__"}
    try:
        for cell in code:
            place = f"{path.name}, cell {cell['execution_count']}"
            program = compile(made_small(cell, small), place, "exec")
            assert executed(program, names, pyplot) == shown(cell), place
    finally:
        pyplot.close("all")
