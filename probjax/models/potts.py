"""The Potts model: each site has one of q letters, and pairs of sites are coupled.

    E(x) = -sum_i h_i(x_i) - sum_(i<j) J_ij(x_i, x_j),    x in {0, ..., q-1}^d

Positive entries make letters likely, as in direct coupling analysis of proteins. With o
the one-hot vector of x and C the symmetric matrix of all couplings, the field at site i
and letter a is f_ia = h_ia + (C o)_ia. Changing site i to letter a gives

    E(x) - E(x') = f_ia - f_i(x_i),

so one product with C yields the gaps for all sites and letters. With q = 2 the model is
an Ising model with J_ij(1, 1) = -2 J_ij, h_i(1) = -J_ii and zeros elsewhere. Different
parameters define the same distribution; `zero_sum` returns those with the smallest
couplings.

Reference: Ekeberg, Lovkvist, Lan, Weigt and Aurell, "Improved contact prediction in
proteins: Using pseudolikelihoods to infer Potts models", PRE 87, 012707 (2013).
"""

from collections.abc import Callable, Iterable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count, holds
from probjax.data.rows import mean_of_observed
from probjax.interfaces import Chart
from probjax.models.letter_counts import describe_never_observed, never_observed
from probjax.models.pairs import (
    Edges,
    at_both_sites,
    checked_edges,
    pair_indices,
    pairwise_block,
    sums_of_sites,
    upper_triangle,
)
from probjax.potential import closed_form
from probjax.recipe import recipe, static
from probjax.states import letters as checked_letters
from probjax.states import one_hot
from probjax.trees import floating
from probjax.types import Array, ArrayLike, Block, Data, Float, PRNGKeyArray, Scalar


@recipe
class Params:
    """A field for each site and letter, and a coupling matrix for each pair of sites.

    >>> coupling = jnp.zeros((1, 3, 3)).at[0, 1, 2].set(1.5)
    >>> params = Params(field=jnp.zeros((2, 3)), coupling=coupling)
    >>> float(energy(params, jnp.array([1.0, 2.0]))), params.field.shape
    (-1.5, (2, 3))
    """

    field: Float[Array, "site letter"]
    """h_i(a)."""
    coupling: Float[Array, "pair letter letter"]
    """J_ij(a, b) of each pair i < j, for letter a at site i and b at site j.

    Pairs are in the order of `edges`, or row by row for all pairs.
    """
    edges: Edges | None = static(default=None)
    """Pairs of sites that are coupled; None for all pairs."""


def init(
    key: PRNGKeyArray,
    size: int,
    num_states: int,
    *,
    edges: Iterable[tuple[int, int]] | None = None,
    scale: float = 0.01,
) -> Params:
    """Return independent normal couplings, and fields of 0.

    Args:
        size: number of sites.
        num_states: number of letters q of each site.
        edges: pairs of sites that are coupled; None for all pairs.
        scale: standard deviation of the couplings.

    >>> init(jax.random.key(0), 4, 3).coupling.shape
    (6, 3, 3)
    """
    check_count("num_states", num_states, least=2)
    edges = checked_edges(edges, size)
    shape = (len(pair_indices(size, edges)[0]), num_states, num_states)
    coupling = scale * jax.random.normal(key, shape)
    return Params(jnp.zeros((size, num_states)), coupling, edges)


def site_gaps(params: Params, x: Float[Array, " site"]) -> Float[Array, "site letter"]:
    """E(x) - E(x with site i set to letter a) for every i and a.

    >>> field = jnp.array([[0.0, 1.0, 2.0], [0.0, 0.0, 0.5]])
    >>> params = Params(field, jnp.zeros((1, 3, 3)))
    >>> site_gaps(params, jnp.array([1.0, 0.0])).tolist()
    [[-1.0, 0.0, 1.0], [0.0, 0.0, 0.5]]
    """
    hot = _one_hot(params, x)
    coupled = jax.lax.optimization_barrier(hot.ravel() @ _matrix(params))
    field = params.field + coupled.reshape(hot.shape)
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
    rows = _matrix(params).reshape(sites, num_states, sites * num_states)

    def gap(x, site):
        hot = _one_hot(params, x)
        field = params.field[site] + rows[site] @ hot.ravel()
        return field - hot[site] @ field

    return gap


def letter_block(
    params: Params,
) -> Callable[[Float[Array, " site"], Array, int], Block]:
    """Return a function of a state and consecutive sites: their `Block`.

    >>> field = jnp.array([[0.0, 1.0, 2.0], [0.0, 0.0, 0.5]])
    >>> block = letter_block(Params(field, jnp.zeros((1, 3, 3))))
    >>> block(jnp.array([1.0, 0.0]), 0, 2).field.tolist()
    [[0.0, 1.0, 2.0], [0.0, 0.0, 0.5]]
    """
    sites, num_states = params.field.shape
    of_entries = pairwise_block(params.field.ravel(), _matrix(params))

    def block(x, first, size):
        hot = _one_hot(params, x).ravel()
        field, coupling = of_entries(hot, first * num_states, size * num_states)
        shape = size, num_states
        return Block(field.reshape(shape), coupling.reshape(shape + shape))

    return block


def couplings_only(params: Params) -> Params:
    """Weights of a penalty that leaves the fields out: 1 on couplings, 0 on fields.

    Without weights, `fit` uses them too, and adds a faint prior on fields.

    >>> from probjax import L2
    >>> params = Params(jnp.ones((2, 2)), jnp.ones((1, 2, 2)))
    >>> float(L2(0.5, weights=couplings_only(params)).value(params))
    2.0
    """
    return Params(0.0, 1.0, params.edges)  # pyright: ignore[reportArgumentType]


@recipe
class CentredPotts(Chart):
    """Coordinates of a Potts model over one-hot vectors o minus letter frequencies m.

        E = -sum_i g_i (o_i - m_i) - sum_(i<j) (o_i - m_i)'J_ij (o_j - m_j) + constant,
        g_i = h_i + sum_j J_ij m_j.

    The gradient in the couplings is a covariance instead of a joint frequency, so that
    couplings and fields are nearly uncorrelated.

    >>> chart = CentredPotts(jnp.full((2, 2), 0.5))
    >>> params = Params(jnp.zeros((2, 2)), jnp.array([[[4.0, 0.0], [0.0, 0.0]]]))
    >>> chart.forward(params).field.tolist()
    [[2.0, 0.0], [2.0, 0.0]]
    """

    frequency: Float[Array, "site letter"]
    """m: frequency of each letter at each site."""
    least: Scalar | float = 1e-6
    """Smallest variance of a letter that is assumed for `curvature`."""

    def forward(self, params: Params) -> Params:
        return self._shifted(params, 1)

    def inverse(self, coordinates: Params) -> Params:
        return self._shifted(coordinates, -1)

    def scales(self, params: Params) -> Params:
        return Params(0.0, 1.0, params.edges)  # pyright: ignore

    def curvature(self, params: Params) -> Params:
        """Return that of the pseudolikelihood of independent sites."""
        variance = self.frequency * (1 - self.frequency)
        variance = jnp.maximum(variance, self.least)
        first, second = at_both_sites(variance, params.edges)
        both = 2 * first[:, :, None] * second[:, None, :]
        return Params(variance, both, params.edges)

    def _shifted(self, params, sign):
        first, second = at_both_sites(self.frequency, params.edges)
        # Sums and not products, because the matrices are small.
        at_first = jnp.sum(params.coupling * second[:, None, :], axis=2)
        at_second = jnp.sum(params.coupling * first[:, :, None], axis=1)
        shift = sums_of_sites(at_first, at_second, len(params.field), params.edges)
        return Params(params.field + sign * shift, params.coupling, params.edges)


def data_chart(params: Params, data: Data) -> CentredPotts:
    """Return the chart with the frequencies of letters in the data.

    A letter that is always, or never, at a site has the variance of one that differs in
    one row.

    >>> params = init(jax.random.key(0), 2, 2)
    >>> data_chart(params, Data(jnp.array([[0, 1], [0, 0]]))).frequency.tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    hot, mask = _one_hot_rows(params, data)
    frequency = mean_of_observed(Data(hot, data.weights, mask))
    total = len(hot) if data.weights is None else data.weights.sum()
    return CentredPotts(frequency, 1 / jnp.asarray(total, frequency.dtype))


def _one_hot_rows(params, data):
    """Return the rows as one-hot vectors, and their mask."""
    hot = jax.vmap(lambda x: _one_hot(params, x))(data.x)
    if data.mask is None:
        return hot, None
    mask = data.mask if data.mask.ndim == 3 else data.mask[:, :, None]
    return hot, jnp.broadcast_to(mask, hot.shape)


def unbounded(params: Params, data: Data) -> str:
    """Description of parameters without a finite estimate; "" if there are none.

    >>> rows = Data(jnp.array([[0, 1], [1, 1]]))
    >>> unbounded(init(jax.random.key(0), 2, 2), rows).split(", so")[0]
    '1 of 4 letters never occur at their site (letter 0 at site 1)'
    """
    pairs = pair_indices(len(params.field), params.edges)
    return describe_never_observed(*_never_observed(params, data), *pairs)


def unbounded_entries(params: Params, data: Data) -> Params:
    """Whether each field and each coupling has no finite estimate, see `unbounded`.

    >>> rows = Data(jnp.array([[0, 1], [1, 1]]))
    >>> unbounded_entries(init(jax.random.key(0), 2, 2), rows).field.tolist()
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


_compiled_one_hot_rows = jax.jit(_one_hot_rows)


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
    hot = _one_hot(params, x)
    coupled = (hot.ravel() @ _matrix(params)).reshape(hot.shape)
    return -jnp.sum(hot * (params.field + coupled / 2))


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


def zero_sum(params: Params) -> Params:
    """Parameters of the same distribution in zero-sum gauge.

    Couplings and fields sum to zero over the letters of each site. The part of a
    coupling that depends on the letter of one site only is moved to that site's field.
    Energies change by a constant.

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
    """Symmetric matrix of all couplings, with an index for each site and letter."""
    sites, num_states = params.field.shape
    first, _ = pair_indices(sites, params.edges)
    if params.coupling.shape != (len(first), num_states, num_states):
        raise ValueError(
            f"params must have {num_states} x {num_states} couplings for each of "
            f"{len(first)} pairs, got shape {params.coupling.shape}"
        )
    blocks = upper_triangle(params.coupling, sites, params.edges)
    half = blocks.swapaxes(1, 2).reshape(2 * (sites * num_states,))
    return half + half.T


@partial(jax.jit, static_argnums=1)
def _sequence_weights(x, num_states, least):
    hot = jax.vmap(lambda row: one_hot(row, num_states).ravel())(x)

    def num_similar(row):
        return jnp.sum(hot @ row >= least - 1e-3)

    return 1 / jax.lax.map(num_similar, hot, batch_size=256).astype(x.dtype)


def _is_one_hot(x):
    return ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1)
