"""Annealed importance sampling: partition functions and log-likelihoods."""

from probjax.annealing.ais import ais, ais_until
from probjax.annealing.bounds import Bracket, reverse_ais, sandwich
from probjax.annealing.estimate import Annealed
from probjax.annealing.likelihood import Estimate, compare, log_likelihood
from probjax.annealing.marginal import RowsDone, marginal_log_likelihood
from probjax.annealing.paths import Ends, Geometric, Path, Straight
from probjax.annealing.pilot import Pilot
from probjax.annealing.schedule import Schedule, linear, sigmoid, towards_one

__all__ = [
    "ais",
    "ais_until",
    "Annealed",
    "Bracket",
    "compare",
    "Ends",
    "Estimate",
    "Geometric",
    "linear",
    "log_likelihood",
    "marginal_log_likelihood",
    "Path",
    "Pilot",
    "Schedule",
    "reverse_ais",
    "RowsDone",
    "sandwich",
    "sigmoid",
    "Straight",
    "towards_one",
]
