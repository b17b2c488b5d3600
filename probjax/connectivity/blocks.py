"""Discrete states: neighbours that differ within one block of sites.

    g(x', x) = number of blocks that hold every site at which x and x' differ

Blocks may overlap: a state that differs at sites of several blocks is listed once for
each, from either side, so neighbours are mutual. The configurations of one block
exclude each other, which is what its conditional given the rest is made of.
"""

from collections.abc import Iterable
from functools import cache
from itertools import combinations, product
from operator import index

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count
from probjax.connectivity.general import visited
from probjax.interfaces import Connectivity
from probjax.potential import Potential, map_range
from probjax.recipe import recipe, static
from probjax.states import binary, letters, num_sites
from probjax.types import Domain, Gaps, Neighbours, State

LIMIT = 2**16

Blocks = tuple[tuple[int, ...], ...]


@recipe
class BlockChanges(Connectivity):
    """Every state with another configuration of `num_states` letters in one block.

    They are listed by block and then by configuration, in the order in which
    `itertools.product` counts. A block's own configuration keeps its place in that
    table, with weight 0, as do the places that a smaller block leaves empty.

    For pairs of bits, gaps are made of those of single flips where these are known in
    closed form; else each is one evaluation of the energy.

    Args:
        blocks: the sites of each, numbered as in `ravel(x)`.
        num_states: letters of a site; with 2, states are bits.

    >>> near = BlockChanges([(0, 2)]).states(jnp.array([0.0, 1.0, 0.0]), ())
    >>> near.x.tolist()
    [[0.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    >>> near.weight.tolist()
    [0.0, 1.0, 1.0, 1.0]
    """

    blocks: Blocks = static()
    num_states: int = static(default=2)

    def __post_init__(self):
        check_count("num_states", self.num_states, least=2)
        object.__setattr__(self, "blocks", as_blocks(self.blocks))
        _check(self.blocks, self.num_states)

    @property
    def domain(self) -> Domain:
        return "bits" if self.num_states == 2 else "letters"

    def num_letters(self) -> int:
        return self.num_states

    def prepare(self, x: State) -> State:
        size = num_sites(x)
        for block in self.blocks:
            if not 0 <= min(block) <= max(block) < size:
                raise ValueError(
                    f"blocks must be of the sites 0 to {size - 1}, got {block}"
                )
        if self.num_states == 2:
            return binary(x)
        return letters(x, num_states=self.num_states)

    def states(self, x: State, moves: tuple) -> Neighbours:
        flat, unravel = ravel_pytree(x)
        change = self._changes(flat)
        numbers = jnp.arange(len(self.blocks) * len(self._configurations()))
        near = visited(jax.vmap(lambda number: unravel(change(number)))(numbers))
        return near._replace(weight=self._weight(flat).ravel())

    def gaps(self, potential: Potential, x: State, moves: tuple) -> Gaps:
        flat, unravel = ravel_pytree(x)
        weight = self._weight(flat)
        if (
            self.num_states == 2
            and self._width <= 2
            and potential.has_closed_form("flip_gaps")
        ):
            return Gaps(self._gaps_by_flips(potential, x), weight)
        change = self._changes(flat)
        near = map_range(lambda number: potential(unravel(change(number))), weight.size)
        return Gaps(potential(x) - near.reshape(weight.shape), weight)

    @property
    def _width(self):
        return max(map(len, self.blocks))

    def _configurations(self):
        return _words(self._width, self.num_states)

    def _changes(self, flat):
        """A function of a neighbour's number: the neighbour of `flat`."""
        sites = jnp.asarray(_padded(self.blocks, flat.size))
        words = jnp.asarray(self._configurations(), flat.dtype)

        def change(number):
            block, word = number // len(words), number % len(words)
            return flat.at[sites[block]].set(words[word], mode="drop")

        return change

    def _turned(self, flat):
        """Which sites each configuration changes, `(block, configuration, site)`."""
        sites = _padded(self.blocks, flat.size)
        held = flat.at[sites].get(mode="clip")
        words = jnp.asarray(self._configurations(), flat.dtype)
        return (words[None] != held[:, None]) & (sites < flat.size)[:, None]

    def _weight(self, flat):
        lengths = np.array([len(block) for block in self.blocks])
        room = np.arange(len(self._configurations()))
        real = room[None] < self.num_states ** lengths[:, None]
        return (self._turned(flat).any(-1) & real).astype(flat.dtype)

    def _gaps_by_flips(self, potential, x):
        flat, unravel = ravel_pytree(x)
        first, last = _padded(self.blocks, flat.size)[:, [0, -1]].T
        turned = self._turned(flat)
        alone = potential.flip_gaps(x)
        gap_last = alone[last][:, None]
        if self._width == 1:
            return jnp.where(turned[..., 0], gap_last, 0)

        # E(x) - E(both flipped) is the first one's gap and the last one's after it.
        flipped = jax.vmap(unravel)(flat[None] + jnp.diag(1 - 2 * flat))
        after = jax.vmap(potential.flip_gaps)(flipped)
        both = after.at[first, last].get(mode="clip")[:, None]
        gap_first = alone.at[first].get(mode="clip")[:, None]
        gap_last = jnp.where(turned[..., 0], both, gap_last)
        change_first = jnp.where(turned[..., 0], gap_first, 0)
        return change_first + jnp.where(turned[..., 1], gap_last, 0)


def pairs(size: int) -> Blocks:
    """All pairs of sites, as blocks.

    >>> pairs(3)
    ((0, 1), (0, 2), (1, 2))
    """
    return tuple(combinations(range(size), 2))


def as_blocks(blocks: Iterable[Iterable[int]]) -> Blocks:
    """`blocks` as tuples, which can be part of a program."""
    return tuple(tuple(index(site) for site in block) for block in blocks)


def _check(blocks, num_states):
    if not blocks or not all(blocks):
        raise ValueError(f"blocks must not be empty, got {blocks}")
    for block in blocks:
        if len(set(block)) < len(block):
            raise ValueError(f"the sites of a block must be distinct, got {block}")
        if num_states ** len(block) > LIMIT:
            raise ValueError(
                f"a block must have at most {LIMIT} configurations, "
                f"got {num_states}**{len(block)}"
            )


@cache
def _padded(blocks: Blocks, size: int) -> np.ndarray:
    """The sites of each block, after as many that do not exist as make them equal."""
    width = max(map(len, blocks))
    rows = [(size,) * (width - len(block)) + block for block in blocks]
    # Of one kind whether or not 64 bits are enabled, as jax remembers such constants.
    return np.array(rows, np.int32)


@cache
def _words(width: int, num_states: int) -> np.ndarray:
    return np.array(list(product(range(num_states), repeat=width)), np.int32)
