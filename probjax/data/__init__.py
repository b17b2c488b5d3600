"""Rows of data: validation, blocks, preprocessing, corruption, datasets, spikes."""

from probjax.data import blocks, datasets, preprocessing, spikes
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
    "spikes",
    "unique_rows",
]
