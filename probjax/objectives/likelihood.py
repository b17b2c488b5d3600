"""Maximum likelihood, where the partition function can be had.

    loss = mean over rows of E(x) + log Z,    -log p per row,

with log Z by a function of the parameters (a transfer matrix, a closed form) or, for
small spaces, by enumerating every state. It is what all other estimators are measured
against.

Reference: thesis, introduction, "Parameter Estimation Techniques".
"""

from collections.abc import Callable

import jax

from probjax import exact
from probjax.data.rows import refuse_mask
from probjax.interfaces import Objective
from probjax.potential import check_energy, check_normalisable, unbounded
from probjax.recipe import recipe, static
from probjax.states import binary, letters, num_sites
from probjax.trees import floating
from probjax.types import (
    Context,
    Data,
    Energy,
    Params,
    PRNGKeyArray,
    PyTree,
    Scalar,
    State,
)


@recipe
class Enumeration:
    """The discrete space that is enumerated, read off the data."""

    size: int = static()
    num_states: int = static()


@recipe
class MaximumLikelihood(Objective):
    """Mean over rows of -log p(x) in nats, exactly.

    Args:
        log_z: the log partition function of `params`, module-level and differentiable,
            as `rbm.log_z`; if None, every state of the data's sites is enumerated.
        num_states: letters of a site, where states are enumerated.

    >>> from probjax import ising, loss
    >>> flat, rows = ising.from_matrix([[0, 0], [0, 0]]), exact.states(2)
    >>> objective = MaximumLikelihood(ising.energy)
    >>> round(float(loss(jax.random.key(0), objective, flat, rows)), 4)  # 2 log 2
    1.3863
    """

    energy: Energy = static()
    log_z: Callable[[Params], Scalar] | None = static(default=None)
    num_states: int = static(default=2)

    def prepare(self, params: Params, data: Data) -> Data:
        refuse_mask(data, "the likelihood is of complete rows")
        if self.log_z is not None:
            x = jax.tree.map(floating, data.x)
        elif self.num_states == 2:
            x = binary(data.x)
        else:
            x = letters(data.x, num_states=self.num_states)
        check_energy(self.energy, params, x)
        check_normalisable(self.energy, params)
        jax.eval_shape(self.rest, params, self._space(x))
        return data._replace(x=x)

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        return Context((), self._space(data.x))

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        return self.energy(params, x)

    def rest(self, params: Params, shared: Enumeration) -> Scalar:
        if self.log_z is not None:
            return self.log_z(params)
        return exact.log_z(
            self.energy, params, shared.size, num_states=shared.num_states
        )

    def unbounded(self, params: Params, data: Data) -> str:
        """What in the data leaves parameters without a finite estimate, in words."""
        return unbounded(self.energy, params, data)

    def _space(self, x):
        return Enumeration(num_sites(x), self.num_states)
