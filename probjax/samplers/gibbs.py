"""Gibbs sampling: sites are redrawn from their conditional distributions.

    p(x_n = a | the other sites) = exp(gap_na) / sum_b exp(gap_nb),

with gap_na = E(x) - E(x with site n set to a). A bit flips with probability
sigmoid(gap_n). `HeatBath` redraws one site after the other. `ColourGibbs` redraws all
sites of one colour at once, because they do not interact; on a lattice this is every
second site.

If the energy has the closed form `bit_block` or `letter_block`, `HeatBath` goes from
block to block of sites: it makes the same draws, but reads the states of all chains
once for each block and not once for each site.

Reference: Geman and Geman, IEEE PAMI 6, 721 (1984).
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax import random
from probjax.checks import check_count, eager_evaluation, is_concrete
from probjax.interfaces import Sampler
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.samplers.block_sweep import block_size, swept
from probjax.states import binary, letters, num_sites
from probjax.types import (
    Array,
    Bool,
    Domain,
    Float,
    Info,
    PRNGKeyArray,
    Scalar,
    State,
)

# Entries of the states that `ColourGibbs.prepare` flips at once.
_MOST_ENTRIES = 2**22


class GibbsState(NamedTuple):
    """State of a Gibbs chain."""

    x: State
    """Current state."""


def every_site(key: PRNGKeyArray, size: int) -> Array:
    """All sites in order (sequential scan).

    >>> every_site(jax.random.key(0), 3).tolist()
    [0, 1, 2]
    """
    return jnp.arange(size)


def random_sites(key: PRNGKeyArray, size: int) -> Array:
    """Independent uniform sites, as many as a state has (random scan, reversible).

    >>> sites = random_sites(jax.random.key(0), 5)  # for HeatBath(sites=random_sites)
    >>> sites.shape, bool(((sites >= 0) & (sites < 5)).all())
    ((5,), True)
    """
    return jax.random.randint(key, (size,), 0, size)


@recipe
class HeatBath(Sampler):
    """Gibbs sampler of bits or letters, with one sweep over the sites per step.

    Args:
        num_states: number of letters of a site; with 2, states are bits.
        sites: sites to redraw in a sweep, in order: `every_site`, `random_sites`, or a
            function of `(key, size)` that does not depend on the state.

    >>> from probjax import ising, sample
    >>> params = ising.from_matrix([[-9.0, 0.0], [0.0, 9.0]])
    >>> x, options = jnp.array([[0, 1]]), dict(sampler=HeatBath(), num_draws=1)
    >>> draws = sample(jax.random.key(0), ising.energy, params, x, **options)
    >>> draws.x.tolist()
    [[[1.0, 0.0]]]
    """

    num_states: int = static(default=2)
    sites: Callable[[PRNGKeyArray, int], Array] = static(default=every_site)

    def __post_init__(self):
        check_count("num_states", self.num_states, least=2)

    @property
    def domain(self) -> Domain:
        return "bits" if self.num_states == 2 else "letters"

    def num_letters(self) -> int:
        return self.num_states

    def prepare(self, potential: Potential, x: State) -> State:
        return (
            binary(x)
            if self.num_states == 2
            else letters(x, num_states=self.num_states)
        )

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> GibbsState:
        return GibbsState(x)

    def step(
        self,
        key: PRNGKeyArray,
        potential: Potential,
        state: GibbsState,
        *,
        held: Bool[Array, " site"] | None = None,
    ) -> tuple[GibbsState, Info]:
        """Redraw one site after the other; sites that are `held` keep their letters."""
        flat, unravel = ravel_pytree(state.x)
        order_key, uniform_key = random.split(key)
        if self.sites is every_site and potential.has_closed_form(self._block_form):
            flat = swept(
                potential.block(self._block_form),
                unravel,
                flat,
                random.uniform(uniform_key, flat.shape, flat.dtype),
                size=block_size(flat.size, self.num_states),
                held=held,
            )
            return GibbsState(unravel(flat)), Info(jnp.ones((), flat.dtype))
        sites = self.sites(order_key, flat.size)
        conditional = self.conditional(potential)
        uniforms = random.uniform(uniform_key, sites.shape, flat.dtype)

        def redraw(flat, visit):
            site, uniform = visit
            cumulative = jnp.cumsum(conditional(unravel(flat), site))[:-1]
            letter = jnp.sum(uniform >= cumulative).astype(flat.dtype)
            if held is not None:
                letter = jnp.where(held[site], flat[site], letter)
            return flat.at[site].set(letter), None

        flat, _ = jax.lax.scan(redraw, flat, (sites, uniforms))
        return GibbsState(unravel(flat)), Info(jnp.ones((), flat.dtype))

    def mean_gap(self, potential: Potential, x: State) -> Scalar:
        return mean_gap_of_sites(potential, x, self.num_states)

    @property
    def _block_form(self):
        """Name of the closed form with which a sweep goes from block to block."""
        return "bit_block" if self.num_states == 2 else "letter_block"

    def conditional(self, potential: Potential) -> Callable[[State, Array], Array]:
        """Return a function of `(x, site)`: probabilities of the letters of the site,
        given the other sites.
        """
        if self.num_states > 2:
            gaps = potential.site_gap(self.num_states)
            return lambda x, site: jax.nn.softmax(gaps(x, site))
        gap = potential.flip_gap()

        def of_bit(x, site):
            on = jax.nn.sigmoid(gap(x, site))
            on = jnp.where(ravel_pytree(x)[0][site] == 1, 1 - on, on)
            return jnp.stack([1 - on, on])

        return of_bit


@recipe
class ColourGibbs(Sampler):
    """Gibbs sampler of bits that redraws all bits of one colour at once.

    Args:
        colours: masks over the sites, one for each colour. Bits of one colour must not
            interact; the function `colours` computes such masks from the edges of a
            model.

    >>> from probjax import ising, sample
    >>> edges, bias = ((0, 1), (1, 2)), jnp.array([-9.0, 9.0, -9.0])
    >>> params = ising.Params(bias, jnp.zeros(2), edges)
    >>> sampler = ColourGibbs(colours(edges, 3))
    >>> args = jax.random.key(0), ising.energy, params, jnp.array([[0, 1, 0]])
    >>> sample(*args, sampler=sampler, num_draws=1).x.tolist()
    [[[1.0, 0.0, 1.0]]]
    """

    colours: Float[Array, "colour site"]

    @property
    def domain(self) -> Domain:
        return "bits"

    def num_letters(self) -> int:
        return 2

    def prepare(self, potential: Potential, x: State) -> State:
        count = num_sites(x)
        if np.shape(self.colours)[1:] != (count,):
            raise ValueError(
                f"colours must be masks over the {count} sites of a state, got shape "
                f"{np.shape(self.colours)}"
            )
        x = binary(x)
        if is_concrete((self.colours, potential, x)):
            with eager_evaluation():
                independent = bool(_are_independent(self.colours, potential, x))
            if not independent:
                raise ValueError(
                    "bits of one colour must not interact, got colours with bits that "
                    "the energy couples; try colours(edges, size) with the edges of "
                    "the model, or HeatBath()"
                )
        return x

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> GibbsState:
        return GibbsState(x)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: GibbsState
    ) -> tuple[GibbsState, Info]:
        flat, unravel = ravel_pytree(state.x)
        uniforms = random.uniform(key, self.colours.shape, flat.dtype)

        def redraw(flat, visit):
            mask, uniform = visit
            flips = uniform < jax.nn.sigmoid(potential.flip_gaps(unravel(flat)))
            return jnp.where((mask > 0) & flips, 1 - flat, flat), None

        flat, _ = jax.lax.scan(redraw, flat, (self.colours, uniforms))
        return GibbsState(unravel(flat)), Info(jnp.ones((), flat.dtype))

    def mean_gap(self, potential: Potential, x: State) -> Scalar:
        return mean_gap_of_sites(potential, x, 2)


def mean_gap_if_cheap(potential: Potential, x: State, num_states: int) -> Scalar | None:
    """Compute `Sampler.mean_gap` if all energies have closed forms of gaps."""
    form = "flip_gaps" if num_states == 2 else "site_gaps"
    if not potential.has_closed_form(form):
        return None
    return mean_gap_of_sites(potential, x, num_states)


def mean_gap_of_sites(potential: Potential, x: State, num_states: int) -> Scalar:
    """Compute `Sampler.mean_gap` for states with `num_states` letters of a site."""
    if num_states == 2:
        gaps = potential.flip_gaps(x)
        return jax.lax.stop_gradient(jax.nn.sigmoid(gaps)) @ gaps
    gaps = potential.site_gaps(x, num_states)
    return jnp.sum(jax.lax.stop_gradient(jax.nn.softmax(gaps)) * gaps)


@jax.jit
def _are_independent(colours, potential, x):
    """Whether bits of one colour do not interact, tested at the first state.

    For every binary digit k, the bits of a colour whose index has digit k set are
    flipped together, and the gaps of the other bits of that colour must not change. Any
    two sites differ in some digit, so that every pair is tested.
    """
    first = jax.tree.map(lambda rows: rows[0], x)
    flat, unravel = ravel_pytree(first)
    before = potential.flip_gaps(first)

    def test(digit, mask):
        half = jnp.arange(flat.size) >> digit & 1 == 1
        moved = (mask > 0) & half
        after = potential.flip_gaps(unravel(jnp.where(moved, 1 - flat, flat)))
        rounding = 1e-3 * (1 + jnp.abs(before))
        near = jnp.abs(after - before) < rounding
        return jnp.all(near | ~((mask > 0) & ~half))

    digits = jnp.arange(flat.size.bit_length())
    # Large states are tested one after the other, to save memory.
    at_once = max(1, _MOST_ENTRIES // (flat.size * len(colours)))

    def test_colours(digit):
        return jax.lax.map(partial(test, digit), colours, batch_size=at_once)

    return jnp.all(jax.lax.map(test_colours, digits, batch_size=at_once))


def colours(
    edges: Iterable[tuple[int, int]] | None, size: int
) -> Float[Array, "colour site"]:
    """Masks of sites such that no edge joins two sites of one colour.

    Greedy colouring: each site takes the first colour that no neighbour has.
    A lattice with even sides becomes a chessboard.

    Args:
        edges: pairs of sites that interact.
        size: number of sites.

    >>> colours([(0, 1), (1, 2)], 3).tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    if edges is None:
        raise ValueError(
            "colours must have the edges of a model, got None; if all sites are "
            "coupled, try HeatBath()"
        )
    edges = edges if hasattr(edges, "__array__") else list(edges)
    pairs = np.sort(np.array(edges, int).reshape(-1, 2), axis=1)
    lower, higher = pairs[np.argsort(pairs[:, 1], kind="stable")].T
    ends = np.cumsum(np.bincount(higher, minlength=size)).tolist()
    neighbours = lower.tolist()
    # The colour of a site is a power of two, so that sums of bits are sets of colours.
    chosen, begin = [0] * size, 0
    for site, end in enumerate(ends):
        taken = 0
        for neighbour in neighbours[begin:end]:
            taken |= chosen[neighbour]
        chosen[site] = ~taken & (taken + 1)
        begin = end
    kinds = sorted(set(chosen))
    colour = np.array(list(map({k: c for c, k in enumerate(kinds)}.get, chosen)))
    return jnp.asarray(colour[None] == np.arange(len(kinds))[:, None], float)
