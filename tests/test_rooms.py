"""The tree of the package: what each room may import."""

import ast
import importlib
from pathlib import Path

import pytest

import probjax

PACKAGE = Path(probjax.__file__).parent
ROOMS = [
    "recipe",
    "checks",
    "trees",
    "types",
    "random",
    "generic_gaps",
    "potential",
    "energies",
    "interfaces",
    "forwarding",
    "leapfrog",
    "lanes",
    "devices",
    "states",
    "runs",
    "data",
    "connectivity",
    "bases",
    "samplers",
    "exact",
    "diagnostics",
    "annealing",
    "objectives",
    "fitting",
    "natural",
    "models",
    "plots",
    "apps",
]
"""A room is a subpackage or a module. It imports only those that come before it."""


def room_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(path):
    """Yield the rooms that a file imports, wherever in it, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "probjax":
            names = [f"probjax.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if name.startswith("probjax.") and name != "probjax.__version__":
                yield name.split(".")[1], node.lineno


def test_every_room_has_a_place():
    found = {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert found == set(ROOMS)
    assert len(ROOMS) == len(found)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_above_it(room):
    above = set(ROOMS[: ROOMS.index(room) + 1])
    files = [path for path in PACKAGE.rglob("*.py") if room_of(path) == room]
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {other}"
        for path in files
        for other, line in imported_rooms(path)
        if other not in above
    ]
    assert not wrong


def test_few_modules_lie_flat():
    assert len(list(PACKAGE.glob("*.py"))) <= 16


def test_top_level_is_short_and_sorted():
    names = probjax.__all__
    assert names == sorted(names, key=str.lower)
    assert len(names) <= 80


@pytest.mark.parametrize("name", ["probjax", "probjax.fitting", "probjax.models.potts"])
def test_dir_lists_own_names_only(name):
    module = importlib.import_module(name)
    shown = {each for each in dir(module) if not each.startswith("__")}
    assert not shown & {"jax", "jnp", "np", "Array", "NamedTuple", "Any", "importlib"}
    assert {"energy", "fit"} & shown
