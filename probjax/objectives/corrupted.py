"""Any objective on fresh corrupted versions of the rows.

Each round of `fit` draws a new version of every row, with some of its bits flipped, and
the objective is of those alone: it never sees the rows themselves. So that learning
from a large set of corrupted samples needs no memory for it.

Reference: thesis, "Memory Storage in a Hopfield Network", learning from corrupted
samples.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from probjax.connectivity.flips import binary
from probjax.data import refuse_mask
from probjax.types import (
    Array,
    Context,
    Data,
    Float,
    Objective,
    Params,
    PRNGKeyArray,
    PyTree,
    Scalar,
    State,
    check_count,
    recipe,
    static,
)


@recipe
class Corrupted:
    """`objective` on rows of which `num_flips` random bits each are flipped.

    Args:
        objective: of binary rows, as `MPF(hopfield.energy)`.
        num_flips: how many, drawn anew for every row in every round of `fit`: give
            `num_rounds`, and few `steps_per_round`.
    """

    objective: Objective
    num_flips: int = static()

    def __post_init__(self):
        check_count("num_flips", self.num_flips)

    @property
    def reduce(self) -> Callable[[Array, Array], Scalar]:
        return self.objective.reduce

    def prepare(self, params: Params, data: Data) -> Data:
        refuse_mask(data, "corrupted rows are complete")
        return self.objective.prepare(params, data._replace(x=binary(data.x)))

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        draw_key, inner_key = jax.random.split(key)
        data = data._replace(x=corrupted(draw_key, data.x, self.num_flips))
        inner = self.objective.init(inner_key, params, data)
        return Context((data.x, inner.rows), inner.shared)

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        draw_key, inner_key = jax.random.split(key)
        data = data._replace(x=corrupted(draw_key, data.x, self.num_flips))
        inner = Context(context.rows[1], context.shared)
        inner = self.objective.refresh(inner_key, params, data, inner)
        return Context((data.x, inner.rows), inner.shared)

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        version, rows = context
        return self.objective.row(params, version, rows)

    def rest(self, params: Params, shared: PyTree) -> Scalar:
        return self.objective.rest(params, shared)


def corrupted(
    key: PRNGKeyArray, x: Float[Array, "*row unit"], num_flips: int
) -> Float[Array, "*row unit"]:
    """States with so many of their bits flipped, chosen at random for each."""
    check_count("num_flips", num_flips, least=0)
    if num_flips > x.shape[-1]:
        raise ValueError(
            f"num_flips must be at most the {x.shape[-1]} bits, got {num_flips}"
        )
    if num_flips == 0:
        return x
    # The lowest levels, of which no two are alike: their last digits are the place.
    places = jax.lax.broadcasted_iota(jnp.uint32, x.shape, x.ndim - 1)
    digits = (x.shape[-1] - 1).bit_length()
    levels = jax.random.bits(key, x.shape, jnp.uint32) >> digits << digits | places
    highest = jnp.sort(levels, axis=-1)[..., num_flips - 1]
    return jnp.where(levels <= highest[..., None], 1 - x, x)
