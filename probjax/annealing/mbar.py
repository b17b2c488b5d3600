"""Ratios of partition functions from draws of several distributions together (MBAR).

Let u_k(x) be the energy of distribution k, of which there are N_k draws. The draws
together are weighted draws of any distribution with an energy u:

    log Z_u = log sum_n exp(-u(x_n) - m_n),    m_n = log sum_k N_k exp(-u_k(x_n) - f_k),

where f_k are the log Z of the distributions themselves, which solve these equations up
to a constant. They minimise the convex function

    F(f) = sum_n m_n(f) + sum_k N_k f_k,

which Newton's method does in a few steps. No other estimate from the same independent
draws has a smaller variance in the limit of many draws.

Reference: Shirts and Chodera, J. Chem. Phys. 129, 124105 (2008).
"""

import numpy as np

from probjax.types import ArrayLike, Float

MAX_STEPS, MAX_HALVINGS, TOLERANCE = 100, 40, 1e-12


def mbar(
    energies: Float[ArrayLike, "rung draw"],
    counts: Float[ArrayLike, " rung"],
    weights: Float[ArrayLike, " draw"] | None = None,
    start: Float[ArrayLike, " rung"] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return log Z of each rung, relative to the first, and log m of each draw.

    Args:
        energies: energy of every draw in the distribution of each rung.
        counts: number of draws of each rung, above 0.
        weights: number of times that each draw counts; 1 by default.
        start: log Z to begin with.

    Two Gaussian energies with widths 1 and 2, so that log Z differs by log 2:

    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(0, 1, 5000), rng.normal(0, 2, 5000)])
    >>> log_z, _ = mbar(np.stack([x**2 / 2, x**2 / 8]), [5000, 5000])
    >>> bool(abs(log_z[1] - np.log(2)) < 0.03)
    True
    """
    energies = np.asarray(energies, float)
    counts = np.asarray(counts, float)
    weights = np.ones(energies.shape[1]) if weights is None else np.asarray(weights)
    log_z = np.zeros(len(counts)) if start is None else np.asarray(start, float)
    log_z = log_z - log_z[0]
    value, log_mixture, shares = _mixture(energies, counts, weights, log_z)
    for _ in range(MAX_STEPS):
        weighted = weights * shares
        gradient = counts - weighted.sum(1)
        hessian = np.diag(weighted.sum(1)) - weighted @ shares.T
        step = np.zeros(len(counts))
        step[1:] = np.linalg.lstsq(hessian[1:, 1:], -gradient[1:], rcond=1e-12)[0]
        expected = gradient @ step  # minus twice what is left to gain
        if -expected <= TOLERANCE:
            break
        for halving in range(MAX_HALVINGS):
            moved = log_z + step / 2**halving
            found = _mixture(energies, counts, weights, moved)
            if found[0] <= value + 1e-12 * abs(value):
                break
        else:
            break
        log_z = moved
        value, log_mixture, shares = found
    return log_z, log_mixture


def _mixture(energies, counts, weights, log_z):
    """Return F, log m of each draw, and the share of each rung in m."""
    terms = np.log(counts)[:, None] - energies - log_z[:, None]
    largest = terms.max(0)
    parts = np.exp(terms - largest)
    total = parts.sum(0)
    log_mixture = largest + np.log(total)
    return weights @ log_mixture + counts @ log_z, log_mixture, parts / total
