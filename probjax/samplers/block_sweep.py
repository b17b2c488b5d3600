"""Sweeps of the heat bath over sites that interact in pairs, by blocks of sites.

One matrix product computes the fields of all sites of a block. The sites of the block
are then redrawn in order, and each new letter corrects the fields of the block:

    f_m <- f_m + C_nm(new letter of n) - C_nm(old letter of n),    m in the block

The draws are those of a sweep from site to site, up to rounding of the fields. But the
couplings and the states of all chains are read once for each block, and not once for
each site.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from probjax.types import Array, Bool, Float, SiteBlock, State

# Fields of a block. With more, the corrections take longer than the matrix product.
WIDTH = 64
# Sites of a block, at least: a product with few columns reads the states too often.
LEAST = 8


def swept(
    block: Callable[[State, Array, int], SiteBlock],
    unravel: Callable[[Array], State],
    flat: Float[Array, " site"],
    uniforms: Float[Array, " site"],
    *,
    size: int,
    held: Bool[Array, " site"] | None = None,
) -> Float[Array, " site"]:
    """Redraw every site in order, and return the new state, flattened.

    Args:
        block: function of `(x, first, size)` with the `SiteBlock` of these sites.
        unravel: function that maps a flattened state to the state.
        uniforms: a uniform random number for each site.
        size: number of sites of a block, at most all sites; see `block_size`.
        held: sites that keep their letters.

    >>> from probjax import ising
    >>> block = ising.bit_block(ising.from_matrix([[-9.0, 9.0], [9.0, -9.0]]))
    >>> swept(block, lambda x: x, jnp.zeros(2), jnp.full(2, 0.5), size=1).tolist()
    [1.0, 0.0]
    """
    count = flat.size

    def sweep_block(flat, begin):
        # The last block may begin with sites that were redrawn before.
        first = jnp.minimum(begin, count - size)
        part = partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=size)
        keep = first + jnp.arange(size) < begin
        keep = keep if held is None else keep | part(held)
        inside = block(unravel(flat), first, size)
        new = _redrawn(inside, part(flat), part(uniforms), keep)
        return jax.lax.dynamic_update_slice_in_dim(flat, new, first, 0), None

    return jax.lax.scan(sweep_block, flat, jnp.arange(0, count, size))[0]


def block_size(num_sites: int, num_states: int) -> int:
    """Number of sites of a block, such that few sites are in two blocks.

    Args:
        num_states: number of letters of a site, 2 for bits.

    >>> block_size(20, 2), block_size(100, 2), block_size(1000, 2), block_size(200, 21)
    (20, 50, 63, 8)
    """
    num_fields = 1 if num_states == 2 else num_states
    num_blocks = -(-num_sites // max(WIDTH // num_fields, LEAST))
    return -(-num_sites // num_blocks)


def _redrawn(block, letters, uniforms, keep):
    """Letters of the sites of a block, redrawn in order."""

    def redraw(field, visit):
        index, coupling, letter, uniform, kept = visit
        new = jnp.where(kept, letter, drawn(field[index], uniform, letter.dtype))
        return field + _difference(coupling, letter, new), new

    visits = jnp.arange(letters.size), block.coupling, letters, uniforms, keep
    return jax.lax.scan(redraw, block.field, visits)[1]


def drawn(field: Array, uniform: Array, dtype: jnp.dtype) -> Array:
    """Letter of a site from its field and a uniform random number.

    >>> drawn(jnp.array([0.0, 50.0, 0.0]), 0.3, jnp.float32)
    Array(1., dtype=float32)
    """
    if field.ndim == 0:
        return (uniform >= 1 - jax.nn.sigmoid(field)).astype(dtype)
    cumulative = jnp.cumsum(jax.nn.softmax(field))[:-1]
    return jnp.sum(uniform >= cumulative).astype(dtype)


def _difference(coupling, old, new):
    """Change of the fields of a block if a letter changes."""
    if coupling.ndim == 1:
        return (new - old) * coupling
    return coupling[new.astype(int)] - coupling[old.astype(int)]
