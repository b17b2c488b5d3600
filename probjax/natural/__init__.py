"""The natural gradient: metrics on parameters, their solves, and white coordinates."""

from probjax.natural.linear import metric
from probjax.natural.scores import (
    Given,
    Metric,
    Scores,
    energy_scores,
    likelihood_scores,
    loss_scores,
    regression_scores,
)
from probjax.natural.solves import (
    Blocks,
    ConjugateGradient,
    Dense,
    Diagonal,
    LowRank,
    PseudoInverse,
    Report,
    Ridge,
    Robust,
)
from probjax.natural.transform import (
    NaturalState,
    draws_of,
    natural_gradient,
    relative_gradient,
    states_of,
)
from probjax.natural.whitening import Whitening, fit_whitened, whitened, whitening

__all__ = [
    "Blocks",
    "ConjugateGradient",
    "Dense",
    "Diagonal",
    "Given",
    "LowRank",
    "Metric",
    "NaturalState",
    "PseudoInverse",
    "Report",
    "Ridge",
    "Robust",
    "Scores",
    "Whitening",
    "draws_of",
    "energy_scores",
    "fit_whitened",
    "likelihood_scores",
    "loss_scores",
    "metric",
    "natural_gradient",
    "regression_scores",
    "relative_gradient",
    "states_of",
    "whitened",
    "whitening",
]
