"""Save and load parameters and results: no pickle, all or nothing.

A file is a NumPy `.npz` with one array per leaf and a description, in JSON, of the tree
they hang on: dictionaries, lists, tuples, records and recipes. Records and recipes are
written by name and read back only if they belong to probjax or optax, so that a file
can name nothing else to import; a tree of your own classes is read back with `like`.
"""

import dataclasses
import importlib
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probjax.types import PyTree

_FORMAT = "probjax 1"
_TRUSTED = ("probjax", "optax")


def save(path: str | os.PathLike, tree: PyTree) -> None:
    """Write `tree` to `path`, replacing what was there only when all is written."""
    arrays: list[np.ndarray] = []
    structure = json.dumps({"format": _FORMAT, "tree": _describe(tree, arrays)})
    leaves = {f"leaf{i}": array for i, array in enumerate(arrays)}
    path = Path(path)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, structure=np.array(structure), **leaves)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def load(path: str | os.PathLike, *, like: PyTree = None) -> PyTree:
    """Read what `save` wrote.

    Args:
        like: a tree with the structure and shapes expected; needed if the file holds
            records of classes that are not the library's own.
    """
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            header = json.loads(str(file["structure"]))
            arrays = [file[f"leaf{i}"] for i in range(len(file.files) - 1)]
    except FileNotFoundError:
        raise
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a whole probjax file: {error}") from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise ValueError(f"{path} is not a file of format {_FORMAT!r}")
    if like is not None:
        return _fill(path, like, arrays)
    return _rebuild(header["tree"], arrays)


def _describe(node: Any, arrays: list[np.ndarray]) -> Any:
    """`node` in JSON, its arrays appended to `arrays` in the order of the tree."""
    if node is None or isinstance(node, (bool, int, float, str)):
        return {"value": node}
    if isinstance(node, (np.ndarray, np.generic, jax.Array)):
        return _describe_array(node, arrays)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        names = [field.name for field in dataclasses.fields(node)]
        return _describe_record(node, names, arrays)
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return _describe_record(node, getattr(node, "_fields"), arrays)  # noqa: B009
    if isinstance(node, (tuple, list)):
        kind = "tuple" if isinstance(node, tuple) else "list"
        return {kind: [_describe(child, arrays) for child in node]}
    if isinstance(node, dict) and all(isinstance(name, str) for name in node):
        return {"dict": {name: _describe(node[name], arrays) for name in sorted(node)}}
    raise ValueError(f"cannot save a {type(node).__name__}: {node!r}")


def _describe_array(node, arrays):
    random = jnp.issubdtype(node.dtype, jax.dtypes.prng_key)
    arrays.append(np.asarray(jax.random.key_data(node) if random else node))
    place = {"leaf": len(arrays) - 1}
    return {**place, "key": str(jax.random.key_impl(node))} if random else place


def _describe_record(node, names, arrays):
    name = f"{type(node).__module__}:{type(node).__qualname__}"
    fields = {field: _describe(getattr(node, field), arrays) for field in names}
    return {"record": name, "fields": fields}


def _rebuild(node: dict, arrays: list[np.ndarray]) -> Any:
    match node:
        case {"value": value}:
            return value
        case {"leaf": index, "key": kind}:
            return jax.random.wrap_key_data(arrays[index], impl=kind)
        case {"leaf": index}:
            return jnp.asarray(arrays[index])
        case {"tuple": children}:
            return tuple(_rebuild(child, arrays) for child in children)
        case {"list": children}:
            return [_rebuild(child, arrays) for child in children]
        case {"dict": children}:
            return {name: _rebuild(child, arrays) for name, child in children.items()}
        case {"record": name, "fields": fields}:
            fields = {name: _rebuild(child, arrays) for name, child in fields.items()}
            return _trusted_class(name)(**fields)
    raise ValueError(f"a probjax file cannot hold {sorted(node)}")


def _trusted_class(name):
    module, _, path = name.partition(":")
    if module.partition(".")[0] not in _TRUSTED:
        raise ValueError(f"the file holds a {name}; pass like= to read it")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    is_record = dataclasses.is_dataclass(found) or hasattr(found, "_fields")
    if not (isinstance(found, type) and is_record):
        raise ValueError(f"the file names {name}, which is no record")
    return found


def _fill(path, like, arrays):
    leaves, form = jax.tree.flatten(like)
    shapes = [jnp.shape(leaf) for leaf in leaves]
    found = [array.shape for array in arrays]
    if shapes != found:
        raise ValueError(f"{path} holds arrays of shapes {found}, expected {shapes}")
    return jax.tree.unflatten(form, [jnp.asarray(array) for array in arrays])
