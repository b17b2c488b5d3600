"""Words of spikes: rasters, and the frequencies and ranks of patterns."""

from typing import Any

import numpy as np

from probjax.data.spikes import Words
from probjax.diagnostics.goodness import Comparison
from probjax.diagnostics.patterns import Patterns
from probjax.plots.canvas import BLACK, BLUE, GREY, PALE, axes, finish, unused_label
from probjax.plots.comparisons import NOISE
from probjax.types import ArrayLike, Float


def raster(words: Words, *, ax: Any = None, color: str = BLACK) -> Any:
    """Mark for each bin in which a unit is active, with one line for each unit.

    Borders between intervals are dashed lines.

    >>> from probjax.data.spikes import words_from_counts
    >>> words = words_from_counts([[0, 1], [1, 1]], bin_width=0.5, names=["a", "b"])
    >>> ax = raster(words)
    >>> ax.lines[0].get_xydata().tolist()
    [[0.25, 1.0], [0.75, 0.0], [0.75, 1.0]]
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['a', 'b']
    """
    ax = axes(ax)
    row, unit = np.nonzero(np.asarray(words.x))
    centre = words.time + words.bin_width / 2
    height = ax.get_window_extent().height / len(words.names)
    size = float(np.clip(0.5 * height, 1, 12))
    ax.plot(
        *(centre[row], unit),
        linestyle="none",
        marker="|",
        markersize=size,
        markeredgewidth=0.6,
        color=color,
    )
    starts = words.time[np.searchsorted(words.trial, np.arange(len(words.labels)))]
    for start in starts[1:]:
        ax.axvline(start, color=PALE, linestyle="--", linewidth=0.8, zorder=0)
    ax.set_ylim(-0.6, len(words.names) - 0.4)
    step = -(-len(words.names) // 25)
    ticks = np.arange(0, len(words.names), step)
    ax.set_yticks(ticks, [words.names[tick] for tick in ticks])
    return finish(ax, "time", "unit")


def pattern_ranks(
    patterns: Patterns,
    log_probs: Float[ArrayLike, " pattern"] | None = None,
    *,
    ax: Any = None,
    label: str | None = None,
    color: str = BLUE,
) -> Any:
    """Frequency of each pattern against its rank, both on logarithmic axes.

    Args:
        patterns: patterns of the data, which are sorted by frequency.
        log_probs: log p of the patterns in a model, drawn at the ranks of the data.

    >>> from probjax.diagnostics.patterns import patterns
    >>> ax = pattern_ranks(patterns(np.array([[0], [1], [0], [0]])))
    >>> ax.lines[-1].get_xydata().tolist(), ax.get_yscale()
    ([[1.0, 0.75], [2.0, 0.25]], 'log')
    """
    ax = axes(ax)
    rank = 1 + np.arange(len(patterns.counts))
    if log_probs is not None:
        expected = np.exp(np.asarray(log_probs, float))
        if expected.shape != rank.shape:
            raise ValueError(
                f"log_probs must have one entry for each of {len(rank)} patterns, got "
                f"shape {expected.shape}"
            )
        ax.plot(rank, expected, ".", color=GREY, markersize=3, label="model")
    ax.plot(rank, patterns.counts / patterns.num_rows, color=color, label=label)
    ax.set(xscale="log", yscale="log")
    return finish(ax, "rank", "frequency")


def pattern_frequencies(
    found: Comparison, *, ax: Any = None, label: str | None = None, color: str = BLUE
) -> Any:
    """Frequencies of patterns against their probabilities, on logarithmic axes.

    The band extends two standard errors to either side of equality. Patterns that were
    not seen are not shown, so points of rare patterns lie above the line on average.

    Args:
        found: result of `diagnostics.pattern_frequencies`.

    >>> from probjax import diagnostics
    >>> found = diagnostics.patterns(np.array([[0], [1], [0], [0]]))
    >>> compared = diagnostics.pattern_frequencies(found, np.log([0.5, 0.5]))
    >>> ax = pattern_frequencies(compared)
    >>> ax.collections[-1].get_offsets().tolist()
    [[0.5, 0.75], [0.5, 0.25]]
    """
    ax = axes(ax)
    expected, observed, stderr = (
        np.asarray(part, float)
        for part in (found.expected, found.observed, found.stderr)
    )
    if not expected.size or not (expected > 0).all():
        raise ValueError("probabilities of patterns must be positive, got others")
    order = np.argsort(expected)
    least = observed[observed > 0].min() / 2
    low = np.maximum(expected - 2 * stderr, least)[order]
    ax.fill_between(
        *(expected[order], low, (expected + 2 * stderr)[order]),
        color=PALE,
        linewidth=0,
        zorder=0,
        label=unused_label(ax, NOISE),
    )
    ends = [expected.min(), expected.max()]
    ax.plot(ends, ends, color=GREY, linewidth=0.8, zorder=1)
    ax.scatter(expected, observed, s=8, color=color, linewidths=0, label=label)
    ax.set(xscale="log", yscale="log", ylim=(least, None))
    return finish(ax, "model", "data")
