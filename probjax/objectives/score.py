"""Score matching: learning a continuous density from its slopes at the data.

    K_SM = mean over rows of |grad E(x)|^2 / 2 - laplacian E(x)

is, to within a constant, half the mean squared distance between the slopes of the
model's log density and of the data's. It is also the limit of the probability flow
along small symmetric steps,

    K_SM = lim (K - 1) 4 / m,    m the mean square of one coordinate of a step,

of which no derivative in x has to be taken. In many dimensions the laplacian is too
dear, and random directions v with mean vv' = I stand for it:

    Hutchinson: |grad E|^2 / 2 - v'Hv        sliced: (v.grad E)^2 / 2 - v'Hv

have K_SM as their mean over v, H being the Hessian in x. Denoising takes no second
derivative at all, but matches the density of the data with noise of size s added,

    |grad E(x + s v) - v / s|^2 / 2.

Reference: Hyvarinen, JMLR 6, 695 (2005); Vincent, Neural Computation 23, 1661 (2011);
Song, Garg, Shi and Ermon, UAI 2019; thesis, "Score Matching" and the appendix "Score
Matching (SM) is a special case of MPF".
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count, holds, is_concrete
from probjax.connectivity import Steps
from probjax.data.rows import num_rows, refuse_mask
from probjax.interfaces import Objective
from probjax.objectives.flow import MPF
from probjax.objectives.gaps import GapContext
from probjax.potential import check_energy, potential
from probjax.recipe import recipe, static
from probjax.states import is_bit, is_spin
from probjax.trees import first_row, floating
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
class ScoreMatching(Objective):
    """Mean over rows of |grad E|^2 / 2 - laplacian E, derivatives in x exact.

    One row costs as much as one gradient of the energy for each of its coordinates.
    The energy must be smooth in x, over a space without borders.

    >>> from probjax import loss
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> rows = jnp.array([[2.0, 0.0], [0.0, 1.0]])
    >>> objective = ScoreMatching(energy)
    >>> float(loss(jax.random.key(0), objective, 1.0, rows))  # 5/4 - 2
    -0.75
    """

    energy: Energy = static()

    def prepare(self, params: Params, data: Data) -> Data:
        refuse_mask(data, "score matching needs the slopes at complete rows")
        if is_concrete(data.x) and (holds(is_bit, data.x) or holds(is_spin, data.x)):
            raise ValueError(
                "score matching takes derivatives in x, for continuous states, but the "
                "data are binary: use MPF, PseudoLikelihood or RatioMatching"
            )
        data = data._replace(x=jax.tree.map(floating, data.x))
        check_energy(self.energy, params, data.x)
        return data

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        flat, unravel = ravel_pytree(x)
        slope = jax.grad(lambda point: self.energy(params, unravel(point)))

        def curvature(axis):
            gradient, change = jax.jvp(slope, (flat,), (axis,))
            return gradient, axis @ change

        axes = jnp.eye(flat.size, dtype=flat.dtype)
        gradient, curvatures = jax.vmap(curvature, out_axes=(None, 0))(axes)
        return gradient @ gradient / 2 - jnp.sum(curvatures)


@recipe
class ScoreMatchingBySteps(Objective):
    """(K - 1) 4 / m along small `steps`, which tends to the loss of `ScoreMatching`.

    `steps` are `GaussianSteps`, `CubeSteps` or `BallSteps`. The difference is of the
    order of their size squared; below a size of about 1e-2, float32 rounds it away.

    >>> from probjax import loss
    >>> from probjax.connectivity import GaussianSteps
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> rows = jnp.array([[2.0, 0.0], [0.0, 1.0]])
    >>> objective = ScoreMatchingBySteps(energy, GaussianSteps(0.05, num_draws=1000))
    >>> bool(abs(loss(jax.random.key(0), objective, 1.0, rows) + 0.75) < 0.2)
    True
    """

    energy: Energy = static()
    steps: Steps

    def prepare(self, params: Params, data: Data) -> Data:
        return self._flow().prepare(params, data)

    def init(self, key: PRNGKeyArray, params: Params, data: Data) -> Context:
        return self._flow().init(key, params, data)

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        return self._flow().refresh(key, params, data, context)

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        moves = GapContext(*context).moves
        gaps = self.steps.gaps(potential(self.energy, params), x, moves)
        # K - 1 of one row, without the 1 that would swallow its digits.
        excess = jnp.sum(gaps.weight * jnp.expm1(gaps.gap / 2))
        return 4 / self.steps.moment(x) * excess

    def _flow(self):
        return MPF(self.energy, connectivity=self.steps)


@recipe
class DrawnScoreMatching(Objective):
    """Mean over rows and `num_draws` normal directions v of `term`.

    Directions are drawn anew at every refresh; `term(slope, x, v, scale)` is of one
    flat state, `slope` being the gradient of the energy. Made by the functions below.
    """

    energy: Energy = static()
    term: Callable[..., Scalar] = static()
    scale: float
    num_draws: int = static(default=1)

    def __post_init__(self):
        check_count("num_draws", self.num_draws)
        if isinstance(self.scale, float) and not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale}")

    def prepare(self, params: Params, data: Data) -> Data:
        return ScoreMatching(self.energy).prepare(params, data)

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        first = ravel_pytree(first_row(data.x))[0]
        shape = (num_rows(data), self.num_draws, first.size)
        return Context(jax.random.normal(key, shape, first.dtype), ())

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        flat, unravel = ravel_pytree(x)
        slope = jax.grad(lambda point: self.energy(params, unravel(point)))
        terms = jax.vmap(lambda v: self.term(slope, flat, v, self.scale))(context)
        return jnp.mean(terms)


def HutchinsonScoreMatching(
    energy: Energy, *, num_draws: int = 1
) -> DrawnScoreMatching:
    """Score matching with the laplacian by random directions.

    >>> from probjax import loss
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> rows = jnp.array([[2.0, 0.0], [0.0, 1.0]])
    >>> objective = HutchinsonScoreMatching(energy, num_draws=1000)
    >>> bool(abs(loss(jax.random.key(0), objective, 1.0, rows) + 0.75) < 0.2)
    True
    """
    return DrawnScoreMatching(energy, _hutchinson, 1.0, num_draws)


def SlicedScoreMatching(energy: Energy, *, num_draws: int = 1) -> DrawnScoreMatching:
    """Score matching of the slopes along random directions.

    >>> from probjax import loss
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> rows = jnp.array([[2.0, 0.0], [0.0, 1.0]])
    >>> objective = SlicedScoreMatching(energy, num_draws=1000)
    >>> bool(abs(loss(jax.random.key(0), objective, 1.0, rows) + 0.75) < 0.3)
    True
    """
    return DrawnScoreMatching(energy, _sliced, 1.0, num_draws)


def DenoisingScoreMatching(
    energy: Energy, *, scale: float, num_draws: int = 1
) -> DrawnScoreMatching:
    """Score matching of the data with Gaussian noise of standard deviation `scale`.

    What is learned is the density of the noisy data, not of the data.

    Rows that are all alike are those of a Gaussian of the noise's width:

    >>> from probjax import loss
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / (2 * 0.5**2)
    >>> objective = DenoisingScoreMatching(energy, scale=0.5)
    >>> args = jax.random.key(0), objective, 2.0, jnp.full((3, 1), 2.0)
    >>> bool(loss(*args) < 1e-6)
    True
    """
    return DrawnScoreMatching(energy, _denoising, scale, num_draws)


def _hutchinson(slope, x, v, scale):
    gradient, change = jax.jvp(slope, (x,), (v,))
    return gradient @ gradient / 2 - v @ change


def _sliced(slope, x, v, scale):
    gradient, change = jax.jvp(slope, (x,), (v,))
    return (v @ gradient) ** 2 / 2 - v @ change


def _denoising(slope, x, v, scale):
    miss = slope(x + scale * v) - v / scale
    return miss @ miss / 2
