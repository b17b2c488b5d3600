"""Objective that depends on the gaps between rows and their neighbours only.

With gap = E(x) - E(x') + log_ratio for the neighbours x' of x, the loss of a row is a
function of its gaps: log sum exp(gap / 2) for the probability flow, sum softplus(gap)
for the pseudolikelihood. `MPF`, `PseudoLikelihood` and others construct it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.checks import check_interface, holds, is_concrete, is_whole
from probjax.connectivity import BitFlips
from probjax.data.rows import refuse_inputs, refuse_mask
from probjax.energies import check_energy
from probjax.interfaces import Connectivity, Objective
from probjax.objectives.exclude_data import (
    check_excludable,
    index_rows,
    unobserved_neighbours,
)
from probjax.objectives.missing import (
    draw_from_model,
    draw_from_others,
    num_letters,
    observed_moves,
)
from probjax.potential import closed_forms, potential
from probjax.recipe import recipe, static
from probjax.states import num_sites
from probjax.trees import zeros_of
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
    UnitLosses,
    map_states,
    split_inputs,
    with_inputs,
)


class GapContext(NamedTuple):
    """Context of a row; () for fields that are not needed."""

    moves: Moves = ()
    """Random part of the neighbourhood; () if the connectivity is deterministic."""
    counted: Array | tuple[()] = ()
    """Whether each neighbour counts; () if all count."""
    x: State = ()
    """State with imputed entries; () if no entries are missing."""


@recipe
class GapObjective(Objective):
    """`reduction` over rows of `score` of the gaps to their neighbours.

    The context of a row is a `GapContext`, or () if all of its fields are. The shared
    context is the indexed data with `exclude_data`; with missing entries, whether a
    round has begun.
    """

    energy: Energy = static()
    """`energy(params, x)` of one state."""
    connectivity: Connectivity
    """Neighbours of a state."""
    score: Callable[[Gaps], Scalar] = static()
    """Loss of one row as a function of its gaps."""
    reduction: Callable[[Array, Array], Scalar] = static()
    """Reduction of the losses of rows, given their weights, to one number."""
    exclude_data: bool = static(default=False)
    """Whether to leave out neighbours that are rows of the data."""
    separable: bool = static(default=False)
    """Whether `score` combines the scores of single gaps as `reduction` combines rows:
    their sum for a mean, or the logarithm of the sum of their exponentials."""

    def prepare(self, params: Params, data: Data) -> Data:
        check_interface("connectivity", self.connectivity, Connectivity, "BitFlips()")
        data = data._replace(x=map_states(self.connectivity.prepare, data.x))
        check_energy(self.energy, params, data.x)
        if self.exclude_data:
            refuse_mask(data, "exclude_data needs complete rows")
            refuse_inputs(data.x, "exclude_data requires states without inputs")
            if not holds(is_whole, data.x):
                raise ValueError(
                    "data must be bits or letters if exclude_data is True, got numbers "
                    "that are not whole"
                )
            if is_concrete((params, data, self)):
                check_excludable(self.connectivity, data, self._trials(params, data))
        if data.mask is not None:
            num_letters(self.connectivity)
        return data

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        rows, shared = GapContext(), ()
        if self.exclude_data:
            shared = index_rows(data)
        if data.mask is not None:
            rows, shared = GapContext(x=draw_from_others(key, data)), jnp.asarray(False)
        if not self._is_random(params, data):
            counted = self._counted(rows, data, shared)
            return Context(rows._replace(counted=counted), shared)
        shapes = jax.eval_shape(self.refresh, key, params, data, Context(rows, shared))
        return Context(zeros_of(shapes.rows)._replace(x=rows.x), shared)

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        is_random = self._is_random(params, data)
        if data.mask is None and not is_random:
            return context
        rows, shared = GapContext(*context.rows), context.shared
        move_key, fill_key = jax.random.split(key)
        x, inputs = split_inputs(data.x)
        if data.mask is not None:
            letters = num_letters(self.connectivity)
            before = with_inputs(rows.x, inputs)
            drawn = draw_from_model(
                fill_key, self.energy, params, before, data.mask, letters
            )
            # In the first round the model is not fitted yet, so entries imputed from
            # other rows are kept.
            x = jax.tree.map(partial(jnp.where, shared), drawn, rows.x)
            rows, shared = rows._replace(x=x), jnp.asarray(True)
        if is_random:
            moves = self._draw(move_key, params, with_inputs(x, inputs))
            rows = rows._replace(moves=moves)
        counted = self._counted(rows, data, shared)
        return Context(rows._replace(counted=counted), shared)

    def row(self, params: Params, x: State, context: GapContext | tuple[()]) -> Scalar:
        own = GapContext(*context)
        x, inputs = split_inputs(x)
        x = own.x if jax.tree.leaves(own.x) else x
        model = potential(self.energy, params, inputs)
        gaps = self.connectivity.gaps(model, x, own.moves)
        if isinstance(own.counted, tuple):
            return self.score(gaps)
        counted = own.counted.reshape(gaps.weight.shape)
        return self.score(gaps._replace(weight=jnp.where(counted, gaps.weight, 0)))

    def reduce(self, values: Array, weights: Array) -> Scalar:
        return self.reduction(values, weights)

    @property
    def couples_rows(self) -> bool:
        return self.exclude_data

    def unit_losses(self, params: Params, data: Data) -> UnitLosses | None:
        forms = closed_forms(self.energy)
        is_single_flip = self.connectivity == BitFlips()
        is_sum = self.separable and is_single_flip and not self.exclude_data
        if not is_sum or data.mask is not None or "unit_params" not in forms:
            return None

        def gap(own, unit, x):
            return potential(forms["unit_energy"], own).flip_gap()(x, unit)

        def score(gap):
            gap = gap[None]
            return self.score(Gaps(gap, jnp.ones_like(gap)))

        return UnitLosses(forms["unit_params"], gap, score, num_sites(data.x))

    def _counted(self, rows, data, shared):
        """Whether each neighbour of each row counts; () if all count."""
        if data.mask is not None:
            return observed_moves(self.connectivity, rows.x, data.mask, rows.moves)
        if self.exclude_data:
            return unobserved_neighbours(self.connectivity, shared, data.x, rows.moves)
        return ()

    def _draw(self, key, params, x):
        x, inputs = split_inputs(x)

        def one(key, inputs, x):
            model = potential(self.energy, params, inputs)
            return self.connectivity.draw(key, model, x)

        keys = jax.random.split(key, len(jax.tree.leaves(x)[0]))
        return jax.vmap(one)(keys, inputs, x)

    def _trials(self, params, data):
        """Moves with which `check_excludable` searches for an unobserved neighbour."""
        if not self._is_random(params, data):
            return [()]
        # Several draws, because one draw may miss all of them if there are few rows.
        return (_drawn(self, jax.random.key(i), params, data) for i in range(4))

    def _is_random(self, params, data):
        """Whether the connectivity draws moves, so that neighbours are random."""
        moves = jax.eval_shape(self._draw, jax.random.key(0), params, data.x)
        return bool(jax.tree.leaves(moves))


@jax.jit
def _drawn(objective: GapObjective, key: PRNGKeyArray, params: Params, data: Data):
    return objective._draw(key, params, data.x)
