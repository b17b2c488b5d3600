"""One unit at a time: interaction screening and node-wise logistic regression.

With gap = E(x) - E(x with unit n flipped), the loss of unit n is

    RISE: mean exp(gap / 2)
    logRISE: log mean exp(gap / 2)
    logistic: mean softplus(gap)

over rows. The loss of a unit depends on the couplings of that unit only, so units are
fitted separately, all of them at once under `vmap`. Each coupling is estimated twice,
once from either unit, and `ising.symmetrised` takes the mean. `MPF` (the sum of all
RISE losses) and `PseudoLikelihood` estimate each coupling once, which uses the data
better.

Reference: Vuffray, Misra, Lokhov and Chertkov, NeurIPS 2016; Lokhov, Vuffray, Misra and
Chertkov, Science Advances 4, e1700791 (2018), whose penalty has the strength
c sqrt(log(p^2 / 0.05) / n).
"""

import jax.numpy as jnp

from probjax.connectivity.flips import OneFlip
from probjax.objectives.flow import MPF
from probjax.objectives.gaps import GapObjective
from probjax.objectives.pseudolikelihood import log_conditionals
from probjax.trees import weighted_mean
from probjax.types import ArrayLike, Energy


def RISE(energy: Energy, node: ArrayLike) -> GapObjective:
    """Mean over rows of exp(gap / 2) of unit `node`; overflows far from the minimum.

    >>> from probjax import ising, loss
    >>> params = ising.from_matrix([[2.0, 0.0], [0.0, 0.0]])
    >>> args = RISE(ising.energy, 0), params, jnp.array([[1, 0]])
    >>> round(float(loss(jax.random.key(0), *args)), 4)  # exp(2 / 2)
    2.7183
    """
    return GapObjective(energy, OneFlip(node), _rate, weighted_mean)


def LogRISE(energy: Energy, node: ArrayLike) -> GapObjective:
    """Logarithm of the mean over rows of exp(gap / 2): log flow of the unit's flips.

    >>> from probjax import ising, loss
    >>> params = ising.from_matrix([[2.0, 0.0], [0.0, 0.0]])
    >>> args = LogRISE(ising.energy, 0), params, jnp.array([[1, 0]])
    >>> round(float(loss(jax.random.key(0), *args)), 4)  # 2 / 2
    1.0
    """
    return MPF(energy, connectivity=OneFlip(node))


def NodeLikelihood(energy: Energy, node: ArrayLike) -> GapObjective:
    """Mean over rows of -log p(x_n | the other units) of one unit n.

    >>> from probjax import ising, loss
    >>> params = ising.from_matrix([[2.0, 0.0], [0.0, 0.0]])
    >>> args = NodeLikelihood(ising.energy, 0), params, jnp.array([[1, 0]])
    >>> round(float(loss(jax.random.key(0), *args)), 4)  # log(1 + exp(2))
    2.1269
    """
    return GapObjective(energy, OneFlip(node), log_conditionals, weighted_mean)


def screening_strength(num_units: int, num_rows: float, *, constant: float) -> float:
    """Compute the strength constant * sqrt(log(num_units^2 / 0.05) / num_rows).

    Published constants are 0.4 for `RISE`, 0.8 for `LogRISE` and 0.2 for
    `NodeLikelihood`. They apply to couplings of spins, -J / 2, so half of the result is
    the strength of an `L1` penalty on J.

    >>> round(screening_strength(16, 1000, constant=0.4), 4)
    0.037
    """
    return float(constant * jnp.sqrt(jnp.log(num_units**2 / 0.05) / num_rows))


def _rate(gaps):
    return jnp.sum(gaps.weight * jnp.exp(gaps.gap / 2))
