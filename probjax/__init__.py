"""Probabilistic models that cannot be normalised, in JAX.

A model is one function, `energy(params, x)`, of one state; p(x) is proportional to
exp(-energy). Everything else here works on any such function.
"""

import importlib

from probjax import (
    annealing,
    bases,
    devices,
    diagnostics,
    exact,
    natural,
    plots,
    samplers,
)
from probjax.annealing import (
    ais,
    ais_until,
    compare,
    log_likelihood,
    marginal_log_likelihood,
    reverse_ais,
    sandwich,
)
from probjax.apps import interop
from probjax.apps.progress import annealing_bar, draws_bar, progress_bar, rows_bar
from probjax.bases import Bernoulli, Gaussian, Laplace
from probjax.connectivity import (
    AllFlips,
    BallSteps,
    BitFlips,
    BlockChanges,
    CubeSteps,
    GaussianSteps,
    Hamiltonian,
    Joined,
    Listed,
    Proposal,
    RandomFlips,
    SiteChanges,
)
from probjax.data import (
    Blocks,
    FixedFlips,
    GreyLevels,
    IndependentFlips,
    blocks,
    datasets,
    preprocessing,
    unique_rows,
)
from probjax.devices import spread
from probjax.diagnostics import goodness
from probjax.fitting import (
    AnyOf,
    ConvergenceWarning,
    Fit,
    GradientNorm,
    Path,
    Progress,
    StoppingRule,
    UnboundedWarning,
    Uncertainty,
    Validation,
    charts,
    cross_validate,
    fit,
    fit_path,
    loss,
    uncertainty,
)
from probjax.fitting.nodewise import fit_nodes
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
from probjax.models.ising import SwendsenWang, mean_field, tap
from probjax.natural import (
    energy_scores,
    fit_whitened,
    natural_gradient,
    relative_gradient,
)
from probjax.objectives.contraction import MinimumKLContraction
from probjax.objectives.corrupted import Corrupted
from probjax.objectives.divergence import ContrastiveDivergence, PersistentDivergence
from probjax.objectives.em import EM
from probjax.objectives.flow import MPF, PersistentMPF, flow
from probjax.objectives.likelihood import MaximumLikelihood
from probjax.objectives.nodes import RISE, LogRISE, NodeLikelihood, screening_strength
from probjax.objectives.noise_contrastive import NoiseContrast
from probjax.objectives.penalty import L1, L2, GroupL1
from probjax.objectives.pseudolikelihood import (
    ContinuousPseudoLikelihood,
    PseudoLikelihood,
    RatioMatching,
)
from probjax.objectives.score import (
    DenoisingScoreMatching,
    HutchinsonScoreMatching,
    ScoreMatching,
    ScoreMatchingBySteps,
    SlicedScoreMatching,
)
from probjax.objectives.sparse import Sparse
from probjax.objectives.velocity import MinimumVelocity
from probjax.potential import Potential, closed_form, potential
from probjax.recipe import recipe, static
from probjax.runs import Checkpoint, Watch, storage
from probjax.samplers import (
    HMC,
    HeatBath,
    LookAheadHMC,
    Metropolis,
    Momentum,
    sample,
    sample_mean,
)
from probjax.types import (
    Base,
    Chart,
    Connectivity,
    Data,
    Info,
    Objective,
    Penalty,
    Sampler,
)

__version__ = "0.2.0.dev0"


def __getattr__(name):
    """Import `probjax.estimators` on first use, because it needs scikit-learn."""
    if name == "estimators":
        return importlib.import_module("probjax.apps.estimators")
    raise AttributeError(f"module 'probjax' has no attribute {name!r}")


__all__ = [
    "AllFlips",
    "AnyOf",
    "Base",
    "Chart",
    "Connectivity",
    "GradientNorm",
    "Info",
    "Objective",
    "Penalty",
    "Sampler",
    "StoppingRule",
    "Watch",
    "BallSteps",
    "Bernoulli",
    "BitFlips",
    "BlockChanges",
    "Blocks",
    "Checkpoint",
    "ContinuousPseudoLikelihood",
    "ContrastiveDivergence",
    "ConvergenceWarning",
    "CubeSteps",
    "Data",
    "EM",
    "DenoisingScoreMatching",
    "Fit",
    "FixedFlips",
    "Gaussian",
    "GaussianSteps",
    "GreyLevels",
    "GroupL1",
    "HMC",
    "Hamiltonian",
    "HeatBath",
    "HutchinsonScoreMatching",
    "IndependentFlips",
    "Joined",
    "L1",
    "L2",
    "Laplace",
    "Listed",
    "LogRISE",
    "LookAheadHMC",
    "MPF",
    "MaximumLikelihood",
    "Metropolis",
    "MinimumKLContraction",
    "MinimumVelocity",
    "Momentum",
    "NodeLikelihood",
    "NoiseContrast",
    "Path",
    "PersistentDivergence",
    "PersistentMPF",
    "Potential",
    "Progress",
    "Proposal",
    "PseudoLikelihood",
    "RISE",
    "RandomFlips",
    "RatioMatching",
    "ScoreMatching",
    "ScoreMatchingBySteps",
    "SiteChanges",
    "SlicedScoreMatching",
    "SwendsenWang",
    "UnboundedWarning",
    "Uncertainty",
    "Validation",
    "ais",
    "ais_until",
    "annealing",
    "annealing_bar",
    "bases",
    "bilinear",
    "blocks",
    "charts",
    "closed_form",
    "compare",
    "cross_validate",
    "datasets",
    "dbn",
    "devices",
    "diagnostics",
    "draws_bar",
    "exact",
    "experts",
    "fit",
    "fit_nodes",
    "fit_path",
    "flow",
    "gaussian_rbm",
    "goodness",
    "ica",
    "interop",
    "natural",
    "natural_gradient",
    "energy_scores",
    "fit_whitened",
    "relative_gradient",
    "ising",
    "hopfield",
    "Corrupted",
    "Sparse",
    "linear",
    "log_likelihood",
    "loss",
    "marginal_log_likelihood",
    "mcrbm",
    "mean_field",
    "plots",
    "potential",
    "potts",
    "preprocessing",
    "progress_bar",
    "rows_bar",
    "rbm",
    "recipe",
    "reverse_ais",
    "sample",
    "sample_mean",
    "samplers",
    "sandwich",
    "screening_strength",
    "spread",
    "static",
    "storage",
    "tap",
    "uncertainty",
    "unique_rows",
]
