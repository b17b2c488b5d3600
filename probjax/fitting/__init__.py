"""Fitting: drivers that minimise objectives, optimisation methods, and error bars."""

from probjax.fitting import charts
from probjax.fitting.check import FitCheck, check_fit
from probjax.fitting.cross_validation import Validation, cross_validate
from probjax.fitting.fit import fit, loss
from probjax.fitting.nodewise import fit_nodes
from probjax.fitting.path import RegularisationPath, fit_path
from probjax.fitting.refits import Refits, refit_many, resampled
from probjax.fitting.result import ConvergenceWarning, Fit, UnboundedWarning
from probjax.fitting.stopping import (
    AnyOf,
    GradientNorm,
    Progress,
    StandardErrors,
    StoppingRule,
)
from probjax.fitting.uncertainty import Uncertainty, uncertainty

__all__ = [
    "AnyOf",
    "charts",
    "check_fit",
    "ConvergenceWarning",
    "cross_validate",
    "Fit",
    "fit",
    "FitCheck",
    "fit_nodes",
    "fit_path",
    "GradientNorm",
    "loss",
    "refit_many",
    "Refits",
    "RegularisationPath",
    "resampled",
    "Progress",
    "StandardErrors",
    "StoppingRule",
    "UnboundedWarning",
    "Uncertainty",
    "uncertainty",
    "Validation",
]
