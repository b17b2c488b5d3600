"""Connectivities made of functions, and of other connectivities.

    Listed: g(x'|x) = 1 for every x' that a function lists, which must be mutual
    Proposal: x' ~ g(.|x), any distribution that can be drawn from and evaluated

A proposal's flow, g(x'|x) (g(x|x') / g(x'|x))^(1/2) exp((E(x) - E(x')) / 2), is an
average over its draws, and only the ratio of its densities matters.

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
from probjax.trees import float_dtype, floating
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
    """All states along the leading axis of `x`, as neighbours that count 1 each."""
    leaves = jax.tree.leaves(x)
    zeros = jnp.zeros(len(leaves[0]), float_dtype(x))
    return Neighbours(x, zeros, zeros + 1)


@recipe
class Listed(Connectivity):
    """The states that `neighbours(x)` lists, leaves with a leading axis of neighbours.

    Neighbours must be mutual: a state lists each of its neighbours as often as it is
    listed by it. Some neighbours of the first rows of the data are tried for that.

    >>> def turns(x):
    ...     return jnp.stack([jnp.roll(x, 1), jnp.roll(x, -1)])
    >>> Listed(turns).states(jnp.array([0.0, 1.0, 2.0]), ()).x.tolist()
    [[2.0, 0.0, 1.0], [1.0, 2.0, 0.0]]
    """

    neighbours: Callable[[State], State] = static()

    def prepare(self, x: State) -> State:
        x = jax.tree.map(floating, x)
        _check_states("neighbours", jax.eval_shape(self.neighbours, _first(x)), x)
        if is_concrete(x):
            few = jax.tree.map(lambda rows: rows[:CHECKED_ROWS], x)
            with eager_evaluation():
                mutual = bool(_are_mutual(self.neighbours, few))
            if not mutual:
                raise ValueError(
                    "neighbours must be mutual, but a row has a neighbour that does "
                    "not list it as often: list both ways, or use a Proposal"
                )
        return x

    def states(self, x: State, moves: tuple) -> Neighbours:
        return visited(self.neighbours(x))


@recipe
class Proposal(Connectivity):
    """`num_draws` states drawn from a distribution g(.|x) of any kind.

    `propose(key, args, x)` draws one; `log_density(args, x_new, x)` is its
    log g(x_new|x), to within a constant that depends on neither. Where one state can
    be drawn from the other, the other must be drawn from the one.

    Among draws of the model itself all gaps vanish:

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
        key, first = jax.random.key(0), _first(x)
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
        there = jax.vmap(lambda x_new: self.log_density(self.args, x_new, x))(moves)
        back = jax.vmap(lambda x_new: self.log_density(self.args, x, x_new))(moves)
        share = jnp.full_like(there, 1 / self.num_draws)
        return Neighbours(moves, back - there, share)

    def _check(self, rows):
        """Try a few draws."""
        count = len(jax.tree.leaves(rows)[0])
        keys = jax.random.split(jax.random.key(0), count)
        with eager_evaluation():
            there, back = _try_out(self, keys, rows)
            there_is_finite = bool(jnp.isfinite(there).all())
            back_is_finite = bool(jnp.isfinite(back).all())
        if not there_is_finite:
            raise ValueError(
                "log_density(args, x_new, x) must be finite for every x_new that "
                "propose draws, but it is not for some"
            )
        if not back_is_finite:
            raise ValueError(
                "a proposal must be reversible: log_density(args, x, x_new) is not "
                "finite for some x_new drawn from x, so that nothing would flow there"
            )


@recipe
class Joined(Connectivity):
    """The neighbours of every member together, a state reached twice counted twice.

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
        # Deterministic members have no moves, and () stands for all of theirs.
        moves = moves or ((),) * len(self.members)
        return zip(self.members, moves, strict=True)


@jax.jit
def _try_out(proposal: Proposal, keys: Array, rows: State) -> tuple[Array, Array]:
    """Log densities of draws from the rows, there and back."""

    def one(key, x):
        x_new = proposal.propose(key, proposal.args, x)
        there = proposal.log_density(proposal.args, x_new, x)
        return there, proposal.log_density(proposal.args, x, x_new)

    return jax.vmap(one)(keys, rows)


@partial(jax.jit, static_argnums=0)
def _are_mutual(function: Callable[[State], State], rows: State) -> Array:
    def count(x, of):
        listed = jax.vmap(lambda state: ravel_pytree(state)[0])(function(of))
        return jnp.isclose(listed, ravel_pytree(x)[0][None]).all(1).sum()

    def one(x):
        near = function(x)
        total = len(jax.tree.leaves(near)[0])
        some = np.unique(np.linspace(0, total - 1, CHECKED_NEIGHBOURS).astype(np.int32))
        near = jax.tree.map(lambda leaf: leaf[some], near)
        there = jax.vmap(lambda y: count(y, x))(near)
        back = jax.lax.map(lambda y: count(x, y), near)
        return jnp.all(there == back)

    return jax.lax.map(one, rows).all()


def _first(rows):
    return jax.tree.map(lambda leaf: leaf[0], rows)


def _check_states(name, found, rows):
    """Refuse what is not states like those of `rows`, with a leading axis."""
    shapes = jax.tree.map(lambda leaf: jnp.shape(leaf)[1:], rows)
    others = jax.tree.map(lambda leaf: leaf.shape[1:], found)
    if shapes != others or any(not leaf.shape for leaf in jax.tree.leaves(found)):
        raise ValueError(
            f"{name} must be states like those of the data, of shape {shapes}, with a "
            f"leading axis, got {jax.tree.map(lambda leaf: leaf.shape, found)}"
        )
