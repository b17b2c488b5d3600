"""Saving and loading of parameters and results, without pickle.

A file is a NumPy `.npz` with one array per leaf and a description, in JSON, of the tree
that holds them: dictionaries, lists, tuples, records and recipes. Classes are written
by registered name (`probjax.runs.stored_names`), and only classes of probjax and optax
are restored, so that a file cannot make a program import anything else. To load a tree
with other classes, pass `like`. Files of version 0.1.0 can be loaded, too.
"""

import copy
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probjax.runs.names_of_0_1_0 import FIELDS_OF_0_1_0, NAMES_OF_0_1_0
from probjax.runs.npz import read_arrays
from probjax.runs.stored_names import class_of, field_names, name_of
from probjax.types import PyTree

_FORMAT, _FORMAT_OF_0_1_0 = "probjax 2", "probjax 1"
_PARTIAL = ".partial"
# Those that `.npz` files and jax both hold, in either byte order.
_DTYPES = {np.dtype(code).name for code in "?bhilqBHILQefdFD"}


def save(path: str | os.PathLike, tree: PyTree) -> None:
    """Write `tree` to `path`. An existing file is replaced only by a complete one.

    >>> from tempfile import TemporaryDirectory
    >>> from probjax import ising
    >>> with TemporaryDirectory() as folder:
    ...     save(f"{folder}/model.npz", ising.from_matrix([[1, 2], [2, 3]]))
    ...     load(f"{folder}/model.npz").bias.tolist()
    [1.0, 3.0]
    """
    arrays: list[np.ndarray] = []
    structure = json.dumps({"format": _FORMAT, "tree": _describe(tree, arrays)})
    leaves: dict[str, Any] = {f"leaf{i}": array for i, array in enumerate(arrays)}
    leaves["structure"] = np.array(structure)
    # The file behind a link is replaced, not the link.
    path = Path(os.path.realpath(path))
    # Every call uses another name, because several threads may save to one path.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_PARTIAL}")
    try:
        with open(partial, "xb") as file:
            # Without `allow_pickle`, which NumPy before 2.2 stores as an array: no leaf
            # is an array of Python objects.
            np.savez(file, **leaves)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def remove_partial_files(path: str | os.PathLike) -> None:
    """Remove files left by processes that were killed while they saved to `path`.

    No other thread or process may be saving to `path`.
    """
    path = Path(path).absolute()
    for file in path.parent.iterdir():
        if file.name.startswith(f".{path.name}.") and file.suffix == _PARTIAL:
            file.unlink(missing_ok=True)


def load(path: str | os.PathLike, *, like: PyTree = None) -> PyTree:
    """Read a file that `save` wrote.

    Args:
        like: tree with the expected structure and shapes. It is required if the file
            holds records of classes that do not belong to probjax or optax.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(f"{folder}/mine.npz", {"filters": jnp.ones((3, 2)), "name": "first"})
    ...     loaded = load(f"{folder}/mine.npz")
    >>> loaded["filters"].shape, loaded["name"]
    ((3, 2), 'first')
    """
    try:
        stored = read_arrays(path)
        header = json.loads(str(stored["structure"]))
        num_leaves = sum(name.startswith("leaf") for name in stored)
        arrays = [stored[f"leaf{i}"] for i in range(num_leaves)]
        if header["format"] not in (_FORMAT, _FORMAT_OF_0_1_0):
            raise ValueError(f"its format is {header['format']!r}, not {_FORMAT!r}")
        is_old = header["format"] == _FORMAT_OF_0_1_0
        tree = _translated(header["tree"]) if is_old else header["tree"]
        return _rebuild(tree, arrays, like)
    except FileNotFoundError:
        raise
    except Exception as error:
        # A damaged file can fail in any of several parsers.
        raise ValueError(f"{path} cannot be read as a probjax file: {error}") from error


def _describe(node: Any, arrays: list[np.ndarray]) -> Any:
    """Describe `node` in JSON, and append its arrays to `arrays` in order."""
    if node is None or isinstance(node, (bool, int, float, str)):
        return {"value": node}
    if isinstance(node, (np.ndarray, np.generic, jax.Array)):
        return _describe_array(node, arrays)
    names = None if isinstance(node, type) else field_names(type(node))
    if names is not None:
        kind = name_of(type(node))
        fields = {
            name: _describe_field(kind, getattr(node, name), arrays) for name in names
        }
        return {"record": kind, "fields": fields}
    if isinstance(node, (tuple, list)):
        kind = "tuple" if isinstance(node, tuple) else "list"
        return {kind: [_describe(child, arrays) for child in node]}
    if isinstance(node, dict) and all(isinstance(name, str) for name in node):
        return {"dict": {name: _describe(node[name], arrays) for name in sorted(node)}}
    raise ValueError(f"cannot save a {type(node).__name__}: {node!r}")


def _describe_field(kind: str, value: Any, arrays: list[np.ndarray]) -> Any:
    """Field of a record in JSON; a function of a foreign class is left to `like`."""
    is_foreign = ":" in kind
    if is_foreign and callable(value) and field_names(type(value)) is None:
        return {"function": getattr(value, "__name__", type(value).__name__)}
    return _describe(value, arrays)


def _describe_array(node, arrays):
    if jnp.issubdtype(node.dtype, jax.dtypes.prng_key):
        arrays.append(_whole(jax.random.key_data(node)))
        return {"leaf": len(arrays) - 1, "key": str(jax.random.key_impl(node))}
    if np.ma.is_masked(node):
        raise ValueError("cannot save a masked array; save its data and its mask")
    array = _whole(node)
    if array.dtype.name not in _DTYPES:
        raise ValueError(f"cannot save an array of {array.dtype}")
    arrays.append(array)
    return {"leaf": len(arrays) - 1}


def _whole(array):
    here = getattr(array, "is_fully_addressable", True)
    # Gathering requires all processes, but perhaps only one of them saves.
    if not (here or array.is_fully_replicated):
        raise ValueError(
            "cannot save an array that is spread over several processes; try "
            "jax.experimental.multihost_utils.process_allgather(array, tiled=True) in "
            "all of them"
        )
    return np.asarray(array)


def _translated(node: Any) -> Any:
    """Translate a description by version 0.1.0 to the names of this version."""
    match node:
        case {"tuple": children}:
            return {"tuple": [_translated(child) for child in children]}
        case {"list": children}:
            return {"list": [_translated(child) for child in children]}
        case {"dict": children}:
            return {"dict": {name: _translated(children[name]) for name in children}}
        case {"record": str(name), "fields": fields}:
            name = NAMES_OF_0_1_0.get(name, name)
            renamed = FIELDS_OF_0_1_0.get(name, {})
            today = {field: renamed.get(field, field) for field in fields}
            fields = {
                new: _translated(fields[old]) for old, new in today.items() if new
            }
            return {"record": name, "fields": fields}
    return node


def _rebuild(node: dict, arrays: list[np.ndarray], like: Any = None) -> Any:
    """Rebuild the tree that `node` describes, with the classes of `like` if given."""
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
            kind = class_of(name) if like is None else type(like)
            _check_fields(name, fields, kind)
            likes = {field: getattr(like, field, None) for field in fields}
            fields = {
                field: _rebuild(child, arrays, likes[field])
                for field, child in fields.items()
            }
            is_foreign = like is not None and ":" in name
            return _replaced(like, fields) if is_foreign else kind(**fields)
        case {"function": name}:
            if like is None:
                raise ValueError(f"it holds the function {name}; pass like= to read it")
            return like
    raise ValueError(f"it holds an unknown node {sorted(node)}")


def _replaced(like: Any, fields: dict) -> Any:
    """Copy of a record or dataclass with new fields, without its constructor.

    The constructor of a class of other libraries, such as an Equinox module, may take
    other arguments than its fields.
    """
    if isinstance(like, tuple):
        return like._replace(**fields)  # pyright: ignore
    found = copy.copy(like)
    for name, value in fields.items():
        object.__setattr__(found, name, value)
    return found


def _check_fields(name, fields, kind):
    """Raise for fields that the class does not have; missing fields have defaults."""
    if unknown := set(fields) - set(field_names(kind) or ()):
        raise ValueError(
            f"it holds a {name} with {', '.join(sorted(unknown))}, which {name} does "
            "not have in this version of probjax"
        )


def _array(array, like):
    if like is not None and jnp.shape(like) != array.shape:
        raise ValueError(f"expected shape {jnp.shape(like)}, got {array.shape}")
    # Files of other programs may be big-endian, and so may be what is saved from them.
    array = array.astype(array.dtype.newbyteorder("="))
    narrow = jax.dtypes.canonicalize_dtype(array.dtype)
    if narrow != array.dtype:
        # Integers that fit keep their values; other numbers would lose digits.
        fits = array.dtype.kind in "iu" and np.array_equal(array.astype(narrow), array)
        if not fits:
            raise ValueError(
                f"it holds {array.dtype} numbers; enable jax_enable_x64 to load them"
            )
    return jax.device_put(array.astype(narrow))


def _check_names(given, expected):
    if set(given) != set(expected):
        raise ValueError(f"expected names {sorted(expected)}, got {sorted(given)}")
