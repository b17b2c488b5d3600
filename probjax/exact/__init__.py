"""Exact results for small models, to test estimates against.

`exact.log_z`, `exact.moments` and the other functions of `exact` sum over all states.
`exact.lattice` sums over the rows of two-dimensional lattices. `exact.dynamics`
computes the probability flow as a matrix.
"""

from probjax.exact import dynamics, lattice
from probjax.exact.enumeration import (
    Moments,
    entropy,
    expectation,
    kl,
    log_likelihood,
    log_probs,
    log_z,
    moments,
    sample,
    states,
)

__all__ = [
    "dynamics",
    "entropy",
    "expectation",
    "kl",
    "lattice",
    "log_likelihood",
    "log_probs",
    "log_z",
    "Moments",
    "moments",
    "sample",
    "states",
]
