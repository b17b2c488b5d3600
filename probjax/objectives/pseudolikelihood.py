"""Pseudolikelihood and ratio matching, which compare a state with neighbours by site.

Pseudolikelihood replaces the likelihood by the product over sites of the conditional
probability of a site given all others. With gap_na = E(x) - E(x with site n set to a),

    -log p(x_n | rest) = log(1 + sum_(a != x_n) exp(gap_na)),

which for two letters is softplus(gap_n), the logistic loss of the gap. The probability
flow is a sum of exp(gap / 2) over the same gaps. All conditionals share the parameters
of one energy: this is the symmetric (joint) pseudolikelihood. For continuous states the
sum over letters is an integral, computed by quadrature:

    -log p(x_n | rest) = log integral of exp(E(x) - E(x with x_n = u)) du.

Reference: Besag (1975); thesis, introduction, "Pseudolikelihood".
"""

import jax
import jax.numpy as jnp

from probjax.connectivity import BitFlips, SiteChanges
from probjax.connectivity.grid import SiteGrid
from probjax.objectives.gaps import GapObjective
from probjax.objectives.reduce import log_sum_exp
from probjax.trees import weighted_mean
from probjax.types import ArrayLike, Energy, Gaps, Scalar


def PseudoLikelihood(energy: Energy, *, num_states: int = 2) -> GapObjective:
    """Mean over rows of -sum_n log p(x_n | the other sites).

    Args:
        energy: `energy(params, x)` of one state.
        num_states: number of letters of a site; with 2, states are bits.

    >>> from probjax import ising, loss
    >>> flat, rows = ising.from_matrix([[0, 0], [0, 0]]), jnp.array([[0, 1], [1, 1]])
    >>> objective = PseudoLikelihood(ising.energy)
    >>> round(float(loss(jax.random.key(0), objective, flat, rows)), 4)  # 2 log 2
    1.3863
    """
    is_binary = num_states == 2
    sites = BitFlips() if is_binary else SiteChanges(num_states)
    return GapObjective(
        energy, sites, log_conditionals, weighted_mean, separable=is_binary
    )


def ContinuousPseudoLikelihood(
    energy: Energy, *, lower: ArrayLike, upper: ArrayLike, num_points: int = 64
) -> GapObjective:
    """Mean over rows of -sum_n log p(x_n | the other sites), for continuous states.

    The cost is `num_points` evaluations of the energy for every site of every row.

    Args:
        energy: `energy(params, x)` of one state.
        lower: lower bounds of the sites, one number for all or one for each. Outside
            the bounds, conditional densities must be zero or negligible.
        upper: upper bounds of the sites, likewise.
        num_points: number of quadrature nodes, enough to resolve conditional densities.

    >>> from probjax import loss
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> objective = ContinuousPseudoLikelihood(energy, lower=-8.0, upper=8.0)
    >>> args = jax.random.key(0), objective, 1.0, jnp.zeros((1, 2))
    >>> round(float(loss(*args)), 4)  # log 2 pi
    1.8379
    """
    grid = SiteGrid(lower, upper, num_points)
    return GapObjective(energy, grid, log_densities, weighted_mean)


def RatioMatching(energy: Energy) -> GapObjective:
    """Mean over rows of sum_n p(flipped n | rest)^2 = sum_n sigmoid(gap_n)^2, for bits.

    Args:
        energy: `energy(params, x)` of one state.

    Reference: Hyvarinen, "Some extensions of score matching", CSDA 51 (2007).

    >>> from probjax import ising, loss
    >>> flat, rows = ising.from_matrix(jnp.zeros((2, 2))), jnp.eye(2)
    >>> objective = RatioMatching(ising.energy)
    >>> float(loss(jax.random.key(0), objective, flat, rows))  # 2 / 4
    0.5
    """
    return GapObjective(
        energy, BitFlips(), squared_flip_probs, weighted_mean, separable=True
    )


def squared_flip_probs(gaps: Gaps) -> Scalar:
    """Compute sum_n p(1 - x_n | rest)^2 for one state from the gaps of its bits."""
    return jnp.sum(gaps.weight * jax.nn.sigmoid(gaps.gap) ** 2)


def log_conditionals(gaps: Gaps) -> Scalar:
    """Compute -sum_n log p(x_n | rest) for one state from the gaps of its sites."""
    if gaps.gap.ndim == 1:
        return jnp.sum(gaps.weight * jax.nn.softplus(gaps.gap))
    others = jax.vmap(log_sum_exp)(gaps.gap, gaps.weight)
    return jnp.sum(jax.nn.softplus(others))


def log_densities(gaps: Gaps) -> Scalar:
    """Compute -sum_n log p(x_n | rest) for one state from gaps at quadrature nodes."""
    return jnp.sum(jax.vmap(log_sum_exp)(gaps.gap, gaps.weight))
