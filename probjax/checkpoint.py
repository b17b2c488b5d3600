"""Runs that survive being killed: their state on disk, and what they were asked to do.

A driver that is given a `Checkpoint` writes its state between compiled pieces, and the
same call, made again, goes on from there. Pieces are the same programs wherever a run
was cut, so that the outcome is that of a run that was not, to the bit. Beside the state
is a digest of every argument: a run that was asked to do something else is refused, as
is whatever is no checkpoint, and neither is overwritten. A file that is complete stays
until the next one is, so that a kill while it is written costs no more than any other.

With the state is written how each array lay on the mesh, and there it is put again: on
as many devices the outcome is the same to the bit. On others a run goes on, too, as
long as its processes are as many, and differs by rounding. Several processes write one
checkpoint, in a folder they share.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from probjax import storage
from probjax.devices import Layout, laid_out, layout_of, on_host, place_of
from probjax.digest import digest
from probjax.types import PyTree, is_concrete, recipe, static


@recipe
class Checkpoint:
    """Where a run keeps its state: `fit(..., watch=Watch(checkpoint=Checkpoint("fit.npz")))`.

    The same call goes on from what the file holds, and returns at once if the run was
    at its end. To begin anew, remove it.

    Args:
        path: a file that ends in `.npz`, or a directory written by Orbax, to which
            every process writes its own part of arrays that are spread over devices,
            so that none need hold them whole (`pip install orbax-checkpoint`).
        every: the least seconds from one writing to the next; 0 for as often as the
            driver comes to the host, which is every `callback_every` steps.

    >>> import tempfile
    >>> from probjax import ScoreMatching, Watch, fit
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / 2
    >>> args = jax.random.key(0), ScoreMatching(energy), jnp.zeros(1), 2 * jnp.eye(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint = Checkpoint(f"{folder}/fit.npz")
    ...     first, again = (fit(*args, watch=Watch(checkpoint=checkpoint)) for _ in range(2))
    >>> bool(first.params == again.params), bool(abs(first.params[0] - 1) < 1e-4)
    (True, True)
    """

    path: str | os.PathLike = static()
    every: float = static(default=60.0)

    def __post_init__(self):
        if not self.every >= 0:
            raise ValueError(f"every must not be negative, got {self.every}")


class Kept(NamedTuple):
    """How a driver keeps its state; without a checkpoint it does not."""

    begin: Callable[[Callable[[], PyTree]], PyTree]
    """The state on disk, or what the function given returns if there is none."""
    keep: Callable[..., None]
    """Write a state if it is time, or if it is the `last`."""


def _begun(start: Callable[[], PyTree]) -> PyTree:
    return start()


def _forget(state: PyTree, last: bool = False) -> None:
    pass


NOT_KEPT = Kept(_begun, _forget)


from contextlib import contextmanager as _cm


@_cm
def opened(checkpoint, driver, arguments):
    """Interim: one state."""
    kept = kept_by(checkpoint, driver, **arguments)

    class Opened:
        count = int(Path(checkpoint.path).exists())

        def restore(self, index, start):
            return kept.begin(start)

        def write(self, states, last=False):
            kept.keep(states[-1], last=last)

    yield Opened()


def kept_by(checkpoint: Checkpoint | None, driver: str, **arguments: Any) -> Kept:
    """What a driver called with `arguments` begins with, and how it keeps its state."""
    if checkpoint is None:
        return NOT_KEPT
    if not is_concrete(arguments):
        raise ValueError(f"a {driver} inside jit or vmap cannot keep a checkpoint")
    path = Path(checkpoint.path)
    if not path.absolute().parent.is_dir():
        raise ValueError(f"checkpoint must be in a folder that exists, got {path}")
    form = _npz(path) if path.suffix == ".npz" else _orbax(path)
    about = _agreed({name: digest(value) for name, value in arguments.items()})
    found = form.read()
    _check_shared(path, found)
    if found is not None:
        _check_same(path, driver, about, found.told)
    # In seconds that no change of the clock upsets.
    written = [time.monotonic()]

    def begin(start):
        if found is None:
            return start()
        return _restored(path, found, jax.eval_shape(start))

    def keep(state, last=False):
        due = last or time.monotonic() - written[0] >= checkpoint.every
        # The clocks of processes differ, but all write or none.
        if multihost_utils.broadcast_one_to_all(np.asarray(due)):
            form.write(_written(driver, about, jax.tree.leaves(state)))
            written[0] = time.monotonic()

    return Kept(begin, keep)


class _Told(NamedTuple):
    """What is known of a state beside its numbers."""

    driver: str
    about: Mapping[str, str]
    """A digest of every argument."""
    kinds: list[str | None]
    """Of which kind leaves are that are keys."""
    layouts: list[Layout]
    """How each lay on the mesh."""


class _Found(NamedTuple):
    """What is on disk."""

    told: _Told
    leaves: list
    """The arrays of the state, keys as the numbers they are made of."""


class _Form(NamedTuple):
    read: Callable[[], _Found | None]
    write: Callable[[_Found], None]


def _agreed(about: dict[str, str]) -> dict[str, str]:
    """Digests of what all processes have, of which each knows its own part."""
    if jax.process_count() == 1:
        return about
    mine = np.array([list(bytes.fromhex(told)) for told in about.values()], np.uint8)
    of_all = np.asarray(multihost_utils.process_allgather(mine))
    return {name: digest(of_all[:, i]) for i, name in enumerate(about)}


def _check_shared(path, found):
    there = multihost_utils.process_allgather(np.asarray(found is not None))
    if np.any(there) and not np.all(there):
        raise ValueError(
            f"checkpoint must be in a folder that all processes share, got {path}, "
            "which only some of them find"
        )


def _check_same(path, driver, about, told):
    if told.driver != driver:
        raise ValueError(
            f"{path} is the checkpoint of a run of {told.driver}, not of {driver}: "
            "name another file"
        )
    names = sorted(about.keys() | told.about.keys())
    others = [name for name in names if about.get(name) != told.about.get(name)]
    if others:
        raise ValueError(
            f"{path} is the checkpoint of a run with other arguments, as these differ: "
            f"{', '.join(others)}. Name another file, or remove it to begin anew"
        )


def _written(driver, about, leaves):
    """What to write of a state."""
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    kinds = [_key_kind(leaf) for leaf in leaves]
    told = _Told(driver, about, kinds, [layout_of(leaf) for leaf in leaves])
    pairs = zip(leaves, kinds, strict=True)
    return _Found(
        told, [jax.random.key_data(leaf) if kind else leaf for leaf, kind in pairs]
    )


def _key_kind(leaf):
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return str(jax.random.key_impl(leaf)) if is_key else None


def _restored(path, found, like):
    """A state like `like` of what was written of its leaves."""
    pairs = zip(found.leaves, found.told.kinds, strict=True)
    leaves = [
        jax.random.wrap_key_data(leaf, impl=kind) if kind else leaf
        for leaf, kind in pairs
    ]
    expected, form = jax.tree.flatten(like)
    shapes = [(leaf.shape, leaf.dtype) for leaf in expected]
    if [(leaf.shape, leaf.dtype) for leaf in leaves] != shapes:
        raise ValueError(
            f"{path} does not hold the state of such a run: was it written by another "
            "version?"
        )
    return form.unflatten(leaves)


def _npz(path: Path) -> _Form:
    # What was killed while it wrote has left these, and nobody else removes them.
    for leftover in path.absolute().parent.glob(f".{path.name}.*"):
        if leftover.suffix[1:].isdigit():
            leftover.unlink(missing_ok=True)

    def read():
        if not path.exists():
            return None
        match storage.load(path):
            case {
                "told": _Told(str(), dict(), list(kinds), list(layouts)) as told,
                "leaves": list(leaves),
            } if len(leaves) == len(kinds) == len(layouts):
                pairs = zip(leaves, layouts, strict=True)
                return _Found(told, [laid_out(np.asarray(x), how) for x, how in pairs])
        raise ValueError(f"{path} is a probjax file, but not a checkpoint")

    def write(found):
        whole = {"told": found.told, "leaves": [on_host(leaf) for leaf in found.leaves]}
        if jax.process_index() == 0:
            storage.save(path, whole)
        multihost_utils.sync_global_devices(f"{path} is written")

    return _Form(read, write)


def _orbax(path: Path) -> _Form:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError(
            f"a checkpoint in a directory, {path}, needs Orbax: pip install "
            "orbax-checkpoint, or name a file that ends in .npz"
        ) from error
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is no directory: name it .npz if it is to be a file")
    manager = ocp.CheckpointManager(
        path.absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=1)
    )

    def read():
        step = manager.latest_step()
        if step is None:
            if any(path.iterdir()):
                raise ValueError(f"{path} holds other things than a checkpoint")
            return None
        try:
            about = ocp.args.Composite(about=ocp.args.JsonRestore())
            told = _Told(**manager.restore(step, args=about)["about"])
            wanted = [_where_to_read(ocp, layout) for layout in told.layouts]
            parts = ocp.args.PyTreeRestore(restore_args=_by_name(wanted))
            parts = ocp.args.Composite(leaves=parts)
            named = manager.restore(step, args=parts)["leaves"]
            leaves = [named[f"leaf{i}"] for i in range(len(named))]
            # What lay on no mesh was written by the host.
            return _Found(told, [jnp.asarray(leaf) for leaf in leaves])
        except Exception as error:
            # A damaged one can fail in any of the parsers: all of it is one trouble.
            message = f"{path} cannot be read as a checkpoint: {error}"
            raise ValueError(message) from error

    def write(found):
        step = manager.latest_step()
        pairs = zip(found.leaves, found.told.layouts, strict=True)
        leaves = [leaf if how is not None else np.asarray(leaf) for leaf, how in pairs]
        parts = ocp.args.Composite(
            about=ocp.args.JsonSave(found.told._asdict()),
            leaves=ocp.args.PyTreeSave(_by_name(leaves)),
        )
        manager.save(0 if step is None else step + 1, args=parts, force=True)
        manager.wait_until_finished()

    return _Form(read, write)


def _by_name(leaves: list) -> dict[str, Any]:
    return {f"leaf{i}": leaf for i, leaf in enumerate(leaves)}


def _where_to_read(ocp, layout):
    """What tells Orbax to put an array down on the mesh, or leave it on the host."""
    where = place_of(layout)
    if where is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(sharding=where)
