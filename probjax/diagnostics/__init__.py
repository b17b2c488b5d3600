"""Whether what was drawn is to be trusted, in numbers and in words."""

from probjax.diagnostics.chains import autocorrelation_time as autocorrelation_time
from probjax.diagnostics.chains import autocovariance as autocovariance
from probjax.diagnostics.chains import bfmi as bfmi
from probjax.diagnostics.chains import ess as ess
from probjax.diagnostics.chains import ess_mean as ess_mean
from probjax.diagnostics.chains import ess_tail as ess_tail
from probjax.diagnostics.chains import mcse as mcse
from probjax.diagnostics.chains import rhat as rhat
from probjax.diagnostics.verdict import Verdict as Verdict
from probjax.diagnostics.verdict import summary as summary
from probjax.diagnostics.weights import importance_ess as importance_ess
