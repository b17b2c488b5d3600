"""Checks of the shapes of states, with messages that name the parameters' sizes."""

from probjax.types import Array


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
