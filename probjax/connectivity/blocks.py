"""Discrete states: neighbours that differ within one block of sites.

    g(x', x) = number of blocks that contain every site at which x and x' differ

Blocks may overlap. A state whose differences lie in several blocks is listed once for
each of these blocks, and so is x among the neighbours of x', so that g is symmetric.
The configurations of one block exclude each other; they define the conditional
distribution of the block given the other sites.
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
from probjax.generic_gaps import map_range
from probjax.interfaces import Connectivity
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.states import binary, letters, num_sites
from probjax.types import Domain, Gaps, Neighbours, State

MAX_CONFIGURATIONS = 2**16

Blocks = tuple[tuple[int, ...], ...]


@recipe
class BlockChanges(Connectivity):
    """Every state with another configuration of `num_states` letters in one block.

    Neighbours are listed by block and then by configuration, in the order of
    `itertools.product`. The current configuration of a block is listed too, with weight
    0. Blocks that are smaller than the largest one are padded with entries of weight 0.

    For pairs of bits, gaps are computed from gaps of single flips if these have a
    closed form. Otherwise each gap costs one evaluation of the energy.

    Args:
        blocks: the sites of each block, numbered as in `ravel(x)`.
        num_states: number of letters of a site; with 2, states are bits.

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
                    f"blocks must contain sites 0 to {size - 1}, got {block}"
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
        """Return a function of a number: the neighbour of `flat` with that number."""
        sites = jnp.asarray(_padded(self.blocks, flat.size))
        words = jnp.asarray(self._configurations(), flat.dtype)

        def change(number):
            block, word = number // len(words), number % len(words)
            return flat.at[sites[block]].set(words[word], mode="drop")

        return change

    def _changed_sites(self, flat):
        """Whether a configuration changes a site, `(block, configuration, site)`."""
        sites = _padded(self.blocks, flat.size)
        current = flat.at[sites].get(mode="clip")
        words = jnp.asarray(self._configurations(), flat.dtype)
        return (words[None] != current[:, None]) & (sites < flat.size)[:, None]

    def _weight(self, flat):
        lengths = np.array([len(block) for block in self.blocks])
        numbers = np.arange(len(self._configurations()))
        exists = numbers[None] < self.num_states ** lengths[:, None]
        return (self._changed_sites(flat).any(-1) & exists).astype(flat.dtype)

    def _gaps_by_flips(self, potential, x):
        flat, unravel = ravel_pytree(x)
        first, last = _padded(self.blocks, flat.size)[:, [0, -1]].T
        changed = self._changed_sites(flat)
        single = potential.flip_gaps(x)
        gap_last = single[last][:, None]
        if self._width == 1:
            return jnp.where(changed[..., 0], gap_last, 0)

        # E(x) - E(x with both flipped) is the gap of the first flip at x, plus that of
        # the last flip at x with the first flipped.
        flipped = jax.vmap(unravel)(flat[None] + jnp.diag(1 - 2 * flat))
        second = jax.vmap(potential.flip_gaps)(flipped)
        gap_second = second.at[first, last].get(mode="clip")[:, None]
        gap_first = single.at[first].get(mode="clip")[:, None]
        gap_last = jnp.where(changed[..., 0], gap_second, gap_last)
        return jnp.where(changed[..., 0], gap_first, 0) + jnp.where(
            changed[..., 1], gap_last, 0
        )


def pairs(size: int) -> Blocks:
    """Return all pairs of sites, as blocks.

    >>> pairs(3)
    ((0, 1), (0, 2), (1, 2))
    """
    return tuple(combinations(range(size), 2))


def as_blocks(blocks: Iterable[Iterable[int]]) -> Blocks:
    """Convert `blocks` to tuples of ints, which are hashable."""
    return tuple(tuple(index(site) for site in block) for block in blocks)


def _check(blocks, num_states):
    if not blocks or not all(blocks):
        raise ValueError(f"blocks must not be empty, got {blocks}")
    for block in blocks:
        if len(set(block)) < len(block):
            raise ValueError(f"the sites of a block must be distinct, got {block}")
        if num_states ** len(block) > MAX_CONFIGURATIONS:
            raise ValueError(
                f"a block must have at most {MAX_CONFIGURATIONS} configurations, "
                f"got {num_states}**{len(block)}"
            )


@cache
def _padded(blocks: Blocks, size: int) -> np.ndarray:
    """Sites of each block, padded in front with the index `size`, which has no site."""
    width = max(map(len, blocks))
    rows = [(size,) * (width - len(block)) + block for block in blocks]
    # An explicit dtype, because jax caches the constant whether or not x64 is enabled.
    return np.array(rows, np.int32)


@cache
def _words(width: int, num_states: int) -> np.ndarray:
    return np.array(list(product(range(num_states), repeat=width)), np.int32)
