"""Continuous states: one site moved along a grid, for its conditional density.

    integral of exp(-E(x with x_n = u)) du = sum_k w_k exp(-E(x with x_n = u_k)),

where u_k and w_k are the nodes and weights of Gauss-Legendre quadrature between two
bounds. The states on the grid do not exchange probability with x; they are alternative
values of a site, from which the pseudolikelihood of continuous states is computed.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count, eager_evaluation, is_concrete
from probjax.connectivity.general import visited
from probjax.devices import on_host
from probjax.generic_gaps import map_range
from probjax.interfaces import Connectivity
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.trees import flat_rows, floating
from probjax.types import ArrayLike, Domain, Gaps, Neighbours, State


@recipe
class SiteGrid(Connectivity):
    """Every state with one site at a quadrature node between `lower` and `upper`.

    States are listed by site and then by node; their weights are those of the nodes.

    Args:
        lower: lower bounds, one number for all sites or one for each.
        upper: upper bounds, likewise.
        num_points: number of nodes for each site.
    """

    lower: ArrayLike
    upper: ArrayLike
    num_points: int = static(default=64)

    def __post_init__(self):
        check_count("num_points", self.num_points, least=2)
        bounds = (self.lower, self.upper)
        if is_concrete(bounds) and not all(np.isfinite(b).all() for b in bounds):
            raise ValueError(
                f"lower and upper must be finite, because conditional densities are "
                f"integrated between them, got {self.lower} and {self.upper}"
            )
        if is_concrete(bounds) and not np.all(np.less(*bounds)):
            raise ValueError(
                f"lower must be below upper, got {self.lower} and {self.upper}"
            )

    @property
    def domain(self) -> Domain:
        return "reals"

    def prepare(self, x: State) -> State:
        x = jax.tree.map(floating, x)
        if is_concrete((x, self)):
            with eager_evaluation():
                rows = on_host(flat_rows(x))
            inside = (np.asarray(self.lower) <= rows) & (rows <= np.asarray(self.upper))
            if not inside.all():
                raise ValueError(
                    "data must lie between lower and upper, the range of integration, "
                    f"got {rows[~inside][0]}"
                )
        return x

    def states(self, x: State, moves: tuple) -> Neighbours:
        flat, unravel = ravel_pytree(x)
        nodes, weights = self._nodes(flat)
        place = jax.vmap(lambda site, value: unravel(flat.at[site].set(value)))
        sites = jnp.repeat(jnp.arange(flat.size), self.num_points)
        near = visited(place(sites, nodes.ravel()))
        return near._replace(weight=weights.ravel())

    def gaps(self, potential: Potential, x: State, moves: tuple) -> Gaps:
        flat, unravel = ravel_pytree(x)
        nodes, weights = self._nodes(flat)

        def moved(number):
            site, node = number // self.num_points, number % self.num_points
            return potential(unravel(flat.at[site].set(nodes[site, node])))

        energies = map_range(moved, flat.size * self.num_points)
        return Gaps(potential(x) - energies.reshape(nodes.shape), weights)

    def _nodes(self, flat):
        """Nodes of each site, `(site, node)`, and their weights."""
        points, weights = np.polynomial.legendre.leggauss(self.num_points)
        lower, upper = (
            jnp.broadcast_to(jnp.asarray(bound, flat.dtype), flat.shape)[:, None]
            for bound in (self.lower, self.upper)
        )
        half = (upper - lower) / 2
        points, weights = (
            jnp.asarray(values, flat.dtype)[None] for values in (points, weights)
        )
        return lower + half * (1 + points), half * weights
