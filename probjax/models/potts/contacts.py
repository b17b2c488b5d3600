"""Contacts of a protein family: letters and weights of its sequences, scores of pairs.

The score of a pair of sites is the Frobenius norm F_ij of its coupling in zero-sum
gauge, minus the average product correction,

    F_ij - mean_k F_ik mean_k F_kj / mean F.

High scores predict sites that are close in the folded protein. The weight of a sequence
is 1 over the number of sequences that are similar to it.

Reference: Ekeberg, Lovkvist, Lan, Weigt and Aurell, "Improved contact prediction in
proteins: Using pseudolikelihoods to infer Potts models", PRE 87, 012707 (2013).
"""

from functools import partial

import jax
import jax.numpy as jnp

from probjax.checks import holds
from probjax.models.pairs import upper_triangle
from probjax.models.potts.parameters import Params, zero_sum
from probjax.states import letters as checked_letters
from probjax.states import one_hot
from probjax.trees import floating
from probjax.types import Array, ArrayLike, Float


def contact_scores(params: Params) -> Float[Array, "site site"]:
    """Corrected coupling strengths of all pairs of sites, to predict contacts.

    They are the Frobenius norms F_ij of the couplings in zero-sum gauge, minus the
    average product correction mean_k F_ik mean_k F_kj / mean F. Means are over
    different sites. The matrix is symmetric with a diagonal of zeros.

    >>> coupling = jnp.zeros((6, 2, 2)).at[3, 1, 1].set(8.0)  # sites 1 and 2 of 4
    >>> scores = jax.jit(contact_scores)(Params(jnp.zeros((4, 2)), coupling))
    >>> jnp.argwhere(scores == scores.max()).tolist()
    [[1, 2], [2, 1]]
    """
    sites = len(params.field)
    norms = jnp.sqrt(jnp.sum(zero_sum(params).coupling ** 2, axis=(1, 2)))
    half = upper_triangle(norms, sites, params.edges)
    scores = half + half.T
    of_site = scores.sum(0) / (sites - 1)
    mean = jnp.where(scores.any(), of_site.mean(), 1)
    corrected = scores - jnp.outer(of_site, of_site) / mean
    return jnp.where(jnp.eye(sites, dtype=bool), 0, corrected)


def letters(x: ArrayLike, *, num_states: int) -> Float[Array, "row site"]:
    """Return rows of letters, given rows of letters or one-hot rows; raise for others.

    Args:
        num_states: number of letters of each site.

    >>> letters([[[0, 0, 1], [1, 0, 0]]], num_states=3).tolist()
    [[2.0, 0.0]]
    """
    x = jnp.asarray(x)
    if x.ndim == 2:
        return checked_letters(x, num_states=num_states)
    if x.ndim != 3 or x.shape[2] != num_states or not holds(_is_one_hot, x):
        raise ValueError(
            f"x must be letters (row, site), or one-hot (row, site, {num_states}) "
            f"with a single 1 per site, got shape {x.shape}"
        )
    return floating(jnp.argmax(x, axis=2))


def sequence_weights(
    x: ArrayLike, *, num_states: int, identity: float = 0.8
) -> Float[Array, " row"]:
    """Weight of each row: 1 / (number of rows that are similar to it, with itself).

    Sequences of related species are not independent draws. With these weights in
    `Data(x, weights)`, similar sequences together count about once.

    Args:
        x: rows of letters, or one-hot rows.
        num_states: number of letters of each site.
        identity: two rows are similar if they agree at no less than this fraction of
            sites, above 0 and at most 1.

    >>> sequence_weights([[0, 1, 2], [0, 1, 2], [2, 0, 0]], num_states=3).tolist()
    [0.5, 0.5, 1.0]
    """
    x = letters(x, num_states=num_states)
    if not 0 < identity <= 1:
        raise ValueError(f"identity must be above 0 and at most 1, got {identity}")
    return _sequence_weights(x, num_states, identity * x.shape[1])


@partial(jax.jit, static_argnums=1)
def _sequence_weights(x, num_states, least):
    hot = jax.vmap(lambda row: one_hot(row, num_states).ravel())(x)

    def num_similar(row):
        return jnp.sum(hot @ row >= least - 1e-3)

    return 1 / jax.lax.map(num_similar, hot, batch_size=256).astype(x.dtype)


def _is_one_hot(x):
    return ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1)
