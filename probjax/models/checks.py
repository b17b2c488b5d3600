"""Checks that several models share: sizes of states, and positive numbers."""

import math

from probjax.checks import is_concrete
from probjax.types import Array, Scalar


def check_size(name: str, x: Array, size: int, kind: str) -> None:
    """Raise if `x` is not a single state with `size` entries.

    Args:
        name: name of the argument in the message.
        size: number of entries for which `params` has values.
        kind: plural noun for the entries in the message, such as "units".
    """
    if x.shape != (size,):
        raise ValueError(
            f"{name} must have the {size} {kind} of params, got shape {x.shape}"
        )


def check_positive(name: str, value: float | Scalar) -> None:
    """Raise if `value` is known and not a positive finite number.

    Args:
        name: name of the argument in the message.
    """
    if is_concrete(value) and not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}")
