"""Heat bath: sites redrawn from their conditionals, one by one or colour by colour.

    p(x_n = a | the other sites) = exp(gap_na) / sum_b exp(gap_nb),

with gap_na = E(x) - E(x with site n set to a), which for bits is a probability
sigmoid(gap_n) to flip. Sites that do not interact may be redrawn at once: on a lattice
that is every second one.

Reference: Geman and Geman, IEEE PAMI 6, 721 (1984).
"""

from collections.abc import Callable, Iterable
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
from probjax.states import binary, letters, num_sites
from probjax.types import Array, Bool, Domain, Float, Info, PRNGKeyArray, State


class GibbsState(NamedTuple):
    """Where a heat bath is."""

    x: State
    """The current state."""


def every_site(key: PRNGKeyArray, size: int) -> Array:
    """All sites in their order: sequential scan.

    >>> every_site(jax.random.key(0), 3).tolist()
    [0, 1, 2]
    """
    return jnp.arange(size)


def random_sites(key: PRNGKeyArray, size: int) -> Array:
    """As many sites as there are, each drawn anew: random scan, which is reversible.

    >>> sites = random_sites(jax.random.key(0), 5)  # for HeatBath(sites=random_sites)
    >>> sites.shape, bool(((sites >= 0) & (sites < 5)).all())
    ((5,), True)
    """
    return jax.random.randint(key, (size,), 0, size)


@recipe
class HeatBath(Sampler):
    """One sweep per step: as many sites as there are, redrawn one after the other.

    Args:
        num_states: letters of a site; with 2, states are bits.
        sites: which sites, in which order: `every_site`, `random_sites`, or a function
            of `(key, size)` whose choice does not depend on the state.

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
        """One sweep; sites that are `held` keep their letters."""
        flat, unravel = ravel_pytree(state.x)
        order_key, chance_key = random.split(key)
        sites = self.sites(order_key, flat.size)
        conditional = self.conditional(potential)
        chances = random.uniform(chance_key, sites.shape, flat.dtype)

        def redraw(flat, visit):
            site, chance = visit
            below = jnp.cumsum(conditional(unravel(flat), site))[:-1]
            letter = jnp.sum(chance >= below).astype(flat.dtype)
            if held is not None:
                letter = jnp.where(held[site], flat[site], letter)
            return flat.at[site].set(letter), None

        flat, _ = jax.lax.scan(redraw, flat, (sites, chances))
        return GibbsState(unravel(flat)), Info(jnp.ones((), flat.dtype))

    def conditional(self, potential: Potential) -> Callable[[State, Array], Array]:
        """A function of `(x, site)`: the chances of its letters given the rest."""
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
    """One sweep per step over bits, those of one colour all at once.

    `colours` are masks over the sites, one for each colour; bits of one colour must not
    interact, as the function `colours` makes them from the edges of a model.

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
                apart = bool(_are_apart(self.colours, potential, x))
            if not apart:
                raise ValueError(
                    "bits of one colour must not interact, but the energy couples "
                    "some: make colours from the edges of the model, or use HeatBath"
                )
        return x

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> GibbsState:
        return GibbsState(x)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: GibbsState
    ) -> tuple[GibbsState, Info]:
        flat, unravel = ravel_pytree(state.x)
        chances = random.uniform(key, self.colours.shape, flat.dtype)

        def redraw(flat, visit):
            mask, chance = visit
            turns = chance < jax.nn.sigmoid(potential.flip_gaps(unravel(flat)))
            return jnp.where((mask > 0) & turns, 1 - flat, flat), None

        flat, _ = jax.lax.scan(redraw, flat, (self.colours, chances))
        return GibbsState(unravel(flat)), Info(jnp.ones((), flat.dtype))


@jax.jit
def _are_apart(colours, potential, x):
    """Whether flips of half of a colour leave the gaps of the other half alone.

    Tried at the first state for halves that part every pair of sites: those whose
    number has its k-th digit set.
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
    return jnp.all(jax.vmap(jax.vmap(test, (0, None)), (None, 0))(digits, colours))


def colours(
    edges: Iterable[tuple[int, int]] | None, size: int
) -> Float[Array, "colour site"]:
    """Masks of sites such that no edge joins two of one colour.

    Greedy: each site takes the first colour that none of its neighbours has. A lattice
    with even sides comes out as a chessboard.

    >>> colours([(0, 1), (1, 2)], 3).tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    if edges is None:
        raise ValueError("colours need edges: where all are coupled, use HeatBath")
    near: list[list[int]] = [[] for _ in range(size)]
    for i, j in edges:
        near[i].append(j)
        near[j].append(i)
    chosen = np.full(size, -1)
    for site in range(size):
        taken = set(chosen[near[site]])
        chosen[site] = next(c for c in range(size) if c not in taken)
    return jnp.asarray(chosen[None] == np.arange(chosen.max() + 1)[:, None], float)
