import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from probjax.data import spikes


def table(rows=60, units=5, trials=4, seed=0):
    """Words of some trials, with different rates of all units."""
    generator = np.random.default_rng(seed)
    x = generator.random((rows, units)) < np.linspace(0.2, 0.7, units)
    return spikes.words_from_counts(x, trial=np.arange(rows) * trials // rows)


def brute_force(trains, intervals, width, threshold):
    """Words by a loop over bins, edges in rational numbers of ms."""
    rows, times, trials = [], [], []
    for number, (start, end) in enumerate(intervals):
        for left in range(start, end - width + 1, width):
            inside = [sum(left <= t < left + width for t in train) for train in trains]
            rows.append([count >= threshold for count in inside])
            times.append(left)
            trials.append(number)
    return np.array(rows, float), np.array(times), np.array(trials)


@pytest.mark.parametrize("threshold", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_words_are_those_of_a_loop_over_bins(seed, threshold):
    # Spikes on a grid of 1 ms, many of them on edges of bins, with times in seconds.
    generator = np.random.default_rng(seed)
    trains = [np.sort(generator.integers(0, 3000, size)) for size in (500, 90, 40)]
    intervals = [(13, 700), (700, 1011), (1500, 2900)]
    session = spikes.recording(
        [train / 1000 for train in trains], intervals=np.array(intervals) / 1000
    )
    with warnings.catch_warnings(action="ignore"):
        found = spikes.words(session, bin_width=0.007, threshold=threshold)
    x, times, trials = brute_force(trains, intervals, 7, threshold)
    assert_array_equal(found.x, x)
    assert_array_equal(found.trial, trials)
    assert_allclose(1000 * found.time, times, atol=1e-9)


def test_no_word_extends_over_the_border_of_an_interval():
    train = [0.1, 0.95, 1.05]  # 0.95 is in an incomplete bin of the first interval
    session = spikes.recording([train], intervals=[[0, 1], [1, 2]])
    found = spikes.words(session, bin_width=0.4)
    assert_array_equal(found.time, [0, 0.4, 1, 1.4])
    assert_array_equal(found.x[:, 0], [1, 0, 1, 0])
    whole = spikes.recording([[0.1, 0.95, 1.25]], intervals=[0, 2])
    assert_array_equal(spikes.words(whole, bin_width=0.4).x[:, 0], [1, 0, 1, 1, 0])


def test_intervals_are_sorted_with_their_labels():
    session = spikes.recording(
        [[0.5, 2.5, 3.5]], intervals=[[2, 4], [0, 1]], labels=["late", "early"]
    )
    found = spikes.words(session, bin_width=1.0)
    assert found.labels[found.trial].tolist() == ["early", "late", "late"]


GOOD = {"times": [[0.1, 0.2], [0.3]], "intervals": [[0.0, 1.0], [1.0, 2.0]]}
BAD_RECORDINGS = [
    ({"intervals": [[0, 1.5], [1, 2]]}, "intervals must not overlap, got 0 to 1.5 and"),
    ({"intervals": [[1, 2], [0, 3]]}, "must not overlap, got 0 to 3 and 1 to 2"),
    ({"intervals": [2, 1]}, "intervals must end after they start, got 2 to 1"),
    ({"intervals": [0, np.inf]}, "intervals must be finite"),
    ({"intervals": [0, 1, 2]}, r"an array \(trial, 2\), got shape \(3,\)"),
    ({"intervals": [5, 6]}, "lie in the intervals, .* 5 to 6, got spikes from 0.1 to"),
    ({"labels": ["a"]}, "one entry for each of 2 intervals"),
    ({"times": [[0.2, 0.1], []]}, "unit 0 must be in ascending order, got 0.1 after"),
    ({"times": [[0.2, np.nan], []]}, "unit 0 must be finite"),
    ({"times": [["a"], []]}, "unit 0 must be an array of numbers"),
    ({"times": [0.1, 0.2]}, r"one array of spike times for each unit, got shape \(\)"),
    ({"times": []}, "at least one unit, got none"),
    ({"times": [[], []]}, "at least one spike, got none"),
    ({"names": ["a", "a"]}, "names must differ, got 'a' more than once"),
    ({"names": ["a"]}, "one entry for each of 2 units, got 1"),
    ({"times": {"a": [0.1]}, "names": ["a"]}, "names must be None"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_RECORDINGS)
def test_bad_recordings_are_refused(changes, message):
    spikes.recording(**GOOD)
    with pytest.raises(ValueError, match=message):
        spikes.recording(**(GOOD | changes))


def test_bins_that_do_not_fit_are_refused():
    session = spikes.recording([[0.1]], intervals=[[0, 1], [2, 2.2]])
    for width in (0, -0.02, np.nan):
        with pytest.raises(ValueError, match="bin_width must be positive"):
            spikes.words(session, bin_width=width)
    with pytest.raises(ValueError, match="0.5 and an interval of length 0.2"):
        spikes.words(session, bin_width=0.5)
    with pytest.raises(ValueError, match="threshold must be an integer of at least 1"):
        spikes.words(session, bin_width=0.1, threshold=0)


def test_silent_units_and_intervals_are_reported():
    session = spikes.recording({"a": [0.5], "b": []}, intervals=[[0, 1], [1, 2]])
    with pytest.warns() as warned:
        found = spikes.words(session, bin_width=0.5)
    assert [str(each.message).split(", so")[0].split(", as")[0] for each in warned] == [
        "1 of 2 units are never active (b)",
        "1 of 2 intervals have no active unit (1)",
    ]
    assert all(each.filename == __file__ for each in warned)
    assert spikes.drop_silent(found).names == ("a",)


def test_counts_above_the_threshold_are_reported():
    session = spikes.recording([[0.1, 0.2, 1.5]], intervals=[0, 2])
    with pytest.warns(UserWarning, match="50% of the ones stand for more spikes"):
        found = spikes.words(session, bin_width=1.0)
    assert "50.0% of the ones stand for more" in found.describe()
    assert found.clipped.tolist() == [1]
    twice = spikes.recording([np.repeat([0.1, 1.5], 2)], intervals=[0, 2])
    assert not spikes.words(twice, bin_width=1.0, threshold=2).clipped.any()


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ([[1, -1]], {}, "counts must not be negative, got -1"),
        ([[1, 0.5]], {}, "counts must be whole numbers"),
        ([[1, np.nan]], {}, "counts must be whole numbers"),
        ([["a", "b"]], {}, "counts must be whole numbers"),
        ([1, 0], {}, r"a table \(row, unit\), got shape \(2,\)"),
        ([[1], [0]], {"trial": [0]}, "one label for each of 2 rows"),
        ([[1], [0], [1]], {"trial": [0, 1, 0]}, "a label that returns after another"),
        ([[1, 0]], {"names": ["a"]}, "one entry for each of 2 units, got 1"),
    ],
)
def test_bad_tables_are_refused(counts, options, message):
    with pytest.raises(ValueError, match=message):
        spikes.words_from_counts(counts, **options)


def test_trials_whose_times_restart_can_be_joined():
    trials = [[[0.1], [0.6]], [[0.7], [0.2]]]
    parts = [
        spikes.words(
            spikes.recording(times, intervals=[0, 1], labels=[i]), bin_width=0.5
        )
        for i, times in enumerate(trials)
    ]
    both = spikes.join(parts)
    assert_array_equal(both.x, [[1, 0], [0, 1], [0, 1], [1, 0]])
    assert_array_equal(both.trial, [0, 0, 1, 1])
    assert_array_equal(both.labels, [0, 1])
    with pytest.raises(ValueError, match="same units and the same bin_width"):
        spikes.join([parts[0], parts[1]._replace(bin_width=0.1)])
    with pytest.raises(ValueError, match="at least one Words"):
        spikes.join([])


def test_units_are_chosen_by_name_or_index():
    words = table()
    for units in ([3, 1], ["3", "1"], [3, "1"], np.array([3, 1])):
        found = spikes.choose_units(words, units)
        assert found.names == ("3", "1")
        assert_array_equal(found.x, words.x[:, np.array([3, 1])])
    with pytest.raises(ValueError, match="got 'x'"):
        spikes.choose_units(words, ["x"])
    with pytest.raises(ValueError, match="names must differ"):
        spikes.choose_units(words, [1, 1])


# Minimal classes with the attributes that the readers use.


class Seconds(float):
    def rescale(self, unit):
        assert unit == "s"
        return self


class Train:
    def __init__(self, times, t_stop, t_start=0.0, name=None):
        self.magnitude, self.name = np.asarray(times), name
        self.t_start, self.t_stop = Seconds(t_start), Seconds(t_stop)

    def rescale(self, unit):
        assert unit == "s"
        return self


class Segment:
    def __init__(self):
        self.spiketrains = []


class Block:
    def __init__(self):
        self.segments = []


class StandInNeo:
    SpikeTrain, Segment, Block = Train, Segment, Block


def real_or_stand_in(name, stand_in, kind, monkeypatch):
    if kind == "installed":
        return pytest.importorskip(name)
    monkeypatch.setitem(__import__("sys").modules, name, stand_in)
    return stand_in


KINDS = pytest.mark.parametrize("kind", ["installed", "stand-in"])


@KINDS
def test_spike_trains_of_neo(kind, monkeypatch):
    neo = real_or_stand_in("neo", StandInNeo, kind, monkeypatch)
    if kind == "installed":
        ms = pytest.importorskip("quantities").ms
        first = neo.SpikeTrain([100, 600] * ms, t_stop=900 * ms, name="a")
        second = neo.SpikeTrain([700] * ms, t_start=100 * ms, t_stop=1000 * ms)
    else:
        first, second = Train([0.1, 0.6], 0.9, name="a"), Train([0.7], 1.0, 0.1)
    segment, block = neo.Segment(), neo.Block()
    segment.spiketrains.append(first)
    segment.spiketrains.append(second)
    block.segments.append(segment)
    for given in (segment, block, [first, second]):
        found = spikes.from_neo(given)
        assert found.names == ("a", "1")
        assert_allclose(found.intervals, [[0.1, 0.9]])
        assert_allclose(found.times[0], [0.1, 0.6])
    assert_allclose(spikes.from_neo(block, intervals=[0, 0.5]).intervals, [[0, 0.5]])
    block.segments.append(neo.Segment())
    with pytest.raises(ValueError, match="one neo.Segment, got a Block of 2"):
        spikes.from_neo(block)
    with pytest.raises(ValueError, match="list of neo.SpikeTrain, got ndarray"):
        spikes.from_neo([np.ones(2)])


class IntervalSet:
    def __init__(self, start, end):
        self.values = np.stack([start, end], 1).astype(float)


class Ts:
    def __init__(self, times):
        self._times = np.array(times)

    def times(self):
        return self._times


class TsGroup(dict):
    def __init__(self, trains, time_support):
        super().__init__(trains)
        self.time_support = time_support


class StandInPynapple:
    IntervalSet, Ts, TsGroup = IntervalSet, Ts, TsGroup


@KINDS
def test_groups_of_pynapple(kind, monkeypatch):
    nap = real_or_stand_in("pynapple", StandInPynapple, kind, monkeypatch)
    support = nap.IntervalSet([0, 2], [1, 3])
    with warnings.catch_warnings(action="ignore"):
        trains = {3: nap.Ts([0.1, 0.5]), 7: nap.Ts([0.2, 2.4])}
    found = spikes.from_pynapple(nap.TsGroup(trains, time_support=support))
    assert found.names == ("3", "7")
    assert_allclose(found.intervals, [[0, 1], [2, 3]])
    assert_allclose(found.times[1], [0.2, 2.4])
    group = nap.TsGroup(trains, time_support=support)
    part = spikes.from_pynapple(group, intervals=nap.IntervalSet([0.2], [0.6]))
    assert_allclose(part.intervals, [[0.2, 0.6]])
    with pytest.raises(ValueError, match="pynapple.TsGroup, got a dict"):
        spikes.from_pynapple({})


class Units:
    def __init__(self):
        self.trains, self.observed, self.colnames = [], [], ("spike_times",)

    @property
    def id(self):
        return list(range(len(self.trains)))

    def __len__(self):
        return len(self.trains)

    def get_unit_spike_times(self, index):
        return self.trains[index]

    def get_unit_obs_intervals(self, index):
        return self.observed[index]


class TimeIntervals(dict):
    pass


class NWBFile:
    def __init__(self, *description):
        self.units, self.trials = None, TimeIntervals(start_time=[], stop_time=[])

    def add_unit(self, spike_times, obs_intervals=None):
        self.units = self.units or Units()
        self.units.trains.append(spike_times)
        if obs_intervals is not None:
            self.units.observed.append(np.array(obs_intervals))
            self.units.colnames = ("spike_times", "obs_intervals")

    def add_trial(self, start_time, stop_time):
        self.trials["start_time"].append(start_time)
        self.trials["stop_time"].append(stop_time)


class StandInPynwb:
    NWBFile = NWBFile

    class epoch:  # noqa: N801
        TimeIntervals = TimeIntervals


@KINDS
def test_files_of_nwb(kind, monkeypatch):
    pynwb = real_or_stand_in("pynwb", StandInPynwb, kind, monkeypatch)
    from datetime import UTC, datetime

    def new_file():
        return pynwb.NWBFile("session", "1", datetime(2026, 1, 1, tzinfo=UTC))

    observed, file = [[0.0, 1.0], [2.0, 3.0]], new_file()
    file.add_unit(spike_times=[0.1, 0.2], obs_intervals=observed)
    file.add_unit(spike_times=[2.5], obs_intervals=observed)
    file.add_trial(start_time=0.0, stop_time=0.5)
    found = spikes.from_nwb(file)
    assert found.names == ("0", "1")
    assert_allclose(found.intervals, observed)
    assert_allclose(found.times[1], [2.5])
    trials = spikes.from_nwb(file, intervals=file.trials, labels=["go"])
    assert_allclose(trials.intervals, [[0, 0.5]])
    assert trials.labels.tolist() == ["go"]
    unobserved = new_file()
    with pytest.raises(ValueError, match="units with spike times, got none"):
        spikes.from_nwb(unobserved)
    unobserved.add_unit(spike_times=[0.1, 0.2])
    with pytest.raises(ValueError, match="try intervals=file.trials"):
        spikes.from_nwb(unobserved)
    with pytest.raises(ValueError, match="open pynwb.NWBFile, got a str"):
        spikes.from_nwb("session.nwb")


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (spikes.from_neo, "neo"),
        (spikes.from_pynapple, "pynapple"),
        (spikes.from_nwb, "pynwb"),
    ],
)
def test_a_package_that_is_not_installed_is_named(read, name, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(ImportError, match=f"requires {name}: pip install {name}"):
        read([])
