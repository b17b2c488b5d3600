import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

from probjax import plots  # noqa: E402


def test_agreement_draws_every_entry_on_the_axes_given():
    _, ax = pyplot.subplots()
    truth, estimate = np.arange(4.0).reshape(2, 2), np.ones((2, 2))
    assert plots.agreement(truth, estimate, ax=ax, label="fit") is ax
    drawn = ax.collections[0].get_offsets()
    np.testing.assert_array_equal(drawn, np.stack([truth.ravel(), np.ones(4)], axis=1))
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [0, 3])
    pyplot.close()


def test_couplings_are_coloured_symmetrically_about_zero():
    ax = plots.couplings(np.array([[0.0, -3.0], [-3.0, 1.0]]))
    assert ax.images[0].get_clim() == (-3, 3)
    pyplot.close()
