"""What couples in a fitted model, as people look at it: a matrix, and what it means."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from probjax.apps.families import Model
from probjax.models import ising, potts


class Couplings(NamedTuple):
    """The couplings of a model."""

    matrix: np.ndarray
    """Symmetric, `(site, site)`; of an RBM weights, `(hidden unit, site)`."""
    label: str
    """What its entries are, for a figure."""
    meaning: str
    """Their sign and their factor, in words."""
    is_coupled: np.ndarray
    """Whether each pair is."""


def of(model: Model) -> Couplings:
    """The couplings of a model, by its family.

    >>> params = ising.from_matrix([[3.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> found = of(Model("ising", params, base=None))
    >>> found.matrix[0].tolist(), found.is_coupled.tolist()
    ([3.0, 0.5, 0.0], [True, False, False])
    """
    return _KINDS[model.family](model)


def off_diagonal(matrix: np.ndarray) -> np.ndarray:
    """NaN on the diagonal: biases there would outshine what is coupled.

    >>> off_diagonal(np.array([[9.0, 0.5], [0.5, 9.0]])).tolist()
    [[nan, 0.5], [0.5, nan]]
    """
    return np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)


def _ising(model: Model) -> Couplings:
    return Couplings(
        np.asarray(ising.coupling_matrix(model.params)),
        "J of E = x'Jx; positive: seldom on together",
        f"J of E = x'Jx, a pair's energy is 2 J_ij; positive: seldom {_on(model)} "
        "together; biases on the diagonal",
        np.asarray(model.params.coupling) != 0,
    )


def _hopfield(model: Model) -> Couplings:
    weight = np.asarray(model.params.weight)
    return Couplings(
        weight,
        "J of E = -x'Jx / 2 + theta'x; positive: often on together",
        f"J of E = -x'Jx / 2 + theta'x, a pair's energy is -J_ij; positive: often "
        f"{_on(model)} together",
        weight[np.triu_indices(len(weight), 1)] != 0,
    )


def _potts(model: Model) -> Couplings:
    return Couplings(
        np.asarray(potts.contact_scores(model.params)),
        "contact score; high: strongly coupled",
        "contact scores (norms, corrected for busy sites); high: strongly coupled, "
        "whichever letters go together",
        np.asarray((model.params.coupling != 0).any(axis=(1, 2))),
    )


def _rbm(model: Model) -> Couplings:
    weight = np.asarray(model.params.weight).T
    return Couplings(
        weight,
        "W of E = -b'x - c'h - x'Wh; positive: often on together",
        f"W of E = -b'x - c'h - x'Wh; positive: a site is often {_on(model)} with a "
        "hidden unit",
        weight.ravel() != 0,
    )


def _on(model: Model) -> str:
    """What the letter 1 is called."""
    return repr(model.alphabet[1]) if len(model.alphabet) > 1 else "on"


_KINDS: dict[str, Callable[[Model], Couplings]] = {
    "ising": _ising,
    "hopfield": _hopfield,
    "potts": _potts,
    "rbm": _rbm,
}
