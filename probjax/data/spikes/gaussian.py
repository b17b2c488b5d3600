"""Dichotomised Gaussian: binary words with given rates and pairwise covariances.

    x_i = 1 if z_i > -gamma_i,   z ~ N(0, Lambda),   Lambda_ii = 1

The rate of unit i fixes gamma_i, and the covariance of a pair fixes the correlation
Lambda_ij of its two latents:

    P(x_i = 1) = Phi(gamma_i),
    P(x_i = x_j = 1) = Phi_2(gamma_i, gamma_j; Lambda_ij)
                     = P(x_i = 1) P(x_j = 1) + integral from 0 to asin Lambda_ij of
                       exp(-(g^2 + h^2 - 2 g h sin t) / (2 cos^2 t)) dt / (2 pi)

with g = gamma_i and h = gamma_j. The joint probability increases with Lambda_ij, which
is found by bracketed Newton steps. If the correlations of all pairs together are not
positive semidefinite, the nearest correlation matrix takes their place, and the
covariances differ from those requested.

Reference: Macke, Berens, Ecker, Tolias and Bethge, Neural Computation 21, 397 (2009);
for the nearest correlation matrix Higham, IMA J. Numer. Anal. 22, 329 (2002).
"""

from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count
from probjax.random import numpy_generator
from probjax.trees import as_array
from probjax.types import Array, ArrayLike, Float, PRNGKeyArray

NUM_NODES = 96
MAX_STEPS = 100
MAX_PROJECTIONS = 1000
TOLERANCE = 1e-10


class DichotomisedGaussian(NamedTuple):
    """Distribution of words; `dichotomised_gaussian` returns one.

    >>> model = dichotomised_gaussian([0.5, 0.5], [[0.25, 0.125], [0.125, 0.25]])
    >>> model.correlation.round(4).tolist()  # sin(pi / 4)
    [[1.0, 0.7071], [0.7071, 1.0]]
    >>> model.describe()
    'rates and covariances are matched exactly'
    """

    threshold: Float[np.ndarray, " unit"]
    """gamma of each unit; infinite for units that are constant."""
    correlation: Float[np.ndarray, "unit unit"]
    """Lambda, a correlation matrix."""
    shift: float
    """Largest change of a correlation that made Lambda positive semidefinite."""
    covariance_error: float
    """Largest difference between a covariance of the words and the one requested."""

    def describe(self) -> str:
        """Describe in one line whether the covariances are those requested."""
        if self.shift == 0:
            return "rates and covariances are matched exactly"
        return (
            "rates are matched exactly; the correlations of the latents were not "
            "positive semidefinite and changed by "
            f"{self.shift:.2g} at most, so that covariances differ by "
            f"{self.covariance_error:.2g} at most"
        )


def dichotomised_gaussian(
    mean: ArrayLike, covariance: ArrayLike
) -> DichotomisedGaussian:
    """Return the dichotomised Gaussian with given rates and covariances of words.

    Args:
        mean: probability that each unit is 1.
        covariance: covariances of the units; the diagonal is not used, because it
            follows from the rates.

    >>> model = dichotomised_gaussian([0.1, 0.2], [[0, -0.02], [-0.02, 0]])
    >>> bool(model.correlation[0, 1] < -0.99)  # the units exclude each other
    True
    """
    mean, covariance = _checked(mean, covariance)
    normal = NormalDist()
    finite = [0 < rate < 1 for rate in mean]
    threshold = np.where(mean > 0.5, np.inf, -np.inf)
    threshold[finite] = [normal.inv_cdf(rate) for rate in mean[finite]]
    first, second = np.triu_indices(len(mean), 1)
    vary = np.isfinite(threshold[first]) & np.isfinite(threshold[second])
    pairs = first, second = first[vary], second[vary]
    wanted = covariance[pairs]
    angle = _solve(threshold[first], threshold[second], wanted)
    correlation = np.eye(len(mean))
    correlation[first, second] = correlation[second, first] = np.sin(angle)
    nearest = _nearest_correlation(correlation)
    shift = float(np.abs(nearest - correlation).max())
    angle = np.arcsin(np.clip(nearest[pairs], -1, 1))
    reached = _covariance(threshold[first], threshold[second], angle)
    error = float(np.abs(reached - wanted).max(initial=0.0))
    return DichotomisedGaussian(threshold, nearest, shift, error)


def draw_words(
    key: PRNGKeyArray, model: DichotomisedGaussian, *, num_draws: int
) -> Float[Array, "draw unit"]:
    """Draw independent words.

    >>> model = dichotomised_gaussian([0.5, 0.5], [[0.25, 0.25], [0.25, 0.25]])
    >>> x = draw_words(jax.random.key(0), model, num_draws=100)
    >>> bool((x[:, 0] == x[:, 1]).all())
    True
    """
    check_count("num_draws", num_draws)
    values, vectors = np.linalg.eigh(model.correlation)
    root = vectors * np.sqrt(np.maximum(values, 0))
    root /= np.linalg.norm(root, axis=1, keepdims=True)
    z = numpy_generator(key).standard_normal((num_draws, len(root))) @ root.T
    return as_array(z > -model.threshold, jnp.result_type(float))


def _checked(mean, covariance):
    """Return rates and covariances in float64; raise if no words can have them."""
    mean, covariance = np.asarray(mean, float), np.asarray(covariance, float)
    if mean.ndim != 1 or covariance.shape != 2 * mean.shape:
        raise ValueError(
            "mean and covariance must have shapes (unit,) and (unit, unit), got "
            f"{mean.shape} and {covariance.shape}"
        )
    if not ((mean >= 0) & (mean <= 1)).all():
        raise ValueError("mean must hold probabilities, from 0 to 1, got others")
    if not np.allclose(covariance, covariance.T, atol=1e-6):
        raise ValueError("covariance must be symmetric, got another matrix")
    covariance = (covariance + covariance.T) / 2
    product = np.outer(mean, mean)
    least = np.maximum(mean[:, None] + mean - 1, 0) - product
    most = np.minimum(mean[:, None], mean) - product
    # Rounding of float32 means is no error.
    wrong = (covariance < least - 1e-6) | (covariance > most + 1e-6)
    np.fill_diagonal(wrong, False)
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        raise ValueError(
            f"covariance of units {i} and {j} must be from {least[i, j]:.4g} to "
            f"{most[i, j]:.4g} for their rates, got {covariance[i, j]:.4g}"
        )
    return mean, np.clip(covariance, least, most)


def _covariance(g, h, angle):
    """Covariances of pairs of units whose latents have the correlation sin(angle)."""
    nodes, weights = _quadrature()
    half = angle[:, None] / 2
    return (half * _slope(g[:, None], h[:, None], half * (1 + nodes))) @ weights


@cache
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(NUM_NODES)


def _slope(g, h, angle):
    """Derivative of the covariance in the angle."""
    # 1 - sin(angle) in a form that does not cancel near a correlation of 1.
    below_one = 2 * np.sin((np.pi / 2 - angle) / 2) ** 2
    squares = (g - h) ** 2 + 2 * g * h * below_one
    return np.exp(-squares / (2 * np.cos(angle) ** 2)) / (2 * np.pi)


def _solve(g, h, covariance):
    """Return the angles at which pairs of units have given covariances.

    It takes Newton steps, or halves the bracket if a step would leave the bracket or is
    not half as long as the step before.
    """
    low, high = np.full(len(g), -np.pi / 2), np.full(len(g), np.pi / 2)
    angle, step = np.zeros(len(g)), high - low
    for _ in range(MAX_STEPS):
        excess = _covariance(g, h, angle) - covariance
        low, high = np.where(excess < 0, angle, low), np.where(excess < 0, high, angle)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            newton = -excess / _slope(g, h, angle)
        good = (angle + newton > low) & (angle + newton < high)
        good &= np.abs(newton) < np.abs(step) / 2
        step = np.where(good, newton, (low + high) / 2 - angle)
        angle = angle + step
        if np.abs(step).max(initial=0.0) < TOLERANCE:
            break
    return angle


def _nearest_correlation(matrix):
    """Return the positive semidefinite matrix of unit diagonal nearest to `matrix`.

    It alternates between the projections on both sets, with Dykstra's correction.
    """
    rounding = len(matrix) * np.finfo(float).eps
    if np.linalg.eigvalsh(matrix)[0] >= -rounding:
        return matrix
    nearest, correction = matrix, np.zeros_like(matrix)
    for _ in range(MAX_PROJECTIONS):
        shifted = nearest - correction
        values, vectors = np.linalg.eigh(shifted)
        semidefinite = (vectors * np.maximum(values, 0)) @ vectors.T
        correction = semidefinite - shifted
        nearest = semidefinite.copy()
        np.fill_diagonal(nearest, 1)
        if np.abs(nearest - semidefinite).max() < TOLERANCE:
            break
    return nearest
