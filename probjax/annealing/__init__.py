"""Partition functions and log-likelihoods, by particles from known distributions."""

from probjax.annealing.ais import ais, ais_until
from probjax.annealing.annealed import Annealed
from probjax.annealing.base import Exponential, Gaussian, Laplace, Product, StudentT
from probjax.annealing.base_discrete import Bernoulli, Categorical
from probjax.annealing.base_fits import (
    fit_bernoulli,
    fit_categorical,
    fit_full_gaussian,
    fit_gaussian,
    fit_laplace,
)
from probjax.annealing.bounds import Bracket, reverse_ais, sandwich
from probjax.annealing.evaluate import Estimate, compare, log_likelihood
from probjax.annealing.marginal import RowsDone, marginal_log_likelihood
from probjax.annealing.path import (
    Ends,
    Geometric,
    Path,
    Straight,
    linear,
    sigmoid,
    towards_one,
)
from probjax.annealing.pilot import Pilot
from probjax.annealing.plan import Plan

__all__ = [
    "ais",
    "ais_until",
    "Annealed",
    "Bernoulli",
    "Bracket",
    "Categorical",
    "compare",
    "Ends",
    "Estimate",
    "Exponential",
    "fit_bernoulli",
    "fit_categorical",
    "fit_full_gaussian",
    "fit_gaussian",
    "fit_laplace",
    "Gaussian",
    "Geometric",
    "Laplace",
    "linear",
    "log_likelihood",
    "marginal_log_likelihood",
    "Path",
    "Pilot",
    "Plan",
    "Product",
    "reverse_ais",
    "RowsDone",
    "sandwich",
    "sigmoid",
    "Straight",
    "StudentT",
    "towards_one",
]
