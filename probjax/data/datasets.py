"""Data sets: from a folder that you name, or what another library ships.

A folder is an argument, or what the environment variable `PROBJAX_DATA` names when a
loader is called. It holds any of

    natural_images.npz                 arrays `train` and `test`, (image, row, column)
    natural_images_train.npy, natural_images_test.npy
                                       the same, mapped into memory instead of read
    *.iml                              images of van Hateren's as they are published
    mnist10k.npz                       arrays `train`, `train_label`, `test` and
                                       `test_label`, bytes (digit, row, column)
    train-images-idx3-ubyte, train-labels-idx1-ubyte,
    t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte
                                       MNIST as it is published, each also as .gz

Nothing is downloaded, and nothing in a file is run: there are no pickles. A file that
is damaged or another one's is one `ValueError`.

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
# The last bytes are of unsigned bytes (8), and the number of axes.
_IDX_IMAGES, _IDX_LABELS = 0x803, 0x801
_MOST_BYTES = 2**30


class NaturalImages(NamedTuple):
    """Grey photographs, of intensities, on the host.

    >>> images = NaturalImages(train=np.ones((3, 8, 8)), test=np.ones((1, 8, 8)))
    >>> len(images.train), images.test[0].shape
    (3, (8, 8))
    """

    train: np.ndarray | list[np.ndarray]
    """Images `(row, column)` to learn from: a stack or a list."""
    test: np.ndarray | list[np.ndarray]
    """Others to judge by; no pixel is in both."""


def natural_images(folder: str | os.PathLike | None = None) -> NaturalImages:
    """Photographs of natural scenes, from the first in `folder` of the three above.

    Of images of van Hateren's the last tenth by name are for testing: neighbours in
    their numbering often show one scene.

    With no folder named anywhere these are the two photographs that scikit-learn ships,
    as linear, positive intensities of at most 1, the left half of each for training and
    the right for testing. They are enough to try a model, not to judge it.

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
    place = _folder(folder)
    if place is None:
        return _sample_photographs()
    archive, train = place / "natural_images.npz", place / "natural_images_train.npy"
    if archive.exists():
        checks = {"train": _checked_stack, "test": _checked_stack}
        return NaturalImages(**_arrays(archive, checks))
    if train.exists():
        test = place / "natural_images_test.npy"
        return NaturalImages(_mapped(train), _mapped(test))
    images = van_hateren(place)
    if len(images) < 2:
        raise ValueError(
            f"{place} holds {len(images)} images: training and testing need two"
        )
    tenth = -(-len(images) // 10)
    return NaturalImages(images[:-tenth], images[-tenth:])


def van_hateren(folder: str | os.PathLike) -> list[np.ndarray]:
    """All `.iml` images in a folder, by name, mapped into memory: none is read yet.

    They are raw 16-bit numbers, the high byte first, in 1024 rows of 1536.

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
            f"{place} holds no natural images: neither natural_images.npz nor "
            f"natural_images_train.npy nor *.iml. Name another folder or, without "
            f"{FOLDER_VARIABLE} and folder, have the photographs of scikit-learn"
        )
    return [_iml(path) for path in paths]


def _iml(path: Path) -> np.ndarray:
    rows, columns = _VAN_HATEREN
    size = path.stat().st_size
    if size != 2 * rows * columns:
        raise ValueError(
            f"{path} is no .iml image, which has {2 * rows * columns} bytes for {rows} "
            f"x {columns} numbers: it has {size}"
        )
    return np.memmap(path, ">u2", "r", shape=_VAN_HATEREN)


class Digits(NamedTuple):
    """Handwritten digits and which they are, on the host.

    >>> white, labels = np.ones((3, 8, 8), np.float32), np.array([4, 7, 7])
    >>> images = Digits(white, labels, test=white[:1], test_label=labels[:1])
    >>> images.train[images.train_label == 7].shape
    (2, 8, 8)
    """

    train: np.ndarray
    """Images `(digit, row, column)` to learn from: intensities from 0 to 1, float32."""
    train_label: np.ndarray
    """Which of 0 to 9 each of them is."""
    test: np.ndarray
    """Others to judge by."""
    test_label: np.ndarray
    """And which these are."""


def digits(folder: str | os.PathLike | None = None) -> Digits:
    """Handwritten digits: MNIST, from the first in `folder` of the two forms above.

    With no folder named anywhere these are the 1,797 digits of 8 x 8 pixels that
    scikit-learn ships, in its order, the last fifth for testing.

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
            "digits without a folder needs scikit-learn: pip install scikit-learn, or "
            f"name a folder ({FOLDER_VARIABLE})"
        ) from error
    rows, labels = map(np.asarray, load_digits(return_X_y=True))
    images = rows.reshape(-1, 8, 8)
    last = -(len(images) // 5)
    parts = (images[:last], labels[:last], images[last:], labels[last:])
    return _checked_digits("scikit-learn's set", *parts, white=16)


def _checked_digits(source, train, train_label, test, test_label, *, white) -> Digits:
    """Digits of levels from 0 to `white` as intensities, one label for each."""
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
        f"{place} holds no digits: neither mnist10k.npz nor {name} nor {name}.gz. Name "
        f"another folder or, without {FOLDER_VARIABLE} and folder, have the digits of "
        "scikit-learn"
    )


def _idx(path: Path, kind: int) -> np.ndarray:
    """The bytes of an idx file: its kind, the length of each axis, and they."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            form = f">{1 + kind % 256}I"
            head = file.read(struct.calcsize(form))
            found, *shape = struct.unpack(form, head)
            if found != kind:
                raise ValueError(f"it begins with {found:#x} in place of {kind:#x}")
            count = math.prod(shape)
            if not 0 < count <= _MOST_BYTES:
                raise ValueError(f"it tells of {shape}, {count} bytes")
            # One more than there should be tells whether there are others.
            content = _read(file, count + 1)
    except Exception as error:
        # A damaged file can fail in any of the parsers: all of it is one trouble.
        raise ValueError(f"{path} cannot be read as digits: {error}") from error
    if len(content) != count:
        few = "fewer" if len(content) < count else "more"
        raise ValueError(
            f"{path} cannot be read as digits: it has {few} than the {count} bytes "
            "that it tells of"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def _read(file: Any, most: int) -> bytes:
    """At most so many bytes, with room for no more than there are."""
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
            "natural_images without a folder needs scikit-learn and Pillow: "
            f"pip install scikit-learn pillow, or name a folder ({FOLDER_VARIABLE})"
        ) from error
    grey = np.stack([_luminance(photograph) for photograph in photographs])
    half = grey.shape[2] // 2
    return NaturalImages(grey[:, :, :half], grey[:, :, half:])


def _luminance(photograph: np.ndarray) -> np.ndarray:
    """Linear intensity of 8-bit sRGB colours (IEC 61966-2-1), white being 1."""
    level = np.asarray(photograph, np.float32) / 255
    linear = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)
    grey = linear @ np.array([0.2126, 0.7152, 0.0722], np.float32)
    # Black is less than one level, not no light at all, which has no logarithm.
    return np.maximum(grey, np.float32(1 / 255 / 12.92))


def _folder(folder) -> Path | None:
    named = (os.environ.get(FOLDER_VARIABLE) or None) if folder is None else folder
    return None if named is None else _existing(named)


def _existing(named: str | os.PathLike) -> Path:
    folder = Path(named).expanduser()
    # An empty name would be the folder one happens to be in.
    if not (os.fspath(named) and folder.is_dir()):
        raise ValueError(f"{os.fspath(named)!r} is not a folder of data sets")
    return folder


def _arrays(path: Path, checks: Mapping[str, Callable]) -> dict[str, np.ndarray]:
    """Arrays by name out of an archive, each as its `check(name, array)` returns it."""
    try:
        found = read_arrays(path, checks)
        return {name: check(name, found[name]) for name, check in checks.items()}
    except Exception as error:
        # A damaged file can fail in any of the parsers: all of it is one trouble.
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
    # Intensities, say, would be taken for the darkest of 256 levels.
    if stack.dtype != np.uint8:
        raise ValueError(f"{name} must be levels of 0 to 255, uint8, got {stack.dtype}")
    return _checked_stack(name, stack)


def _checked_labels(name: str, labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind not in "ui" or labels.ndim != 1 or labels.size == 0:
        raise ValueError(
            f"{name} must be one whole number for each digit, got {labels.dtype} of "
            f"shape {labels.shape}"
        )
    if labels.min() < 0 or labels.max() > 9:
        raise ValueError(
            f"{name} must be of 0 to 9, got {labels.min()} to {labels.max()}"
        )
    return labels
