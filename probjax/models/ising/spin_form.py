"""Ising models over spins s = 2x - 1 in {-1, 1}^d, and conversion from and to bits.

    p(s) ~ exp(s'Ks / 2 + h's),    K symmetric with a diagonal of zeros

defines the same distribution as E(x) = x'Jx over bits with K_ij = -J_ij / 2 and
h_i = sum_j K_ij - J_ii / 2. The signs are opposite: a positive K_ij makes two units
agree, a positive J_ij keeps them from being on together.
"""

from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp

from probjax.checks import holds
from probjax.models.ising.parameters import Params, from_matrix, pair_matrix
from probjax.states import is_spin
from probjax.trees import floating
from probjax.types import Array, ArrayLike, Float, Scalar


class Spins(NamedTuple):
    """Couplings K and fields h of p(s) ~ exp(s'Ks / 2 + h's).

    >>> found = to_spins(from_matrix([[0, -2], [-2, 0]]))
    >>> float(found.coupling[0, 1]), found.field.tolist(), float(found.constant)
    (1.0, [1.0, 1.0], -1.0)
    """

    coupling: Float[Array, "unit unit"]
    """K: symmetric with a diagonal of zeros, positive for units that tend to agree."""
    field: Float[Array, " unit"]
    """h: positive for a unit that tends to be on."""
    constant: Scalar
    """E(x) = constant - s'Ks / 2 - h's, so log Z of the two forms differs by it."""


def from_spins(
    coupling: Float[ArrayLike, "unit unit"],
    field: Float[ArrayLike, " unit"],
    *,
    edges: Iterable[tuple[int, int]] | None = None,
) -> Params:
    """Return the parameters over bits of p(s) ~ exp(s'Ks / 2 + h's).

    The sum s'Ks / 2 contains each pair of units once.

    Args:
        coupling: K, symmetric with a diagonal of zeros.
        field: h.
        edges: pairs of units that are coupled; None for all pairs.

    >>> from probjax.models.ising.model import energy
    >>> params = from_spins([[0, 1], [1, 0]], [0, 0])
    >>> [float(energy(params, x)) for x in jnp.array([[0.0, 0], [0, 1], [1, 1]])]
    [0.0, 2.0, 0.0]
    """
    coupling, field = floating(coupling), floating(field)
    if coupling.shape != (*field.shape, *field.shape):
        raise ValueError(
            f"spins need one field and one row of couplings each, got shapes "
            f"{field.shape} and {coupling.shape}"
        )
    if not holds(_has_zero_diagonal, coupling):
        raise ValueError("the coupling of spins must have a zero diagonal")
    bias = 2 * coupling.sum(1) - 2 * field
    return from_matrix(jnp.diag(bias) - 2 * coupling, edges=edges)


def to_spins(params: Params) -> Spins:
    """Return the couplings and fields of the same model over spins s = 2x - 1.

    >>> from probjax.models.ising.model import energy
    >>> params, x = from_matrix([[0.5, -1.0], [-1.0, 0.25]]), jnp.array([1.0, 0.0])
    >>> found, s = to_spins(params), spins(x)
    >>> float(found.constant - s @ found.coupling @ s / 2 - found.field @ s)
    0.5
    >>> float(energy(params, x))
    0.5
    """
    coupling = -pair_matrix(params) / 2
    field = coupling.sum(1) - params.bias / 2
    return Spins(coupling, field, params.bias.sum() / 2 - coupling.sum() / 2)


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
