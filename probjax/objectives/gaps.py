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
from probjax.observed import check_excludable, index, unobserved_neighbours
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
    holds,
    is_concrete,
    is_whole,
    recipe,
    static,
)


@recipe
class GapObjective:
    """`reduce` over rows of `score` of the gaps to their neighbours.

    A row's context is its moves; with `exclude_data`, also which of its neighbours were
    not observed, and the data, ready to be looked up, are shared.
    """

    energy: Energy = static()
    connectivity: Connectivity
    score: Callable[[Gaps], Scalar] = static()
    reduce: Callable[[Array, Array], Scalar] = static()
    exclude_data: bool = static(default=False)

    def prepare(self, params: Params, data: Data) -> Data:
        data = data._replace(x=self.connectivity.prepare(data.x))
        check_energy(self.energy, params, jax.tree.map(lambda rows: rows[0], data.x))
        if self.exclude_data:
            if not holds(is_whole, data.x):
                raise ValueError("exclude_data needs whole numbers: bits or letters")
            if is_concrete((params, data, self)):
                check_excludable(self.connectivity, data, self._trials(params, data))
        return data

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        if self.exclude_data and not self._is_random(params, data):
            observed = index(data)
            left = unobserved_neighbours(self.connectivity, observed, data.x, ())
            return Context(((), left), observed)
        shared = index(data) if self.exclude_data else ()
        shapes = jax.eval_shape(self.refresh, key, params, data, Context((), shared))
        rows = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes.rows)
        return Context(rows, shared)

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        if not self._is_random(params, data):
            return context
        moves = self._draw(key, params, data)
        if not self.exclude_data:
            return context._replace(rows=moves)
        left = unobserved_neighbours(self.connectivity, context.shared, data.x, moves)
        return context._replace(rows=(moves, left))

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        model = potential(self.energy, params)
        if not self.exclude_data:
            return self.score(self.connectivity.gaps(model, x, context))
        moves, left = context
        gaps = self.connectivity.gaps(model, x, moves)
        weight = jnp.where(left.reshape(gaps.weight.shape), gaps.weight, 0)
        return self.score(gaps._replace(weight=weight))

    def rest(self, params: Params, shared: PyTree) -> Scalar:
        return jnp.zeros(())

    def _draw(self, key, params, data):
        keys = jax.random.split(key, num_rows(data))
        model = potential(self.energy, params)
        return jax.vmap(self.connectivity.draw, (0, None, 0))(keys, model, data.x)

    def _trials(self, params, data):
        """Moves to look for an unobserved neighbour with."""
        if not self._is_random(params, data):
            return [()]
        # Several draws, as one may be unlucky where rows are few.
        return (_drawn(self, jax.random.key(i), params, data) for i in range(4))

    def _is_random(self, params, data):
        """Whether there are moves, so that the neighbours change with every refresh."""
        moves = jax.eval_shape(self._draw, jax.random.key(0), params, data)
        return bool(jax.tree.leaves(moves))


@jax.jit
def _drawn(objective: GapObjective, key: PRNGKeyArray, params: Params, data: Data):
    return objective._draw(key, params, data)
