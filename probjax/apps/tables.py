"""Tables of states from files: bits, spins or letters, as arrays or as text.

Arrays are in `.npy` or `.npz`, text in `.csv`, or `.tsv` with tabs.

A table is read as letters 0, 1, ..., with what they are called in the file: spins are
the letters "-1" and "1", text is sorted. Files are data and never programs: pickles are
refused. All trouble is one `ValueError` that names the file.
"""

import csv
import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probjax.runs.npz import PickledError, array_names, read_array, read_arrays

SPINS = ("-1", "1")
MOST_LETTERS = 1000
MISSING = ("", "NA", "N/A", "null", "None", "?")
_ADVICE = "leave such rows out, or such columns"


class Table(NamedTuple):
    """Rows of states.

    >>> table = Table(x=np.array([[0, 1], [1, 1]]), alphabet=("-1", "1"), header=())
    >>> np.array(table.alphabet)[table.x].tolist()
    [['-1', '1'], ['1', '1']]
    """

    x: np.ndarray
    """Letters, `(row, site)`, whole numbers from 0."""
    alphabet: tuple[str, ...]
    """What they are called; () if they are 0, 1, ... in the file as well."""
    header: tuple[str, ...]
    """The first row of a text, where that was no state."""


class _Cells(NamedTuple):
    """What a file holds, before it is known what it means."""

    cells: np.ndarray
    header: tuple[str, ...] = ()
    lines: Sequence[int] | None = None
    """Where in a text the rows are, from 1; None of an array."""

    def place(self, row: int, column: int) -> str:
        said = f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"
        return f"{said}, column {column + 1}"


def read(
    path: str | Path,
    *,
    array: str | None = None,
    alphabet: tuple[str, ...] | None = None,
) -> Table:
    """The table in a file.

    Args:
        array: which one, of an `.npz` with several.
        alphabet: that of the table a model was fitted to; None to find it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/family.npy", np.array([["A", "C"], ["C", "C"]]))
    ...     table = read(f"{folder}/family.npy")
    >>> table.x.tolist(), table.alphabet
    ([[0, 1], [1, 1]], ('A', 'C'))
    """
    path = Path(path)
    readers = {
        ".npy": _read_npy,
        ".npz": _read_npz,
        ".csv": _read_text,
        ".tsv": _read_text,
    }
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file")
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path} must end in .npy, .npz, .csv or .tsv")
    if array is not None and path.suffix.lower() != ".npz":
        raise ValueError(f"{path} has no named arrays: those are of .npz files")
    try:
        found = readers[path.suffix.lower()](path, array)
        x, alphabet = _letters(found, alphabet)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path} {error}") from error
    return Table(x, alphabet, found.header)


def write(
    path: str | Path,
    x: np.ndarray,
    alphabet: tuple[str, ...] = (),
    header: tuple[str, ...] = (),
) -> None:
    """Write letters as they are called, to a `.npy` or a `.csv`.

    Args:
        header: the first line of a `.csv`; () for none.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "spins.csv"
    ...     write(path, np.array([[0, 1], [1, 1]]), ("-1", "1"), header=("a", "b"))
    ...     path.read_text().split()
    ['a,b', '-1,1', '1,1']
    """
    path = Path(path)
    named = np.asarray(x).astype(np.int16)
    if alphabet == SPINS:
        named = (2 * named - 1).astype(np.int8)
    elif alphabet:
        named = np.asarray(alphabet)[named]
    elif named.size and named.max() < 2:
        named = named.astype(np.int8)
    if path.suffix.lower() == ".csv":
        write_csv(path, named.tolist(), header)
    elif path.suffix.lower() == ".npy":
        with open(path, "wb") as file:
            np.save(file, named, allow_pickle=False)
    else:
        raise ValueError(f"{path} must end in .npy or .csv")


def write_csv(
    path: str | Path, rows: Iterable[Sequence], header: tuple[str, ...] = ()
) -> None:
    """Write rows of anything, after a header if there is one.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "couplings.csv"
    ...     write_csv(path, [[0.5, 0.0], [0.0, 0.5]], header=("a", "b"))
    ...     path.read_text().split()
    ['a,b', '0.5,0.0', '0.0,0.5']
    """
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([header] if header else [])
        writer.writerows(rows)


def _read_npy(path, array):
    with open(path, "rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise ValueError("is no array that NumPy wrote (a pickle is refused)")
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        return _Cells(_stored(lambda: read_array(file, size)))


def _read_npz(path, array):
    try:
        names = array_names(path)
    except zipfile.BadZipFile as error:
        raise ValueError("is damaged, or no .npz file") from error
    shown = ", ".join(names)
    if array is None and len(names) != 1:
        raise ValueError(f"holds {len(names)} arrays, {shown}: name one with --array")
    name = names[0] if array is None else array
    if name not in names:
        raise ValueError(f"has no array {name}, only {shown}")
    return _Cells(_stored(lambda: read_arrays(path, [name])[name]))


def _stored(load):
    """The array that `load` finds in a file, if it is a table."""
    try:
        cells = load()
    except PickledError as error:
        raise ValueError("holds Python objects, a pickle, which is refused") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError("is damaged or truncated") from error
    if cells.ndim != 2:
        raise ValueError(f"must hold rows of sites, (row, site), got {cells.shape}")
    return cells


def _read_text(path, array):
    with open(path, newline="", encoding="utf-8-sig", errors="strict") as file:
        try:
            text = file.read()
        except UnicodeDecodeError as error:
            raise ValueError("is no text") from error
    first = text.lstrip().partition("\n")[0]
    marks = "\t" if path.suffix.lower() == ".tsv" else ",;\t"
    delimiter = next((mark for mark in marks if mark in first), marks[0])
    reader = csv.reader(text.splitlines(), delimiter=delimiter)
    try:
        placed = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"is no table: {error}") from error
    if not placed:
        raise ValueError("is empty")
    lines = [line for line, _ in placed]
    rows = [[cell.strip() for cell in row] for _, row in placed]
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"is ragged: line {line} has {len(row)} entries, the first "
                f"{len(rows[0])}"
            )
    if not _is_header(rows):
        return _Cells(np.array(rows, str), (), lines)
    return _Cells(np.array(rows[1:], str), tuple(rows[0]), lines[1:])


def _is_header(rows):
    """Whether the first row says what columns are.

    None of its entries occurs below, where they are not all numbers; or it counts
    columns further than letters go, or after nothing, as above an index.
    """
    if len(rows) < 2:
        return False
    below = {cell for row in rows[1:] for cell in row}
    columns = [str(column) for column in range(len(rows[0]))]
    counts = rows[0] == columns and columns[-1] not in below
    above_index = len(columns) > 1 and rows[0] == ["", *columns[:-1]]
    named = _floats(np.array(rows[0])) is None and below.isdisjoint(rows[0])
    return named or counts or above_index


def _letters(found: _Cells, alphabet) -> tuple[np.ndarray, tuple[str, ...]]:
    """Cells as letters, and what these are called."""
    cells = found.cells
    if cells.size == 0:
        raise ValueError("is empty")
    _refuse_index(cells)
    numbers = _numbers(cells)
    if numbers is None:
        return _spelled(found, np.char.strip(cells.astype(str)), alphabet)
    _refuse_fractions(found, numbers)
    spins = bool(np.isin(numbers, (-1, 1)).all() and -1 in numbers)
    if spins and alphabet == ():
        raise ValueError(
            "holds spins, and the model was fitted to 0 and 1, or to letters from 0"
        )
    if alphabet is None:
        alphabet = SPINS if spins else ()
    if alphabet == ():
        if numbers.min() < 0 or numbers.max() >= MOST_LETTERS:
            wrong = numbers.min() if numbers.min() < 0 else numbers.max()
            raise ValueError(
                f"must hold bits, spins of -1 and 1, or letters from 0, got {wrong:g}"
            )
        return numbers.astype(np.int64), ()
    text = np.char.mod("%d", numbers.astype(np.int64))
    return _spelled(found, text, alphabet)


def _refuse_index(cells):
    """A first column that counts rows from 0 or 1, beside bits, spins or words."""
    if cells.shape[0] < 3 or cells.shape[1] < 2:
        return
    first = _floats(cells[:, 0])
    if first is None or first[0] not in (0, 1):
        return
    if np.array_equal(first, first[0] + np.arange(len(first))):
        rest = _floats(cells[:, 1:])
        if rest is None or np.isin(rest, (-1, 0, 1)).all():
            raise ValueError(
                "has a column too many: column 1 looks like an index: leave it out"
            )


def _numbers(cells: np.ndarray) -> np.ndarray | None:
    """Cells as floats, NaN where they are missing; None if they are text."""
    found = _floats(cells)
    if found is not None:
        return found
    text = cells.astype(str)
    gaps = np.isin(text, MISSING)
    return None if gaps.all() else _floats(np.where(gaps, "nan", text))


def _floats(cells: np.ndarray) -> np.ndarray | None:
    """Cells as floats; None if one of them is no number."""
    if cells.dtype.kind not in "biufUS":
        raise ValueError(f"must hold numbers or text, got {cells.dtype}")
    try:
        return cells.astype(float)
    except ValueError:
        return None


def _refuse_fractions(found, numbers):
    wrong = np.argwhere(~(np.isfinite(numbers) & (numbers == np.round(numbers))))
    if not len(wrong):
        return
    row, column = wrong[0]
    place = found.place(row, column)
    if np.isnan(numbers[row, column]):
        raise ValueError(f"misses an entry at {place}: {_ADVICE}")
    raise ValueError(
        f"must hold bits, spins or letters, but {place} is no whole number: "
        f"{found.cells[row, column]}"
    )


def _spelled(found, text: np.ndarray, alphabet) -> tuple[np.ndarray, tuple[str, ...]]:
    empty = np.argwhere(text == "")
    if len(empty):
        raise ValueError(f"misses an entry at {found.place(*empty[0])}: {_ADVICE}")
    symbols, x = np.unique(text, return_inverse=True)
    x = x.reshape(text.shape)
    if alphabet is None:
        _refuse_prose(found, symbols)
        return x, tuple(symbols.tolist())
    known = dict(zip(alphabet, range(len(alphabet)), strict=True))
    if alphabet == () or not known.keys() >= set(symbols.tolist()):
        _refuse_lone_header(found, symbols)
        wrong = next(symbol for symbol in symbols.tolist() if symbol not in known)
        right = ", ".join(alphabet) or "numbers from 0"
        raise ValueError(f"has the letter {wrong!r}, the model was fitted to {right}")
    return np.array([known[symbol] for symbol in symbols.tolist()])[x], alphabet


def _refuse_prose(found, symbols):
    """What is no table, though it has rows of as many entries."""
    _refuse_lone_header(found, symbols)
    rows, columns = found.cells.shape
    if columns == 1 and len(symbols) > max(2, rows / 2):
        raise ValueError(
            f"holds one column of {len(symbols)} different texts: a table has a column "
            "for each site"
        )
    if len(symbols) > MOST_LETTERS:
        raise ValueError(f"holds {len(symbols)} different words: that is no alphabet")


def _refuse_lone_header(found, symbols):
    if found.lines is not None and len(symbols) == found.cells.size == len(
        found.cells[0]
    ):
        raise ValueError("has a header and no rows")
