"""Which states exchange probability with a state: the function g of the flow.

A connectivity names the neighbours x' of one state x. All that the discrete side of the
library needs of them is their gap,

    gap = E(x) - E(x') + log g(x|x') - log g(x'|x),

so that exp(gap / 2) is the rate of flow from x to x'. Neighbours that are all visited
have weight 1 and are summed; neighbours that are drawn have weight 1/k and are
averaged.

Reference: thesis, "Choosing the Connectivity Function g", "Sampling the Connectivity
Function g_ij" and the appendix "MPF objective function for an Ising model".
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.potential import Potential
from probjax.types import (
    Array,
    Connectivity,
    Gaps,
    Neighbours,
    PRNGKeyArray,
    State,
    floating,
    holds,
    recipe,
    static,
)


@recipe
class BitFlips:
    """Every state that differs from a binary state in one bit."""

    def prepare(self, x: State) -> State:
        return binary(x)

    def draw(self, key: PRNGKeyArray, potential: Potential, x: State) -> tuple:
        return ()

    def states(self, x: State, moves: tuple) -> Neighbours:
        flat, unravel = ravel_pytree(x)
        flips = jnp.eye(flat.size, dtype=flat.dtype)
        flipped = jax.vmap(lambda flip: unravel(flat + flip * (1 - 2 * flat)))(flips)
        return _all_of(flipped, flat.size, flat.dtype)

    def gaps(self, potential: Potential, x: State, moves: tuple) -> Gaps:
        gap = potential.flip_gaps(x)
        return Gaps(gap, jnp.ones_like(gap))


@recipe
class AllFlips:
    """The one state that differs from a binary state in every bit.

    Joined to `BitFlips` it lets the flow see the far side of the state space, which
    matters where activity is sparse.
    """

    def prepare(self, x: State) -> State:
        return binary(x)

    def draw(self, key: PRNGKeyArray, potential: Potential, x: State) -> tuple:
        return ()

    def states(self, x: State, moves: tuple) -> Neighbours:
        mirrored = jax.tree.map(lambda bits: 1 - bits[None], x)
        return _all_of(mirrored, 1, jnp.result_type(*jax.tree.leaves(x)))

    def gaps(self, potential: Potential, x: State, moves: tuple) -> Gaps:
        gap = potential.mirror_gap(x)[None]
        return Gaps(gap, jnp.ones_like(gap))


@recipe
class GaussianSteps:
    """`num_draws` states a Gaussian step of standard deviation `scale` away.

    The steps are symmetric, so the ratio of forward and backward densities is 1. As
    `scale` goes to 0 the flow tends to score matching.
    """

    scale: float
    num_draws: int = static(default=1)

    def __post_init__(self):
        if isinstance(self.scale, float) and not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale}")
        if self.num_draws < 1:
            raise ValueError(f"num_draws must be at least 1, got {self.num_draws}")

    def prepare(self, x: State) -> State:
        return jax.tree.map(floating, x)

    def draw(self, key: PRNGKeyArray, potential: Potential, x: State) -> Array:
        flat, _ = ravel_pytree(x)
        return jax.random.normal(key, (self.num_draws, flat.size), flat.dtype)

    def states(self, x: State, moves: Array) -> Neighbours:
        flat, unravel = ravel_pytree(x)
        stepped = jax.vmap(lambda step: unravel(flat + self.scale * step))(moves)
        count = self.num_draws
        ratio = jnp.zeros(count, flat.dtype)
        return Neighbours(stepped, ratio, jnp.full_like(ratio, 1 / count))

    def gaps(self, potential: Potential, x: State, moves: Array) -> Gaps:
        return generic_gaps(potential, x, self.states(x, moves))


@recipe
class Joined:
    """The neighbours of every member together, a state reached twice counted twice."""

    members: tuple[Connectivity, ...]

    def prepare(self, x: State) -> State:
        for member in self.members:
            x = member.prepare(x)
        return x

    def draw(self, key: PRNGKeyArray, potential: Potential, x: State) -> tuple:
        keys = jax.random.split(key, len(self.members))
        pairs = zip(self.members, keys, strict=True)
        return tuple(member.draw(k, potential, x) for member, k in pairs)

    def states(self, x: State, moves: tuple) -> Neighbours:
        return _joined(m.states(x, move) for m, move in self._pairs(moves))

    def gaps(self, potential: Potential, x: State, moves: tuple) -> Gaps:
        return _joined(m.gaps(potential, x, move) for m, move in self._pairs(moves))

    def _pairs(self, moves):
        # Deterministic members have no moves, and () stands for all of theirs.
        moves = moves or ((),) * len(self.members)
        return zip(self.members, moves, strict=True)


def generic_gaps(potential: Potential, x: State, neighbours: Neighbours) -> Gaps:
    """The gaps from one evaluation of the potential per neighbour."""
    gap = potential(x) - jax.vmap(potential)(neighbours.x) + neighbours.log_ratio
    return Gaps(gap, neighbours.weight)


def binary(x: State) -> State:
    """`x` as floating 0s and 1s; anything else in it is refused.

    Spins of -1 and 1 are refused too, as they may be a mistake: see `ising.bits`.
    """
    if not holds(_is_bit, x):
        spins = holds(is_spin, x)
        hint = "spins of -1 and 1: convert them with ising.bits" if spins else "others"
        raise ValueError(f"a binary connectivity needs data of 0 and 1, got {hint}")
    return jax.tree.map(floating, x)


def _is_bit(value):
    return (value == 0) | (value == 1)


def is_spin(value: Array) -> Array:
    """Whether each value is -1 or 1."""
    return jnp.abs(value) == 1


def _all_of(states, count, dtype):
    return Neighbours(states, jnp.zeros(count, dtype), jnp.ones(count, dtype))


def _joined(parts):
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
