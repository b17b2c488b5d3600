"""Markov chain Monte Carlo: samplers, and the drivers that run many chains of them.

A sampler moves one state at a time and leaves the distribution of the model invariant.
"""

from probjax.generic_gaps import gradient_gaps, one_hot_gaps
from probjax.leapfrog import Bounds, drift_kick_drift, kick_drift_kick
from probjax.samplers.discrete_langevin import DiscreteLangevin
from probjax.samplers.draws import Draws, Means
from probjax.samplers.gibbs import (
    ColourGibbs,
    HeatBath,
    colours,
    every_site,
    random_sites,
)
from probjax.samplers.gibbs_with_gradients import GibbsWithGradients
from probjax.samplers.hmc import HMC, Jitter
from probjax.samplers.informed import barker, square_root
from probjax.samplers.lookahead import LookAheadHMC
from probjax.samplers.metropolis import Metropolis
from probjax.samplers.momentum import (
    Momentum,
    reduced_flip,
    slice_flip,
    standard_flip,
)
from probjax.samplers.sample import sample, sample_mean
from probjax.samplers.tempering import Tempered, swap_rates
from probjax.samplers.tuning import LENGTHS, MATRIX, tune

__all__ = [
    "barker",
    "Bounds",
    "ColourGibbs",
    "colours",
    "DiscreteLangevin",
    "Draws",
    "drift_kick_drift",
    "every_site",
    "GibbsWithGradients",
    "gradient_gaps",
    "HeatBath",
    "HMC",
    "Jitter",
    "kick_drift_kick",
    "LENGTHS",
    "LookAheadHMC",
    "MATRIX",
    "Means",
    "Metropolis",
    "Momentum",
    "one_hot_gaps",
    "random_sites",
    "reduced_flip",
    "sample",
    "sample_mean",
    "slice_flip",
    "square_root",
    "standard_flip",
    "swap_rates",
    "Tempered",
    "tune",
]
