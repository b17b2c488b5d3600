"""The natural gradient: metrics of parameters, their inverses, whitened coordinates."""

from probjax.natural.factors import Factor, Report
from probjax.natural.metrics import metric
from probjax.natural.regularisers import PseudoInverse, Regulariser, Ridge, Robust
from probjax.natural.scores import (
    Given,
    Metric,
    Scores,
    energy_scores,
    likelihood_scores,
    loss_scores,
    regression_scores,
)
from probjax.natural.structures import (
    BlockDiagonal,
    ConjugateGradient,
    Dense,
    Diagonal,
    LowRank,
    Structure,
)
from probjax.natural.transform import (
    NaturalState,
    draws_of,
    natural_gradient,
    relative_gradient,
    states_of,
)
from probjax.natural.whitening import (
    WhitenedCoordinates,
    fit_whitened,
    whitened,
    whitening,
)

__all__ = [
    "BlockDiagonal",
    "ConjugateGradient",
    "Dense",
    "Diagonal",
    "Factor",
    "Given",
    "LowRank",
    "Metric",
    "NaturalState",
    "PseudoInverse",
    "Regulariser",
    "Report",
    "Ridge",
    "Robust",
    "Scores",
    "Structure",
    "WhitenedCoordinates",
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
