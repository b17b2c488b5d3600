"""Whether what was drawn is to be trusted, in numbers and in words."""

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
