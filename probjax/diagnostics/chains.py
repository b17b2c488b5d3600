"""Convergence diagnostics: R-hat and effective numbers of draws.

For m chains of n draws, let W be the mean of the chains' variances, c_t the mean of
their autocovariances at lag t, and V = W (n - 1) / n + (variance of the chains' means):

    rho_t = 1 - (W - c_t) / V,      tau = 1 + 2 sum_t rho_t,
    ESS = m n / tau,                R-hat = sqrt(V / W).

The sum ends before the first pair rho_2k + rho_2k+1 that is not positive, and these
pairs are made monotone decreasing. Chains are split into halves first, so that a chain
that drifts disagrees with itself. For the bulk, draws are replaced by the normal
quantiles of their ranks, so that nothing depends on the scale or on moments that may
not exist. Differences between the chains' scales, not their locations, are detected
after folding, x -> |x - median|.

Draws are arrays `(chain, draw, ...)` or trees of such arrays. Results have one value
for each coordinate, in the form of one state. A coordinate with a NaN has NaN. For a
coordinate that never moves, all draws are effective and R-hat is NaN.

Reference: Vehtari, Gelman, Simpson, Carpenter and Burkner, Bayesian Analysis 16, 667
(2021); Geyer, Statistical Science 7, 473 (1992), for the pairs.
"""

import jax
import jax.numpy as jnp

from probjax.diagnostics import estimators
from probjax.diagnostics.estimators import check_draws, map_coordinates
from probjax.types import Array, Float, PyTree


def autocovariance(draws: PyTree) -> PyTree:
    """Autocovariance of each chain, leaves `(chain, lag, ...)`.

    sum_i (x_i - mean)(x_i+t - mean) / n, computed by FFT for all lags t below the
    number n of draws.

    >>> import numpy as np
    >>> np.asarray(autocovariance(np.array([[0.0, 0.0, 3.0]])), float).round(2)
    array([[ 2.  , -0.33, -0.67]])
    """

    def to_front(leaf):
        return jnp.moveaxis(leaf, (-2, -1), (0, 1))

    found = map_coordinates(estimators.autocovariance, draws, least=1)
    return jax.tree.map(to_front, found)


def autocorrelation_time(draws: PyTree) -> PyTree:
    """Integrated autocorrelation time tau: draws per independent draw, for the mean.

    It requires long chains, because the error of V is in every rho_t and adds up over
    the lags. With 1,000 chains of length 10 tau the estimate is too large by a half,
    with chains of length 40 tau by a fifth.

    >>> steps = jax.random.normal(jax.random.key(0), (4, 200))
    >>> bool(autocorrelation_time(jnp.cumsum(steps, 1)) > autocorrelation_time(steps))
    True
    """
    return map_coordinates(estimators.time_of_mean, draws)


def ess(draws: PyTree) -> PyTree:
    """Effective number of draws for the bulk, from the normal scores of the ranks.

    >>> draws = jax.random.normal(jax.random.key(0), (4, 200))
    >>> bool(ess(draws) > 400), bool(ess(jnp.cumsum(draws, 1)) < 100)
    (True, True)
    """
    return map_coordinates(estimators.ess_bulk, draws)


def ess_tail(draws: PyTree) -> PyTree:
    """Effective number of draws for the tails.

    It is the smaller of those for the indicators x <= q, where q is the 5 % or the 95 %
    quantile of all draws.

    >>> draws = jax.random.normal(jax.random.key(0), (4, 200))
    >>> bool(ess_tail(draws) > 300)
    True
    """
    return map_coordinates(estimators.ess_tail, draws)


def ess_mean(draws: PyTree) -> PyTree:
    """Effective number of draws for the mean: their number / `autocorrelation_time`.

    >>> draws = jax.random.normal(jax.random.key(0), (4, 200, 3))
    >>> ess_mean(draws).shape, bool(ess_mean(draws).min() > 400)
    ((3,), True)
    """
    return map_coordinates(estimators.ess_mean, draws)


def rhat(draws: PyTree) -> PyTree:
    """R-hat of the ranks of the draws or of the folded draws, whichever is larger.

    It is near 1 if the chains agree, and NaN for a single chain.

    >>> draws = jax.random.normal(jax.random.key(0), (4, 200))
    >>> shifted = draws + 9 * jnp.arange(4.0)[:, None]
    >>> bool(rhat(draws) < 1.1), bool(rhat(shifted) > 2)
    (True, True)
    """
    return map_coordinates(estimators.rhat, draws)


def bfmi(energy: Float[Array, "chain draw"]) -> Float[Array, " chain"]:
    """Bayesian fraction of missing information of each chain, E(H_i+1 - H_i)^2 / var H.

    If the momentum is drawn again in every step, a value below 0.3 means that a step
    changes the energy too little to explore the tails.

    >>> bfmi(jnp.array([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]])).tolist()
    [3.0, 1.0]

    Args:
        energy: energies of all draws, such as `sample(...).info.energy` with `thin=1`.

    Reference: Betancourt, "Diagnosing suboptimal cotangent disintegrations in
    Hamiltonian Monte Carlo", arXiv:1604.00695 (2016).
    """
    energy = check_draws(energy, 2)
    change = jnp.sum(jnp.diff(energy, axis=1) ** 2, 1) / energy.shape[1]
    return change / energy.var(1)


def mcse(draws: PyTree) -> PyTree:
    """Standard error of the mean over all draws, sd / sqrt(`ess_mean`).

    >>> draws = jax.random.normal(jax.random.key(0), (4, 200))
    >>> bool(jnp.abs(mcse(draws) - 800**-0.5) < 0.02)
    True
    """
    return map_coordinates(estimators.mcse, draws)
