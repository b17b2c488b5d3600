"""States of several letters: neighbours that differ at one site.

    g(x', x) = 1 if x and x' in {0, ..., q-1}^d differ at one site

Letters are stored as floats, like bits. The neighbours at one site exclude each other;
they define the conditional distribution of the site, as in pseudolikelihood.
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count
from probjax.connectivity.general import visited
from probjax.interfaces import Connectivity
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.states import letters, one_hot
from probjax.types import Domain, Gaps, Neighbours, State


@recipe
class SiteChanges(Connectivity):
    """Every state with another of `num_states` letters at one site.

    Neighbours are listed by site and then by letter. The current letter of a site is
    listed too, with weight 0.

    >>> near = SiteChanges(3).states(jnp.array([2.0, 0.0]), ())
    >>> near.x[near.weight > 0].tolist()
    [[0.0, 0.0], [1.0, 0.0], [2.0, 1.0], [2.0, 2.0]]
    """

    num_states: int = static()

    def __post_init__(self):
        check_count("num_states", self.num_states, least=2)

    @property
    def domain(self) -> Domain:
        return "bits" if self.num_states == 2 else "letters"

    def num_letters(self) -> int:
        return self.num_states

    def prepare(self, x: State) -> State:
        return letters(x, num_states=self.num_states)

    def states(self, x: State, moves: tuple) -> Neighbours:
        flat, unravel = ravel_pytree(x)
        values = jnp.arange(self.num_states, dtype=flat.dtype)
        place = jax.vmap(lambda site, a: unravel(flat.at[site].set(a)))
        sites = jnp.repeat(jnp.arange(flat.size), self.num_states)
        near = visited(place(sites, jnp.tile(values, flat.size)))
        return near._replace(weight=self._weight(flat).ravel())

    def gaps(self, potential: Potential, x: State, moves: tuple) -> Gaps:
        gap = potential.site_gaps(x, self.num_states)
        return Gaps(gap, self._weight(ravel_pytree(x)[0]))

    def _weight(self, flat):
        return 1 - one_hot(flat, self.num_states)
