"""Maximum likelihood with an exact partition function.

    loss = mean over rows of E(x) + log Z,    -log p per row,

where log Z is a function of the parameters (a transfer matrix, a closed form) or, for
small state spaces, the sum over all states. Other estimators are compared with this
one.

Reference: thesis, introduction, "Parameter Estimation Techniques".
"""

from collections.abc import Callable

import jax

from probjax import exact
from probjax.data.rows import refuse_mask
from probjax.interfaces import Objective
from probjax.potential import check_energy, check_normalisable
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
    """Discrete state space that is enumerated."""

    size: int = static()
    """Number of sites."""
    num_states: int = static()
    """Number of letters of a site."""


@recipe
class MaximumLikelihood(Objective):
    """Mean over rows of -log p(x) in nats, with the exact log Z.

    Args:
        energy: `energy(params, x)` of one state.
        log_z: `log_z(params)`, a differentiable function defined at the top level of a
            module, such as `rbm.log_z`; if None, all states of the data's sites are
            enumerated.
        num_states: number of letters of a site, if states are enumerated.

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
        refuse_mask(data, "the likelihood needs complete rows")
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

    def _space(self, x):
        return Enumeration(num_sites(x), self.num_states)
