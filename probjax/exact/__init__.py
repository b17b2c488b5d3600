"""Ground truth on small spaces: what every estimate is tested against.

`exact.log_z(...)` and its kin sum over every state, `exact.lattice` sums over the rows
of a two-dimensional lattice, and `exact.dynamics` holds the probability flow itself.
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
