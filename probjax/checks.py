"""Checks of arguments, before anything is compiled.

Values that the host can read are checked with NumPy, which compiles nothing. Arrays on
an accelerator or on several devices are checked there by one compiled reduction, so
that they need not be copied to the host. Traced values are not checked.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

# Words of a legacy key of each implementation, which is an array of them.
LEGACY_WORDS = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}


def holds(test: Callable[..., Any], tree: PyTree, *bounds: ArrayLike) -> bool:
    """Whether `test` is true for all concrete values in `tree`.

    Args:
        test: a function `test(leaf, *bounds)` that returns booleans. It must be defined
            at the top level of a module, so that it is compiled only once, and must
            accept both NumPy and jax arrays: see `namespace`.
        tree: the values; traced leaves are skipped.
        bounds: further arguments of `test`; if one of them is traced, nothing is
            checked and the result is True.
    """
    if not is_concrete(bounds):
        return True
    leaves = [leaf for leaf in jax.tree.leaves(tree) if is_concrete(leaf)]
    readable = [np.asarray(leaf) for leaf in leaves if is_on_host(leaf)]
    limits = [np.asarray(bound) for bound in bounds]
    if not all(np.all(test(leaf, *limits)) for leaf in readable):
        return False
    on_devices = [leaf for leaf in leaves if not is_on_host(leaf)]
    # The precision is part of jit's cache key; fixing it avoids compiling a test twice.
    with eager_evaluation(), jax.default_matmul_precision("highest"):
        return not on_devices or bool(_all(test, on_devices, bounds))


def eager_evaluation() -> AbstractContextManager:
    """Context in which concrete values are computed even while code is traced."""
    return jax.ensure_compile_time_eval() if is_tracing() else nullcontext()


@contextmanager
def nan_means_unknown() -> Iterator[None]:
    """Context or decorator for results in which NaN stands for an unknown number.

    The setting `jax_debug_nans` would raise an error there.

    >>> with jax.debug_nans(True), nan_means_unknown():
    ...     float(jnp.full((), jnp.nan))
    nan
    """
    is_on = jax.config.jax_debug_nans  # pyright: ignore
    with jax.debug_nans(False) if is_on else nullcontext():
        yield


@partial(jax.jit, static_argnums=0)
def _all(test, leaves, bounds):
    return jnp.all(jnp.stack([jnp.all(test(leaf, *bounds)) for leaf in leaves]))


def namespace(value: Any) -> Any:
    """Return `jnp` for a jax array and `np` for any other value.

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
    """Whether no leaf of `tree` is traced, so that its values can be checked."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def is_tracing() -> bool:
    """Whether code is being traced, such as inside `jit`."""
    try:
        jax.sharding.get_mesh()
    except ValueError:
        return True
    return False


def is_eager(tree: PyTree) -> bool:
    """Whether computations with `tree` run eagerly: nothing is traced."""
    return is_concrete(tree) and not is_tracing()


def is_on_host(tree: PyTree) -> bool:
    """Whether NumPy can read all values without copying them from a device."""
    return all(map(_is_on_host, jax.tree.leaves(tree)))


def _is_on_host(value):
    if not isinstance(value, jax.Array):
        return True
    devices = value.devices()
    is_cpu = len(devices) == 1 and next(iter(devices)).platform == "cpu"
    # A single device may still belong to another process.
    return is_cpu and value.is_fully_addressable


def check_count(name: str, count: int, *, least: int = 1) -> None:
    """Raise if `count` is not an integer of at least `least`."""
    if not (isinstance(count, (int, np.integer)) and count >= least):
        raise ValueError(f"{name} must be an integer of at least {least}, got {count}")


def check_interface(
    name: str, given: Any, interface: type, example: str, *, home: str = "probjax"
) -> None:
    """Raise if `given` is not a recipe that inherits from `interface`.

    Args:
        name: the argument's name, for the message.
        given: the argument.
        interface: the abstract base class.
        example: code of an instance, for the message.
        home: the module that exports `interface`, for the message.
    """
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
    """Raise if `parts` is empty or a part does not inherit from `interface`."""
    if not parts:
        raise ValueError(
            f"{name} must hold at least one {interface.__name__}, such as {example}, "
            "got none"
        )
    for part in parts:
        check_interface(name, part, interface, example)


def check_key(key: Any) -> None:
    """Raise if `key` is not one random key, typed or legacy."""
    if not isinstance(key, jax.Array):
        raise ValueError(
            f"key must be a random key, got {key!r}; try jax.random.key(0)"
        )
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.shape:
            raise ValueError(
                f"key must be one random key, got keys of shape {key.shape}; try key[0]"
            )
        return
    default = jax.config.jax_default_prng_impl  # pyright: ignore
    shape = (LEGACY_WORDS.get(default, key.size),)
    if (key.shape, key.dtype) != (shape, np.uint32):
        raise ValueError(
            f"key must be one random key, which as an array has dtype uint32 and shape "
            f"{shape} under jax_default_prng_impl={default!r}, got dtype {key.dtype} "
            f"and shape {key.shape}; try a typed key, such as "
            "jax.random.key(0, impl='rbg')"
        )


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the line that called into probjax."""
    frame, level = sys._getframe(1), 2
    while frame is not None and frame.f_globals.get("__name__", "").startswith(
        "probjax."
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
