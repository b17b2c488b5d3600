"""One objective over the gaps between states and their neighbours.

With gap = E(x) - E(x') + log_ratio for the neighbours x' of x, a row's loss is a
function of its gaps alone: log sum exp(gap / 2) for the probability flow, sum
softplus(gap) for the pseudolikelihood. `MPF` and `PseudoLikelihood` are its named
constructors.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.checks import check_interface, holds, is_concrete, is_whole
from probjax.data.rows import refuse_mask
from probjax.interfaces import Connectivity, Objective
from probjax.objectives.exclude_data import (
    check_excludable,
    index,
    unobserved_neighbours,
)
from probjax.objectives.missing import (
    draw_from_model,
    draw_from_others,
    num_letters,
    observed_moves,
)
from probjax.potential import check_energy, potential, unbounded
from probjax.recipe import recipe, static
from probjax.types import (
    Array,
    Context,
    Data,
    Energy,
    Gaps,
    Moves,
    Params,
    PRNGKeyArray,
    Scalar,
    State,
)


class Kept(NamedTuple):
    """What a row's gaps depend on beside its state; () for what they do not."""

    moves: Moves = ()
    """The random part of the neighbourhood."""
    counted: Array | tuple[()] = ()
    """Which neighbours count."""
    x: State = ()
    """The row with its missing entries filled in."""


@recipe
class GapObjective(Objective):
    """`reduction` over rows of `score` of the gaps to their neighbours.

    A row's context is a `Kept`; () will do where nothing is. With `exclude_data` the
    data, ready to be looked up, are shared; where entries are missing, whether a round
    has begun.
    """

    energy: Energy = static()
    connectivity: Connectivity
    score: Callable[[Gaps], Scalar] = static()
    reduction: Callable[[Array, Array], Scalar] = static()
    exclude_data: bool = static(default=False)

    def prepare(self, params: Params, data: Data) -> Data:
        check_interface("connectivity", self.connectivity, Connectivity, "BitFlips()")
        data = data._replace(x=self.connectivity.prepare(data.x))
        check_energy(self.energy, params, data.x)
        if self.exclude_data:
            refuse_mask(data, "exclude_data looks for complete rows")
            if not holds(is_whole, data.x):
                raise ValueError("exclude_data needs whole numbers: bits or letters")
            if is_concrete((params, data, self)):
                check_excludable(self.connectivity, data, self._trials(params, data))
        if data.mask is not None:
            num_letters(self.connectivity)
        return data

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        kept, shared = Kept(), ()
        if self.exclude_data:
            shared = index(data)
        if data.mask is not None:
            kept, shared = Kept(x=draw_from_others(key, data)), jnp.asarray(False)
        if not self._is_random(params, data):
            return Context(
                kept._replace(counted=self._counted(kept, data, shared)), shared
            )
        shapes = jax.eval_shape(self.refresh, key, params, data, Context(kept, shared))
        blank = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes.rows)
        return Context(blank._replace(x=kept.x), shared)

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        is_random = self._is_random(params, data)
        if data.mask is None and not is_random:
            return context
        kept, shared = Kept(*context.rows), context.shared
        move_key, fill_key = jax.random.split(key)
        x = data.x
        if data.mask is not None:
            model = potential(self.energy, params)
            letters = num_letters(self.connectivity)
            drawn = draw_from_model(fill_key, model, kept.x, data.mask, letters)
            # Before the first round nothing was fitted, and the model says nothing.
            x = jax.tree.map(partial(jnp.where, shared), drawn, kept.x)
            kept, shared = kept._replace(x=x), jnp.asarray(True)
        if is_random:
            kept = kept._replace(moves=self._draw(move_key, params, x))
        counted = self._counted(kept, data, shared)
        return Context(kept._replace(counted=counted), shared)

    def row(self, params: Params, x: State, context: Kept | tuple[()]) -> Scalar:
        kept = Kept(*context)
        x = kept.x if jax.tree.leaves(kept.x) else x
        gaps = self.connectivity.gaps(potential(self.energy, params), x, kept.moves)
        if isinstance(kept.counted, tuple):
            return self.score(gaps)
        counted = kept.counted.reshape(gaps.weight.shape)
        return self.score(gaps._replace(weight=jnp.where(counted, gaps.weight, 0)))

    def reduce(self, values: Array, weights: Array) -> Scalar:
        return self.reduction(values, weights)

    @property
    def couples_rows(self) -> bool:
        return self.exclude_data

    def unbounded(self, params: Params, data: Data) -> str:
        """What in the data leaves parameters without a finite estimate, in words."""
        return unbounded(self.energy, params, data)

    def _counted(self, kept, data, shared):
        """Which neighbours count, () if all do."""
        if data.mask is not None:
            return observed_moves(self.connectivity, kept.x, data.mask, kept.moves)
        if self.exclude_data:
            return unobserved_neighbours(self.connectivity, shared, data.x, kept.moves)
        return ()

    def _draw(self, key, params, x):
        keys = jax.random.split(key, len(jax.tree.leaves(x)[0]))
        model = potential(self.energy, params)
        return jax.vmap(self.connectivity.draw, (0, None, 0))(keys, model, x)

    def _trials(self, params, data):
        """Moves to look for an unobserved neighbour with."""
        if not self._is_random(params, data):
            return [()]
        # Several draws, as one may be unlucky where rows are few.
        return (_drawn(self, jax.random.key(i), params, data) for i in range(4))

    def _is_random(self, params, data):
        """Whether there are moves, so that the neighbours change with every refresh."""
        moves = jax.eval_shape(self._draw, jax.random.key(0), params, data.x)
        return bool(jax.tree.leaves(moves))


@jax.jit
def _drawn(objective: GapObjective, key: PRNGKeyArray, params: Params, data: Data):
    return objective._draw(key, params, data.x)
