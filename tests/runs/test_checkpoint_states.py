"""Checkpoints with several states, their versions and their locks."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import chex
import jax
import numpy as np
import optax
import pytest

import probjax
from probjax import Checkpoint, storage
from probjax.random import split_array
from probjax.runs import checkpoint_files, locks
from probjax.runs.checkpoint import open_checkpoint
from probjax.trees import as_array

ROOT = Path(probjax.__file__).parents[1]
ARGUMENTS = {"rows": np.arange(3.0), "steps": 4}
FORMS = ["run.npz", "run"]

pytestmark = pytest.mark.filterwarnings("ignore:.*orbax.*")


def states(seed):
    """States of two finished stages and of the current one, all of another kind."""
    key = jax.random.key(seed)
    numbers = np.random.default_rng(seed).normal(size=(3, 2))
    params, smaller = as_array(numbers), as_array(0.1 * numbers)
    return [
        {"key": key, "legacy": jax.random.key_data(key), "empty": ()},
        (params, optax.adam(0.1).init(params), as_array(np.True_)),
        [as_array(np.int32(seed)), smaller, {"keys": split_array(key, 2)}],
    ]


def write(checkpoint, some, **arguments):
    with open_checkpoint(checkpoint, "job", ARGUMENTS | arguments) as run:
        run.write(some, last=True)


@pytest.mark.parametrize("name", FORMS)
def test_all_states_are_restored_to_the_bit(name, tmp_path):
    checkpoint = Checkpoint(tmp_path / name, every=0.0)
    with open_checkpoint(checkpoint, "job", ARGUMENTS) as run:
        assert run.count == 0
        with pytest.raises(ValueError, match="index must be below 0, got 0"):
            run.restore(0, lambda: states(1)[0])
        run.write(states(1)[:1])
        run.write(states(1))
    with open_checkpoint(checkpoint, "job", ARGUMENTS) as run:
        assert run.count == 3
        for i, expected in enumerate(states(1)):
            restored = run.restore(i, lambda i=i: states(2)[i])
            assert jax.tree.structure(restored) == jax.tree.structure(expected)
            chex.assert_trees_all_equal(restored, expected)
        with pytest.raises(ValueError, match="index must be below 3, got 3"):
            run.restore(3, lambda: states(2)[0])
        run.write(states(3)[:2], last=True)
    with open_checkpoint(checkpoint, "job", ARGUMENTS) as run:
        assert run.count == 2
        chex.assert_trees_all_equal(run.restore(1, lambda: states(2)[1]), states(3)[1])


def test_a_state_of_another_structure_is_rejected(tmp_path):
    checkpoint = Checkpoint(tmp_path / "run.npz")
    write(checkpoint, states(1))
    with (
        open_checkpoint(checkpoint, "job", ARGUMENTS) as run,
        pytest.raises(ValueError, match="does not hold a state of this run"),
    ):
        run.restore(0, lambda: states(1)[1])


def test_states_are_written_when_due_or_last(tmp_path):
    path = tmp_path / "run.npz"
    with open_checkpoint(Checkpoint(path, every=1000.0), "job", ARGUMENTS) as run:
        run.write(states(1))
        assert not path.exists()
        run.write(states(1), last=True)
        assert path.exists()


@pytest.mark.parametrize("name", FORMS)
def test_other_drivers_and_arguments_are_rejected(name, tmp_path):
    checkpoint = Checkpoint(tmp_path / name)
    write(checkpoint, states(1))
    with (
        pytest.raises(ValueError, match="a run of job, not of fit; try another"),
        open_checkpoint(checkpoint, "fit", ARGUMENTS),
    ):
        pass
    with pytest.raises(ValueError, match="values of these arguments: more, steps; try"):
        write(checkpoint, states(1), steps=5, more=1)
    # A rejected run holds no lock.
    write(checkpoint, states(1))


@pytest.mark.parametrize("name", FORMS)
def test_a_checkpoint_of_another_version_is_rejected(name, tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path / name)
    monkeypatch.setattr(probjax, "__version__", "0.0.7")
    write(checkpoint, states(1))
    monkeypatch.setattr(probjax, "__version__", "0.9.1")
    message = "written by probjax 0.0.7, but this is probjax 0.9.1: remove it to start"
    with pytest.raises(ValueError, match=message):
        write(checkpoint, states(1))


def test_a_header_with_other_fields_of_another_version_is_rejected(
    tmp_path, monkeypatch
):
    path = tmp_path / "run.npz"
    header = {"version": "7.0", "surprise": [1]}
    storage.save(path, {"header": header, "leaves": [np.ones(3, np.float32)]})
    monkeypatch.setattr(probjax, "__version__", "0.9.1")
    with pytest.raises(ValueError, match="by probjax 7.0, but this is probjax 0.9.1"):
        write(Checkpoint(path), states(1))


def test_an_orbax_checkpoint_of_version_0_1_0_is_rejected(tmp_path, monkeypatch):
    ocp = pytest.importorskip("orbax.checkpoint")
    monkeypatch.setattr(probjax, "__version__", "0.9.1")
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        about = {"driver": "fit", "about": {}, "kinds": [None], "layouts": [None]}
        parts = ocp.args.Composite(
            about=ocp.args.JsonSave(about),
            leaves=ocp.args.PyTreeSave({"leaf0": np.ones(3)}),
        )
        manager.save(0, args=parts)
    with pytest.raises(ValueError, match="by probjax 0.1.0, but this is probjax 0.9.1"):
        write(Checkpoint(tmp_path / "run"), states(1))


def test_two_threads_cannot_open_one_checkpoint(tmp_path):
    errors = []

    def second(path):
        try:
            write(Checkpoint(path), states(2))
        except ValueError as error:
            errors.append(str(error))

    path = tmp_path / "run.npz"
    with open_checkpoint(Checkpoint(path), "job", ARGUMENTS) as run:
        (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
        for same in (path, tmp_path / "link" / "run.npz"):
            thread = threading.Thread(target=second, args=[same])
            thread.start()
            thread.join()
        run.write(states(1), last=True)
    assert len(errors) == 2
    assert f"{path} is in use by another run" in errors[0]
    with open_checkpoint(Checkpoint(path), "job", ARGUMENTS) as run:
        chex.assert_trees_all_equal(run.restore(0, lambda: states(2)[0]), states(1)[0])
    assert sorted(os.listdir(tmp_path)) == ["link", "run.npz"]


HOLDER = """
import sys, time
from probjax import Checkpoint
from probjax.runs.checkpoint import open_checkpoint
with open_checkpoint(Checkpoint(sys.argv[1]), "job", {}) as run:
    if len(sys.argv) > 2:
        import os
        if os.fork() == 0:
            time.sleep(600)
    print("open", flush=True)
    sys.stdin.read()
"""


def holder(path, *options):
    """Process that has opened the checkpoint and holds it until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
        start_new_session=True,
    )
    assert process.stdout.readline() == "open\n"
    return process


def test_two_processes_cannot_open_one_checkpoint(tmp_path):
    path = tmp_path / "run.npz"
    with holder(path) as process:
        with pytest.raises(ValueError, match="run.npz is in use by another run"):
            write(Checkpoint(path), states(1))
        process.stdin.close()
        assert process.wait() == 0
    assert os.listdir(tmp_path) == []
    write(Checkpoint(path), states(1))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="alone"),
        pytest.param(["fork"], id="with a child", marks=pytest.mark.platforms),
    ],
)
def test_a_killed_run_blocks_no_other(options, tmp_path):
    path = tmp_path / "run.npz"
    with holder(path, *options) as process:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        write(Checkpoint(path), states(1))
        assert os.listdir(tmp_path) == ["run.npz"]
        if options:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_lock_is_not_taken_on_a_file_that_was_removed(tmp_path, monkeypatch):
    """The holder removes its lock file between our opening and our locking it."""
    path, lock_now, removed = tmp_path / "run.npz", locks._lock_now, []

    def late(descriptor):
        if not removed:
            (tmp_path / ".run.npz.lock").unlink()
            removed.append(descriptor)
        lock_now(descriptor)

    monkeypatch.setattr(locks, "_lock_now", late)
    with locks.locked(path):
        assert os.listdir(tmp_path) == [".run.npz.lock"]
        with pytest.raises(ValueError, match="in use"), locks.locked(path):
            pass
    assert removed
    assert os.listdir(tmp_path) == []


def test_threads_in_a_race_for_one_lock_never_share_it(tmp_path):
    path, inside, most, taken = tmp_path / "run.npz", [], [], []

    def compete():
        for _ in range(200):
            try:
                with locks.locked(path):
                    inside.append(None)
                    most.append(len(inside))
                    taken.append(None)
                    inside.pop()
            except ValueError:
                pass

    threads = [threading.Thread(target=compete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert taken
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch):
    def unsupported(descriptor):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(locks, "_lock_now", unsupported)
    path = tmp_path / "run.npz"
    with (
        pytest.warns(UserWarning, match="without locks .Function not implemented"),
        locks.locked(path),
        # Threads of one process still exclude each other.
        pytest.raises(ValueError, match="in use by another run"),
        locks.locked(path),
    ):
        pass


def test_a_read_only_folder_is_rejected_in_one_sentence(tmp_path, monkeypatch):
    def read_only(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(locks.os, "open", read_only)
    message = "folder that can be written to, got .*run.npz: Read-only file system"
    with pytest.raises(ValueError, match=message):
        write(Checkpoint(tmp_path / "run.npz"), states(1))


def test_a_folder_that_vanishes_is_reported_in_one_sentence(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with open_checkpoint(Checkpoint(folder / "run.npz"), "job", ARGUMENTS) as run:
        (folder / ".run.npz.lock").unlink()
        folder.rmdir()
        with pytest.raises(ValueError, match="run.npz cannot be written: No such file"):
            run.write(states(1), last=True)
    folder.mkdir()
    write(Checkpoint(folder / "run.npz"), states(1))


def test_processes_raise_if_process_0_cannot_take_the_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.jax, "process_index", lambda: 1)
    for module in (locks, checkpoint_files):
        monkeypatch.setattr(
            module.multihost_utils, "broadcast_one_to_all", lambda _: np.True_
        )
    with pytest.raises(ValueError, match="cannot be opened by process 0"):
        write(Checkpoint(tmp_path / "run.npz"), states(1))
    assert os.listdir(tmp_path) == []
