"""Ising models in the usual convention: fields h and couplings J that excite.

    E(x) = constant - h'x - sum over pairs i < j of J_ij x_i x_j

Here a positive J_ij makes two units be on together, or two spins agree, whereas a
positive entry of the matrix A in E = x'Ax, which `Params` holds, keeps units from being
on together. Over bits x,

    J_ij = -2 A_ij,    h_i = -A_ii,    constant = 0;

over spins s = 2x - 1,

    J_ij = -A_ij / 2,    h_i = sum_j J_ij - A_ii / 2,

and the constant, which is not 0, relates log Z of the two forms.
"""

from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp

from probjax.checks import holds
from probjax.models.ising.parameters import Params, from_matrix, pair_matrix
from probjax.states import is_spin
from probjax.trees import floating
from probjax.types import Array, ArrayLike, Float, Scalar


class Fields(NamedTuple):
    """Couplings and fields of E = constant - h'x - sum over pairs of J_ij x_i x_j.

    >>> found = to_fields(from_matrix([[0.5, -2], [-2, 1]]))
    >>> float(found.coupling[0, 1]), found.field.tolist(), float(found.constant)
    (4.0, [-0.5, -1.0], 0.0)
    """

    coupling: Float[Array, "unit unit"]
    """J: symmetric with a diagonal of zeros; positive for units that excite each other,
    or for spins that tend to agree."""
    field: Float[Array, " unit"]
    """h: positive for a unit that tends to be on."""
    constant: Scalar
    """Energy that is added to the other terms. log Z of the other terms is log Z of the
    parameters plus the constant; 0 over bits."""


def from_fields(
    coupling: Float[ArrayLike, "unit unit"],
    field: Float[ArrayLike, " unit"],
    *,
    spins: bool = False,
    edges: Iterable[tuple[int, int]] | None = None,
) -> Params:
    """Return the parameters of E = -h'x - sum over pairs i < j of J_ij x_i x_j.

    Args:
        coupling: J, symmetric with a diagonal of zeros.
        field: h.
        spins: whether the states of the given energy are spins -1 and 1. The states of
            the returned parameters are always bits 0 and 1.
        edges: pairs of units that are coupled; None for all pairs.

    >>> from probjax.models.ising.model import energy
    >>> states = jnp.array([[0.0, 0], [0, 1], [1, 1]])
    >>> params = from_fields([[0, 3], [3, 0]], [1, -1])
    >>> [float(energy(params, x)) for x in states]
    [0.0, 1.0, -3.0]
    >>> params = from_fields([[0, 3], [3, 0]], [1, -1], spins=True)
    >>> [float(energy(params, x)) for x in states]  # up to a constant of -3
    [0.0, 8.0, 0.0]
    """
    coupling, field = floating(coupling), floating(field)
    if coupling.shape != (*field.shape, *field.shape):
        raise ValueError(
            f"coupling must have one row and column for each entry of field, got "
            f"shapes {coupling.shape} and {field.shape}"
        )
    if not holds(_has_zero_diagonal, coupling):
        raise ValueError(
            "coupling must have a diagonal of zeros, got other entries; try adding "
            "them to field"
        )
    if spins:
        bias = 2 * coupling.sum(1) - 2 * field
        return from_matrix(jnp.diag(bias) - 2 * coupling, edges=edges)
    return from_matrix(jnp.diag(-field) - coupling / 2, edges=edges)


def to_fields(params: Params, *, spins: bool = False) -> Fields:
    """Return the couplings and fields of the same model in the usual convention.

    Args:
        spins: whether to return those over spins s = 2x - 1 instead of bits x.

    >>> from probjax.models.ising.model import energy
    >>> params, x = from_matrix([[0.5, -1.0], [-1.0, 0.25]]), jnp.array([1.0, 0.0])
    >>> found, s = to_fields(params, spins=True), 2 * x - 1
    >>> float(found.constant - found.coupling[0, 1] * s[0] * s[1] - found.field @ s)
    0.5
    >>> float(energy(params, x))
    0.5
    """
    pairs = pair_matrix(params)
    if not spins:
        return Fields(-2 * pairs, -params.bias, jnp.zeros((), params.bias.dtype))
    coupling = -pairs / 2
    field = coupling.sum(1) - params.bias / 2
    return Fields(coupling, field, params.bias.sum() / 2 - coupling.sum() / 2)


def spins(bits: ArrayLike) -> Array:
    """Convert 0 and 1 to -1 and 1, as floats.

    The floats matter: 2x - 1 would overflow in unsigned integers.

    >>> spins([0, 1, 1]).tolist()
    [-1.0, 1.0, 1.0]
    """
    return 2 * jnp.asarray(bits, float) - 1


def bits(spins: ArrayLike) -> Array:
    """Convert -1 and 1 to 0 and 1, as floats.

    >>> bits([-1, 1, 1]).tolist()
    [0.0, 1.0, 1.0]
    """
    spins = jnp.asarray(spins, float)
    if not holds(is_spin, spins):
        raise ValueError("spins must be -1 or 1")
    return (spins + 1) / 2


def _has_zero_diagonal(matrix):
    return matrix.diagonal() == 0
