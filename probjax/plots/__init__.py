"""Figures. Functions take `ax=`, draw on it and return it; matplotlib loads on call.

Axes are named where they have no name yet, and nothing has a legend until you ask.
"""

from probjax.plots.against import agreement as agreement
from probjax.plots.against import comparison as comparison
from probjax.plots.against import estimates as estimates
from probjax.plots.against import population_count as population_count
from probjax.plots.canvas import BLACK as BLACK
from probjax.plots.canvas import BLUE as BLUE
from probjax.plots.canvas import GREEN as GREEN
from probjax.plots.canvas import GREY as GREY
from probjax.plots.canvas import ORANGE as ORANGE
from probjax.plots.canvas import PINK as PINK
from probjax.plots.canvas import SKY as SKY
from probjax.plots.canvas import load_pyplot as load_pyplot
from probjax.plots.likelihoods import interval as interval
from probjax.plots.likelihoods import weights as weights
from probjax.plots.memories import capacity as capacity
from probjax.plots.memories import recovery as recovery
from probjax.plots.pairwise import couplings as couplings
from probjax.plots.pairwise import graph as graph
from probjax.plots.runs import autocovariance as autocovariance
from probjax.plots.runs import convergence as convergence
from probjax.plots.tiles import groupings as groupings
from probjax.plots.tiles import images as images
from probjax.plots.tiles import receptive_fields as receptive_fields
