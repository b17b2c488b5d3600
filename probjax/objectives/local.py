"""Objectives that compare a state with its neighbours site by site.

Pseudolikelihood replaces the likelihood by the product of every unit's conditional
given all others. With gap_n = E(x) - E(x with bit n flipped),

    -log p(x_n | rest) = log(1 + exp(gap_n)) = softplus(gap_n),

so it is the logistic loss on the same gaps whose exponential is the probability flow.
All conditionals share the parameters of one energy, hence symmetric or joint
pseudolikelihood.

Reference: Besag (1975); thesis, introduction, "Pseudolikelihood".
"""

import jax
import jax.numpy as jnp

from probjax.connectivity import BitFlips
from probjax.objectives.gaps import GapObjective
from probjax.objectives.reduce import mean
from probjax.types import Energy, Gaps, Scalar


def PseudoLikelihood(energy: Energy) -> GapObjective:
    """Mean over rows of -sum_n log p(x_n | the other bits), for binary states."""
    return GapObjective(energy, BitFlips(), log_conditionals, mean)


def log_conditionals(gaps: Gaps) -> Scalar:
    """-sum_n log p(x_n | rest) of one state, sum_n softplus(gap_n)."""
    return jnp.sum(gaps.weight * jax.nn.softplus(gaps.gap))
