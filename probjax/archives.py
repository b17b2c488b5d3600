"""Arrays out of `.npz` archives that may be damaged, foreign or hostile.

Sizes are read before what they are of: no room is made for more than a file can hold,
and nothing in it is run, as there are no pickles.
"""

import math
import os
import zipfile
from collections.abc import Collection
from typing import IO

import numpy as np

# What is measured compresses by less than 20, rows of zeros by 1,000.
_MOST_GROWTH, _SMALL = 100, 2**24


def read_arrays(
    path: str | os.PathLike, names: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """The arrays of an archive by name; only those of `names`, if they are given."""
    with open(path, "rb") as raw, zipfile.ZipFile(raw) as archive:
        members = {
            member.filename.removesuffix(".npy"): member
            for member in archive.infolist()
        }
        if missing := set(names or ()) - set(members):
            raise ValueError(f"it has no {sorted(missing)}, but {sorted(members)}")
        chosen = {name: members[name] for name in members if names is None}
        chosen |= {name: members[name] for name in names or ()}
        total = sum(member.file_size for member in chosen.values())
        if total > max(_SMALL, _MOST_GROWTH * os.fstat(raw.fileno()).st_size):
            raise ValueError(f"it would grow to {total} bytes, far more than it has")
        return {name: _read(archive, member) for name, member in chosen.items()}


def array_names(path: str | os.PathLike) -> list[str]:
    """The names of the arrays of an archive, sorted."""
    with zipfile.ZipFile(path) as archive:
        return sorted(name.removesuffix(".npy") for name in archive.namelist())


def read_array(file: IO[bytes], size: int) -> np.ndarray:
    """The array in a `.npy` of `size` bytes, which can be read from twice."""
    version = np.lib.format.read_magic(file)
    is_first = version == (1, 0)
    form = np.lib.format
    read = form.read_array_header_1_0 if is_first else form.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, a pickle: not read")
    told, has = math.prod(shape) * dtype.itemsize, size - file.tell()
    if told != has:
        raise ValueError(f"it tells of {told} bytes and has {has}")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        try:
            return read_array(file, member.file_size)
        except ValueError as error:
            raise ValueError(f"{member.filename}: {error}") from error
