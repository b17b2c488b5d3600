"""Connectivities: the function g, which defines the neighbours of a state.

Probability flows from a state x to its neighbours x'. Objectives use a neighbour only
through its gap,

    gap = E(x) - E(x') + log g(x|x') - log g(x'|x),

so that exp(gap / 2) is the rate of flow from x to x'. If all neighbours are listed,
each has weight 1 and the flow is their sum; if k neighbours are drawn, each has weight
1/k and the flow is their average.

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
