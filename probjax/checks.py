"""Checks of values, before anything is compiled.

Values that the host can read are checked by NumPy, which compiles nothing. Arrays on
accelerators, or spread over devices, are checked there by one compiled reduction, so
that they need not be copied to the host. Traced values are not checked.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probjax.types import Array, ArrayLike, PyTree, is_concrete, is_on_host, is_tracing


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
