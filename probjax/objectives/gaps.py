"""One objective over the gaps between states and their neighbours.

With gap = E(x) - E(x') + log_ratio for the neighbours x' of x, a row's loss is a
function of its gaps alone: log sum exp(gap / 2) for the probability flow, sum
softplus(gap) for the pseudolikelihood. `MPF` and `PseudoLikelihood` are its named
constructors.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from probjax.data import num_rows
from probjax.potential import check_energy, potential
from probjax.types import (
    Array,
    Connectivity,
    Context,
    Data,
    Energy,
    Gaps,
    Params,
    PRNGKeyArray,
    PyTree,
    Scalar,
    State,
    recipe,
    static,
)


@recipe
class GapObjective:
    """`reduce` over rows of `score` of the gaps to their neighbours."""

    energy: Energy = static()
    connectivity: Connectivity
    score: Callable[[Gaps], Scalar] = static()
    reduce: Callable[[Array, Array], Scalar] = static()

    def prepare(self, params: Params, data: Data) -> Data:
        data = data._replace(x=self.connectivity.prepare(data.x))
        check_energy(self.energy, params, jax.tree.map(lambda rows: rows[0], data.x))
        return data

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        shapes = jax.eval_shape(self.refresh, key, params, data, Context((), ()))
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        keys = jax.random.split(key, num_rows(data))
        model = potential(self.energy, params)
        moves = jax.vmap(self.connectivity.draw, (0, None, 0))(keys, model, data.x)
        return Context(moves, ())

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        model = potential(self.energy, params)
        return self.score(self.connectivity.gaps(model, x, context))

    def rest(self, params: Params, shared: PyTree) -> Scalar:
        return jnp.zeros(())
