"""Data sets, read from a folder or taken from scikit-learn.

The folder is an argument of the loader, or the value of the environment variable
`PROBJAX_DATA` when the loader is called. It holds any of

    natural_images.npz                 arrays `train` and `test`, (image, row, column)
    natural_images_train.npy, natural_images_test.npy
                                       the same arrays, which are memory-mapped
    *.iml                              van Hateren's images as published
    mnist10k.npz                       arrays `train`, `train_label`, `test` and
                                       `test_label`, bytes (digit, row, column)
    train-images-idx3-ubyte, train-labels-idx1-ubyte,
    t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte
                                       MNIST as published; each may end in .gz

Nothing is downloaded, and nothing in a file is executed, because pickles are rejected.
A damaged or unknown file raises a `ValueError`.

Reference: van Hateren and van der Schaaf, Proceedings of the Royal Society B 265, 359
(1998); LeCun, Bottou, Bengio and Haffner, Proceedings of the IEEE 86, 2278 (1998).
"""

import gzip
import math
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probjax.runs.npz import read_arrays

FOLDER_VARIABLE = "PROBJAX_DATA"
_VAN_HATEREN = (1024, 1536)
# The last two bytes are the type of the entries (8: unsigned byte) and the number of
# axes.
_IDX_IMAGES, _IDX_LABELS = 0x803, 0x801
_MOST_BYTES = 2**30


class NaturalImages(NamedTuple):
    """Grey photographs on the host; their entries are light intensities.

    >>> images = NaturalImages(train=np.ones((3, 8, 8)), test=np.ones((1, 8, 8)))
    >>> len(images.train), images.test[0].shape
    (3, (8, 8))
    """

    train: np.ndarray | list[np.ndarray]
    """Images `(row, column)` for training: an array `(image, row, column)` or a list.
    """
    test: np.ndarray | list[np.ndarray]
    """Images for testing; no pixel is in both sets."""


def natural_images(folder: str | os.PathLike | None = None) -> NaturalImages:
    """Load photographs of natural scenes.

    They are read from `natural_images.npz`, `natural_images_train.npy` or the `*.iml`
    files in `folder`, whichever is found first. Of van Hateren's images the last tenth,
    sorted by name, is for testing, because images with adjacent numbers often show the
    same scene.

    If neither `folder` nor `PROBJAX_DATA` is given, these are the two photographs that
    come with scikit-learn, as linear, positive intensities of at most 1. The left half
    of each is for training and the right half for testing. They suffice to try a model,
    but not to evaluate it.

        images = datasets.natural_images("folder")
        rows = preprocessing.patches(key, images.train, size=16, num_patches=10_000)
        rows = preprocessing.log_intensity(rows)

    >>> from tempfile import TemporaryDirectory
    >>> grey = np.ones((3, 8, 8))
    >>> with TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/natural_images.npz", train=grey, test=grey[:1])
    ...     images = natural_images(folder)
    >>> images.train.shape, images.test.shape
    ((3, 8, 8), (1, 8, 8))
    """
    path = _folder(folder)
    if path is None:
        return _sample_photographs()
    archive, train = path / "natural_images.npz", path / "natural_images_train.npy"
    if archive.exists():
        checks = {"train": _checked_stack, "test": _checked_stack}
        return NaturalImages(**_arrays(archive, checks))
    if train.exists():
        test = path / "natural_images_test.npy"
        return NaturalImages(_mapped(train), _mapped(test))
    images = van_hateren(path)
    if len(images) < 2:
        raise ValueError(
            f"{path} must hold at least two images, for training and testing, got "
            f"{len(images)}"
        )
    tenth = -(-len(images) // 10)
    return NaturalImages(images[:-tenth], images[-tenth:])


def van_hateren(folder: str | os.PathLike) -> list[np.ndarray]:
    """Memory-map all `.iml` images in a folder, sorted by name.

    Each file consists of 1024 x 1536 integers of 16 bits, high byte first.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     np.ones((1024, 1536), ">u2").tofile(f"{folder}/imk00001.iml")
    ...     images = van_hateren(folder)
    >>> len(images), images[0].shape
    (1, (1024, 1536))
    """
    place = _existing(folder)
    paths = sorted(path for path in place.iterdir() if path.suffix.lower() == ".iml")
    if not paths:
        raise ValueError(
            f"{place} must hold natural_images.npz, natural_images_train.npy or *.iml, "
            "got none of these files; try another folder, or omit folder and "
            f"{FOLDER_VARIABLE} to load the photographs of scikit-learn"
        )
    return [_iml(path) for path in paths]


def _iml(path: Path) -> np.ndarray:
    rows, columns = _VAN_HATEREN
    size = path.stat().st_size
    if size != 2 * rows * columns:
        raise ValueError(
            f"{path} is not an .iml image: it must have {2 * rows * columns} bytes for "
            f"{rows} x {columns} numbers, got {size}"
        )
    return np.memmap(path, ">u2", "r", shape=_VAN_HATEREN)


class Digits(NamedTuple):
    """Handwritten digits and their labels, on the host.

    >>> white, labels = np.ones((3, 8, 8), np.float32), np.array([4, 7, 7])
    >>> images = Digits(white, labels, test=white[:1], test_label=labels[:1])
    >>> images.train[images.train_label == 7].shape
    (2, 8, 8)
    """

    train: np.ndarray
    """Images `(digit, row, column)` for training: intensities from 0 to 1, float32."""
    train_label: np.ndarray
    """Labels of the training images, from 0 to 9."""
    test: np.ndarray
    """Images for testing."""
    test_label: np.ndarray
    """Labels of the test images."""


def digits(folder: str | os.PathLike | None = None) -> Digits:
    """Load handwritten digits.

    They are MNIST, read from `mnist10k.npz` or the published files in `folder`. If
    neither `folder` nor `PROBJAX_DATA` is given, these are the 1,797 digits of 8 x 8
    pixels that come with scikit-learn, in its order, the last fifth for testing.

        images = datasets.digits("folder").train
        rows = preprocessing.binarise(images.reshape(len(images), -1), threshold=0.5)

    >>> from tempfile import TemporaryDirectory
    >>> white, labels = np.full((3, 8, 8), 255, np.uint8), np.array([4, 7, 7])
    >>> arrays = dict(train=white, train_label=labels, test=white, test_label=labels)
    >>> with TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/mnist10k.npz", **arrays)
    ...     images = digits(folder)
    >>> images.train.shape, float(images.train.max()), images.test_label.tolist()
    ((3, 8, 8), 1.0, [4, 7, 7])
    """
    place = _folder(folder)
    if place is None:
        return _shipped_digits()
    archive = place / "mnist10k.npz"
    if archive.exists():
        checks = {
            "train": _checked_bytes,
            "train_label": _checked_labels,
            "test": _checked_bytes,
            "test_label": _checked_labels,
        }
        return _checked_digits(archive, **_arrays(archive, checks), white=255)
    names = ("train-images-idx3", "train-labels-idx1")
    names += tuple(name.replace("train", "t10k") for name in names)
    paths = [_idx_path(place, f"{name}-ubyte") for name in names]
    kinds = (_IDX_IMAGES, _IDX_LABELS) * 2
    parts = [_idx(path, kind) for path, kind in zip(paths, kinds, strict=True)]
    for path, labels in zip(paths[1::2], parts[1::2], strict=True):
        _checked_labels(str(path), labels)
    return _checked_digits(place, *parts, white=255)


def _shipped_digits() -> Digits:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "digits without a folder requires scikit-learn; try pip install "
            f"scikit-learn, or give a folder ({FOLDER_VARIABLE})"
        ) from error
    rows, labels = map(np.asarray, load_digits(return_X_y=True))
    images = rows.reshape(-1, 8, 8)
    last = -(len(images) // 5)
    parts = (images[:last], labels[:last], images[last:], labels[last:])
    return _checked_digits("scikit-learn's digits", *parts, white=16)


def _checked_digits(source, train, train_label, test, test_label, *, white) -> Digits:
    """Check digits, and convert grey levels from 0 to `white` to intensities."""
    for images, labels in ((train, train_label), (test, test_label)):
        if labels.shape != images.shape[:1]:
            raise ValueError(
                f"{source} must have one label for each digit, got {len(labels)} "
                f"labels for {len(images)} digits"
            )
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"{source} must have images of one size, got {train.shape[1:]} and "
            f"{test.shape[1:]}"
        )
    white = np.float32(white)
    return Digits(
        train.astype(np.float32) / white,
        train_label.astype(np.int32),
        test.astype(np.float32) / white,
        test_label.astype(np.int32),
    )


def _idx_path(place: Path, name: str) -> Path:
    for path in (place / name, place / f"{name}.gz"):
        if path.exists():
            return path
    raise ValueError(
        f"{place} must hold mnist10k.npz, {name} or {name}.gz, got none of these "
        f"files; try another folder, or omit folder and {FOLDER_VARIABLE} to load the "
        "digits of scikit-learn"
    )


def _idx(path: Path, kind: int) -> np.ndarray:
    """Read an idx file: its kind, the length of each axis, and the bytes."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            form = f">{1 + kind % 256}I"
            head = file.read(struct.calcsize(form))
            found, *shape = struct.unpack(form, head)
            if found != kind:
                raise ValueError(f"it must begin with {kind:#x}, got {found:#x}")
            count = math.prod(shape)
            if not 0 < count <= _MOST_BYTES:
                raise ValueError(f"its header declares shape {shape}, {count} bytes")
            # One byte more than expected, to detect files that are too long.
            content = _read(file, count + 1)
    except Exception as error:
        # A damaged file can fail in any of several parsers.
        raise ValueError(f"{path} cannot be read as digits: {error}") from error
    if len(content) != count:
        few = "fewer" if len(content) < count else "more"
        raise ValueError(
            f"{path} cannot be read as digits: it has {few} than the {count} bytes "
            "that its header declares"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def _read(file: Any, most: int) -> bytes:
    """Read at most `most` bytes; memory grows with the file, not with `most`."""
    parts = []
    while most > 0 and (part := file.read(min(most, 2**20))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _sample_photographs() -> NaturalImages:
    try:
        from sklearn.datasets import load_sample_images

        photographs = load_sample_images().images
    except ImportError as error:
        raise ImportError(
            "natural_images without a folder requires scikit-learn and Pillow; try pip "
            f"install scikit-learn pillow, or give a folder ({FOLDER_VARIABLE})"
        ) from error
    grey = np.stack([_luminance(photograph) for photograph in photographs])
    half = grey.shape[2] // 2
    return NaturalImages(grey[:, :, :half], grey[:, :, half:])


def _luminance(photograph: np.ndarray) -> np.ndarray:
    """Linear intensity of 8-bit sRGB colours (IEC 61966-2-1); white is 1."""
    level = np.asarray(photograph, np.float32) / 255
    linear = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)
    grey = linear @ np.array([0.2126, 0.7152, 0.0722], np.float32)
    # Black is set to the intensity of level 1, because 0 has no logarithm.
    return np.maximum(grey, np.float32(1 / 255 / 12.92))


def _folder(folder) -> Path | None:
    named = (os.environ.get(FOLDER_VARIABLE) or None) if folder is None else folder
    return None if named is None else _existing(named)


def _existing(named: str | os.PathLike) -> Path:
    folder = Path(named).expanduser()
    # An empty name would be the current folder.
    if not (os.fspath(named) and folder.is_dir()):
        raise ValueError(f"folder must be an existing folder, got {os.fspath(named)!r}")
    return folder


def _arrays(path: Path, checks: Mapping[str, Callable]) -> dict[str, np.ndarray]:
    """Read arrays of an archive by name, and apply `check(name, array)` to each."""
    try:
        found = read_arrays(path, checks)
        return {name: check(name, found[name]) for name, check in checks.items()}
    except Exception as error:
        # A damaged file can fail in any of several parsers.
        raise ValueError(f"{path} cannot be read as images: {error}") from error


def _mapped(path: Path) -> np.ndarray:
    try:
        return _checked_stack("it", np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception as error:
        raise ValueError(f"{path} cannot be read as images: {error}") from error


def _checked_stack(name: str, stack: Any) -> np.ndarray:
    shape, dtype = np.shape(stack), np.asarray(stack).dtype
    if dtype.kind not in "uif" or len(shape) != 3 or 0 in shape:
        raise ValueError(
            f"{name} must be numbers (image, row, column), got {dtype} of shape {shape}"
        )
    return stack


def _checked_bytes(name: str, stack: np.ndarray) -> np.ndarray:
    # Intensities from 0 to 1, for example, would be read as the two darkest levels.
    if stack.dtype != np.uint8:
        raise ValueError(
            f"{name} must be grey levels from 0 to 255, uint8, got {stack.dtype}"
        )
    return _checked_stack(name, stack)


def _checked_labels(name: str, labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind not in "ui" or labels.ndim != 1 or labels.size == 0:
        raise ValueError(
            f"{name} must be one integer for each digit, got {labels.dtype} of shape "
            f"{labels.shape}"
        )
    if labels.min() < 0 or labels.max() > 9:
        raise ValueError(
            f"{name} must be from 0 to 9, got {labels.min()} to {labels.max()}"
        )
    return labels
