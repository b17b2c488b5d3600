"""Markov chains that leave a model unchanged. Each sees one state at a time."""

from probjax.samplers.cluster import SwendsenWang as SwendsenWang
from probjax.samplers.cluster import Wolff as Wolff
from probjax.samplers.gibbs import ColourGibbs as ColourGibbs
from probjax.samplers.gibbs import HeatBath as HeatBath
from probjax.samplers.gibbs import colours as colours
from probjax.samplers.gibbs import every_site as every_site
from probjax.samplers.gibbs import random_sites as random_sites
from probjax.samplers.metropolis import Metropolis as Metropolis
from probjax.samplers.run import Draws as Draws
from probjax.samplers.run import Means as Means
from probjax.samplers.run import sample as sample
from probjax.samplers.run import sample_mean as sample_mean
from probjax.samplers.tempering import Tempered as Tempered
from probjax.samplers.tempering import swap_rates as swap_rates
