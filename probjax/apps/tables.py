"""Tables of bits, spins or letters, read from and written to files.

Arrays are in `.npy` or `.npz` files, text is in `.csv` files or `.tsv` files (tabs).

Entries of a table are encoded as letters 0, 1, ..., and `alphabet` has their names in
the file: "-1" and "1" for spins, the sorted distinct words for text. Pickles are never
read. Every error is a `ValueError` of one sentence that names the file.
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
MAX_LETTERS = 1000
MISSING = ("", "NA", "N/A", "null", "None", "?")
_ADVICE = "remove rows or columns with missing entries"


class Table(NamedTuple):
    """Rows of states, read from a file.

    >>> table = Table(x=np.array([[0, 1], [1, 1]]), alphabet=("-1", "1"), header=())
    >>> np.array(table.alphabet)[table.x].tolist()
    [['-1', '1'], ['1', '1']]
    """

    x: np.ndarray
    """Letters as whole numbers from 0, `(row, site)`."""
    alphabet: tuple[str, ...]
    """Names of the letters in the file; () if the names are 0, 1, ..."""
    header: tuple[str, ...]
    """Names of the columns from the first line of a text file; () if it has none."""


class _Cells(NamedTuple):
    """Entries of a file before they are encoded as letters."""

    cells: np.ndarray
    header: tuple[str, ...] = ()
    lines: Sequence[int] | None = None
    """Line number of each row in a text file, from 1; None for an array."""

    def place(self, row: int, column: int) -> str:
        """Return the position of an entry in the file, for an error message."""
        where = f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"
        return f"{where}, column {column + 1}"


def read(
    path: str | Path,
    *,
    array: str | None = None,
    alphabet: tuple[str, ...] | None = None,
) -> Table:
    """Read the table in a file.

    Args:
        path: a `.npy`, `.npz`, `.csv` or `.tsv` file.
        array: the name of the array, for an `.npz` file with several.
        alphabet: the alphabet of the table to which a model was fitted; None to infer
            it from the file.

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
        raise ValueError(f"{path} must be an .npz file if an array is named")
    try:
        found = readers[path.suffix.lower()](path, array)
        x, alphabet = _encode(found, alphabet)
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
    """Write letters under their names to a `.npy` or `.csv` file.

    Args:
        path: a `.npy` or `.csv` file.
        x: letters as whole numbers from 0, `(row, site)`.
        alphabet: names of the letters; () to write the numbers.
        header: the first line of a `.csv` file; () for none.

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
    """Write rows to a `.csv` file, after a header if one is given.

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
            raise ValueError("is not an array saved by NumPy (pickles are not read)")
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        return _Cells(_load_table(lambda: read_array(file, size)))


def _read_npz(path, array):
    try:
        names = array_names(path)
    except zipfile.BadZipFile as error:
        raise ValueError("is damaged or not an .npz file") from error
    shown = ", ".join(names)
    if array is None and len(names) != 1:
        raise ValueError(
            f"contains {len(names)} arrays, {shown}; name one with --array"
        )
    name = names[0] if array is None else array
    if name not in names:
        raise ValueError(f"has no array {name}, only {shown}")
    return _Cells(_load_table(lambda: read_arrays(path, [name])[name]))


def _load_table(load):
    """Return the array that `load` reads; raise if it is not a table."""
    try:
        cells = load()
    except PickledError as error:
        raise ValueError("contains Python objects; pickles are not read") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError("is damaged or truncated") from error
    if cells.ndim != 2:
        raise ValueError(f"must have shape (row, site), got {cells.shape}")
    return cells


def _read_text(path, array):
    with open(path, newline="", encoding="utf-8-sig", errors="strict") as file:
        try:
            text = file.read()
        except UnicodeDecodeError as error:
            raise ValueError("is not a text in UTF-8") from error
    first = text.lstrip().partition("\n")[0]
    delimiters = "\t" if path.suffix.lower() == ".tsv" else ",;\t"
    delimiter = next((each for each in delimiters if each in first), delimiters[0])
    reader = csv.reader(text.splitlines(), delimiter=delimiter)
    try:
        placed = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"is not a table: {error}") from error
    if not placed:
        raise ValueError("is empty")
    lines = [line for line, _ in placed]
    rows = [[cell.strip() for cell in row] for _, row in placed]
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(rows[0]):
            raise ValueError(
                "must have equally many entries in each line, got "
                f"{len(rows[0])} in line {lines[0]} and {len(row)} in line {line}"
            )
    if not _is_header(rows):
        return _Cells(np.array(rows, str), (), lines)
    return _Cells(np.array(rows[1:], str), tuple(rows[0]), lines[1:])


def _is_header(rows):
    """Whether the first row names the columns.

    It does in three cases. Its entries are not all numbers and do not occur in the rows
    below; or it numbers the columns from 0 and its last number does not occur
    below; or it numbers the columns after an empty cell, above an index.
    """
    if len(rows) < 2:
        return False
    below = {cell for row in rows[1:] for cell in row}
    columns = [str(column) for column in range(len(rows[0]))]
    is_named = _floats(np.array(rows[0])) is None and below.isdisjoint(rows[0])
    is_numbered = rows[0] == columns and columns[-1] not in below
    is_above_index = len(columns) > 1 and rows[0] == ["", *columns[:-1]]
    return is_named or is_numbered or is_above_index


def _encode(found: _Cells, alphabet) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return cells as whole numbers from 0, and the alphabet."""
    cells = found.cells
    if cells.size == 0:
        raise ValueError("is empty")
    _reject_index(cells)
    numbers = _numbers(cells)
    if numbers is None:
        return _encode_text(found, np.char.strip(cells.astype(str)), alphabet)
    _reject_fractions(found, numbers)
    spins = bool(np.isin(numbers, (-1, 1)).all() and -1 in numbers)
    if spins and alphabet == ():
        raise ValueError(
            "contains spins of -1 and 1, but the model was fitted to bits or letters "
            "from 0"
        )
    if alphabet is None:
        alphabet = SPINS if spins else ()
    if alphabet == ():
        if numbers.min() < 0 or numbers.max() >= MAX_LETTERS:
            wrong = numbers.min() if numbers.min() < 0 else numbers.max()
            raise ValueError(
                "must contain bits, spins of -1 and 1, or letters from 0 to "
                f"{MAX_LETTERS - 1}, got {wrong:g}"
            )
        return numbers.astype(np.int64), ()
    text = np.char.mod("%d", numbers.astype(np.int64))
    return _encode_text(found, text, alphabet)


def _reject_index(cells):
    """Raise if the first column numbers the rows and the others are states."""
    if cells.shape[0] < 3 or cells.shape[1] < 2:
        return
    first = _floats(cells[:, 0])
    if first is None or first[0] not in (0, 1):
        return
    if np.array_equal(first, first[0] + np.arange(len(first))):
        rest = _floats(cells[:, 1:])
        if rest is None or np.isin(rest, (-1, 0, 1)).all():
            raise ValueError(
                "has a first column that looks like an index of the rows; remove it"
            )


def _numbers(cells: np.ndarray) -> np.ndarray | None:
    """Return cells as floats, NaN if missing; None if some are text."""
    found = _floats(cells)
    if found is not None:
        return found
    text = cells.astype(str)
    missing = np.isin(text, MISSING)
    return None if missing.all() else _floats(np.where(missing, "nan", text))


def _floats(cells: np.ndarray) -> np.ndarray | None:
    """Return cells as floats; None if one of them is not a number."""
    if cells.dtype.kind not in "biufUS":
        raise ValueError(f"must contain numbers or text, got {cells.dtype}")
    try:
        return cells.astype(float)
    except ValueError:
        return None


def _reject_fractions(found, numbers):
    """Raise if a number is missing or is not whole."""
    wrong = np.argwhere(~(np.isfinite(numbers) & (numbers == np.round(numbers))))
    if not len(wrong):
        return
    row, column = wrong[0]
    place = found.place(row, column)
    if np.isnan(numbers[row, column]):
        raise ValueError(f"has a missing entry at {place}; {_ADVICE}")
    raise ValueError(
        f"must contain whole numbers or text, got {found.cells[row, column]} at {place}"
    )


def _encode_text(
    found: _Cells, text: np.ndarray, alphabet
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the index of each cell in the alphabet, and the alphabet."""
    empty = np.argwhere(text == "")
    if len(empty):
        raise ValueError(f"has a missing entry at {found.place(*empty[0])}; {_ADVICE}")
    symbols, x = np.unique(text, return_inverse=True)
    x = x.reshape(text.shape)
    if alphabet is None:
        _reject_prose(found, symbols)
        return x, tuple(symbols.tolist())
    known = dict(zip(alphabet, range(len(alphabet)), strict=True))
    if alphabet == () or not known.keys() >= set(symbols.tolist()):
        _reject_lone_header(found, symbols)
        unknown = next(symbol for symbol in symbols.tolist() if symbol not in known)
        expected = ", ".join(alphabet) or "numbers from 0"
        raise ValueError(
            f"has the letter {unknown!r}, but the model was fitted to {expected}"
        )
    return np.array([known[symbol] for symbol in symbols.tolist()])[x], alphabet


def _reject_prose(found, symbols):
    """Raise for text that is not a table, although all rows have the same length."""
    _reject_lone_header(found, symbols)
    rows, columns = found.cells.shape
    if columns == 1 and len(symbols) > max(2, rows / 2):
        raise ValueError(
            f"must have a column for each site, got one column of {len(symbols)} "
            "different words"
        )
    if len(symbols) > MAX_LETTERS:
        raise ValueError(
            f"must have at most {MAX_LETTERS} different words, got {len(symbols)}"
        )


def _reject_lone_header(found, symbols):
    if found.lines is not None and len(symbols) == found.cells.size == len(
        found.cells[0]
    ):
        raise ValueError("has a header but no rows")
