"""From images to rows a model can learn, and what it learned back to images.

    patches      size x size pixels at random places of images, one patch a row
    logarithm    of light, in which a change of illumination is a shift
    whitening    y = S^-1 A (x - mean),    x = mean + A' S y

The rows of A are the axes along which rows of data vary most, most of all first, and S
has their standard deviations: y has mean 0 and covariance 1, over rows (the thesis
prints unit norm). With fewer axes than sites the way back is to the nearest point of
the subspace that they span. What is fitted is one record, `Whitening`, which
`storage.save` keeps for the test data.

Mean subtraction is two things. `fit_whitening` subtracts the mean over patches, site by
site, which loses nothing: 10 x 10 patches keep 100 dimensions, as many as the thesis'
complete model of them has, so its "mean subtracted" is read as this. `centre_patches`
subtracts each patch's own mean, which loses one dimension, the brightness.

Whitening that keeps the sites' own orientation and damps what varies little is
`natural.whitening`; its covariance is also that of rows, divided by their number.

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
    """Square patches of images, each place of each image being as likely as any other.

    Images stay on the host, and only pages of them that patches are cut from are read
    where they are memory maps.

    >>> images = np.arange(40).reshape(2, 4, 5)
    >>> patches(jax.random.key(0), images, size=2, num_patches=3).shape
    (3, 4)

    Args:
        images: grey images, a stack `(image, row, column)` or a list of any shapes.
        size: of a side, in pixels.
        num_patches: how many to draw; they may overlap.
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
    # In the dtype of JAX, as files may have the bytes of numbers in either order.
    cut = np.empty((num_patches, size, size), jnp.result_type(float))
    for patch, (image, row, column) in zip(cut, corners, strict=True):
        patch[:] = images[image][row : row + size, column : column + size]
    if not np.isfinite(cut).all():
        raise ValueError("images must be finite, got NaN or infinity")
    return jnp.asarray(cut.reshape(num_patches, size**2))


def log_intensity(x: ArrayLike, *, offset: float = 0.0) -> Array:
    """The logarithm of `x + offset`, of images or patches alike.

    Of many images, cut the patches first: the logarithm is of fewer pixels then.

    >>> log_intensity(np.array([0, 1]), offset=1).round(3).tolist()
    [0.0, 0.6930000185966492]

    Args:
        offset: light to add to all, in units of `x`; at most a few of its levels.
    """
    light = floating(x) + offset
    if not holds(is_finite, light):
        raise ValueError("intensities must be finite, got NaN or infinity")
    if not holds(_is_light, light):
        least = float(light.min())
        raise ValueError(
            f"a logarithm is of positive intensities, got {least:g} with offset="
            f"{offset:g}: leave out broken pixels, or take an offset above "
            f"{offset - least:g} by about a level of the camera"
        )
    return jnp.log(light)


def _is_light(value):
    return value > 0


def centre_patches(x: Float[ArrayLike, "*row site"]) -> Float[Array, "*row site"]:
    """Patches less their own means, one or rows of them: what is left is contrast.

    They vary in one direction fewer than they have sites.

    >>> centre_patches(jnp.array([[1.0, 2.0, 3.0], [5.0, 5.0, 8.0]])).tolist()
    [[-1.0, 0.0, 1.0], [-1.0, -1.0, 2.0]]
    """
    x = floating(x)
    return x - x.mean(-1, keepdims=True)


def binarise(x: ArrayLike, *, threshold: float) -> Float[Array, "..."]:
    """1 where `x` is above the threshold, else 0.

    >>> binarise(np.array([0, 127, 255]), threshold=127.5).tolist()
    [0.0, 0.0, 1.0]
    """
    return (jnp.asarray(x) > threshold).astype(float)


def binarise_randomly(key: PRNGKeyArray, x: ArrayLike) -> Float[Array, "..."]:
    """Bits that are 1 with probability `x`: grey levels as shares of white.

    >>> binarise_randomly(jax.random.key(0), np.array([0.0, 1.0])).tolist()
    [0.0, 1.0]
    """
    x = floating(x)
    if not holds(_is_share, x):
        raise ValueError(
            "x must be shares of white, between 0 and 1, got values from "
            f"{x.min():g} to {x.max():g}: divide by the white level, as x / 255"
        )
    return (random.uniform(key, x.shape, x.dtype) < x).astype(x.dtype)


def _is_share(value):
    return (value >= 0) & (value <= 1)


class Whitening(NamedTuple):
    """y = (axes @ (x - mean)) / scales, and back. Build one with `fit_whitening`.

    `y * scales` are principal components in the units of the data.

    >>> fitted = fit_whitening(jnp.array([[1.0, 0.0], [5.0, 0.0]]), num_components=1)
    >>> fitted.mean.tolist(), fitted.scales.tolist(), float(fitted.kept)
    ([3.0, 0.0], [2.0], 1.0)
    """

    mean: Float[Array, " site"]
    """Of the data, over rows."""
    axes: Float[Array, "component site"]
    """Orthonormal rows: along the first the data vary most."""
    scales: Float[Array, " component"]
    """The standard deviations of the data along them."""
    variance: Scalar
    """Of the data, summed over sites, whether kept or not."""

    @property
    def kept(self) -> Scalar:
        """The share of the variance that lies along the axes."""
        return jnp.sum(self.scales**2) / self.variance

    @property
    def log_det(self) -> Scalar:
        """Log |dy/dx| over the subspace of the axes, the same at every x.

        Added to log p(y) it gives log p(x), a density of what is kept of x, in the
        units of the data.
        """
        return -jnp.sum(jnp.log(self.scales))


def fit_whitening(
    data: ArrayLike | Data, *, num_components: int | None = None
) -> Whitening:
    """The whitening that makes rows centred, uncorrelated and of unit variance.

    Works on the host, in double precision: the least variances that are rescaled are
    often a millionth of the largest.

    >>> x = jnp.array([[0.0, 1.0], [4.0, 1.5], [0.0, 2.0], [4.0, 1.5]])
    >>> fitted = fit_whitening(x, num_components=1)
    >>> fitted.mean.tolist(), fitted.scales.tolist()
    ([2.0, 1.5], [2.0])
    >>> whiten(fitted, x).ravel().tolist()
    [-1.0, 1.0, -1.0, 1.0]

    Args:
        data: rows of equal length; weights are counts.
        num_components: how many axes to keep; all if None.
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
            f"data vary in {rank} of {size} directions, and only those can be rescaled "
            f"to unit variance: num_components must be at most {rank}, got {count}"
        )
    axes = vectors.T[::-1][:count]
    # Either sign is an axis: the one that is chosen is the same on every machine.
    largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)
    scales = np.sqrt(values[::-1][:count])
    found = mean, axes * np.sign(largest), scales, values.sum()
    return Whitening(*(jnp.asarray(part, float_dtype(data.x)) for part in found))


def _checked_rows(data):
    data = as_data(data)
    refuse_mask(data, "covariances are of complete rows")
    leaves = jax.tree.leaves(data.x)
    if len(leaves) > 1 or leaves[0].ndim != 2:
        shapes = [leaf.shape for leaf in leaves]
        raise ValueError(
            f"data must be one array (row, site), got {shapes}: flatten what has more "
            "axes, x.reshape(len(x), -1)"
        )
    return data._replace(x=leaves[0])


def _moments(data):
    """Mean and covariance over rows, in double precision."""
    rows = np.asarray(data.x, np.float64)
    weights = np.ones(len(rows)) if data.weights is None else np.asarray(data.weights)
    weights = weights / weights.sum()
    mean = weights @ rows
    away = rows - mean
    away *= np.sqrt(weights)[:, None]
    return mean, away.T @ away


def _noise(x, values):
    """The most variance that rounding of `x`, or of the covariance, may account for."""
    computed = np.finfo(np.float64).eps * values[-1]
    rounding = jnp.finfo(float_dtype(x)).eps * np.abs(np.asarray(x, np.float64)).max()
    return len(values) * max(computed, float(rounding) ** 2)


def whiten(
    whitening: Whitening, x: Float[ArrayLike, "*row site"]
) -> Float[Array, "*row component"]:
    """White coordinates of one state, or of rows.

    >>> fitted = fit_whitening(jnp.array([[1.0, 0.0], [3.0, 0.0]]), num_components=1)
    >>> whiten(fitted, jnp.array([3.0, 9.0])).tolist()
    [1.0]
    """
    x = floating(x)
    _check_length("x", x, len(whitening.mean), "sites")
    away = x - jnp.broadcast_to(whitening.mean, x.shape)
    return away @ (whitening.axes / whitening.scales[:, None]).T


def unwhiten(
    whitening: Whitening, y: Float[ArrayLike, "*row component"]
) -> Float[Array, "*row site"]:
    """The state, or rows, that white coordinates are of, in the subspace kept.

    >>> x = jnp.array([[0.0, 1.0], [4.0, 1.5], [0.0, 2.0], [4.0, 1.5]])
    >>> fitted = fit_whitening(x, num_components=1)
    >>> unwhiten(fitted, whiten(fitted, x))[0].tolist()
    [0.0, 1.5]
    """
    y = floating(y)
    _check_length("y", y, len(whitening.scales), "components")
    away = y @ (whitening.axes * whitening.scales[:, None])
    return away + jnp.broadcast_to(whitening.mean, away.shape)


def zero_phase(
    whitening: Whitening, x: Float[ArrayLike, "*row site"]
) -> Float[Array, "*row site"]:
    """White data in the orientation of the sites: images that look like images.

    A' y: of all white coordinates those nearest to the data. Covariance 1 over the
    subspace of the axes.

    >>> x = jnp.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> jnp.abs(zero_phase(fit_whitening(x), x)).round(3)[::2].tolist()
    [[1.4140000343322754, 0.0], [0.0, 1.4140000343322754]]
    """
    return whiten(whitening, x) @ whitening.axes


def pixel_bases(
    whitening: Whitening, basis: Float[ArrayLike, "component latent"]
) -> Float[Array, "site latent"]:
    """What a latent adds to a patch, of the columns that it adds to white coordinates.

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
    """Rows to apply to patches, of rows to apply to white coordinates.

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
            f"the whitening is of {length} {things}, got {name} of shape {x.shape}"
        )


def _checked_image(image, size):
    image = np.asarray(image)
    if image.ndim != 2:
        raise ValueError(
            "images must be grey, a stack (image, row, column) or a list of "
            f"(row, column), got one of shape {image.shape}"
        )
    if image.dtype.kind not in "buif":
        raise ValueError(f"images must be of real numbers, got {image.dtype}")
    if size > min(image.shape):
        raise ValueError(
            f"size must not exceed the sides of any image, got size={size} and an "
            f"image of {image.shape[0]} x {image.shape[1]}"
        )
    return image
