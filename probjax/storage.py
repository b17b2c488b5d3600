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
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probjax.archives import read_arrays
from probjax.types import PyTree

_FORMAT = "probjax 1"
_TRUSTED = ("probjax", "optax")


def save(path: str | os.PathLike, tree: PyTree) -> None:
    """Write `tree` to `path`, replacing what was there only when all is written.

    >>> from tempfile import TemporaryDirectory
    >>> from probjax import ising
    >>> with TemporaryDirectory() as folder:
    ...     save(f"{folder}/model.npz", ising.from_matrix([[1, 2], [2, 3]]))
    ...     load(f"{folder}/model.npz").bias.tolist()
    [1.0, 3.0]
    """
    arrays: list[np.ndarray] = []
    structure = json.dumps({"format": _FORMAT, "tree": _describe(tree, arrays)})
    leaves = {f"leaf{i}": array for i, array in enumerate(arrays)}
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            np.savez(file, allow_pickle=False, structure=np.array(structure), **leaves)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | os.PathLike, *, like: PyTree = None) -> PyTree:
    """Read what `save` wrote.

    Args:
        like: a tree with the structure and shapes expected; needed if the file holds
            records of classes that are not the library's own.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(f"{folder}/mine.npz", {"filters": jnp.ones((3, 2)), "name": "first"})
    ...     found = load(f"{folder}/mine.npz")
    >>> found["filters"].shape, found["name"]
    ((3, 2), 'first')
    """
    try:
        found = read_arrays(path)
        header = json.loads(str(found["structure"]))
        arrays = [found[f"leaf{i}"] for i in range(len(found) - 1)]
        if header["format"] != _FORMAT:
            raise ValueError(f"its format is {header['format']!r}, not {_FORMAT!r}")
        return _rebuild(header["tree"], arrays, like)
    except FileNotFoundError:
        raise
    except Exception as error:
        # A damaged file can fail in any of the parsers: all of it is one trouble.
        raise ValueError(f"{path} cannot be read as a probjax file: {error}") from error


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
    if jnp.issubdtype(node.dtype, jax.dtypes.prng_key):
        arrays.append(_whole(jax.random.key_data(node)))
        return {"leaf": len(arrays) - 1, "key": str(jax.random.key_impl(node))}
    array = _whole(node)
    if array.dtype.kind not in "biufc":
        raise ValueError(f"cannot save an array of {array.dtype}")
    arrays.append(array)
    return {"leaf": len(arrays) - 1}


def _whole(array):
    here = getattr(array, "is_fully_addressable", True)
    # Gathered it is by all processes or none, and one alone may have been asked.
    if not (here or array.is_fully_replicated):
        raise ValueError(
            "cannot save an array of which other processes hold parts: let all of them "
            "gather it, by jax.experimental.multihost_utils.process_allgather(array, "
            "tiled=True)"
        )
    return np.asarray(array)


def _describe_record(node, names, arrays):
    name = f"{type(node).__module__}:{type(node).__qualname__}"
    fields = {field: _describe(getattr(node, field), arrays) for field in names}
    return {"record": name, "fields": fields}


def _rebuild(node: dict, arrays: list[np.ndarray], like: Any = None) -> Any:
    """The tree that `node` describes, in the classes of `like` where that is given."""
    match node:
        case {"value": value}:
            return value
        case {"leaf": index, "key": kind}:
            return jax.random.wrap_key_data(arrays[index], impl=kind)
        case {"leaf": index}:
            return _array(arrays[index], like)
        case {"tuple": children} | {"list": children}:
            kind = tuple if "tuple" in node else list
            likes = [None] * len(children) if like is None else like
            pairs = zip(children, likes, strict=True)
            return kind(_rebuild(child, arrays, each) for child, each in pairs)
        case {"dict": children}:
            likes = dict.fromkeys(children) if like is None else like
            _check_names(children, likes)
            return {
                name: _rebuild(child, arrays, likes[name])
                for name, child in children.items()
            }
        case {"record": name, "fields": fields}:
            kind = _trusted_class(name) if like is None else type(like)
            likes = {field: getattr(like, field, None) for field in fields}
            fields = {
                field: _rebuild(child, arrays, likes[field])
                for field, child in fields.items()
            }
            return kind(**fields)
    raise ValueError(f"it holds an unknown node {sorted(node)}")


def _array(array, like):
    if like is not None and jnp.shape(like) != array.shape:
        raise ValueError(f"expected shape {jnp.shape(like)}, found {array.shape}")
    if array.dtype == np.float64 and not jax.config.jax_enable_x64:  # pyright: ignore
        raise ValueError("it holds float64 numbers: enable jax_enable_x64 to load them")
    return jax.device_put(array)


def _check_names(found, expected):
    if set(found) != set(expected):
        raise ValueError(f"expected names {sorted(expected)}, found {sorted(found)}")


def _trusted_class(name):
    module, _, path = name.partition(":")
    if module.partition(".")[0] not in _TRUSTED:
        raise ValueError(f"it holds a {name}; pass like= to read it")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    is_record = dataclasses.is_dataclass(found) or hasattr(found, "_fields")
    if not (isinstance(found, type) and is_record):
        raise ValueError(f"it names {name}, which is no record")
    return found
