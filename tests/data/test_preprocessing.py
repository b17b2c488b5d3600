import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import Data, natural, storage
from probjax.data import preprocessing as pre
from probjax.trees import as_array


def mixed(rows=300, size=5):
    """Correlated rows, far from zero, with no two variances alike.

    In the precision of the test, as arrays of NumPy.
    """
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(rows, size))
    x = noise @ generator.normal(size=(size, size)) + 3.0
    return x.astype(jnp.result_type(float))


def test_every_place_of_every_image_is_as_likely_as_any_other(key):
    images = [np.arange(12).reshape(3, 4), 100 + np.arange(10).reshape(2, 5)]
    num = 5000
    drawn = np.asarray(pre.patches(key, images, size=2, num_patches=num))
    places = [
        image[row : row + 2, column : column + 2].ravel()
        for image in images
        for row, column in itertools.product(*(range(n - 1) for n in image.shape))
    ]
    counts = np.array([(drawn == place).all(1).sum() for place in places])
    assert len(places) == 10
    assert counts.sum() == num
    z = (counts - num / 10) / np.sqrt(num * 0.1 * 0.9)
    assert np.abs(z).max() < 4.5


def test_patches_of_any_numbers_in_any_store_are_the_same_floats(key, tmp_path):
    stack = np.arange(2 * 6 * 7, dtype=np.uint16).reshape(2, 6, 7)
    stack.astype(">u2").tofile(tmp_path / "raw")
    mapped = np.memmap(tmp_path / "raw", ">u2", "r", shape=stack.shape)
    found = pre.patches(key, stack, size=3, num_patches=8)
    assert found.dtype == jnp.result_type(float)
    for other in (mapped, list(mapped), as_array(stack), stack.astype(float)):
        again = pre.patches(key, other, size=3, num_patches=8)
        np.testing.assert_array_equal(found, again)
    elsewhere = pre.patches(jax.random.key(1), stack, size=3, num_patches=8)
    assert not np.array_equal(found, elsewhere)


@pytest.mark.parametrize(
    ("images", "size", "message"),
    [
        (np.ones((2, 8, 6)), 7, "size=7 and an image of 8 x 6"),
        ([np.ones((9, 9)), np.ones((3, 9))], 4, "image of 3 x 9"),
        (np.ones((8, 8)), 2, r"images must be grey, .* got an image of shape \(8,\)"),
        (np.ones((2, 8, 8, 3)), 2, r"got an image of shape \(8, 8, 3\)"),
        ([], 2, "must not be empty"),
        (np.full((1, 4, 4), "a"), 2, "real numbers, got <U1"),
        (np.full((1, 4, 4), 1j), 2, "real numbers, got complex128"),
        (np.full((1, 4, 4), np.nan), 2, "images must be finite"),
        (np.ones((1, 4, 4)), 0, "size must be an integer of at least 1, got 0"),
    ],
)
def test_images_that_have_no_such_patches_are_refused(images, size, message, key):
    with pytest.raises(ValueError, match=message):
        pre.patches(key, images, size=size, num_patches=3)


def test_logarithm_turns_illumination_into_a_shift():
    x = np.array([[3, 10], [500, 60000]], np.uint16)
    ratio = np.asarray(pre.log_intensity(2.0 * x)) - pre.log_intensity(x)
    np.testing.assert_allclose(ratio, np.log(2), rtol=1e-5)
    np.testing.assert_allclose(pre.log_intensity(x, offset=1), np.log1p(x), rtol=1e-6)


def test_logarithm_refuses_what_has_none_and_says_what_to_do():
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="must be finite, got NaN or infinity"):
            pre.log_intensity(np.array([1.0, bad]))
    dark = np.array([1.0, -2.0])
    with pytest.raises(ValueError, match="got -2 with offset=0; .* level above 2"):
        pre.log_intensity(dark)
    with pytest.raises(ValueError, match="got -1 with offset=1; .* level above 2"):
        pre.log_intensity(dark, offset=1)
    assert np.isfinite(pre.log_intensity(dark, offset=2.1)).all()


def test_centred_patches_have_no_brightness_of_their_own():
    x = mixed()
    centred = np.asarray(pre.centre_patches(x))
    np.testing.assert_allclose(centred.mean(1), 0, atol=1e-6)
    np.testing.assert_allclose(centred[3], pre.centre_patches(x[3]))
    with pytest.raises(ValueError, match="vary in only 4 of 5 directions"):
        pre.fit_whitening(centred)
    white = pre.fit_whitening(centred, num_components=4)
    np.testing.assert_allclose(np.asarray(white.axes).sum(1), 0, atol=1e-6)


@pytest.mark.parametrize("count", [5, 2])
def test_white_rows_are_centred_uncorrelated_and_of_unit_variance(count, x64):
    x = mixed()
    white = jax.tree.map(np.asarray, pre.fit_whitening(x, num_components=count))
    y = np.asarray(pre.whiten(white, x))
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(y.T @ y / len(y), np.eye(count), atol=1e-11)
    np.testing.assert_allclose(white.axes @ white.axes.T, np.eye(count), atol=1e-12)
    assert (np.diff(white.scales) < 0).all()
    back = np.asarray(pre.unwhiten(white, y))
    # The nearest point of the subspace: what is left is at right angles to it.
    np.testing.assert_allclose((x - back) @ white.axes.T, 0, atol=1e-11)
    left = ((x - back) ** 2).sum() / ((x - x.mean(0)[None]) ** 2).sum()
    np.testing.assert_allclose(white.kept, 1 - left, rtol=1e-12)
    # No other axes keep as much: these are the leading singular vectors.
    singular = np.linalg.svd(x - x.mean(0)[None])[1]
    share = (singular[:count] ** 2).sum() / (singular**2).sum()
    np.testing.assert_allclose(white.kept, share)


def test_single_precision_whitens_variances_far_apart():
    x = mixed() * 10.0 ** -np.arange(5) + 7
    y = pre.whiten(pre.fit_whitening(x.astype(np.float32)), x.astype(np.float32))
    assert y.dtype == np.float32
    np.testing.assert_allclose(np.cov(y.T, bias=True), np.eye(5), atol=5e-3)


def test_zero_phase_is_the_whitening_of_the_natural_gradient_chapter(x64):
    x = mixed()
    truth = jax.jit(jax.vmap(natural.whitening(x, damping=0.0).forward))(x)
    found = pre.zero_phase(pre.fit_whitening(x), x)
    np.testing.assert_allclose(found, truth, atol=1e-9)


def test_log_det_is_that_of_the_derivative(x64):
    x = mixed()
    for count in (5, 3):
        white = jax.tree.map(np.asarray, pre.fit_whitening(x, num_components=count))
        slope = jax.jit(jax.jacobian(lambda x, white=white: pre.whiten(white, x)))(x[0])
        _, truth = np.linalg.slogdet(np.asarray(slope) @ white.axes.T)
        np.testing.assert_allclose(white.log_det, truth)


def test_weights_are_counts(x64):
    x, counts = mixed(rows=7), np.array([1.0, 3, 0, 2, 4, 1, 1])
    repeated = np.repeat(x, counts.astype(int), axis=0)
    weighted = pre.fit_whitening(Data(x, counts), num_components=3)
    chex.assert_trees_all_close(
        weighted, pre.fit_whitening(repeated, num_components=3), rtol=1e-9
    )


def test_axes_point_the_same_way_whatever_the_sign_of_the_data():
    x = mixed()
    axes = np.asarray(pre.fit_whitening(x).axes)
    np.testing.assert_allclose(pre.fit_whitening(-x).axes, axes, atol=1e-5)
    largest = np.abs(axes).argmax(1)
    assert (axes[np.arange(5), largest] > 0).all()


def test_a_whitening_is_kept_on_disk_and_used_on_one_state_as_on_rows(tmp_path):
    x = mixed()
    white = pre.fit_whitening(x, num_components=3)
    storage.save(tmp_path / "white", white)
    kept = storage.load(tmp_path / "white")
    assert type(kept) is pre.Whitening
    chex.assert_trees_all_equal(kept, white)
    y = np.asarray(pre.whiten(kept, x))
    np.testing.assert_allclose(y[4], pre.whiten(kept, x[4]), rtol=1e-5)
    back = jax.jit(jax.vmap(pre.unwhiten, (None, 0)))(kept, y)
    np.testing.assert_allclose(back, pre.unwhiten(kept, y), rtol=1e-5)


def test_filters_and_bases_mean_the_same_in_pixels(x64):
    x = mixed()
    white = jax.tree.map(np.asarray, pre.fit_whitening(x, num_components=3))
    filters = np.random.default_rng(1).normal(size=(4, 3))
    responses = filters @ np.asarray(pre.whiten(white, x[0]))
    in_pixels = np.asarray(pre.pixel_filters(white, filters))
    np.testing.assert_allclose(in_pixels @ (x[0] - white.mean), responses)
    latents = np.arange(4.0)
    basis = np.asarray(pre.pixel_bases(white, filters.T))
    truth = pre.unwhiten(white, filters.T @ latents)
    np.testing.assert_allclose(white.mean + basis @ latents, truth)


@pytest.mark.parametrize(
    ("rows", "count", "message"),
    [
        ((40, 6), 7, "must not exceed the 6 sites of a row, got 7"),
        ((40, 6), 0, "num_components must be an integer of at least 1, got 0"),
        ((4, 6), 6, "at most 3, got 6: .* vary in only 3 of 6 directions"),
        ((4, 6), None, "at most 3, got 6"),
        ((4, 3, 2), 2, r"one array \(row, site\), got shapes \[\(4, 3, 2\)\]"),
        ((0, 6), 2, "must not be empty"),
    ],
)
def test_components_that_data_do_not_have_are_refused(rows, count, message):
    with pytest.raises(ValueError, match=message):
        pre.fit_whitening(
            np.random.default_rng(0).normal(size=rows), num_components=count
        )


def test_rows_without_variance_or_with_nan_are_refused():
    with pytest.raises(ValueError, match="vary in only 0 of 3"):
        pre.fit_whitening(np.full((9, 3), 0.1))
    with pytest.raises(ValueError, match="finite"):
        pre.fit_whitening(np.array([[1.0, np.nan], [0, 1]]))


def test_what_is_not_of_the_whitening_is_refused():
    white = pre.fit_whitening(mixed(), num_components=3)
    with pytest.raises(
        ValueError,
        match=r"x must have the 5 sites .* shape \(2, 4\)",
    ):
        pre.whiten(white, np.ones((2, 4)))
    with pytest.raises(
        ValueError,
        match=r"y must have the 3 components .* \(5,\)",
    ):
        pre.unwhiten(white, np.ones(5))
    with pytest.raises(ValueError, match="filters must have the 3 components"):
        pre.pixel_filters(white, np.ones((3, 5)))
    with pytest.raises(ValueError, match="basis must have the 3 components"):
        pre.pixel_bases(white, np.ones((5, 3)))


def test_bits_are_above_the_threshold_or_drawn_by_their_grey(key):
    np.testing.assert_array_equal(
        pre.binarise(np.array([[0, 9], [8, 7]], np.uint8), threshold=7),
        [[0, 1], [1, 0]],
    )
    grey = np.array([0.0, 0.2, 0.9, 1.0], np.float32)
    bits = np.asarray(pre.binarise_randomly(key, np.tile(grey, (2000, 1))))
    assert set(np.unique(bits)) == {0, 1}
    spread = np.sqrt(grey * (1 - grey) / 2000)
    np.testing.assert_array_less(np.abs(bits.mean(0) - grey), 4 * spread + 1e-6)
    for bad in (np.array([0, 255]), np.array([-0.1]), np.array([np.nan])):
        with pytest.raises(ValueError, match="between 0 and 1.*x / 255"):
            pre.binarise_randomly(key, bad)
