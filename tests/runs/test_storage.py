import dataclasses
import io
import os
import threading
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import random_ising

from probjax import MPF, fit, ising, storage
from probjax.trees import as_array

ONES = as_array(np.ones(2, np.float32))
THREE = as_array(np.arange(3, dtype=np.float32))
ZERO, ONE = (as_array(np.float32(number)) for number in (0, 1))


class Mine(NamedTuple):
    weight: jax.Array
    shift: jax.Array


def test_params_come_back_equal_with_their_static_fields(tmp_path):
    params = random_ising(0, 5, edges=[(0, 1), (3, 2)])
    storage.save(tmp_path / "model.npz", params)
    assert storage.load(tmp_path / "model.npz") == params
    assert storage.load(tmp_path / "model.npz", like=params) == params


def test_files_with_tuples_of_edges_are_read(tmp_path):
    params = random_ising(0, 5, edges=[(0, 1), (3, 2)])
    edges = tuple(params.edges)
    object.__setattr__(params, "edges", edges)
    storage.save(tmp_path / "model.npz", params)
    loaded = storage.load(tmp_path / "model.npz")
    assert loaded.edges == ising.Edges(edges)
    assert storage.load(tmp_path / "model.npz", like=loaded) == loaded


def test_a_fit_comes_back_whole(tmp_path, key):
    rows = np.random.default_rng(0).integers(0, 2, (50, 4))
    found = fit(key, MPF(ising.energy), random_ising(0, 4), rows)
    storage.save(tmp_path / "fit", found)
    chex.assert_trees_all_equal(storage.load(tmp_path / "fit"), found)


def test_any_nesting_of_plain_containers_comes_back(tmp_path, key):
    tree = {
        "b": [THREE, 2, "words"],
        "a": (None, np.float32(1.5)),
        "key": key,
        "state": optax.adam(0.1).init(ONES),
    }
    storage.save(tmp_path / "tree", tree)
    loaded = storage.load(tmp_path / "tree")
    assert jax.tree.structure(loaded) == jax.tree.structure(tree)
    chex.assert_trees_all_equal(loaded["state"], tree["state"])
    assert loaded["b"][1:] == [2, "words"]
    np.testing.assert_array_equal(loaded["b"][0], THREE)
    assert loaded["key"].dtype == key.dtype
    words = map(jax.random.key_data, (loaded["key"], key))
    np.testing.assert_array_equal(*words)


def test_foreign_classes_need_a_likeness(tmp_path):
    mine = Mine(THREE, ONE)
    storage.save(tmp_path / "mine", mine)
    with pytest.raises(ValueError, match="pass like="):
        storage.load(tmp_path / "mine")
    loaded = storage.load(tmp_path / "mine", like=Mine(np.zeros(3, np.float32), ZERO))
    chex.assert_trees_all_equal(loaded, mine)
    with pytest.raises(ValueError, match="expected"):
        storage.load(tmp_path / "mine", like=Mine(np.zeros(4, np.float32), ZERO))


def test_truncated_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "model"
    storage.save(path, random_ising(0, 5))
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"not a model"):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="cannot be read as a probjax file"):
            storage.load(path)
    np.savez(path.with_suffix(".npz"), weights=np.ones(3))
    with pytest.raises(ValueError, match="cannot be read as a probjax file"):
        storage.load(path.with_suffix(".npz"))
    np.savez(path.with_suffix(".npz"), structure=np.array('{"format": "other"}'))
    with pytest.raises(ValueError, match="format"):
        storage.load(path.with_suffix(".npz"))


def test_damage_anywhere_in_a_file_is_one_value_error(tmp_path):
    def forged(text):
        np.savez(tmp_path / "forged.npz", structure=np.array(text))
        return tmp_path / "forged.npz"

    for tree in (
        '{"record": "probjax.gone:Params", "fields": {}}',
        '{"record": "probjax.models.ising:Gone", "fields": {}}',
        '{"record": "probjax.models.ising:Params", "fields": {}}',
        '{"leaf": 3}',
        '{"surprise": 1}',
    ):
        with pytest.raises(ValueError, match="cannot be read"):
            storage.load(forged(f'{{"format": "probjax 2", "tree": {tree}}}'))
    with pytest.raises(ValueError, match="cannot be read"):
        storage.load(forged('{"format": "probjax 1"}'))
    params = random_ising(0, 5)
    storage.save(tmp_path / "model", params)
    whole, num_refused = (tmp_path / "model").read_bytes(), 0
    for place in range(0, len(whole), 97):
        broken = bytes([*whole[:place], whole[place] ^ 255, *whole[place + 1 :]])
        (tmp_path / "model").write_bytes(broken)
        try:
            loaded = storage.load(tmp_path / "model")
        except ValueError:
            num_refused += 1
            continue
        # As a time of writing in the archive, which nobody reads.
        chex.assert_trees_all_equal(loaded, params)
    assert num_refused


def test_a_likeness_must_have_the_same_names(tmp_path):
    path = tmp_path / "tree"
    ordered = OrderedDict(b=np.zeros(2, np.float32), a=ONES)
    storage.save(path, ordered)
    loaded = storage.load(path, like=ordered)
    np.testing.assert_array_equal(loaded["b"], 0)
    np.testing.assert_array_equal(loaded["a"], 1)
    with pytest.raises(ValueError, match=r"expected names \['a', 'c'\]"):
        storage.load(path, like={"a": ONES, "c": ONES})
    storage.save(path, {"a": ONES, "b": 0.5})
    assert storage.load(path, like={"a": ONES, "b": 0.0})["b"] == 0.5


def test_what_cannot_be_loaded_as_it_was_is_refused(tmp_path):
    with pytest.raises(ValueError, match="bfloat16"):
        storage.save(tmp_path / "half", np.ones(2, jnp.bfloat16))
    storage.save(tmp_path / "double", np.ones(2))
    with pytest.raises(ValueError, match="jax_enable_x64"):
        storage.load(tmp_path / "double")
    with jax.enable_x64(True):
        assert storage.load(tmp_path / "double").dtype == np.float64


def test_a_failed_save_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "model"
    storage.save(path, random_ising(0, 3))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="cannot save a function"):
        storage.save(path, {"energy": ising.energy})
    with pytest.raises((ValueError, TypeError)):
        storage.save(path, {"object": np.array([{}], dtype=object)})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_a_file_cannot_name_code_to_run(tmp_path):
    def forged(name):
        node = (
            f'{{"format": "probjax 1", "tree": {{"record": "{name}", "fields": {{}}}}}}'
        )
        np.savez(tmp_path / "forged.npz", structure=np.array(node))
        return tmp_path / "forged.npz"

    with pytest.raises(ValueError, match="pass like="):
        storage.load(forged("os:getcwd"))
    with pytest.raises(ValueError, match="not a record"):
        storage.load(forged("optax:GradientTransformation.__call__"))


def test_threads_that_save_to_one_path_leave_one_of_their_files(tmp_path, monkeypatch):
    """All threads have written their arrays before the first one moves its file."""
    path, num_threads = tmp_path / "model", 4
    barrier = threading.Barrier(num_threads)
    fsync = os.fsync

    def wait(descriptor):
        fsync(descriptor)
        barrier.wait(60)

    monkeypatch.setattr(storage.os, "fsync", wait)
    trees = [np.full(3, i, np.int32) for i in range(num_threads)]
    threads = [threading.Thread(target=storage.save, args=[path, t]) for t in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loaded = storage.load(path).tolist()
    assert loaded in [tree.tolist() for tree in trees]
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_a_write_that_fails_leaves_no_partial_file(tmp_path, monkeypatch):
    for name in ("fsync", "replace"):
        with monkeypatch.context() as context:
            context.setattr(storage.os, name, Mock(side_effect=OSError("full")))
            with pytest.raises(OSError, match="full"):
                storage.save(tmp_path / "model", THREE)
    assert list(tmp_path.iterdir()) == []


def test_partial_files_of_a_killed_process_are_removed(tmp_path, monkeypatch):
    path = tmp_path / "[a].npz"
    others = [
        tmp_path / name for name in ("[a].npz", ".[a].npz.notes", ".a.npz.partial")
    ]
    for file in others:
        file.write_bytes(b"mine")
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    monkeypatch.setattr(storage.os, "replace", Mock(side_effect=OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        storage.save(path, THREE)
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 4
    storage.remove_partial_files(path)
    assert set(tmp_path.iterdir()) == set(others)


DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 "
DTYPES += "float64 complex64 complex128"


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_every_dtype_comes_back_equal_or_is_refused(dtype, tmp_path):
    """Wide integers that fit are narrowed, as by `jnp.asarray`; others are refused."""
    array = np.array([0, 1, 1], dtype)
    storage.save(tmp_path / "a.npz", {"x": array})
    if dtype in ("float64", "complex128"):
        with pytest.raises(ValueError, match=f"holds {dtype} numbers; enable"):
            storage.load(tmp_path / "a.npz")
    else:
        found = np.asarray(storage.load(tmp_path / "a.npz")["x"])
        np.testing.assert_array_equal(found, array)
    with jax.enable_x64(True):
        wide = np.asarray(storage.load(tmp_path / "a.npz")["x"])
    np.testing.assert_array_equal(wide, array)
    assert wide.dtype == array.dtype


@pytest.mark.parametrize("largest", [2**40 + 7, 2**31, -(2**31) - 1])
def test_integers_that_do_not_fit_are_refused(largest, tmp_path):
    storage.save(tmp_path / "a.npz", {"x": np.array([largest, 3])})
    with pytest.raises(ValueError, match="holds int64 numbers; enable"):
        storage.load(tmp_path / "a.npz")


def test_files_of_an_older_numpy_load(tmp_path):
    """NumPy before 2.2 stores `allow_pickle` of `savez` as an array."""
    path, stored = tmp_path / "a.npz", io.BytesIO()
    storage.save(path, {"x": np.ones(2, np.float32)})
    np.save(stored, np.array(False))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("allow_pickle.npy", stored.getvalue())
    np.testing.assert_array_equal(storage.load(path)["x"], np.ones(2))


def test_saving_through_a_link_keeps_the_link_and_the_permissions(tmp_path):
    target, link = tmp_path / "target.npz", tmp_path / "link.npz"
    storage.save(target, {"x": np.zeros(2, np.float32)})
    target.chmod(0o640)
    link.symlink_to(target)
    storage.save(link, {"x": np.ones(2, np.float32)})
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    np.testing.assert_array_equal(storage.load(target)["x"], np.ones(2))


@dataclasses.dataclass(frozen=True)
class Layer:
    """Module as other libraries build it: fields are not arguments."""

    weight: np.ndarray
    activation: object

    def __init__(self, size, activation):
        object.__setattr__(self, "weight", np.full(size, 2.0, np.float32))
        object.__setattr__(self, "activation", activation)


def test_modules_of_other_libraries_come_back_in_their_likeness(tmp_path):
    layer = Layer(3, np.tanh)
    storage.save(tmp_path / "a.npz", {"first": layer})
    like = Layer(3, np.tanh)
    object.__setattr__(like, "weight", np.zeros(3, np.float32))
    found = storage.load(tmp_path / "a.npz", like={"first": like})["first"]
    assert isinstance(found, Layer)
    assert found.activation is np.tanh
    np.testing.assert_array_equal(found.weight, layer.weight)
    with pytest.raises(ValueError, match="pass like= to read it"):
        storage.load(tmp_path / "a.npz")
