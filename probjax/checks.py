"""Checks of arguments, before anything is compiled.

Values that the host can read are checked by NumPy, which compiles nothing. Arrays on
accelerators, or spread over devices, are checked there by one compiled reduction, so
that they need not be copied to the host. Traced values are not checked.
"""

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree


def holds(test: Callable[..., Any], tree: PyTree, *bounds: ArrayLike) -> bool:
    """Whether `test` is true of all values in `tree` that can be looked at.

    Args:
        test: a function of a leaf and `bounds`. It is a function of a module, not one
            made for the call, because it may be compiled. It takes NumPy arrays and jax
            arrays: see `namespace`.
    """
    if not is_concrete(bounds):
        return True
    leaves = [leaf for leaf in jax.tree.leaves(tree) if is_concrete(leaf)]
    near = [np.asarray(leaf) for leaf in leaves if is_on_host(leaf)]
    limits = [np.asarray(bound) for bound in bounds]
    if not all(np.all(test(leaf, *limits)) for leaf in near):
        return False
    far = [leaf for leaf in leaves if not is_on_host(leaf)]
    # In one precision whoever calls, so that a test is compiled once.
    with at_once(), jax.default_matmul_precision("highest"):
        return not far or bool(_all(test, far, bounds))


def at_once() -> AbstractContextManager:
    """Context in which known values are computed even while code is being traced."""
    return jax.ensure_compile_time_eval() if is_tracing() else nullcontext()


@partial(jax.jit, static_argnums=0)
def _all(test, leaves, bounds):
    return jnp.all(jnp.stack([jnp.all(test(leaf, *bounds)) for leaf in leaves]))


def namespace(value: Any) -> Any:
    """Return `jnp` for an array of jax and `np` for any other value.

    >>> namespace(np.ones(2)) is np, namespace(jnp.ones(2)) is jnp
    (True, True)
    """
    return jnp if isinstance(value, jax.Array) else np


def is_finite(value: Array) -> Array:
    """Whether each value is finite."""
    return namespace(value).isfinite(value)


def is_whole(value: Array) -> Array:
    """Whether each value is a whole number."""
    return value == namespace(value).round(value)


def is_concrete(tree: PyTree) -> bool:
    """Whether the values in `tree` can be looked at, so that they can be checked."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def is_tracing() -> bool:
    """Whether code is being traced, as inside of `jit`."""
    try:
        jax.sharding.get_mesh()
    except ValueError:
        return True
    return False


def is_eager(tree: PyTree) -> bool:
    """Whether what is computed from `tree` has values at once, as nothing is traced."""
    return is_concrete(tree) and not is_tracing()


def is_on_host(tree: PyTree) -> bool:
    """Whether NumPy can read all values without copying them from a device."""
    return all(map(_is_on_host, jax.tree.leaves(tree)))


def _is_on_host(value):
    if not isinstance(value, jax.Array):
        return True
    devices = value.devices()
    is_cpu = len(devices) == 1 and next(iter(devices)).platform == "cpu"
    # The device may belong to another process.
    return is_cpu and value.is_fully_addressable


def check_count(name: str, count: int, *, least: int = 1) -> None:
    """Refuse a count that is not an integer of at least `least`."""
    if not (isinstance(count, (int, np.integer)) and count >= least):
        raise ValueError(f"{name} must be an integer of at least {least}, got {count}")


def check_role(
    name: str, given: Any, interface: type, example: str, *, home: str = "probjax"
) -> None:
    """Raise if `given` is not a recipe that inherits from `interface`, of `home`."""
    if isinstance(given, interface):
        if jax.tree_util.all_leaves([given]):
            raise ValueError(
                f"{name} must be a recipe, got a {type(given).__name__}; try "
                f"@probjax.recipe on class {type(given).__name__}"
            )
        return
    kind = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
    raise ValueError(
        f"{name} must inherit from {home}.{interface.__name__}, as {example} does, "
        f"got {kind}"
    )


def check_parts(name: str, parts: tuple, interface: type, example: str) -> None:
    """Raise if a recipe's parts are none, or do not inherit from `interface`."""
    if not parts:
        raise ValueError(
            f"{name} must hold at least one {interface.__name__}, such as {example}, "
            "got none"
        )
    for part in parts:
        check_role(name, part, interface, example)


def check_key(key: Any) -> None:
    """Refuse what no random numbers can be drawn by."""
    if not isinstance(key, jax.Array):
        raise ValueError(f"key must be made as jax.random.key(0), got {key!r}")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called into probjax, however deep this is."""
    frame, level = sys._getframe(1), 2
    while frame is not None and frame.f_globals.get("__name__", "").startswith(
        "probjax."
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
