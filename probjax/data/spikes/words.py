"""Words: which units of a recording fired in each bin of time.

    x_(t,i) = 1 if unit i has at least `threshold` spikes in [t, t + bin_width)

Bins begin at the start of every interval, and an incomplete bin at its end is left out,
so that no word extends over the border of an interval. A spike that precedes the edge
of a bin by less than 1e-6 of its width counts as lying on the edge, because times and
edges are rounded.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from probjax.checks import check_count, warn
from probjax.data.spikes.recordings import Recording, check_names
from probjax.trees import as_array
from probjax.types import Array, ArrayLike, Float

ROUNDING = 1e-6
MOST_CLIPPED = 0.05
MOST_LISTED = 5


class Words(NamedTuple):
    """Binary words of a recording; pass `x` to `fit`.

    >>> from probjax.data.spikes import recording
    >>> session = recording([[0.2, 1.1, 2.5], [0.1]], intervals=[[0, 2], [2, 3]])
    >>> found = words(session, bin_width=1.0)
    >>> found.x.tolist(), found.trial.tolist(), found.time.tolist()
    ([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]], [0, 0, 1], [0.0, 1.0, 2.0])
    >>> print(found.describe())
    3 words of 2 units in bins of 1, from 2 intervals
    1.3 units active in a word on average; units active in 33.33% to 100.00% of words
    """

    x: Float[Array, "row unit"]
    """Words: 1 for active units, 0 for others."""
    time: Float[np.ndarray, " row"]
    """Time at which each bin starts."""
    trial: np.ndarray
    """Index of the interval of each word, `(row,)`, in order."""
    labels: np.ndarray
    """Label of each interval, so that `labels[trial]` are those of the words."""
    names: tuple[str, ...]
    """Name of each unit."""
    bin_width: float
    """Width of a bin."""
    clipped: np.ndarray
    """Number of ones of each unit that stand for more spikes than `threshold`."""

    @property
    def bin(self) -> np.ndarray:
        """Number of each word in its interval, counted from 0."""
        first = np.searchsorted(self.trial, np.arange(len(self.labels)))
        return np.arange(len(self.trial)) - first[self.trial]

    def describe(self) -> str:
        """Describe the words in a few lines."""
        x = np.asarray(self.x)
        rates, num_active = x.mean(0), int(x.sum())
        lines = [
            f"{len(x):,} words of {x.shape[1]} units in bins of {self.bin_width:g}, "
            f"from {len(self.labels)} interval{'s' * (len(self.labels) > 1)}",
            f"{x.sum(1).mean():.1f} units active in a word on average; units active in "
            f"{rates.min():.2%} to {rates.max():.2%} of words",
        ]
        if self.clipped.any():
            lines.append(
                f"{self.clipped.sum() / num_active:.1%} of the ones stand for more "
                "spikes than the threshold"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Words: {self.describe()}"


def words(recording: Recording, *, bin_width: float, threshold: int = 1) -> Words:
    """Return the binary words of a recording.

    It warns of units and of intervals without ones, and if bins are so wide that many
    ones stand for several spikes.

    Args:
        bin_width: width of a bin, in the unit of the times.
        threshold: number of spikes in a bin that makes a unit active.

    >>> from probjax.data.spikes import recording
    >>> session = recording({"a": [0.02], "b": [0.05]}, intervals=[0, 0.07])
    >>> words(session, bin_width=0.02).x.tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    check_count("threshold", threshold)
    if not 0 < bin_width < np.inf:
        raise ValueError(f"bin_width must be positive and finite, got {bin_width}")
    starts, ends = recording.intervals.T
    num_bins = np.floor((ends - starts) / bin_width + ROUNDING).astype(int)
    if not num_bins.all():
        shortest = (ends - starts).min()
        raise ValueError(
            "bin_width must not exceed the length of an interval, got a bin_width of "
            f"{bin_width:g} and an interval of length {shortest:g}"
        )
    first = np.cumsum(num_bins) - num_bins
    trial = np.repeat(np.arange(len(num_bins)), num_bins)
    time = starts[trial] + bin_width * (np.arange(len(trial)) - first[trial])
    x = np.empty((len(trial), len(recording.times)), jnp.result_type(float))
    clipped = np.zeros(len(recording.times), int)
    for unit, train in enumerate(recording.times):
        counts = _count_spikes(train, recording.intervals, bin_width, num_bins)
        x[:, unit] = counts >= threshold
        clipped[unit] = np.sum(counts > threshold)
    found = Words(
        as_array(x),
        time,
        trial,
        recording.labels,
        recording.names,
        bin_width,
        clipped,
    )
    _warn_of_oddities(found)
    return found


def words_from_counts(
    counts: ArrayLike,
    *,
    bin_width: float = 1.0,
    threshold: int = 1,
    trial: ArrayLike | None = None,
    names: Sequence[str] | None = None,
) -> Words:
    """Return the binary words of a table that is already binned.

    Args:
        counts: spike counts, or ones and zeros, `(row, unit)`.
        bin_width: width of a bin.
        threshold: number of spikes in a bin that makes a unit active.
        trial: label of the trial of each row; rows of a trial must be adjacent and in
            order. None for a single trial.
        names: names of the units; None for numbers.

    >>> words_from_counts([[0, 1], [1, 0]], trial=["left", "right"]).x.tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    check_count("threshold", threshold)
    counts = _checked_counts(counts)
    labels = np.zeros(len(counts), int) if trial is None else np.asarray(trial)
    if labels.shape != (len(counts),):
        raise ValueError(
            f"trial must have one label for each of {len(counts)} rows, got shape "
            f"{labels.shape}"
        )
    is_first = np.append(True, labels[1:] != labels[:-1])
    index = np.cumsum(is_first) - 1
    first = np.flatnonzero(is_first)
    if len(set(labels[first].tolist())) < len(first):
        raise ValueError(
            "rows of a trial must be adjacent, got a label that returns after another"
        )
    found = Words(
        as_array(counts >= threshold, jnp.result_type(float)),
        bin_width * (np.arange(len(counts)) - first[index]),
        index,
        labels[first],
        check_names(names, counts.shape[1]),
        bin_width,
        np.sum(counts > threshold, axis=0),
    )
    _warn_of_oddities(found)
    return found


def join(parts: Sequence[Words]) -> Words:
    """Join the words of several recordings of the same units, such as those of trials.

    >>> left, right = (words_from_counts([[0, 1], [1, 0]]) for _ in range(2))
    >>> both = join([left, right])
    >>> both.x.shape, both.trial.tolist()
    ((4, 2), [0, 0, 1, 1])
    """
    if not parts:
        raise ValueError("parts must hold at least one Words, got none")
    first = parts[0]
    for part in parts:
        if (part.names, part.bin_width) != (first.names, first.bin_width):
            raise ValueError(
                "parts must have the same units and the same bin_width, got "
                f"{len(first.names)} units in bins of {first.bin_width:g} and "
                f"{len(part.names)} in bins of {part.bin_width:g}"
            )
    offsets = np.cumsum([0, *(len(part.labels) for part in parts)])
    return first._replace(
        x=as_array(np.concatenate([np.asarray(part.x) for part in parts])),
        time=np.concatenate([part.time for part in parts]),
        trial=np.concatenate(
            [part.trial + offset for part, offset in zip(parts, offsets, strict=False)]
        ),
        labels=np.concatenate([part.labels for part in parts]),
        clipped=np.sum([part.clipped for part in parts], axis=0),
    )


def complete_history(words: Words, num_lags: int) -> np.ndarray:
    """Return the rows whose `num_lags` preceding words are of the same interval.

    >>> table = words_from_counts(np.eye(5), trial=[0, 0, 0, 1, 1])
    >>> complete_history(table, 1).tolist()
    [1, 2, 4]
    """
    check_count("num_lags", num_lags)
    index = np.flatnonzero(words.bin >= num_lags)
    if not index.size:
        raise ValueError(
            f"an interval must have more than num_lags={num_lags} words, got "
            f"{words.bin.max() + 1} at most"
        )
    return index


def choose_units(words: Words, units: Sequence[Any]) -> Words:
    """Return the words of some units, given by their names or indices.

    >>> table = words_from_counts([[0, 1, 1], [1, 0, 1]], names=["a", "b", "c"])
    >>> choose_units(table, ["c", "a"]).x.tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    unknown = [unit for unit in units if isinstance(unit, str)]
    unknown = [unit for unit in unknown if unit not in words.names]
    if unknown:
        raise ValueError(f"units must be among {words.names}, got {unknown[0]!r}")
    index = [words.names.index(u) if isinstance(u, str) else int(u) for u in units]
    names = check_names([words.names[i] for i in index], len(index))
    x = as_array(np.asarray(words.x)[:, index])
    return words._replace(x=x, names=names, clipped=words.clipped[index])


def drop_silent(words: Words) -> Words:
    """Return the words without the units that are never active.

    >>> from probjax.data.spikes import words_from_counts
    >>> import warnings
    >>> with warnings.catch_warnings(action="ignore"):
    ...     table = words_from_counts([[0, 1, 0], [1, 0, 0]])
    >>> drop_silent(table).names
    ('0', '1')
    """
    return choose_units(words, np.flatnonzero(np.asarray(words.x).any(0)).tolist())


def _count_spikes(train, intervals, bin_width, num_bins):
    """Count the spikes of one unit in every bin of every interval."""
    starts, ends = intervals.T
    interval = np.searchsorted(starts, train, side="right") - 1
    inside = (interval >= 0) & (train < ends[interval])
    interval, train = interval[inside], train[inside]
    number = np.floor((train - starts[interval]) / bin_width + ROUNDING).astype(int)
    complete = number < num_bins[interval]
    row = (np.cumsum(num_bins) - num_bins)[interval] + number
    return np.bincount(row[complete], minlength=num_bins.sum())


def _checked_counts(counts):
    counts = np.asarray(counts)
    if counts.ndim != 2 or not counts.size:
        raise ValueError(
            f"counts must be a table (row, unit), got shape {counts.shape}"
        )
    if counts.dtype.kind not in "buif" or not (counts == np.round(counts)).all():
        raise ValueError("counts must be whole numbers, got others")
    if counts.min() < 0:
        raise ValueError(f"counts must not be negative, got {counts.min():g}")
    return counts


def _warn_of_oddities(found):
    """Warn of silent units, of silent intervals, and of many clipped counts."""
    x = np.asarray(found.x)
    silent = np.flatnonzero(~x.any(0))
    if silent.size:
        warn(
            f"{silent.size} of {x.shape[1]} units are never active "
            f"({_listed([found.names[i] for i in silent])}), so their biases have no "
            "finite estimate; try spikes.drop_silent"
        )
    active = np.bincount(found.trial, x.any(1), minlength=len(found.labels))
    empty = np.flatnonzero(active == 0)
    if empty.size:
        warn(
            f"{empty.size} of {len(found.labels)} intervals have no active unit "
            f"({_listed(found.labels[empty])}), as if nothing was recorded there; "
            "leave out intervals that were not recorded"
        )
    share = found.clipped.sum() / max(x.sum(), 1)
    if share > MOST_CLIPPED:
        warn(
            f"{share:.0%} of the ones stand for more spikes than the threshold, which "
            "a binary word does not show; try a smaller bin_width"
        )


def _listed(items):
    """Return the first few items as text."""
    shown = ", ".join(map(str, items[:MOST_LISTED]))
    return shown + (", ..." if len(items) > MOST_LISTED else "")
