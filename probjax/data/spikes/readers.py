"""Recordings from objects of neo, pynapple and pynwb, which are imported on call."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from probjax.data.spikes.recordings import Recording, recording
from probjax.types import ArrayLike


def from_neo(
    segment: Any,
    *,
    intervals: ArrayLike | None = None,
    labels: Sequence[Any] | None = None,
) -> Recording:
    """Return the spike trains of neo as a recording, in seconds.

    Segments of a block often restart at time 0. Read one segment at a time, and `join`
    the words of all.

    Args:
        segment: a `neo.Segment`, a `neo.Block` of one segment, or a list of
            `neo.SpikeTrain`, whose names are those of the units.
        intervals: as in `recording`; None for the time in which all trains were
            recorded, from `t_start` to `t_stop`.
        labels: label of each interval, as in `recording`.

    >>> import neo  # doctest: +SKIP
    >>> segment = neo.io.get_io("session.plx").read_segment()  # doctest: +SKIP
    >>> from_neo(segment).names  # doctest: +SKIP
    ('unit 1', 'unit 2')
    """
    neo = _load("neo", "from_neo")
    if isinstance(segment, neo.Block):
        if len(segment.segments) != 1:
            raise ValueError(
                f"segment must be one neo.Segment, got a Block of "
                f"{len(segment.segments)}; read one segment at a time and use "
                "spikes.join"
            )
        segment = segment.segments[0]
    trains = segment.spiketrains if isinstance(segment, neo.Segment) else segment
    trains = list(trains)
    if not trains or not all(isinstance(each, neo.SpikeTrain) for each in trains):
        found = ", ".join({type(each).__name__ for each in trains}) or "nothing"
        raise ValueError(
            f"segment must be a neo.Segment or a list of neo.SpikeTrain, got {found}"
        )
    if intervals is None:
        start = max(float(train.t_start.rescale("s")) for train in trains)
        end = min(float(train.t_stop.rescale("s")) for train in trains)
        intervals = np.array([start, end])
    named = [str(train.name or number) for number, train in enumerate(trains)]
    times = [train.rescale("s").magnitude for train in trains]
    return recording(times, names=named, intervals=intervals, labels=labels)


def from_pynapple(
    group: Any, *, intervals: Any = None, labels: Sequence[Any] | None = None
) -> Recording:
    """Return a `pynapple.TsGroup` as a recording, in seconds.

    Args:
        group: spike times of the units, whose keys become their names.
        intervals: a `pynapple.IntervalSet`, or as in `recording`; None for the time
            support of the group.
        labels: label of each interval, as in `recording`.

    >>> import pynapple  # doctest: +SKIP
    >>> session = pynapple.load_file("session.nwb")  # doctest: +SKIP
    >>> from_pynapple(session["units"]).names  # doctest: +SKIP
    ('0', '1')
    """
    pynapple = _load("pynapple", "from_pynapple")
    if not isinstance(group, pynapple.TsGroup):
        raise ValueError(
            f"group must be a pynapple.TsGroup, got a {type(group).__name__}"
        )
    intervals = group.time_support if intervals is None else intervals
    if isinstance(intervals, pynapple.IntervalSet):
        intervals = intervals.values
    times = {str(key): group[key].times() for key in group.keys()}  # noqa: SIM118
    return recording(times, intervals=intervals, labels=labels)


def from_nwb(
    file: Any, *, intervals: Any = None, labels: Sequence[Any] | None = None
) -> Recording:
    """Return the units of a `pynwb.NWBFile` as a recording, in seconds.

    Args:
        file: an open file, whose unit ids become names.
        intervals: a table of the file, such as `file.trials`, or as in `recording`.
            None for the intervals in which all units were observed, if the file has
            them.
        labels: label of each interval, as in `recording`.

    >>> import pynwb  # doctest: +SKIP
    >>> file = pynwb.NWBHDF5IO("session.nwb").read()  # doctest: +SKIP
    >>> from_nwb(file, intervals=file.trials).names  # doctest: +SKIP
    ('0', '1')
    """
    pynwb = _load("pynwb", "from_nwb")
    if not isinstance(file, pynwb.NWBFile):
        raise ValueError(
            f"file must be an open pynwb.NWBFile, got a {type(file).__name__}; try "
            "pynwb.NWBHDF5IO(path).read()"
        )
    units = file.units
    if units is None or "spike_times" not in units.colnames:
        raise ValueError("file must have units with spike times, got none")
    if isinstance(intervals, pynwb.epoch.TimeIntervals):
        intervals = np.stack([intervals["start_time"][:], intervals["stop_time"][:]], 1)
    if intervals is None:
        intervals = _observed_intervals(units)
    times = [units.get_unit_spike_times(i) for i in range(len(units))]
    names = list(map(str, units.id[:]))
    return recording(times, names=names, intervals=intervals, labels=labels)


def _observed_intervals(units):
    """Return the intervals in which the units of an NWB file were observed."""
    if "obs_intervals" in units.colnames:
        observed = [units.get_unit_obs_intervals(i) for i in range(len(units))]
        if all(np.array_equal(each, observed[0]) for each in observed):
            return observed[0]
    raise ValueError(
        "intervals must be given, because the file has none that all units share; try "
        "intervals=file.trials"
    )


def _load(name, caller):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{caller} requires {name}: pip install {name}") from error
