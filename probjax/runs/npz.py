"""Arrays in `.npz` archives that may be damaged, foreign or hostile.

Sizes are checked before memory is allocated, so no more is allocated than a file can
hold. Nothing in a file is executed, because pickles are rejected.
"""

import math
import os
import zipfile
from collections.abc import Collection
from typing import IO

import numpy as np

# Real data compress by a factor below 20, rows of zeros by 1,000.
_MOST_GROWTH, _SMALL = 100, 2**24


class PickledError(ValueError):
    """Raised for an array of Python objects, which would have to be unpickled."""


def read_arrays(
    path: str | os.PathLike, names: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """Read arrays of an archive by name; only those in `names`, if it is given."""
    with open(path, "rb") as raw, zipfile.ZipFile(raw) as archive:
        members = {
            member.filename.removesuffix(".npy"): member
            for member in archive.infolist()
        }
        if missing := set(names or ()) - set(members):
            raise ValueError(
                f"it must hold arrays {sorted(missing)}, got only {sorted(members)}"
            )
        chosen = {name: members[name] for name in members if names is None}
        chosen |= {name: members[name] for name in names or ()}
        total = sum(member.file_size for member in chosen.values())
        if total > max(_SMALL, _MOST_GROWTH * os.fstat(raw.fileno()).st_size):
            raise ValueError(
                f"it would decompress to {total} bytes, too many for its size"
            )
        return {name: _read(archive, member) for name, member in chosen.items()}


def array_names(path: str | os.PathLike) -> list[str]:
    """Names of the arrays of an archive, sorted."""
    with zipfile.ZipFile(path) as archive:
        return sorted(name.removesuffix(".npy") for name in archive.namelist())


def read_array(file: IO[bytes], size: int) -> np.ndarray:
    """Read the array in a seekable `.npy` file of `size` bytes."""
    version = np.lib.format.read_magic(file)
    is_first = version == (1, 0)
    form = np.lib.format
    read = form.read_array_header_1_0 if is_first else form.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise PickledError("it holds Python objects (a pickle), which are not read")
    expected, actual = math.prod(shape) * dtype.itemsize, size - file.tell()
    if expected != actual:
        raise ValueError(f"its header describes {expected} bytes, but it has {actual}")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        try:
            return read_array(file, member.file_size)
        except PickledError as error:
            raise PickledError(f"{member.filename}: {error}") from error
        except ValueError as error:
            raise ValueError(f"{member.filename}: {error}") from error
