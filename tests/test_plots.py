import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

from probjax import hopfield, plots  # noqa: E402
from probjax.goodness import Comparison  # noqa: E402


def test_agreement_draws_every_entry_on_the_axes_given():
    _, ax = pyplot.subplots()
    truth, estimate = np.arange(4.0).reshape(2, 2), np.ones((2, 2))
    assert plots.agreement(truth, estimate, ax=ax, label="fit") is ax
    drawn = ax.collections[0].get_offsets()
    np.testing.assert_array_equal(drawn, np.stack([truth.ravel(), np.ones(4)], axis=1))
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [0, 3])
    pyplot.close()


def test_comparison_draws_a_bar_of_one_standard_error_each_way():
    _, ax = pyplot.subplots()
    observed, expected = np.array([0.2, 0.5]), np.array([0.3, 0.4])
    stderr = np.array([0.1, 0.05])
    found = Comparison(observed, expected, stderr, (observed - expected) / stderr)
    assert plots.comparison(found, ax=ax) is ax
    points, bars = ax.collections
    drawn = points.get_offsets()
    np.testing.assert_array_equal(drawn, np.stack([expected, observed], axis=1))
    ends = np.stack([observed - stderr, observed + stderr], axis=1)
    np.testing.assert_allclose([bar[:, 1] for bar in bars.get_segments()], ends)
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [0.2, 0.5])
    pyplot.close()


def test_couplings_are_coloured_symmetrically_about_zero():
    ax = plots.couplings(np.array([[0.0, -3.0], [-3.0, 1.0]]))
    assert ax.images[0].get_clim() == (-3, 3)
    pyplot.close()


def test_capacity_draws_the_share_of_patterns_against_their_number():
    _, ax = pyplot.subplots()
    found = hopfield.Capacity(np.array([2, 8]), np.array([1, 0.5]), np.array([1, 0]))
    assert plots.capacity(found, ax=ax, label="flow", color=plots.GREY) is ax
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_xydata(), [[2, 1], [8, 0.5]])
    assert line.get_label() == "flow"
    assert line.get_color() == plots.GREY
    # Shares of 0 and of 1 are seen whole.
    assert ax.get_ylim()[0] < 0
    assert ax.get_ylim()[1] > 1
    pyplot.close()


def test_recovery_draws_exact_shares_against_flipped_bits():
    _, ax = pyplot.subplots()
    exact, bits = np.array([1, 0.25]), np.array([1, 0.75])
    found = hopfield.Recovery(np.array([0, 4]), exact, bits)
    assert plots.recovery(found, ax=ax, label="m = 2", marker="s") is ax
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_xydata(), [[0, 1], [4, 0.25]])
    assert line.get_label() == "m = 2"
    assert line.get_marker() == "s"
    pyplot.close()
