"""Any objective on fresh binary versions of the rows.

Each round of `fit` draws a new version of every row, corrupted or made of its grey
levels, and the objective is of those alone: it never sees the rows themselves. So that
learning from a large set of versions needs no memory for it.

Reference: thesis, "Memory Storage in a Hopfield Network", learning from corrupted
samples.
"""

import jax
import numpy as np

from probjax.checks import check_interface
from probjax.data.corruption import Corruption
from probjax.data.rows import refuse_mask
from probjax.forwarding import ForwardingObjective
from probjax.interfaces import Objective, has_statistic
from probjax.recipe import recipe
from probjax.states import binary
from probjax.trees import floating
from probjax.types import Context, Data, Params, PRNGKeyArray, PyTree, Scalar, State


@recipe
class Corrupted(ForwardingObjective):
    """`objective` on versions of the rows, drawn anew in every round of `fit`.

    Give `num_rounds`, and few `steps_per_round`.

    Args:
        objective: of binary rows, as `MPF(hopfield.energy)`.
        corruption: `FixedFlips` or `IndependentFlips`; `GreyLevels` for rows between 0
            and 1, as images that are binarised anew whenever they are seen; or a recipe
            of one's own.

    Of rows without a bit on, versions with one of four:

    >>> from probjax import PseudoLikelihood, loss
    >>> from probjax.data import FixedFlips
    >>> def energy(bias, x):
    ...     return bias * x.sum()
    >>> objective = Corrupted(PseudoLikelihood(energy), FixedFlips(1))
    >>> args = jax.random.key(0), objective, np.log(3.0), np.zeros((5, 4))
    >>> round(float(loss(*args)), 4)  # log 4 + 3 log(4 / 3)
    2.2493
    """

    objective: Objective
    corruption: Corruption

    def prepare(self, params: Params, data: Data) -> Data:
        refuse_mask(data, "corrupted rows are complete")
        check_interface("objective", self.objective, Objective, "MPF(energy)")
        check_interface(
            "corruption",
            self.corruption,
            Corruption,
            "FixedFlips(1)",
            home="probjax.data.corruption",
        )
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(data.x)]
        if len(shapes) != 1 or len(shapes[0]) != 2:
            raise ValueError(
                f"data must be one array of rows (row, unit), got {shapes}"
            )
        rows = floating(data.x)
        # A version of the rows shows whether both they and the objective are valid.
        versions = binary(self.corruption(jax.random.key(0), rows))
        within = self.objective.prepare(params, data._replace(x=versions))
        if has_statistic(self.objective, params, within.x):
            raise ValueError(
                f"{type(self.objective).__name__} looks at the rows themselves: put it "
                "around Corrupted and not inside"
            )
        return data._replace(x=rows)

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        draw_key, inner_key = jax.random.split(key)
        data = data._replace(x=self.corruption(draw_key, data.x))
        inner = self.objective.init(inner_key, params, data)
        return Context((data.x, inner.rows), inner.shared)

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        draw_key, inner_key = jax.random.split(key)
        data = data._replace(x=self.corruption(draw_key, data.x))
        inner = Context(context.rows[1], context.shared)
        inner = self.objective.refresh(inner_key, params, data, inner)
        return Context((data.x, inner.rows), inner.shared)

    def unbounded(self, params: Params, data: Data) -> str:
        versions = self.corruption(jax.random.key(0), data.x)
        return self.objective.unbounded(params, data._replace(x=versions))

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        version, rows = context
        return self.objective.row(params, version, rows)
