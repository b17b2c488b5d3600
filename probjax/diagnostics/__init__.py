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
from probjax.diagnostics.entropy import (
    Entropy,
    MultiInformation,
    estimate_entropy,
    multi_information,
)
from probjax.diagnostics.patterns import Patterns, pattern_frequencies, patterns
from probjax.diagnostics.summary import Verdict, summary
from probjax.diagnostics.weights import importance_ess

__all__ = [
    "autocorrelation_time",
    "autocovariance",
    "bfmi",
    "Entropy",
    "ess",
    "ess_mean",
    "ess_tail",
    "estimate_entropy",
    "goodness",
    "importance_ess",
    "mcse",
    "multi_information",
    "MultiInformation",
    "pattern_frequencies",
    "Patterns",
    "patterns",
    "rhat",
    "summary",
    "Verdict",
]
