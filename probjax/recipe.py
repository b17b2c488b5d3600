"""Recipes: frozen dataclasses that are pytrees.

The numbers of a recipe are traced, and its functions and sizes are `static()`. A recipe
can therefore be rebuilt with other numbers in a loop without compiling again.
"""

import dataclasses
import inspect
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

__all__ = ["recipe", "static"]

Class = TypeVar("Class", bound=type)


def static(**options: Any) -> Any:
    """Declare a field of a recipe as static: a hashable function, size or string.

    A static field is part of the compiled program and not a leaf of the pytree:

    >>> @recipe
    ... class Ladder:
    ...     height: float
    ...     rungs: int = static(default=3)
    >>> jax.tree.leaves(Ladder(2.0))
    [2.0]
    """
    return dataclasses.field(metadata={"static": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def recipe(cls: Class) -> Class:
    """Make `cls` a frozen dataclass and a pytree that compares by value.

    Fields made with `static()` are part of the tree structure; all other fields are
    children, which `jit` traces. A Python or NumPy number in a field annotated `float`
    becomes a float, so that `1` and `1.0` share a program. Tracers are not converted.

    >>> @recipe
    ... class Ladder:
    ...     height: float
    ...     rungs: int = static(default=3)
    >>> Ladder(2)
    Ladder(height=2.0, rungs=3)
    >>> Ladder(2) == Ladder(2.0), Ladder(2) == Ladder(2.0, rungs=4)
    (True, False)
    """
    check = getattr(cls, "__post_init__", None)

    def complete(self):
        for field in fields:
            value = getattr(self, field.name)
            if _is_float(field.type) and isinstance(value, (int, np.number)):
                object.__setattr__(self, field.name, float(value))
        if check is not None:
            check(self)

    def equal(self, other):
        if type(self) is not type(other):
            return NotImplemented
        mine, form = jax.tree.flatten(self)
        theirs, other_form = jax.tree.flatten(other)
        return form == other_form and all(map(np.array_equal, mine, theirs))

    _hide_inherited(cls)
    cls.__post_init__ = complete
    cls.__eq__ = equal  # pyright: ignore[reportAttributeAccessIssue]
    cls.__hash__ = None  # pyright: ignore[reportAttributeAccessIssue]
    cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    _check_fields(cls, fields)
    cls._is_recipe = True
    _register(cls, fields)
    return cls


def _register(cls, fields):
    """Register a class as a pytree.

    `jax.tree_util.register_dataclass` is not used, because in jaxlib 0.10 the tree
    structures of two such classes compare equal if their fields do, and jit may then
    run the program of one class for the other.
    """
    meta = [field.name for field in fields if field.metadata.get("static")]
    data = [field.name for field in fields if not field.metadata.get("static")]
    names = [jax.tree_util.GetAttrKey(name) for name in data]

    def flatten(self):
        values = vars(self)
        return [values[name] for name in data], tuple(values[name] for name in meta)

    def flatten_with_keys(self):
        leaves, static = flatten(self)
        return list(zip(names, leaves, strict=True)), static

    def unflatten(static, leaves):
        # `__post_init__` is skipped because jax also rebuilds recipes from leaves that
        # are not numbers, as in `jax.jit(f).lower(recipe)`.
        self = object.__new__(cls)
        vars(self).update(zip([*data, *meta], [*leaves, *static], strict=True))
        return self

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def _hide_inherited(cls):
    """Prevent class attributes of an interface from becoming defaults of fields."""
    for name in inspect.get_annotations(cls):
        if hasattr(cls, name) and name not in vars(cls):
            setattr(cls, name, dataclasses.field())


def _check_fields(cls, fields):
    """Raise if a field has the name of an inherited property, which has no setter."""
    for field in fields:
        if isinstance(getattr(cls, field.name, None), property):
            raise TypeError(
                f"{cls.__name__}.{field.name} must be a property, as it is in the "
                "interface, got a field; try @property"
            )


def _is_float(annotation: Any) -> bool:
    return annotation is float or annotation == "float"
