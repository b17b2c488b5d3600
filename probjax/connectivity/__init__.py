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

from probjax.connectivity.blocks import BlockChanges as BlockChanges
from probjax.connectivity.blocks import pairs as pairs
from probjax.connectivity.flips import AllFlips as AllFlips
from probjax.connectivity.flips import BitFlips as BitFlips
from probjax.connectivity.flips import RandomFlips as RandomFlips
from probjax.connectivity.general import Joined as Joined
from probjax.connectivity.general import Listed as Listed
from probjax.connectivity.general import Proposal as Proposal
from probjax.connectivity.sites import SiteChanges as SiteChanges
from probjax.connectivity.steps import BallSteps as BallSteps
from probjax.connectivity.steps import CubeSteps as CubeSteps
from probjax.connectivity.steps import GaussianSteps as GaussianSteps
from probjax.connectivity.steps import Steps as Steps
from probjax.connectivity.trajectories import Hamiltonian as Hamiltonian
