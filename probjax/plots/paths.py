"""Regularisation paths, and the curve of cross-validation, against the strength."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from probjax.fitting.cross_validation import Validation
from probjax.fitting.path import RegularisationPath
from probjax.plots.canvas import BLUE, GREEN, GREY, ORANGE, axes, finish
from probjax.types import Params, PyTree

NUM_COUNTS = 6


def path(
    found: RegularisationPath,
    *,
    of: Callable[[Params], PyTree] | None = None,
    ax: Any = None,
    color: str = BLUE,
) -> Any:
    """Parameters against the strength of the penalty, one line for each.

    The strength falls from left to right, so that parameters become nonzero from left
    to right. The axis above has the number of nonzero parameters.

    Args:
        found: the result of `fit_path`.
        of: function of the parameters whose values are drawn, such as `lambda params:
            ising.to_fields(params).coupling`; None for the arrays of which the penalty
            sets an entry to zero, or for all if it sets none.

    >>> strengths, params = np.array([1.0, 0.1]), np.array([[0.0, 0.0], [0.0, 2.0]])
    >>> found = RegularisationPath(strengths, params, strengths, np.array([0, 1]), None)
    >>> ax = path(found)
    >>> [line.get_ydata().tolist() for line in ax.lines[1:]]
    [[0.0, 0.0], [0.0, 2.0]]
    """
    strengths = np.asarray(found.strengths)
    values = _lines(found.params, of)
    ax = axes(ax)
    ax.axhline(0, color=GREY, linewidth=0.6, zorder=0)
    # Many lines overlap, and few must remain visible.
    alpha = float(np.clip(30 / max(values.shape[1], 1), 0.25, 0.8))
    ax.plot(strengths, values, color=color, alpha=alpha, linewidth=1)
    ax.set_xscale("log")
    ax.invert_xaxis()
    finish(ax, "strength of the penalty", "parameter")
    _count_nonzero(ax, strengths, np.asarray(found.num_nonzero))
    return ax


def cross_validation(
    found: Validation,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
) -> Any:
    """Mean score over folds against the strength, with the selected strengths.

    A bar extends one standard error, over folds, of the difference from the best score
    to either side. The simplest strength is the strongest whose bar reaches the best
    score, which is drawn as a dotted line.

    Args:
        found: the result of `cross_validate`.

    >>> strengths = np.array([1.0, 0.1, 0.01])
    >>> fits = RegularisationPath(strengths, np.zeros(3), *np.ones((3, 3)))
    >>> ax = cross_validation(Validation(np.array([[3.0, 1, 2], [5.0, 1, 2]]), fits))
    >>> ax.lines[1].get_ydata().tolist()
    [4.0, 1.0, 2.0]
    """
    strengths, scores = np.asarray(found.strengths), np.asarray(found.scores)
    mean, best, simplest = scores.mean(0), found.best, found.simplest
    excess = scores - scores[:, [best]]
    stderr = excess.std(0, ddof=1) / np.sqrt(len(scores))
    ax = axes(ax)
    ax.axhline(mean[best], color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    bars = {"fmt": ".-", "markersize": 5, "linewidth": 1, "elinewidth": 1}
    ax.errorbar(strengths, mean, stderr, color=color, label=label, **bars)
    # The sizes differ, so that both are visible at the same strength.
    for i, name, marker, size, shade in (
        (best, "best", "o", 7, ORANGE),
        (simplest, "simplest within noise", "s", 12, GREEN),
    ):
        style = {"color": shade, "mfc": "none", "markersize": size, "mew": 1.5}
        entry = f"{name}: {strengths[i]:.2g}"
        ax.plot(strengths[i], mean[i], marker, label=entry, zorder=3, **style)
    ax.set_xscale("log")
    ax.invert_xaxis()
    return finish(ax, "strength of the penalty", "score on rows left out")


def _lines(params, of):
    """Return the values to draw, `(strength, line)`."""
    if of is not None:
        leaves = jax.tree.leaves(jax.vmap(of)(params))
    else:
        everything = jax.tree.leaves(params)
        leaves = [leaf for leaf in everything if (np.asarray(leaf) == 0).any()]
        leaves = leaves or everything
    flat = [np.reshape(leaf, (len(leaf), -1)) for leaf in leaves]
    return np.concatenate(flat, axis=1)


def _count_nonzero(ax, strengths, counts):
    """Write the numbers of nonzero parameters above the axes."""
    places = np.linspace(0, len(strengths) - 1, NUM_COUNTS).round().astype(int)
    shown = np.unique(places)
    top = ax.secondary_xaxis("top")
    top.set_xticks(strengths[shown], [str(int(count)) for count in counts[shown]])
    top.minorticks_off()
    top.set_xlabel("nonzero parameters")
