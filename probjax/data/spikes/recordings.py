"""Recordings: sorted spike times of units, and the intervals that were observed.

Times are in any unit, which is also that of the intervals and of the width of bins. An
interval is a trial or a stretch of a session. Spikes outside the intervals are ignored.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from probjax.types import ArrayLike, Float


class Recording(NamedTuple):
    """Spike times of several units; `recording` checks and builds one.

    >>> found = recording({"a": [0.1, 0.5], "b": [0.7]}, intervals=[0.0, 1.0])
    >>> found.names, found.intervals.tolist()
    (('a', 'b'), [[0.0, 1.0]])
    """

    times: tuple[Float[np.ndarray, " spike"], ...]
    """Spike times of each unit, in ascending order."""
    names: tuple[str, ...]
    """Name of each unit."""
    intervals: Float[np.ndarray, "trial 2"]
    """Start and end of each interval, in ascending order."""
    labels: np.ndarray
    """Label of each interval, such as the number or the condition of a trial."""


def recording(
    times: Mapping[str, ArrayLike] | Sequence[ArrayLike],
    *,
    intervals: ArrayLike,
    labels: Sequence[Any] | None = None,
    names: Sequence[str] | None = None,
) -> Recording:
    """Check the spike times of several units, and return them as a `Recording`.

    Args:
        times: one array of spike times for each unit, or a mapping from names to
            arrays. They must be in ascending order.
        intervals: start and end of the recording, or an array `(trial, 2)` of those of
            each trial. Intervals must not overlap.
        labels: label of each interval; None for their numbers.
        names: names of the units; None for the keys of a mapping, or for numbers.

    >>> trials = [[0.0, 1.0], [2.0, 3.0]]
    >>> recording([[0.2, 2.5], [0.1]], intervals=trials, labels=["left", "right"]).names
    ('0', '1')
    """
    if isinstance(times, Mapping):
        if names is not None:
            raise ValueError("names must be None if times is a mapping, got both")
        names, times = list(times), list(times.values())
    names = check_names(names, len(times))
    trains = tuple(map(_checked_times, times, names))
    bounds, label = _checked_intervals(intervals, labels)
    if not any(_count_inside(train, bounds) for train in trains):
        raise ValueError(_no_spikes(trains, bounds))
    return Recording(trains, names, bounds, label)


def check_names(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """Return one name for each of `count` units; raise if two are equal."""
    if count == 0:
        raise ValueError("there must be at least one unit, got none")
    given = tuple(map(str, range(count) if names is None else names))
    if len(given) != count:
        raise ValueError(
            f"names must have one entry for each of {count} units, got {len(given)}"
        )
    if len(set(given)) < count:
        twice = next(name for name in given if given.count(name) > 1)
        raise ValueError(f"names must differ, got {twice!r} more than once")
    return given


def _checked_times(times, name):
    """Return spike times of one unit as an array of float64."""
    try:
        train = np.asarray(times, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"times of unit {name} must be an array of numbers, got {times!r:.60}"
        ) from error
    if train.ndim != 1:
        raise ValueError(
            "times must be a list with one array of spike times for each unit, got "
            f"shape {train.shape} for unit {name}"
        )
    if not np.isfinite(train).all():
        raise ValueError(f"times of unit {name} must be finite, got NaN or infinity")
    falls = np.flatnonzero(np.diff(train) < 0)
    if falls.size:
        before, after = train[falls[0]], train[falls[0] + 1]
        raise ValueError(
            f"times of unit {name} must be in ascending order, got {after:g} after "
            f"{before:g}; sort them, or if times restart in every trial, make words of "
            "each trial and join them"
        )
    return train


def _checked_intervals(intervals, labels):
    """Return intervals in ascending order, with their labels."""
    found = np.atleast_2d(np.asarray(intervals, np.float64))
    if found.ndim != 2 or found.shape[1] != 2 or not len(found):
        raise ValueError(
            "intervals must be a start and an end, or an array (trial, 2), got shape "
            f"{np.shape(intervals)}"
        )
    if not np.isfinite(found).all():
        raise ValueError("intervals must be finite, got NaN or infinity")
    empty = np.flatnonzero(found[:, 0] >= found[:, 1])
    if empty.size:
        raise ValueError(
            f"intervals must end after they start, got {_text(found[empty[0]])}"
        )
    labels = np.arange(len(found)) if labels is None else np.asarray(labels)
    if labels.shape != (len(found),):
        raise ValueError(
            f"labels must have one entry for each of {len(found)} intervals, got shape "
            f"{labels.shape}"
        )
    order = np.argsort(found[:, 0], kind="stable")
    found, labels = found[order], labels[order]
    overlaps = np.flatnonzero(found[1:, 0] < found[:-1, 1])
    if overlaps.size:
        first = overlaps[0]
        raise ValueError(
            f"intervals must not overlap, got {_text(found[first])} and "
            f"{_text(found[first + 1])}"
        )
    return found, labels


def _count_inside(train, intervals):
    """Count the spikes of a train inside the intervals."""
    first, last = np.searchsorted(train, intervals.T)
    return int(np.sum(last - first))


def _no_spikes(trains, intervals):
    """Return the message for a recording without spikes in its intervals."""
    start, end = intervals[0, 0], intervals[-1, 1]
    spikes = np.concatenate(trains)
    if not spikes.size:
        return "times must hold at least one spike, got none"
    return (
        f"times must lie in the intervals, which are from {start:g} to {end:g}, got "
        f"spikes from {spikes.min():g} to {spikes.max():g}; use the same unit of time"
    )


def _text(interval):
    return f"{interval[0]:g} to {interval[1]:g}"
