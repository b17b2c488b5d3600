"""The Potts model: each site has one of q letters, and pairs of sites are coupled.

    E(x) = -sum_i h_i(x_i) - sum_(i<j) J_ij(x_i, x_j),    x in {0, ..., q-1}^d

Positive entries make letters likely, as in direct coupling analysis of proteins. With o
the one-hot vector of x and C the symmetric matrix of all couplings, the field at site i
and letter a is f_ia = h_ia + (C o)_ia. Changing site i to letter a gives

    E(x) - E(x') = f_ia - f_i(x_i),

so one product with C yields the gaps for all sites and letters. With q = 2 the model is
an Ising model with J_ij(1, 1) = -2 J_ij, h_i(1) = -J_ii and zeros elsewhere.

Reference: Ekeberg, Lovkvist, Lan, Weigt and Aurell, "Improved contact prediction in
proteins: Using pseudolikelihoods to infer Potts models", PRE 87, 012707 (2013).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from probjax.models.letter_counts import describe_never_observed, never_observed
from probjax.models.pairs import pair_indices, pairwise_block
from probjax.models.potts.centring import data_chart
from probjax.models.potts.parameters import (
    Params,
    couplings_only,
    one_hot_rows,
    one_hot_state,
    pair_matrix,
)
from probjax.potential import closed_form
from probjax.types import Array, Data, Float, Scalar, SiteBlock


def site_gaps(params: Params, x: Float[Array, " site"]) -> Float[Array, "site letter"]:
    """E(x) - E(x with site i set to letter a) for every i and a.

    >>> field = jnp.array([[0.0, 1.0, 2.0], [0.0, 0.0, 0.5]])
    >>> params = Params(field, jnp.zeros((1, 3, 3)))
    >>> site_gaps(params, jnp.array([1.0, 0.0])).tolist()
    [[-1.0, 0.0, 1.0], [0.0, 0.0, 0.5]]
    """
    hot = one_hot_state(params, x)
    field = params.field + (hot.ravel() @ pair_matrix(params)).reshape(hot.shape)
    return field - jnp.sum(hot * field, axis=1, keepdims=True)


def flip_gaps(params: Params, x: Float[Array, " site"]) -> Float[Array, " site"]:
    """E(x) - E(x with site i changed) for every i, in a model with two letters.

    >>> coupling = jnp.zeros((1, 2, 2)).at[0, 1, 1].set(2.0)
    >>> params = Params(jnp.array([[0.0, 1.0], [0.0, 0.5]]), coupling)
    >>> flip_gaps(params, jnp.array([0.0, 1.0])).tolist()
    [3.0, -0.5]
    """
    if params.field.shape[1] != 2 or x.ndim != 1:
        raise ValueError(
            f"flips require a Potts model of 2 letters and states of letters, got "
            f"{params.field.shape[1]} letters and a state of shape {x.shape}; try "
            "SiteChanges(num_states) or PseudoLikelihood(..., num_states=...)"
        )
    gaps = site_gaps(params, x)
    return jnp.where(x == 1, gaps[:, 0], gaps[:, 1])


def site_gap(params: Params) -> Callable[[Float[Array, " site"], Array], Array]:
    """Return a function of a state and one site: that site's row of `site_gaps`.

    >>> field = jnp.array([[0.0, 1.0, 2.0], [0.0, 0.0, 0.5]])
    >>> gap = site_gap(Params(field, jnp.zeros((1, 3, 3))))
    >>> gap(jnp.array([1.0, 0.0]), 0).tolist()
    [-1.0, 0.0, 1.0]
    """
    sites, num_states = params.field.shape
    rows = pair_matrix(params).reshape(sites, num_states, sites * num_states)

    def gap(x, site):
        hot = one_hot_state(params, x)
        field = params.field[site] + rows[site] @ hot.ravel()
        return field - hot[site] @ field

    return gap


def letter_block(
    params: Params,
) -> Callable[[Float[Array, " site"], Array, int], SiteBlock]:
    """Return a function of a state and consecutive sites: their `SiteBlock`.

    >>> field = jnp.array([[0.0, 1.0, 2.0], [0.0, 0.0, 0.5]])
    >>> block = letter_block(Params(field, jnp.zeros((1, 3, 3))))
    >>> block(jnp.array([1.0, 0.0]), 0, 2).field.tolist()
    [[0.0, 1.0, 2.0], [0.0, 0.0, 0.5]]
    """
    sites, num_states = params.field.shape
    of_entries = pairwise_block(params.field.ravel(), pair_matrix(params))

    def block(x, first, size):
        hot = one_hot_state(params, x).ravel()
        field, coupling = of_entries(hot, first * num_states, size * num_states)
        shape = size, num_states
        return SiteBlock(field.reshape(shape), coupling.reshape(shape + shape))

    return block


def unbounded(params: Params, data: Data) -> str:
    """Description of parameters without a finite estimate; "" if there are none.

    >>> from probjax import potts
    >>> rows = Data(jnp.array([[0, 1], [1, 1]]))
    >>> unbounded(potts.init(jax.random.key(0), 2, 2), rows).split(", so")[0]
    '1 of 4 letters never occur at their site (letter 0 at site 1)'
    """
    pairs = pair_indices(len(params.field), params.edges)
    return describe_never_observed(*_never_observed(params, data), *pairs)


def unbounded_entries(params: Params, data: Data) -> Params:
    """Whether each field and each coupling has no finite estimate, see `unbounded`.

    >>> from probjax import potts
    >>> rows = Data(jnp.array([[0, 1], [1, 1]]))
    >>> unbounded_entries(potts.init(jax.random.key(0), 2, 2), rows).field.tolist()
    [[False, False], [True, False]]
    """
    letters, pairs = _never_observed(params, data)
    return Params(letters, pairs, params.edges)  # pyright: ignore


def _never_observed(params, data):
    hot, mask = _compiled_one_hot_rows(params, data)
    hot = np.asarray(hot if mask is None else hot * mask)
    weights = data.weights
    counted = np.ones(len(hot), bool) if weights is None else np.asarray(weights) > 0
    return never_observed(hot, counted, *pair_indices(len(params.field), params.edges))


_compiled_one_hot_rows = jax.jit(one_hot_rows)


@closed_form(
    flip_gaps=flip_gaps,
    site_gaps=site_gaps,
    site_gap=site_gap,
    letter_block=letter_block,
    chart=data_chart,
    couplings=couplings_only,
    unbounded=unbounded,
    unbounded_entries=unbounded_entries,
)
def energy(params: Params, x: Float[Array, " site"]) -> Scalar:
    """Energy of one state, given as letters `(site,)` or one-hot `(site, letter)`.

    >>> field = jnp.array([[0.0, 1.0, 2.0], [0.5, 0.0, 0.0]])
    >>> params = Params(field, jnp.zeros((1, 3, 3)))
    >>> float(energy(params, jnp.array([2.0, 0.0])))
    -2.5
    >>> float(energy(params, jnp.array([[0.0, 0, 1], [1, 0, 0]])))
    -2.5
    """
    hot = one_hot_state(params, x)
    coupled = (hot.ravel() @ pair_matrix(params)).reshape(hot.shape)
    return -jnp.sum(hot * (params.field + coupled / 2))
