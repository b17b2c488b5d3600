"""Compiled programs that the command line keeps from one call to the next.

Programs are kept in the user's folder for caches, in a folder for each version of
jaxlib and each kind of processor, which only the user can read. A command works on a
copy of its own, made of hard links, and hands over what it compiled when it ends. So
two commands at once do not disturb each other, and a command that is killed leaves no
torn file. The name of a file ends in a digest of its contents: a file that has been
damaged is removed.

A folder of the user's own choice, `JAX_COMPILATION_CACHE_DIR`, is left to jax.
"""

import hashlib
import os
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp

MOST_BYTES = 64 * 2**20
"""Size that the programs in a folder are cut down to, those added last being kept."""
_RUNNING = "running-"
_ABANDONED_SECONDS = 86_400


@contextmanager
def programs_kept(parent: Path | None = None) -> Iterator[None]:
    """Context in which compiled programs are found again by later calls.

    To be entered before anything is compiled. Programs are kept in `parent`, if given,
    in place of the user's folder for caches. Without a folder that can be trusted
    nothing is kept.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        yield
        return
    try:
        folder = _own_folder(parent or default_parent())
        mine = Path(mkdtemp(prefix=_RUNNING, dir=folder))
        known = _taken_over(folder, mine)
    except OSError:
        yield
        return
    try:
        with _used(mine), warnings.catch_warnings():
            # What cannot be read or written is compiled, and costs only time.
            warnings.filterwarnings("ignore", module=r"jax\._src\.compil")
            yield
    finally:
        with suppress(OSError):
            _hand_over(mine, folder, known)
            _shrink(folder)
        shutil.rmtree(mine, ignore_errors=True)


def default_parent() -> Path:
    """Return the user's folder for caches."""
    if "XDG_CACHE_HOME" in os.environ:
        return Path(os.environ["XDG_CACHE_HOME"]) / "probjax"
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "probjax"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home)) / "probjax" / "Cache"
    return home / ".cache" / "probjax"


def _own_folder(parent):
    """Return the folder of this version and processor; raise if others may write it."""
    kind = f"jaxlib-{version('jaxlib')}-{platform.machine()}-{_processor()}"
    folder = parent / kind
    parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.stat()
    # Programs are run as they are found, so nobody else may have put them there.
    if hasattr(os, "getuid") and (about.st_uid != os.getuid() or about.st_mode & 0o077):
        raise PermissionError(f"{folder} can be written by others")
    return folder


def _processor():
    """Return a digest of what the processor can do, which programs depend on."""
    about = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = [line for line in lines if line.startswith(("flags", "Features"))]
        about += flags[0] if flags else ""
    return hashlib.sha256(about.encode()).hexdigest()[:12]


def _taken_over(folder, mine):
    """Link all programs that are intact to a folder, and return their names."""
    known = set()
    for file in _programs(folder):
        name, _, digest = file.name.rpartition(".")
        # Another command may be removing files at the same time.
        with suppress(OSError):
            if _digest(file) != digest:
                file.unlink()
                continue
            os.link(file, mine / name)
            known.add(name)
    return known


def _hand_over(mine, folder, known):
    """Add new programs to those that are kept."""
    for file in mine.iterdir():
        if not file.is_file() or file.name in known:
            continue
        with suppress(FileExistsError):
            os.link(file, folder / f"{file.name}.{_digest(file)}")


def _shrink(folder):
    """Remove the programs that were added first, and what killed commands left."""
    files = sorted(_programs(folder), key=_time_added, reverse=True)
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size
            if total > MOST_BYTES:
                file.unlink()
    for left in folder.glob(f"{_RUNNING}*"):
        if time.time() - _time_added(left) > _ABANDONED_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _programs(folder):
    return [file for file in folder.iterdir() if file.is_file()]


def _time_added(file):
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()[:32]


@contextmanager
def _used(folder):
    """Let jax keep programs in a folder."""
    # Imported on call: the command line is to answer quickly if nothing is compiled.
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_compilation_cache_dir  # pyright: ignore
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # Caches of XLA would have the name of this folder in them.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()
