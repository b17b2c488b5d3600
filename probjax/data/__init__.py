"""Rows of data: validation, out-of-core blocks, preprocessing, corruption, datasets."""

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
