"""Arrays, keys and Python values come back from files as they were, or are refused."""

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from test_round_trips import TRIPS, assert_same, stored

from probjax import storage


def extremes(dtype):
    """Numbers that a conversion would change, in a table of 3 x 2."""
    if dtype.kind == "b":
        values = [False, True] * 3
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = [limits.min, limits.max, 0, 1, limits.min + 1, limits.max - 1]
    else:
        limits = np.finfo(dtype)
        values = [np.nan, -np.inf, -0.0, limits.smallest_subnormal, limits.max, 1 / 3]
        if dtype.kind == "c":
            values = np.stack([values, values[::-1]], axis=1).astype(limits.dtype)
            return values.view(dtype).reshape(3, 2)
    return np.array(values, dtype).reshape(3, 2)


LAYOUTS = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "every second, reversed": lambda x: np.repeat(x, 2, axis=0)[::-2],
    "repeated without a copy": lambda x: np.broadcast_to(x, (2, 3, 2)),
    "no dimension": lambda x: x[1, 1, ...],
    "a scalar of NumPy": lambda x: x.dtype.type(x[0, 0]),
    "size 0": lambda x: x[:0],
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "read only": lambda x: np.frombuffer(x.tobytes(), x.dtype),
}
DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 "
DTYPES += "float64 complex64 complex128"
NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32"}
NARROW["complex128"] = "complex64"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wide", [False, True])
def test_arrays_of_every_dtype_keep_their_bits(layout, wide, tmp_path):
    """Also extreme numbers, unless 64 bits are needed and not enabled."""
    for dtype in map(np.dtype, DTYPES.split()):
        array = LAYOUTS[layout](extremes(dtype))
        native = np.asarray(array).astype(dtype)
        # A scalar of float64 is a Python number, and saved as such.
        is_python = isinstance(array, float)
        target = dtype if wide or is_python else np.dtype(NARROW.get(dtype.name, dtype))
        fits = dtype.kind in "iu" and np.array_equal(native.astype(target), native)
        with jax.enable_x64(wide):
            if target == dtype or fits:
                found = stored([array], tmp_path)[0]
                assert isinstance(found, float if is_python else jax.Array)
                assert_same(np.asarray(found), native.astype(target))
            else:
                with pytest.raises(ValueError, match=f"holds {dtype} numbers; enable"):
                    stored(array, tmp_path)


def foreign_arrays():
    for kind in vars(ml_dtypes).values():
        if isinstance(kind, type) and issubclass(kind, np.generic):
            yield np.zeros(2).astype(kind)
    yield jnp.asarray(np.zeros(2, jnp.bfloat16))
    yield jnp.asarray(np.zeros(2, jnp.float8_e5m2))
    for kind in ("g", "G", "S3", "U3", "M8[s]", "m8[s]", "V4", "O", "i4,f4"):
        yield np.zeros(2, kind)


def test_arrays_that_no_file_can_hold_are_refused_when_they_are_saved(tmp_path):
    """A file that could be written but not read would lose the result."""
    given = list(foreign_arrays())
    assert len(given) > 20
    for array in given:
        with pytest.raises(ValueError, match="^cannot save an array of "):
            storage.save(tmp_path / "tree.npz", {"x": array})
    with pytest.raises(ValueError, match="masked array; save its data and its mask"):
        storage.save(tmp_path / "tree.npz", np.ma.array([1, 2], mask=[True, False]))
    assert list(tmp_path.iterdir()) == []


IMPLEMENTATIONS = "threefry2x32", "rbg", "unsafe_rbg"


@pytest.mark.parametrize("kind", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_keys_keep_their_kind_and_their_words(kind, shape, tmp_path):
    key = jax.random.key(7, impl=kind)
    legacy = jax.random.PRNGKey(7, impl=kind)
    tree = {"key": jax.random.split(key, shape) if shape else key, "legacy": legacy}
    # Before version 0.10 of jax, keys can be neither pickled nor copied.
    others = TRIPS.values() if jax.__version_info__ >= (0, 10) else ()
    for trip in (partial(stored, folder=tmp_path), *others):
        found = trip(tree)
        assert found["key"].dtype == tree["key"].dtype
        assert_same(found, tree)


PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    2**70,
    0.1,
    -0.0,
    5e-324,
    1e308,
    "",
    "é\n\0",
    "\ud800",
]
PLAIN += [float("nan"), float("inf"), -float("inf"), (), [], {}, ((),), [{"": None}]]
OTHERS = [1j, b"x", range(3), {1: 2}, {1}, ..., slice(2), int, np.dtype("f4"), len]


def test_python_values_come_back_with_their_type(tmp_path):
    found = stored(PLAIN, tmp_path)
    # `repr` tells 1 from True and from 1.0, and -0.0 from 0.0.
    assert repr(found) == repr(PLAIN)
    for other in OTHERS:
        with pytest.raises(ValueError, match="^cannot save a "):
            storage.save(tmp_path / "tree.npz", [other])
    assert stored(np.float64(0.1), tmp_path) == 0.1
    assert stored(np.str_("a"), tmp_path) == "a"
