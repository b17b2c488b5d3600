"""RESULTS.md from the figures in results/: `python -m benchmarks.report`.

A function of the JSON files alone: nothing is measured.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import grid

FOLDER = Path(__file__).parent / "results"
PAGE = Path(__file__).parent / "RESULTS.md"
# Those not named come after, by name.
FIRST = ("peers",)
HEAD = """\
# Results

Figures of `python -m benchmarks NAME`, as they were measured. This page is written from
the files in `results/` by `make bench`, which first measures one of them anew (`peers`,
unless `NAME` says another); it is not edited by hand. Seconds are of the machine that
measured them, on which other work may have been about: read the ratios. In `peers` a
ratio is a program's over that of the first row, so above 1 the first is better.
"""


def main() -> None:
    PAGE.write_text(page(read(FOLDER)))


def read(folder: Path) -> list[dict[str, Any]]:
    """All records of a folder, the first ones first."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return sorted(records, key=lambda record: record["benchmark"] not in FIRST)


def page(records: list[dict[str, Any]]) -> str:
    """The page."""
    return "\n".join([HEAD, *map(section, records)])


def section(record: dict[str, Any]) -> str:
    """One benchmark: on what, and its tables, between marks for pages of the docs."""
    name = record["benchmark"]
    versions = ", ".join(f"{name} {n}" for name, n in record["versions"].items())
    quick = "with `--quick`, of smaller sizes" if record["quick"] else "in full"
    opening = f"Measured {quick}, on {record['device']}: {versions}."
    parts = [
        f"## {name}",
        f"<!-- --8<-- [start:{name}] -->",
        opening,
        *map(table, record["tables"]),
        f"<!-- --8<-- [end:{name}] -->",
    ]
    return "\n\n".join(parts) + "\n"


def table(given: dict[str, Any]) -> str:
    """A table with its title above and its note below."""
    rows = given["rows"]
    written = (
        grid(tuple(rows[0]), [tuple(row.values()) for row in rows]) if rows else ""
    )
    return "\n\n".join(filter(None, [f"### {given['title']}", written, given["note"]]))


if __name__ == "__main__":
    main()
