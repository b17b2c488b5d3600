"""The Potts model: sites of several letters, coupled in pairs.

    E(x) = -sum_i h_i(x_i) - sum_(i<j) J_ij(x_i, x_j),    x in {0, ..., q-1}^d

with positive entries for what is likely, as in direct coupling analysis of proteins.
With o the one-hot vector of x and C the symmetric matrix of all couplings, the field at
site i and letter a is f_ia = h_ia + (C o)_ia, and changing site i to a gives

    E(x) - E(x') = f_ia - f_i(x_i),

so that all changes of all sites are one product with C. Two states are an Ising model
with J_ij(1, 1) = -2 J_ij and h_i(1) = -J_ii, all else zero. Energies do not determine
the parameters: `zero_sum` picks those with the least couplings.

Reference: Ekeberg, Lovkvist, Lan, Weigt and Aurell, "Improved contact prediction in
proteins: Using pseudolikelihoods to infer Potts models", PRE 87, 012707 (2013).
"""

from collections.abc import Callable, Iterable
from functools import partial

import jax
import jax.numpy as jnp

from probjax.checks import check_count, holds
from probjax.models.ising.model import Edges, checked_edges, pair_indices
from probjax.potential import closed_form
from probjax.recipe import recipe, static
from probjax.states import letters as checked_letters
from probjax.states import one_hot
from probjax.trees import floating
from probjax.types import Array, ArrayLike, Float, PRNGKeyArray, Scalar


@recipe
class Params:
    """One field per site and letter, one matrix of couplings per pair of sites.

    >>> coupling = jnp.zeros((1, 3, 3)).at[0, 1, 2].set(1.5)
    >>> params = Params(field=jnp.zeros((2, 3)), coupling=coupling)
    >>> float(energy(params, jnp.array([1.0, 2.0]))), params.field.shape
    (-1.5, (2, 3))
    """

    field: Float[Array, "site letter"]
    """h_i(a)."""
    coupling: Float[Array, "pair letter letter"]
    """J_ij(a, b) for each pair i < j: of `edges` in their order, or of all in row
    order; the first letter is that of i."""
    edges: Edges | None = static(default=None)
    """The pairs that may be coupled; None for all."""


def init(
    key: PRNGKeyArray,
    size: int,
    num_states: int,
    *,
    edges: Iterable[tuple[int, int]] | None = None,
    scale: float = 0.01,
) -> Params:
    """Independent normal couplings of standard deviation `scale` and no fields.

    Args:
        size: number of sites.
        num_states: letters of each site.
        edges: pairs of sites that may be coupled; all pairs if None.

    >>> init(jax.random.key(0), 4, 3).coupling.shape
    (6, 3, 3)
    """
    check_count("num_states", num_states, least=2)
    edges = checked_edges(edges, size)
    shape = (len(pair_indices(size, edges)[0]), num_states, num_states)
    coupling = scale * jax.random.normal(key, shape)
    return Params(jnp.zeros((size, num_states)), coupling, edges)


def site_gaps(params: Params, x: Float[Array, " site"]) -> Float[Array, "site letter"]:
    """E(x) - E(x with site i set to a) for every i and a.

    >>> field = jnp.array([[0.0, 1.0, 2.0], [0.0, 0.0, 0.5]])
    >>> params = Params(field, jnp.zeros((1, 3, 3)))
    >>> site_gaps(params, jnp.array([1.0, 0.0])).tolist()
    [[-1.0, 0.0, 1.0], [0.0, 0.0, 0.5]]
    """
    hot = _one_hot(params, x)
    field = params.field + (hot.ravel() @ _matrix(params)).reshape(hot.shape)
    return field - jnp.sum(hot * field, axis=1, keepdims=True)


def flip_gaps(params: Params, x: Float[Array, " site"]) -> Float[Array, " site"]:
    """E(x) - E(x with site i changed) for every i, where there are but two letters.

    >>> coupling = jnp.zeros((1, 2, 2)).at[0, 1, 1].set(2.0)
    >>> params = Params(jnp.array([[0.0, 1.0], [0.0, 0.5]]), coupling)
    >>> flip_gaps(params, jnp.array([0.0, 1.0])).tolist()
    [3.0, -0.5]
    """
    if params.field.shape[1] != 2 or x.ndim != 1:
        raise ValueError(
            f"a Potts model of {params.field.shape[1]} letters has no bits to flip: "
            "use SiteChanges(num_states), PseudoLikelihood(..., num_states=...), and "
            "states of letters"
        )
    gaps = site_gaps(params, x)
    return jnp.where(x == 1, gaps[:, 0], gaps[:, 1])


def site_gap(params: Params) -> Callable[[Float[Array, " site"], Array], Array]:
    """A function of a state and one site: the site's row of `site_gaps`.

    >>> field = jnp.array([[0.0, 1.0, 2.0], [0.0, 0.0, 0.5]])
    >>> gap = site_gap(Params(field, jnp.zeros((1, 3, 3))))
    >>> gap(jnp.array([1.0, 0.0]), 0).tolist()
    [-1.0, 0.0, 1.0]
    """
    sites, num_states = params.field.shape
    rows = _matrix(params).reshape(sites, num_states, sites * num_states)

    def gap(x, site):
        hot = _one_hot(params, x)
        field = params.field[site] + rows[site] @ hot.ravel()
        return field - hot[site] @ field

    return gap


@closed_form(flip_gaps=flip_gaps, site_gaps=site_gaps, site_gap=site_gap)
def energy(params: Params, x: Float[Array, " site"]) -> Scalar:
    """The energy of one state, of letters `(site,)` or one-hot `(site, letter)`.

    >>> field = jnp.array([[0.0, 1.0, 2.0], [0.5, 0.0, 0.0]])
    >>> params = Params(field, jnp.zeros((1, 3, 3)))
    >>> float(energy(params, jnp.array([2.0, 0.0])))
    -2.5
    >>> float(energy(params, jnp.array([[0.0, 0, 1], [1, 0, 0]])))
    -2.5
    """
    hot = _one_hot(params, x)
    pull = (hot.ravel() @ _matrix(params)).reshape(hot.shape)
    return -jnp.sum(hot * (params.field + pull / 2))


def letters(x: ArrayLike, *, num_states: int) -> Float[Array, "row site"]:
    """Rows of letters, checked, from rows of letters or of one-hot sites.

    >>> letters([[[0, 0, 1], [1, 0, 0]]], num_states=3).tolist()
    [[2.0, 0.0]]
    """
    x = jnp.asarray(x)
    if x.ndim == 2:
        return checked_letters(x, num_states=num_states)
    if x.ndim != 3 or x.shape[2] != num_states or not holds(_is_one_hot, x):
        raise ValueError(
            f"rows must be letters (row, site), or one-hot (row, site, {num_states}) "
            f"with a single 1 per site, got shape {x.shape}"
        )
    return floating(jnp.argmax(x, axis=2))


def zero_sum(params: Params) -> Params:
    """The same distribution with couplings and fields that sum to zero over letters.

    What the couplings of a pair say about one of its sites alone goes to the field of
    that site. Energies change by a constant.

    >>> params = Params(jnp.zeros((2, 2)), jnp.array([[[4.0, 0.0], [0.0, 0.0]]]))
    >>> found = zero_sum(params)
    >>> found.coupling.tolist(), found.field.tolist()
    ([[[1.0, -1.0], [-1.0, 1.0]]], [[1.0, -1.0], [1.0, -1.0]])
    """
    sites = len(params.field)
    first, second = pair_indices(sites, params.edges)
    rows = params.coupling.mean(2, keepdims=True)
    columns = params.coupling.mean(1, keepdims=True)
    overall = params.coupling.mean((1, 2), keepdims=True)
    field = params.field.at[first].add((rows - overall)[:, :, 0])
    field = field.at[second].add((columns - overall)[:, 0, :])
    coupling = params.coupling - rows - columns + overall
    return Params(field - field.mean(1, keepdims=True), coupling, params.edges)


def contact_scores(params: Params) -> Float[Array, "site site"]:
    """How strongly each pair of sites is coupled, corrected for busy sites.

    The Frobenius norms F_ij of the couplings in zero-sum gauge, less
    mean_k F_ik mean_k F_kj / mean F (the average product correction), over different
    sites; symmetric, with a diagonal of zeros.

    >>> coupling = jnp.zeros((6, 2, 2)).at[3, 1, 1].set(8.0)  # sites 1 and 2 of 4
    >>> scores = jax.jit(contact_scores)(Params(jnp.zeros((4, 2)), coupling))
    >>> jnp.argwhere(scores == scores.max()).tolist()
    [[1, 2], [2, 1]]
    """
    sites = len(params.field)
    norms = jnp.sqrt(jnp.sum(zero_sum(params).coupling ** 2, axis=(1, 2)))
    half = jnp.zeros((sites, sites), norms.dtype)
    half = half.at[pair_indices(sites, params.edges)].set(norms)
    scores = half + half.T
    of_site = scores.sum(0) / (sites - 1)
    mean = jnp.where(scores.any(), of_site.mean(), 1)
    corrected = scores - jnp.outer(of_site, of_site) / mean
    return jnp.where(jnp.eye(sites, dtype=bool), 0, corrected)


def couplings_only(params: Params) -> Params:
    """Weights for a penalty that spares the fields: 1 on couplings, 0 on fields.

    >>> from probjax import L2
    >>> params = Params(jnp.ones((2, 2)), jnp.ones((1, 2, 2)))
    >>> float(L2(0.5, weights=couplings_only(params)).value(params))
    2.0
    """
    zero = jnp.zeros((), params.field.dtype)
    return Params(zero, zero + 1, params.edges)


def sequence_weights(
    x: ArrayLike, *, num_states: int, identity: float = 0.8
) -> Float[Array, " row"]:
    """1 / (how many rows agree with a row at a share of at least `identity` sites).

    Sequences of related species are no independent draws; `Data(x, weights)` with these
    weights counts each family of near copies once.

    >>> sequence_weights([[0, 1, 2], [0, 1, 2], [2, 0, 0]], num_states=3).tolist()
    [0.5, 0.5, 1.0]
    """
    x = letters(x, num_states=num_states)
    if not 0 < identity <= 1:
        raise ValueError(f"identity must be above 0 and at most 1, got {identity}")
    return _sequence_weights(x, num_states, identity * x.shape[1])


def _one_hot(params, x):
    sites, num_states = params.field.shape
    if x.shape == (sites, num_states):
        return x
    if x.shape != (sites,):
        raise ValueError(
            f"x must have the {sites} sites of params, as letters or one-hot with "
            f"{num_states} columns, got shape {x.shape}"
        )
    return one_hot(x, num_states).astype(params.field.dtype)


def _matrix(params):
    """All couplings as a symmetric matrix over (site, letter)."""
    sites, num_states = params.field.shape
    first, second = pair_indices(sites, params.edges)
    if params.coupling.shape != (len(first), num_states, num_states):
        raise ValueError(
            f"params must have {num_states} x {num_states} couplings for each of "
            f"{len(first)} pairs, got shape {params.coupling.shape}"
        )
    blocks = jnp.zeros((sites, sites, num_states, num_states), params.coupling.dtype)
    blocks = blocks.at[first, second].set(params.coupling, unique_indices=True)
    half = blocks.swapaxes(1, 2).reshape(2 * (sites * num_states,))
    return half + half.T


@partial(jax.jit, static_argnums=1)
def _sequence_weights(x, num_states, least):
    hot = jax.vmap(lambda row: one_hot(row, num_states).ravel())(x)

    def close(row):
        return jnp.sum(hot @ row >= least - 1e-3)

    return 1 / jax.lax.map(close, hot, batch_size=256).astype(x.dtype)


def _is_one_hot(x):
    return ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1)
