"""Connectivities defined by functions, and unions of connectivities.

    Listed: g(x'|x) = 1 for every x' that a function lists; g must be symmetric
    Proposal: x' ~ g(.|x), any distribution that can be sampled and evaluated

The flow of a proposal, g(x'|x) (g(x|x') / g(x'|x))^(1/2) exp((E(x) - E(x')) / 2), is
averaged over its draws, so that only the ratio of the two densities is evaluated.

Reference: thesis, "Sampling the Connectivity Function g_ij", eq. Gammaij.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count, check_parts, eager_evaluation, is_concrete
from probjax.interfaces import Connectivity
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.trees import first_row, flat_rows, float_dtype, floating
from probjax.types import (
    Array,
    Domain,
    Gaps,
    Neighbours,
    PRNGKeyArray,
    PyTree,
    Scalar,
    State,
)

CHECKED_ROWS = 32
CHECKED_NEIGHBOURS = 8


def visited(x: State) -> Neighbours:
    """Return the states along the leading axis of `x` as neighbours of weight 1."""
    leaves = jax.tree.leaves(x)
    zeros = jnp.zeros(len(leaves[0]), float_dtype(x))
    return Neighbours(x, zeros, zeros + 1)


@recipe
class Listed(Connectivity):
    """The states that `neighbours(x)` lists, leaves with a leading axis of neighbours.

    Neighbours must be mutual: x lists x' as often as x' lists x. `prepare` checks this
    for some neighbours of the first rows of the data.

    >>> def turns(x):
    ...     return jnp.stack([jnp.roll(x, 1), jnp.roll(x, -1)])
    >>> Listed(turns).states(jnp.array([0.0, 1.0, 2.0]), ()).x.tolist()
    [[2.0, 0.0, 1.0], [1.0, 2.0, 0.0]]
    """

    neighbours: Callable[[State], State] = static()

    def prepare(self, x: State) -> State:
        x = jax.tree.map(floating, x)
        _check_states("neighbours", jax.eval_shape(self.neighbours, first_row(x)), x)
        if is_concrete(x):
            few = jax.tree.map(lambda rows: rows[:CHECKED_ROWS], x)
            with eager_evaluation():
                mutual = bool(_are_mutual(self.neighbours, few))
            if not mutual:
                raise ValueError(
                    "neighbours must be mutual, got a row that is not listed by its "
                    "neighbour as often as it lists that neighbour; try to list both "
                    "directions, or a Proposal"
                )
        return x

    def states(self, x: State, moves: tuple) -> Neighbours:
        return visited(self.neighbours(x))


@recipe
class Proposal(Connectivity):
    """`num_draws` states drawn from any proposal distribution g(.|x).

    If x' can be drawn from x, it must be possible to draw x from x'.

    Args:
        propose: `propose(key, args, x)` draws one state.
        log_density: `log_density(args, x_new, x)` is log g(x_new|x), up to a constant
            that depends on neither state.
        args: arguments of both functions, traced.
        num_draws: number of states drawn, over which the flow is averaged.

    If the proposal draws from the model itself, all gaps vanish:

    >>> from probjax.potential import potential
    >>> def energy(scale, x):
    ...     return jnp.sum((x / scale) ** 2) / 2
    >>> def propose(key, scale, x):
    ...     return scale * jax.random.normal(key, x.shape)
    >>> def log_density(scale, x_new, x):
    ...     return -energy(scale, x_new)
    >>> drawn, x = Proposal(propose, log_density, 2.0, num_draws=3), jnp.ones(2)
    >>> moves = drawn.draw(jax.random.key(0), None, x)
    >>> gaps = drawn.gaps(potential(energy, 2.0), x, moves)
    >>> bool(jnp.abs(gaps.gap).max() < 1e-5)
    True
    """

    propose: Callable[[PRNGKeyArray, PyTree, State], State] = static()
    log_density: Callable[[PyTree, State, State], Scalar] = static()
    args: PyTree = None
    num_draws: int = static(default=1)

    def __post_init__(self):
        check_count("num_draws", self.num_draws)

    def prepare(self, x: State) -> State:
        x = jax.tree.map(floating, x)
        key, first = jax.random.key(0), first_row(x)
        drawn = jax.eval_shape(lambda: self.draw(key, None, first))
        _check_states("propose's draws", drawn, x)
        shape = jax.eval_shape(self.log_density, self.args, first, first).shape
        if shape != ():
            raise ValueError(f"log_density must return a scalar, got shape {shape}")
        if is_concrete((x, self.args)):
            self._check(jax.tree.map(lambda rows: rows[:CHECKED_ROWS], x))
        return x

    def draw(self, key: PRNGKeyArray, potential: Potential | None, x: State) -> State:
        keys = jax.random.split(key, self.num_draws)
        drawn = jax.vmap(self.propose, (0, None, None))(keys, self.args, x)
        return jax.lax.stop_gradient(drawn)

    def states(self, x: State, moves: State) -> Neighbours:
        forward = jax.vmap(lambda x_new: self.log_density(self.args, x_new, x))(moves)
        reverse = jax.vmap(lambda x_new: self.log_density(self.args, x, x_new))(moves)
        weight = jnp.full_like(forward, 1 / self.num_draws)
        return Neighbours(moves, reverse - forward, weight)

    def _check(self, rows):
        """Raise if a draw from one of `rows` has a density of 0 in either direction."""
        count = len(jax.tree.leaves(rows)[0])
        keys = jax.random.split(jax.random.key(0), count)
        with eager_evaluation():
            forward, reverse = _draw_densities(self, keys, rows)
            forward_is_finite = bool(jnp.isfinite(forward).all())
            reverse_is_finite = bool(jnp.isfinite(reverse).all())
        if not forward_is_finite:
            raise ValueError(
                "log_density(args, x_new, x) must be finite for every x_new that "
                "propose draws, got a value that is not finite"
            )
        if not reverse_is_finite:
            raise ValueError(
                "a proposal must be reversible, got a log_density(args, x, x_new) that "
                "is not finite for an x_new drawn from x, so that its flow is 0"
            )


@recipe
class Joined(Connectivity):
    """Union of the neighbours of all members; a state listed twice counts twice.

    >>> from probjax.connectivity import AllFlips, BitFlips
    >>> both = Joined((BitFlips(), AllFlips()))
    >>> both.states(jnp.array([0.0, 1.0]), ((), ())).x.tolist()
    [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    """

    members: tuple[Connectivity, ...]

    def __post_init__(self):
        check_parts("members", self.members, Connectivity, "BitFlips()")

    @property
    def domain(self) -> Domain:
        first = self.members[0].domain
        return first if all(m.domain == first for m in self.members) else "any"

    def num_letters(self) -> int | None:
        counts = [member.num_letters() for member in self.members]
        known = [count for count in counts if count is not None]
        return max(known) if len(known) == len(counts) else None

    def prepare(self, x: State) -> State:
        for member in self.members:
            x = member.prepare(x)
        return x

    def draw(self, key: PRNGKeyArray, potential: Potential, x: State) -> tuple:
        keys = jax.random.split(key, len(self.members))
        pairs = zip(self.members, keys, strict=True)
        return tuple(member.draw(k, potential, x) for member, k in pairs)

    def states(self, x: State, moves: tuple) -> Neighbours:
        parts = [m.states(x, move) for m, move in self._pairs(moves)]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    def gaps(self, potential: Potential, x: State, moves: tuple) -> Gaps:
        parts = [m.gaps(potential, x, move) for m, move in self._pairs(moves)]
        return jax.tree.map(lambda *g: jnp.concatenate([p.ravel() for p in g]), *parts)

    def _pairs(self, moves):
        # `moves` is () if all members are deterministic.
        moves = moves or ((),) * len(self.members)
        return zip(self.members, moves, strict=True)


@jax.jit
def _draw_densities(
    proposal: Proposal, keys: Array, rows: State
) -> tuple[Array, Array]:
    """Log densities of one draw from each row, and of the reverse moves."""

    def one(key, x):
        x_new = proposal.propose(key, proposal.args, x)
        forward = proposal.log_density(proposal.args, x_new, x)
        return forward, proposal.log_density(proposal.args, x, x_new)

    return jax.vmap(one)(keys, rows)


@partial(jax.jit, static_argnums=0)
def _are_mutual(function: Callable[[State], State], rows: State) -> Array:
    """Whether some neighbours of each row list the row as often as it lists them."""

    def count(y, x):
        """Number of times that y is among the neighbours of x."""
        listed = flat_rows(function(x))
        return jnp.isclose(listed, ravel_pytree(y)[0][None]).all(1).sum()

    def one(x):
        near = function(x)
        total = len(jax.tree.leaves(near)[0])
        some = np.unique(np.linspace(0, total - 1, CHECKED_NEIGHBOURS).astype(np.int32))
        near = jax.tree.map(lambda leaf: leaf[some], near)
        forward = jax.vmap(lambda y: count(y, x))(near)
        reverse = jax.lax.map(lambda y: count(x, y), near)
        return jnp.all(forward == reverse)

    return jax.lax.map(one, rows).all()


def _check_states(name, found, rows):
    """Raise if `found` are not states like `rows`, with a leading axis."""
    shapes = jax.tree.map(lambda leaf: jnp.shape(leaf)[1:], rows)
    others = jax.tree.map(lambda leaf: leaf.shape[1:], found)
    if shapes != others or any(not leaf.shape for leaf in jax.tree.leaves(found)):
        raise ValueError(
            f"{name} must be states like those of the data, of shape {shapes}, with a "
            f"leading axis, got shape {jax.tree.map(lambda leaf: leaf.shape, found)}"
        )
