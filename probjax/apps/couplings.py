"""Couplings of fitted models as matrices for tables and figures, with their sign."""

from typing import NamedTuple

import numpy as np

from probjax.models import hopfield, ising, potts, rbm


class Couplings(NamedTuple):
    """Couplings of a fitted model."""

    matrix: np.ndarray
    """Symmetric matrix, `(site, site)`; for an RBM its weights, `(hidden unit, site)`.
    """
    drawn: np.ndarray
    """Matrix for a figure, positive for sites that are often on together."""
    label: str
    """Name and sign of the entries of `drawn`, for the colour bar of a figure."""
    meaning: str
    """Definition of the entries with their sign and factor, for a report."""
    is_coupled: np.ndarray
    """Whether each pair has a coupling other than 0, `(pair,)`."""


def ising_couplings(params: ising.Params, on: str) -> Couplings:
    """Return J of E = x'Jx, with biases on the diagonal.

    Args:
        on: the name of the letter 1 in the report.

    >>> params = ising.from_matrix([[3.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> found = ising_couplings(params, "on")
    >>> found.matrix[0].tolist(), found.is_coupled.tolist()
    ([3.0, 0.5, 0.0], [True, False, False])
    """
    return Couplings(
        np.asarray(ising.coupling_matrix(params)),
        np.asarray(ising.to_fields(params).coupling),
        "J of E = -h'x - sum of J_ij x_i x_j; positive: often on together",
        f"J of E = x'Jx, a pair's energy is 2 J_ij; positive: seldom {on} together; "
        "biases on the diagonal",
        np.asarray(params.coupling) != 0,
    )


def hopfield_couplings(params: hopfield.Params, on: str) -> Couplings:
    """Return J of E = -x'Jx / 2 + theta'x; its sign is opposite to that of `ising`.

    Args:
        on: the name of the letter 1 in the report.
    """
    weight = np.asarray(params.weight)
    return Couplings(
        weight,
        weight,
        "J of E = -x'Jx / 2 + theta'x; positive: often on together",
        f"J of E = -x'Jx / 2 + theta'x, a pair's energy is -J_ij; positive: often {on} "
        "together",
        weight[np.triu_indices(len(weight), 1)] != 0,
    )


def potts_couplings(params: potts.Params, on: str) -> Couplings:
    """Return contact scores; `on` is not used, because no letter is special."""
    scores = np.asarray(potts.contact_scores(params))
    return Couplings(
        scores,
        scores,
        "contact score; high: strongly coupled",
        "contact scores (norms with average product correction); high: strongly "
        "coupled, whichever letters occur together",
        np.asarray((params.coupling != 0).any(axis=(1, 2))),
    )


def rbm_couplings(params: rbm.Params, on: str) -> Couplings:
    """Return W of E = -b'x - c'h - x'Wh, transposed.

    Args:
        on: the name of the letter 1 in the report.
    """
    weight = np.asarray(params.weight).T
    return Couplings(
        weight,
        weight,
        "W of E = -b'x - c'h - x'Wh; positive: often on together",
        f"W of E = -b'x - c'h - x'Wh; positive: a site is often {on} together with a "
        "hidden unit",
        weight.ravel() != 0,
    )
