"""Stable hashes of a driver's arguments, and one representative of equal functions.

The digest of a value is a hash of the graph of objects that it consists of
(`probjax.runs.contents`). It is the same in every process and for equal values that are
distinct objects. Values may refer to themselves: objects that reach no cycle are hashed
after their parts; for all others, hashes of label and parts are iterated until they
distinguish no more objects, as in the minimisation of automata.

`canonical` replaces a function that was made by a call, such as an optax optimizer, by
the first function with the same content, so that `jax.jit` compiles only once for it.
"""

import dataclasses
import hashlib
import types
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from probjax.runs.contents import UnknownError, content

Value = TypeVar("Value")

_MOST_OBJECTS = 2**15


def digest(value: Any) -> str:
    """Hash of a value, the same in every process.

    Objects whose content cannot be read count by the name of their class.

    >>> digest((1.5, None)) == digest((1.5, None)), digest(1.5) == digest(2.5)
    (True, False)
    """
    return _hash(_graph(value, strict=False))


def strict_digest(value: Any) -> str | None:
    """Hash of everything that a traced function can depend on; None if unreadable.

    Tracers, generators, open files, arrays of more than 2^20 entries, and everything
    that refers to them are unreadable.

    >>> strict_digest(lambda x: x + 1) == strict_digest(lambda x: x + 2)
    False
    >>> strict_digest(x for x in ()) is None
    True
    """
    try:
        return _hash(_graph(value, strict=True))
    except UnknownError:
        return None


# Functions by their content, and the content with which each was first seen. A function
# that has changed since then may have been traced before, so it represents no other.
_first: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_contents: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
# Functions that cannot be read, kept because finding this out can take long.
_unreadable: weakref.WeakSet[Any] = weakref.WeakSet()


def canonical(value: Value) -> Value:
    """Replace each function made by a call by the first function with its content.

    Closures, lambdas and `functools.partial` objects are replaced, also inside tuples,
    lists, dictionaries, named tuples and recipes. Functions of a module, arrays and
    other objects are returned unchanged, as are functions whose content cannot be read.

    >>> import optax
    >>> optax.adam(0.1) == optax.adam(0.1)
    False
    >>> first = canonical(optax.adam(0.1))
    >>> first == canonical(optax.adam(0.1)), first == canonical(optax.adam(0.2))
    (True, False)
    """
    return _canonical(value)


def _canonical(value: Any) -> Any:
    if isinstance(value, partial) or _is_made_by_call(value):
        return _first_like(value)
    if type(value) is dict:
        return _rebuilt(value, value, dict)
    if type(value) in (tuple, list):
        kind = type(value)
        return _rebuilt(value, dict(enumerate(value)), lambda new: kind(new.values()))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        named: Any = value
        return _rebuilt(value, named._asdict(), lambda new: named._replace(**new))
    if _is_recipe(value):
        fields = dataclasses.fields(value)  # pyright: ignore[reportArgumentType]
        names = [field.name for field in fields if field.init]
        parts = {name: getattr(value, name) for name in names}
        return _rebuilt(value, parts, partial(_replaced, value))
    return value


def _rebuilt(value: Any, parts: dict, make: Callable[[dict], Any]) -> Any:
    """Return `make` of the canonical parts, or `value` if no part was replaced."""
    new = {name: _canonical(part) for name, part in parts.items()}
    return value if all(new[name] is parts[name] for name in parts) else make(new)


def _replaced(value: Any, parts: dict) -> Any:
    return dataclasses.replace(value, **parts)


def _is_made_by_call(value: Any) -> bool:
    """Whether the same line of code may have made several functions like this one."""
    return isinstance(value, types.FunctionType) and (
        value.__closure__ is not None or "<" in value.__qualname__
    )


def _is_recipe(value: Any) -> bool:
    return getattr(type(value), "_is_recipe", False)


def _first_like(value: Any) -> Any:
    if value in _unreadable:
        return value
    found = strict_digest(value)
    if found is None:
        _unreadable.add(value)
        return value
    known = _first.get(found)
    # The known function may refer to an object that has changed since.
    if known is not None and (known is value or strict_digest(known) == found):
        return known
    if _contents.setdefault(value, found) == found:
        _first[found] = value
    return value


class _Graph(NamedTuple):
    """Objects that a value consists of, the value itself first."""

    labels: list[bytes]
    parts: list[list[int]]
    ordered: list[bool]


def _graph(value: Any, strict: bool) -> _Graph:
    # The list keeps all objects alive, so that no two of them have the same id.
    objects, numbers = [value], {id(value): 0}
    graph = _Graph([], [], [])
    for each in objects:
        label, parts, ordered = content(each, strict)
        graph.labels.append(_label(label))
        mine = []
        for part in parts:
            number = numbers.setdefault(id(part), len(objects))
            if number == len(objects):
                objects.append(part)
            mine.append(number)
        graph.parts.append(mine)
        graph.ordered.append(ordered)
        if strict and len(objects) > _MOST_OBJECTS:
            raise UnknownError
    return graph


def _label(pieces: tuple[Any, ...]) -> bytes:
    hashed = hashlib.sha256()
    for piece in pieces:
        data = piece.encode() if isinstance(piece, str) else piece
        hashed.update(f"{len(data)} ".encode())
        hashed.update(data)
    return hashed.digest()


def _hash(graph: _Graph) -> str:
    hashes = list(graph.labels)
    cyclic = _hash_acyclic(graph, hashes)
    separated = len({hashes[i] for i in cyclic})
    while cyclic:
        new = [_combined(graph, hashes, i) for i in cyclic]
        for i, each in zip(cyclic, new, strict=True):
            hashes[i] = each
        if len(set(new)) == separated:
            # Together, the hashes of all objects determine the graph.
            hashes[0] = hashlib.sha256(
                b"".join([hashes[0], *sorted(set(new))])
            ).digest()
            break
        separated = len(set(new))
    return hashes[0].hex()[:32]


def _hash_acyclic(graph: _Graph, hashes: list[bytes]) -> list[int]:
    """Set the hashes of all objects that reach no cycle; return the other objects."""
    users = [[] for _ in hashes]
    for i, parts in enumerate(graph.parts):
        for part in parts:
            users[part].append(i)
    missing = [len(parts) for parts in graph.parts]
    ready = [i for i, count in enumerate(missing) if count == 0]
    while ready:
        i = ready.pop()
        hashes[i] = _combined(graph, hashes, i)
        for user in users[i]:
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    return [i for i, count in enumerate(missing) if count]


def _combined(graph: _Graph, hashes: list[bytes], i: int) -> bytes:
    parts = [hashes[part] for part in graph.parts[i]]
    if not graph.ordered[i]:
        parts.sort()
    return hashlib.sha256(b"".join([graph.labels[i], *parts])).digest()
