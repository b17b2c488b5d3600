"""Parameters of a Potts model: a field for each site and letter, and couplings.

    E(x) = -sum_i h_i(x_i) - sum_(i<j) J_ij(x_i, x_j)

Different parameters define the same distribution: a term of J_ij(a, b) that depends on
a only can be moved to h_i(a). `zero_sum` returns the parameters with the smallest
couplings,

    sum_a J_ij(a, b) = sum_b J_ij(a, b) = 0,    sum_a h_i(a) = 0.

The pairs may be restricted to the edges of a graph.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp

from probjax.checks import check_count
from probjax.models.pairs import (
    Edges,
    as_edges,
    checked_edges,
    num_pairs,
    pair_indices,
    upper_triangle,
)
from probjax.recipe import recipe, static
from probjax.states import one_hot
from probjax.types import Array, Data, Float, PRNGKeyArray


@recipe
class Params:
    """A field for each site and letter, and a coupling matrix for each pair of sites.

    >>> from probjax import potts
    >>> coupling = jnp.zeros((1, 3, 3)).at[0, 1, 2].set(1.5)
    >>> params = Params(field=jnp.zeros((2, 3)), coupling=coupling)
    >>> float(potts.energy(params, jnp.array([1.0, 2.0]))), params.field.shape
    (-1.5, (2, 3))
    """

    field: Float[Array, "site letter"]
    """h_i(a)."""
    coupling: Float[Array, "pair letter letter"]
    """J_ij(a, b) of each pair i < j, for letter a at site i and b at site j.

    Pairs are in the order of `edges`, or row by row for all pairs.
    """
    edges: Edges | None = static(default=None)
    """Pairs of sites that are coupled; None for all pairs.

    Any iterable of pairs becomes `Edges`.
    """

    def __post_init__(self):
        object.__setattr__(self, "edges", as_edges(self.edges))


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
    shape = (num_pairs(size, edges), num_states, num_states)
    coupling = scale * jax.random.normal(key, shape)
    return Params(jnp.zeros((size, num_states)), coupling, edges)


def couplings_only(params: Params) -> Params:
    """Weights of a penalty that leaves the fields out: 1 on couplings, 0 on fields.

    Without weights, `fit` uses them too, and adds a faint prior on fields.

    >>> from probjax import L2
    >>> params = Params(jnp.ones((2, 2)), jnp.ones((1, 2, 2)))
    >>> float(L2(0.5, weights=couplings_only(params)).value(params))
    2.0
    """
    return Params(0.0, 1.0, params.edges)  # pyright: ignore[reportArgumentType]


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


def pair_matrix(params: Params) -> Float[Array, "entry entry"]:
    """Symmetric matrix of all couplings, with an index for each site and letter."""
    sites, num_states = params.field.shape
    pairs = num_pairs(sites, params.edges)
    if params.coupling.shape != (pairs, num_states, num_states):
        raise ValueError(
            f"params must have {num_states} x {num_states} couplings for each of "
            f"{pairs} pairs, got shape {params.coupling.shape}"
        )
    blocks = upper_triangle(params.coupling, sites, params.edges)
    half = blocks.swapaxes(1, 2).reshape(2 * (sites * num_states,))
    return half + half.T


def one_hot_state(params: Params, x: Array) -> Float[Array, "site letter"]:
    """Return one state as one-hot vectors, given letters or one-hot vectors."""
    sites, num_states = params.field.shape
    if x.shape == (sites, num_states):
        return x
    if x.shape != (sites,):
        raise ValueError(
            f"x must have the {sites} sites of params, as letters or one-hot with "
            f"{num_states} columns, got shape {x.shape}"
        )
    return one_hot(x, num_states).astype(params.field.dtype)


def one_hot_rows(params: Params, data: Data) -> tuple[Array, Array | None]:
    """Return the rows as one-hot vectors, and their mask."""
    hot = jax.vmap(lambda x: one_hot_state(params, x))(data.x)
    if data.mask is None:
        return hot, None
    mask = data.mask if data.mask.ndim == 3 else data.mask[:, :, None]
    return hot, jnp.broadcast_to(mask, hot.shape)
