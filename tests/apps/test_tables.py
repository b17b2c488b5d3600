import pickle

import numpy as np
import pytest

from probjax.apps import tables


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content)
        return path

    return write


BITS = np.array([[0, 1, 1], [1, 0, 0]])


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float32])
def test_bits_come_back_whatever_they_were_stored_as(tmp_path, kind):
    np.save(tmp_path / "x.npy", BITS.astype(kind))
    np.savez(tmp_path / "one.npz", BITS.astype(kind))
    np.savez(tmp_path / "two.npz", a=BITS.astype(kind), b=np.zeros(3))
    for found in (
        tables.read(tmp_path / "x.npy"),
        tables.read(tmp_path / "one.npz"),
        tables.read(tmp_path / "two.npz", array="a"),
    ):
        np.testing.assert_array_equal(found.x, BITS)
        assert found.alphabet == found.header == ()


@pytest.mark.parametrize(
    ("text", "alphabet", "header"),
    [
        ("0,1,1\n1,0,0\n", (), ()),
        ("a,b,c\n0,1,1\n1,0,0\n", (), ("a", "b", "c")),
        ("0,1,2\n0,1,1\n1,0,0\n", (), ("0", "1", "2")),
        ("\ufeff0; 1; 1\r\n\r\n1; 0; 0\r\n", (), ()),
        ("-1\t1.0\t1\n1\t-1\t-1\n", ("-1", "1"), ()),
        ("no,yes,yes\nyes,no,no", ("no", "yes"), ()),
        ("first,second,third\nA,C,C\nC,A,A", ("A", "C"), ("first", "second", "third")),
    ],
)
def test_text_is_read_with_or_without_header(file, text, alphabet, header):
    found = tables.read(file("x.csv", text.encode()))
    np.testing.assert_array_equal(found.x, BITS)
    assert found.alphabet == alphabet
    assert found.header == header


def test_a_row_that_counts_is_a_state_where_letters_go_as_far(file):
    found = tables.read(file("x.csv", "0,1,2\n2,0,1\n"))
    np.testing.assert_array_equal(found.x, [[0, 1, 2], [2, 0, 1]])


def test_a_row_of_numbers_is_a_state_even_if_none_comes_again(file):
    found = tables.read(file("x.csv", "0,0,0\n1,1,1\n1,1,1\n"))
    np.testing.assert_array_equal(found.x, [[0, 0, 0], [1, 1, 1], [1, 1, 1]])


def test_the_alphabet_of_a_model_decides(file):
    ones = file("ones.csv", "1,1\n1,1\n")
    assert tables.read(ones).alphabet == ()
    np.testing.assert_array_equal(tables.read(ones, alphabet=("-1", "1")).x, 1)
    letters = file("letters.csv", "C,C\nG,C\n")
    np.testing.assert_array_equal(
        tables.read(letters, alphabet=("A", "C", "G")).x, [[1, 1], [2, 1]]
    )
    with pytest.raises(ValueError, match="has the letter 'G', but the model was"):
        tables.read(letters, alphabet=("A", "C"))
    spins = file("spins.csv", "1,1\n-1,1\n")
    with pytest.raises(ValueError, match="contains spins .* fitted to bits"):
        tables.read(spins, alphabet=())
    with pytest.raises(ValueError, match="has the letter 'C', .* numbers from 0"):
        tables.read(letters, alphabet=())


def test_a_row_of_known_letters_is_no_header(file):
    row = file("x.csv", "C,A,G\n")
    found = tables.read(row, alphabet=("A", "C", "G"))
    np.testing.assert_array_equal(found.x, [[1, 0, 2]])
    with pytest.raises(ValueError, match="has a header but no rows"):
        tables.read(row, alphabet=())


def test_tabs_part_the_columns_of_a_tsv(file):
    found = tables.read(file("x.tsv", "a, 1\tb\n0\t1\n1\t1\n"))
    np.testing.assert_array_equal(found.x, [[0, 1], [1, 1]])
    assert found.header == ("a, 1", "b")


def test_a_column_of_letters_that_counts_is_no_index_beside_letters(file):
    found = tables.read(file("x.csv", "0,2\n1,0\n2,1\n"))
    np.testing.assert_array_equal(found.x, [[0, 2], [1, 0], [2, 1]])


@pytest.mark.parametrize(
    ("alphabet", "ending"),
    [((), "npy"), ((), "csv"), (("-1", "1"), "npy"), (("A", "C"), "csv")],
)
def test_what_is_written_is_read_back(tmp_path, alphabet, ending):
    path = tmp_path / f"x.{ending}"
    tables.write(path, BITS.astype(float), alphabet)
    found = tables.read(path)
    np.testing.assert_array_equal(found.x, BITS)
    assert found.alphabet == alphabet


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def _npy(array, **options):
    import io

    stored = io.BytesIO()
    np.save(stored, array, **options)
    return stored.getvalue()


def _npz(name, member):
    import io
    import zipfile

    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        archive.writestr(f"{name}.npy", member)
    return stored.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.npy", _npy(BITS)[:-5], "damaged or truncated"),
        ("x.npy", _npy(BITS)[:20], "damaged or truncated"),
        ("x.npy", b"", "not an array saved by NumPy"),
        ("x.npy", _npy(BITS).replace(b"(2, 3)", b"(9999999999, 3)"), "damaged"),
        ("x.npy", pickle.dumps(Trap()), "pickles are not read"),
        ("x.npy", _npy(np.array([[Trap()]], object)), "pickles are not read"),
        ("x.npy", _npy(np.array([0, 1])), r"shape \(row, site\), got \(2,\)"),
        ("x.npy", _npy(np.zeros((0, 3))), "is empty"),
        ("x.npy", _npy(BITS * 1j), "must contain numbers or text, got complex128"),
        ("x.npy", _npy(BITS / 4), "whole numbers or text, got 0.25 at row 1, column 2"),
        (
            "x.npy",
            _npy(np.where(BITS, np.nan, 0)),
            "missing entry at row 1, column 2; remove",
        ),
        ("x.npy", _npy(BITS - 3), "or letters from 0 to 999, got -3"),
        ("x.npz", b"PK not a zip", "damaged or not an .npz"),
        ("x.npz", _npz("a", _npy(np.array([[Trap()]], object))), "pickles are not"),
        ("x.npz", _npz("a pickle", _npy(BITS)[:-5]), "damaged or truncated"),
        ("x.csv", "", "is empty"),
        ("x.csv", "\n\n", "is empty"),
        ("x.csv", "0,1\n0,1,1\n", "got 2 in line 1 and 3 in line 2"),
        ("x.csv", "0,1\nnan,1\n", "missing entry at line 2, column 1; remove"),
        ("x.csv", "a,b\n\n0,1\n,1\n", "missing entry at line 4, column 1; remove"),
        ("x.csv", "a,b\n0,1\n0,NA\n", "missing entry at line 3, column 2; remove"),
        ("x.csv", "a,b,c\n", "has a header but no rows"),
        ("x.csv", "0,0,1\n1,1,1\n2,1,0\n", "a first column that looks like"),
        ("x.csv", ",a,b\n1,0,1\n2,1,1\n3,1,0\n", "a first column that looks like"),
        ("x.csv", ",0,1\n0,A,C\n1,A,A\n2,C,C\n", "a first column that looks like"),
        ("x.csv", ",0,1\n0,1,1\n1,1,0\n2,0,1\n", "a first column that looks like"),
        ("x.npy", _npy(np.arange(6).reshape(2, 3).T % 4 % 3), "looks like an index"),
        ("x.csv", "It was\na dark\nand\nstormy\n", "got one column of 3 different"),
        ("x.csv", "A,C\nA,\n", "missing entry at line 2, column 2; remove"),
        ("x.csv", b"\xff\xfe\x00\x81", "is not a text"),
        ("x.txt", "0,1\n", "must end in .npy, .npz, .csv or .tsv"),
    ],
)
def test_trouble_is_one_sentence(file, name, content, said):
    path = file(name, content)
    with pytest.raises(ValueError, match=said) as raised:
        tables.read(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_files_that_are_none_and_arrays_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        tables.read(tmp_path / "x.npy")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        tables.read(tmp_path / "folder.npy")
    np.savez(tmp_path / "two.npz", a=BITS, b=BITS)
    with pytest.raises(ValueError, match="contains 2 arrays, a, b; name one"):
        tables.read(tmp_path / "two.npz")
    with pytest.raises(ValueError, match="has no array c, only a, b"):
        tables.read(tmp_path / "two.npz", array="c")
    np.save(tmp_path / "x.npy", BITS)
    with pytest.raises(ValueError, match="must be an .npz file"):
        tables.read(tmp_path / "x.npy", array="a")
    with pytest.raises(ValueError, match="must end in .npy or .csv"):
        tables.write(tmp_path / "x.txt", BITS)
