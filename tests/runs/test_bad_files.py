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

from probjax import Checkpoint, Gaussian, Watch, ais, storage
from probjax.data import blocks, datasets
from probjax.samplers import HMC

KEY = jax.random.key(0)
# No two numbers of a stack are alike, nor are a stack and its labels.
STACK = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
LABELS = np.array([7, 3], np.uint8)


def bowl(params, x):
    return params * jnp.sum(x**2)


def from_checkpoint(path):
    return ais(
        KEY,
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
        file.write_bytes(idx({3: STACK, 1: LABELS}[kind]))
    (folder / "train-images-idx3-ubyte").unlink()
    (folder / "train-images-idx3-ubyte.gz").symlink_to(path)
    return datasets.digits(folder)


def idx(array):
    head = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    return head + array.tobytes()


TREE = {
    "a": np.arange(3, dtype=np.float32),
    "b": [np.eye(2, dtype=np.float32), "words"],
}


def saved(path):
    storage.save(path, TREE)


def kept(path):
    from_checkpoint(path)


def images(path):
    np.savez(path, train=STACK / np.float32(2), test=STACK)


def labelled(path):
    parts = dict(train=STACK, train_label=LABELS, test=STACK, test_label=LABELS)
    np.savez(path, **parts)


ROWS = np.arange(15, dtype=np.uint8).reshape(5, 3)


def rows(path):
    np.save(path, ROWS)


def stack(path):
    np.save(path, STACK)


def mapped(path):
    """Both images to train on and to test are the file."""
    folder = path.parent / f"folder of {path.name}"
    folder.mkdir()
    for part in ("train", "test"):
        (folder / f"natural_images_{part}.npy").symlink_to(path)
    return datasets.natural_images(folder)


def zipped(path):
    path.write_bytes(gzip.compress(idx(STACK)))


PHOTOGRAPH = np.arange(1024 * 1536).reshape(1024, 1536).astype(np.uint16)


def photograph(path):
    path.write_bytes(PHOTOGRAPH.astype(">u2").tobytes())


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


DIGITS = [STACK / np.float32(255), LABELS.astype(np.int32)] * 2
# The arrays that a good file of each kind holds, in order.
HOLDS = {
    "storage.load": [TREE["a"], TREE["b"][0], np.array("words")],
    "blocks.from_file": [ROWS],
    "natural_images.npz": [STACK / np.float32(2), STACK],
    "natural_images_train.npy": [STACK, STACK],
    "mnist10k.npz": DIGITS,
    "idx": DIGITS,
    "iml": [PHOTOGRAPH],
}


@pytest.mark.parametrize("reader", HOLDS)
def test_a_good_file_is_read_whole(reader, tmp_path):
    ending, write, read = READERS[reader]
    write(tmp_path / f"good{ending}")
    found = content(read(tmp_path / f"good{ending}"))
    assert len(found) == len(HOLDS[reader])
    for array, wanted in zip(found, HOLDS[reader], strict=True):
        assert array.dtype.kind == wanted.dtype.kind
        np.testing.assert_array_equal(array, wanted, strict=wanted.dtype != np.uint16)


def test_a_good_checkpoint_gives_the_result_of_its_run(tmp_path):
    """And is read to give it: nothing is left to do, and nothing written again."""
    first = from_checkpoint(tmp_path / "good.npz")
    written = (tmp_path / "good.npz").read_bytes()
    again = from_checkpoint(tmp_path / "good.npz")
    chex.assert_trees_all_equal(first, again)
    assert (tmp_path / "good.npz").read_bytes() == written
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
    has_checksum, num_refused = ending in (".npz", ".gz"), 0
    generator = np.random.default_rng(0)
    for place in np.unique(generator.integers(0, min(len(whole), 4000), 30)):
        changed = whole.copy()
        changed[place] ^= 0xFF
        path = tmp_path / f"flipped{place}{ending}"
        path.write_bytes(changed)
        try:
            found = content(read(path))
        except ValueError:
            num_refused += 1
            continue
        assert shapes(found) == shapes(good)
        if has_checksum:
            chex.assert_trees_all_equal(found, good)
    assert num_refused or not has_checksum


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
    assert "too many for its size" in refuses(reader, path)


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
    arrays = [np.asarray(leaf) for leaf in found["leaves"]]
    for leaves in (
        arrays[:-1],
        [*arrays[:-1], np.ones(7, np.float32)],
        [leaf.astype(np.int32) for leaf in arrays],
        [],
    ):
        storage.save(path, found | {"leaves": leaves})
        refuses("checkpoint", path)
    storage.save(path, found | {"leaves": {"a": np.ones(3, np.float32)}})
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
