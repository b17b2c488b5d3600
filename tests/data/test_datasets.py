import gzip
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from probjax.data import datasets, preprocessing


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    monkeypatch.delenv("PROBJAX_DATA", raising=False)


def stacks():
    train = np.arange(2 * 8 * 9, dtype=np.uint16).reshape(2, 8, 9)
    return train, train[:1] + 7


def write_iml(path, value=0):
    image = np.full((1024, 1536), value, ">u2")
    image[3, 5] = 258
    image.tofile(path)


def test_an_archive_is_read_from_the_folder_named_by_argument_or_environment(
    tmp_path, monkeypatch
):
    train, test = stacks()
    extra = np.arange(3)
    np.savez(tmp_path / "natural_images.npz", train=train, test=test, train_id=extra)
    found = datasets.natural_images(str(tmp_path))
    np.testing.assert_array_equal(found.train, train)
    np.testing.assert_array_equal(found.test, test)
    assert found.train.dtype == np.uint16
    monkeypatch.setenv("PROBJAX_DATA", str(tmp_path))
    np.testing.assert_array_equal(datasets.natural_images().test, test)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="must hold natural_images.npz, .* got none"):
        datasets.natural_images(tmp_path / "empty")


def test_large_stacks_are_mapped_and_not_read(tmp_path):
    train, test = stacks()
    np.save(tmp_path / "natural_images_train.npy", train)
    np.save(tmp_path / "natural_images_test.npy", test)
    found = datasets.natural_images(tmp_path)
    np.testing.assert_array_equal(found.train, train)
    assert isinstance(found.train, np.memmap)
    assert isinstance(found.test, np.memmap)
    (tmp_path / "natural_images_test.npy").unlink()
    with pytest.raises(ValueError, match="natural_images_test.npy cannot be read"):
        datasets.natural_images(tmp_path)


def test_iml_images_are_16_bits_high_byte_first_and_the_last_tenth_tests(tmp_path):
    for number in range(11):
        with open(tmp_path / f"imk{number:05}.iml", "wb") as file:
            file.truncate(2 * 1024 * 1536)
    write_iml(tmp_path / "imk00000.iml", value=513)
    (tmp_path / "README.txt").write_text("not an image")
    found = datasets.natural_images(tmp_path)
    assert (len(found.train), len(found.test)) == (9, 2)
    assert found.train[0].shape == (1024, 1536)
    assert found.train[0][0, 0] == 513
    assert found.train[0][3, 5] == 258
    assert found.train[0][5, 3] == 513
    assert found.test[1].filename.name == "imk00010.iml"


def test_files_of_another_size_are_no_iml_images(tmp_path):
    write_iml(tmp_path / "a.iml")
    with pytest.raises(ValueError, match="at least two images, .* got 1"):
        datasets.natural_images(tmp_path)
    (tmp_path / "b.IML").write_bytes(b"12345678")
    with pytest.raises(ValueError, match=r"b.IML is not an .iml image.*3145728.*got 8"):
        datasets.van_hateren(tmp_path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"train": np.ones((2, 8, 8))},
            r"arrays \['test'\], got only \['train'\]",
        ),
        ({"train": np.ones((8, 8)), "test": np.ones((1, 8, 8))}, r"shape \(8, 8\)"),
        ({"train": np.ones((0, 8, 8)), "test": np.ones((1, 8, 8))}, r"\(0, 8, 8\)"),
        ({"train": np.full((1, 2, 2), "a"), "test": np.ones((1, 8, 8))}, "got <U1"),
        ({"train": np.full((1, 2, 2), 1j), "test": np.ones((1, 8, 8))}, "complex"),
        ({"train": np.full((1, 2, 2), None), "test": np.ones((1, 8, 8))}, "pickle"),
    ],
)
def test_archives_of_something_else_are_refused(arrays, message, tmp_path):
    np.savez(tmp_path / "natural_images.npz", **arrays)
    with pytest.raises(ValueError, match=f"cannot be read as images: .*{message}"):
        datasets.natural_images(tmp_path)


class Trap:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["natural_images.npz", "natural_images_train.npy"])
def test_damaged_files_are_refused_and_nothing_in_them_is_run(name, tmp_path):
    train, test = stacks()
    path, sprung = tmp_path / name, tmp_path / "sprung"
    np.savez(tmp_path / "natural_images.npz", train=train, test=test)
    np.save(tmp_path / "natural_images_train.npy", train)
    whole = path.read_bytes()
    (tmp_path / "natural_images.npz").unlink()
    np.save(tmp_path / "trap.npy", np.array([Trap(sprung)]), allow_pickle=True)
    trap = (tmp_path / "trap.npy").read_bytes()
    for content in (b"", b"words", whole[:50], whole[: len(whole) // 2], trap):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} cannot be read as images"):
            datasets.natural_images(tmp_path)
    assert not sprung.exists()


def test_a_folder_that_is_not_there_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="existing folder, got .*nowhere'"):
        datasets.natural_images(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="existing folder, got ''"):
        datasets.natural_images("")
    monkeypatch.setenv("PROBJAX_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(ValueError, match="existing folder, got .*elsewhere'"):
        datasets.natural_images()


def test_photographs_are_linear_positive_and_of_two_halves(monkeypatch):
    levels = np.array([[0, 10, 128, 255]], np.uint8)
    grey = np.repeat(levels[:, :, None], 3, axis=2)
    colours = np.zeros((1, 4, 3), np.uint8)
    colours[0, :3] = 255 * np.eye(3)
    shipped = SimpleNamespace(
        load_sample_images=lambda: SimpleNamespace(images=[grey, colours])
    )
    monkeypatch.setitem(sys.modules, "sklearn", SimpleNamespace(datasets=shipped))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", shipped)
    train, test = datasets.natural_images()
    assert train.shape == test.shape == (2, 1, 2)
    whole = np.concatenate([train, test], axis=2)[:, 0]
    least = 1 / 255 / 12.92
    # The standard's own values: below 0.04045 a line, above a power of 2.4.
    np.testing.assert_allclose(whole[0], [least, 10 * least, 0.2158605, 1], rtol=1e-5)
    # The shares of red, green and blue in what is seen as brightness.
    np.testing.assert_allclose(whole[1], [0.2126, 0.7152, 0.0722, least], rtol=1e-5)


def test_the_photographs_that_scikit_learn_ships_can_be_logged():
    pytest.importorskip("sklearn")
    images = datasets.natural_images()
    assert images.train.shape == images.test.shape == (2, 427, 320)
    assert np.isfinite(preprocessing.log_intensity(images.train)).all()
    assert images.train.max() <= 1


@pytest.mark.parametrize("missing", ["sklearn.datasets", "PIL"])
def test_what_is_not_installed_is_named(missing, monkeypatch):
    if missing == "PIL":
        pytest.importorskip("sklearn")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match="pip install scikit-learn pillow, or give"):
        datasets.natural_images()


def some_digits():
    generator = np.random.default_rng(0)
    train, test = (generator.integers(0, 256, (n, 4, 3), np.uint8) for n in (7, 5))
    train[0, 0, :2] = 0, 255
    return {
        "train": train,
        "train_label": np.arange(7, dtype=np.uint8),
        "test": test,
        "test_label": np.arange(5, 10, dtype=np.uint8),
    }


IDX = dict(
    zip(
        ("train", "train_label", "test", "test_label"),
        (
            "train-images-idx3-ubyte",
            "train-labels-idx1-ubyte",
            "t10k-images-idx3-ubyte",
            "t10k-labels-idx1-ubyte",
        ),
        strict=True,
    )
)


def idx_bytes(array):
    """As the format is told: two zeros, 8 for bytes, the axes and their lengths."""
    head = bytes([0, 0, 8, array.ndim])
    lengths = b"".join(length.to_bytes(4, "big") for length in array.shape)
    return head + lengths + array.tobytes()


def write_idx(folder, packed=False):
    for name, array in some_digits().items():
        content = idx_bytes(array)
        if packed:
            (folder / f"{IDX[name]}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / IDX[name]).write_bytes(content)


@pytest.mark.parametrize("form", ["archive", "idx", "gzip"])
def test_digits_are_intensities_with_labels_whatever_their_form(form, tmp_path):
    if form == "archive":
        np.savez(tmp_path / "mnist10k.npz", **some_digits())
    else:
        write_idx(tmp_path, packed=form == "gzip")
    found, given = datasets.digits(tmp_path), some_digits()
    np.testing.assert_allclose(found.train, given["train"] / 255, rtol=1e-6)
    np.testing.assert_allclose(found.test, given["test"] / 255, rtol=1e-6)
    np.testing.assert_array_equal(found.train_label, given["train_label"])
    np.testing.assert_array_equal(found.test_label, given["test_label"])
    assert found.train.dtype == np.float32
    assert found.train[0, 0, :2].tolist() == [0, 1]


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_idx_files_are_refused_in_a_sentence(packed, tmp_path):
    write_idx(tmp_path, packed)
    path = tmp_path / (IDX["train"] + (".gz" if packed else ""))
    whole = idx_bytes(some_digits()["train"])
    huge = whole[:4] + b"\xff" * 12
    large = whole[:4] + (2**20).to_bytes(4, "big") + (1).to_bytes(4, "big") * 2
    for content, message in (
        (b"", "requires a buffer of 16 bytes"),
        (whole[:9], "requires a buffer of 16 bytes"),
        (whole[:-1], "fewer than the 84 bytes that its header declares"),
        (whole + b"1", "more than the 84 bytes that its header declares"),
        (large + b"12", "fewer than the 1048576 bytes"),
        (huge, "its header declares .*4294967295"),
        (whole[:4] + b"\0" * 12, r"its header declares shape \[0, 0, 0\], 0 bytes"),
        (idx_bytes(np.zeros(20, np.uint8)), "must begin with 0x803, got 0x801"),
    ):
        path.write_bytes(gzip.compress(content) if packed else content)
        with pytest.raises(ValueError, match=f"cannot be read as digits: .*{message}"):
            datasets.digits(tmp_path)
    if packed:
        path.write_bytes(gzip.compress(whole)[:-12])
        with pytest.raises(
            ValueError, match="cannot be read as digits: .*ended before"
        ):
            datasets.digits(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match="must hold mnist10k.npz, .* got none"):
        datasets.digits(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": np.zeros((7, 12), np.uint8)}, r"train must be .* shape \(7, 12\)"),
        ({"train": np.full((7, 4, 3), 0.5)}, "0 to 255, uint8, got float64"),
        (
            {"test_label": np.arange(6, 11)},
            "label must be from 0 to 9, got 6 to 10",
        ),
        ({"test_label": np.ones(5)}, "one integer for each digit, got float64"),
        ({"test_label": np.arange(4)}, "one label for each digit, got 4 .* for 5"),
        ({"test": np.zeros((5, 3, 4), np.uint8)}, r"one size, got \(4, 3\) and \(3, 4"),
    ],
)
def test_archives_that_hold_no_digits_are_refused(change, message, tmp_path):
    np.savez(tmp_path / "mnist10k.npz", **(some_digits() | change))
    with pytest.raises(ValueError, match=message):
        datasets.digits(tmp_path)
    np.savez(tmp_path / "mnist10k.npz", train=np.zeros((1, 2, 2)))
    with pytest.raises(
        ValueError, match="mnist10k.npz cannot be read .*must hold arrays"
    ):
        datasets.digits(tmp_path)


def test_labels_of_idx_files_are_checked_too(tmp_path):
    write_idx(tmp_path)
    (tmp_path / IDX["test_label"]).write_bytes(idx_bytes(np.full(5, 77, np.uint8)))
    with pytest.raises(ValueError, match="t10k-labels.*must be from 0 to 9, got 77 to"):
        datasets.digits(tmp_path)


def test_the_digits_that_scikit_learn_ships_need_no_folder(monkeypatch):
    pytest.importorskip("sklearn")
    found = datasets.digits()
    assert found.train.shape == (1438, 8, 8)
    assert found.test.shape == (359, 8, 8)
    assert found.train.min() == 0
    assert found.train.max() == 1
    for labels in (found.train_label, found.test_label):
        assert np.bincount(labels).min() > len(labels) / 15
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="pip install scikit-learn, or give a folder"):
        datasets.digits()


@pytest.mark.platforms
def test_nothing_of_the_extras_is_imported_with_the_library():
    code = (
        "import sys, probjax, probjax.plots; "
        "print({'sklearn', 'matplotlib', 'PIL'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "set()", ran.stderr
