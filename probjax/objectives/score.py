"""Score matching: learning a continuous density from its slopes at the data.

    K_SM = mean over rows of |grad E(x)|^2 / 2 - laplacian E(x)

is, to within a constant, half the mean squared distance between the slopes of the
model's log density and of the data's. It is also the limit of the probability flow
along small symmetric steps,

    K_SM = lim (K - 1) 4 / m,    m the mean square of one coordinate of a step,

of which no derivative in x has to be taken.

Reference: Hyvarinen, JMLR 6, 695 (2005); thesis, "Score Matching" and the appendix
"Score Matching (SM) is a special case of MPF".
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.connectivity import Steps
from probjax.objectives.flow import MPF
from probjax.objectives.reduce import mean
from probjax.potential import check_energy, potential
from probjax.types import (
    Array,
    Context,
    Data,
    Energy,
    Params,
    PRNGKeyArray,
    PyTree,
    Scalar,
    State,
    floating,
    recipe,
    static,
)


@recipe
class ScoreMatching:
    """Mean over rows of |grad E|^2 / 2 - laplacian E, derivatives in x exact.

    One row costs as much as one gradient of the energy for each of its coordinates.
    The energy must be smooth in x, over a space without borders.
    """

    energy: Energy = static()
    reduce: Callable[[Array, Array], Scalar] = static(default=mean)

    def prepare(self, params: Params, data: Data) -> Data:
        data = data._replace(x=jax.tree.map(floating, data.x))
        check_energy(self.energy, params, jax.tree.map(lambda rows: rows[0], data.x))
        return data

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        return Context((), ())

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        return context

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        flat, unravel = ravel_pytree(x)
        slope = jax.grad(lambda point: self.energy(params, unravel(point)))

        def curvature(axis):
            gradient, change = jax.jvp(slope, (flat,), (axis,))
            return gradient, axis @ change

        axes = jnp.eye(flat.size, dtype=flat.dtype)
        gradient, curvatures = jax.vmap(curvature, out_axes=(None, 0))(axes)
        return gradient @ gradient / 2 - jnp.sum(curvatures)

    def rest(self, params: Params, shared: PyTree) -> Scalar:
        return jnp.zeros(())


@recipe
class ScoreMatchingBySteps:
    """(K - 1) 4 / m along small `steps`, which tends to the loss of `ScoreMatching`.

    `steps` are `GaussianSteps`, `CubeSteps` or `BallSteps`. The difference is of the
    order of their size squared; below a size of about 1e-2, float32 rounds it away.
    """

    energy: Energy = static()
    steps: Steps
    reduce: Callable[[Array, Array], Scalar] = static(default=mean)

    def prepare(self, params: Params, data: Data) -> Data:
        return self._flow().prepare(params, data)

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        return self._flow().init(key, params, data)

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        return self._flow().refresh(key, params, data, context)

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        gaps = self.steps.gaps(potential(self.energy, params), x, context)
        # K - 1 of one row, without the 1 that would swallow its digits.
        excess = jnp.sum(gaps.weight * jnp.expm1(gaps.gap / 2))
        return 4 / self.steps.moment(x) * excess

    def rest(self, params: Params, shared: PyTree) -> Scalar:
        return jnp.zeros(())

    def _flow(self):
        return MPF(self.energy, connectivity=self.steps)
