"""Preprocessing of images: patches, logarithms, binary values and whitening.

    patches      size x size pixels at random positions in images, one patch per row
    logarithm    of intensities, so that a change of illumination is a shift
    whitening    y = S^-1 A (x - mean),    x = mean + A' S y

The rows of A are the principal axes of the data, in the order of decreasing variance,
and the diagonal of S has the standard deviations along them. So y has mean 0 and
covariance 1 over rows (the thesis prints unit norm). With fewer axes than sites, the
inverse returns the nearest point in the subspace of the axes. A fitted `Whitening` is a
record; save it with `storage.save` to apply it to test data.

There are two kinds of mean subtraction. `fit_whitening` subtracts the mean over
patches, site by site, and keeps all dimensions: 100 for 10 x 10 patches. The thesis'
complete model of them has as many, so its "mean subtracted" is taken to mean this.
`centre_patches` subtracts each patch's own mean and loses one dimension, brightness.

`natural.whitening` keeps the orientation of the sites and damps directions of small
variance. Its covariance, too, is an average over rows.

Reference: thesis, "Hamiltonian Annealed Importance Sampling", Training.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax import random
from probjax.checks import check_count, holds, is_finite
from probjax.data.rows import as_data, refuse_mask
from probjax.trees import float_dtype, floating
from probjax.types import Array, ArrayLike, Data, Float, PRNGKeyArray, Scalar


def patches(
    key: PRNGKeyArray,
    images: Array | np.ndarray | Sequence[ArrayLike],
    *,
    size: int,
    num_patches: int,
) -> Float[Array, "patch site"]:
    """Cut square patches at uniformly random positions of all images.

    Images stay on the host. Of memory maps, only the pages that patches need are read.

    >>> images = np.arange(40).reshape(2, 4, 5)
    >>> patches(jax.random.key(0), images, size=2, num_patches=3).shape
    (3, 4)

    Args:
        images: grey images, an array `(image, row, column)` or a list of images of any
            shapes.
        size: length of a patch's side, in pixels.
        num_patches: number of patches to draw; they may overlap.
    """
    check_count("size", size)
    check_count("num_patches", num_patches)
    images = [_checked_image(image, size) for image in images]
    if not images:
        raise ValueError("images must not be empty, got none")
    places = np.array([image.shape for image in images]) - size + 1
    image_key, row_key, column_key = jax.random.split(key, 3)
    share = places.prod(1) / places.prod(1).sum()
    chosen = jax.random.choice(image_key, len(images), (num_patches,), p=share)
    ends = jnp.asarray(places)[chosen]
    rows = jax.random.randint(row_key, (num_patches,), 0, ends[:, 0])
    columns = jax.random.randint(column_key, (num_patches,), 0, ends[:, 1])
    corners = zip(*map(np.asarray, (chosen, rows, columns)), strict=True)
    # Converted to JAX's dtype, because numbers in files may have either byte order.
    cut = np.empty((num_patches, size, size), jnp.result_type(float))
    for patch, (image, row, column) in zip(cut, corners, strict=True):
        patch[:] = images[image][row : row + size, column : column + size]
    if not np.isfinite(cut).all():
        raise ValueError("images must be finite, got NaN or infinity")
    return jnp.asarray(cut.reshape(num_patches, size**2))


def log_intensity(x: ArrayLike, *, offset: float = 0.0) -> Array:
    """Logarithm of `x + offset`, for images or patches.

    With many images, cut patches first, so that fewer logarithms are computed.

    >>> log_intensity(np.array([0, 1]), offset=1).round(3).tolist()
    [0.0, 0.6930000185966492]

    Args:
        offset: intensity added to all pixels, in units of `x`, such as one grey level.
    """
    light = floating(x) + offset
    if not holds(is_finite, light):
        raise ValueError("intensities must be finite, got NaN or infinity")
    if not holds(_is_positive, light):
        least = float(light.min())
        raise ValueError(
            f"intensities must be positive, got {least:g} with offset={offset:g}; "
            f"leave out broken pixels, or try an offset one grey level above "
            f"{offset - least:g}"
        )
    return jnp.log(light)


def _is_positive(value):
    return value > 0


def centre_patches(x: Float[ArrayLike, "*row site"]) -> Float[Array, "*row site"]:
    """Subtract the mean of each patch; `x` is one patch or rows of patches.

    Centred patches have one dimension less than sites.

    >>> centre_patches(jnp.array([[1.0, 2.0, 3.0], [5.0, 5.0, 8.0]])).tolist()
    [[-1.0, 0.0, 1.0], [-1.0, -1.0, 2.0]]
    """
    x = floating(x)
    return x - x.mean(-1, keepdims=True)


def binarise(x: ArrayLike, *, threshold: float) -> Float[Array, "..."]:
    """Return 1 for entries above the threshold, and 0 for the others.

    >>> binarise(np.array([0, 127, 255]), threshold=127.5).tolist()
    [0.0, 0.0, 1.0]
    """
    return (jnp.asarray(x) > threshold).astype(float)


def binarise_randomly(key: PRNGKeyArray, x: ArrayLike) -> Float[Array, "..."]:
    """Draw bits that are 1 with probability `x`, grey levels from 0 to 1.

    >>> binarise_randomly(jax.random.key(0), np.array([0.0, 1.0])).tolist()
    [0.0, 1.0]
    """
    x = floating(x)
    if not holds(_is_probability, x):
        raise ValueError(
            f"x must be between 0 and 1, got values from {x.min():g} to {x.max():g}; "
            "divide grey levels by that of white, such as x / 255"
        )
    return (random.uniform(key, x.shape, x.dtype) < x).astype(x.dtype)


def _is_probability(value):
    return (value >= 0) & (value <= 1)


class Whitening(NamedTuple):
    """Affine map y = (axes @ (x - mean)) / scales; `fit_whitening` returns one.

    `y * scales` are the principal components in the units of the data.

    >>> fitted = fit_whitening(jnp.array([[1.0, 0.0], [5.0, 0.0]]), num_components=1)
    >>> fitted.mean.tolist(), fitted.scales.tolist(), float(fitted.kept)
    ([3.0, 0.0], [2.0], 1.0)
    """

    mean: Float[Array, " site"]
    """Mean of the data over rows."""
    axes: Float[Array, "component site"]
    """Principal axes, orthonormal rows in the order of decreasing variance."""
    scales: Float[Array, " component"]
    """Standard deviation of the data along each axis."""
    variance: Scalar
    """Variance of the data summed over all sites."""

    @property
    def kept(self) -> Scalar:
        """Fraction of the variance that lies along the axes."""
        return jnp.sum(self.scales**2) / self.variance

    @property
    def log_det(self) -> Scalar:
        """Log |dy/dx| in the subspace of the axes, which does not depend on x.

        log p(y) + log_det is log p(x), the density of x in this subspace, in the units
        of the data.
        """
        return -jnp.sum(jnp.log(self.scales))


def fit_whitening(
    data: ArrayLike | Data, *, num_components: int | None = None
) -> Whitening:
    """Fit the whitening after which rows have mean 0 and covariance 1.

    It runs on the host in double precision, because the smallest variance is often a
    millionth of the largest.

    >>> x = jnp.array([[0.0, 1.0], [4.0, 1.5], [0.0, 2.0], [4.0, 1.5]])
    >>> fitted = fit_whitening(x, num_components=1)
    >>> fitted.mean.tolist(), fitted.scales.tolist()
    ([2.0, 1.5], [2.0])
    >>> whiten(fitted, x).ravel().tolist()
    [-1.0, 1.0, -1.0, 1.0]

    Args:
        data: rows, an array `(row, site)`; weights are counts.
        num_components: number of axes to keep; None for all.
    """
    data = _checked_rows(data)
    size = data.x.shape[1]
    count = size if num_components is None else num_components
    check_count("num_components", count)
    if count > size:
        raise ValueError(
            f"num_components must not exceed the {size} sites of a row, got {count}"
        )
    mean, covariance = _moments(data)
    values, vectors = np.linalg.eigh(covariance)
    rank = int(np.sum(values > _noise(data.x, values)))
    if count > rank:
        raise ValueError(
            f"num_components must be at most {rank}, got {count}: the data vary in "
            f"only {rank} of {size} directions"
        )
    axes = vectors.T[::-1][:count]
    # The sign of an axis is arbitrary; make its largest entry positive, so that it is
    # the same on every machine.
    largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)
    scales = np.sqrt(values[::-1][:count])
    found = mean, axes * np.sign(largest), scales, values.sum()
    return Whitening(*(jnp.asarray(part, float_dtype(data.x)) for part in found))


def _checked_rows(data):
    data = as_data(data)
    refuse_mask(data, "whitening requires complete rows")
    leaves = jax.tree.leaves(data.x)
    if len(leaves) > 1 or leaves[0].ndim != 2:
        shapes = [leaf.shape for leaf in leaves]
        raise ValueError(
            f"data must be one array (row, site), got shapes {shapes}; try "
            "x.reshape(len(x), -1)"
        )
    return data._replace(x=leaves[0])


def _moments(data):
    """Compute the mean and the covariance over rows, in double precision."""
    rows = np.asarray(data.x, np.float64)
    weights = np.ones(len(rows)) if data.weights is None else np.asarray(data.weights)
    weights = weights / weights.sum()
    mean = weights @ rows
    centred = rows - mean
    centred *= np.sqrt(weights)[:, None]
    return mean, centred.T @ centred


def _noise(x, values):
    """Largest variance that rounding of `x` or of its covariance can cause."""
    computed = np.finfo(np.float64).eps * values[-1]
    rounding = jnp.finfo(float_dtype(x)).eps * np.abs(np.asarray(x, np.float64)).max()
    return len(values) * max(computed, float(rounding) ** 2)


def whiten(
    whitening: Whitening, x: Float[ArrayLike, "*row site"]
) -> Float[Array, "*row component"]:
    """Compute white coordinates of one state, or of rows.

    >>> fitted = fit_whitening(jnp.array([[1.0, 0.0], [3.0, 0.0]]), num_components=1)
    >>> whiten(fitted, jnp.array([3.0, 9.0])).tolist()
    [1.0]
    """
    x = floating(x)
    _check_length("x", x, len(whitening.mean), "sites")
    centred = x - jnp.broadcast_to(whitening.mean, x.shape)
    return centred @ (whitening.axes / whitening.scales[:, None]).T


def unwhiten(
    whitening: Whitening, y: Float[ArrayLike, "*row component"]
) -> Float[Array, "*row site"]:
    """Compute one state, or rows, from white coordinates, in the subspace of the axes.

    >>> x = jnp.array([[0.0, 1.0], [4.0, 1.5], [0.0, 2.0], [4.0, 1.5]])
    >>> fitted = fit_whitening(x, num_components=1)
    >>> unwhiten(fitted, whiten(fitted, x))[0].tolist()
    [0.0, 1.5]
    """
    y = floating(y)
    _check_length("y", y, len(whitening.scales), "components")
    centred = y @ (whitening.axes * whitening.scales[:, None])
    return centred + jnp.broadcast_to(whitening.mean, centred.shape)


def zero_phase(
    whitening: Whitening, x: Float[ArrayLike, "*row site"]
) -> Float[Array, "*row site"]:
    """Whiten without rotation (ZCA), so that images still look like images.

    The result is A' y, the white coordinates nearest to the data. They have covariance
    1 in the subspace of the axes.

    >>> x = jnp.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> jnp.abs(zero_phase(fit_whitening(x), x)).round(3)[::2].tolist()
    [[1.4140000343322754, 0.0], [0.0, 1.4140000343322754]]
    """
    return whiten(whitening, x) @ whitening.axes


def pixel_bases(
    whitening: Whitening, basis: Float[ArrayLike, "component latent"]
) -> Float[Array, "site latent"]:
    """Convert basis functions of white coordinates to basis functions of patches.

    unwhiten(B a) = mean + pixel_bases(B) a

    >>> fitted = fit_whitening(jnp.array([[1.0, 0.0], [5.0, 0.0]]), num_components=1)
    >>> pixel_bases(fitted, jnp.array([[1.0, 3.0]])).tolist()
    [[2.0, 6.0], [0.0, 0.0]]
    """
    basis = floating(basis)
    _check_length("basis", basis.T, len(whitening.scales), "components")
    return whitening.axes.T @ (basis * whitening.scales[:, None])


def pixel_filters(
    whitening: Whitening, filters: Float[ArrayLike, "filter component"]
) -> Float[Array, "filter site"]:
    """Convert filters of white coordinates to filters of patches.

    F whiten(x) = pixel_filters(F) (x - mean)

    >>> fitted = fit_whitening(jnp.array([[1.0, 0.0], [5.0, 0.0]]), num_components=1)
    >>> pixel_filters(fitted, jnp.array([[1.0], [3.0]])).tolist()
    [[0.5, 0.0], [1.5, 0.0]]
    """
    filters = floating(filters)
    _check_length("filters", filters, len(whitening.scales), "components")
    return filters @ (whitening.axes / whitening.scales[:, None])


def _check_length(name, x, length, things):
    if x.ndim == 0 or x.shape[-1] != length:
        raise ValueError(
            f"{name} must have the {length} {things} of the whitening, got shape "
            f"{x.shape}"
        )


def _checked_image(image, size):
    image = np.asarray(image)
    if image.ndim != 2:
        raise ValueError(
            "images must be grey, an array (image, row, column) or a list of arrays "
            f"(row, column), got an image of shape {image.shape}"
        )
    if image.dtype.kind not in "buif":
        raise ValueError(f"images must have real numbers, got {image.dtype}")
    if size > min(image.shape):
        raise ValueError(
            f"size must not exceed the sides of any image, got size={size} and an "
            f"image of {image.shape[0]} x {image.shape[1]}"
        )
    return image
