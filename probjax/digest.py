"""By what a run is known again: a digest of anything a driver can be asked to work on.

Arrays count by their bytes, functions by their name, their code and what they have
closed over, recipes and records by their fields. What a function looks up in its module
when it is called is not followed.
"""

import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def digest(value: Any) -> str:
    """The same for the same value, in any process.

    >>> digest((1.5, None)) == digest((1.5, None)), digest(1.5) == digest(2.5)
    (True, False)
    """
    told = hashlib.sha256()
    _tell(told, value, ())
    return told.hexdigest()[:32]


def canonical(value: Any) -> Any:
    """Interim."""
    return value


def _tell(told: Any, value: Any, within: tuple[int, ...]) -> None:
    if id(value) in within:
        # A function that calls itself is among what it has closed over.
        told.update(b"again")
        return
    label, children = _parts(value)
    told.update(label.encode() if isinstance(label, str) else label)
    told.update(f"({len(children)})".encode())
    for child in children:
        _tell(told, child, (*within, id(value)))


@functools.singledispatch
def _parts(value: Any) -> tuple[Any, list]:
    """What a value is by itself, and what it is made of."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return _kind(value), [getattr(value, name) for name in fields]
    # What is compiled, or has derivatives of its own, is around a function.
    inner = getattr(value, "__wrapped__", None) or getattr(value, "__dict__", {})
    return _kind(value), [inner]


def _kind(value: Any) -> str:
    return _name(type(value))


def _name(value: Any) -> str:
    return f"{value.__module__}:{value.__qualname__}"


@_parts.register(type(None))
@_parts.register(bool)
@_parts.register(int)
@_parts.register(float)
@_parts.register(complex)
@_parts.register(str)
@_parts.register(bytes)
def _of_value(value: Any) -> tuple[str, list]:
    return f"{type(value).__name__} {value!r}", []


@_parts.register(np.ndarray)
@_parts.register(np.generic)
@_parts.register(jax.Array)
def _of_array(value: Any) -> tuple[str, list]:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        kind = str(jax.random.key_impl(value))
        return f"key {kind}", [jax.random.key_data(value)]
    if not getattr(value, "is_fully_addressable", True):
        shards = [np.asarray(shard.data) for shard in value.addressable_shards]
        return "shards", shards
    flat = np.ascontiguousarray(value).reshape(-1)
    return f"{flat.dtype} {np.shape(value)} ", [flat.view(np.uint8).data]


@_parts.register(memoryview)
def _of_bytes(value: memoryview) -> tuple[memoryview, list]:
    return value, []


@_parts.register(list)
@_parts.register(tuple)
def _of_sequence(value: Iterable) -> tuple[str, list]:
    return _kind(value), list(value)


@_parts.register(Mapping)
def _of_mapping(value: Mapping) -> tuple[str, list]:
    return "mapping", sorted(value.items(), key=lambda item: repr(item[0]))


@_parts.register(set)
@_parts.register(frozenset)
def _of_set(value: Iterable) -> tuple[str, list]:
    return "set", sorted(map(repr, value))


@_parts.register(types.FunctionType)
def _of_function(value: Any) -> tuple[str, list]:
    cells = [_content(cell) for cell in value.__closure__ or ()]
    given = (value.__defaults__, value.__kwdefaults__)
    return _name(value), [_undocumented(value), given, *cells]


def _undocumented(value: Any) -> types.CodeType:
    """The code of a function without its documentation, which may change freely."""
    code = value.__code__
    constants = code.co_consts
    if value.__doc__ is not None and constants[:1] == (value.__doc__,):
        constants = (None, *constants[1:])
    return code.replace(co_consts=constants)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "nothing yet"


@_parts.register(types.CodeType)
def _of_code(value: types.CodeType) -> tuple[bytes, list]:
    return value.co_code, [value.co_names, *value.co_consts]


@_parts.register(types.MethodType)
def _of_method(value: types.MethodType) -> tuple[str, list]:
    return "method", [value.__func__, value.__self__]


@_parts.register(functools.partial)
def _of_partial(value: functools.partial) -> tuple[str, list]:
    return "partial", [value.func, value.args, value.keywords]


@_parts.register(type)
@_parts.register(types.BuiltinFunctionType)
@_parts.register(types.ModuleType)
def _of_named(value: Any) -> tuple[str, list]:
    return f"{getattr(value, '__module__', '')} {value.__name__}", []
