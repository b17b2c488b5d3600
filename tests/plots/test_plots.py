from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot

from probjax import hopfield, ising, plots
from probjax.annealing import Annealed, Bracket, Estimate
from probjax.diagnostics.goodness import Comparison
from probjax.fitting.cross_validation import Validation
from probjax.fitting.path import RegularisationPath


def compared(observed, expected, stderr):
    observed, expected, stderr = map(np.asarray, (observed, expected, stderr))
    return Comparison(observed, expected, stderr, (observed - expected) / stderr)


def side(log_weights, log_z=0.0, ess=1.0):
    """What figures need of an `Annealed`."""
    weights = np.asarray(log_weights, float)
    return SimpleNamespace(log_weights=weights, log_z=log_z, ess=ess)


def a_path():
    coupling = np.array([[0.0, 0, 0], [0, 2, 0], [1, 3, 0]])
    params = ising.Params(np.ones((3, 3)), coupling)
    counts, strengths = np.array([0, 1, 2]), np.array([1.0, 0.1, 0.01])
    return RegularisationPath(strengths, params, np.ones(3), counts, np.ones(3, bool))


def a_validation():
    # The middle strength is best on one fold only, so the first is within noise.
    return Validation(np.array([[1.0, 2.0, 5.0], [3.0, 1.0, 5.0]]), a_path())


def annealed():
    return Annealed(*10 * [np.zeros(1)])


def test_agreement_draws_every_entry_on_the_axes_given():
    _, ax = pyplot.subplots()
    truth, estimate = np.arange(4.0).reshape(2, 2), np.ones((2, 2))
    assert plots.agreement(truth, estimate, ax=ax, label="fit") is ax
    drawn = ax.collections[0].get_offsets()
    np.testing.assert_array_equal(drawn, np.stack([truth.ravel(), np.ones(4)], axis=1))
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [0, 3])


def test_the_line_of_equality_spans_the_truth_and_not_outliers():
    ax = plots.agreement([-1.0, 2.0], [50.0, np.nan])
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[-1, -1], [2, 2]])


def test_crosses_are_seen_and_dots_have_no_edge():
    _, ax = pyplot.subplots()
    plots.agreement([0, 1], [0, 1], ax=ax, marker="x", size=9)
    plots.agreement([0, 1], [0, 1], ax=ax)
    crosses, dots = ax.collections
    assert crosses.get_linewidths() == [1]
    assert dots.get_linewidths() == [0]
    assert crosses.get_sizes() == [9]


def test_comparison_has_a_band_of_two_standard_errors_about_equality():
    _, ax = pyplot.subplots()
    observed, expected, stderr = [0.2, 0.5], [0.3, 0.4], np.array([0.1, 0.05])
    found = compared(observed, expected, stderr)
    assert plots.comparison(found, ax=ax, label="pairs", color=plots.ORANGE) is ax
    plots.comparison(found, ax=ax, label="triples", marker="^")
    band, points = ax.collections[:2]
    drawn = points.get_offsets()
    np.testing.assert_array_equal(drawn, np.stack([expected, observed], axis=1))
    ends = np.stack([expected - 2 * stderr, expected + 2 * stderr], axis=1)
    np.testing.assert_allclose([each[:, 1] for each in band.get_segments()], ends)
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [0.3, 0.4])
    # The band is explained once.
    said = ax.get_legend_handles_labels()[1]
    assert sorted(said) == ["2 standard errors", "pairs", "triples"]


def test_population_counts_are_shown_as_far_as_seen_or_expected():
    _, ax = pyplot.subplots()
    observed, expected = [0.6, 0.3, 0.1, 0, 0], [0.7, 0.15, 0, 0.15, 1e-4]
    found = compared(observed, expected, np.full(5, 0.01))
    assert plots.population_count(found, ax=ax, label="Ising") is ax
    lower = found._replace(expected=np.array([0.5, 0.3, 0.2, 0, 0]))
    assert plots.population_count(lower, ax=ax, label="alone", linestyle="--") is ax
    data, first, second = ax.lines
    np.testing.assert_array_equal(data.get_xydata(), [[0, 0.6], [1, 0.3], [2, 0.1]])
    points = [[0, 0.7], [1, 0.15], [2, np.nan], [3, 0.15]]
    np.testing.assert_array_equal(first.get_xydata(), points)
    assert second.get_linestyle() == "--"
    band = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(band[band[:, 0] == 0, 1].max(), 0.72)
    np.testing.assert_allclose(band[band[:, 0] == 0, 1].min(), 0.68)
    assert ax.get_ylim() == (0.1 / 4, 1.4)


def test_estimates_are_ordered_by_the_truth_and_have_bars_of_two_errors():
    truth, values = np.array([3.0, 1, 2]), np.array([2.5, 1.5, 2.7])
    stderr = np.array([0.1, 0.2, np.inf])
    ax = plots.estimates(values, stderr, truth=truth)
    line, dots, ring = ax.lines
    np.testing.assert_array_equal(line.get_ydata(), [1, 2, 3])
    np.testing.assert_array_equal(dots.get_xydata(), [[0, 1.5], [2, 2.5]])
    np.testing.assert_array_equal(ring.get_xydata(), [[1, 2.7]])
    bars = ax.collections[0].get_segments()
    np.testing.assert_allclose([bar[:, 1] for bar in bars], [[1.1, 1.9], [2.3, 2.7]])


def test_what_the_data_do_not_hold_is_named_once():
    _, ax = pyplot.subplots()
    for label in ("first", "second"):
        plots.estimates([1.0, 2], [0.1, np.inf], ax=ax, label=label)
    said = sorted(ax.get_legend_handles_labels()[1])
    assert said == ["first", "not determined by the data", "second"]


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: plots.agreement([0, 1], [0, 1], ax=ax),
        lambda ax: plots.comparison(compared([0.1], [0.2], [0.1]), ax=ax),
        lambda ax: plots.population_count(compared([0.1], [0.2], [0.1]), ax=ax),
        lambda ax: plots.estimates([1.0], [0.1], ax=ax),
        lambda ax: plots.couplings(np.eye(2), ax=ax),
        lambda ax: plots.path(a_path(), ax=ax),
        lambda ax: plots.cross_validation(a_validation(), ax=ax),
        lambda ax: plots.weights(side([0, 1]), ax=ax),
        lambda ax: plots.convergence([1], [1], ax=ax),
        lambda ax: plots.autocovariance(jnp.eye(2), ax=ax),
        lambda ax: plots.capacity(hopfield.Capacity(*np.ones((3, 2))), ax=ax),
        lambda ax: plots.recovery(hopfield.Recovery(*np.ones((3, 2))), ax=ax),
    ],
)
def test_axes_keep_the_names_they_have(draw):
    _, (named, bare) = pyplot.subplots(1, 2)
    named.set(xlabel="mine", ylabel="my own")
    draw(named)
    draw(bare)
    assert (named.get_xlabel(), named.get_ylabel()) == ("mine", "my own")
    assert bare.get_xlabel()
    assert bare.get_ylabel()


def test_estimates_without_a_truth_are_in_their_own_order():
    ax = plots.estimates([[2.0, -1], [0, 1]], np.ones((2, 2)))
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [-1, 0, 1, 2])


def test_couplings_are_coloured_symmetrically_about_zero():
    ax = plots.couplings(np.array([[np.nan, -3.0], [-3.0, 9.0]]), label="J")
    assert ax.images[0].get_clim() == (-3, 3)
    assert ax.figure.axes[1].get_ylabel() == "J"
    assert plots.couplings(np.zeros((2, 3))).images[0].get_clim() == (-1, 1)


def test_excitation_is_red_and_the_diagonal_is_left_out():
    params = ising.from_matrix([[9.0, -0.5, 0], [-0.5, 9, 0.25], [0, 0.25, 9]])
    ax = plots.couplings(ising.to_fields(params).coupling)
    image = ax.images[0]
    red, _, blue, _ = image.to_rgba(image.get_array())[0, 1]
    assert red > blue
    red, _, blue, _ = image.to_rgba(image.get_array())[1, 2]
    assert blue > red
    assert image.get_clim() == (-1, 1)
    np.testing.assert_array_equal(image.get_array().mask, np.eye(3, dtype=bool))
    assert "red excites" in ax.figure.axes[1].get_ylabel()


def test_square_weights_between_two_groups_keep_their_diagonal():
    image = plots.couplings(np.array([[1.0, 2], [3, 4]])).images[0]
    np.testing.assert_array_equal(image.get_array(), [[1, 2], [3, 4]])


def test_a_path_has_a_line_for_each_penalised_parameter():
    ax = plots.path(a_path())
    drawn = [line.get_ydata() for line in ax.lines[1:]]
    np.testing.assert_array_equal(drawn, np.asarray(a_path().params.coupling).T)
    assert ax.xaxis_inverted()
    top = ax.child_axes[0]
    ax.figure.canvas.draw()
    assert [tick.get_text() for tick in top.get_xticklabels()] == ["0", "1", "2"]


def test_a_path_can_be_drawn_of_a_function_of_the_parameters():
    ax = plots.path(a_path(), of=lambda params: params.bias.sum())
    (line,) = ax.lines[1:]
    np.testing.assert_array_equal(line.get_ydata(), [3, 3, 3])
    every = plots.path(a_path()._replace(params=np.ones((3, 2))))
    assert len(every.lines) == 3


def test_cross_validation_marks_the_best_and_the_simplest_strength():
    found = a_validation()
    ax = plots.cross_validation(found, label="mine")
    curve, best, simplest = ax.lines[1], ax.lines[-2], ax.lines[-1]
    np.testing.assert_array_equal(curve.get_ydata(), [2, 1.5, 5])
    np.testing.assert_array_equal(best.get_xydata(), [[0.1, 1.5]])
    np.testing.assert_array_equal(simplest.get_xydata(), [[1.0, 2.0]])
    # Differences from the best of -1 and 2 have a standard error of 1.5.
    bars = ax.collections[0].get_segments()
    np.testing.assert_allclose([bar[:, 1] for bar in bars][:2], [[0.5, 3.5], [1.5] * 2])
    said = ax.get_legend_handles_labels()[1]
    assert sorted(said) == ["best: 0.1", "mine", "simplest within noise: 1"]


def test_estimates_name_those_farthest_from_the_truth_in_standard_errors():
    values, stderr = [1.0, 2.0, 3.0, 9.0], [0.1, 1.0, 0.1, np.inf]
    ax = plots.estimates(
        values, stderr, truth=[1.5, 0, 3, 0], names="abcd", num_names=2
    )
    assert [text.get_text() for text in ax.texts] == ["a", "b"]
    alone = plots.estimates(values, stderr, names="abcd", num_names=1)
    assert [text.get_text() for text in alone.texts] == ["c"]


def test_a_graph_draws_the_strongest_on_top_and_widest():
    _, ax = pyplot.subplots()
    matrix = np.array([[9.0, 1, 0, -2], [1, 9, 0.5, 0], [0, 0.5, 9, 0], [-2, 0, 0, 9]])
    places = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    names = list("abcd")
    kept = {"positions": places, "num_edges": 2, "names": names, "ax": ax}
    assert plots.graph(matrix, **kept) is ax
    lines, dots = ax.collections
    np.testing.assert_array_equal(
        lines.get_segments(), [[[0, 0], [1, 0]], [[0, 0], [0, 1]]]
    )
    np.testing.assert_array_equal(lines.get_array(), [1, -2])
    assert lines.get_clim() == (-2, 2)
    thin, wide = lines.get_linewidths()
    assert thin < wide == 4
    np.testing.assert_array_equal(dots.get_offsets(), places)
    assert [text.get_text() for text in ax.texts] == names


def test_what_is_infinite_is_as_strong_as_the_strongest():
    matrix = np.array([[0, np.inf, 2], [np.inf, 0, -np.inf], [2, -np.inf, 0]])
    names = np.array(["a", "b", "c"])
    ax = plots.graph(matrix, names=names)
    lines = ax.collections[0]
    np.testing.assert_array_equal(lines.get_array(), [2, 2, -2])
    np.testing.assert_array_equal(lines.get_linewidths(), [4, 4, 4])
    assert [text.get_text() for text in ax.texts] == ["a", "b", "c"]
    # Among the strongest, which they are.
    few = plots.graph(matrix, num_edges=2, limit=5).collections[0]
    np.testing.assert_array_equal(few.get_array(), [5, -5])
    image = plots.couplings(matrix).images[0]
    np.testing.assert_array_equal(image.get_array()[1].filled(np.nan), [2, np.nan, -2])
    assert image.get_clim() == (-2, 2)
    image.figure.canvas.draw()


def test_a_graph_is_on_a_circle_from_the_top_if_nobody_says_where():
    ax = plots.graph(np.ones((4, 4)))
    circle = [[0, 1], [1, 0], [0, -1], [-1, 0]]
    np.testing.assert_allclose(ax.collections[1].get_offsets(), circle, atol=1e-12)
    assert len(ax.collections[0].get_segments()) == 6


def test_nothing_coupled_is_no_line():
    ax = plots.graph(np.eye(3))
    assert len(ax.collections[0].get_segments()) == 0
    ax.figure.canvas.draw()


def test_weights_show_shares_of_particles_and_of_the_sum():
    log_weights = [-4, -4, -4, 0] + 6 * [-np.inf]
    total = 1 + 3 * np.exp(-4)
    ax = plots.weights(side(log_weights, ess=2.3), label="ais")
    particles, carried = (patch.get_data() for patch in ax.patches)
    width = np.diff(particles.edges)
    np.testing.assert_allclose(particles.values @ width, 1)
    np.testing.assert_allclose(carried.values @ width, 1)
    # What weighs nothing is shown at e^-20 of the mean, and the heaviest at the end.
    np.testing.assert_allclose(particles.edges[[0, -1]], [-20, np.log(10 / total)])
    first = [particles.values[0], carried.values[0]]
    np.testing.assert_allclose(first * width[:1], [0.6, 0])
    last = [particles.values[-1], carried.values[-1]]
    np.testing.assert_allclose(last * width[-1:], [0.1, 1 / total])
    assert ax.patches[0].get_label() == "ais: ESS 2 of 10"


def test_weights_on_the_same_axes_have_heights_that_compare():
    _, ax = pyplot.subplots()
    for spread in (1, 2):
        plots.weights(side(spread * np.linspace(-1, 1, 400)), ax=ax)
    narrow, wide = (patch.get_data().values for patch in ax.patches[::2])
    # Even ones, over 2 nats and over 4.
    np.testing.assert_allclose(narrow, 1 / 2, atol=0.05)
    np.testing.assert_allclose(wide, 1 / 4, atol=0.05)


def test_an_interval_is_a_row_with_both_sides():
    _, ax = pyplot.subplots()
    first = Bracket(2.0, 1.0, 3.0, side([0], log_z=1.5), side([0], log_z=2.5))
    assert plots.interval(first, ax=ax, label="wide") is ax
    upside_down = first._replace(lower=2.8, upper=2.2)
    plots.interval(upside_down, ax=ax, label="wrong", color=plots.ORANGE)
    ends, low, high, dashed = [x for x in ax.lines if len(x.get_xdata())][:4]
    np.testing.assert_array_equal(ends.get_xdata(), [1, 3])
    assert (low.get_xdata()[0], low.get_marker()) == (1.5, ">")
    assert (high.get_xdata()[0], high.get_marker()) == (2.5, "<")
    # Triangles of sides that agree are both seen.
    assert low.get_ydata()[0] < ends.get_ydata()[0] < high.get_ydata()[0]
    assert (ends.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert [text.get_text() for text in ax.texts] == ["contradictory bounds"]
    ax.figure.canvas.draw()
    assert [text.get_text() for text in ax.get_yticklabels()] == ["wide", "wrong"]
    assert ax.get_ylim() == (1.5, -0.5)
    handles, said = ax.get_legend_handles_labels()
    assert said == ["from the base", "back from the target"]
    # Of all rows, whatever their colours.
    assert {handle.get_color() for handle in handles} == {plots.GREY}


def test_every_interval_is_a_row_of_its_own():
    _, ax = pyplot.subplots()
    ax.axvline(-3)
    found = Estimate(-3.0, 0.1, -3.2, -2.8, np.zeros(1))
    for label in ("mine", "mine", None, None, "yours"):
        plots.interval(found, ax=ax, label=label)
    ax.figure.canvas.draw()
    rows = [line.get_ydata()[0] for line in ax.lines[2::2]]
    assert rows == [0, 1, 2, 3, 4]
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["mine", "mine", "", "", "yours"]
    assert ax.get_ylim() == (4.5, -0.5)


@pytest.mark.parametrize(
    ("lower", "upper", "ends", "style", "marker"),
    [
        (-3.5, -2.5, [-3.5, -2.5], "-", "o"),
        (-3.5, np.nan, [-3.5, -3], "-", ">"),
        (np.nan, np.nan, [-3.2, -2.8], ":", "o"),
        (-2.5, -3.5, [-2.5, -3.5], "--", "o"),
    ],
)
def test_an_interval_shows_which_sides_are_bounded(lower, upper, ends, style, marker):
    ax = plots.interval(Estimate(-3.0, 0.1, lower, upper, np.zeros(1)))
    line, mark = ax.lines[:2]
    np.testing.assert_allclose(line.get_xdata(), ends)
    assert line.get_linestyle() == style
    assert (mark.get_xdata()[0], mark.get_marker()) == (-3, marker)
    ax.figure.canvas.draw()


def test_convergence_is_a_line_of_means_and_marks_of_repeats():
    _, ax = pyplot.subplots()
    errors = np.array([[1.0, 3], [0.5, 0.1]])
    style = {"marker": "^", "linestyle": "--"}
    assert plots.convergence([1, 10], errors, ax=ax, label="CD", **style) is ax
    plots.convergence([1, 10], errors[:, 0], ax=ax)
    mean, *repeats, other = ax.lines
    np.testing.assert_allclose(mean.get_xydata(), [[1, 2], [10, 0.3]])
    np.testing.assert_array_equal([each.get_ydata() for each in repeats], errors.T)
    np.testing.assert_array_equal(other.get_ydata(), errors[:, 0])
    assert (mean.get_marker(), mean.get_linestyle()) == ("^", "--")
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_autocovariance_is_over_variance_and_against_its_cost():
    draws = np.array([[0.0, 0, 3], [3, 0, 0]])[:, :, None].repeat(2, axis=2)
    ax = plots.autocovariance(draws, cost=3.0, num_lags=3, label="chain")
    curve = ax.lines[1]
    np.testing.assert_allclose(
        curve.get_xydata(), [[0, 1], [3, -1 / 6], [6, -1 / 3]], rtol=1e-6
    )
    # Both chains tell the same, so that there is no noise.
    band = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(band[band[:, 0] == 3, 1], -1 / 6, rtol=1e-6)


def test_autocovariance_ends_at_twice_where_it_comes_to_nothing():
    wave = np.cos(2 * np.pi * np.arange(40) / 40)
    ax = plots.autocovariance(np.stack([wave, 2 * wave + 1]))
    lags = ax.lines[1].get_ydata()
    first = int(np.flatnonzero(lags <= 0)[0])
    assert len(lags) == 2 * first


def test_autocovariance_has_a_plateau_where_chains_disagree():
    moving = np.random.default_rng(0).normal(size=(4, 400, 1))
    apart = np.array([0.0, 100, 200, 300])[:, None, None]
    ax = plots.autocovariance({"x": moving + apart, "y": moving[..., 0]})
    curve = ax.lines[1].get_ydata()
    assert len(curve) == 400
    # The variance of 0, 1, 2 and 3 hundreds, over itself and twice that of the noise.
    np.testing.assert_allclose(curve[1:], 12_500 / 12_502, atol=1e-4)


def test_autocovariance_shows_no_fewer_lags_than_there_is_something_to_see():
    quick = np.random.default_rng(0).normal(size=(4, 50))
    assert len(plots.autocovariance(quick).lines[1].get_ydata()) == 20
    assert len(plots.autocovariance(quick[:, :12]).lines[1].get_ydata()) == 12


def test_the_band_of_autocovariance_is_the_noise_of_a_ratio():
    draws = np.array([[0.0, 0, 3], [0, 6, 0]])
    # The chains' means are 1 and 2, each a half from that of both.
    covariances = np.array([[2, -1 / 3, -2 / 3], [8, -16 / 3, 4 / 3]]) + 1 / 4
    mean = covariances.mean(0) / 5.25
    apart = (covariances - covariances[:, :1] * mean) / 5.25
    noise = np.sqrt((apart**2).sum(0) / 2)
    ax = plots.autocovariance(draws, num_lags=3)
    band = ax.collections[0].get_paths()[0].vertices
    for lag in range(3):
        ends = band[band[:, 0] == lag, 1]
        expected = mean[lag] + 2 * noise[lag] * np.array([-1, 1])
        np.testing.assert_allclose([ends.min(), ends.max()], expected, atol=1e-6)


def test_capacity_draws_the_share_of_patterns_against_their_number():
    _, ax = pyplot.subplots()
    found = hopfield.Capacity(np.array([2, 8]), np.array([1, 0.5]), np.array([1, 0]))
    style = {"color": plots.GREY, "marker": "s", "linestyle": "--"}
    assert plots.capacity(found, ax=ax, label="flow", **style) is ax
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_xydata(), [[2, 1], [8, 0.5]])
    assert line.get_label() == "flow"
    assert line.get_color() == plots.GREY
    assert (line.get_marker(), line.get_linestyle()) == ("s", "--")
    # Shares of 0 and of 1 are seen whole.
    assert ax.get_ylim()[0] < 0
    assert ax.get_ylim()[1] > 1


def test_recovery_draws_exact_shares_against_flipped_bits():
    _, ax = pyplot.subplots()
    exact, bits = np.array([1, 0.25]), np.array([1, 0.75])
    found = hopfield.Recovery(np.array([0, 4]), exact, bits)
    assert plots.recovery(found, ax=ax, label="m = 2", marker="s") is ax
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_xydata(), [[0, 1], [4, 0.25]])
    assert line.get_label() == "m = 2"
    assert line.get_marker() == "s"


def shown(ax):
    return np.ma.filled(ax.images[0].get_array(), np.nan)


def test_receptive_fields_lie_row_by_row_each_with_its_own_contrast():
    _, ax = pyplot.subplots()
    filters = np.array([[1.0, 2, -4, 0], [0, 0, 0, 0], [0.1, 0, 0, -0.05]])
    assert plots.receptive_fields(filters, num_columns=2, ax=ax) is ax
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


def test_receptive_fields_need_not_be_square():
    ax = plots.receptive_fields(np.ones((5, 6)), shape=(2, 3))
    assert shown(ax).shape == (2 * 3 + 1, 3 * 4 + 1)


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
    # White images have an edge: what is between them is neither white nor transparent.
    *grey, opaque = ax.images[0].get_cmap()(np.ma.masked)
    assert 0.5 < max(grey) < 1
    assert opaque == 1


def test_groupings_fall_in_strength_from_left_to_right():
    filters = np.eye(4)[:3]
    weights = np.array([[0.5, -1], [2, 0], [-1, -4]])
    ax = plots.groupings(filters, weights, num_columns=2)
    tiles = shown(ax)[:-1, :-1].reshape(2, 3, 2, 3).swapaxes(1, 2)[:, :, 1:, 1:]
    expected = [[1 * filters[1], 0.5 * filters[2]], [1 * filters[2], 0.25 * filters[0]]]
    np.testing.assert_allclose(tiles.reshape(2, 2, 4), expected)
    assert ax.images[0].get_clim() == (-1, 1)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda: plots.receptive_fields(np.ones((3, 5))),
            "2 x 2 pixels, got 5",
        ),
        (lambda: plots.receptive_fields(np.ones((3, 6)), shape=(2, 2)), "give shape="),
        (
            lambda: plots.receptive_fields(np.ones(4)),
            r"site\), got shape \(4,\)",
        ),
        (lambda: plots.receptive_fields(np.full((1, 4), np.nan)), "must be finite"),
        (lambda: plots.images(np.full((1, 4), 2.0)), "levels from 0 to 1, got 2 to 2"),
        (
            lambda: plots.images(np.ones(4)),
            r"finite with shape \(row, site\)",
        ),
        (
            lambda: plots.receptive_fields(np.ones((1, 4)), num_columns=0),
            "num_columns must be",
        ),
        (lambda: plots.groupings(np.ones((3, 4)), np.ones((2, 3))), r"got.*\(2, 3\)"),
        (lambda: plots.groupings(np.ones((3, 4)), np.ones(3)), r"for 3 filters"),
        (lambda: plots.groupings(np.ones((1, 4)), np.full((1, 1), np.nan)), "finite"),
    ],
)
def test_what_is_no_set_of_images_is_not_drawn(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.agreement(np.ones(2), np.ones(3)), r"truth \(2,\), estimate"),
        (lambda: plots.agreement([], []), "same shape and not be empty"),
        (lambda: plots.estimates(np.ones(2), np.ones(2), truth=[1]), r"truth \(1,\)"),
        (lambda: plots.estimates([1.0], [1.0], names="ab"), "names must have 1 entr"),
        (
            lambda: plots.estimates([1.0], [1.0], names="a", num_names=0),
            "num_names must be",
        ),
        (
            lambda: plots.population_count(compared([[1.0]], [[1.0]], [[1.0]])),
            r"one share for each count, got shape \(1, 1\)",
        ),
        (lambda: plots.couplings(np.ones(3)), r"must be \(unit, unit\)"),
        (lambda: plots.couplings(np.ones((2, 2)), limit=0), "above 0, got 0"),
        (lambda: plots.graph(np.ones((2, 2)), limit=-1), "above 0, got -1"),
        (lambda: plots.graph(np.ones((2, 3))), r"square, got shape \(2, 3\)"),
        (
            lambda: plots.graph(np.triu(np.ones((2, 2)))),
            r"symmetric, got 1 at \(0, 1\) and 0 at \(1, 0\)",
        ),
        (
            lambda: plots.graph(np.ones((2, 2)), positions=np.ones(2)),
            r"\(2, 2\), got",
        ),
        (lambda: plots.graph(np.ones((2, 2)), num_edges=0), "num_edges must be"),
        (
            lambda: plots.graph(np.ones((2, 2)), names="a"),
            "names must have 2",
        ),
        (lambda: plots.weights(side([-np.inf])), "but not all -inf"),
        (lambda: plots.weights(side([0, np.nan])), "finite or -inf"),
        (lambda: plots.interval(annealed()), "of log_likelihood, got Annealed"),
        (lambda: plots.convergence([1, 2], np.ones(3)), r"\(point, repeat\)"),
        (lambda: plots.convergence([], []), "must not be empty"),
        (lambda: plots.convergence([1, 2], [1, 0]), "above 0.* got .*and .1 0."),
        (lambda: plots.convergence([0, 2], [1, 1]), "above 0"),
        (lambda: plots.autocovariance(np.ones((2, 5))), "finite and not all equal"),
        (lambda: plots.autocovariance(np.ones(5)), r"\(chain, draw, ...\)"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_sentence(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
