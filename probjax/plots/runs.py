"""How runs come along: errors against what they cost, and how long chains remember."""

from typing import Any

import jax
import numpy as np

from probjax import diagnostics
from probjax.checks import check_count
from probjax.plots.canvas import BLUE, axes, finish
from probjax.types import ArrayLike, PyTree

LEAST = 20


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
    """Errors against what they cost, both logarithmic; a call for each method.

    Args:
        spent: seconds, steps or states, `(point,)`.
        errors: `(point,)`, or `(point, repeat)`: small marks, about a line of means.
        unit: what was spent.

    >>> ax = convergence([1, 2], [[0.2, 0.4], [0.1, 0.1]], unit="steps", label="MPF")
    >>> ax.lines[0].get_ydata().round(2).tolist(), ax.get_xscale()
    ([0.3, 0.1], 'log')
    """
    spent, errors = np.asarray(spent), np.asarray(errors)
    if spent.ndim != 1 or errors.shape[:1] != spent.shape or errors.ndim not in (1, 2):
        raise ValueError(
            f"errors must be (point,) or (point, repeat) for {spent.shape} of what was "
            f"spent, got {errors.shape}"
        )
    if errors.size == 0 or (errors <= 0).any() or (spent <= 0).any():
        raise ValueError(
            "spent and errors must be above 0, as both axes are logarithmic, and at "
            f"least one: got {spent} and {errors}"
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
    """How long chains remember: autocovariance over variance, of all coordinates.

    Both are about the mean of all chains: to a chain's own covariances is added the
    square of how far its mean is from theirs, so that chains which disagree come to
    rest above 0. It is a ratio of sums over coordinates, and the widest decide: scale
    them first if all should count. The band is two standard errors to either side, by
    the spread of the chains.

    Args:
        draws: `(chain, draw, ...)`, as `sample(...).x`.
        cost: of a draw, as gradients, so that samplers can be compared by it.
        unit: of the cost.
        num_lags: how many to show; if None twice as many as it takes to come to 0, at
            least 20.

    >>> draws = np.random.default_rng(0).normal(size=(4, 500))
    >>> ax = autocovariance(draws, cost=2.0, unit="gradients", num_lags=3)
    >>> ax.lines[1].get_xdata().tolist()
    [0.0, 2.0, 4.0]
    """
    curve, noise = _of_chains(draws)
    if num_lags is None:
        crossed = np.flatnonzero(curve <= 0)
        num_lags = max(2 * int(crossed[0]), LEAST) if crossed.size else len(curve)
    check_count("num_lags", num_lags)
    curve, noise = curve[:num_lags], noise[:num_lags]
    spent = cost * np.arange(len(curve))
    ax = axes(ax)
    ax.axhline(0, color="black", linewidth=0.6, zorder=0)
    low, high = curve - 2 * noise, curve + 2 * noise
    ax.fill_between(spent, low, high, color=color, alpha=0.2, linewidth=0)
    ax.plot(spent, curve, color=color, linestyle=linestyle, label=label)
    ax.set_xlim(0, None)
    return finish(ax, f"{unit} between", "autocovariance / variance")


def _of_chains(draws):
    """The ratio of sums over chains and coordinates, and its standard error."""
    covariances = jax.tree.map(_about_all, diagnostics.autocovariance(draws), draws)
    chains = np.sum(jax.tree.leaves(covariances), axis=0)
    mean = np.mean(chains, axis=0)
    if not mean[0] > 0:
        raise ValueError("draws must be finite and move, to have an autocovariance")
    curve = mean / mean[0]
    count = len(chains)
    # Of a ratio: what of a chain's covariances its own variance does not explain.
    apart = (chains - chains[:, :1] * curve) / mean[0]
    noise = np.sqrt(np.sum(apart**2, axis=0) / max(count - 1, 1) / count)
    return curve, noise if count > 1 else np.zeros_like(curve)


def _about_all(covariances, draws):
    """Covariances `(chain, lag)` about the mean of all chains, over coordinates."""
    means = np.asarray(draws).mean(axis=1, dtype=float)
    apart = np.square(means - means.mean(axis=0))
    own = np.asarray(covariances, float)
    return (own + apart[:, None]).reshape(*own.shape[:2], -1).sum(axis=2)
