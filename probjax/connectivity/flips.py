"""Binary states: neighbours that differ in some bits.

    g(x', x) = 1 if x and x' differ in one bit (in at most `radius` bits; in all bits)

The gap of two flips is the sum of two gaps of single flips,

    E(x) - E(x with i and j flipped) = gap_i(x) + gap_j(x with i flipped),

so if single flips have a closed form, the gaps of pairs are cheap too.

Reference: thesis, "Ising Model", eq. g_ij_ising, and the appendix "MPF objective
function for an Ising model".
"""

from functools import cache
from itertools import combinations
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count
from probjax.connectivity.general import visited
from probjax.interfaces import Connectivity
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.states import binary, num_sites
from probjax.types import (
    Array,
    ArrayLike,
    Domain,
    Gaps,
    Neighbours,
    PRNGKeyArray,
    State,
)


@recipe
class BitFlips(Connectivity):
    """Every state that differs from a binary state in 1 to `radius` bits.

    States that differ in one bit come first, in the order of `ravel(x)`, then those
    that differ in two bits, ordered by the first and then by the second bit, and so on.

    >>> BitFlips().states(jnp.array([0.0, 1.0]), ()).x.tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """

    radius: int = static(default=1)

    def __post_init__(self):
        check_count("radius", self.radius)

    @property
    def domain(self) -> Domain:
        return "bits"

    def prepare(self, x: State) -> State:
        if self.radius > (size := num_sites(x)):
            raise ValueError(
                f"radius must not exceed the {size} bits of a state, got {self.radius}"
            )
        return binary(x)

    def states(self, x: State, moves: tuple) -> Neighbours:
        flat, _ = ravel_pytree(x)
        near = [
            _flipped(x, _subsets(flat.size, count))
            for count in range(1, self.radius + 1)
        ]
        return visited(jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *near))

    def gaps(self, potential: Potential, x: State, moves: tuple) -> Gaps:
        if self.radius == 1:
            gap = potential.flip_gaps(x)
        elif self.radius == 2 and potential.has_closed_form("flip_gaps"):
            gap = _pair_gaps(potential, x)
        else:
            return super().gaps(potential, x, moves)
        return Gaps(gap, jnp.ones_like(gap))


@recipe
class RandomFlips(Connectivity):
    """`num_draws` states that differ in `num_bits` random bits.

    The bits are redrawn at each refresh. The flow is averaged over the draws, so its
    mean is that to all such states divided by their number, C(d, num_bits). The draws
    of one refresh flip disjoint sets of bits as far as there are enough bits.

    >>> flips, x = RandomFlips(3, num_bits=2), jnp.zeros(5)
    >>> near = flips.states(x, flips.draw(jax.random.key(0), None, x))
    >>> near.x.sum(1).tolist()
    [2.0, 2.0, 2.0]
    """

    num_draws: int = static()
    num_bits: int = static(default=1)

    def __post_init__(self):
        check_count("num_draws", self.num_draws)
        check_count("num_bits", self.num_bits)

    @property
    def domain(self) -> Domain:
        return "bits"

    def prepare(self, x: State) -> State:
        size = num_sites(x)
        if self.num_bits > size:
            raise ValueError(
                f"num_bits must not exceed the {size} bits of a state, "
                f"got {self.num_bits}"
            )
        if self.num_draws > comb(size, self.num_bits):
            raise ValueError(
                f"num_draws must not exceed the {comb(size, self.num_bits)} ways to "
                f"flip {self.num_bits} of {size} bits, got {self.num_draws}"
            )
        return binary(x)

    def draw(self, key: PRNGKeyArray, potential: Potential, x: State) -> Array:
        size = ravel_pytree(x)[0].size
        # A permutation of the bits is cut into disjoint sets.
        num_sets = size // self.num_bits
        keys = jax.random.split(key, -(-self.num_draws // num_sets))
        order = jax.vmap(lambda key: jax.random.permutation(key, size))(keys)
        bits = order[:, : num_sets * self.num_bits].reshape(-1, self.num_bits)
        return bits[: self.num_draws]

    def states(self, x: State, moves: Array) -> Neighbours:
        near = visited(_flipped(x, moves))
        return near._replace(weight=near.weight / self.num_draws)

    def gaps(self, potential: Potential, x: State, moves: Array) -> Gaps:
        if self.num_bits == 1 and potential.has_closed_form("flip_gaps"):
            gap = potential.flip_gaps(x)[moves[:, 0]]
            return Gaps(gap, jnp.full_like(gap, 1 / self.num_draws))
        return super().gaps(potential, x, moves)


@recipe
class OneFlip(Connectivity):
    """The state in which one given bit of a binary state is flipped."""

    bit: ArrayLike
    """Index of the bit in `ravel(x)`."""

    @property
    def domain(self) -> Domain:
        return "bits"

    def prepare(self, x: State) -> State:
        return binary(x)

    def states(self, x: State, moves: tuple) -> Neighbours:
        return visited(_flipped(x, jnp.reshape(self.bit, (1, 1))))

    def gaps(self, potential: Potential, x: State, moves: tuple) -> Gaps:
        gap = potential.flip_gap()(x, jnp.asarray(self.bit))[None]
        return Gaps(gap, jnp.ones_like(gap))


@recipe
class AllFlips(Connectivity):
    """The state in which every bit of a binary state is flipped.

    Joined to `BitFlips`, it adds a neighbour far from the data, which helps if few bits
    are 1.

    >>> AllFlips().states(jnp.array([0.0, 1.0, 1.0]), ()).x.tolist()
    [[1.0, 0.0, 0.0]]
    """

    @property
    def domain(self) -> Domain:
        return "bits"

    def prepare(self, x: State) -> State:
        return binary(x)

    def states(self, x: State, moves: tuple) -> Neighbours:
        mirrored = jax.tree.map(lambda bits: 1 - bits[None], x)
        return visited(mirrored)

    def gaps(self, potential: Potential, x: State, moves: tuple) -> Gaps:
        gap = potential.mirror_gap(x)[None]
        return Gaps(gap, jnp.ones_like(gap))


def _flipped(x, bits):
    """States in which each row of `bits`, of shape `(k, count)`, is flipped."""
    flat, unravel = ravel_pytree(x)
    return jax.vmap(lambda which: unravel(flat.at[which].set(1 - flat[which])))(bits)


@cache
def _subsets(size: int, count: int) -> np.ndarray:
    # An explicit dtype, because jax caches the constant whether or not x64 is enabled.
    return np.array(list(combinations(range(size), count)), np.int32)


def _pair_gaps(potential, x):
    """Gaps of all single flips and then of all pairs of flips."""
    single = potential.flip_gaps(x)
    first, second = _subsets(single.size, 2).T
    after = jax.vmap(potential.flip_gaps)(_flipped(x, _subsets(single.size, 1)))
    return jnp.concatenate([single, single[first] + after[first, second]])
