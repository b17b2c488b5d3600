"""Probabilistic models that cannot be normalised, in JAX."""

__version__ = "0.1.0"

from probjax import exact as exact
from probjax import storage as storage
from probjax.connectivity import AllFlips, BitFlips, GaussianSteps, Union
from probjax.data import unique_rows
from probjax.fitting import ConvergenceWarning, Fit, Progress, fit
from probjax.models import ising
from probjax.objectives.flow import MPF, flow
from probjax.objectives.local import PseudoLikelihood
from probjax.objectives.penalty import L1, L2
from probjax.potential import Potential, potential
from probjax.types import Data, closed_form, recipe, static
