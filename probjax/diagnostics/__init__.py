"""Diagnostics: convergence of chains, effective sample sizes and goodness of fit."""

from probjax.diagnostics import goodness
from probjax.diagnostics.chains import (
    autocorrelation_time,
    autocovariance,
    bfmi,
    ess,
    ess_mean,
    ess_tail,
    mcse,
    rhat,
)
from probjax.diagnostics.summary import Verdict, summary
from probjax.diagnostics.weights import importance_ess

__all__ = [
    "autocorrelation_time",
    "autocovariance",
    "bfmi",
    "ess",
    "ess_mean",
    "ess_tail",
    "goodness",
    "importance_ess",
    "mcse",
    "rhat",
    "summary",
    "Verdict",
]
