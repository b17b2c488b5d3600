"""Figures: functions that take `ax=`, draw on it and return it.

Matplotlib is imported on call. Axis labels that the caller has set are kept. Legends
are not drawn; call `ax.legend()` for one.
"""

from probjax.plots.canvas import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    load_pyplot,
)
from probjax.plots.comparisons import agreement, comparison, estimates, population_count
from probjax.plots.likelihoods import interval, weights
from probjax.plots.memories import capacity, recovery
from probjax.plots.pairwise import couplings, graph
from probjax.plots.paths import cross_validation, path
from probjax.plots.runs import autocovariance, convergence
from probjax.plots.temperatures import temperatures
from probjax.plots.tiles import groupings, images, receptive_fields
from probjax.plots.words import pattern_frequencies, pattern_ranks, raster

__all__ = [
    "agreement",
    "autocovariance",
    "BLACK",
    "BLUE",
    "capacity",
    "comparison",
    "convergence",
    "couplings",
    "cross_validation",
    "estimates",
    "graph",
    "GREEN",
    "GREY",
    "groupings",
    "images",
    "interval",
    "load_pyplot",
    "ORANGE",
    "path",
    "pattern_frequencies",
    "pattern_ranks",
    "PINK",
    "population_count",
    "raster",
    "receptive_fields",
    "recovery",
    "SKY",
    "temperatures",
    "weights",
]
