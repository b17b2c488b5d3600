"""Rows of data: checks, blocks on disk, preprocessing, corruption and datasets."""

from probjax.data import blocks, datasets, preprocessing
from probjax.data.blocks import Blocks
from probjax.data.corruption import FixedFlips, GreyLevels, IndependentFlips
from probjax.data.rows import unique_rows

__all__ = [
    "blocks",
    "Blocks",
    "datasets",
    "FixedFlips",
    "GreyLevels",
    "IndependentFlips",
    "preprocessing",
    "unique_rows",
]
