import matplotlib
import numpy as np
import pytest

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


def shown(ax):
    return np.ma.filled(ax.images[0].get_array(), np.nan)


def test_receptive_fields_lie_row_by_row_each_with_its_own_contrast():
    _, ax = pyplot.subplots()
    filters = np.array([[1.0, 2, -4, 0], [0, 0, 0, 0], [0.1, 0, 0, -0.05]])
    assert plots.receptive_fields(filters, columns=2, ax=ax) is ax
    gap = np.nan
    expected = [
        [gap, gap, gap, gap, gap, gap, gap],
        [gap, 0.25, 0.5, gap, 0, 0, gap],
        [gap, -1, 0, gap, 0, 0, gap],
        [gap, gap, gap, gap, gap, gap, gap],
        [gap, 1, 0, gap, gap, gap, gap],
        [gap, 0, -0.5, gap, gap, gap, gap],
        [gap, gap, gap, gap, gap, gap, gap],
    ]
    np.testing.assert_allclose(shown(ax), expected)
    # Grey is zero for all.
    assert ax.images[0].get_clim() == (-1, 1)
    pyplot.close()


def test_receptive_fields_need_not_be_square():
    ax = plots.receptive_fields(np.ones((5, 6)), shape=(2, 3))
    assert shown(ax).shape == (2 * 3 + 1, 3 * 4 + 1)
    pyplot.close()


def test_images_are_white_where_nothing_is_and_black_at_one():
    _, ax = pyplot.subplots()
    rows = np.array([[0.0, 1, 0.5, 0.25], [1, 1, 0, 0]])
    assert plots.images(rows, ax=ax) is ax
    gap = np.nan
    expected = [
        [gap, gap, gap, gap, gap, gap, gap],
        [gap, 1, -1, gap, -1, -1, gap],
        [gap, 0, 0.5, gap, 1, 1, gap],
        [gap, gap, gap, gap, gap, gap, gap],
    ]
    np.testing.assert_allclose(shown(ax), expected)
    assert ax.images[0].get_clim() == (-1, 1)
    assert ax.images[0].get_cmap().name == "gray"
    pyplot.close()


def test_groupings_fall_in_strength_from_left_to_right():
    filters = np.eye(4)[:3]
    weights = np.array([[0.5, -1], [2, 0], [-1, -4]])
    ax = plots.groupings(filters, weights, columns=2)
    tiles = shown(ax)[:-1, :-1].reshape(2, 3, 2, 3).swapaxes(1, 2)[:, :, 1:, 1:]
    expected = [[1 * filters[1], 0.5 * filters[2]], [1 * filters[2], 0.25 * filters[0]]]
    np.testing.assert_allclose(tiles.reshape(2, 2, 4), expected)
    assert ax.images[0].get_clim() == (-1, 1)
    pyplot.close()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.receptive_fields(np.ones((3, 5))), "5 sites.*2 x 2 pixels"),
        (lambda: plots.receptive_fields(np.ones((3, 6)), shape=(2, 2)), "give shape="),
        (lambda: plots.receptive_fields(np.ones(4)), r"\(filter, site\), got \(4,\)"),
        (lambda: plots.receptive_fields(np.full((1, 4), np.nan)), "must be finite"),
        (lambda: plots.images(np.full((1, 4), 2.0)), "levels from 0 to 1, got 2 to 2"),
        (lambda: plots.images(np.ones(4)), r"rows must be finite \(row, site\)"),
        (lambda: plots.receptive_fields(np.ones((1, 4)), columns=0), "columns must be"),
        (lambda: plots.groupings(np.ones((3, 4)), np.ones((2, 3))), r"got.*\(2, 3\)"),
        (lambda: plots.groupings(np.ones((3, 4)), np.ones(3)), r"for 3 filters"),
        (lambda: plots.groupings(np.ones((1, 4)), np.full((1, 1), np.nan)), "finite"),
    ],
)
def test_what_is_no_set_of_images_is_not_drawn(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
