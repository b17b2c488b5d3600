"""Which states exchange probability with a state: the function g of the flow.

A connectivity names the neighbours x' of one state x. All that the discrete side of the
library needs of them is their gap,

    gap = E(x) - E(x') + log g(x|x') - log g(x'|x),

so that exp(gap / 2) is the rate of flow from x to x'. Neighbours that are all visited
have weight 1 and are summed; neighbours that are drawn have weight 1/k and are
averaged.

Reference: thesis, "Choosing the Connectivity Function g", "Sampling the Connectivity
Function g_ij" and "Continuous State Spaces".
"""

from probjax.connectivity.blocks import BlockChanges, pairs
from probjax.connectivity.flips import AllFlips, BitFlips, RandomFlips
from probjax.connectivity.general import Joined, Listed, Proposal
from probjax.connectivity.sites import SiteChanges
from probjax.connectivity.steps import BallSteps, CubeSteps, GaussianSteps, Steps
from probjax.connectivity.trajectories import Hamiltonian

__all__ = [
    "AllFlips",
    "BallSteps",
    "BitFlips",
    "BlockChanges",
    "CubeSteps",
    "GaussianSteps",
    "Hamiltonian",
    "Joined",
    "Listed",
    "pairs",
    "Proposal",
    "RandomFlips",
    "SiteChanges",
    "Steps",
]
