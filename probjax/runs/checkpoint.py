"""Checkpoints: states of a run on disk, from which the same call continues.

A driver that is given a `Checkpoint` writes its states between compiled pieces, and the
same call, repeated, continues from them. The pieces are the same programs wherever a
run was interrupted, so the result is equal to that of an uninterrupted run, bit by bit.
The file also holds the driver's name, a digest of every argument and the version of
probjax. A file of another driver, of other arguments or of another version is
rejected and not overwritten, as is any other file. A complete file is replaced only by
a complete one, so that a kill during writing loses one write at most.

The layout of each array on the mesh is written with it and restored: on the same number
of devices the result is equal bit by bit. On another number of devices, with the same
number of processes, a run also continues, but its result differs by rounding. Several
processes write one checkpoint, in a folder that they share. While a run is active, its
checkpoint is locked: a second run with the same path raises an error.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from probjax.checks import is_concrete
from probjax.devices import layout_of
from probjax.recipe import recipe, static
from probjax.runs.checkpoint_files import (
    FileFormat,
    Header,
    Saved,
    file_format,
    this_version,
)
from probjax.runs.digest import digest
from probjax.runs.locks import locked
from probjax.types import PyTree


@recipe
class Checkpoint:
    """Path of a run's checkpoint: `Watch(checkpoint=Checkpoint("fit.npz"))`.

    The same call continues from the states in the file, and returns at once if the run
    had ended. To start again, remove the file.

    Args:
        path: a file that ends in `.npz`, or a directory to be written by Orbax
            (`pip install orbax-checkpoint`). With Orbax every process writes its own
            part of each array, so that no process holds a whole array.
        every: smallest number of seconds between two writes; 0 to write whenever the
            driver returns to the host, which is every `Watch.every` steps.

    >>> import tempfile
    >>> from probjax import ScoreMatching, Watch, fit
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / 2
    >>> args = jax.random.key(0), ScoreMatching(energy), jnp.zeros(1), 2 * jnp.eye(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint = Checkpoint(f"{folder}/fit.npz")
    ...     watch = Watch(checkpoint=checkpoint)
    ...     first, again = (fit(*args, watch=watch) for _ in range(2))
    >>> bool(first.params == again.params), bool(abs(first.params[0] - 1) < 1e-4)
    (True, True)
    """

    path: str | os.PathLike = static()
    every: float = static(default=60.0)

    def __post_init__(self):
        if not self.every >= 0:
            raise ValueError(f"every must not be negative, got {self.every}")


class OpenCheckpoint:
    """Open checkpoint of one run: a list of states, of which the last is current.

    A run in stages writes the final states of its finished stages, followed by the
    state of the current stage.
    """

    count: int
    """Number of states on disk when the checkpoint was opened; 0 without a file."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        driver: str,
        digests: dict[str, str],
        file: FileFormat,
    ):
        path = Path(checkpoint.path)
        saved = file.read()
        _check_shared(path, saved)
        if saved is not None:
            _check_same(path, driver, digests, saved.header)
        self.count = 0 if saved is None else len(saved.header.num_leaves)
        self._path, self._every, self._file = path, checkpoint.every, file
        self._driver, self._digests, self._saved = driver, digests, saved
        # The monotonic clock, because the system's clock may be changed.
        self._last_write = time.monotonic()

    def restore(self, index: int, start: Callable[[], PyTree]) -> PyTree:
        """Return state number `index` on disk, with the structure of `start()`.

        `start` is traced to compute shapes, but not run.
        """
        saved = self._saved
        if saved is None or not 0 <= index < self.count:
            raise ValueError(f"index must be below {self.count}, got {index}")
        first = sum(saved.header.num_leaves[:index])
        mine = slice(first, first + saved.header.num_leaves[index])
        pairs = zip(saved.leaves[mine], saved.header.key_kinds[mine], strict=True)
        leaves = [
            jax.random.wrap_key_data(leaf, impl=kind) if kind else leaf
            for leaf, kind in pairs
        ]
        expected, structure = jax.tree.flatten(jax.eval_shape(start))
        shapes = [(leaf.shape, leaf.dtype) for leaf in expected]
        if [(leaf.shape, leaf.dtype) for leaf in leaves] != shapes:
            raise ValueError(
                f"{self._path} does not hold a state of this run: its arrays differ in "
                "number, shape or dtype; remove it to start again"
            )
        return structure.unflatten(leaves)

    def write(self, states: Sequence[PyTree], last: bool = False) -> None:
        """Write all `states` to one file.

        Nothing is written if less than `checkpoint.every` seconds have passed since the
        last write, unless these states are the `last`.
        """
        due = last or time.monotonic() - self._last_write >= self._every
        # The clocks of processes differ, but all of them must write or none.
        if multihost_utils.broadcast_one_to_all(np.asarray(due)):
            self._file.write(_to_save(self._driver, self._digests, states))
            self._last_write = time.monotonic()


@contextmanager
def open_checkpoint(
    checkpoint: Checkpoint, driver: str, arguments: Mapping[str, Any]
) -> Iterator[OpenCheckpoint]:
    """Open a checkpoint for one run, and lock it until the run ends.

    A file that another run is using, or that was written by another driver, with other
    arguments or by another version, raises a ValueError.

    Args:
        driver: name of the function that runs.
        arguments: arguments that determine its result, by name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint = Checkpoint(f"{folder}/count.npz")
    ...     for _ in range(2):
    ...         with open_checkpoint(checkpoint, "count", {"stop": 9}) as run:
    ...             start = lambda: jnp.zeros(())
    ...             state = run.restore(0, start) if run.count else start()
    ...             run.write([state + 1], last=True)
    ...             print(run.count, state)
    0 0.0
    1 1.0
    """
    path, digests = _check_arguments(checkpoint, driver, arguments)
    with locked(path):
        file = file_format(path)
        try:
            yield OpenCheckpoint(checkpoint, driver, digests, file)
        finally:
            file.close()


def _check_arguments(
    checkpoint: Checkpoint, driver: str, arguments: Mapping[str, Any]
) -> tuple[Path, dict[str, str]]:
    """Return the path and the digests of the arguments, after checks."""
    if not is_concrete(dict(arguments)):
        raise ValueError(
            f"{driver} inside jit or vmap cannot write a checkpoint; try "
            "checkpoint=None"
        )
    path = Path(checkpoint.path)
    if not path.absolute().parent.is_dir():
        raise ValueError(f"checkpoint must be in a folder that exists, got {path}")
    digests = {name: digest(value) for name, value in arguments.items()}
    return path, _combine_processes(digests)


def _combine_processes(digests: dict[str, str]) -> dict[str, str]:
    """Combine the digests of all processes, which may have different rows."""
    if jax.process_count() == 1:
        return digests
    mine = np.array([list(bytes.fromhex(each)) for each in digests.values()], np.uint8)
    gathered = np.asarray(multihost_utils.process_allgather(mine))
    return {name: digest(gathered[:, i]) for i, name in enumerate(digests)}


def _check_shared(path: Path, saved: Saved | None) -> None:
    exists = multihost_utils.process_allgather(np.asarray(saved is not None))
    if np.any(exists) and not np.all(exists):
        raise ValueError(
            f"checkpoint must be in a folder that all processes share, got {path}, "
            "which exists only for some of them"
        )


def _check_same(
    path: Path, driver: str, digests: dict[str, str], header: Header
) -> None:
    if header.driver != driver:
        raise ValueError(
            f"{path} is the checkpoint of a run of {header.driver}, not of {driver}; "
            "try another path"
        )
    names = sorted(digests.keys() | header.digests.keys())
    others = [name for name in names if digests.get(name) != header.digests.get(name)]
    if others:
        raise ValueError(
            f"{path} is the checkpoint of a run with other values of these arguments: "
            f"{', '.join(others)}; try another path, or remove it to start again"
        )


def _to_save(driver: str, digests: dict[str, str], states: Sequence[PyTree]) -> Saved:
    """Build the content of a checkpoint that holds `states`."""
    trees = [jax.tree.leaves(state) for state in states]
    leaves = [jnp.asarray(leaf) for tree in trees for leaf in tree]
    kinds = [_key_kind(leaf) for leaf in leaves]
    header = Header(
        version=this_version(),
        driver=driver,
        digests=digests,
        num_leaves=[len(tree) for tree in trees],
        key_kinds=kinds,
        layouts=[layout_of(leaf) for leaf in leaves],
    )
    pairs = zip(leaves, kinds, strict=True)
    return Saved(
        header, [jax.random.key_data(leaf) if kind else leaf for leaf, kind in pairs]
    )


def _key_kind(leaf: jax.Array) -> str | None:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return str(jax.random.key_impl(leaf)) if is_key else None
