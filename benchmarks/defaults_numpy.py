"""Losses in NumPy: the program of a user without probjax, and float64 references.

Each function returns `loss(vector) -> (value, gradient)`. In float32 it is the program
that SciPy's L-BFGS minimises; in float64 it is the reference by which every program is
judged. Ising models are over spins s = 2x - 1, with

    gap_i = E(x) - E(x with unit i flipped) = s_i (h_i + sum_j J_ij s_j),

so that J is that of E = x'Jx, and the biases are h_i - sum_j J_ij.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]

_MEMORY = 20
_MAX_NEWTON_STEPS = 20
# Half the squared Newton decrement, in units of 1 / (2 rows), at a minimum.
_AT_MINIMUM = 1e-7
_CHUNK = 1000


def minimise(
    loss: Loss,
    start: np.ndarray,
    *,
    num_steps: int,
    callback: Callable[[np.ndarray], None] | None = None,
) -> Any:
    """Return SciPy's result after `num_steps` steps of L-BFGS, or where it stops."""
    from scipy.optimize import minimize

    settings = {"maxiter": num_steps, "maxfun": 20 * num_steps, "maxcor": _MEMORY}
    tolerances = {"ftol": 0.0, "gtol": 0.0}
    return minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        callback=callback,
        options=settings | tolerances,
    )


def pairwise(x: np.ndarray, kind: str, *, strength: float, dtype: Any) -> Loss:
    """Return the loss of an Ising model in (h, J of each pair), by MPF or "PL"."""
    s = (2 * x - 1).astype(dtype)
    num_rows, size = s.shape
    pairs = np.triu_indices(size, 1)

    def loss(vector):
        couplings = np.zeros((size, size), dtype)
        couplings[pairs] = vector[size:]
        gaps = s * (s @ (couplings + couplings.T) + vector[:size].astype(dtype))
        value, slopes = flow(gaps) if kind == "MPF" else conditionals(gaps)
        slopes *= s
        both = slopes.T @ s
        gradient = (both + both.T)[pairs] + 2 * strength * couplings[pairs]
        value += strength * np.sum(couplings[pairs] ** 2, dtype=float)
        return value, np.concatenate([slopes.sum(0), gradient]).astype(float)

    def flow(gaps):
        largest = gaps.max() / 2
        terms = np.exp(gaps / 2 - largest)
        total = terms.sum(dtype=float)
        return np.log(total / num_rows) + float(largest), terms * dtype(0.5 / total)

    def conditionals(gaps):
        small = np.exp(-np.abs(gaps))
        value = (np.maximum(gaps, 0) + np.log1p(small)).sum(dtype=float) / num_rows
        return value, np.where(gaps > 0, 1, small) / (1 + small) / dtype(num_rows)

    return loss


class Curvature(NamedTuple):
    """Second derivatives of a pairwise loss in float64, and its row gradients."""

    hessian: np.ndarray
    variance: np.ndarray
    """Covariance over rows of the derivative of the gradient by a row's weight."""


def pairwise_curvature(
    x: np.ndarray, kind: str, vector: np.ndarray, *, strength: float, variance: bool
) -> Curvature:
    """Return the exact Hessian, and the covariance of row gradients if required."""
    s = 2 * x.astype(float) - 1
    num_rows, size = s.shape
    couplings = np.zeros((size, size))
    pairs = np.triu_indices(size, 1)
    couplings[pairs] = vector[size:]
    gaps = s * (s @ (couplings + couplings.T) + vector[:size])
    if kind == "MPF":
        terms = np.exp(gaps / 2 - gaps.max() / 2)
        terms *= num_rows / terms.sum()
        slopes, curvatures = terms / 2, terms / 4
        shares = terms.sum(1)
    else:
        slopes = 1 / (1 + np.exp(-gaps))
        curvatures = slopes * (1 - slopes)
        shares = np.ones(num_rows)
    slopes *= s
    mean = _mean(slopes, s)
    hessian = _tied(s, curvatures)
    if kind == "MPF":
        hessian -= np.outer(mean, mean)
    coupled = np.arange(size, len(vector))
    hessian[coupled, coupled] += 2 * strength
    covariance = np.zeros((0, 0))
    if variance:
        covariance = np.zeros_like(hessian)
        for first in range(0, num_rows, _CHUNK):
            part = slice(first, first + _CHUNK)
            rows = _row_gradients(slopes[part], s[part])
            rows -= shares[part, None] * mean
            covariance += rows.T @ rows / num_rows
    return Curvature(hessian, covariance)


def _mean(slopes, s):
    both = slopes.T @ s / len(s)
    return np.concatenate(
        [slopes.mean(0), (both + both.T)[np.triu_indices(s.shape[1], 1)]]
    )


def _row_gradients(slopes, s):
    first, second = np.triu_indices(s.shape[1], 1)
    coupled = slopes[:, first] * s[:, second] + slopes[:, second] * s[:, first]
    return np.concatenate([slopes, coupled], axis=1)


def _tied(s, curvatures):
    """Sum over units of the curvature in the parameters of their gaps."""
    num_rows, size = s.shape
    pairs = np.triu_indices(size, 1)
    number = np.zeros((size, size), int)
    number[pairs] = size + np.arange(len(pairs[0]))
    number += number.T + np.diag(np.arange(size))
    hessian = np.zeros(2 * (size + len(pairs[0]),))
    for unit in range(size):
        # The unit's own column is that of its field, whose statistic is 1.
        terms = s.copy()
        terms[:, unit] = 1
        block = (terms * curvatures[:, unit, None]).T @ terms / num_rows
        hessian[np.ix_(number[unit], number[unit])] += block
    return hessian


def newton(
    x: np.ndarray, kind: str, start: np.ndarray, *, strength: float
) -> np.ndarray:
    """Return the float64 minimum of a pairwise loss, by Newton's method."""
    from scipy.linalg import solve

    loss = pairwise(x, kind, strength=strength, dtype=np.float64)
    point = np.asarray(start, float)
    value, gradient = loss(point)
    for _ in range(_MAX_NEWTON_STEPS):
        found = pairwise_curvature(x, kind, point, strength=strength, variance=False)
        step = solve(found.hessian, -gradient, assume_a="pos")
        if -step @ gradient * len(x) < _AT_MINIMUM:
            return point + step
        length = 1.0
        while (new := loss(point + length * step))[0] > value and length > 1e-6:
            length /= 2
        point, (value, gradient) = point + length * step, new
    return point


def potts(
    x: np.ndarray, num_states: int, weights: np.ndarray, *, strength: float, dtype: Any
) -> Loss:
    """Return the pseudolikelihood of a Potts model in its fields and couplings."""
    num_rows, sites = x.shape
    hot = np.eye(num_states, dtype=dtype)[x].reshape(num_rows, -1)
    shares = (weights / weights.sum()).astype(dtype)[:, None, None]
    first, second = np.triu_indices(sites, 1)
    blocks = (sites, num_states, sites, num_states)

    def loss(vector):
        field = vector[: hot.shape[1]].astype(dtype)
        coupling = vector[hot.shape[1] :].reshape(-1, num_states, num_states)
        matrix = np.zeros(blocks, dtype)
        matrix[first, :, second] = coupling
        matrix[second, :, first] = coupling.swapaxes(1, 2)
        logits = (hot @ matrix.reshape(hot.shape[1], -1) + field).reshape(
            num_rows, sites, num_states
        )
        logits -= logits.max(2, keepdims=True)
        chances = np.exp(logits)
        total = chances.sum(2, keepdims=True)
        own = hot.reshape(logits.shape)
        value = np.sum(
            shares[:, :, 0] * (np.log(total[:, :, 0]) - (own * logits).sum(2)),
            dtype=float,
        )
        slopes = (shares * (chances / total - own)).reshape(num_rows, -1)
        both = hot.T @ slopes
        both = (both + both.T).reshape(blocks)[first, :, second]
        both = both + 2 * strength * coupling
        value += strength * np.sum(coupling**2)
        return value, np.append(slopes.sum(0), both).astype(float)

    return loss


def rbm(x: np.ndarray, num_hidden: int, *, strength: float, dtype: Any) -> Loss:
    """Return the pseudolikelihood of an RBM in its weights and biases."""
    x = x.astype(dtype)
    num_rows, visible = x.shape
    change = 1 - 2 * x

    def loss(vector):
        vector = vector.astype(dtype)
        cuts = (visible * num_hidden, visible * (num_hidden + 1))
        weight, bias, hidden_bias = np.split(vector, cuts)
        weight = weight.reshape(visible, num_hidden)
        field = x @ weight + hidden_bias
        before, on = np.logaddexp(0, field), _sigmoid(field)
        value, of_field = 0.0, np.zeros_like(field)
        of_weight, of_bias = 2 * strength * weight, np.zeros_like(bias)
        for unit in range(visible):
            sign = change[:, unit]
            flipped = field + sign[:, None] * weight[unit]
            gap = sign * bias[unit] + (np.logaddexp(0, flipped) - before).sum(1)
            value += np.logaddexp(0, gap).sum(dtype=float) / num_rows
            slope = _sigmoid(gap)[:, None] / dtype(num_rows)
            flipped_on = slope * _sigmoid(flipped)
            of_field += flipped_on - slope * on
            of_weight[unit] += sign @ flipped_on
            of_bias[unit] = sign @ slope[:, 0]
        of_weight += x.T @ of_field
        value += strength * np.sum(weight**2, dtype=float)
        parts = (of_weight.ravel(), of_bias, of_field.sum(0))
        return value, np.concatenate(parts).astype(float)

    return loss


def _sigmoid(value):
    return np.where(value > 0, 1, np.exp(np.minimum(value, 0))) / (
        1 + np.exp(-np.abs(value))
    )
