"""Data sets: from a folder that you name, or what another library ships.

A folder is an argument, or what the environment variable `PROBJAX_DATA` names when a
loader is called. It holds any of

    natural_images.npz                 arrays `train` and `test`, (image, row, column)
    natural_images_train.npy, natural_images_test.npy
                                       the same, mapped into memory instead of read
    *.iml                              images of van Hateren's as they are published

Nothing is downloaded, and nothing in a file is run: there are no pickles. A file that
is damaged or another one's is one `ValueError`.

Reference: van Hateren and van der Schaaf, Proceedings of the Royal Society B 265, 359
(1998).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FOLDER_VARIABLE = "PROBJAX_DATA"
_VAN_HATEREN = (1024, 1536)


class NaturalImages(NamedTuple):
    """Grey photographs, of intensities, on the host."""

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
    """
    place = _folder(folder)
    if place is None:
        return _sample_photographs()
    archive, train = place / "natural_images.npz", place / "natural_images_train.npy"
    if archive.exists():
        return NaturalImages(*_arrays(archive, ("train", "test")))
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


def _arrays(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Stacks of images by name out of an archive."""
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            if missing := set(names) - set(file.files):
                raise ValueError(f"it has no {sorted(missing)}, but {file.files}")
            return [_checked_stack(name, file[name]) for name in names]
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
