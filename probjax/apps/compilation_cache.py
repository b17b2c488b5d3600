"""Cache of compiled programs, which the command line keeps between calls.

Programs are in the user's folder for caches, in a subfolder for each version of jaxlib
and each kind of processor, which only the user can read. A command works in a temporary
folder of hard links to these programs and adds new programs to the cache when it ends.
Commands that run at the same time therefore do not interfere, and a killed command
leaves no incomplete file in the cache. The name of each file ends in a digest of its
contents; damaged files are removed.

If the user has set `JAX_COMPILATION_CACHE_DIR`, nothing is changed and jax uses it.
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

import jax
from jax.experimental.compilation_cache import compilation_cache

MAX_BYTES = 64 * 2**20
"""Largest total size of the programs in a folder; the oldest ones are removed."""
_RUNNING = "running-"
_ABANDONED_SECONDS = 86_400


@contextmanager
def keep_programs(parent: Path | None = None) -> Iterator[None]:
    """Context in which compiled programs are read from the cache and added to it.

    Enter it before anything is compiled. If the folder cannot be created, or others can
    write to it, nothing is cached.

    Args:
        parent: the folder of the cache; None for the user's folder for caches.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        yield
        return
    try:
        folder = _own_folder(parent or default_parent())
        temporary = Path(mkdtemp(prefix=_RUNNING, dir=folder))
        known = _link_programs(folder, temporary)
    except OSError:
        yield
        return
    try:
        with _jax_cache(temporary), warnings.catch_warnings():
            # A program that cannot be read or written costs only compilation time.
            warnings.filterwarnings("ignore", module=r"jax\._src\.compil")
            yield
    finally:
        with suppress(OSError):
            _add_programs(temporary, folder, known)
            _shrink(folder)
        shutil.rmtree(temporary, ignore_errors=True)


def default_parent() -> Path:
    """Return the folder of the cache in the user's folder for caches."""
    if "XDG_CACHE_HOME" in os.environ:
        return Path(os.environ["XDG_CACHE_HOME"]) / "probjax"
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "probjax"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home)) / "probjax" / "Cache"
    return home / ".cache" / "probjax"


def _own_folder(parent):
    """Return the folder for this version and processor.

    Raises:
        PermissionError: if other users can read or write the folder.
    """
    kind = f"jaxlib-{version('jaxlib')}-{platform.machine()}-{_processor()}"
    folder = parent / kind
    parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.stat()
    # Cached programs are executed, so nobody else may be able to put files there.
    if hasattr(os, "getuid") and (about.st_uid != os.getuid() or about.st_mode & 0o077):
        raise PermissionError(f"{folder} can be read or written by others")
    return folder


def _processor():
    """Return a digest of the processor's instruction sets, for which jax compiles."""
    about = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = [line for line in lines if line.startswith(("flags", "Features"))]
        about += flags[0] if flags else ""
    return hashlib.sha256(about.encode()).hexdigest()[:12]


def _link_programs(folder, temporary):
    """Link all intact programs into the temporary folder, and return their names."""
    known = set()
    for file in _programs(folder):
        name, _, digest = file.name.rpartition(".")
        # Another command may be removing files at the same time.
        with suppress(OSError):
            if _digest(file) != digest:
                file.unlink()
                continue
            os.link(file, temporary / name)
            known.add(name)
    return known


def _add_programs(temporary, folder, known):
    """Add the programs whose names are not in `known` to the cache."""
    for file in temporary.iterdir():
        if not file.is_file() or file.name in known:
            continue
        with suppress(FileExistsError):
            os.link(file, folder / f"{file.name}.{_digest(file)}")


def _shrink(folder):
    """Remove the oldest programs above the limit and folders of killed commands."""
    files = sorted(_programs(folder), key=_time_added, reverse=True)
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size
            if total > MAX_BYTES:
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
def _jax_cache(folder):
    """Context in which jax uses `folder` as its compilation cache."""
    before = jax.config.jax_compilation_cache_dir  # pyright: ignore
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # The caches of XLA would add the path of this temporary folder to the options of
    # every program.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()
