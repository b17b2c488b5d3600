"""Cluster flips of an Ising model: bonds join spins that agree, whole clusters turn.

Over spins s = 2x - 1 and a ghost spin s_0 = 1, to which the fields are couplings,

    p(s) ~ exp(sum_(i<j) K_ij s_i s_j),    K_i0 = h_i,

and given s each bond is *active*, independently of all others, with probability

    1 - exp(-2 max(K_ij s_i s_j, 0)).

Given the active bonds every cluster that they join is as likely to be turned over as
not. Swendsen and Wang throw a coin for each cluster, Wolff turns the cluster of one
random spin. If the ghost has turned, all spins are turned once more, which the sum does
not notice: so the ghost is 1 again, and what was not in its cluster has turned.

Couplings may have any sign, but only where all can be satisfied at once do clusters
follow the correlations, and keep chains fast at a critical point. In a frustrated model
one cluster soon holds nearly all spins, and turning it changes little.

Reference: Swendsen and Wang, PRL 58, 86 (1987); Wolff, PRL 62, 361 (1989).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from probjax.interfaces import Sampler
from probjax.models.ising.model import energy, pair_indices
from probjax.potential import Potential
from probjax.recipe import recipe
from probjax.states import binary
from probjax.types import Array, ArrayLike, Domain, Float, Info, PRNGKeyArray, State


class ClusterState(NamedTuple):
    """Where cluster flips are."""

    x: Float[Array, " unit"]
    """The current state."""


class Bonds(NamedTuple):
    """The graph of a model: vertex 0 is the ghost, vertex i + 1 is unit i."""

    first: Int[ArrayLike, " bond"]
    """The vertex at one end of each bond, and..."""
    second: Int[ArrayLike, " bond"]
    """...at the other. Pairs of units in their order come first, then the fields."""
    coupling: Float[Array, " bond"]
    """K, positive where the ends like to agree."""


@recipe
class SwendsenWang(Sampler):
    """Every cluster turns or not by a coin of its own. A step costs O(bonds).

    Units that all but always agree turn together:

    >>> from probjax import ising, sample
    >>> params = ising.from_matrix([[20.0, -20.0], [-20.0, 20.0]])
    >>> args = jax.random.key(0), ising.energy, params, jnp.zeros((10, 2))
    >>> x = sample(*args, sampler=SwendsenWang(), num_draws=20).x
    >>> bool((x[..., 0] == x[..., 1]).all()), bool(0.2 < x.mean() < 0.8)
    (True, True)
    """

    @property
    def domain(self) -> Domain:
        return "bits"

    def num_letters(self) -> int:
        return 2

    def prepare(self, potential: Potential, x: State) -> State:
        return binary(x)

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> ClusterState:
        return _start("SwendsenWang", potential, x)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: ClusterState
    ) -> tuple[ClusterState, Info]:
        bond_key, coin_key = jax.random.split(key)
        labels = _draw_clusters(bond_key, potential, state.x)
        coins = jax.random.bernoulli(coin_key, shape=labels.shape)
        return _moved(state.x, coins[labels])


@recipe
class Wolff(Sampler):
    """The cluster of one random unit turns. A step costs what `SwendsenWang`'s does.

    Large clusters are chosen more often and always turn; small ones change slowly.

    In a model of one cluster, the whole state turns at every step:

    >>> from probjax import ising, sample
    >>> params = ising.from_matrix([[20.0, -20.0], [-20.0, 20.0]])
    >>> args = jax.random.key(0), ising.energy, params, jnp.zeros((1, 2))
    >>> sample(*args, sampler=Wolff(), num_draws=3).x.tolist()
    [[[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]]
    """

    @property
    def domain(self) -> Domain:
        return "bits"

    def num_letters(self) -> int:
        return 2

    def prepare(self, potential: Potential, x: State) -> State:
        return binary(x)

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> ClusterState:
        return _start("Wolff", potential, x)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: ClusterState
    ) -> tuple[ClusterState, Info]:
        bond_key, unit_key = jax.random.split(key)
        labels = _draw_clusters(bond_key, potential, state.x)
        vertex = jax.random.randint(unit_key, (), 1, len(labels))
        return _moved(state.x, labels == labels[vertex])


def bonds(potential: Potential) -> Bonds:
    """The couplings and fields of spins in an Ising model, times its weight.

    As `ising.to_spins`, but without a matrix: K_ij = -J_ij / 2 and
    K_i0 = sum_j K_ij - J_ii / 2 for E = x'Jx.
    """
    params, weight = potential.args[0], potential.weights[0]
    size = len(params.bias)
    first, second = pair_indices(size, params.edges)
    pairs = -params.coupling / 2
    ends = np.concatenate([first, second])
    field = jax.ops.segment_sum(jnp.tile(pairs, 2), ends, size) - params.bias / 2
    units = np.arange(1, size + 1, dtype=np.int32)
    return Bonds(
        np.concatenate([first + 1, np.zeros_like(units)]),
        np.concatenate([second + 1, units]),
        weight * jnp.concatenate([pairs, field]),
    )


def bond_chances(graph: Bonds, x: Float[Array, " unit"]) -> Float[Array, " bond"]:
    """The probability of each bond to be active: 1 - exp(-2 max(K s s', 0))."""
    spins = jnp.concatenate([jnp.ones(1, x.dtype), 2 * x - 1])
    agreement = graph.coupling * spins[graph.first] * spins[graph.second]
    return -jnp.expm1(-2 * jnp.maximum(agreement, 0))


def clusters(
    first: Int[ArrayLike, " bond"],
    second: Int[ArrayLike, " bond"],
    active: Bool[Array, " bond"],
    size: int,
) -> Int[Array, " vertex"]:
    """The least vertex that each of `size` vertices is joined to by active bonds.

    Every vertex points to one of its cluster that is no greater, at first to itself. A
    bond whose ends point to two vertices makes the greater of these point to the
    lesser; then all point to where those lead that they pointed to. When that changes
    nothing, both ends of every active bond point to one vertex, which points to itself
    and so is the least. Paths shorten like logarithms: a few rounds will do.

    >>> active = jnp.array([True, True, False])
    >>> clusters(jnp.array([3, 2, 0]), jnp.array([1, 3, 2]), active, 4).tolist()
    [0, 1, 1, 1]
    """

    def lower(carry):
        labels, _ = carry
        one, other = labels[first], labels[second]
        # Of inactive bonds a label above all others, which is never the minimum.
        lesser = jnp.where(active, jnp.minimum(one, other), size)
        lowered = labels.at[jnp.maximum(one, other)].min(lesser)
        # Twice: jumps cost less than the rounds they save.
        lowered = lowered[lowered]
        lowered = lowered[lowered]
        return lowered, jnp.any(lowered != labels)

    start = jnp.arange(size, dtype=jnp.int32), jnp.array(True)
    return jax.lax.while_loop(lambda carry: carry[1], lower, start)[0]


def turned(
    x: Float[Array, " unit"], turns: Bool[Array, " vertex"]
) -> Float[Array, " unit"]:
    """`x` after some vertices turn, and then all of them if that brings the ghost back.

    So a unit is flipped if it turns and the ghost does not, or the other way round.
    """
    return jnp.where(turns[1:] != turns[0], 1 - x, x)


def _start(name, potential, x):
    if potential.energies != (energy,):
        raise ValueError(f"{name} is for ising.energy alone")
    return ClusterState(x)


def _draw_clusters(key, potential, x):
    graph = bonds(potential)
    chances = bond_chances(graph, x)
    active = jax.random.uniform(key, chances.shape, chances.dtype) < chances
    return clusters(graph.first, graph.second, active, len(x) + 1)


def _moved(x, turns):
    return ClusterState(turned(x, turns)), Info(jnp.ones((), x.dtype))
