"""Contents of Python objects, as far as they determine what a program computes.

Each object is described by a label and the objects it consists of. The label of an
array is its bytes. A function consists of its code, its defaults, the variables of its
closure and the globals that it names; a recipe or record of its fields; any other
object of what `pickle` would store. Of a module, only the members that a function reads
by name count. Classes of installed packages, of the standard library and of probjax
count by name only, and globals of functions in those packages are not followed.
"""

import dataclasses
import dis
import functools
import os
import sys
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

MOST_ENTRIES = 2**20

_READ_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_READ_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")


class UnknownError(Exception):
    """Raised for an object whose content cannot be read."""


class Content(NamedTuple):
    """One level of an object."""

    label: tuple[str | bytes | memoryview, ...]
    """Description of the object without its parts."""
    parts: Iterable[Any] = ()
    """Objects that it consists of."""
    ordered: bool = True
    """Whether the order of the parts matters."""


def content(value: Any, strict: bool) -> Content:
    """Return the label and the parts of `value`.

    Args:
        strict: if True, describe everything that a traced function can depend on, such
            as the order of dictionaries, and raise an `UnknownError` if that is not
            possible. If False, equal values have equal contents, and objects that
            cannot be described count by the name of their class.
    """
    try:
        if isinstance(value, Tracer):
            raise UnknownError
        return _content(value, strict)
    except Exception as error:
        # Reading an unknown object can raise any error.
        if strict:
            raise UnknownError from error
        return _by_members(value)


def _by_members(value: Any) -> Content:
    """Describe an object that cannot be pickled by its attributes, if it has any."""
    wrapped = getattr(value, "__wrapped__", None)
    members = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            members[name] = getattr(value, name, None)
    return Content(("unknown", _name(type(value))), [wrapped, members])


@functools.singledispatch
def _content(value: Any, strict: bool) -> Content:
    if dataclasses.is_dataclass(value) and not strict:
        names = [field.name for field in dataclasses.fields(value)]
        fields = [getattr(value, name) for name in names]
        return Content(("record", repr(names)), [type(value), *fields])
    return _pickled(value)


def _pickled(value: Any) -> Content:
    """Describe an object by what `pickle` would store; some objects raise an error."""
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return Content(("named", reduced), [type(value)])
    make, args, state, items, pairs = (*reduced, None, None, None)[:5]
    parts = [make, args, state, list(items or ()), list(pairs or ())]
    return Content(("object",), [type(value), *parts])


@_content.register(type(None))
@_content.register(type(Ellipsis))
@_content.register(bool)
@_content.register(int)
@_content.register(float)
@_content.register(complex)
@_content.register(str)
@_content.register(bytes)
def _atom(value: Any, strict: bool) -> Content:
    kind = type(value)
    if kind.__module__ != "builtins":
        return _pickled(value)
    # Hexadecimal, because Python limits the number of decimal digits.
    return Content((kind.__name__, hex(value) if kind is int else repr(value)))


@_content.register(np.ndarray)
@_content.register(np.generic)
@_content.register(jax.Array)
def _array(value: Any, strict: bool) -> Content:
    if isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.memmap):
        return _pickled(value)
    if strict and (value.size > MOST_ENTRIES or not _is_here(value)):
        raise UnknownError
    about = ""
    if strict:
        is_host = isinstance(value, (np.ndarray, np.generic))
        about = "host" if is_host else f"{value.weak_type} {value.sharding}"
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        kind = str(jax.random.key_impl(value))
        return Content(("key", kind), [jax.random.key_data(value)])
    if not _is_here(value):
        shards = getattr(value, "addressable_shards")  # noqa: B009
        return Content(("shards",), [shard.data for shard in shards])
    if value.dtype.hasobject:
        return Content(("objects", repr(value.shape)), value.reshape(-1).tolist())
    flat = np.ascontiguousarray(value).reshape(-1)
    label = f"{flat.dtype} {np.shape(value)} {about}"
    return Content((label, flat.view(np.uint8).data))


def _is_here(value: Any) -> bool:
    return getattr(value, "is_fully_addressable", True)


@_content.register(list)
@_content.register(tuple)
def _sequence(value: Any, strict: bool) -> Content:
    kind = type(value)
    if kind not in (list, tuple) and not hasattr(kind, "_fields"):
        return _pickled(value)
    return Content(("sequence",), [kind, *value])


@_content.register(Mapping)
def _mapping(value: Mapping, strict: bool) -> Content:
    if strict:
        pairs = [part for pair in value.items() for part in pair]
        return Content(("mapping",), [type(value), *pairs])
    return Content(("mapping",), list(value.items()), ordered=False)


@_content.register(set)
@_content.register(frozenset)
def _set(value: Any, strict: bool) -> Content:
    return Content(("set",), value, ordered=False)


@_content.register(types.FunctionType)
def _function(value: Any, strict: bool) -> Content:
    given = (value.__defaults__, value.__kwdefaults__)
    parts = [_undocumented(value), given, *(value.__closure__ or ())]
    # Decorators change the module of a function, but not its globals.
    if is_installed(value.__globals__.get("__name__")):
        return Content(("function", _name(value)), [*parts, vars(value)])
    names = read_names(value.__code__)
    found = [name for name in names.globals if name in value.__globals__]
    followed = [value.__globals__[name] for name in found]
    for each in followed:
        parts += _members(each, names.attributes, set())
    label = ("function", _name(value), repr(found))
    return Content(label, [*parts, *followed, vars(value)])


def _members(module: Any, names: Collection[str], seen: set[int]) -> list:
    """Return the members with the given names of a user's module and its submodules."""
    if not isinstance(module, types.ModuleType) or is_installed(module.__name__):
        return []
    seen.add(id(module))
    found = [vars(module)[name] for name in names if name in vars(module)]
    inner = [each for each in found if id(each) not in seen]
    return found + [part for each in inner for part in _members(each, names, seen)]


def _undocumented(value: Any) -> types.CodeType:
    """Return the code of a function without its docstring, which changes no result."""
    code = value.__code__
    constants = code.co_consts
    if value.__doc__ is not None and constants[:1] == (value.__doc__,):
        constants = (None, *constants[1:])
    return code.replace(co_consts=constants)


class Names(NamedTuple):
    """Names that a code object and those inside it read, sorted."""

    globals: tuple[str, ...]
    attributes: tuple[str, ...]


@functools.lru_cache(4096)
def read_names(code: types.CodeType) -> Names:
    """Return the names of the globals and attributes that a code object reads.

    >>> read_names((lambda x: print(x.shape, [len(y) for y in x])).__code__)
    Names(globals=('len', 'print'), attributes=('shape',))
    """
    steps = list(dis.get_instructions(code))
    found = {step.argval for step in steps if step.opname in _READ_GLOBAL}
    others = {step.argval for step in steps if step.opname in _READ_ATTRIBUTE}
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    for each in map(read_names, inner):
        found.update(each.globals)
        others.update(each.attributes)
    return Names(tuple(sorted(found)), tuple(sorted(others)))


@_content.register(types.CellType)
def _cell(value: types.CellType, strict: bool) -> Content:
    try:
        return Content(("cell",), [value.cell_contents])
    except ValueError:
        return Content(("empty cell",))


@_content.register(types.CodeType)
def _code(value: types.CodeType, strict: bool) -> Content:
    counts = (value.co_posonlyargcount, value.co_argcount, value.co_kwonlyargcount)
    arguments = value.co_varnames[: sum(counts[1:])]
    about = (counts, arguments, value.co_flags, value.co_names, value.co_exceptiontable)
    return Content(("code", value.co_code, repr(about)), value.co_consts)


@_content.register(type)
def _class(value: Any, strict: bool) -> Content:
    label = ("class", _name(value))
    if is_installed(value.__module__):
        return Content(label)
    members = {
        name: member
        for name, member in sorted(vars(value).items())
        if _is_callable_member(member) or _is_value(name, member)
    }
    parts = [*value.__bases__, *members.values()]
    return Content((*label, repr(list(members))), parts)


def _is_callable_member(member: Any) -> bool:
    kinds = (types.FunctionType, staticmethod, classmethod, property)
    return isinstance(member, (*kinds, functools.cached_property))


def _is_value(name: str, member: Any) -> bool:
    """Whether a member of a class is a value that its author has set."""
    is_special = name.startswith("__") or name == "_abc_impl"
    # Slots and fields of named tuples are not values: their names are in the label.
    is_field = hasattr(type(member), "__set__") and not hasattr(member, "__dict__")
    return not (is_special or is_field)


@_content.register(staticmethod)
@_content.register(classmethod)
def _wrapped_method(value: Any, strict: bool) -> Content:
    return Content((type(value).__name__,), [value.__func__])


@_content.register(property)
def _property(value: property, strict: bool) -> Content:
    return Content(("property",), [value.fget, value.fset, value.fdel])


@_content.register(functools.cached_property)
def _cached_property(value: functools.cached_property, strict: bool) -> Content:
    return Content(("cached property",), [value.func])


@_content.register(dataclasses.Field)
def _field(value: dataclasses.Field, strict: bool) -> Content:
    given = (value.default, value.default_factory, value.metadata)
    return Content(("field", repr((value.name, value.init, value.kw_only))), given)


@_content.register(types.MethodType)
def _method(value: types.MethodType, strict: bool) -> Content:
    return Content(("method",), [value.__func__, value.__self__])


@_content.register(functools.partial)
def _partial(value: functools.partial, strict: bool) -> Content:
    given = (value.func, value.args, value.keywords, vars(value))
    return Content(("partial",), [type(value), *given])


@_content.register(type(functools.lru_cache(len)))
def _cached(value: Any, strict: bool) -> Content:
    return Content(("cached",), [value.__wrapped__])


@_content.register(type(jax.jit(len)))
def _compiled(value: Any, strict: bool) -> Content:
    # Options of the compilation affect a program that calls it, but not its result.
    options = [value._jit_info._replace(fun_sourceinfo=None)] if strict else []
    return Content(("compiled",), [value.__wrapped__, *options])


@_content.register(jax.tree_util.PyTreeDef)
def _structure(value: Any, strict: bool) -> Content:
    return Content(("structure",), [value.node_data(), *value.children()])


@_content.register(types.BuiltinFunctionType)
def _builtin(value: Any, strict: bool) -> Content:
    owner = value.__self__
    label = ("builtin", f"{value.__module__} {value.__qualname__}")
    return Content(label, [] if isinstance(owner, types.ModuleType) else [owner])


@_content.register(types.ModuleType)
def _module(value: types.ModuleType, strict: bool) -> Content:
    return Content(("module", value.__name__))


@_content.register(np.ufunc)
def _ufunc(value: np.ufunc, strict: bool) -> Content:
    # Functions made by `np.frompyfunc` hold another function, which cannot be read.
    if getattr(np, value.__name__, None) is not value:
        raise UnknownError
    return Content(("ufunc", value.__name__))


@_content.register(types.MethodDescriptorType)
@_content.register(types.WrapperDescriptorType)
def _descriptor(value: Any, strict: bool) -> Content:
    return Content(("descriptor", value.__name__), [value.__objclass__])


def _name(value: Any) -> str:
    return f"{value.__module__}:{value.__qualname__}"


def is_installed(module: str | None) -> bool:
    """Whether a module belongs to an installed package, to probjax or to Python.

    `__main__` does not count as installed: even installed programs, such as notebook
    kernels, execute code of the user in it.

    >>> is_installed("optax"), is_installed("math"), is_installed("__main__")
    (True, True, False)
    """
    if module is None or module in ("__main__", "__mp_main__"):
        return False
    package = module.partition(".")[0]
    if package == "probjax" or package in sys.stdlib_module_names:
        return True
    found = sys.modules.get(module) or sys.modules.get(package)
    path = getattr(found, "__file__", None) or next(
        iter(getattr(found, "__path__", [])), ""
    )
    folders = path.replace(os.sep, "/").split("/")
    return "site-packages" in folders or "dist-packages" in folders
