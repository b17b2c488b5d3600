"""Score matching: fitting a continuous density by the gradient of its logarithm.

    K_SM = mean over rows of |grad E(x)|^2 / 2 - laplacian E(x)

is, up to a constant, half the mean squared distance between the gradients of the log
densities of model and data. It is also the limit of the probability flow along small
symmetric steps,

    K_SM = lim (K - 1) 4 / m,    m the mean square of one coordinate of a step,

which needs no derivative in x. In many dimensions the Laplacian is expensive. It can be
estimated with random directions v for which the mean of vv' is I:

    Hutchinson: |grad E|^2 / 2 - v'Hv        sliced: (v.grad E)^2 / 2 - v'Hv

where H is the Hessian in x; the mean of both over v is K_SM. Denoising score matching
needs no second derivative. It fits the density of the data with Gaussian noise of
standard deviation s added,

    |grad E(x + s v) - v / s|^2 / 2.

Reference: Hyvarinen, JMLR 6, 695 (2005); Vincent, Neural Computation 23, 1661 (2011);
Song, Garg, Shi and Ermon, UAI 2019; thesis, "Score Matching" and the appendix "Score
Matching (SM) is a special case of MPF".
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count, holds, is_concrete
from probjax.connectivity import Steps
from probjax.data.rows import num_rows, refuse_mask
from probjax.energies import check_energy
from probjax.interfaces import Objective
from probjax.objectives.flow import MPF
from probjax.objectives.gaps import GapContext
from probjax.potential import potential
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
    map_states,
    split_inputs,
)


@recipe
class ScoreMatching(Objective):
    """Mean over rows of |grad E|^2 / 2 - laplacian E, with exact derivatives in x.

    The cost of a row is about one gradient of the energy for each of its coordinates.
    The energy must be smooth in x, and the state space must have no boundary.

    Args:
        energy: `energy(params, x)` of one state.

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
        refuse_mask(data, "score matching needs complete rows")
        x, _ = split_inputs(data.x)
        if is_concrete(x) and (holds(is_bit, x) or holds(is_spin, x)):
            raise ValueError(
                "data must be continuous, because score matching differentiates in x, "
                "got binary states; try MPF, PseudoLikelihood or RatioMatching"
            )
        data = data._replace(x=map_states(partial(jax.tree.map, floating), data.x))
        check_energy(self.energy, params, data.x)
        return data

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        flat, gradient_at = _gradient(self.energy, params, x)

        def curvature(axis):
            gradient, change = jax.jvp(gradient_at, (flat,), (axis,))
            return gradient, axis @ change

        axes = jnp.eye(flat.size, dtype=flat.dtype)
        gradient, curvatures = jax.vmap(curvature, out_axes=(None, 0))(axes)
        return gradient @ gradient / 2 - jnp.sum(curvatures)


@recipe
class ScoreMatchingBySteps(Objective):
    """(K - 1) 4 / m along small `steps`, which approximates `ScoreMatching`.

    The error is of the order of the squared size of the steps. With steps smaller than
    about 1e-2, rounding in float32 dominates.

    Args:
        energy: `energy(params, x)` of one state.
        steps: `GaussianSteps`, `CubeSteps` or `BallSteps`.

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
        x, inputs = split_inputs(x)
        gaps = self.steps.gaps(potential(self.energy, params, inputs), x, moves)
        # K - 1 of one row, computed with expm1 to avoid cancellation.
        excess = jnp.sum(gaps.weight * jnp.expm1(gaps.gap / 2))
        return 4 / self.steps.moment(x) * excess

    def _flow(self):
        return MPF(self.energy, connectivity=self.steps)


@recipe
class DrawnScoreMatching(Objective):
    """Mean over rows and over `num_draws` normal directions v of `term`.

    Directions are redrawn at each refresh. `HutchinsonScoreMatching`,
    `SlicedScoreMatching` and `DenoisingScoreMatching` construct it.
    """

    energy: Energy = static()
    """`energy(params, x)` of one state."""
    term: Callable[..., Scalar] = static()
    """`term(gradient_at, x, v, scale)` for a flat state x; `gradient_at` is a function
    that returns the gradient of the energy."""
    scale: float
    """Standard deviation of the noise, for denoising."""
    num_draws: int = static(default=1)
    """Number of directions for each row."""

    def __post_init__(self):
        check_count("num_draws", self.num_draws)
        if isinstance(self.scale, float) and not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale}")

    def prepare(self, params: Params, data: Data) -> Data:
        return ScoreMatching(self.energy).prepare(params, data)

    def refresh(
        self, key: PRNGKeyArray, params: Params, data: Data, context: Context
    ) -> Context:
        first = ravel_pytree(first_row(split_inputs(data.x)[0]))[0]
        shape = (num_rows(data), self.num_draws, first.size)
        return Context(jax.random.normal(key, shape, first.dtype), ())

    def row(self, params: Params, x: State, context: PyTree) -> Scalar:
        flat, gradient_at = _gradient(self.energy, params, x)
        terms = jax.vmap(lambda v: self.term(gradient_at, flat, v, self.scale))(context)
        return jnp.mean(terms)


def HutchinsonScoreMatching(
    energy: Energy, *, num_draws: int = 1
) -> DrawnScoreMatching:
    """Score matching with the Laplacian estimated along `num_draws` random directions.

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
    """Score matching of derivatives along `num_draws` random directions.

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

    The fitted density is that of the noisy data. The noise of each row is drawn
    `num_draws` times.

    If all rows are equal, the density of the noisy data is a Gaussian of width `scale`:

    >>> from probjax import loss
    >>> def energy(mean, x):
    ...     return jnp.sum((x - mean) ** 2) / (2 * 0.5**2)
    >>> objective = DenoisingScoreMatching(energy, scale=0.5)
    >>> args = jax.random.key(0), objective, 2.0, jnp.full((3, 1), 2.0)
    >>> bool(loss(*args) < 1e-6)
    True
    """
    return DrawnScoreMatching(energy, _denoising, scale, num_draws)


def _gradient(energy, params, row):
    """Return the flat state of a row, and the gradient of the energy as a function."""
    x, inputs = split_inputs(row)
    model = potential(energy, params, inputs)
    flat, unravel = ravel_pytree(x)
    return flat, jax.grad(lambda point: model(unravel(point)))


def _hutchinson(gradient_at, x, v, scale):
    gradient, change = jax.jvp(gradient_at, (x,), (v,))
    return gradient @ gradient / 2 - v @ change


def _sliced(gradient_at, x, v, scale):
    gradient, change = jax.jvp(gradient_at, (x,), (v,))
    return (v @ gradient) ** 2 / 2 - v @ change


def _denoising(gradient_at, x, v, scale):
    error = gradient_at(x + scale * v) - v / scale
    return error @ error / 2
