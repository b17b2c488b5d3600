"""Probabilistic models that cannot be normalised, in JAX.

A model is one function, `energy(params, x)`, of one state; p(x) is proportional to
exp(-energy). Everything else in the library works on any such function.

The names that most programs start with are here. All others are in their rooms, such
as `probjax.connectivity.BallSteps` or `probjax.objectives.RatioMatching`.
"""

import importlib
import sys
from types import ModuleType

from probjax import (
    annealing,
    bases,
    connectivity,
    data,
    devices,
    diagnostics,
    exact,
    fitting,
    models,
    natural,
    objectives,
    plots,
    samplers,
)
from probjax.annealing import (
    ais,
    ais_until,
    log_likelihood,
    marginal_log_likelihood,
    sandwich,
)
from probjax.apps import interop
from probjax.apps.progress import progress_bar
from probjax.bases import Bernoulli, Gaussian, Laplace
from probjax.diagnostics import goodness
from probjax.fitting import (
    ConvergenceWarning,
    Fit,
    UnboundedWarning,
    check_fit,
    cross_validate,
    fit,
    fit_path,
    loss,
    uncertainty,
)
from probjax.interfaces import Base, Chart, Connectivity, Objective, Penalty, Sampler
from probjax.models import (
    bilinear,
    dbn,
    experts,
    gaussian_rbm,
    hopfield,
    ica,
    ising,
    linear,
    mcrbm,
    potts,
    rbm,
)
from probjax.natural import natural_gradient
from probjax.objectives import (
    EM,
    L1,
    L2,
    MPF,
    ContrastiveDivergence,
    DenoisingScoreMatching,
    GroupL1,
    MaximumLikelihood,
    NoiseContrast,
    PersistentDivergence,
    PersistentMPF,
    PseudoLikelihood,
    ScoreMatching,
)
from probjax.potential import closed_form
from probjax.recipe import recipe, static
from probjax.runs import Checkpoint, Watch, storage
from probjax.samplers import (
    HMC,
    HeatBath,
    LookAheadHMC,
    Metropolis,
    sample,
    sample_mean,
)
from probjax.types import Conditioned, Data

__version__ = "0.2.0.dev0"


def __getattr__(name):
    """Import `probjax.estimators` on first use, because it needs scikit-learn."""
    if name == "estimators":
        return importlib.import_module("probjax.apps.estimators")
    raise AttributeError(f"module 'probjax' has no attribute {name!r}")


__all__ = [
    "ais",
    "ais_until",
    "annealing",
    "Base",
    "bases",
    "Bernoulli",
    "bilinear",
    "Chart",
    "check_fit",
    "Checkpoint",
    "closed_form",
    "Conditioned",
    "Connectivity",
    "connectivity",
    "ContrastiveDivergence",
    "ConvergenceWarning",
    "cross_validate",
    "Data",
    "data",
    "dbn",
    "DenoisingScoreMatching",
    "devices",
    "diagnostics",
    "EM",
    "exact",
    "experts",
    "Fit",
    "fit",
    "fit_path",
    "fitting",
    "Gaussian",
    "gaussian_rbm",
    "goodness",
    "GroupL1",
    "HeatBath",
    "HMC",
    "hopfield",
    "ica",
    "interop",
    "ising",
    "L1",
    "L2",
    "Laplace",
    "linear",
    "log_likelihood",
    "LookAheadHMC",
    "loss",
    "marginal_log_likelihood",
    "MaximumLikelihood",
    "mcrbm",
    "Metropolis",
    "models",
    "MPF",
    "natural",
    "natural_gradient",
    "NoiseContrast",
    "Objective",
    "objectives",
    "Penalty",
    "PersistentDivergence",
    "PersistentMPF",
    "plots",
    "potts",
    "progress_bar",
    "PseudoLikelihood",
    "rbm",
    "recipe",
    "sample",
    "sample_mean",
    "Sampler",
    "samplers",
    "sandwich",
    "ScoreMatching",
    "static",
    "storage",
    "UnboundedWarning",
    "uncertainty",
    "Watch",
]


def _list_own_names(module: ModuleType) -> None:
    """Make `dir(module)` list what the module exports or defines, not its imports."""
    exported = vars(module).get("__all__")
    if exported is None:
        exported = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_")
            and getattr(value, "__module__", None) == module.__name__
        ]
    names = sorted([*exported, *(n for n in vars(module) if n.startswith("__"))])
    module.__dir__ = lambda: names


for _name in [name for name in sys.modules if name.split(".")[0] == "probjax"]:
    _list_own_names(sys.modules[_name])
