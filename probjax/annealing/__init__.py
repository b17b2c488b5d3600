"""Partition functions and what follows from them: likelihoods, entropies, heat."""

from probjax.annealing.ais import ais, ais_until
from probjax.annealing.bounds import Bracket, reverse_ais, sandwich
from probjax.annealing.entropies import (
    Divergence,
    divergence,
    log_z_from_state,
    model_entropy,
)
from probjax.annealing.estimate import Annealed
from probjax.annealing.likelihood import Estimate, compare, log_likelihood
from probjax.annealing.marginal import RowsDone, marginal_log_likelihood
from probjax.annealing.mbar import mbar
from probjax.annealing.measured import Measured
from probjax.annealing.paths import Ends, Geometric, Path, Straight
from probjax.annealing.pilot import Pilot
from probjax.annealing.schedule import Schedule, linear, sigmoid, towards_one
from probjax.annealing.temperatures import TemperatureCurve, temperature_curve

__all__ = [
    "ais",
    "ais_until",
    "Annealed",
    "Bracket",
    "compare",
    "Divergence",
    "divergence",
    "Ends",
    "Estimate",
    "Geometric",
    "linear",
    "log_likelihood",
    "log_z_from_state",
    "marginal_log_likelihood",
    "mbar",
    "Measured",
    "model_entropy",
    "Path",
    "Pilot",
    "Schedule",
    "reverse_ais",
    "RowsDone",
    "sandwich",
    "sigmoid",
    "Straight",
    "temperature_curve",
    "TemperatureCurve",
    "towards_one",
]
