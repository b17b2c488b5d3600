"""Ground truth on small spaces: what every estimate is tested against.

`exact.log_z(...)` and its kin sum over every state, `exact.lattice` sums over the rows
of a two-dimensional lattice, and `exact.dynamics` holds the probability flow itself.
"""

from probjax.exact import dynamics as dynamics
from probjax.exact import lattice as lattice
from probjax.exact.enumeration import Moments as Moments
from probjax.exact.enumeration import entropy as entropy
from probjax.exact.enumeration import expectation as expectation
from probjax.exact.enumeration import kl as kl
from probjax.exact.enumeration import log_likelihood as log_likelihood
from probjax.exact.enumeration import log_probs as log_probs
from probjax.exact.enumeration import log_z as log_z
from probjax.exact.enumeration import moments as moments
from probjax.exact.enumeration import sample as sample
from probjax.exact.enumeration import states as states
