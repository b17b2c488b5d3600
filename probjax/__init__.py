"""Probabilistic models that cannot be normalised, in JAX.

A model is one function, `energy(params, x)`, of one state; p(x) is proportional to
exp(-energy). Everything else here works on any such function.
"""

from probjax import exact, storage
from probjax.connectivity import AllFlips, BitFlips, GaussianSteps, Joined
from probjax.data import unique_rows
from probjax.fitting import ConvergenceWarning, Fit, Progress, fit
from probjax.models import ising, rbm
from probjax.objectives.flow import MPF, flow
from probjax.objectives.local import PseudoLikelihood
from probjax.objectives.penalty import L1, L2
from probjax.potential import Potential, potential
from probjax.progress import progress_bar
from probjax.types import Data, closed_form, recipe, static

__version__ = "0.1.0"

__all__ = [
    "AllFlips",
    "BitFlips",
    "ConvergenceWarning",
    "Data",
    "Fit",
    "GaussianSteps",
    "Joined",
    "L1",
    "L2",
    "MPF",
    "Potential",
    "Progress",
    "PseudoLikelihood",
    "closed_form",
    "exact",
    "fit",
    "flow",
    "ising",
    "potential",
    "progress_bar",
    "rbm",
    "recipe",
    "static",
    "storage",
    "unique_rows",
]
