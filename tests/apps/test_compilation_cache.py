"""Programs that the command line keeps."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from probjax.apps import compilation_cache

SCRIPT = """
import sys
from pathlib import Path
from probjax.apps.compilation_cache import keep_programs
with keep_programs(Path(sys.argv[1])):
    import jax
    hits = []
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(event.endswith("cache_hits"))
    )
    jax.jit(lambda x: x + 1)(1.0).block_until_ready()
    print(sum(hits))
"""


def environment():
    return {
        name: value
        for name, value in os.environ.items()
        if name != "JAX_COMPILATION_CACHE_DIR"
    }


def start(parent):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT, parent],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def num_found(process):
    """How many programs a process found compiled."""
    out, err = process.communicate()
    assert not process.returncode, err
    assert not err
    return int(out)


def kept(parent):
    (folder,) = parent.iterdir()
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """What a first process has kept."""
    parent = tmp_path_factory.mktemp("first")
    assert num_found(start(parent)) == 0
    return parent


@pytest.fixture
def parent(first, tmp_path):
    """A copy of it."""
    return shutil.copytree(first, tmp_path / "kept")


@pytest.mark.platforms
def test_a_second_process_finds_what_the_first_compiled(parent):
    files = kept(parent)
    assert files
    assert num_found(start(parent)) == len(files)
    assert kept(parent) == files


def test_only_the_user_can_read_the_programs(first):
    (folder,) = first.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.platforms
def test_a_folder_that_others_can_write_is_not_used(parent):
    (folder,) = parent.iterdir()
    folder.chmod(0o777)
    assert num_found(start(parent)) == 0


@pytest.mark.platforms
def test_a_damaged_program_is_removed_and_compiled_again(parent):
    for file in kept(parent):
        content = file.read_bytes()
        # As a new file: the old one may be linked elsewhere.
        file.unlink()
        file.write_bytes(content[: len(content) // 2])
    assert num_found(start(parent)) == 0
    assert num_found(start(parent)) == len(kept(parent))


@pytest.mark.platforms
def test_processes_at_once_do_not_disturb_each_other(tmp_path):
    processes = [start(tmp_path) for _ in range(3)]
    for process in processes:
        num_found(process)
    assert num_found(start(tmp_path)) == len(kept(tmp_path))


@pytest.mark.platforms
def test_what_a_killed_command_left_is_removed_after_a_day(parent):
    (folder,) = parent.iterdir()
    old, new = folder / "running-old", folder / "running-new"
    for left in (old, new):
        left.mkdir()
    yesterday = time.time() - 90_000
    os.utime(old, (yesterday, yesterday))
    num_found(start(parent))
    assert not old.exists()
    assert new.exists()


def test_programs_added_first_are_removed_above_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation_cache, "MAX_BYTES", 2500)
    for number in range(4):
        file = tmp_path / f"program{number}"
        file.write_bytes(bytes(1000))
        os.utime(file, (number, number))
    compilation_cache._shrink(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["program2", "program3"]


@pytest.mark.platforms
@pytest.mark.parametrize("flags", [[], ["--no-cache"]])
def test_the_command_line_keeps_programs_unless_told_not_to(flags, tmp_path):
    (tmp_path / "rows.csv").write_text("0,1,0\n1,1,0\n0,0,1\n1,0,1\n")
    command = [sys.executable, "-m", "probjax.apps.cli", "fit", "rows.csv", *flags]
    folders = environment() | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=folders, capture_output=True)
    assert not done.returncode, done.stderr
    assert (tmp_path / "cache").exists() != bool(flags)
