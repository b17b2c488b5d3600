"""Locks that give one run exclusive use of a path, also on a shared file system.

A run takes an advisory lock on a hidden file beside the path. The operating system
releases the lock when the process ends for any reason, so that a killed run does not
block another. The hidden file is removed when the lock is released. If a killed run
left the file behind, the next run uses it.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from probjax.checks import warn

# Descriptors of the locks that this process holds, by path. File systems that emulate
# `flock`, such as NFS, do not exclude threads of one process.
_held: dict[str, int] = {}
_guard = threading.Lock()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock `path`; raise a ValueError if another thread or process has locked it.

    With several JAX processes, process 0 takes the lock. If that fails, all of them
    raise an error.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, locked(Path(folder) / "fit.npz"):
    ...     os.listdir(folder)
    ['.fit.npz.lock']
    """
    error = None
    if jax.process_index() == 0:
        try:
            _acquire(path)
        except ValueError as failure:
            error = failure
    if multihost_utils.broadcast_one_to_all(np.asarray(error is not None)):
        raise error or ValueError(
            f"checkpoint {path} cannot be opened by process 0; see the error of that "
            "process"
        )
    try:
        yield
    finally:
        if jax.process_index() == 0:
            _release(path)


def _acquire(path: Path) -> None:
    with _guard:
        if _name(path) in _held:
            raise _in_use(path)
        while True:
            descriptor = _open(path)
            try:
                _lock(path, descriptor)
                same = _is_same_file(_lock_file(path), descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            if same:
                _held[_name(path)] = descriptor
                return
            # The holder removed the file between the opening and the locking of it.
            os.close(descriptor)


def _release(path: Path) -> None:
    with _guard:
        descriptor = _held.pop(_name(path), None)
        if descriptor is None:
            return
        # Windows cannot remove an open file. Elsewhere the file is removed first: once
        # its lock is released, another run may have locked it already.
        if os.name == "nt":
            os.close(descriptor)
        with suppress(OSError):
            _lock_file(path).unlink()
        if os.name != "nt":
            os.close(descriptor)


def _close_in_child() -> None:
    """Close locks that a fork has copied, so that they end with the parent process."""
    global _guard
    _guard = threading.Lock()
    for descriptor in _held.values():
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _open(path: Path) -> int:
    try:
        return os.open(_lock_file(path), os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ValueError(
            f"checkpoint must be in a folder that can be written to, got {path}: "
            f"{error.strerror}"
        ) from error


def _lock(path: Path, descriptor: int) -> None:
    try:
        _lock_now(descriptor)
    except (BlockingIOError, PermissionError) as error:
        raise _in_use(path) from error
    except OSError as error:
        warn(
            f"{path} is on a file system without locks ({error.strerror}): make sure "
            "that no other run uses this checkpoint"
        )


def _lock_now(descriptor: int) -> None:
    """Lock an open file, or raise an error at once."""
    if os.name == "nt":
        import msvcrt

        msvcrt.locking(  # pyright: ignore[reportAttributeAccessIssue]
            descriptor,
            msvcrt.LK_NBLCK,  # pyright: ignore[reportAttributeAccessIssue]
            1,
        )
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _in_use(path: Path) -> ValueError:
    return ValueError(
        f"checkpoint {path} is in use by another run; try another path, or wait until "
        "that run has ended"
    )


def _name(path: Path) -> str:
    return os.path.join(os.path.realpath(path.absolute().parent), path.name)


def _lock_file(path: Path) -> Path:
    return path.absolute().with_name(f".{path.name}.lock")
