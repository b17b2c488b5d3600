"""Runs that survive being killed: their state on disk, and what they were asked to do.

A driver that is given a `Checkpoint` writes its state between compiled pieces, and the
same call, made again, goes on from there. Pieces are the same programs wherever a run
was cut, so that the outcome is that of a run that was not, to the bit. Beside the state
is a digest of every argument: a run that was asked to do something else is refused, as
is whatever is no checkpoint, and neither is overwritten. A file that is complete stays
until the next one is, so that a kill while it is written costs no more than any other.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax import storage
from probjax.digest import digest
from probjax.types import PyTree, is_concrete, recipe, static


@recipe
class Checkpoint:
    """Where a run keeps its state: `fit(..., checkpoint=Checkpoint("fit.npz"))`.

    The same call goes on from what the file holds, and returns at once if the run was
    at its end. To begin anew, remove it.

    Args:
        path: a file that ends in `.npz`, or a directory written by Orbax, for arrays
            that are spread over devices (`pip install orbax-checkpoint`).
        every: the least seconds from one writing to the next; 0 for as often as the
            driver comes to the host, which is every `callback_every` steps.
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
    about = {name: digest(value) for name, value in arguments.items()}
    found = form.read()
    if found is not None:
        _check_same(path, driver, about, found)
    # In seconds that no change of the clock upsets.
    written = [time.monotonic()]

    def begin(start):
        if found is None:
            return start()
        return _restored(path, found.leaves, jax.eval_shape(start))

    def keep(state, last=False):
        if last or time.monotonic() - written[0] >= checkpoint.every:
            form.write(_Found(driver, about, jax.tree.leaves(state)))
            written[0] = time.monotonic()

    return Kept(begin, keep)


class _Found(NamedTuple):
    """What is on disk."""

    driver: str
    about: Mapping[str, str]
    """A digest of every argument."""
    leaves: list
    """The arrays of the state."""


class _Form(NamedTuple):
    read: Callable[[], _Found | None]
    write: Callable[[_Found], None]


def _check_same(path, driver, about, found):
    if found.driver != driver:
        raise ValueError(
            f"{path} is the checkpoint of a run of {found.driver}, not of {driver}: "
            "name another file"
        )
    names = sorted(about.keys() | found.about.keys())
    others = [name for name in names if about.get(name) != found.about.get(name)]
    if others:
        raise ValueError(
            f"{path} is the checkpoint of a run with other arguments, as these differ: "
            f"{', '.join(others)}. Name another file, or remove it to begin anew"
        )


def _restored(path, leaves, like):
    """A state like `like` of what was written of its leaves."""
    expected, form = jax.tree.flatten(like)
    shapes = [(leaf.shape, leaf.dtype) for leaf in expected]
    if [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves] != shapes:
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
            case {"driver": str(driver), "about": dict(about), "leaves": list(leaves)}:
                return _Found(driver, about, leaves)
        raise ValueError(f"{path} is a probjax file, but not a checkpoint")

    return _Form(read, lambda found: storage.save(path, found._asdict()))


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
        parts = ocp.args.Composite(
            about=ocp.args.JsonRestore(), leaves=ocp.args.StandardRestore()
        )
        try:
            found = manager.restore(step, args=parts)
            told = found["about"]
            leaves = _from_names(found["leaves"], told["keys"])
            return _Found(told["driver"], told["about"], leaves)
        except Exception as error:
            # A damaged one can fail in any of the parsers: all of it is one trouble.
            message = f"{path} cannot be read as a checkpoint: {error}"
            raise ValueError(message) from error

    def write(found):
        step = manager.latest_step()
        leaves, keys = _by_name(found.leaves)
        told = {"driver": found.driver, "about": found.about, "keys": keys}
        parts = ocp.args.Composite(
            about=ocp.args.JsonSave(told), leaves=ocp.args.StandardSave(leaves)
        )
        manager.save(0 if step is None else step + 1, args=parts, force=True)
        manager.wait_until_finished()

    return _Form(read, write)


def _by_name(leaves: list) -> tuple[dict[str, Any], dict[str, str]]:
    """Arrays by name, keys as the numbers they are made of, with their kinds."""
    named = {f"leaf{i}": jnp.asarray(leaf) for i, leaf in enumerate(leaves)}
    kinds = {}
    for name, leaf in named.items():
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            kinds[name] = str(jax.random.key_impl(leaf))
            named[name] = jax.random.key_data(leaf)
    return named, kinds


def _from_names(named: Mapping[str, Any], kinds: Mapping[str, str]) -> list:
    wrapped = {
        name: jax.random.wrap_key_data(named[name], impl=kind)
        for name, kind in kinds.items()
    }
    whole = {**named, **wrapped}
    return [whole[f"leaf{i}"] for i in range(len(whole))]
