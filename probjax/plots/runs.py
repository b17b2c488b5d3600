"""Errors against computational cost, and autocovariances of chains."""

from typing import Any

import jax
import numpy as np

from probjax import diagnostics
from probjax.checks import check_count
from probjax.plots.canvas import BLUE, axes, finish
from probjax.types import ArrayLike, PyTree

MIN_LAGS = 20


def convergence(
    spent: ArrayLike,
    errors: ArrayLike,
    *,
    unit: str = "seconds",
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
    marker: str = "o",
    linestyle: str = "-",
) -> Any:
    """Errors against their cost, on logarithmic axes; call it once for each method.

    Args:
        spent: the cost of each point, such as seconds or steps, `(point,)`.
        errors: the error of each point, `(point,)`; or `(point, repeat)`, drawn as
            small markers with a line through their means.
        unit: the unit of the cost.

    >>> ax = convergence([1, 2], [[0.2, 0.4], [0.1, 0.1]], unit="steps", label="MPF")
    >>> ax.lines[0].get_ydata().round(2).tolist(), ax.get_xscale()
    ([0.3, 0.1], 'log')
    """
    spent, errors = np.asarray(spent), np.asarray(errors)
    if spent.ndim != 1 or errors.shape[:1] != spent.shape or errors.ndim not in (1, 2):
        raise ValueError(
            "errors must have shape (point,) or (point, repeat) for spent of shape "
            f"{spent.shape}, got {errors.shape}"
        )
    if errors.size == 0 or (errors <= 0).any() or (spent <= 0).any():
        raise ValueError(
            "spent and errors must not be empty, and must be above 0 because both axes "
            f"are logarithmic, got {spent} and {errors}"
        )
    ax = axes(ax)
    repeats = errors.reshape(len(spent), -1)
    style: dict[str, Any] = {"color": color, "marker": marker}
    means = repeats.mean(axis=1)
    ax.plot(spent, means, linestyle=linestyle, markersize=5, label=label, **style)
    if repeats.shape[1] > 1:
        ax.plot(spent, repeats, linestyle="none", markersize=3, alpha=0.5, **style)
    ax.set(xscale="log", yscale="log")
    return finish(ax, unit, "error")


def autocovariance(
    draws: PyTree,
    *,
    cost: float = 1.0,
    unit: str = "draws",
    num_lags: int | None = None,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
    linestyle: str = "-",
) -> Any:
    """Autocovariance of chains divided by their variance, over all coordinates.

    Both are computed about the mean of all chains: the squared distance of a chain's
    mean from the common mean is added to its own covariances. The curve of chains that
    disagree therefore levels off above 0. Numerator and denominator are sums over
    coordinates, so that the coordinates of largest variance dominate; rescale them
    first if all should have equal weight. The band extends two standard errors to
    either side, estimated from the spread of the chains.

    Args:
        draws: the states, `(chain, draw, ...)`, such as `sample(...).x`.
        cost: the cost of a draw, such as its number of gradients, by which the lags are
            multiplied to compare samplers.
        unit: the unit of the cost.
        num_lags: the number of lags to show; None for twice the first lag at which the
            curve is 0 or below, at least 20, or all lags if it stays above 0.

    >>> draws = np.random.default_rng(0).normal(size=(4, 500))
    >>> ax = autocovariance(draws, cost=2.0, unit="gradients", num_lags=3)
    >>> ax.lines[1].get_xdata().tolist()
    [0.0, 2.0, 4.0]
    """
    curve, stderr = _normalised_autocovariance(draws)
    if num_lags is None:
        crossed = np.flatnonzero(curve <= 0)
        num_lags = max(2 * int(crossed[0]), MIN_LAGS) if crossed.size else len(curve)
    check_count("num_lags", num_lags)
    curve, stderr = curve[:num_lags], stderr[:num_lags]
    spent = cost * np.arange(len(curve))
    ax = axes(ax)
    ax.axhline(0, color="black", linewidth=0.6, zorder=0)
    low, high = curve - 2 * stderr, curve + 2 * stderr
    ax.fill_between(spent, low, high, color=color, alpha=0.2, linewidth=0)
    ax.plot(spent, curve, color=color, linestyle=linestyle, label=label)
    ax.set_xlim(0, None)
    return finish(ax, f"lag, in {unit}", "autocovariance / variance")


def _normalised_autocovariance(draws):
    """Return the ratio of sums over chains and coordinates, and its standard error."""
    covariances = jax.tree.map(
        _about_common_mean, diagnostics.autocovariance(draws), draws
    )
    chains = np.sum(jax.tree.leaves(covariances), axis=0)
    mean = np.mean(chains, axis=0)
    if not mean[0] > 0:
        raise ValueError(
            f"draws must be finite and not all equal, got variance {mean[0]:g}"
        )
    curve = mean / mean[0]
    count = len(chains)
    # Standard error of a ratio of means, from the residuals of each chain.
    residuals = (chains - chains[:, :1] * curve) / mean[0]
    stderr = np.sqrt(np.sum(residuals**2, axis=0) / max(count - 1, 1) / count)
    return curve, stderr if count > 1 else np.zeros_like(curve)


def _about_common_mean(covariances, draws):
    """Return covariances about the mean of all chains, summed over coordinates.

    Args:
        covariances: those of each chain about its own mean, `(chain, lag, ...)`.

    Returns:
        An array `(chain, lag)`.
    """
    means = np.asarray(draws).mean(axis=1, dtype=float)
    shifts = np.square(means - means.mean(axis=0))
    own = np.asarray(covariances, float)
    return (own + shifts[:, None]).reshape(*own.shape[:2], -1).sum(axis=2)
