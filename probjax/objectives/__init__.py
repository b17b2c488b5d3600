"""Objectives: losses that `fit` minimises, written as functions of one row of data."""

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

__all__ = [
    "ContinuousPseudoLikelihood",
    "ContrastiveDivergence",
    "Corrupted",
    "DenoisingScoreMatching",
    "EM",
    "flow",
    "GroupL1",
    "HutchinsonScoreMatching",
    "L1",
    "L2",
    "LogRISE",
    "MaximumLikelihood",
    "MinimumKLContraction",
    "MinimumVelocity",
    "MPF",
    "NodeLikelihood",
    "NoiseContrast",
    "PersistentDivergence",
    "PersistentMPF",
    "PseudoLikelihood",
    "RatioMatching",
    "RISE",
    "ScoreMatching",
    "ScoreMatchingBySteps",
    "screening_strength",
    "SlicedScoreMatching",
    "Sparse",
]
