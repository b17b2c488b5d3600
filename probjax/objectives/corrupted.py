"""Any objective on random binary versions of the rows.

Each round of `fit` draws a new version of every row, by corruption or by binarising
grey levels, and evaluates the objective on the versions instead of the rows. A fit can
thus learn from many versions without storing them.

Reference: thesis, "Memory Storage in a Hopfield Network", learning from corrupted
samples.
"""

import jax
import numpy as np

from probjax.checks import check_interface
from probjax.data.corruption import Corruption
from probjax.data.rows import refuse_mask
from probjax.forwarding import ForwardingObjective
from probjax.interfaces import Chart, Objective, has_statistic
from probjax.recipe import recipe
from probjax.states import binary
from probjax.trees import floating
from probjax.types import Context, Data, Params, PRNGKeyArray, PyTree, Scalar, State


@recipe
class Corrupted(ForwardingObjective):
    """`objective` on versions of the rows, which are redrawn in every round of `fit`.

    Pass many `num_rounds`, and few `steps_per_round`, to `fit`.

    Args:
        objective: objective for binary rows, such as `MPF(hopfield.energy)`.
        corruption: `FixedFlips` or `IndependentFlips`; `GreyLevels` for rows between 0
            and 1, such as images, which are binarised at random in every round; or a
            user's `Corruption`.

    Rows in which all four bits are 0 become versions in which one bit is 1:

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
        refuse_mask(data, "corruptions need complete rows")
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
                f"data must be one array of shape (row, unit), got shapes {shapes}"
            )
        rows = floating(data.x)
        # One version of the rows is used to check the rows and the objective.
        versions = binary(self.corruption(jax.random.key(0), rows))
        prepared = self.objective.prepare(params, data._replace(x=versions))
        if has_statistic(self.objective, params, prepared.x):
            name = type(self.objective).__name__
            raise ValueError(
                f"objective must not have a statistic of the uncorrupted rows, got "
                f"{name}; try {name} around Corrupted instead of inside it"
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
        return self.objective.unbounded(params, self._versions(data))

    def unbounded_entries(self, params: Params, data: Data) -> Params | None:
        return self.objective.unbounded_entries(params, self._versions(data))

    def unit_losses(self, params: Params, data: Data) -> None:
        """Return None, because rows are compared by their versions."""
        return

    def chart(self, params: Params, data: Data) -> Chart | None:
        return self.objective.chart(params, self._versions(data))

    def _versions(self, data):
        return data._replace(x=self.corruption(jax.random.key(0), data.x))

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        version, rows = context
        return self.objective.row(params, version, rows)
