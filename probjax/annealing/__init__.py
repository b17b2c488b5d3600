"""Partition functions: known distributions to start from."""

from probjax.annealing.base import Bernoulli as Bernoulli
from probjax.annealing.base import Gaussian as Gaussian
from probjax.annealing.base import fit_bernoulli as fit_bernoulli
from probjax.annealing.base import fit_gaussian as fit_gaussian
