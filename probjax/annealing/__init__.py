"""Partition functions and log-likelihoods, by particles from known distributions."""

from probjax.annealing.ais import ais as ais
from probjax.annealing.ais import ais_until as ais_until
from probjax.annealing.annealed import Annealed as Annealed
from probjax.annealing.base import Exponential as Exponential
from probjax.annealing.base import Gaussian as Gaussian
from probjax.annealing.base import Laplace as Laplace
from probjax.annealing.base import Product as Product
from probjax.annealing.base import StudentT as StudentT
from probjax.annealing.base_discrete import Bernoulli as Bernoulli
from probjax.annealing.base_discrete import Categorical as Categorical
from probjax.annealing.base_fits import fit_bernoulli as fit_bernoulli
from probjax.annealing.base_fits import fit_categorical as fit_categorical
from probjax.annealing.base_fits import fit_full_gaussian as fit_full_gaussian
from probjax.annealing.base_fits import fit_gaussian as fit_gaussian
from probjax.annealing.base_fits import fit_laplace as fit_laplace
from probjax.annealing.bounds import Bracket as Bracket
from probjax.annealing.bounds import reverse_ais as reverse_ais
from probjax.annealing.bounds import sandwich as sandwich
from probjax.annealing.evaluate import Estimate as Estimate
from probjax.annealing.evaluate import compare as compare
from probjax.annealing.evaluate import log_likelihood as log_likelihood
from probjax.annealing.marginal import RowsDone as RowsDone
from probjax.annealing.marginal import (
    marginal_log_likelihood as marginal_log_likelihood,
)
from probjax.annealing.path import Geometric as Geometric
from probjax.annealing.path import Straight as Straight
from probjax.annealing.path import linear as linear
from probjax.annealing.path import sigmoid as sigmoid
from probjax.annealing.path import towards_one as towards_one
from probjax.annealing.pilot import Pilot as Pilot
from probjax.annealing.plan import Plan as Plan
