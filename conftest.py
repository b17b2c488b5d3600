"""Figures are drawn without windows, and none is left open."""

import os
import sys

import pytest

os.environ.setdefault("MPLBACKEND", "Agg")


@pytest.fixture(autouse=True)
def close_figures():
    """Examples in docstrings open figures, and should not have to close them."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
