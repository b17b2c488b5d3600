"""Normalised distributions: bases of annealing, priors and noise."""

from probjax.bases.continuous import Exponential, Gaussian, Laplace, Product, StudentT
from probjax.bases.discrete import Bernoulli, Categorical
from probjax.bases.fits import (
    fit_bernoulli,
    fit_categorical,
    fit_full_gaussian,
    fit_gaussian,
    fit_laplace,
)

__all__ = [
    "Bernoulli",
    "Categorical",
    "Exponential",
    "fit_bernoulli",
    "fit_categorical",
    "fit_full_gaussian",
    "fit_gaussian",
    "fit_laplace",
    "Gaussian",
    "Laplace",
    "Product",
    "StudentT",
]
