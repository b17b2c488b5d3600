"""Files that are damaged, foreign or hostile are one clear error, and nothing else."""

import gzip
import io
import os
import struct
import zipfile
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import Checkpoint, Gaussian, Watch, ais, blocks, datasets, storage
from probjax.samplers import HMC


def bowl(params, x):
    return params * jnp.sum(x**2)


def from_checkpoint(path):
    return ais(
        jax.random.key(0),
        bowl,
        1.0,
        Gaussian(2),
        sampler=HMC(0.5),
        num_particles=3,
        num_steps=4,
        pilot=None,
        watch=Watch(checkpoint=Checkpoint(path, every=0.0)),
    )


def from_folder(load, name, path):
    """Load a folder that holds the file, by the name it has there."""
    folder = path.parent / f"folder of {path.name}"
    folder.mkdir()
    (folder / name).symlink_to(path)
    return load(folder)


def digits_beside(path):
    """MNIST as published, of which one of four files is the one given."""
    folder = path.parent / f"folder of {path.name}"
    folder.mkdir()
    for part, kind in (("train", 3), ("t10k", 3), ("train", 1), ("t10k", 1)):
        name = {3: "images", 1: "labels"}[kind]
        file = folder / f"{part}-{name}-idx{kind}-ubyte"
        file.write_bytes(idx(np.ones((2, 3, 4)[:kind], np.uint8)))
    (folder / "train-images-idx3-ubyte").unlink()
    (folder / "train-images-idx3-ubyte.gz").symlink_to(path)
    return datasets.digits(folder)


def idx(array):
    head = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    return head + array.tobytes()


def saved(path):
    storage.save(path, {"a": jnp.arange(3.0), "b": [jnp.ones((2, 2)), "words"]})


def kept(path):
    from_checkpoint(path)


def images(path):
    stack = np.ones((2, 3, 4), np.float32)
    np.savez(path, train=stack, test=stack)


def labelled(path):
    stack, label = np.ones((2, 3, 4), np.uint8), np.ones(2, np.uint8)
    np.savez(path, train=stack, train_label=label, test=stack, test_label=label)


def rows(path):
    np.save(path, np.ones((5, 3), np.uint8))


def stack(path):
    np.save(path, np.ones((2, 3, 4), np.float32))


def mapped(path):
    """Both images to train on and to test are the file."""
    folder = path.parent / f"folder of {path.name}"
    folder.mkdir()
    for part in ("train", "test"):
        (folder / f"natural_images_{part}.npy").symlink_to(path)
    return datasets.natural_images(folder)


def zipped(path):
    path.write_bytes(gzip.compress(idx(np.ones((2, 3, 4), np.uint8))))


def photograph(path):
    path.write_bytes(bytes(2 * 1024 * 1536))


# The ending of a file, what writes a good one, and what reads it.
READERS = {
    "storage.load": (".npz", saved, storage.load),
    "checkpoint": (".npz", kept, from_checkpoint),
    "blocks.from_file": (".npy", rows, blocks.from_file),
    "natural_images.npz": (
        ".npz",
        images,
        partial(from_folder, datasets.natural_images, "natural_images.npz"),
    ),
    "natural_images_train.npy": (".npy", stack, mapped),
    "mnist10k.npz": (
        ".npz",
        labelled,
        partial(from_folder, datasets.digits, "mnist10k.npz"),
    ),
    "idx": (".gz", zipped, digits_beside),
    "iml": (".iml", photograph, partial(from_folder, datasets.van_hateren, "a.iml")),
}
ARCHIVES = [name for name, (ending, *_) in READERS.items() if ending == ".npz"]
MAPPED = [name for name, (ending, *_) in READERS.items() if ending == ".npy"]


def refuses(reader, path):
    """Whether the file is refused in words that name it, and left as it was."""
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"\S+ \S+ \S+") as refusal:
        READERS[reader][2](path)
    assert path.read_bytes() == before
    return str(refusal.value)


def content(found):
    """All arrays of what a reader returned."""
    if isinstance(found, blocks.Blocks):
        found = [block.x for block in found.read()]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(found)]


def shapes(arrays):
    return [(array.shape, array.dtype) for array in arrays]


# What a good file of each kind holds: the sum of all numbers, and their count.
HOLDS = {
    "storage.load": (7, 7),
    "blocks.from_file": (15, 15),
    "natural_images.npz": (48, 48),
    "natural_images_train.npy": (48, 48),
    "mnist10k.npz": (4 + 48 / 255, 52),
    "idx": (4 + 48 / 255, 52),
}


@pytest.mark.parametrize("reader", HOLDS)
def test_a_good_file_is_read_whole(reader, tmp_path):
    ending, write, read = READERS[reader]
    write(tmp_path / f"good{ending}")
    numbers = [a for a in content(read(tmp_path / f"good{ending}")) if a.dtype != "U"]
    numbers = np.concatenate([array.ravel().astype(float) for array in numbers])
    assert (pytest.approx(numbers.sum()), numbers.size) == HOLDS[reader]


def test_a_good_photograph_is_cut_to_its_size(tmp_path):
    photograph(tmp_path / "good.iml")
    (image, *_) = content(READERS["iml"][2](tmp_path / "good.iml"))
    assert image.shape[-2:] == (1024, 1536)
    assert not image.any()


def test_a_good_checkpoint_gives_the_result_of_its_run(tmp_path):
    first = from_checkpoint(tmp_path / "good.npz")
    again = from_checkpoint(tmp_path / "good.npz")
    chex.assert_trees_all_equal(first, again)
    assert np.isfinite(first.log_z)


@pytest.mark.parametrize("reader", READERS)
def test_truncated_files_are_refused_at_every_length(reader, tmp_path):
    ending, write, _ = READERS[reader]
    write(tmp_path / f"good{ending}")
    whole = (tmp_path / f"good{ending}").read_bytes()
    step = max(1, len(whole) // 50)
    lengths = {0, 1, 2, 5, len(whole) - 1, *range(0, len(whole), step)}
    for length in sorted(lengths):
        path = tmp_path / f"short{length}{ending}"
        path.write_bytes(whole[:length])
        refuses(reader, path)


@pytest.mark.parametrize("reader", READERS)
def test_bits_that_flipped_are_refused_or_harmless(reader, tmp_path):
    """What has a checksum is read as it was written, the rest in the same shape."""
    ending, write, read = READERS[reader]
    write(tmp_path / f"good{ending}")
    good = content(read(tmp_path / f"good{ending}"))
    whole = bytearray((tmp_path / f"good{ending}").read_bytes())
    generator = np.random.default_rng(0)
    for place in np.unique(generator.integers(0, min(len(whole), 4000), 30)):
        changed = whole.copy()
        changed[place] ^= 0xFF
        path = tmp_path / f"flipped{place}{ending}"
        path.write_bytes(changed)
        try:
            found = content(read(path))
        except ValueError:
            continue
        assert shapes(found) == shapes(good)
        if ending in (".npz", ".gz"):
            chex.assert_trees_all_equal(found, good)


@pytest.mark.parametrize("reader", READERS)
def test_text_is_refused(reader, tmp_path):
    path = tmp_path / f"text{READERS[reader][0]}"
    path.write_text("0, 1, 1, 0\n" * 100)
    refuses(reader, path)


@pytest.mark.parametrize("reader", READERS)
def test_a_directory_in_place_of_a_file_is_refused(reader, tmp_path):
    path = tmp_path / f"folder{READERS[reader][0]}"
    path.mkdir()
    with pytest.raises(ValueError, match="folder"):
        READERS[reader][2](path)
    assert list(path.iterdir()) == []


def test_what_is_not_there_is_said_to_be_so(tmp_path):
    for read in (storage.load, blocks.from_file):
        with pytest.raises(FileNotFoundError, match="nothing.npy"):
            read(tmp_path / "nothing.npy")


class Hostile:
    """Unpickled, it makes a directory."""

    def __init__(self, place):
        self.place = str(place)

    def __reduce__(self):
        return os.mkdir, (self.place,)


def names_in(path):
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize("reader", ARCHIVES + MAPPED)
def test_nothing_in_a_file_is_run(reader, tmp_path):
    ending, write, _ = READERS[reader]
    good, path = tmp_path / f"good{ending}", tmp_path / f"hostile{ending}"
    place = tmp_path / "made"
    payload = np.array([Hostile(place)] * 2, object)
    write(good)
    if reader in MAPPED:
        np.save(path, payload, allow_pickle=True)
        refuses(reader, path)
    else:
        arrays = names_in(good)
        for name in arrays:
            np.savez(path, **arrays | {name: payload})
            assert "Python objects" in refuses(reader, path)
            path.unlink()
            for folder in tmp_path.glob("folder of *"):
                folder.rename(tmp_path / f"done with {name}")
    assert not place.exists()


@pytest.mark.parametrize("reader", ["storage.load", "checkpoint"])
def test_a_pickle_by_itself_is_not_run(reader, tmp_path):
    import pickle

    path, place = tmp_path / "pickle.npz", tmp_path / "made"
    path.write_bytes(pickle.dumps(Hostile(place)))
    refuses(reader, path)
    assert not place.exists()


def header(shape, dtype):
    head = io.BytesIO()
    told = {"shape": shape, "fortran_order": False, "descr": dtype}
    np.lib.format.write_array_header_1_0(head, told)
    return head.getvalue()


@pytest.mark.parametrize("reader", ARCHIVES)
def test_a_header_that_claims_more_than_there_is_gets_no_room(reader, tmp_path):
    _, write, _ = READERS[reader]
    good, path = tmp_path / "good.npz", tmp_path / "claims.npz"
    write(good)
    arrays = names_in(good)
    with zipfile.ZipFile(path, "w") as archive:
        for name in arrays:
            archive.writestr(f"{name}.npy", header((10, 2**30), "|u1") + bytes(100))
    assert "describes 10737418240 bytes, but it has 100" in refuses(reader, path)


@pytest.mark.parametrize("reader", MAPPED)
def test_a_mapped_file_shorter_than_its_header_says_is_refused(reader, tmp_path):
    path = tmp_path / "claims.npy"
    path.write_bytes(header((10, 2**15, 2**15), "|u1") + bytes(100))
    refuses(reader, path)
    path = tmp_path / "overflow.npy"
    path.write_bytes(header((2**62, 2**62, 2), "|u1"))
    refuses(reader, path)


@pytest.mark.parametrize("reader", ARCHIVES)
def test_an_archive_that_grows_without_measure_is_refused(reader, tmp_path):
    _, write, _ = READERS[reader]
    good, path = tmp_path / "good.npz", tmp_path / "bomb.npz"
    write(good)
    arrays = names_in(good)
    bomb = np.zeros(2**25, np.uint8)
    np.savez_compressed(path, **arrays | {next(iter(arrays)): bomb})
    assert "far more than it has" in refuses(reader, path)


@pytest.mark.parametrize(
    "wrong",
    [
        np.array(["a", "b"]),
        np.ones((2, 3, 4), complex),
        np.zeros((0, 3, 4)),
        np.ones(()),
        np.ones(3, "M8[s]"),
        np.ones(2, [("a", int)]),
    ],
    ids=["text", "complex", "empty", "scalar", "dates", "records"],
)
@pytest.mark.parametrize("reader", MAPPED + ARCHIVES[2:])
def test_arrays_of_another_kind_or_shape_are_refused(reader, wrong, tmp_path):
    ending, write, _ = READERS[reader]
    path = tmp_path / f"wrong{ending}"
    if ending == ".npy":
        np.save(path, wrong)
    else:
        write(tmp_path / "good.npz")
        np.savez(path, **names_in(tmp_path / "good.npz") | {"train": wrong})
    refuses(reader, path)


def test_a_checkpoint_with_arrays_of_another_shape_is_refused(tmp_path):
    path = tmp_path / "ais.npz"
    kept(path)
    found = storage.load(path)
    for leaves in (
        found["leaves"][:-1],
        [*found["leaves"][:-1], jnp.ones(7)],
        [leaf.astype(int) for leaf in found["leaves"]],
        [],
    ):
        storage.save(path, found | {"leaves": leaves})
        refuses("checkpoint", path)
    storage.save(path, found | {"leaves": {"a": jnp.ones(3)}})
    refuses("checkpoint", path)
    for wrong in (
        {"digests": [1, 2]},
        {"layouts": []},
        {"driver": 1},
        {"num_leaves": [-1]},
        {"num_leaves": ["a"]},
        {"surprise": 1},
    ):
        storage.save(path, found | {"header": found["header"] | wrong})
        refuses("checkpoint", path)
