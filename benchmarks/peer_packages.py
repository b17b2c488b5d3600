"""The packages that probjax is set beside, and why one is not there.

They are the dependency group `peers` of pyproject.toml, one requirement a package.
`python -m benchmarks.peer_packages` installs them one by one: what does not install
stops no other, and what pip said of it is kept in the environment. None may move jax.
"""

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

# By the name in the registry, what is imported.
MODULES = {
    "scikit-learn": "sklearn",
    "blackjax": "blackjax",
    "numpyro": "numpyro",
    "tfp-nightly": "tensorflow_probability.substrates.jax",
    "thrml": "thrml",
    "netket": "netket",
    "coniii": "coniii",
}
HELD = ("jax", "jaxlib")
REFUSED = Path(sys.prefix) / "peers_refused.json"
LONGEST = 120
# Imported as it comes, netket turns all of JAX to float64.
AS_THEY_COME_EXCEPT = {"NETKET_ENABLE_X64": "0"}


def requirements(path: Path) -> list[str]:
    """Of the group `peers` in a pyproject.toml."""
    return tomllib.loads(path.read_text())["dependency-groups"]["peers"]


def name(requirement: str) -> str:
    """The package that a requirement is of."""
    return re.split(r"[<>=!~\[ ]", requirement)[0]


def install(asked: list[str]) -> dict[str, str]:
    """Why those were refused that were, by package."""
    refused = {}
    with tempfile.TemporaryDirectory() as folder:
        constraint = Path(folder) / "held.txt"
        pins = (f"{held}=={version(held)}\n" for held in HELD)
        constraint.write_text("".join(pins))
        for requirement in asked:
            command = [sys.executable, "-m", "pip", "install", "--quiet"]
            command += ["--constraint", str(constraint), requirement]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                package = name(requirement)
                refused[package] = gist(done.stderr)
                print(f"{package} does not install: {refused[package]}", flush=True)
    return refused


def gist(said: str) -> str:
    """The last line that names an error, without places and addresses."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\w+Error: ", line)]
    marked = [line for line in lines if line.lower().startswith("error")]
    last = (named or marked or lines or ["no word of why"])[-1]
    last = re.sub(r"https?://\S+|(?<!\w)(/[\w.+-]+){2,}/?", "...", last)
    return last if len(last) <= LONGEST else last[: LONGEST - 3] + "..."


def load(package: str) -> Any:
    """What is imported of a package, of which no types are known."""
    with warnings.catch_warnings(), mock.patch.dict(os.environ, AS_THEY_COME_EXCEPT):
        warnings.simplefilter("ignore")
        return importlib.import_module(MODULES[package])


def why_missing(package: str) -> str:
    """Why a package cannot be imported; empty if it can."""
    try:
        load(package)
    except ModuleNotFoundError as missing:
        refused = json.loads(REFUSED.read_text()) if REFUSED.exists() else {}
        if package in refused:
            return f"does not install: {refused[package]}"
        return f"not installed: {gist(str(missing))}"
    except Exception as error:
        return f"not importable: {gist(f'{type(error).__name__}: {error}')}"
    return ""


def version(package: str) -> str:
    """The version that is installed, by this name or, of the same module, another."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(load(package), "__version__", "of no version"))


def imported() -> dict[str, str]:
    """The versions of the packages that this process has imported."""
    return {
        name: version(name) for name, part in MODULES.items() if part in sys.modules
    }


def main() -> None:
    asked = requirements(Path(__file__).parent.parent / "pyproject.toml")
    REFUSED.write_text(json.dumps(install(asked)) + "\n")


if __name__ == "__main__":
    main()
