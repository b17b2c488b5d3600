"""Files of checkpoints: one `.npz`, or a directory written by Orbax.

Both hold the arrays of all states of a run and a header. `.npz` files are written by
process 0; to an Orbax directory, every process writes its own part of each array.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from probjax.devices import Layout, on_host, put_with_layout, sharding_of
from probjax.runs import storage
from probjax.trees import as_array


class Header(NamedTuple):
    """Description of a checkpoint, stored with its arrays."""

    version: str
    """Version of probjax that wrote the checkpoint."""
    driver: str
    """Name of the driver."""
    digests: Mapping[str, str]
    """Digest of every argument of the driver."""
    num_leaves: list[int]
    """Number of arrays in each state."""
    key_kinds: list[str | None]
    """Implementation of each array that holds random keys, None for other arrays."""
    layouts: list[Layout]
    """Layout of each array on the mesh."""


class FirstHeader(NamedTuple):
    """Header that version 0.1.0 wrote; files with it are recognised and rejected."""

    driver: str
    about: Mapping[str, str]
    kinds: list[str | None]
    layouts: list[Layout]


class Saved(NamedTuple):
    """Content of a checkpoint."""

    header: Header
    leaves: list
    """Arrays of all states; random keys are stored as integers."""


class FileFormat(NamedTuple):
    """Functions that read and write one checkpoint in a file format."""

    read: Callable[[], Saved | None]
    """Return the content on disk; None if nothing has been written yet."""
    write: Callable[[Saved], None]
    """Replace the content on disk."""
    close: Callable[[], None]


def file_format(path: Path) -> FileFormat:
    """Return the functions for `path`: an `.npz` file or a directory of Orbax."""
    return _npz(path) if path.suffix == ".npz" else _orbax(path)


def this_version() -> str:
    """Version of probjax that is running."""
    # The package defines its version after it has imported this module.
    from probjax import __version__

    return __version__


def _checked_header(path: Path, stored: Any, num_arrays: int | None = None) -> Header:
    """Return the header in `stored`.

    Raise an error if another version wrote it, or if it does not describe the arrays.
    """
    match stored:
        case FirstHeader() | {"driver": _, "about": _, "kinds": _, "layouts": _}:
            raise _other_version(path, "0.1.0")
        case {"version": str(version)} if version != this_version():
            raise _other_version(path, version)
        case {
            "version": str(),
            "driver": str(),
            "digests": dict(),
            "num_leaves": [*counts],
            "key_kinds": [*kinds],
            "layouts": [*layouts],
        } if set(stored) == set(Header._fields) and _are_counts(counts):
            total = len(kinds) if num_arrays is None else num_arrays
            if sum(counts) == len(kinds) == len(layouts) == total:
                return Header(**stored)
    raise ValueError(f"{path} is a probjax file, but not a checkpoint")


def _are_counts(values: list) -> bool:
    return all(isinstance(value, int) and value >= 0 for value in values)


def _other_version(path: Path, version: str) -> ValueError:
    return ValueError(
        f"{path} is a checkpoint written by probjax {version}, but this is probjax "
        f"{this_version()}: remove it to start again, or continue with probjax "
        f"{version}"
    )


def _npz(path: Path) -> FileFormat:
    storage.remove_partial_files(path)

    def read():
        if not path.exists():
            return None
        match storage.load(path):
            case {"header": stored, "leaves": list(leaves)}:
                header = _checked_header(path, stored, len(leaves))
                pairs = zip(leaves, header.layouts, strict=True)
                return Saved(
                    header, [put_with_layout(np.asarray(x), how) for x, how in pairs]
                )
            case {"told": FirstHeader() as first}:
                _checked_header(path, first)
        raise ValueError(f"{path} is a probjax file, but not a checkpoint")

    def write(saved):
        leaves = [on_host(leaf) for leaf in saved.leaves]
        whole = {"header": saved.header._asdict(), "leaves": leaves}
        error = None
        if jax.process_index() == 0:
            try:
                storage.save(path, whole)
            except OSError as failure:
                error = failure
        # The error is broadcast, so that no process waits for one that failed.
        if multihost_utils.broadcast_one_to_all(np.asarray(error is not None)):
            raise _write_error(path, error)

    return FileFormat(read, write, lambda: None)


def _write_error(path: Path, error: OSError | None) -> ValueError:
    reason = error.strerror or error if error else "see the error of process 0"
    failure = ValueError(f"checkpoint {path} cannot be written: {reason}")
    failure.__cause__ = error
    return failure


def _orbax(path: Path) -> FileFormat:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError(
            f"a checkpoint in a directory, {path}, requires Orbax; try pip install "
            "orbax-checkpoint, or a path that ends in .npz"
        ) from error
    if path.exists() and not path.is_dir():
        raise ValueError(
            f"checkpoint must be a directory or end in .npz, got {path}, which is a "
            "file"
        )
    options = ocp.CheckpointManagerOptions(max_to_keep=1)
    manager = ocp.CheckpointManager(path.absolute(), options=options)

    def read():
        step = manager.latest_step()
        if step is not None:
            return _read_orbax(path, ocp, manager, step)
        if any(path.iterdir()):
            raise ValueError(
                f"{path} holds other files than a checkpoint; try another path"
            )
        return None

    def write(saved):
        step = manager.latest_step()
        pairs = zip(saved.leaves, saved.header.layouts, strict=True)
        leaves = [leaf if how is not None else np.asarray(leaf) for leaf, how in pairs]
        parts = ocp.args.Composite(
            header=ocp.args.JsonSave(saved.header._asdict()),
            leaves=ocp.args.PyTreeSave(_by_name(leaves)),
        )
        try:
            manager.save(0 if step is None else step + 1, args=parts, force=True)
            manager.wait_until_finished()
        except OSError as error:
            raise _write_error(path, error) from error

    return FileFormat(read, write, manager.close)


def _read_orbax(path: Path, ocp: Any, manager: Any, step: int) -> Saved:
    # Version 0.1.0 named the header "about".
    name = "about" if (path / str(step) / "about").exists() else "header"
    try:
        only = ocp.args.Composite(**{name: ocp.args.JsonRestore()})
        stored = manager.restore(step, args=only)[name]
    except Exception as error:
        raise _read_error(path, error) from error
    header = _checked_header(path, stored)
    try:
        places = [_place(ocp, layout) for layout in header.layouts]
        parts = ocp.args.PyTreeRestore(restore_args=_by_name(places))
        named = manager.restore(step, args=ocp.args.Composite(leaves=parts))["leaves"]
        # Arrays without a mesh are restored on the host.
        leaves = [as_array(named[f"leaf{i}"]) for i in range(len(named))]
    except Exception as error:
        raise _read_error(path, error) from error
    return Saved(header, leaves)


def _read_error(path: Path, error: Exception) -> ValueError:
    # A damaged directory can fail in any of several parsers.
    return ValueError(f"{path} cannot be read as a checkpoint: {error}")


def _by_name(leaves: list) -> dict[str, Any]:
    return {f"leaf{i}": leaf for i, leaf in enumerate(leaves)}


def _place(ocp, layout):
    """Return Orbax's argument to restore an array on the mesh or on the host."""
    where = sharding_of(layout)
    if where is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(sharding=where)
