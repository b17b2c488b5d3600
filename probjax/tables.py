"""Tables of states from files: bits, spins or letters, in `.npy`, `.npz` or `.csv`.

A table is read as letters 0, 1, ..., with what they are called in the file: spins are
the letters "-1" and "1", text is sorted. Files are data and never programs: pickles are
refused. All trouble is one `ValueError` that names the file.
"""

import csv
import os
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probjax.archives import array_names, read_array, read_arrays

SPINS = ("-1", "1")
MOST_LETTERS = 1000


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
    """The first row of a `.csv`, where that was no state."""


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
    readers = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_csv}
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file")
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path} must end in .npy, .npz or .csv")
    if array is not None and path.suffix.lower() != ".npz":
        raise ValueError(f"{path} has no named arrays: those are of .npz files")
    try:
        cells, header = readers[path.suffix.lower()](path, array)
        x, alphabet = _letters(cells, alphabet)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path} {error}") from error
    return Table(x, alphabet, header)


def write(path: str | Path, x: np.ndarray, alphabet: tuple[str, ...] = ()) -> None:
    """Write letters as they are called, to a `.npy` or a `.csv` without a header.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "spins.csv"
    ...     write(path, np.array([[0, 1], [1, 1]]), ("-1", "1"))
    ...     path.read_text().split()
    ['-1,1', '1,1']
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
        with open(path, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(named.tolist())
    elif path.suffix.lower() == ".npy":
        with open(path, "wb") as file:
            np.save(file, named, allow_pickle=False)
    else:
        raise ValueError(f"{path} must end in .npy or .csv")


def _read_npy(path, array):
    with open(path, "rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise ValueError("is no array that NumPy wrote (a pickle is refused)")
        file.seek(0)
        return _stored(lambda: read_array(file, os.fstat(file.fileno()).st_size)), ()


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
    return _stored(lambda: read_arrays(path, [name])[name]), ()


def _stored(load):
    """The array that `load` finds in a file, if it is a table."""
    try:
        cells = load()
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        if "a pickle" in str(error):
            raise ValueError(
                "holds Python objects, a pickle, which is refused"
            ) from error
        raise ValueError("is damaged or truncated") from error
    if cells.ndim != 2:
        raise ValueError(f"must hold rows of sites, (row, site), got {cells.shape}")
    return cells


def _read_csv(path, array):
    with open(path, newline="", encoding="utf-8-sig", errors="strict") as file:
        try:
            text = file.read()
        except UnicodeDecodeError as error:
            raise ValueError("is no text") from error
    first = text.lstrip().partition("\n")[0]
    delimiter = next((mark for mark in ",;\t" if mark in first), ",")
    try:
        rows = [
            row for row in csv.reader(text.splitlines(), delimiter=delimiter) if row
        ]
    except csv.Error as error:
        raise ValueError(f"is no table: {error}") from error
    rows = [[cell.strip() for cell in row] for row in rows]
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"is ragged: row {number + 1} has {len(row)} entries, the first "
                f"{len(rows[0])}"
            )
    if not rows:
        raise ValueError("is empty")
    header = tuple(rows[0]) if _is_header(rows) else ()
    rows = rows[1:] if header else rows
    return np.array(rows, str), header


def _is_header(rows):
    """Whether the first row says what columns are.

    None of its entries occurs below, where they are not all numbers; or it counts
    columns further than letters go.
    """
    if len(rows) < 2:
        return False
    below = {cell for row in rows[1:] for cell in row}
    counts = rows[0] == [str(column) for column in range(len(rows[0]))]
    named = _numbers(np.array(rows[0])) is None
    return (named and below.isdisjoint(rows[0])) or (
        counts and rows[0][-1] not in below
    )


def _letters(cells: np.ndarray, alphabet) -> tuple[np.ndarray, tuple[str, ...]]:
    """Cells as letters, and what these are called."""
    if cells.size == 0:
        raise ValueError("is empty")
    numbers = _numbers(cells)
    if numbers is None:
        return _spelled(np.char.strip(cells.astype(str)), alphabet)
    _refuse_fractions(cells, numbers)
    if alphabet is None:
        alphabet = SPINS if np.isin(numbers, (-1, 1)).all() and -1 in numbers else ()
    if alphabet == ():
        if numbers.min() < 0 or numbers.max() >= MOST_LETTERS:
            wrong = numbers.min() if numbers.min() < 0 else numbers.max()
            raise ValueError(
                f"must hold bits, spins of -1 and 1, or letters from 0, got {wrong:g}"
            )
        return numbers.astype(np.int64), ()
    return _spelled(np.char.mod("%d", numbers.astype(np.int64)), alphabet)


def _numbers(cells: np.ndarray) -> np.ndarray | None:
    """Cells as floats; None if they are text."""
    if cells.dtype.kind in "biuf":
        return cells.astype(float)
    if cells.dtype.kind not in "US":
        raise ValueError(f"must hold numbers or text, got {cells.dtype}")
    try:
        return cells.astype(float)
    except ValueError:
        return None


def _refuse_fractions(cells, numbers):
    wrong = np.argwhere(~(np.isfinite(numbers) & (numbers == np.round(numbers))))
    if not len(wrong):
        return
    row, column = wrong[0]
    what = "missing" if np.isnan(numbers[row, column]) else "no whole number"
    raise ValueError(
        f"must hold bits, spins or letters, but row {row + 1}, column {column + 1} is "
        f"{what}: {cells[row, column]}"
    )


def _spelled(text: np.ndarray, alphabet) -> tuple[np.ndarray, tuple[str, ...]]:
    empty = np.argwhere(text == "")
    if len(empty):
        row, column = empty[0]
        raise ValueError(
            f"misses an entry: row {row + 1}, column {column + 1} is empty"
        )
    symbols, x = np.unique(text, return_inverse=True)
    x = x.reshape(text.shape)
    if alphabet is None:
        if len(symbols) > MOST_LETTERS:
            raise ValueError(
                f"holds {len(symbols)} different words: that is no alphabet"
            )
        return x, tuple(symbols.tolist())
    known = dict(zip(alphabet, range(len(alphabet)), strict=True))
    if alphabet == () or not known.keys() >= set(symbols.tolist()):
        wrong = next(symbol for symbol in symbols.tolist() if symbol not in known)
        right = ", ".join(alphabet) or "numbers from 0"
        raise ValueError(f"has the letter {wrong!r}, the model was fitted to {right}")
    return np.array([known[symbol] for symbol in symbols.tolist()])[x], alphabet
