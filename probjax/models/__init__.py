"""Models: one module or package for each family, with functions of `params` and `x`."""

from probjax.models import (
    bilinear,
    dbn,
    experts,
    gaussian_rbm,
    hopfield,
    ica,
    ising,
    kinetic_ising,
    linear,
    mcrbm,
    population,
    potts,
    products,
    projections,
    rbm,
    sums,
)

__all__ = [
    "bilinear",
    "dbn",
    "experts",
    "gaussian_rbm",
    "hopfield",
    "ica",
    "ising",
    "kinetic_ising",
    "linear",
    "mcrbm",
    "population",
    "potts",
    "products",
    "projections",
    "rbm",
    "sums",
]
